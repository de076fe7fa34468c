"""The sampler's building blocks write the registers they document, and use their own ISA."""

from collections.abc import Callable

import pytest
from disassembly import decode
from iced_x86 import EncodingKind, InstructionInfoFactory, OpAccess, RegisterExt
from iced_x86 import Register as Iced

from sparsejit.asm_templates.dense_product.tiled_product import emit_dense_product
from sparsejit.asm_templates.pointwise.class_draw import emit_categorical_draw, emit_random_uniform
from sparsejit.asm_templates.pointwise.elementwise import emit_elementwise
from sparsejit.asm_templates.pointwise.gates import (
    emit_gru_update,
    emit_lstm_update,
    emit_rnn_update,
)
from sparsejit.ir.spec import (
    Activation,
    CategoricalDraw,
    DenseProduct,
    Elementwise,
    GruUpdate,
    LstmUpdate,
    RnnUpdate,
)
from sparsejit.machine.target import ISA_LEVELS, Target
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import r8

# Registers that are saved and put back, and registers that a product clobbers.
_PRODUCT_KEEPS = {Iced.RBX, Iced.RBP, Iced.R12, Iced.R13, Iced.R14, Iced.RSP}
_PRODUCT_CLOBBERS = {
    *(Iced.RAX, Iced.RCX, Iced.R8, Iced.R9, Iced.R10, Iced.R11),
    *(Iced.K5, Iced.K6, Iced.K7),
}


def product(transposed: bool) -> Callable[[Assembler, int], None]:
    return lambda asm, n: emit_dense_product(asm, DenseProduct.contiguous(n, n, n, transposed))


# The general-purpose and k registers that each docstring says are clobbered.
EMITTERS: dict[str, tuple[Callable[[Assembler, int], None], set[int]]] = {
    "tanh": (
        lambda asm, n: emit_elementwise(asm, Elementwise(n, Activation.TANH)),
        {Iced.RAX, Iced.K7},
    ),
    "gru": (lambda asm, n: emit_gru_update(asm, GruUpdate(n)), {Iced.RAX, Iced.K7}),
    "lstm": (
        lambda asm, n: emit_lstm_update(asm, LstmUpdate(n), (r8,)),
        {Iced.RAX, Iced.K7},
    ),
    "rnn": (
        lambda asm, n: emit_rnn_update(asm, RnnUpdate(n, Activation.TANH), (r8,)),
        {Iced.RAX, Iced.K7},
    ),
    "draw": (
        lambda asm, n: emit_categorical_draw(asm, CategoricalDraw(n)),
        {Iced.RAX, Iced.R8, Iced.K1, Iced.K7},
    ),
    "product": (product(transposed=False), _PRODUCT_KEEPS | _PRODUCT_CLOBBERS),
    "product by a transpose": (product(transposed=True), _PRODUCT_KEEPS | _PRODUCT_CLOBBERS),
    "uniform": (lambda asm, n: emit_random_uniform(asm), {Iced.RAX, Iced.RCX, Iced.RDX}),
}
_WRITES = {
    *(OpAccess.WRITE, OpAccess.READ_WRITE, OpAccess.COND_WRITE, OpAccess.READ_COND_WRITE),
}


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("name", EMITTERS)
def test_only_the_documented_registers_are_written(name: str, isa: str) -> None:
    emit, documented = EMITTERS[name]
    factory = InstructionInfoFactory()
    for size in (5, 300):
        asm = Assembler(Target.named(isa))
        emit(asm, size)
        image = asm.finish()
        written = {
            RegisterExt.full_register(used.register)
            for instruction in decode(image.data[: image.code_bytes])
            for used in factory.info(instruction).used_registers()
            if used.access in _WRITES
        }
        assert {r for r in written if not RegisterExt.is_vector_register(r)} <= documented


@pytest.mark.parametrize("name", EMITTERS)
def test_avx2_code_holds_no_avx512_instruction(name: str) -> None:
    for size in (5, 300):
        asm = Assembler(Target.named("avx2"))
        EMITTERS[name][0](asm, size)
        image = asm.finish()
        encodings = {i.encoding for i in decode(image.data[: image.code_bytes])}
        assert encodings <= {EncodingKind.LEGACY, EncodingKind.VEX}
