"""The signal side of a vocoder: linear prediction and quantisation.

These are steps between a network's layers. Their float32 order of operations is part of the
definition (`ir.ops.sampling`), so that native code and numpy agree to the bit and only the
network's sums can differ in rounding: hence no fused multiply-add.
"""

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.shared.rows import vector
from sparsejit.ir.ops.sampling import PREDICTION_WINDOW
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Memory, Register, dword, k, rax, xmm, ymm

_GREATER_OR_EQUAL = 13  # vcmpps predicate GE_OS
_COARSE = 16  # thresholds in a run; the first comparison reads the last of each run


def emit_prediction(
    asm: Assembler, destination: Register, history: Memory, predictor: Memory
) -> None:
    """destination (xmm) = sum of 32 products of `history` and `predictor`, as a balanced tree.

    Lanes i and i + 16 are added first, then i and i + 8, + 4, + 2, + 1. Clobbers vectors 0-7.
    """
    lanes = asm.target.lanes
    parts = [vector(asm, number) for number in range(PREDICTION_WINDOW // lanes)]
    for position, register in enumerate(parts):
        asm.emit("vmovups", register, _moved(history, 4 * lanes * position))
        asm.emit("vmulps", register, register, _moved(predictor, 4 * lanes * position))
    while len(parts) > 1:
        half = len(parts) // 2
        for low, high in zip(parts[:half], parts[half:], strict=True):
            asm.emit("vaddps", low, low, high)
        parts = parts[:half]
    if lanes == 16:
        asm.emit("vextractf64x4", ymm(1), parts[0], 1)
        asm.emit("vaddps", ymm(0), ymm(0), ymm(1))
    asm.emit("vextractf128", xmm(1), ymm(0), 1)
    asm.emit("vaddps", xmm(0), xmm(0), xmm(1))
    asm.emit("vmovhlps", xmm(1), xmm(0), xmm(0))
    asm.emit("vaddps", xmm(0), xmm(0), xmm(1))
    asm.emit("vmovshdup", xmm(1), xmm(0))
    asm.emit("vaddss", destination, xmm(0), xmm(1))


class Quantiser:
    """Counts the thresholds, which must ascend, that are <= a value, in two comparisons.

    The first finds the run of 16 thresholds that the value falls into, the second its place there.
    """

    def __init__(self, asm: Assembler, thresholds: npt.NDArray[np.float32]) -> None:
        padded = np.append(thresholds, np.float32(np.inf)).astype(np.float32)
        self._asm = asm
        self._coarse = asm.literal(padded[_COARSE - 1 :: _COARSE])
        self._fine = asm.literal(padded)

    def emit(self, destination: Register, value: Register, scratch: Register) -> None:
        """destination (r64) = count for `value` (xmm). Clobbers rax, scratch (r64), k1
        and vectors 0-2.
        """
        asm = self._asm
        asm.emit("vbroadcastss", vector(asm, 0), value)
        asm.emit("lea", scratch, Literal(self._coarse))
        self._count(destination, scratch)
        asm.emit("shl", destination, 6)
        asm.emit("lea", scratch, Literal(self._fine))
        asm.emit("add", scratch, destination)
        asm.emit("shr", destination, 2)
        self._count(rax, scratch)
        asm.emit("add", destination, rax)

    def _count(self, destination: Register, table: Register) -> None:
        """destination = the number of the 16 floats at `table` that are <= vector 0."""
        asm, low = self._asm, dword(destination)
        if asm.target.isa == "avx512":
            asm.emit("vcmpps", k(1), vector(asm, 0), Memory(table), _GREATER_OR_EQUAL)
            asm.emit("kmovw", low, k(1))
            asm.emit("popcnt", low, low)
            return
        asm.emit("vcmpps", ymm(1), ymm(0), Memory(table), _GREATER_OR_EQUAL)
        asm.emit("vcmpps", ymm(2), ymm(0), Memory(table, 32), _GREATER_OR_EQUAL)
        asm.emit("vpackssdw", ymm(1), ymm(1), ymm(2))
        asm.emit("vpmovmskb", low, ymm(1))
        asm.emit("popcnt", low, low)
        asm.emit("shr", low, 1)


def _moved(place: Memory, offset: int) -> Memory:
    return Memory(place.base, int(place.displacement) + offset, place.index, place.scale)
