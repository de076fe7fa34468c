"""The encoder against an independent disassembler, over every form that a template emits."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from disassembly import assert_instruction, decode, random_numbers
from forest_cases import Shape, random_trees
from hypothesis import given
from hypothesis import strategies as st
from matvec_checks import block_weights

from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.asm_templates.families import MATVEC_TEMPLATES
from sparsejit.asm_templates.forest.kernels import FOREST_KERNELS
from sparsejit.asm_templates.pointwise.class_draw import emit_categorical_draw
from sparsejit.asm_templates.pointwise.gates import emit_gru_update
from sparsejit.asm_templates.pointwise.row_chain import Strided, emit_chain, lower_chain
from sparsejit.asm_templates.shared.location import InWorkspace
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.ir.ops.pointwise import FUNCTIONS, ROW_REDUCTIONS, Chain, ChainStep
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, CategoricalDraw, GruUpdate, Layout, MatMul, MatVec
from sparsejit.ir.values import Element, TensorType
from sparsejit.machine.target import ISA_LEVELS, Target
from sparsejit.x86 import assembler, instructions
from sparsejit.x86.assembler import Assembler, line
from sparsejit.x86.forms import Form, Key
from sparsejit.x86.instructions import form_for, is_vector
from sparsejit.x86.learning import EXTENSIONS, TILE_EXTENSIONS, VEX_EXTENSIONS
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Operand,
    Register,
    dword,
    k,
    operand_text,
    r8,
    r9,
    r12,
    r13,
    r15,
    rax,
    rbp,
    rbx,
    rcx,
    rdi,
    rsi,
    rsp,
    tmm,
    word,
    xmm,
    ymm,
    zmm,
)
from sparsejit.x86.stamping import ROUTINE, StampedLine, assembled, stamped

# instruction -> bytes, as LLVM's assembler writes them (llvm-mc 19, VEX in its three-byte form).
# The last group differs from it in length alone: prefixes and immediates here never shrink.
KNOWN: list[tuple[str, tuple[Operand, ...], str]] = [
    ("vaddps", (zmm(1), zmm(2), zmm(3)), "62f16c4858cb"),
    ("vaddps", (zmm(17), zmm(18), zmm(31)), "62816c4058cf"),
    ("vaddps", (ymm(9), ymm(2), ymm(15)), "c4416c58cf"),
    ("vaddps", (ymm(17), ymm(2), ymm(31)), "62816c2858cf"),
    ("vaddss", (xmm(1), xmm(10), xmm(3)), "c4e12a58cb"),
    ("vfmadd231ps", (zmm(5), zmm(4), Memory(rdi, 64)), "62f25d48b86f01"),
    ("vfmadd231ps", (zmm(5), zmm(4), Memory(rdi, 65)), "62f25d48b8af41000000"),
    ("vfmadd231ps", (zmm(5), zmm(4), Memory(rdi, -8192)), "62f25d48b86f80"),
    ("vfmadd231ps", (zmm(5), zmm(4), Memory(rdi, 8192)), "62f25d48b8af00200000"),
    ("vfmadd231ps", (ymm(5), ymm(4), Memory(rdi, 127)), "c4e25db86f7f"),
    ("vfmadd231ps", (ymm(5), ymm(4), Memory(rdi, 128)), "c4e25db8af80000000"),
    ("vfmadd231ps", (ymm(21), ymm(20), Memory(rdi, 128)), "62e25d20b86f04"),
    ("vfmadd231ps", (zmm(5), zmm(4), Memory(rdi, 508, broadcast=16)), "62f25d58b86f7f"),
    ("vfmadd231ps", (zmm(5), zmm(4), Memory(rdi, 512, broadcast=16)), "62f25d58b8af00020000"),
    ("vfmadd231ps", (zmm(5), zmm(4), Memory(rdi, -512, broadcast=16)), "62f25d58b86f80"),
    ("vmovups", (zmm(3), Memory(rsp, 64)), "62f17c48105c2401"),
    ("vmovups", (zmm(3), Memory(r12, 64)), "62d17c48105c2401"),
    ("vmovups", (zmm(3), Memory(rbp, 64)), "62f17c48105d01"),
    ("vmovups", (zmm(3), Memory(r13, 64)), "62d17c48105d01"),
    ("vmovups", (zmm(3), Memory(rsi, 64, index=rax, scale=4)), "62f17c48105c8601"),
    ("vmovups", (zmm(3), Memory(r9, 1000, index=r12, scale=8)), "62917c48109ce1e8030000"),
    ("vmovups", (zmm(3).masked(k(7), zeroing=True), Memory(rdi, 64)), "62f17ccf105f01"),
    ("vmovups", (Memory(rsi, 64).masked(k(7)), zmm(3)), "62f17c4f115e01"),
    ("vmovups", (ymm(3), Memory(rsi, 32)), "c4e17c105e20"),
    ("vmaskmovps", (ymm(3), ymm(4), Memory(rsi, 32)), "c4e25d2c5e20"),
    ("vmaskmovps", (Memory(rsi, 32), ymm(4), ymm(3)), "c4e25d2e5e20"),
    ("vbroadcastss", (zmm(30), Memory(rdi, 4)), "62627d48187701"),
    ("vpgatherdd", (zmm(3).masked(k(1)), Memory(rax, 64, zmm(21), 4)), "62f27d41905ca810"),
    ("vpgatherdd", (ymm(3), Memory(r9, 64, ymm(15), 8), ymm(7)), "c48245905cf940"),
    ("vbroadcastss", (ymm(3), xmm(14)), "c4c27d18de"),
    ("vpermps", (zmm(3), zmm(20), zmm(9)), "62d25d4016d9"),
    ("vpermi2ps", (zmm(3), zmm(20), zmm(9)), "62d25d4077d9"),
    ("vpermt2ps", (zmm(3), zmm(20), zmm(9)), "62d25d407fd9"),
    ("vpsrld", (zmm(3), zmm(20), 5), "62b1654872d405"),
    ("vpsrld", (ymm(3), ymm(12), 5), "c4c16572d405"),
    ("vcmpps", (k(2), zmm(0), zmm(1), 1), "62f17c48c2d101"),
    ("vcmpps", (k(2).masked(k(3)), zmm(0), zmm(1), 29), "62f17c4bc2d11d"),
    ("vcmpps", (ymm(2), ymm(10), ymm(1), 13), "c4e12cc2d10d"),
    ("vpternlogd", (zmm(3), zmm(20), Memory(rdi, 4, broadcast=16), 0xE4), "62f35d50255f01e4"),
    ("vmovd", (xmm(3), dword(rax)), "c4e1796ed8"),
    ("vxorps", (ymm(8), ymm(8), ymm(8)), "c4413c57c0"),
    ("vpxord", (zmm(18), zmm(18), zmm(18)), "62a16d40efd2"),
    ("mov", (dword(rax), 0x12345678), "b878563412"),
    ("mov", (r9, 0x1122334455667788), "49b98877665544332211"),
    ("mov", (rbx, rdi), "4889fb"),
    ("movzx", (dword(rax), word(r9)), "410fb7c1"),
    ("lea", (rax, Memory(rdi, 4096)), "488d8700100000"),
    ("popcnt", (dword(rax), dword(rax)), "f30fb8c0"),
    ("call", (rax,), "ffd0"),
    ("push", (rbx,), "53"),
    ("pop", (r15,), "415f"),
    ("ret", (), "c3"),
    ("vpdpbusd", (zmm(5), zmm(4), Memory(rdi, 64)), "62f25d48506f01"),
    ("vpdpbusd", (zmm(25), zmm(14), Memory(rdi, 4, broadcast=16)), "62620d58504f01"),
    ("vpdpbusd", (zmm(25), zmm(14), zmm(7)), "62620d4850cf"),
    ("{vex} vpdpbusd", (ymm(9), ymm(14), ymm(7)), "c4620d50cf"),
    ("{vex} vpdpbusd", (xmm(1), xmm(4), xmm(15)), "c4c25950cf"),
    ("vpermb", (zmm(0).masked(k(2)), zmm(1), Memory(r9, 640)), "62d2754a8d410a"),
    ("vpmovb2m", (k(1), zmm(25)), "62927e4829c9"),
    ("kandq", (k(3), k(1), k(2)), "c4e1f441da"),
    ("vpdpwssd", (zmm(25), zmm(14), zmm(7)), "62620d4852cf"),
    ("vdpbf16ps", (zmm(25), zmm(14), zmm(7)), "62620e4852cf"),
    ("vdpbf16ps", (zmm(25), zmm(14), Memory(r13, 128)), "62420e48524d02"),
    ("vcvtneps2bf16", (ymm(25), zmm(14)), "62427e4872ce"),
    ("vcvtne2ps2bf16", (zmm(25), zmm(14), zmm(3)), "62620f4872cb"),
    ("vpshrdvd", (zmm(25), zmm(14), zmm(7)), "62620d4873cf"),
    ("vpshldvd", (zmm(25), zmm(14), zmm(7)), "62620d4871cf"),
    ("vpexpandb", (zmm(25).masked(k(1), zeroing=True), zmm(14)), "62427dc962ce"),
    ("vfmadd231ph", (zmm(25), zmm(14), zmm(7)), "62660d48b8cf"),
    ("vfmadd231ph", (zmm(25), zmm(14), Memory(r13, 128)), "62460d48b84d02"),
    ("vaddph", (zmm(25), zmm(14), zmm(7)), "62650c4858cf"),
    ("vaddph", (zmm(2), zmm(30), Memory(r8, 64, index=rcx, scale=4)), "62d50c4058548801"),
    ("ldtilecfg", (Memory(rsp, 64),), "c4e27849442440"),
    ("ldtilecfg", (Memory(r13, 1000),), "c4c2784985e8030000"),
    ("sttilecfg", (Memory(rsi, 64),), "c4e279494640"),
    ("tilerelease", (), "c4e27849c0"),
    ("tilezero", (tmm(5),), "c4e27b49e8"),
    ("tileloadd", (tmm(3), Memory(rdi, 64, index=rax)), "c4e27b4b5c0740"),
    ("tileloadd", (tmm(7), Memory(r9, 1000, index=r12, scale=8)), "c4827b4bbce1e8030000"),
    ("tilestored", (Memory(rsp, 64, index=rcx), tmm(2)), "c4e27a4b540c40"),
    ("tdpbssd", (tmm(1), tmm(2), tmm(3)), "c4e2635eca"),
    ("tdpbsud", (tmm(1), tmm(2), tmm(3)), "c4e2625eca"),
    ("tdpbusd", (tmm(4), tmm(6), tmm(7)), "c4e2415ee6"),
    ("kmovw", (k(7), dword(rax)), "c4e17892f8"),
    ("kmovw", (dword(rcx), k(1)), "c4e17893c9"),
    ("add", (rax, 0x1000), "480500100000"),
    ("sub", (r12, 1), "4981ec01000000"),
    ("vzeroupper", (), "c4e17877"),
]

KNOWN_IDS = [f"{m} {', '.join(operand_text(o, 0) for o in ops)}" for m, ops, _ in KNOWN]


def encode(mnemonic: str, *operands: Operand) -> bytes:
    asm = Assembler(Target.named("avx512"))
    asm.emit(mnemonic, *operands)
    image = asm.finish()
    return image.data[: image.code_bytes]


@pytest.mark.parametrize(("mnemonic", "operands", "expected"), KNOWN, ids=KNOWN_IDS)
def test_known_bytes(mnemonic: str, operands: tuple[Operand, ...], expected: str) -> None:
    assert encode(mnemonic, *operands).hex() == expected


@pytest.mark.parametrize("name", [*EXTENSIONS, *VEX_EXTENSIONS, *TILE_EXTENSIONS])
def test_every_extension_has_known_bytes(name: str) -> None:
    assert name in {mnemonic for mnemonic, _, _ in KNOWN}


Use = tuple[str, tuple[Operand, ...], int]
COPIES = 48  # random instructions a form is checked with


class Recorder:
    """Stands in for `form_for` and keeps one use of each form."""

    def __init__(self) -> None:
        self.uses: dict[Key, Use] = {}

    def __call__(self, mnemonic: str, operands: tuple[Operand, ...], size: int) -> Form:
        form = form_for(mnemonic, operands, size)
        key = (mnemonic, tuple(map(instructions._signature, operands)), size)
        self.uses.setdefault(key, (mnemonic, tuple(operands), size))
        return form


def emit_everything(isa: str) -> Iterator[None]:
    """Compile each template for an instruction set in its variants."""
    target = Target.named(isa)
    for row in (row for row in MATVEC_TEMPLATES if row.isa == isa):
        for number, shape in enumerate(((1, 1), (9, 5), (40, 70), (100, 300), (257, 515))):
            for block_rows in (1, 8):
                weights = block_weights(shape, 0.3, block_rows)
                bias = np.ones(shape[0], np.float32)
                activation = list(Activation)[number % len(Activation)]
                spec = MatVec(*shape, bias, activation, row.dtype)
                row.emit(Assembler(target), row.lower(spec, SparseMatrix(weights), target))
    each = MatVec(40, 70, np.ones(40, np.float32), Activation.TANH)
    matrix = SparseMatrix(block_weights((40, 70), 0.3, 1))
    kinds = [t for t in MATMUL_TEMPLATES if t.each is None or t.each.name.startswith("f32-permute")]
    for row, batch, layout in product(kinds, (3, 8, 32, 87), Layout):
        if row.isa == isa:
            spec = MatMul(replace(each, dtype=row.dtype), batch, layout)
            row.emit(Assembler(target), row.lower(spec, matrix, target))
        if row.isa == isa and "amx_tile" in row.requires:  # compressed weights: beyond any L2
            beyond, spec = replace(target, l2_bytes=1), replace(spec, batch=50)
            row.emit(Assembler(beyond), row.lower(spec, matrix, beyond))
    for size in (1, 16, 100):
        emit_gru_update(Assembler(target), GruUpdate(size))
        emit_categorical_draw(Assembler(target), CategoricalDraw(size + 1))
    emit_chains(target)
    shapes = (Shape(9, 40, 6), Shape(25, 7, 8, 5), Shape(20, 5, 3, 5, leaf_of_all=True))
    for kernel, shape in product(FOREST_KERNELS, shapes):
        if isa in kernel.levels:
            kernel.lower(random_trees(shape, 1), 21, target).emit(Assembler(target))


def emit_chains(target: Target) -> None:
    """Every function of each element, over rows with and without a tail, dense and strided."""
    places = [InWorkspace(8 * number) for number in range(4)]
    for element, size in product(Element, ((9, 16), (9, 21), (3, 900))):
        for kind in (*FUNCTIONS, *ROW_REDUCTIONS):
            arity = FUNCTIONS[kind].arity if kind in FUNCTIONS else 1
            arguments = tuple(range(arity))
            chain = Chain(size, arity, (ChainStep(kind, arguments),), (arity,))
            try:
                (made,) = chain.infer(*[TensorType(size, element)] * arity)
            except InvalidInput:  # no function takes float64
                continue
            result = Strided((made.element.bytes * made.shape[1], made.element.bytes), made.element)
            for strides in ((size[1] * element.bytes, element.bytes), (element.bytes, 160), (8, 0)):
                read = [Strided(strides, element)] * arity
                asm = Assembler(target)
                with suppress(CompileError):  # most functions of int64
                    lowered = lower_chain(chain, read, [result], target)
                    emit_chain(asm, lowered, places[:arity], places[3:], places[0])


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_every_emitted_form_decodes_to_itself(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(assembler, "form_for", recorder)
    monkeypatch.setattr(instructions, "form_for", recorder)
    monkeypatch.setattr(instructions, "_ENCODED", {})
    emit_everything(isa)
    assert len(recorder.uses) > 40
    generator = np.random.default_rng(3)
    for mnemonic, operands, size in recorder.uses.values():
        check_form(generator, mnemonic, operands, size)


def check_form(
    generator: np.random.Generator, mnemonic: str, operands: tuple[Operand, ...], size: int
) -> None:
    """Stamp random instructions of one form and compare what the disassembler reads."""
    form = form_for(mnemonic, operands, size)
    displacements, immediates = random_fields(generator, form)
    random = tuple(
        immediates if not isinstance(o, Register | Memory | Literal | assembler.Relative)
        else random_numbers(generator, o, COPIES, displacements)
        for o in operands
    )
    registers = [o.number for o in random if isinstance(o, Register) and is_vector(o)]
    numbers = registers, displacements, immediates
    code, _ = stamped(COPIES, [StampedLine(form, None, *numbers, has_starts=False)])
    for row, found in enumerate(decode(code.tobytes())):
        assert_instruction(found, mnemonic, random, row)


# As the disassembler names them.
JUMPS = {"jz": {"je"}, "jnz": {"jne"}, "ja": {"ja"}, "jb": {"jb"}, "jl": {"jl"}, "jg": {"jg"}}


def test_the_routine_that_stamps_decodes_to_itself() -> None:
    written = [item for item in ROUTINE if not isinstance(item, str)]
    found = decode(assembled(ROUTINE))
    assert len(found) == len(written)
    for instruction, (mnemonic, *operands) in zip(found, written, strict=True):
        if operands and isinstance(operands[0], assembler.Relative):
            assert str(instruction).split()[0] in JUMPS[mnemonic]
        else:
            assert_instruction(instruction, mnemonic, tuple(operands))


def random_fields(generator: np.random.Generator, form: Form) -> tuple[np.ndarray, np.ndarray]:
    """Random displacements and immediates that fit the form's fields, extremes included."""
    fields = []
    for hole in (form.displacement, form.immediate):
        if hole is None:
            fields.append(np.zeros(COPIES, np.int64))
            continue
        bound = 1 << (8 * hole.size - 1)
        values = generator.integers(-bound, bound, COPIES)
        values[:2] = -bound, bound - 1
        fields.append(values * hole.unit)
    return fields[0], fields[1]


@pytest.mark.parametrize(("mnemonic", "operands", "_"), KNOWN, ids=KNOWN_IDS)
def test_known_forms_decode_to_themselves(
    mnemonic: str, operands: tuple[Operand, ...], _: str
) -> None:
    sizes = (1, 4) if any(isinstance(o, Memory) for o in operands) else (0,)
    for size in sizes:
        check_form(np.random.default_rng(4), mnemonic, operands, size)


vector_numbers = st.integers(0, 31)
int32 = st.integers(-(2**31), 2**31 - 1)
near = st.integers(-9000, 9000)
bases = st.integers(0, 15).map(lambda number: Register("r64", number))
indices = st.none() | st.integers(0, 15).filter(lambda n: n != 4).map(
    lambda number: Register("r64", number)
)


@given(
    st.sampled_from(["vmulps", "vfmadd231ps", "vpdpbusd", "vpaddd", "vdpbf16ps"]),
    vector_numbers,
    vector_numbers,
    bases,
    near | near.map(lambda n: 4 * n) | int32,
)
def test_a_broadcast_reads_where_it_should(
    mnemonic: str, first: int, second: int, base: Register, displacement: int
) -> None:
    operands = (zmm(first), zmm(second), Memory(base, displacement, broadcast=16))
    (found,) = decode(encode(mnemonic, *operands))
    assert_instruction(found, mnemonic, operands)


@given(bases, indices, st.sampled_from([1, 2, 4, 8]), near | int32, vector_numbers)
def test_every_address_reads_where_it_should(
    base: Register, index: Register | None, scale: int, displacement: int, number: int
) -> None:
    place = Memory(base, displacement, index, scale if index else 1)
    (found,) = decode(encode("vmovups", zmm(number), place))
    assert_instruction(found, "vmovups", (zmm(number), place))


@given(st.integers(0, 7), st.integers(0, 7), vector_numbers, vector_numbers, st.integers(0, 31))
def test_a_comparison_is_masked_only_when_asked(
    destination: int, mask: int, first: int, second: int, predicate: int
) -> None:
    register = k(destination).masked(k(mask)) if mask else k(destination)
    operands = (register, zmm(first), zmm(second), predicate)
    (found,) = decode(encode("vcmpps", *operands))
    assert_instruction(found, "vcmpps", operands)


@given(int32, st.booleans())
def test_an_immediate_is_a_bit_pattern_or_sign_extended(value: int, wide: bool) -> None:
    register = rax if wide else dword(rax)
    (found,) = decode(encode("add", register, value))
    assert_instruction(found, "add", (register, value))


def test_an_unsigned_pattern_fits_a_32_bit_register_but_not_a_sign_extended_one() -> None:
    (found,) = decode(encode("mov", dword(rcx), 0xFFFFFFFF))
    assert_instruction(found, "mov", (dword(rcx), 0xFFFFFFFF))
    with pytest.raises(CompileError, match="4294967295"):
        encode("add", rax, 0xFFFFFFFF)


def test_unknown_mnemonic_is_refused_with_the_remedy() -> None:
    with pytest.raises(CompileError, match=r"'vfrobps'.*EXTENSIONS"):
        encode("vfrobps", zmm(1), zmm(2))


def test_operands_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(CompileError, match="vaddps does not exist"):
        encode("vaddps", zmm(1), ymm(2), zmm(3))


def test_a_tile_needs_the_distance_of_its_rows() -> None:
    with pytest.raises(CompileError, match=r"tileloadd needs an index register"):
        encode("tileloadd", tmm(1), Memory(rdi))
    with pytest.raises(CompileError, match="tdpbssd does not exist"):
        encode("tdpbssd", tmm(1), tmm(2))


def test_mixed_register_halves_are_refused() -> None:
    lines = [line("vaddps", ymm(np.array([3, 17])), ymm(1), ymm(2))]
    with pytest.raises(CompileError, match="stamp them apart"):
        Assembler(Target.named("avx512")).stamp(2, lines)
