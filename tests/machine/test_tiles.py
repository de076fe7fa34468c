"""Permission for AMX: asked for once, by programs that need it and by exported code."""

import ctypes
import errno
from dataclasses import replace

import numpy as np
import pytest
from disassembly import decode
from guard import run_in_child
from matvec_checks import block_weights

from sparsejit.artefact import support_check
from sparsejit.artefact.exported import ExportedFunction
from sparsejit.artefact.header import c_header
from sparsejit.asm_templates.batch_table import MATMUL_TEMPLATES
from sparsejit.errors import UnsupportedTarget
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatMul, MatVec
from sparsejit.machine import cpuid
from sparsejit.machine.target import Target
from sparsejit.runtime import program, tiles
from sparsejit.runtime.executable_memory import ExecutableMemory
from sparsejit.x86.assembler import Assembler, Image
from sparsejit.x86.operands import Memory, dword, rax, rbx, rdi, rdx, rsi

ROW = next(row for row in MATMUL_TEMPLATES if "amx_tile" in row.requires)
LEVEL = Target.named("avx512")
TARGET = replace(LEVEL, instruction_sets=LEVEL.instruction_sets | ROW.requires)


def emit_batch(asm: Assembler) -> None:
    matrix = SparseMatrix(block_weights((40, 70), 0.3))
    spec = MatMul(MatVec(40, 70, dtype=DType.INT8), 5)
    ROW.emit(asm, ROW.lower(spec, matrix, asm.target))


def tile_image() -> Image:
    asm = Assembler(TARGET)
    emit_batch(asm)
    return asm.finish()


class FakeLibc:
    """Counts calls, and answers them all alike."""

    def __init__(self, answer: int) -> None:
        self.answer, self.calls = answer, []

    def syscall(self, *arguments: int) -> int:
        self.calls.append(arguments)
        ctypes.set_errno(errno.EPERM)
        return self.answer


@pytest.fixture
def libc(monkeypatch: pytest.MonkeyPatch) -> FakeLibc:
    fake = FakeLibc(0)
    monkeypatch.setattr(tiles, "_libc", fake)
    tiles.allow_tiles.cache_clear()
    yield fake
    tiles.allow_tiles.cache_clear()


def test_programs_with_tiles_ask_once(libc: FakeLibc) -> None:
    program.build("no tiles", TARGET, lambda asm: asm.emit("nop"))
    assert libc.calls == []
    for _ in range(2):
        program.build("tiles", TARGET, emit_batch)
    assert libc.calls == [(158, 0x1023, 18)]


def test_a_refusal_is_told_with_its_remedy(libc: FakeLibc) -> None:
    libc.answer = -1
    with pytest.raises(UnsupportedTarget, match=r"AMX tiles.*EPERM.*target='avx512'"):
        program.build("tiles", TARGET, emit_batch)


def test_exported_code_says_and_asks_what_it_needs() -> None:
    image = tile_image()
    assert image.instruction_sets >= {"amx_tile", "amx_int8"}
    function = ExportedFunction("layer", image, TARGET, "const float *x, float *y", False)
    assert "arch_prctl" in c_header(function)
    code = support_check.entry(function).code
    assert sum(str(found) == "syscall" for found in decode(code)) == 1
    plain = replace(function, image=replace(image, trace=()))
    assert "arch_prctl" not in c_header(plain)
    assert not any(str(found) == "syscall" for found in decode(support_check.entry(plain).code))
    assert cpuid.saved_state(function.instruction_sets) == 0x600E6


def test_asking_leaves_the_arguments_and_says_what_linux_answers() -> None:
    """In a child: a process that may use tiles keeps that for good."""
    asm = Assembler(Target.named("avx2"))
    asm.emit("push", rbx)
    asm.emit("mov", rbx, rdi)
    refused, end = asm.label("refused"), asm.label("end")
    asm.emit("mov", rdx, 5)
    support_check._ask_for_tiles(asm, refused)
    asm.emit("mov", dword(rax), 1)
    asm.jump("jmp", end)
    asm.bind(refused)
    asm.emit("mov", dword(rax), 2)
    asm.bind(end)
    for number, register in enumerate((rdi, rsi, rdx, rax)):
        asm.emit("mov", Memory(rbx, 8 * number), register)
    asm.emit("pop", rbx)
    asm.emit("ret")
    run = ExecutableMemory(asm.finish().data).function(3)

    def check() -> None:
        found = np.zeros(4, np.uint64)
        run(found.ctypes.data, 77, 0)
        answer = ctypes.CDLL(None).syscall(158, 0x1023, 18)
        assert found.tolist() == [found.ctypes.data, 77, 5, 1 if answer == 0 else 2]

    run_in_child([("asking", check)]).assert_clean()
