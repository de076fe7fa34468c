"""Targets of code: a processor's instruction sets, caches and core, which only this module detects.

    must_ask, refusals   instruction sets that a process must ask the system for, though the
                         processor has them
    Target               a processor as the code generators see it
    parse_target         a target from the text of /proc/cpuinfo

Only `runtime` may make the system call; it registers a function for that by `must_ask`.

Everything else takes a `Target` and never tests the processor itself, so any kernel can be
chosen, emitted and disassembled for a processor that is not here.
"""

import os
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from sparsejit.errors import InvalidInput, UnsupportedTarget
from sparsejit.machine.core import Core
from sparsejit.machine.cpuinfo import first_processor, numbers_of, read_machine
from sparsejit.machine.microarchitecture import core_of
from sparsejit.machine.processors.zen5 import ZEN5

# Asks the system; returns the reason of a refusal, with the remedy, or None where it allows.
Question = Callable[[], str | None]

_questions: dict[str, Question] = {}


def must_ask(instruction_sets: Iterable[str], question: Question) -> None:
    """Offer these instruction sets from now on only if `question` returns None, not a refusal."""
    _questions.update(dict.fromkeys(instruction_sets, question))


def refusals(instruction_sets: frozenset[str]) -> dict[str, str]:
    """Return the sets among these that the system refuses this process, with the reasons."""
    answers = {name: _questions[name]() for name in instruction_sets & _questions.keys()}
    return {name: why for name, why in answers.items() if why is not None}


MAX_ISA_VARIABLE = "SPARSEJIT_MAX_ISA"

_AVX2_SETS = frozenset({"avx", "avx2", "fma"})
_AVX512_SETS = _AVX2_SETS | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}

# Names as in the flags line of Linux's /proc/cpuinfo.
INSTRUCTION_SETS = _AVX512_SETS | {
    "amx_bf16",
    "amx_int8",
    "amx_tile",
    "avx_vnni",
    "bmi1",
    "bmi2",
    "f16c",
    "avx512_bf16",
    "avx512_bitalg",
    "avx512_fp16",
    "avx512_vbmi2",
    "avx512_vnni",
    "avx512_vpopcntdq",
    "avx512cd",
    "avx512ifma",
    "avx512vbmi",
}


@dataclass(frozen=True)
class _Level:
    required: frozenset[str]
    vector_registers: int
    vector_bytes: int


# Weakest first. A processor's level is the last one whose required sets it has.
_LEVELS = {
    "avx2": _Level(_AVX2_SETS, vector_registers=16, vector_bytes=32),
    "avx512": _Level(_AVX512_SETS, vector_registers=32, vector_bytes=64),
}
ISA_LEVELS = tuple(_LEVELS)

# Levels that exist, but are too low for any kernel here.
_TOO_OLD = frozenset({"sse", "sse2", "sse3", "ssse3", "sse4", "sse4.1", "sse4.2", "avx"})


@dataclass(frozen=True)
class Target:
    """A processor as the code generators see it.

    Attributes:
        isa: "avx2" (AVX2 and FMA) or "avx512" (F, BW, VL and DQ besides)
        instruction_sets: names as in /proc/cpuinfo; below avx512 none of AVX-512 or AMX at all
        l1d_bytes: bytes of a core's first-level cache for data
        l1i_bytes: bytes of a core's first-level cache for code
        l2_bytes: bytes of a core's second-level cache
        l3_bytes: bytes of the cache that cores share
        model: the processor's name as the system gives it
        core: data of its microarchitecture
        between_bytes: bytes of other kernels' code and weights between two calls of a kernel
    """

    isa: str
    instruction_sets: frozenset[str]
    l1d_bytes: int
    l1i_bytes: int
    l2_bytes: int
    l3_bytes: int
    model: str
    core: Core
    between_bytes: int = 0

    def __hash__(self) -> int:
        """Hash of the fields that differ between targets of one machine, for caches of costs."""
        return hash((self.model, self.isa, self.between_bytes))

    @property
    def alone(self) -> "Target":
        """The same target, with nothing between two calls of a kernel."""
        return _beside(self, 0) if self.between_bytes else self

    def beside(self, between_bytes: int) -> "Target":
        """Return the same target, with `between_bytes` of others between two calls of a kernel."""
        return _beside(self, between_bytes)

    def prefetch_distance(self, all_bytes: int) -> int:
        """Return the distance, in bytes, at which code is prefetched; 0 if `all_bytes` fit L2."""
        return self.core.prefetch_distance if all_bytes > self.l2_bytes else 0

    @cached_property
    def vector_registers(self) -> int:
        """Number of architectural vector registers: 16 ymm or 32 zmm."""
        return _LEVELS[self.isa].vector_registers

    @cached_property
    def vector_bytes(self) -> int:
        """Bytes in one vector register: 32 or 64."""
        return _LEVELS[self.isa].vector_bytes

    @cached_property
    def lanes(self) -> int:
        """float32 values in one vector register: 8 or 16."""
        return self.vector_bytes // 4

    @property
    def level_sets(self) -> frozenset[str]:
        """The instruction sets that every processor of its level has."""
        return _LEVELS[self.isa].required

    def has(self, instruction_set: str) -> bool:
        """Whether an instruction set, named as in /proc/cpuinfo, may be used.

        Raises:
            InvalidInput: a name that is not in `INSTRUCTION_SETS`, so that a misspelt query
                cannot pass for a missing feature
        """
        if instruction_set not in INSTRUCTION_SETS:
            raise InvalidInput(
                f"unknown instruction set {instruction_set!r}; "
                f"use one of {', '.join(sorted(INSTRUCTION_SETS))}"
            )
        return instruction_set in self.instruction_sets

    def runs_on(self, machine: "Target") -> bool:
        """Whether code emitted for this target may be executed on `machine`."""
        return self.instruction_sets <= machine.instruction_sets

    @classmethod
    def detect(cls) -> "Target":
        """Describe this machine, no further than SPARSEJIT_MAX_ISA and the system allow.

        Raises:
            UnsupportedTarget: where the machine or the variable does not reach AVX2 and FMA,
                and for a value of the variable that is not a level
        """
        return _detect(_max_isa())

    @staticmethod
    def check_allowed(instruction_sets: frozenset[str]) -> None:
        """Check that the system lets this process use these sets of the processor.

        Raises:
            UnsupportedTarget: the processor has one of these sets, but the system refuses it
        """
        refused = refusals(instruction_sets & _processor(_max_isa()).instruction_sets)
        if refused:
            raise UnsupportedTarget(refused[min(refused)])

    @classmethod
    def named(cls, name: str) -> "Target":
        """Return the target called "native" (this machine), "avx2" or "avx512".

        The last two are the same everywhere: a level's required instruction sets, and
        caches and costs of a Zen 5 core, so that choices can be tested on any machine.
        """
        if name == "native":
            return cls.detect()
        if name not in _LEVELS:
            raise UnsupportedTarget(
                f"unknown target {name!r}; use 'native' or one of {', '.join(ISA_LEVELS)}"
            )
        return cls(
            isa=name,
            instruction_sets=_LEVELS[name].required | {"bmi1", "bmi2", "f16c"},
            l1d_bytes=ZEN5.caches["l1d"],
            l1i_bytes=ZEN5.caches["l1i"],
            l2_bytes=ZEN5.caches["l2"],
            l3_bytes=ZEN5.caches["l3"],
            model=f"generic {name}",
            core=ZEN5,
        )

    @classmethod
    def resolve(cls, target: "str | Target") -> "Target":
        """Return the target for an argument.

        Args:
            target: "native", a level's name, or a Target itself

        Raises:
            InvalidInput: target is none of these
            UnsupportedTarget: this machine, or SPARSEJIT_MAX_ISA, does not allow its code to run
                here
        """
        machine = cls.detect()
        wanted = cls.named(target) if isinstance(target, str) else target
        if not isinstance(wanted, Target):
            raise InvalidInput(
                f"target={target!r}; give 'native', one of {', '.join(ISA_LEVELS)}, or a Target"
            )
        if not wanted.runs_on(machine):
            cls.check_allowed(wanted.instruction_sets)
            raise UnsupportedTarget(
                f"target {wanted.isa} does not run here (this machine, or {MAX_ISA_VARIABLE}, "
                f"allows {machine.isa}); choose target='native'"
            )
        return wanted


def parse_target(cpuinfo: str, caches: Mapping[str, int], max_isa: str | None = None) -> Target:
    """Build a Target from the text of /proc/cpuinfo.

    `caches` maps "l1d", "l1i", "l2" and "l3" to bytes; missing sizes, as /sys may lack in
    containers, come from the core's data. `max_isa` is a level's name or None. Raises
    UnsupportedTarget as `Target.detect` does.
    """
    fields = first_processor(cpuinfo)
    found = INSTRUCTION_SETS & set(fields.get("flags", "").split())
    model = fields.get("model name", platform.machine() or "unknown")
    allowed = ISA_LEVELS[: ISA_LEVELS.index(_checked_level(max_isa)) + 1]
    reached = [name for name in allowed if _LEVELS[name].required <= found]
    if not reached:
        missing = ", ".join(sorted(_AVX2_SETS - found))
        raise UnsupportedTarget(
            f"processor {model!r} lacks {missing}; sparsejit needs an x86-64 processor with "
            "AVX2 and FMA (Intel Haswell 2013, AMD Zen 2017 or later; in a virtual machine, "
            "let the host's processor features through)"
        )
    isa = reached[-1]
    if isa == "avx2":
        found = frozenset(name for name in found if not name.startswith(("avx512", "amx")))
    core = core_of(*numbers_of(fields))
    sizes = {**core.caches, **caches}
    return Target(
        isa=isa,
        instruction_sets=frozenset(found),
        l1d_bytes=sizes["l1d"],
        l1i_bytes=sizes["l1i"],
        l2_bytes=sizes["l2"],
        l3_bytes=sizes["l3"],
        model=model,
        core=core,
    )


def _checked_level(max_isa: str | None) -> str:
    if max_isa is None:
        return ISA_LEVELS[-1]
    level = max_isa.strip().lower()
    if level in _LEVELS:
        return level
    allowed = " or ".join(ISA_LEVELS)
    if level in _TOO_OLD:
        raise UnsupportedTarget(
            f"{MAX_ISA_VARIABLE}={max_isa} is below AVX2, which every kernel needs; "
            f"set it to {allowed}, or unset it"
        )
    raise UnsupportedTarget(
        f"{MAX_ISA_VARIABLE}={max_isa} is not a level; set it to {allowed}, or unset it"
    )


def _max_isa() -> str | None:
    return os.environ.get(MAX_ISA_VARIABLE) or None


@lru_cache(maxsize=512)
def _beside(target: Target, between_bytes: int) -> Target:
    return replace(target, between_bytes=between_bytes)


@lru_cache(maxsize=8)
def _processor(max_isa: str | None) -> Target:
    """Return the processor with all its instruction sets, even if the system refuses some."""
    cpuinfo, caches = read_machine()
    return parse_target(cpuinfo, caches, max_isa)


@lru_cache(maxsize=8)
def _detect(max_isa: str | None) -> Target:
    found = _processor(max_isa)
    sets = found.instruction_sets
    return replace(found, instruction_sets=sets - frozenset(refusals(sets)))
