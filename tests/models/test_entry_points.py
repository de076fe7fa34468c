"""The entry of exported code: what it asks the processor, and what it leaves as it was."""

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import iced_x86
import numpy as np
import pytest
from iced_x86 import Decoder
from matvec_checks import block_weights, target_of
from runnable import parameters
from system_tools import GCC, needs_gcc, needs_linker, run_tool

import sparsejit
from sparsejit.artefact import entry_points, exported
from sparsejit.artefact.export import c_header, export
from sparsejit.artefact.exported import ExportedFunction
from sparsejit.asm_templates.families import MATVEC_TEMPLATES
from sparsejit.machine import cpuid
from sparsejit.machine.target import INSTRUCTION_SETS, Target
from sparsejit.selftest.calling_convention import UNUSUAL_MXCSR, Checker
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, dword, rax, rcx, rdi, rdx, rsi


@pytest.fixture
def kernel() -> sparsejit.Kernel:
    return sparsejit.compile_matrix(block_weights((16, 8), 0.5), target="avx2")


@dataclass(frozen=True)
class NeedingFunction(ExportedFunction):
    """Needs what the test says."""

    needs: frozenset[str] = frozenset()

    @property
    def instruction_sets(self) -> frozenset[str]:
        return self.needs


def returning(number: int, *code: tuple[Any, ...]) -> Any:
    """An image that returns a number."""
    asm = Assembler(Target.named("avx2"))
    for mnemonic, *operands in code:
        asm.emit(mnemonic, *operands)
    asm.emit("mov", dword(rax), number)
    asm.emit("ret")
    return asm.finish()


def opened(function: ExportedFunction, folder: Path) -> Any:
    export(function, folder / f"{function.name}.so")
    return getattr(ctypes.CDLL(str(folder / f"{function.name}.so")), function.symbol)


def flags_of_the_processor() -> set[str]:
    text = Path("/proc/cpuinfo").read_text()
    found = re.search(r"^flags\s*: (.*)$", text, re.MULTILINE)
    assert found is not None
    return set(found[1].split())


@needs_linker
def test_the_entry_finds_what_the_kernel_says_of_the_processor(tmp_path: Path) -> None:
    flags, image = flags_of_the_processor(), returning(7)
    for name in sorted(INSTRUCTION_SETS):
        function = NeedingFunction(
            name, image, Target.named("avx2"), "void", True, needs=frozenset({name})
        )
        run = opened(function, tmp_path)
        expected = 7 if name in flags else exported.UNSUPPORTED_CPU
        assert [run(), run(), run()] == [expected] * 3, name


# gcc's names in cpuid.h, where they are not ours without the underscore.
GCC_NAMES = {"bmi1": "bmi"} | {name: name for name in ("amx_bf16", "amx_int8", "amx_tile")}


@needs_gcc
def test_the_bits_are_those_of_gcc_s_header(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("#include <cpuid.h>\n")
    macros = run_tool(GCC, "-dM", "-E", tmp_path / "a.c")
    bits = dict(re.findall(r"#define bit_(\w+)\s+\(1u? << (\d+)\)", macros))
    bits = {name.lower(): int(bit) for name, bit in bits.items()}
    for name, (_, bit) in cpuid.CPUID_BITS.items():
        assert bits[GCC_NAMES.get(name, name.replace("_", ""))] == bit, name
    assert bits["osxsave"] == cpuid.OSXSAVE[1]


def lacking(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the entry ask for something that no processor has."""
    reserved = (cpuid.CpuidRegister(1, 0, "edx"), 10)
    if case == "bit":
        monkeypatch.setitem(cpuid.CPUID_BITS, "avx2", reserved)
    elif case == "osxsave":
        monkeypatch.setattr(cpuid, "OSXSAVE", reserved)
    elif case == "leaves":
        monkeypatch.setattr(entry_points, "HIGHEST_LEAF", 0x7FFFFFFF)
    else:
        monkeypatch.setattr(cpuid, "YMM_STATE", 1 << 30)


@needs_linker
@pytest.mark.parametrize("case", ["bit", "osxsave", "leaves", "state"])
def test_a_processor_that_lacks_something_gets_the_code_and_nothing_runs(
    tmp_path: Path, kernel: sparsejit.Kernel, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    lacking(case, monkeypatch)
    kernel.export(tmp_path / "lacking.so")
    run = ctypes.CDLL(str(tmp_path / "lacking.so")).lacking_run
    x, y = np.ones(8, np.float32), np.full(16, 9, np.float32)
    results = [run(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data)) for _ in "abc"]
    assert results == [-1, -1, -1] and (y == 9).all()


@needs_linker
def test_a_model_gets_its_arguments_and_its_status_is_returned(tmp_path: Path) -> None:
    """The entry asks the processor with them in registers that CPUID writes."""
    places = ((rdi, 0), (rdx, 8), (rcx, 16))
    image = returning(5, *(("mov", Memory(rsi, at), register) for register, at in places))
    function = ExportedFunction(
        "model",
        image,
        Target.named("avx2"),
        "const float *const *inputs, float *const *outputs, void *workspace",
        returns_status=True,
        fixed=((rcx, 11),),
    )
    run = opened(function, tmp_path)
    for attempt in (1, 2):
        seen = np.zeros(3, np.int64)
        arguments = (attempt, seen.ctypes.data, 2**40 + attempt)
        assert run(*map(ctypes.c_void_p, arguments)) == 5
        assert seen.tolist() == [attempt, 2**40 + attempt, 11]
    assert f"int model_run({function.parameters});" in c_header(function)


@needs_linker
def test_the_first_call_and_later_ones_keep_the_caller_s_registers(
    tmp_path: Path, kernel: sparsejit.Kernel
) -> None:
    kernel.export(tmp_path / "model.so")
    run = ctypes.CDLL(str(tmp_path / "model.so")).model_run
    address = ctypes.cast(run, ctypes.c_void_p).value
    checker = Checker(Target.detect())
    x, y = np.ones(8, np.float32), np.empty(16, np.float32)
    for _ in range(2):
        report = checker.call(address, x.ctypes.data, y.ctypes.data)
        assert report.problem(UNUSUAL_MXCSR) is None


# iced-x86's names of instruction sets that are not ours in capitals, or that AVX implies.
ICED = {"avx512_vbmi": "avx512vbmi", "avx512_ifma": "avx512ifma"}
PLAIN = ("intel8086", "intel386", "intel486", "x64", "sse", "sse2", "cmov")
ICED.update(dict.fromkeys(PLAIN, "avx"))
FEATURES = {number: name.lower() for name, number in vars(iced_x86.CpuidFeature).items()
            if isinstance(number, int)}  # fmt: skip


@pytest.mark.parametrize("row", parameters(MATVEC_TEMPLATES))
def test_an_image_names_the_sets_of_its_instructions(row: Any) -> None:
    kernel = sparsejit.compile_matrix(
        block_weights((48, 32), 0.3, 16),
        activation="tanh",
        dtype=row.dtype.value,
        strategy=row.family,
        target=target_of(row),
    )
    code = kernel.image.data[: kernel.image.code_bytes]
    found = {FEATURES[n] for instruction in Decoder(64, code) for n in instruction.cpuid_features()}
    assert kernel.image.instruction_sets == {ICED.get(name, name) for name in found}
