"""Executable memory: never writable and executable, given back, safe to run from threads."""

import ctypes
import gc
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import sparsejit
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.machine.target import Target
from sparsejit.native import executable_memory
from sparsejit.native.executable_memory import PAGE_BYTES, ExecutableMemory, write_perf_map
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, rax, rdi, rsi


def permissions(address: int) -> str | None:
    """The permissions of the page at an address in /proc/self/maps; None if it is not mapped."""
    for row in Path("/proc/self/maps").read_text().splitlines():
        span, flags = row.split()[:2]
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            return flags
    return None


def mappings_writable_and_executable() -> list[str]:
    rows = Path("/proc/self/maps").read_text().splitlines()
    return [row for row in rows if {"w", "x"} <= set(row.split()[1])]


def return_code() -> bytes:
    asm = Assembler(Target.detect())
    asm.emit("ret")
    return asm.finish().data


@pytest.mark.parametrize("size", [1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 1 << 20])
def test_code_is_mapped_read_only_and_executable(size: int) -> None:
    data = bytes(np.random.default_rng(size).integers(0, 256, size, np.uint8))
    others = mappings_writable_and_executable()  # torch's own compiler leaves some
    block = ExecutableMemory(data)
    for place in (block.address, block.address + size - 1):
        assert permissions(place) == "r-xp"
    assert ctypes.string_at(block.address, size) == data
    assert mappings_writable_and_executable() == others


def test_no_page_is_ever_writable_and_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every protection asked for, in the order in which it was."""
    asked: list[int] = []

    class Watched:
        @staticmethod
        def mmap(address: int, size: int, protection: int, *rest: int) -> int:
            asked.append(protection)
            return int(real.mmap(address, size, protection, *rest))

        @staticmethod
        def mprotect(address: int, size: int, protection: int) -> int:
            asked.append(protection)
            return int(real.mprotect(address, size, protection))

        @staticmethod
        def munmap(address: int, size: int) -> int:
            return int(real.munmap(address, size))

    real = executable_memory._libc
    monkeypatch.setattr(executable_memory, "_libc", Watched)
    ExecutableMemory(return_code())
    read_write, read_execute = 1 | 2, 1 | 4
    assert asked == [read_write, read_execute]


def test_memory_is_unmapped_when_nothing_holds_it() -> None:
    block = ExecutableMemory(bytes(64 * PAGE_BYTES))
    address = block.address
    del block
    gc.collect()
    assert permissions(address) is None


def test_a_large_image_begins_at_a_huge_page() -> None:
    data = np.random.default_rng(0).bytes((5 << 20) + 3)
    memory = ExecutableMemory(data)
    address, last = memory.address, memory.address + len(data) - 1
    assert address % (2 << 20) == 0
    assert memory.view(len(data)) == data
    assert permissions(address) == permissions(last) == "r-xp"
    del memory
    gc.collect()
    assert permissions(address) is permissions(last) is None


def test_a_function_holds_its_memory() -> None:
    asm = Assembler(Target.detect())
    asm.emit("mov", rax, 42)
    asm.emit("mov", Memory(rdi), rax)
    asm.emit("ret")
    function = ExecutableMemory(asm.finish().data).function(1)
    gc.collect()
    result = np.zeros(1, np.int64)
    function(result.ctypes.data)
    assert result[0] == 42


def test_a_function_may_start_inside() -> None:
    asm = Assembler(Target.detect())
    asm.emit("ret")
    asm.align(16)
    start = asm.position
    asm.emit("mov", Memory(rdi), rsi)
    asm.emit("ret")
    result = np.zeros(1, np.int64)
    ExecutableMemory(asm.finish().data).function(2, start)(result.ctypes.data, 7)
    assert result[0] == 7


def test_a_refused_mapping_is_one_clear_error() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 60

    with pytest.raises(CompileError, match=r"refused to map it \(mmap\): ENOMEM.*free memory"):
        ExecutableMemory(Huge())


def test_the_perf_map_names_code() -> None:
    path = Path(f"/tmp/perf-{os.getpid()}.map")
    try:
        write_perf_map(0x7F00, 0x10, "sparsejit:some kernel")
        assert path.read_text().splitlines()[-1] == "7f00 10 sparsejit:some kernel"
    finally:
        path.unlink()


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_the_perf_map_follows_no_link(link: Callable[[str, Path], None]) -> None:
    path = Path(f"/tmp/perf-{os.getpid()}.map")
    with tempfile.NamedTemporaryFile("r+", dir="/tmp") as other:
        link(other.name, path)
        try:
            with pytest.raises(InvalidInput, match=rf"{path}, .*; remove it, or set SPARSEJIT"):
                write_perf_map(0x7F00, 0x10, "sparsejit:some kernel")
        finally:
            path.unlink()
        assert other.read() == ""


def test_a_thousand_kernels_leave_nothing_behind() -> None:
    weights = np.random.default_rng(0).standard_normal((24, 24)).astype(np.float32)

    def compile_and_drop(count: int) -> None:
        for _ in range(count):
            sparsejit.compile_matrix(weights, strategy="dense")
        gc.collect()

    compile_and_drop(100)
    before = resident_bytes(), executable_mappings()
    compile_and_drop(1000)
    assert executable_mappings() <= before[1]
    assert resident_bytes() - before[0] < 2 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def executable_mappings() -> int:
    rows = Path("/proc/self/maps").read_text().splitlines()
    return sum("x" in row.split()[1] for row in rows)


def test_one_kernel_runs_in_many_threads_at_once() -> None:
    generator = np.random.default_rng(0)
    weights = generator.standard_normal((200, 300)) * (generator.random((200, 300)) < 0.2)
    kernel = sparsejit.compile_matrix(weights.astype(np.float32))
    inputs = generator.standard_normal((64, 300)).astype(np.float32)
    expected = [kernel(x) for x in inputs]

    def many_times(x: np.ndarray) -> np.ndarray:
        y = np.empty(200, np.float32)
        for _ in range(200):
            kernel(x, out=y)
        return y

    with ThreadPoolExecutor(8) as pool:
        for result, alone in zip(pool.map(many_times, inputs), expected, strict=True):
            np.testing.assert_array_equal(result, alone)


def test_kernels_may_be_compiled_in_many_threads_at_once() -> None:
    generator = np.random.default_rng(1)
    matrices = generator.standard_normal((32, 20, 50)).astype(np.float32)
    x = generator.standard_normal(50).astype(np.float32)
    with ThreadPoolExecutor(8) as pool:
        kernels = list(pool.map(sparsejit.compile_matrix, matrices))
    for kernel, weights in zip(kernels, matrices, strict=True):
        np.testing.assert_allclose(kernel(x), weights @ x.astype(np.float64), atol=1e-4)
