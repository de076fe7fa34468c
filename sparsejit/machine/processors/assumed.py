"""Costs of kernels that were measured on one core and are assumed for the others.

    ATTENTION, ATTENTION_BY_HALVES   the attention kernel, in cycles of Golden Cove
    FOREST                           forests, in cycles of Golden Cove
    TILE_STEPS                       tiles of AMX: on paper, as no core that has them was at hand

Attention: from 92 attentions of 16 to 512 queries and 16 to 128 features at 3.0 GHz, dense and
under masks of six kinds: predicted at 0.86 to 1.16 of their time, at 0.93 to 1.05 on AVX2, at 0.99
in the geometric mean. Predictions are worst for strides, whose tiles add to others. `apart` is from
45 dense ones of 4 to 256 tokens: the chosen form takes 1.01 of the least time in the geometric
mean, 1.21 at most. "pairs": from 25 attentions of 1 to 512 queries and 8 to 128 features on a Zen 4
core at 3.7 GHz, predicted at 0.94 to 1.15 of their time; a core that multiplies two vectors of
float32 a cycle is assumed to multiply one of pairs.

Forests: from 20 forests of 10 to 1000 trees, 4 to 12 levels, at 3.0 GHz: predicted at seven eighths
of their time to a third more in L2, at two thirds to one beyond it.

Tiles: throughputs are from Intel's Optimization Reference Manual, chapter 20. The code around them
was timed on an Emerald Rapids core at 3.0 GHz, with the instructions of AMX left out.
"""

from sparsejit.machine.price_records import AttentionPrices, ForestPrices, StepPrice

ATTENTION = {
    "avx512": AttentionPrices(
        score=0.615,
        wide_score=0.525,
        value=0.57,
        power=5.7,
        square=77,
        result=2.6,
        copy=1.2,
        apart=1.15,
    ),
    "avx2": AttentionPrices(
        score=0.665,
        wide_score=0.665,
        value=0.635,
        power=5.8,
        square=26,
        result=0.6,
        copy=1.1,
        apart=1.05,
    ),
    "pairs": AttentionPrices(
        score=1.1,
        wide_score=1.0,
        value=1.05,
        power=6.0,
        square=100,
        result=2.6,
        copy=4.5,
        apart=1.0,
    ),
}
_WIDE = ATTENTION["avx512"]
# For cores that multiply and load one vector of 512 bits a cycle, not two.
ATTENTION_BY_HALVES = {
    "avx512": AttentionPrices(*(2 * price for price in _WIDE))._replace(apart=_WIDE.apart),
    "avx2": ATTENTION["avx2"],
    "pairs": ATTENTION["pairs"]._replace(power=11.5, square=170, result=5.2),
}


FOREST = ForestPrices(
    gather={"avx512": 9.0, "avx2": 6.2},
    rank=1.5,
    first_pair=1.2,
    pair=4.0,
    group=35.0,
    leaf=3.6,
    row=80.0,
    farther={"L1": 1.0, "L2": 1.6, "L3": 3.0, "memory": 8.0},
)


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
