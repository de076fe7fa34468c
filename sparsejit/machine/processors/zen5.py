"""Zen 5, the core that every kernel was first tuned on.

Figures are from one EPYC 9005 core at 4.0 to 4.2 GHz; docs/kernels names the layers: A, B, C90 and
so on are layers of `sparsejit bench kernels`.
"""

from sparsejit.machine.core import Core, FoldingRule, Rates, caches, models
from sparsejit.machine.price_records import (
    BatchPrices,
    CsrPrices,
    QuadPrices,
    SharingPrices,
    StepPrice,
)
from sparsejit.machine.processors.assumed import ATTENTION, FOREST, TILE_STEPS

_DERIVED = "not timed: the loads and multiplications of broadcast in 1x16"

STEPS = {
    **TILE_STEPS,  # Zen 5 has no tiles, but targets with its costs may
    ("permute", "avx512", "float32"): StepPrice(0.85, "A in 104 ns"),
    ("permute", "avx2", "float32"): StepPrice(0.78, "A in 520 ns"),
    ("permute", "avx512", "bfloat16"): StepPrice(
        1.2, "256x256 at 80 % in 235 ns, 1152x384 at 98 %"
    ),
    ("permute", "avx2", "bfloat16"): StepPrice(1.2, "256x256 at 90 % in 1x8 in 244 ns"),
    ("permute", "avx512", "float16"): StepPrice(1.25, "A unpacked: 181 ns"),
    ("permute", "avx2", "float16"): StepPrice(1.3, "256x256 at 90 % in 1x8 in 267 ns"),
    # Dropped: an index in the weight took 0.87 to 1.06 of the time of packed indices, by place.
    ("lane16", "avx512", "float32"): StepPrice(0.73, "A-lane in 71 ns"),
    ("lane16", "avx512", "bfloat16"): StepPrice(0.73, "the same kernel as float32"),
    ("lookup", "avx512", "float32"): StepPrice(1.7, "C90 and C95 in 3140 and 2010 ns at 4.0 GHz"),
    ("lookup", "avx512", "bfloat16"): StepPrice(1.55, "C90 and C95 in 2840 and 1740 ns"),
    ("lookup", "avx512", "float16"): StepPrice(1.9, "C90 and C95 in 3500 and 2130 ns"),
    ("broadcast", "avx512", "float32"): StepPrice(
        0.62, "B: 1560 steps, 13 KB of code in 215-260 ns"
    ),
    ("broadcast", "avx2", "float32"): StepPrice(0.72, "1152x384 and 1024x1024 at 50 to 80 % zero"),
    ("broadcast", "avx512", "bfloat16"): StepPrice(0.51, "B: 20 KB of code in 173 ns; 1x16 0.62"),
    ("broadcast", "avx2", "bfloat16"): StepPrice(0.66, "256x256 at 80 to 95 % zero"),
    ("broadcast", "avx512", "float16"): StepPrice(0.77, "B: 19 KB of code in 266 ns; 1x16 0.86"),
    ("broadcast", "avx2", "float16"): StepPrice(0.61, "256x256 at 80 to 95 % zero"),
    ("broadcast-4x4", "avx512", "float32"): StepPrice(0.62, _DERIVED),
    ("broadcast-4x4", "avx2", "float32"): StepPrice(0.72, _DERIVED),
    ("broadcast-4x4", "avx512", "bfloat16"): StepPrice(0.62, _DERIVED),
    ("broadcast-4x4", "avx2", "bfloat16"): StepPrice(0.66, _DERIVED),
    ("broadcast-4x4", "avx512", "float16"): StepPrice(0.86, _DERIVED),
    ("broadcast-4x4", "avx2", "float16"): StepPrice(0.61, _DERIVED),
    ("broadcast-loop", "avx512", "float32"): StepPrice(
        1.12, "64x64; the code of the block rows' ends"
    ),
    ("broadcast-loop", "avx2", "float32"): StepPrice(1.0, "1152x384 at 80 to 95 % zero"),
    ("broadcast-loop", "avx512", "bfloat16"): StepPrice(0.88, "1024x1024 at 5 % in 1x16 in 760 ns"),
    ("broadcast-loop", "avx2", "bfloat16"): StepPrice(
        0.95, "256x256 and 1024x1024 at 50 to 95 % zero"
    ),
    ("broadcast-loop", "avx512", "float16"): StepPrice(1.0, "1024x1024 at 5 % in 1x16 in 855 ns"),
    ("broadcast-loop", "avx2", "float16"): StepPrice(
        0.97, "256x256 and 1024x1024 at 50 to 95 % zero"
    ),
    ("broadcast-mixed", "avx512", "float32"): StepPrice(0.62, "as in broadcast; 1x16 in 983 ns"),
    ("broadcast-mixed", "avx512", "bfloat16"): StepPrice(0.51, "1x16 in 758 ns, deck in 1947"),
    ("broadcast-mixed", "avx512", "float16"): StepPrice(0.77, "1x16 in 885 ns"),
    ("dense", "avx512", "float32"): StepPrice(0.6, "64x64 in 37 ns; a loop, so hardly any code"),
    ("dense", "avx2", "float32"): StepPrice(0.57, "64x64 in 67 ns"),
    ("dense", "avx512", "bfloat16"): StepPrice(0.65, "256x256 in 640 ns"),
    ("dense", "avx2", "bfloat16"): StepPrice(0.6, "256x256 and 1024x1024"),
    ("dense", "avx512", "float16"): StepPrice(0.87, "256x256 in 828 ns"),
    ("dense", "avx2", "float16"): StepPrice(0.58, "256x256 and 1024x1024"),
    ("dense-narrow", "avx512", "float32"): StepPrice(0.025, "1 to 64 outputs of 64 inputs"),
    ("dense-narrow", "avx512", "bfloat16"): StepPrice(0.025, "1 to 64 outputs of 64 inputs"),
    ("dense-narrow", "avx512", "float16"): StepPrice(0.025, "1 to 64 outputs of 64 inputs"),
    ("dense-narrow", "avx2", "float32"): StepPrice(0.0125, "1 to 64 outputs of 64 inputs"),
    ("dense-narrow", "avx2", "bfloat16"): StepPrice(0.0125, "1 to 64 outputs of 64 inputs"),
    ("dense-narrow", "avx2", "float16"): StepPrice(0.0125, "1 to 64 outputs of 64 inputs"),
    ("dot", "avx512", "float32"): StepPrice(0.45, "0.53: 1x512 in 37 cycles, 16x256 in 180"),
    ("dot", "avx2", "float32"): StepPrice(0.38, "0.45: 1x512 in 55 cycles, 16x256 in 301"),
    ("dot", "avx512", "bfloat16"): StepPrice(0.6, "0.8: 16x64 in 96 cycles, 10x512 in 369"),
    ("dot", "avx2", "bfloat16"): StepPrice(0.55, "0.65: 16x64 in 121 cycles, 10x512 in 546"),
    ("dot", "avx512", "float16"): StepPrice(0.8, "1.2: 16x64 in 132 cycles, 10x512 in 536"),
    ("dot", "avx2", "float16"): StepPrice(0.55, "0.75: 16x64 in 138 cycles, 10x512 in 662"),
    ("dot-end", "avx512", "float32"): StepPrice(1.6, "to add lanes: 1 to 64 rows of 64 inputs"),
    ("dot-end", "avx512", "bfloat16"): StepPrice(1.6, "to add lanes: 1 to 64 rows of 64 inputs"),
    ("dot-end", "avx512", "float16"): StepPrice(1.6, "to add lanes: 1 to 64 rows of 64 inputs"),
    ("dot-end", "avx2", "float32"): StepPrice(1.3, "to add lanes: 1 to 64 rows of 64 inputs"),
    ("dot-end", "avx2", "bfloat16"): StepPrice(1.3, "to add lanes: 1 to 64 rows of 64 inputs"),
    ("dot-end", "avx2", "float16"): StepPrice(1.3, "to add lanes: 1 to 64 rows of 64 inputs"),
    ("int8-permute", "avx512", "int8"): StepPrice(
        1.0, "A in 43 ns; 20 bytes, 5 where folded four times"
    ),
    ("int8-dense", "avx512", "int8"): StepPrice(0.55, "assumed: two loads a cycle"),
    ("int8-dense", "avx2", "int8"): StepPrice(2.1, "assumed: twice Zen 4's, until it is timed"),
    ("int8-pairs", "avx512", "int8"): StepPrice(1.5, "A in 610 ns, C90 in 10.9 us"),
    ("int8-pairs", "avx2", "int8"): StepPrice(1.15, "A in 970 ns, C90 in 15.4 us"),
}

# With fewer nonzeros the code fits the cache that keeps it, and folding loses; see
# docs/kernels/gather.md.
FOLDING: dict[tuple[str, bool], tuple[FoldingRule, ...]] = {
    ("avx512", False): (FoldingRule(21_000, 0.045, 2), FoldingRule(50_000, 0.045, 4)),
    ("avx512", True): (FoldingRule(17_000, 0.025, 2), FoldingRule(50_000, 0.025, 4)),
    ("avx2", False): (FoldingRule(6_000, 0.09, 4), FoldingRule(50_000, 0.04, 2)),
    ("avx2", True): (FoldingRule(50_000, 0.09, 4),),
}

# docs/kernels/batch.md has the sources of these.
BATCH = BatchPrices(
    loads=2.0,
    products=2.0,
    store_cycles=1.0,  # both multipliers lend it a register port
    l2_code=1.35,  # 16 bytes a cycle
    far_code=0.25,
    near_l3=1 / 3,
    square={"avx512": (35, 1.0), "avx2": (8, 0.5)},
    feature_major_square={"avx512": (35, 1.0), "avx2": (8, 0.5)},
    into_integers=1.0,
    repeated=1.15,
    copy={"avx512": 2.5, "avx2": 1.3},
    dense_fetch=0.6,
    spreading={"avx512": 0.0, "avx2": 0.0},
    windows={"avx512": 1.4, "avx2": 1.4},
    from_memory=0.4,  # by it ResNet-50 took 10.9 ms, not 12.4; 16 linear layers 2.9, not 7.4
)

# 0.69, 0.96, 1.20, 1.82, 0.23, 0.32, 0.05 and 0.1 ns a hidden unit of 256, at 4.2 GHz.
GATE_CYCLES = {
    ("gru", "avx512"): 2.90,
    ("gru", "avx2"): 4.03,
    ("lstm", "avx512"): 5.04,
    ("lstm", "avx2"): 7.64,
    ("rnn_tanh", "avx512"): 0.97,
    ("rnn_tanh", "avx2"): 1.34,
    ("rnn_relu", "avx512"): 0.21,
    ("rnn_relu", "avx2"): 0.42,
}

# Not measured: from its ports, two loads and two multiplications a cycle of 64 bytes each, and 64
# bytes a cycle from L2; moving x and y as `BATCH` has it. Weights that four share a load took 0.2
# cycles less in a loop by itself.
CSR = {
    ("avx512", "floats"): CsrPrices(0.45, 0.55, 0.5, 2.5, 30, (2.5, 3.2), (5, 6.5), 0.3),
    ("avx512", "integers"): CsrPrices(0.45, 0.55, 0.5, 3.5, 30, (7.5, 8.9), (7, 8.5), 0.3),
    # x to bytes is 8.5 on paper; it costs more here, so that no timed `rows` are displaced.
    ("avx512", "bytes"): CsrPrices(0.45, 0.6, 0.5, 2.5, 30, (13, 14), (7, 8.5), 0.3),
    # Prototypes: 4.4 to 5 cycles for four weights and 64 columns.
    ("avx512", "quads"): CsrPrices(1.35, 0.0, 0.0, 2.5, 30, (7, 8), (7, 8.5), 0.3),
    # The core lacks AVX512-FP16: half of the floats' price, for tests that pretend it.
    ("avx512", "halves"): CsrPrices(0.45, 0.28, 0.25, 1.5, 30, (7, 8), (7, 8.5), 0.3),
    ("avx2", "floats"): CsrPrices(0.45, 0.55, 0.2, 2.5, 30, (1.3, 1.5), (2.6, 3), 0.3),
    ("avx2", "integers"): CsrPrices(0.45, 0.55, 0.2, 3.5, 30, (4.6, 5), (4, 4.4), 0.3),
    # From the integers' as on Zen 4: unstructured takes as long, blocks over inputs 0.6.
    ("avx2", "pairs"): CsrPrices(0.45, 0.7, 0.2, 3.0, 30, (4.6, 5), (4, 4.4), 0.3),
}

_SHARED_LOADS = {"avx512": (0.12, 0.2, 0.4, 0.45), "avx2": (0.0, 1.0)}

ZEN5 = Core(
    key="zen5",
    data_of="zen5",
    caches=caches(48, 32, 1 << 10, 32 << 10),  # EPYC 9005
    vendor="AuthenticAMD",
    family=26,
    models=models(range(0x50), range(0x60, 0x80)),
    products="EPYC 9005, Ryzen 9000",
    # L1 gives 128 bytes a cycle, L2 45 to 63, with padding lines 64, L3 26 to 31; straight-line
    # code arrives at only 10 to 14 bytes a cycle from L2 and 7 from L3.
    rates=Rates(
        cycles_per_ns=4.2,
        data={"L1": 128.0, "padded L2": 64.0, "L2": 54.0, "L3": 28.0, "memory": 8.0},
        code={"L1": 32.0, "L2": 12.0, "L3": 7.0, "memory": 4.0},
    ),
    steps=STEPS,
    folding=FOLDING,
    padding=True,
    redirects=True,
    # Not tried on Zen 5.
    halves_share_loads=False,
    widened={},
    placement=True,
    # 512x784 at 90 %, 64 columns.
    shared_panel_loads=_SHARED_LOADS,
    shared_window_loads=_SHARED_LOADS,
    # Predictions for 45 layers of 768 to 3072 outputs, permute and broadcast, were 0.84 of the
    # measured times without, 0.99 with.
    shared_way=0.25,
    shared_far=0.25,
    l2_ways=0,  # recorded layers were fitted without
    unhidden=0.0,
    # `rates` are for instructions of five bytes.
    code_rates={"permute": 1.4, "broadcast": 1.25, "broadcast-4x4": 1.25},
    data_rates={},
    batch=BATCH,
    csr=CSR,
    forest=FOREST,
    attention=ATTENTION,
    gate_cycles=GATE_CYCLES,
    reduction_cycles=25,
    multipliers=2,
    prefetch_distance=16 << 10,  # 0.4 bytes a cycle without, 9.5 with
    l3_share=0.75,
    # quad: prototypes; fours: by prototypes of whole layers; else by their instructions.
    # 256 bits and tiles: assumed, by their instructions.
    quads={
        "avx512": QuadPrices(
            quad=(5.0, 5.0),
            shifted=(6.5, 6.5),
            far=0.8,
            fours=((4.2, 4.6), (5.0, 5.2)),
            tile=2.2,
            spilling=4.0,
            turning=5.0,
            making=10.0,
            row=14.0,
            added=10.0,
        ),
        "avx2": QuadPrices(
            quad=(10.5, 10.5),
            shifted=(12.0, 12.0),
            far=0.8,
            fours=((8.5, 8.5), (9.5, 9.5)),
            making=20.0,
            row=30.0,
            added=20.0,
            table=24.0,  # assumed: as on Zen 4
        ),
        "avx_vnni": QuadPrices(
            quad=(8.5, 8.5),
            shifted=(9.5, 9.5),
            far=0.8,
            fours=((6.0, 6.0), (7.0, 7.0)),
            making=20.0,
            row=30.0,
            added=20.0,
            table=24.0,  # assumed: as on Zen 4
        ),
    },
    # `sparsejit bench threads`, docs/notes/threads.md; crossing bytes are assumed, within one L3.
    sharing=SharingPrices(barrier_ns=100.0, crossing_bytes=20.0),
)
