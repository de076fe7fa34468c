"""Report on this machine and this Python: findings that sparsejit needs, and remedies."""

import operator
import platform
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import numpy as np

from sparsejit.api.kernels.compile_layer import compile_matrix
from sparsejit.errors import InvalidInput, SparseJitError
from sparsejit.files import check_writable
from sparsejit.install_peachpy import RouteFailed, find_working
from sparsejit.machine.target import Target
from sparsejit.planner.calibration import recalled
from sparsejit.planner.measurement_store import cache_file

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_TARGET_FIELDS = ("isa", "l1d_bytes", "l1i_bytes", "l2_bytes", "l3_bytes", "model")


@dataclass(frozen=True)
class Finding:
    """One requirement that was looked for; `found` is None where it is missing.

    `needed_by` is "core" or the name of an extra; only the core is needed to run at all. `fits`:
    whether the version found is sufficient.
    """

    name: str
    found: str | None
    needed_by: str
    remedy: str = ""
    fits: bool = True

    @property
    def ok(self) -> bool:
        return self.found is not None and self.fits


@dataclass(frozen=True)
class Diagnosis:
    """Everything `sparsejit doctor` reports. `target` is None on an unsupported processor.

    `rates` is the origin of the planner's rates, `cache` the folder where measurements are kept.
    """

    target: Target | None
    findings: tuple[Finding, ...]
    rates: str = "none"
    cache: str = "none"

    @property
    def can_run(self) -> bool:
        return all(finding.ok for finding in self.findings if finding.needed_by == "core")

    def as_dict(self) -> dict[str, Any]:
        """The diagnosis as plain JSON types."""
        target = None
        if self.target is not None:
            target = {name: getattr(self.target, name) for name in _TARGET_FIELDS}
            target["instruction_sets"] = sorted(self.target.instruction_sets)
            target["core"] = self.target.core.key
            target["lacking"] = lacking(self.target)
        findings = [asdict(finding) for finding in self.findings]
        return {
            "can_run": self.can_run,
            "target": target,
            "findings": findings,
            "rates": self.rates,
            "cache": self.cache,
        }


_TRANSFORMERS = "quantised transformers about 0.3"
# Losses by level and the set that decides; the first row of a level whose set is there, or is none,
# counts. Ratios: ResNet-50, MobileNet v2, EfficientNet-B0 and BERT-base as QDQ files at 90 % zeros,
# on a core with both levels; with AVX-VNNI from the share of its instructions.
_INT8_LACKS = (
    ("avx512", "avx512_vnni", ""),
    ("avx512", "", "no AVX-512 VNNI: quantised layers return float32, int8 by pairs of 16 bits"),
    *(
        ("avx2", decides, f"no AVX-512: int8 convolutions by {by} of its speed, {_TRANSFORMERS}")
        for decides, by in (("avx_vnni", "AVX-VNNI, about 0.6"), ("", "AVX2, about 0.5 to 0.6"))
    ),
)


# Losses of cores with AVX-512 that lack a set: dense layers and BERT-base, on a core that has it.
_SHORT_LACKS = (
    ("avx512_bf16", "no AVX512-BF16: dense bfloat16 layers by float32, about 0.5 of their speed"),
)


def lacking(target: Target) -> str:
    """Return in a line the sets that the target lacks and their cost; empty if there are none."""
    of_int8 = next(
        text
        for isa, decides, text in _INT8_LACKS
        if isa == target.isa and (not decides or target.has(decides))
    )
    wide = target.isa == "avx512"
    of_short = [text for name, text in _SHORT_LACKS if wide and not target.has(name)]
    return "; ".join(filter(None, [of_int8, *of_short]))


def examine(for_developers: bool) -> Diagnosis:
    """Examine the processor, Python, declared packages and cache; run a kernel.

    PeachPy, which another interpreter must import, is looked for where it is for developers.
    Measures no rates and keeps no file: one that tests the cache's folder is removed again.
    """
    target, processor = _processor()
    python = Finding("python", f"{platform.python_version()} ({sys.executable})", "core")
    peachpy = [_peachpy()] if for_developers else []
    findings = (processor, python, *peachpy, _kernel(target), *_packages())
    return Diagnosis(target, findings, _rates(target), _cache())


def _rates(target: Target | None) -> str:
    try:
        return "none" if target is None else recalled(target).core.origin
    except InvalidInput as error:
        return f"none: {error}"


def _cache() -> str:
    file = cache_file("doctor")
    try:
        return str(check_writable(file).parent)
    except InvalidInput as error:
        return f"nothing is kept: {error}, with XDG_CACHE_HOME"


def _processor() -> tuple[Target | None, Finding]:
    try:
        target = Target.detect()
    except SparseJitError as error:
        return None, Finding("processor", None, "core", str(error))
    found = f"{target.model}, {target.core.key}, level {target.isa}"
    return target, Finding("processor", found, "core")


def _peachpy() -> Finding:
    """Look for PeachPy, which encodes instructions of new kernels, whose forms do not ship."""
    try:
        return Finding("peachpy", find_working(), "dev")
    except RouteFailed as failure:
        remedy = f"{sys.executable} -m sparsejit.install_peachpy ({failure})"
        return Finding("peachpy", None, "dev", remedy)


def _kernel(target: Target | None) -> Finding:
    """Compile a kernel for the level, not this very processor, which would then be measured."""
    weights = np.eye(16, dtype=np.float32)
    x = np.arange(16, dtype=np.float32)
    try:
        kernel = compile_matrix(weights, target="native" if target is None else target.isa)
        y = kernel(x)
    except SparseJitError as error:
        return Finding("a kernel", None, "core", str(error))
    # Some kernels keep an index in the lowest bits of the weights (2^-17 at most).
    if not np.allclose(y, x, rtol=1e-5, atol=0):
        return Finding("a kernel", None, "core", f"identity gave {y}; please report this")
    return Finding("a kernel", f"compiled in {kernel.compile_ms:.0f} ms and correct", "core")


def _packages() -> list[Finding]:
    try:
        requirements = metadata.requires("sparsejit") or []
    except metadata.PackageNotFoundError:
        remedy = f"{sys.executable} -m pip install --editable . (in the project's folder)"
        return [Finding("sparsejit", None, "core", remedy)]
    findings: dict[str, Finding] = {}
    for requirement in requirements:
        finding = _package(requirement)
        findings.setdefault(finding.name, finding)
    return list(findings.values())


def _package(requirement: str) -> Finding:
    wanted, _, marker = (part.strip() for part in requirement.partition(";"))
    extra = re.search(r"extra == ['\"](\w+)['\"]", marker)
    name = re.split(r"[^\w.-]", wanted, maxsplit=1)[0]
    needed_by = extra.group(1) if extra else "core"
    brought = f"sparsejit[{needed_by}]" if extra else wanted
    remedy = f"{sys.executable} -m pip install '{brought}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, None, needed_by, remedy)
    if _fits(version, wanted):
        return Finding(name, version, needed_by)
    return Finding(name, f"{version}, but {wanted} is needed", needed_by, remedy, fits=False)


def _fits(version: str, wanted: str) -> bool:
    """Whether a requirement such as torch<3,>=2.9 allows a version."""
    limits = re.findall(r"([<>=!]=|[<>])\s*([\d.]+)", wanted)
    return all(_COMPARE[sign](_numbers(version), _numbers(limit)) for sign, limit in limits)


def _numbers(version: str) -> list[int]:
    """The numbers that a version begins with, without zeros at their end: 2.13.0+cpu is 2, 13."""
    begin = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in begin.group().split(".")] if begin else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers
