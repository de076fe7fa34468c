"""Kernels keep what the System V ABI says a function keeps (section 3.2.1, figure 3.4)."""

from dataclasses import dataclass

import numpy as np
import pytest
from matvec_checks import block_weights, compile_kernel, target_of

from sparsejit.asm_templates.batch_table import MATMUL_TEMPLATES, MatMulTemplate
from sparsejit.asm_templates.table import MATVEC_TEMPLATES, MatVecTemplate
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, Layout, MatMul, MatVec
from sparsejit.machine.target import Target
from sparsejit.runtime.executable_memory import ExecutableMemory
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Memory,
    Register,
    r12,
    r13,
    r14,
    r15,
    rax,
    rbp,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
    rsp,
    ymm,
    zmm,
)

CALLEE_SAVED = (rbx, rbp, r12, r13, r14, r15)
PATTERNS = [0x1111111111111111 * (number + 1) for number in range(len(CALLEE_SAVED))]
# Round towards zero, flush to zero, denormals are zero, all exceptions masked, no flag set.
UNUSUAL_MXCSR = 0xFFC0
STATUS_FLAGS = 0x3F
UPPER_REGISTERS = 16  # vzeroupper clears registers 0-15 above their low 16 bytes

RUNNABLE = [row for row in MATVEC_TEMPLATES if target_of(row).runs_on(Target.detect())]
RUNNABLE_BATCH = [row for row in MATMUL_TEMPLATES if target_of(row).runs_on(Target.detect())]


@dataclass(frozen=True)
class Report:
    """What a function left behind: registers, MXCSR, the vectors' bytes above the sixteenth."""

    registers: list[int]
    mxcsr: int
    upper_bytes: np.ndarray


def call_and_report(code: bytes, isa: str, x: np.ndarray, y: np.ndarray) -> Report:
    """Call code with the callee-saved state full of patterns and look at it afterwards."""
    memory = ExecutableMemory(code)
    target = Target.named(isa)
    general = np.zeros(8, np.int64)
    mxcsr = np.array([UNUSUAL_MXCSR, 0], np.uint32)
    vectors = np.zeros((UPPER_REGISTERS, target.vector_bytes), np.uint8)
    places = np.array([a.ctypes.data for a in (general, mxcsr, vectors, x, y)], np.int64)
    checker = ExecutableMemory(checker_code(target))
    checker.function(2)(places.ctypes.data, memory.address)
    return Report(general[: len(CALLEE_SAVED)].tolist(), int(mxcsr[1]), vectors[:, 16:])


def checker_code(target: Target) -> bytes:
    """void checker(places, function): five pointers, see `call_and_report`."""
    asm = Assembler(target)
    for register in (*CALLEE_SAVED, rdi):
        asm.emit("push", register)  # seven, which aligns the stack to 16 bytes
    asm.emit("sub", rsp, 16)
    asm.emit("stmxcsr", Memory(rsp))
    asm.emit("mov", rax, rsi)
    asm.emit("mov", rcx, Memory(rdi, 8))
    asm.emit("ldmxcsr", Memory(rcx))
    asm.emit("mov", rsi, Memory(rdi, 32))
    asm.emit("mov", rdi, Memory(rdi, 24))
    for register, pattern in zip(CALLEE_SAVED, PATTERNS, strict=True):
        asm.emit("mov", register, pattern)
    for number in range(UPPER_REGISTERS):
        fill_with_ones(asm, vector(target, number))
    asm.emit("call", rax)
    asm.emit("mov", rdi, Memory(rsp, 16))
    report(asm, target)
    asm.emit("ldmxcsr", Memory(rsp))
    asm.emit("add", rsp, 16)
    for register in (rdi, *reversed(CALLEE_SAVED)):
        asm.emit("pop", register)
    asm.emit("vzeroupper")
    asm.emit("ret")
    return asm.finish().data


def report(asm: Assembler, target: Target) -> None:
    asm.emit("mov", rcx, Memory(rdi))
    for position, register in enumerate(CALLEE_SAVED):
        asm.emit("mov", Memory(rcx, 8 * position), register)
    asm.emit("mov", rcx, Memory(rdi, 8))
    asm.emit("stmxcsr", Memory(rcx, 4))
    asm.emit("mov", rdx, Memory(rdi, 16))
    for number in range(UPPER_REGISTERS):
        asm.emit("vmovups", Memory(rdx, target.vector_bytes * number), vector(target, number))


def fill_with_ones(asm: Assembler, register: Register) -> None:
    if register.kind == "zmm":
        asm.emit("vpternlogd", register, register, register, 0xFF)
    else:
        asm.emit("vpcmpeqd", register, register, register)


def vector(target: Target, number: int) -> Register:
    return zmm(number) if target.isa == "avx512" else ymm(number)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("shape", [(1, 1), (33, 40), (300, 515)], ids=str)
@pytest.mark.parametrize("row", RUNNABLE, ids=lambda row: row.name)
def test_a_kernel_keeps_what_it_must(
    row: MatVecTemplate, shape: tuple[int, int], activation: Activation
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
def test_a_batch_kernel_keeps_what_it_must(row: MatMulTemplate, layout: Layout) -> None:
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
