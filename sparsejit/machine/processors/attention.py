"""Costs of the attention kernel, in cycles of Golden Cove; assumed for all other cores.

From 92 attentions of 16 to 512 queries and 16 to 128 features at 3.0 GHz, dense and under masks of
six kinds: predicted at 0.86 to 1.16 of their time, at 0.93 to 1.05 on AVX2, at 0.99 in the
geometric mean. Predictions are worst for strides, whose tiles add to others. `apart` is from 45
dense ones of 4 to 256 tokens: the chosen form takes 1.01 of the least time in the geometric mean,
1.21 at most.
"""

from sparsejit.machine.prices import AttentionPrices

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
}
_WIDE = ATTENTION["avx512"]
# For cores that multiply and load one vector of 512 bits a cycle, not two.
ATTENTION_BY_HALVES = {
    "avx512": AttentionPrices(*(2 * price for price in _WIDE))._replace(apart=_WIDE.apart),
    "avx2": ATTENTION["avx2"],
}
