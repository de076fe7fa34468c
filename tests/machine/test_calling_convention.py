"""Kernels keep what the System V ABI says a function keeps (section 3.2.1, figure 3.4)."""

import numpy as np
import pytest
from matvec_checks import block_weights, compile_kernel, target_of
from runnable import runnable

from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.asm_templates.families import MATVEC_TEMPLATES, Template
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, Layout, MatMul, MatVec
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.selftest.calling_convention import (
    CALLEE_SAVED,
    PATTERNS,
    STATUS_FLAGS,
    UNUSUAL_MXCSR,
    Checker,
    StateAfterCall,
)
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, rbp, rdi, rsp

RUNNABLE = runnable(MATVEC_TEMPLATES)
RUNNABLE_BATCH = runnable(MATMUL_TEMPLATES)


def call_and_report(code: bytes, isa: str, x: np.ndarray, y: np.ndarray) -> StateAfterCall:
    """Call code with the callee-saved state full of patterns and look at it afterwards."""
    memory = ExecutableMemory(code)
    return Checker(Target.named(isa)).call(memory.address, x.ctypes.data, y.ctypes.data)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("shape", [(1, 1), (33, 40), (300, 515)], ids=str)
@pytest.mark.parametrize("row", RUNNABLE, ids=lambda row: row.name)
def test_a_kernel_keeps_what_it_must(
    row: Template, shape: tuple[int, int], activation: Activation
) -> None:
    matrix = SparseMatrix(block_weights(shape, 0.3))
    spec = MatVec(*shape, None, activation, row.dtype)
    image = compile_kernel(row, spec, matrix)
    x, y = np.ones(shape[1], np.float32), np.zeros(shape[0], np.float32)
    found = call_and_report(image.data, row.isa, x, y)
    assert found.registers == PATTERNS
    assert found.mxcsr & ~STATUS_FLAGS == UNUSUAL_MXCSR
    assert not found.upper_bytes.any(), "upper vector halves are dirty: vzeroupper is missing"


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("row", RUNNABLE_BATCH, ids=lambda row: row.name)
def test_a_batch_kernel_keeps_what_it_must(row: Template, layout: Layout) -> None:
    matrix = SparseMatrix(block_weights((33, 40), 0.3))
    spec = MatMul(MatVec(33, 40, None, Activation.TANH, row.dtype), 21, layout)
    asm = Assembler(target_of(row))
    row.emit(asm, row.lower(spec, matrix, asm.target))
    asm.emit("vzeroupper")
    asm.emit("ret")
    x, y = np.ones(spec.x_shape, np.float32), np.zeros(spec.y_shape, np.float32)
    found = call_and_report(asm.finish().data, row.isa, x, y)
    assert found.registers == PATTERNS
    assert found.mxcsr & ~STATUS_FLAGS == UNUSUAL_MXCSR
    assert not found.upper_bytes.any(), "upper vector halves are dirty: vzeroupper is missing"


@pytest.mark.parametrize("isa", sorted({row.isa for row in RUNNABLE}))
def test_the_checker_notices_a_bad_function(isa: str) -> None:
    """A function that spoils everything is found out in everything."""
    asm = Assembler(Target.named(isa))
    for register in CALLEE_SAVED:
        asm.emit("mov", register, 7)
    asm.emit("push", rbp)
    asm.emit("mov", Memory(rsp), rbp)
    asm.emit("ldmxcsr", Memory(rdi))
    asm.emit("pop", rbp)
    asm.emit("ret")
    default_mxcsr = np.array([0x1F80], np.uint32)
    found = call_and_report(asm.finish().data, isa, default_mxcsr, default_mxcsr)
    assert found.registers == [7] * len(CALLEE_SAVED)
    assert found.mxcsr == 0x1F80
    assert found.upper_bytes.all()
