"""What the tiles of AMX cost, on paper: no core that has them was at hand.

Throughputs are those of Intel's Optimization Reference Manual, chapter 20. What stands before and
behind the tiles is set so that all of 256x256 with 64 columns comes to the 14.7 thousand cycles
that a prototype took on Sapphire Rapids.
"""

from sparsejit.machine.core import StepPrice

_PAPER = "on paper, from Intel's Optimization Reference Manual"
_PROTOTYPE = "256x256 with 64 columns in 14.7 thousand cycles, a prototype on Sapphire Rapids"

TILE_STEPS = {
    # A row of the left tile: 16 for a whole one.
    ("tile-product", "avx512", "int8"): StepPrice(1.0, _PAPER),
    # A tile from L1, 16 lines.
    ("tile-load", "avx512", "int8"): StepPrice(8.0, _PAPER),
    # 64 compressed weights: `vpexpandb` and `kmovq` on port 5.
    ("tile-expand", "avx512", "int8"): StepPrice(3.0, _PAPER),
    # A vector of x to bytes, both passes; a vector of sums to y.
    ("tile-quantise", "avx512", "int8"): StepPrice(4.0, _PROTOTYPE),
    ("tile-finish", "avx512", "int8"): StepPrice(5.0, _PROTOTYPE),
}
