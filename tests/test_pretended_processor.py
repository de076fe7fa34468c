"""A processor that nobody has tuned anything for: kernels are right, whatever is planned for it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pretended_processor
import pytest
from matvec_checks import block_weights

import sparsejit
from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.asm_templates.families import MATVEC_TEMPLATES
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, Layout
from sparsejit.machine.cpuinfo import numbers_of
from sparsejit.machine.microarchitecture import MICROARCHITECTURES, UNKNOWN, core_named, core_of
from sparsejit.machine.target import ISA_LEVELS, Target

# Bytes of L1d, L1i, L2 and L3: tiny, of odd sizes, and all in one.
CACHES = {
    "tiny": (8 << 10, 8 << 10, 64 << 10, 256 << 10),
    "odd": (40 << 10, 24 << 10, 768 << 10, 6 << 20),
    "huge": (1 << 20, 1 << 20, 64 << 20, 1 << 30),
}
# Beyond the tiny L2, the odd L1d, and neither of the huge ones.
SHAPES = [(37, 53), (400, 300)]


def unknown(caches: str) -> Target:
    l1d, l1i, l2, l3 = CACHES[caches]
    sizes = {"l1d_bytes": l1d, "l1i_bytes": l1i, "l2_bytes": l2, "l3_bytes": l3}
    return replace(Target.detect(), model=f"unknown, {caches} caches", **sizes)


def families(table: Iterable[Any]) -> list[tuple[str, DType]]:
    """Every family of a table, and automatic choice, by the dtypes this machine has them for."""
    rows = [row for row in table if row.made_for(Target.detect())]
    found = [(name, row.dtype) for row in rows for name in ("auto", row.family)]
    return list(dict.fromkeys(found))


def check(kernel: sparsejit.Kernel, weights: np.ndarray, x: np.ndarray) -> None:
    matrix = SparseMatrix(weights)
    exact = reference.product(kernel.spec, matrix, x)
    np.testing.assert_allclose(kernel(x), exact, atol=1e-5 * float(np.abs(exact).max()))


@pytest.mark.parametrize("caches", CACHES)
@pytest.mark.parametrize(("strategy", "dtype"), families(MATVEC_TEMPLATES))
def test_every_family_computes_the_product(caches: str, strategy: str, dtype: DType) -> None:
    for shape in SHAPES:
        weights = block_weights(shape, 0.2, 8)
        x = np.random.default_rng(0).standard_normal(shape[1]).astype(np.float32)
        scale = float(np.abs(x).max()) / 127 if dtype is DType.INT8 else None
        kernel = sparsejit.compile_matrix(
            weights,
            dtype=dtype.value,
            strategy=strategy,
            target=unknown(caches),
            input_scale=scale,
        )
        check(kernel, weights, x)


@pytest.mark.parametrize("caches", CACHES)
@pytest.mark.parametrize(("strategy", "dtype"), families(MATMUL_TEMPLATES))
@pytest.mark.parametrize("layout", Layout)
def test_every_family_computes_a_batch(
    caches: str, strategy: str, dtype: DType, layout: Layout
) -> None:
    weights = block_weights((60, 80), 0.2, 1)
    kernel = sparsejit.compile_matrix(
        weights,
        batch=18,
        layout=layout,
        dtype=dtype.value,
        strategy=strategy,
        target=unknown(caches),
        input_scale=0.05 if dtype is DType.INT8 else None,
    )
    x = np.random.default_rng(0).standard_normal(kernel.spec.x_shape).astype(np.float32)
    check(kernel, weights, reference.round_to_bfloat16(x) if dtype is DType.BFLOAT16 else x)


QUESTIONS = """
from sparsejit.machine import microarchitecture
from sparsejit.machine.cpuinfo import numbers_of
from sparsejit.machine.microarchitecture import MICROARCHITECTURES, UNKNOWN, core_of
from sparsejit.machine.target import ISA_LEVELS, Target
target = Target.detect()
print(target.model, target.l1d_bytes, target.l1i_bytes, target.l2_bytes, target.l3_bytes)
print(microarchitecture.detect(), target.isa)
"""


def test_numbers_lead_to_the_core_that_is_meant() -> None:
    cores = {key: pretended_processor.appearance(key) for key in pretended_processor.names()}
    found = {key: core_of(*numbers_of(seen.fields)).key for key, seen in cores.items()}
    assert found.pop(pretended_processor.UNKNOWN) == UNKNOWN
    assert found == {key: key for key in MICROARCHITECTURES if key != UNKNOWN}


@pytest.mark.parametrize("key", ["zen5", "haswell", pretended_processor.UNKNOWN])
def test_other_processes_see_the_same_processor(key: str) -> None:
    """As in a whole run with --processor."""
    tests = Path(__file__).parent
    folders = (tests / "pretended_processor_start", tests.parent)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        pretended_processor.VARIABLE: key,
    }
    done = subprocess.run(
        [sys.executable, "-c", QUESTIONS],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    seen = pretended_processor.appearance(key)
    sizes = " ".join(str(seen.caches[name]) for name in ("l1d", "l1i", "l2", "l3"))
    known = UNKNOWN if key == pretended_processor.UNKNOWN else key
    shown, (core, isa) = done.stdout.splitlines()[0], done.stdout.splitlines()[1].split()
    assert shown == f"{seen.name} {sizes}"
    assert core == known
    assert ISA_LEVELS.index(isa) <= ISA_LEVELS.index(seen.isa)


def test_a_run_with_a_pretended_processor_is_one(request: pytest.FixtureRequest) -> None:
    names = [pretended_processor.appearance(key).name for key in pretended_processor.names()]
    asked = request.config.getoption("--processor")
    shown = Target.detect().model
    assert shown == pretended_processor.appearance(asked).name if asked else shown not in names


def test_the_makefile_names_every_core_that_has_data() -> None:
    """So that `make plans` pretends each, and the unknown one; others may be there too."""
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    (listed,) = re.findall(r"^PRETENDED := (.*)$", makefile, re.MULTILINE)
    with_data = {core_named(key).data_of for key in MICROARCHITECTURES} - {UNKNOWN}
    named = {f"plans-{key}" for key in (*with_data, pretended_processor.UNKNOWN)}
    assert named <= set(listed.split()) <= {f"plans-{key}" for key in pretended_processor.names()}
