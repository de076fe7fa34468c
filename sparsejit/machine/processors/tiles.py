"""Costs of the tiles of AMX: on paper, for no core that has them was at hand.

Throughputs of tiles are from Intel's Optimization Reference Manual, chapter 20. The code around
them was timed on an Emerald Rapids core at 3.0 GHz, with the instructions of AMX left out.
"""

from sparsejit.machine.prices import StepPrice

_PAPER = "on paper, from Intel's Optimization Reference Manual"
_ENDS = "256x256 with 64 columns in 4.0 to 4.6 us without its tiles, Emerald Rapids"

TILE_STEPS = {
    # A row of the left tile: 16 for a whole one.
    ("tile-product", "avx512", "int8"): StepPrice(1.0, _PAPER),
    # A tile from L1, 16 lines.
    ("tile-load", "avx512", "int8"): StepPrice(8.0, _PAPER),
    # 64 compressed weights: `vpexpandb` and `kmovq` on port 5.
    ("tile-expand", "avx512", "int8"): StepPrice(3.8, "512x512: 5.1 us more than dense"),
    # A vector of x to bytes, both passes; a vector of sums to y.
    ("tile-quantise", "avx512", "int8"): StepPrice(4.5, _ENDS),
    ("tile-finish", "avx512", "int8"): StepPrice(7.0, _ENDS),
}
