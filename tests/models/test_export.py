"""Exported code in C programs: the bits of Python's calls, from two threads at once."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saved_models
from c_program import built
from matvec_checks import block_weights
from system_tools import GCC, needs_gcc, needs_linker, run_tool

import sparsejit
from sparsejit.errors import CompileError, InvalidInput, MissingDependency
from sparsejit.machine.target import Target

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "permute": ("avx2", {"strategy": "permute", "activation": "tanh"}),
    "dense": ("avx512", {"strategy": "dense", "activation": "sigmoid"}),
    "float16": ("avx2", {"strategy": "broadcast-loop", "dtype": "float16"}),
    "int8": ("avx2", {"dtype": "int8", "activation": "relu"}),
    "batch": ("avx512", {"batch": 19}),
    "columns": ("avx2", {"batch": 7, "layout": "feature-major", "dtype": "bfloat16"}),
    "native": ("native", {}),
}


@needs_gcc
@needs_linker
@pytest.mark.parametrize("case", CASES)
def test_c_gets_the_bits_of_python_from_two_threads(tmp_path: Path, case: str) -> None:
    level, options = CASES[case]
    if not Target.named(level).runs_on(Target.detect()):
        pytest.skip("this machine lacks its instruction sets")
    weights = block_weights((33, 31), 0.3, 8)
    kernel = sparsejit.compile_matrix(weights, np.ones(33), target=level, **options)
    x = np.random.default_rng(0).standard_normal(kernel.spec.x_shape).astype(np.float32)
    x.tofile(tmp_path / "x")
    for kind in ("o", "so", "opened") if case == "native" else ("o",):
        run_tool(built(kernel, tmp_path, 1, kind), tmp_path / "x", tmp_path / "y")
        y = np.fromfile(tmp_path / "y", np.float32)
        np.testing.assert_array_equal(y, kernel(x).ravel(), strict=True)


@pytest.fixture
def kernel() -> sparsejit.Kernel:
    return sparsejit.compile_matrix(block_weights((16, 8), 0.5), target="avx2")


@needs_gcc
@pytest.mark.parametrize("name", ["kernel", "words", "recurrent"])
@pytest.mark.parametrize(
    ("compiler", "options"),
    [("gcc", ["-xc", "-std=c89"]), ("gcc", ["-xc"]), ("g++", ["-xc++", "-std=c++98"])],
)
def test_the_header_is_c_and_c_plus_plus(
    tmp_path: Path, kernel: sparsejit.Kernel, name: str, compiler: str, options: list[str]
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not there")
    exported = kernel if name == "kernel" else saved_models.CASES[name].compiled()
    exported.export(tmp_path / "model.o", header=tmp_path / "model.h")
    use = '#include "model.h"\n#include "model.h"\nint main(void) { return model_run == 0; }\n'
    (tmp_path / "main.c").write_text(use)
    warnings = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-address")
    linked = ("-xnone", tmp_path / "model.o", "-o", tmp_path / "main")
    run_tool(compiler, *warnings, *options, tmp_path / "main.c", *linked)
    run_tool(tmp_path / "main")


def test_the_header_says_sizes_and_needs(tmp_path: Path) -> None:
    kernel = sparsejit.compile_matrix(
        np.ones((16, 8)), dtype="float16", batch=3, layout="feature-major", target="avx2"
    )
    kernel.export(tmp_path / "net_2.o", header=tmp_path / "any.h")
    text = (tmp_path / "any.h").read_text()
    macros = dict(re.findall(r"^#define NET_2_(\w+) (\S+)", text, re.MULTILINE))
    digest = macros.pop("HASH").strip('"')
    assert f"#define net_2_run net_2_run_{digest}\n" in text
    assert macros == {
        "OK": "0", "UNSUPPORTED_CPU": "(-1)", "IN_FEATURES": "8", "OUT_FEATURES": "16",
        "X_SIZE": "24", "Y_SIZE": "48",
    }
    assert "float x[8][3] and float y[16][3] must not overlap" in text
    assert "int net_2_run(const float *x, float *y);" in text
    assert re.search(r"must have:\n \*   avx avx2 f16c fma\n", text)


@needs_gcc
@needs_linker
def test_files_have_the_intended_symbols_and_no_executable_stack(
    tmp_path: Path, kernel: sparsejit.Kernel
) -> None:
    kernel.export(tmp_path / "model.o")
    kernel.export(tmp_path / "model.so")
    for options, name in (("--extern-only", "model.o"), ("-D", "model.so")):
        symbols = run_tool("nm", options, "--format=posix", tmp_path / name)
        found = {tuple(line.split()[:2]) for line in symbols.splitlines()}
        short = {("model_run", "T"), ("model_prepare", "T")}
        assert found >= short and len(found) == 4
        assert all(re.fullmatch(r"model_(run|prepare)_[0-9a-f]{16}", n) for n, _ in found - short)
    (tmp_path / "main.c").write_text("int model_run(); int main() { return 0 & !model_run; }")
    run_tool(GCC, tmp_path / "main.c", tmp_path / "model.o", "-o", tmp_path / "main")
    for name in ("main", "model.so"):
        (stack,) = re.findall(r"GNU_STACK.* (\S+) +0x\S+$", segments(tmp_path / name), re.MULTILINE)
        assert stack == "RW"
        assert "RWE" not in segments(tmp_path / name)
    dynamic = run_tool("readelf", "-dW", tmp_path / "model.so")
    assert "Library soname: [model.so]" in dynamic
    assert "NEEDED" not in dynamic and "TEXTREL" not in dynamic
    sections = run_tool("readelf", "-SW", tmp_path / "model.o")
    assert re.search(r"\.text +PROGBITS +0+ \S+ \S+ 00 +AX +0 +0 64\n", sections)
    everything = run_tool("readelf", "-aW", tmp_path / "model.o")  # with warnings
    assert "arning" not in everything


def segments(path: Path) -> str:
    return run_tool("readelf", "-lW", path)


def test_an_object_file_is_the_same_each_time(tmp_path: Path, kernel: sparsejit.Kernel) -> None:
    kernel.export(tmp_path / "a.o")
    first = (tmp_path / "a.o").read_bytes()
    kernel.export(tmp_path / "a.o")
    assert (tmp_path / "a.o").read_bytes() == first


@pytest.mark.parametrize(
    ("path", "header", "message"),
    [
        ("model.exe", None, r"model\.exe' is no \.o or \.so file for linux; name one, such as mod"),
        ("model", None, r"is no \.o or \.so file"),
        ("2.o", None, "'2' of '.*2.o' becomes a name in C and cannot be one"),
        ("my-model.so", None, "'my-model' of .* becomes a name in C"),
        ("nul\0l.o", None, "becomes a name in C"),
        ("model.o", "model.c", r"model\.c' is no \.h file; name one, such as model\.h"),
        ("file/model.o", None, "cannot be written"),
        ("model.o", "file/model.h", "cannot be written"),
    ],
)
def test_files_that_cannot_be_exported_are_refused_before_anything_is_written(
    tmp_path: Path, kernel: sparsejit.Kernel, path: str, header: str | None, message: str
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=message):
        kernel.export(f"{tmp_path}/{path}", None if header is None else f"{tmp_path}/{header}")
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_kernel_on_several_threads_is_not_exported(tmp_path: Path) -> None:
    kernel = sparsejit.compile_matrix(block_weights((512, 512), 0.3, 1), threads=2)
    assert len(kernel.split.parts) == 2
    with pytest.raises(InvalidInput, match="for 2 threads of this process; compile it with thread"):
        kernel.export(tmp_path / "model.o")


def test_without_a_linker_only_object_files_are_written(
    tmp_path: Path, kernel: sparsejit.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match=r"none of ld, .* is on PATH; install binutils"):
        kernel.export(tmp_path / "model.so")
    kernel.export(tmp_path / "model.o")
    assert [found.name for found in tmp_path.iterdir()] == ["model.o"]


def test_a_linker_that_fails_is_quoted(
    tmp_path: Path, kernel: sparsejit.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ld").write_text("#!/bin/sh\necho the disk is full >&2\nexit 1\n")
    (tmp_path / "ld").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompileError, match=r"cannot link model\.so: the disk is full; export a"):
        kernel.export(tmp_path / "model.so")
    assert [found.name for found in tmp_path.iterdir()] == ["ld"]
