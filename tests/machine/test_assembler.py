"""Stamping, labels, the literal pool and the listing."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from disassembly import assert_instruction, decode
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sparsejit.errors import CompileError
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.x86.assembler import POOL_ALIGNMENT, Assembler, line
from sparsejit.x86.image import Image, Line
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    Relative,
    dword,
    r8,
    rax,
    rdi,
    rsi,
    xmm,
    zmm,
)

TARGET = Target.named("avx512")


def rows_of(seed: int, count: int, near: bool) -> list[Line]:
    """A body with every kind of number in it, each line left out of some rows."""
    generator = np.random.default_rng(seed)
    registers = [generator.integers(0, 32, count) for _ in range(5)]
    reach = 100 if near else 100_000
    displacements = 64 * generator.integers(-reach, reach, count)
    offsets = 4 * generator.integers(0, 1000, count)
    keep = [generator.random(count) < 0.6 for _ in range(3)]
    return [
        line("vfmadd231ps", zmm(registers[0]), zmm(registers[1]), Memory(rdi, displacements)),
        line("vmulps", zmm(registers[2]), zmm(3), Literal(offsets), when=keep[0]),
        line("mov", dword(rax), generator.integers(0, 2**32, count), when=keep[1]),
        line("vbroadcastss", zmm(registers[3]), Memory(rsi, 4 * registers[4]), when=keep[2]),
    ]


def one_by_one(lines: list[Line], count: int) -> list[Line]:
    """The same instructions as single lines, row after row."""
    return [
        Line(item.mnemonic, tuple(at_row(operand, row) for operand in item.operands))
        for row in range(count)
        for item in lines
        if item.when is None or item.when[row]
    ]


def at_row(operand: Any, row: int) -> Any:
    if isinstance(operand, np.ndarray):
        return int(operand[row])
    fields = {
        name: int(value[row]) if isinstance(value, np.ndarray) else value
        for name, value in operand._asdict().items()
    }
    return type(operand)(**fields)


@given(st.integers(0, 2**32), st.integers(1, 40), st.booleans())
def test_a_stamp_equals_repeated_emits(seed: int, count: int, near: bool) -> None:
    lines = rows_of(seed, count, near)
    stamped, emitted = Assembler(TARGET), Assembler(TARGET)
    for asm in (stamped, emitted):
        asm.literal(np.zeros(2000, np.float32))
    stamped.stamp(count, lines)
    for single in one_by_one(lines, count):
        emitted.emit(single.mnemonic, *single.operands)
    instructions = [decode(code_of(asm.finish())) for asm in (stamped, emitted)]
    # A stamp gives all rows one displacement size; the instructions are the same nonetheless.
    texts = [[str(instruction) for instruction in part] for part in instructions]
    assert [strip(text) for text in texts[0]] == [strip(text) for text in texts[1]]


def strip(text: str) -> str:
    """Without the target of a rip-relative address, which moves with the code's length."""
    return re.sub(r"\[1000\w*h\]", "[pool]", text)


def code_of(image: Image) -> bytes:
    return image.data[: image.code_bytes]


@given(arrays.arrays(bool, st.integers(1, 50)))
def test_when_leaves_out_exactly_the_masked_rows(when: np.ndarray) -> None:
    asm = Assembler(TARGET)
    numbers = np.arange(len(when)) % 32
    asm.stamp(len(when), [line("vaddps", zmm(numbers), zmm(1), zmm(2), when=when)])
    asm.emit("ret")
    *found, last = decode(code_of(asm.finish()))
    assert_instruction(last, "ret", ())
    assert len(found) == when.sum()
    for instruction, number in zip(found, numbers[when], strict=True):
        assert_instruction(instruction, "vaddps", (zmm(int(number)), zmm(1), zmm(2)))


def test_a_wrong_mask_is_refused() -> None:
    with pytest.raises(CompileError, match=r"shape \(2,\), expected \(3,\)"):
        Assembler(TARGET).stamp(3, [line("ret", when=np.ones(2, bool))])


def test_a_stamped_jump_goes_to_the_next_instruction() -> None:
    asm = Assembler(TARGET)
    asm.stamp(2, [line("jmp", Relative("next")), line("nop")])
    jumps = decode(code_of(asm.finish()))[::2]
    assert all(jump.near_branch_target == jump.next_ip for jump in jumps)


def test_nothing_is_stamped_zero_times() -> None:
    asm = Assembler(TARGET)
    asm.stamp(0, [line("ret")])
    assert (asm.position, asm.finish().data) == (0, b"")


@given(st.lists(arrays.arrays(np.float32, st.integers(1, 40)), min_size=1, max_size=8))
def test_literals_are_read_where_they_were_put(values: list[np.ndarray]) -> None:
    """Each instruction's address, resolved by the disassembler, holds its literal."""
    asm = Assembler(TARGET)
    for position, array in enumerate(values):
        asm.emit("vmovups", zmm(position), Literal(asm.literal(array)))
    image = asm.finish()
    decoded = decode(code_of(image))
    start = decoded[0].ip
    for instruction, array in zip(decoded, values, strict=True):
        place = instruction.memory_displacement - start
        assert place % POOL_ALIGNMENT == 0
        assert image.data[place : place + array.nbytes] == array.tobytes()


def test_a_stamp_reads_a_literal_a_row() -> None:
    asm = Assembler(TARGET)
    offset = asm.literal(np.arange(10, dtype=np.float32))
    offsets = offset + 4 * np.arange(10)
    keep = np.arange(10) % 3 != 0
    asm.stamp(10, [line("vmovss", xmm(0), Literal(offsets), when=keep), line("nop")])
    image = asm.finish()
    decoded = decode(code_of(image))
    places = [i.memory_displacement - decoded[0].ip for i in decoded if i.op_count == 2]
    found = [np.frombuffer(image.data, np.float32, 1, place)[0] for place in places]
    assert found == list(np.arange(10)[keep])


def test_jumps_go_to_their_labels_in_both_directions() -> None:
    """Sums 1..n, skipping an instruction that would spoil the sum."""
    asm = Assembler(Target.detect())
    loop, skip = asm.label("loop"), asm.label("skip")
    asm.emit("xor", rax, rax)
    asm.bind(loop)
    asm.emit("add", rax, rdi)
    asm.jump("jmp", skip)
    asm.stamp(100, [line("add", rax, 1)])
    asm.bind(skip)
    asm.emit("sub", rdi, 1)
    asm.jump("jnz", loop)
    asm.emit("mov", Memory(rsi), rax)
    asm.emit("ret")
    total = np.zeros(1, np.int64)
    ExecutableMemory(asm.finish().data).function(2)(10, total.ctypes.data)
    assert total[0] == 55


def test_a_label_is_bound_once() -> None:
    asm = Assembler(TARGET)
    label = asm.label("here")
    asm.bind(label)
    with pytest.raises(CompileError, match="'here' is bound twice"):
        asm.bind(label)


def test_a_label_that_is_used_must_be_bound() -> None:
    asm = Assembler(TARGET)
    asm.jump("jmp", asm.label("nowhere"))
    with pytest.raises(CompileError, match="'nowhere' is used but never bound"):
        asm.finish()


def test_align_pads_with_instructions_that_do_nothing() -> None:
    asm = Assembler(TARGET)
    asm.emit("ret")
    asm.align(32)
    assert asm.position == 32
    first, *padding = decode(code_of(asm.finish()))
    assert_instruction(first, "ret", ())
    assert {str(instruction) for instruction in padding} == {"nop"}


@given(st.integers(0, 2**32), st.integers(1, 400), st.integers(0, 2**20))
def test_code_asks_for_what_lies_ahead_once_a_cache_line(
    seed: int, count: int, distance: int
) -> None:
    lines = rows_of(seed, count, near=True)
    plain, asking = Assembler(TARGET), Assembler(TARGET, prefetch_distance=distance)
    for asm in (plain, asking):
        asm.literal(np.zeros(2000, np.float32))
        asm.stamp(count, lines)
    code = code_of(asking.finish())
    found, others = [], []
    for instruction in decode(code):
        if str(instruction).startswith("prefetcht1"):
            assert instruction.memory_displacement == instruction.next_ip + distance
            found.append(instruction.ip)
        else:
            others.append(strip(str(instruction)))
    assert others == [strip(str(each)) for each in decode(code_of(plain.finish()))]
    if distance:
        assert len(found) == pytest.approx(len(code) / 64, abs=1 + len(code) / 400)
        assert max(np.diff(found), default=0) < 2 * 64
    else:
        assert not found


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (line("vaddps", zmm(np.array([0, 32, 1])), zmm(1), zmm(2)), r"not in 0\.\.31"),
        (line("vaddps", zmm(np.array([0, -1, 1])), zmm(1), zmm(2)), r"not in 0\.\.31"),
        (line("vaddps", zmm(np.array([0, 1])), zmm(1), zmm(2)), r"shape \(2,\), expected \(3,\)"),
        (line("vmovups", zmm(1), Memory(rdi, np.array([0, 2**32, 0]))), "4294967296.*4 bytes"),
        (line("mov", dword(rax), np.array([0, 2**32, 0])), "4294967296.*4 bytes"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(item: Line, words: str) -> None:
    with pytest.raises(CompileError, match=words):
        Assembler(TARGET).stamp(3, [line("nop"), item])


def test_numbers_of_rows_that_are_left_out_may_be_anything() -> None:
    asm, present = Assembler(TARGET), np.array([True, False, True])
    asm.stamp(3, [line("mov", dword(rax), np.array([1, 2**40, 2]), when=present)])
    assert [str(each) for each in decode(code_of(asm.finish()))] == ["mov eax,1", "mov eax,2"]


def test_threads_stamp_at_once() -> None:
    """The routine that writes rows runs without the interpreter lock."""

    def code(seed: int) -> bytes:
        asm = Assembler(TARGET)
        asm.literal(np.zeros(2000, np.float32))
        for part in range(20):
            asm.stamp(500, rows_of(seed + part, 500, near=False))
        return asm.finish().data

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(code, range(8))) == [code(seed) for seed in range(8)]


def test_a_displacement_beyond_32_bits_is_refused() -> None:
    with pytest.raises(CompileError, match=r"4294967296.*does not fit 4 bytes"):
        Assembler(TARGET).emit("vmovups", zmm(1), Memory(rdi, 2**32))


def test_the_listing_names_every_instruction_at_its_address_with_its_literals() -> None:
    asm = Assembler(TARGET)
    weights = asm.literal(np.array([1.5, -2, 3] + 13 * [0], np.float32))
    out = asm.label("out")
    asm.emit("vmovups", zmm(1), Literal(weights))
    asm.stamp(2, [line("vaddps", zmm(np.array([4, 5])), zmm(1), Memory(r8, np.array([64, 128])))])
    asm.jump("jmp", out)
    asm.bind(out)
    asm.emit("ret")
    image = asm.finish()
    listing = list(image.listing())
    decoded = decode(code_of(image))
    addresses = [instruction.ip - decoded[0].ip for instruction in decoded]
    assert [int(row[:6], 16) for row in listing] == addresses
    assert "; 1.5 -2 3 0" in listing[0]
    assert [" ".join(row.split()[1:]) for row in listing[1:]] == [
        "vaddps zmm4, zmm1, [r8+64]",
        "vaddps zmm5, zmm1, [r8+128]",
        "jmp out",
        "ret",
    ]


def test_the_image_counts_its_code_and_pool() -> None:
    asm = Assembler(TARGET)
    asm.literal(np.zeros(5, np.float32))
    asm.literal(np.zeros(1, np.float32), align=4)
    asm.emit("ret")
    image = asm.finish()
    assert (image.code_bytes, image.pool_bytes) == (1, 24)
    assert (image.pool_start, len(image.data)) == (64, 88)


def test_a_masked_register_shows_in_the_listing() -> None:
    register = Register("zmm", 3).masked(Register("k", 2), zeroing=True)
    assert register.text(0) == "zmm3{k2}{z}"


def turn(asm: Assembler, count: int) -> None:
    """A loop, and what is aligned in it."""
    again = asm.label("again")
    asm.emit("mov", dword(rax), count)
    asm.align(16)
    asm.bind(again)
    asm.stamp(3, [line("vmulps", zmm(np.arange(3)), zmm(3), zmm(4))])
    asm.emit("sub", dword(rax), 1)
    asm.jump("jnz", again)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 70)), max_size=12))
def test_code_that_is_known_is_the_same_wherever_it_stands(parts: list[tuple[int, int]]) -> None:
    known, anew = Assembler(TARGET, listed=False), Assembler(TARGET, listed=False)
    for count, before in parts:
        for asm in (known, anew):
            for _ in range(before):
                asm.emit("nop")
        known.append_known(("turn", count), lambda count=count: turn(known, count))
        turn(anew, count)
    found, wanted = known.finish(), anew.finish()
    assert found.data == wanted.data
    assert found.forms == wanted.forms


def test_code_with_literals_or_jumps_is_written_anew() -> None:
    def code(number: float, is_listed: bool) -> Image:
        asm = Assembler(TARGET, listed=is_listed)
        end = asm.label("end")

        def body() -> None:
            asm.emit("vmulps", zmm(1), zmm(2), asm.constant(number))
            asm.jump("jmp", end)

        asm.append_known("with a literal", body)
        asm.append_known("away", lambda: asm.jump("jmp", end))
        asm.emit("nop")
        asm.bind(end)
        return asm.finish()

    for number in (1.0, 2.0):
        assert code(number, False).data == code(number, True).data
    assert code(1.0, False).data != code(2.0, False).data


def test_known_code_asks_for_code_as_far_ahead_as_its_image_does() -> None:
    def code(ahead: int) -> bytes:
        asm = Assembler(TARGET, ahead, listed=False)
        rows = [line("vmulps", zmm(np.arange(80) % 8), zmm(8), zmm(9))]
        asm.append_known("rows", lambda: asm.stamp(80, rows))
        return asm.finish().data

    assert len({code(0), code(1024), code(2048)}) == 3
