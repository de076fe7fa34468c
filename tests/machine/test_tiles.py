"""Permission for AMX: asked for once, by programs that need it and by exported code."""

import ctypes
import errno
import re
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from disassembly import decode
from guard import run_in_child
from matvec_checks import block_weights

import sparsejit
from sparsejit.artefact import entry_points
from sparsejit.artefact.export import c_header
from sparsejit.artefact.exported import ExportedFunction
from sparsejit.artefact.object_files import SYSTEMS
from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.errors import InvalidInput, UnsupportedTarget
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatMul, MatVec
from sparsejit.machine import cpuid, target
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.runtime import program
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.image import Image
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
    monkeypatch.setattr(program, "_libc", fake)
    program.refusal.cache_clear()
    yield fake
    program.refusal.cache_clear()


def test_programs_with_tiles_ask_once(libc: FakeLibc) -> None:
    program.build("no tiles", TARGET, lambda asm: asm.emit("nop"))
    assert libc.calls == []
    for _ in range(2):
        program.build("tiles", TARGET, emit_batch)
    assert libc.calls == [(158, 0x1023, 18)]


def test_a_refusal_is_told_with_its_remedy(libc: FakeLibc) -> None:
    libc.answer = -1
    with pytest.raises(UnsupportedTarget, match=r"AMX tiles.*EPERM.*strategy='auto'"):
        program.build("tiles", TARGET, emit_batch)


@pytest.fixture
def with_amx(libc: FakeLibc, monkeypatch: pytest.MonkeyPatch) -> FakeLibc:
    """/proc/cpuinfo shows AMX; whether the system allows it is what `libc` answers."""
    cpuinfo, caches = target.read_machine()
    shown = re.sub(r"(?m)^flags.*", lambda line: f"{line[0]} {' '.join(ROW.requires)}", cpuinfo)
    monkeypatch.setattr(target, "read_machine", lambda: (shown, caches))
    for known in (target._processor, target._detect):
        monkeypatch.setattr(target, known.__name__, lru_cache(known.__wrapped__))
    return libc


needs_avx512 = pytest.mark.skipif(not LEVEL.runs_on(Target.detect()), reason="needs avx512")


@needs_avx512
def test_the_system_is_asked_before_amx_is_offered(with_amx: FakeLibc) -> None:
    assert with_amx.calls == []
    assert Target.detect().instruction_sets >= ROW.requires
    assert Target.resolve(TARGET) is TARGET
    Target.detect()
    assert with_amx.calls == [(158, 0x1023, 18)]


@needs_avx512
def test_another_kernel_is_chosen_if_the_system_refuses_tiles(with_amx: FakeLibc) -> None:
    with_amx.answer = -1
    assert not any(name.startswith("amx") for name in Target.detect().instruction_sets)
    weights = block_weights((256, 256), 0.1, 1)
    kernel = sparsejit.compile_matrix(weights, batch=64, dtype="int8")
    assert kernel.strategy not in ("auto", ROW.family)
    x = np.ones((64, 256), np.float32)
    np.testing.assert_allclose(kernel(x), x @ weights.T, atol=0.1)
    with pytest.raises(UnsupportedTarget, match="AMX tiles"):
        sparsejit.compile_matrix(weights, batch=64, dtype="int8", strategy=ROW.family)
    with pytest.raises(UnsupportedTarget, match="AMX tiles"):
        Target.resolve(TARGET)
    assert len(with_amx.calls) == 1


def test_the_system_is_not_asked_for_tiles_without_amx(libc: FakeLibc) -> None:
    if Target.detect().has("amx_tile"):
        pytest.skip("has AMX")
    with pytest.raises(InvalidInput, match="int8-tiles"):
        sparsejit.compile_matrix(np.eye(8), batch=8, dtype="int8", strategy=ROW.family)
    assert libc.calls == []


def text_of(function: ExportedFunction, system: str = "linux") -> bytes:
    """The entry points, without the image."""
    text = entry_points.object_code(function, SYSTEMS[system], "0").text
    return text[function.image.size :]


def test_exported_code_says_and_asks_what_it_needs() -> None:
    image = tile_image()
    assert image.instruction_sets >= {"amx_tile", "amx_int8"}
    function = ExportedFunction("layer", image, TARGET, "const float *x, float *y", False)
    assert "arch_prctl" in c_header(function)
    code = text_of(function)
    assert sum(str(found) == "syscall" for found in decode(code)) == 1
    plain = replace(function, image=replace(image, forms=frozenset()))
    assert "arch_prctl" not in c_header(plain)
    assert not any(str(found) == "syscall" for found in decode(text_of(plain)))
    assert cpuid.saved_state(function.instruction_sets) == 0x600E6


@pytest.mark.parametrize("system", ["windows", "macos"])
def test_code_for_other_systems_has_no_tiles(system: str) -> None:
    function = ExportedFunction("layer", tile_image(), TARGET, "const float *x, float *y", False)
    with pytest.raises(InvalidInput, match=f"code for {system} cannot ask: compile with target="):
        text_of(function, system)
    plain = replace(function, image=replace(function.image, forms=frozenset()))
    assert not any(str(found) == "syscall" for found in decode(text_of(plain, system)))


def test_asking_leaves_the_arguments_and_says_what_linux_answers() -> None:
    """In a child: a process that may use tiles keeps that for good."""
    asm = Assembler(Target.named("avx2"))
    asm.emit("push", rbx)
    asm.emit("mov", rbx, rdi)
    refused, end = asm.label("refused"), asm.label("end")
    asm.emit("mov", rdx, 5)
    entry_points._ask_for_tiles(asm, refused)
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
