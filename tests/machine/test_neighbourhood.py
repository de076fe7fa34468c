"""Addresses for images that read each other: one range, taken and given back."""

import gc
from pathlib import Path

import pytest

from sparsejit.errors import CompileError
from sparsejit.native.executable_memory import ExecutableMemory, Neighbourhood


def test_a_neighbourhood_has_an_end_and_is_given_back() -> None:
    near = Neighbourhood()
    first = ExecutableMemory.filled(100, lambda room: None, near)
    beside = ExecutableMemory.filled(5000, lambda room: None, near)
    assert 0 < beside.address - first.address <= 1 << 16
    with pytest.raises(CompileError, match="the region for nearby code is full"):
        ExecutableMemory.filled(1 << 31, lambda room: None, near)
    del near, first
    gc.collect()
    assert mapped(beside.address) and beside.view(10) == bytes(10)
    where = beside.address
    del beside
    gc.collect()
    assert not mapped(where)


def test_addresses_of_images_that_died_are_taken_again() -> None:
    near = Neighbourhood()
    images = [ExecutableMemory.filled(size, lambda room: None, near) for size in (9, 5000, 9, 9)]
    places = [image.address for image in images]
    del images[1:3]
    gc.collect()
    again = [ExecutableMemory.filled(size, lambda room: None, near) for size in (12_000, 9)]
    assert again[0].address == places[1] < again[1].address  # where two lay; behind the last
    assert again[0].view(12_000) == bytes(12_000)


def mapped(address: int) -> bool:
    for row in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in row.split()[0].split("-"))
        if start <= address < end:
            return True
    return False
