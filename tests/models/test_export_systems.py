"""Code exported for Windows and macOS: the bits of Python's calls, and what callers may expect."""

from itertools import pairwise
from pathlib import Path
from struct import unpack, unpack_from
from typing import Any

import mach_o
import numpy as np
import pytest
from c_program import built
from disassembly import decode
from matvec_checks import block_weights, target_of
from runnable import parameters
from saved_models import CASES, inputs_of, native_inputs
from system_tools import MINGW, needs_windows, run_tool, run_windows

import sparsejit
from sparsejit.artefact.export import interface_hash
from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.asm_templates.families import MATVEC_TEMPLATES
from sparsejit.errors import InvalidInput
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatMul, MatVec
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler

KERNELS: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "windows of x, AVX2": ((33, 100), {"target": "avx2", "strategy": "permute"}),
    "windows of x": ((33, 700), {"target": "native"}),
    "a large frame": ((40, 9000), {"dtype": "int8", "strategy": "int8-pairs"}),
    "batch": ((65, 70), {"batch": 19}),
}


def kernel_of(case: str) -> sparsejit.Kernel:
    shape, options = KERNELS[case]
    try:
        return sparsejit.compile_matrix(block_weights(shape, 0.1), np.ones(shape[0]), **options)
    except InvalidInput as error:
        pytest.skip(str(error))


@needs_windows
@pytest.mark.parametrize("case", KERNELS)
def test_windows_gets_the_bits_of_python(
    tmp_path: Path, windows: dict[str, str], case: str
) -> None:
    kernel = kernel_of(case)
    x = np.random.default_rng(0).standard_normal(kernel.spec.x_shape).astype(np.float32)
    x.tofile(tmp_path / "x")
    run_windows(built(kernel, tmp_path, 1, "obj"), windows, "x", "y")
    y = np.fromfile(tmp_path / "y", np.float32)
    np.testing.assert_array_equal(y, kernel(x).ravel(), strict=True)


@needs_windows
@pytest.mark.parametrize("name", ["perceptron", "recurrent", "images", "words"])
def test_a_model_on_windows_gets_the_bits_of_python(
    tmp_path: Path, windows: dict[str, str], name: str
) -> None:
    model = CASES[name].compiled()
    inputs = native_inputs(model, samples=7)
    (tmp_path / "x").write_bytes(b"".join(array.tobytes() for array in inputs))
    run_windows(built(model, tmp_path, 7, "obj"), windows, "x", "y")
    wanted = b"".join(array.tobytes() for array in model.run(inputs_of(model, samples=7)))
    assert (tmp_path / "y").read_bytes() == wanted


@pytest.mark.parametrize("row", [*parameters(MATVEC_TEMPLATES), *parameters(MATMUL_TEMPLATES)])
def test_no_kernel_uses_memory_below_the_stack_pointer_or_skips_a_page(row: Any) -> None:
    """Windows keeps nothing below it, and grows a stack where its next page is touched."""
    target, matrix = target_of(row), SparseMatrix(block_weights((70, 3000), 0.1, 16))
    one = MatVec(70, 3000, dtype=row.dtype)
    spec = MatMul(one, 5) if row in MATMUL_TEMPLATES else one
    asm = Assembler(target)
    row.emit(asm, row.lower(spec, matrix, target))
    image = asm.finish()
    lines = [str(each) for each in decode(image.data[: image.code_bytes])]
    for line, following in pairwise(lines):
        assert "[rsp-" not in line
        if line.startswith("sub rsp,"):
            size = int(line.removeprefix("sub rsp,").rstrip("h"), 16)
            assert size <= 4096
            assert size <= 2048 or following == "mov [rsp],rax"


KEEPING = r"""
#include <stdio.h>
#include <string.h>
#include "model.h"

/* int kept(function, x, y): 1 + the number of the first register that a call changed, else 0. */
int kept(void *function, const float *x, float *y);
__asm__(
    ".globl kept\nkept:\n"
    "%(pushes)s"
    "subq $200, %%rsp\n"
    "%(saves)s"
    "stmxcsr 160(%%rsp)\n"
    "movl $0x7fc0, 164(%%rsp)\nldmxcsr 164(%%rsp)\n"
    "%(fills)s"
    "movq %%rcx, %%rax\nmovq %%rdx, %%rcx\nmovq %%r8, %%rdx\n"
    "subq $32, %%rsp\ncall *%%rax\naddq $32, %%rsp\n"
    "movl %%eax, %%r11d\n"
    "xorl %%eax, %%eax\n"
    "%(checks)s"
    "stmxcsr 164(%%rsp)\nmovl 164(%%rsp), %%ecx\nandl $0xffc0, %%ecx\n"
    "cmpl $0x7fc0, %%ecx\nmovl $99, %%ecx\ncmovne %%ecx, %%eax\n"
    "testl %%r11d, %%r11d\nmovl $100, %%ecx\ncmovne %%ecx, %%eax\n"
    "ldmxcsr 160(%%rsp)\n"
    "%(restores)s"
    "addq $200, %%rsp\n"
    "%(pops)s"
    "ret\n");

static float x[MODEL_X_SIZE], y[MODEL_Y_SIZE];

int main(void)
{
    int first = kept((void *)model_run, x, y), later = kept((void *)model_run, x, y);
    return model_prepare() ? 101 : first ? first : later;
}
"""


def keeping_program() -> str:
    """C that fills the registers that a function keeps on Windows, calls, and compares."""
    general = ("rbx", "rbp", "rdi", "rsi", "r12", "r13", "r14", "r15")
    vectors = [f"xmm{number}" for number in range(6, 16)]
    pattern = 0x1234567
    fills = [f"movq ${pattern + n}, %{name}" for n, name in enumerate(general)]
    checks = []
    for number, name in enumerate(general, 1):
        compare = f"cmpq ${pattern + number - 1}, %{name}"
        checks += [compare, f"movl ${number}, %ecx", "cmovne %ecx, %eax"]
    for number, name in enumerate(vectors, len(general) + 1):
        both = f"movlhps %{name}, %{name}"
        fills += [f"movq ${pattern * number}, %r9", f"movq %r9, %{name}", both]
        for half in ("nop", f"movhlps %{name}, %{name}"):
            compare = [half, f"movq %{name}, %r9", f"cmpq ${pattern * number}, %r9"]
            checks += [*compare, f"movl ${number}, %ecx", "cmovne %ecx, %eax"]
    slots = [(name, f"{16 * place}(%rsp)") for place, name in enumerate(vectors)]
    parts = {
        "pushes": [f"pushq %{name}" for name in general],
        "saves": [f"movups %{name}, {slot}" for name, slot in slots],
        "fills": fills,
        "checks": checks,
        "restores": [f"movups {slot}, %{name}" for name, slot in slots],
        "pops": [f"popq %{name}" for name in reversed(general)],
    }
    lines = {key: "".join(f'{each}\\n"\n    "' for each in part) for key, part in parts.items()}
    return KEEPING % lines


@needs_windows
@pytest.mark.parametrize("target", ["avx2", "native"])
def test_a_call_on_windows_keeps_what_windows_expects(
    tmp_path: Path, windows: dict[str, str], target: str
) -> None:
    kernel = sparsejit.compile_matrix(block_weights((40, 70), 0.3), target=target, batch=19)
    kernel.export(tmp_path / "model.obj", header=tmp_path / "model.h", system="windows")
    (tmp_path / "main.c").write_text(keeping_program())
    given = tmp_path / "main.c", tmp_path / "model.obj", "-o", tmp_path / "main.exe", "-static"
    run_tool(MINGW, "-Wno-cast-function-type", *given)
    run_windows(tmp_path / "main.exe", windows)


def coff_sections(content: bytes) -> dict[str, tuple[bytes, list[tuple[int, int, int]]]]:
    """Contents and relocations of an object's sections."""
    machine, count, _, symbols, number, optional, _ = unpack_from("<HHIIIHH", content)
    assert (machine, optional) == (0x8664, 0)
    (strings,) = unpack_from("<I", content, symbols + 18 * number)
    assert symbols + 18 * number + strings == len(content)
    found = {}
    for section in range(count):
        head = unpack_from("<8sIIIIIIHHI", content, 20 + 40 * section)
        name, size, start, moved, places = head[0], head[3], head[4], head[5], head[7]
        relocations = [unpack_from("<IIH", content, moved + 10 * n) for n in range(places)]
        found[name.rstrip(b"\0").decode()] = content[start : start + size], relocations
    return found


def test_a_windows_object_describes_the_frames_of_its_functions(tmp_path: Path) -> None:
    kernel = sparsejit.compile_matrix(block_weights((16, 8), 0.5), target="avx2")
    kernel.export(tmp_path / "model.obj", system="windows")
    sections = coff_sections((tmp_path / "model.obj").read_bytes())
    text, fields = sections[".text"]
    assert [kind for *_, kind in fields] == [4, 4, 4] and len(sections[".data"][0]) == 64
    for at, _, _ in fields:
        assert text[at : at + 4] == bytes(4)
    table, moved = sections[".pdata"]
    assert [(at, kind) for at, _, kind in moved] == [(4 * n, 3) for n in range(6)]
    records = sections[".xdata"][0]
    for number in range(2):
        begin, end, record = unpack("<III", table[12 * number : 12 * number + 12])
        version, prologue, codes, frame = records[record : record + 4]
        assert (version, codes, frame) == (1, 24, 0)
        lines = [str(each) for each in decode(text[begin : begin + prologue])]
        assert lines[:3] == ["push rdi", "push rsi", "sub rsp,0A8h"] and len(lines) == 13
        assert [line.split()[0] for line in lines[3:]] == ["vmovups"] * 10
        assert str(decode(text[end - 1 : end])[0]) == "ret"


def macos(compiled: Any, folder: Path) -> mach_o.Object:
    compiled.export(folder / "model.o", header=folder / "model.h", system="macos")
    return mach_o.read((folder / "model.o").read_bytes())


def test_a_mac_object_has_the_parts_that_a_linker_reads(tmp_path: Path) -> None:
    kernel = sparsejit.compile_matrix(block_weights((16, 8), 0.5), target="avx2")
    found = macos(kernel, tmp_path)
    assert found.header[:4] == (0xFEEDFACF, 0x01000007, 3, 1) and found.header[6:] == (0, 0)
    names = {mach_o.SEGMENT, mach_o.SYMBOLS, mach_o.SYMBOL_RANGES, mach_o.BUILD_VERSION}
    assert found.commands.keys() == names
    text, data = found.sections
    assert (text.segment, text.name, data.segment, data.name) == (
        *("__TEXT", "__text"), *("__DATA", "__data"),
    )  # fmt: skip
    assert text.alignment == data.alignment == 64 and data.address == text.address + text.size
    assert text.start % 64 == 0 and data.start == text.start + text.size
    digest = interface_hash(kernel._exported("model"))
    functions = [f"_model_{name}{end}" for name in ("prepare", "run") for end in ("", f"_{digest}")]
    assert [(each.name, each.kind) for each in found.symbols] == [
        ("_model_state", 0x0E), ("_model_code", 0x0E), *((name, 0x0F) for name in functions),
    ]  # fmt: skip
    assert unpack_from("<6I", found.commands[mach_o.SYMBOL_RANGES], 8) == (0, 2, 2, 4, 6, 0)
    assert [what & 0xFFFFFF for _, what in text.relocations] == [0, 0, 0]
    for at, _ in text.relocations:
        assert found.content[text.start + at : text.start + at + 4] == bytes(4)


@pytest.mark.parametrize("target", ["avx2", "native"])
def test_code_for_macos_computes_the_bits_of_python(tmp_path: Path, target: str) -> None:
    kernel = sparsejit.compile_matrix(block_weights((33, 100), 0.3), target=target)
    loaded = mach_o.Loaded(macos(kernel, tmp_path))
    x = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    for _ in range(2):
        y = np.zeros(33, np.float32)
        assert loaded.call("_model_run", x.ctypes.data, y.ctypes.data) == 0
        np.testing.assert_array_equal(y, kernel(x), strict=True)
    assert loaded.call("_model_prepare") == 0


def test_macos_enables_avx512_when_a_thread_uses_it(tmp_path: Path) -> None:
    """Its XCR0 has no bits of AVX-512 before, so the code asks for the others alone."""
    if not Target.named("avx512").runs_on(Target.detect()):
        pytest.skip("code for AVX-512 is compiled where it runs")
    kernel = sparsejit.compile_matrix(block_weights((16, 8), 0.5), target="avx512")
    asked = {}
    for system, name in (("macos", "model.o"), ("linux", "model.o"), ("windows", "model.obj")):
        kernel.export(tmp_path / name, system=system)
        content = (tmp_path / name).read_bytes()
        asked[system] = content.count(b"\x41\x81\xf8\xe6\x00\x00\x00")  # cmp r8d, 0xe6
    assert asked == {"macos": 0, "linux": 1, "windows": 1}


@pytest.mark.parametrize(
    ("path", "system", "message"),
    [
        ("model.so", "windows", r"model\.so' is no \.obj file for windows; name one, such as mod"),
        ("model.so", "macos", r"is no \.o file for macos"),
        ("model.obj", "linux", r"is no \.o or \.so file for linux"),
        ("model.o", "beos", "system is 'beos'; choose one of linux, windows, macos"),
    ],
)
def test_other_files_and_systems_are_refused(
    tmp_path: Path, path: str, system: str, message: str
) -> None:
    kernel = sparsejit.compile_matrix(np.eye(8), target="avx2")
    with pytest.raises(InvalidInput, match=message):
        kernel.export(tmp_path / path, system=system)
    assert not list(tmp_path.iterdir())
