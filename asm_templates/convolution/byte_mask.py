"""The mask of attention in bytes: an addend of each key's scores, in interleaved key order."""

from sparsejit.asm_templates.convolution.byte_heads import BLOCK, FOUR, LANES, PLACE, ByteHeads
from sparsejit.asm_templates.shared.masks import set_tail_mask
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, k, zmm

_THERE = k(1)
_VALUE, _CUT, _OF_MASK, _NOTHING, _MISSING = (zmm(number) for number in range(16, 21))


def emit_key_mask(
    asm: Assembler,
    heads: ByteHeads,
    sample: int,
    constants: Register,
    mask: Register,
    scratch: Register,
) -> None:
    """Append code that writes a sample's row of the mask (samples, length) to the scratch.

    Values become steps of the scores. Keys beyond `length` get a lower value than keys that the
    mask forbids. Clobbers rax.
    """
    for name, register in zip(
        ("of mask", "nothing", "missing"), (_OF_MASK, _NOTHING, _MISSING), strict=True
    ):
        asm.emit("vbroadcastss", register, Memory(constants, PLACE[name]))
    for first in range(0, heads.keys, LANES):
        count = min(LANES, heads.length - first)
        asm.emit("vmovaps", _VALUE, _MISSING)
        if count > 0:
            set_tail_mask(asm, count, _THERE)
            place = Memory(mask, 4 * (sample * heads.length + first))
            asm.emit("vmovups", _CUT.masked(_THERE, zeroing=True), place)
            asm.emit("vmulps", _CUT, _CUT, _OF_MASK)
            asm.emit("vmaxps", _VALUE.masked(_THERE), _CUT, _NOTHING)
        block, lane = divmod(first, BLOCK)
        for four in range(FOUR):
            at = heads.places["mask"] + 4 * (BLOCK * block + LANES * four) + lane
            asm.emit("vextractf32x4", Memory(scratch, at), _VALUE, four)
