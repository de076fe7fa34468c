"""Zen 4: as Zen 5, with 256 bits where Zen 5 has 512.

Few numbers here were measured, and these say so. The core multiplies and loads one vector of 512
bits a cycle, or two of 256, so AVX-512 steps, which loads and multiplications bind on Zen 5, are
assumed to cost twice as much, and AVX2 steps the same. Caches are assumed to deliver half: 64, 32
and 16 bytes a cycle.
"""

import math
from dataclasses import replace

from sparsejit.machine.core import Core, Rates, caches, models
from sparsejit.machine.price_records import (
    CsrPrices,
    LayoutPrices,
    LoopPrices,
    QuadPrices,
    SharingPrices,
    StepPrice,
)
from sparsejit.machine.processors.assumed import ATTENTION_BY_HALVES, FOREST
from sparsejit.machine.processors.zen5 import CSR, STEPS, ZEN5

_WIDE_FACTOR = 2.0
# Measured: 142 cases of 10 shapes from 64x256 to 3072x768, 10 and 25 % nonzeros, 64 to 784 columns;
# twice Zen 5's costs were 1.19 times the measured (median; 0.92 to 1.37), 1.12 from 20 to 60 %.
_FLOATS_FACTOR = _WIDE_FACTOR / 1.13


def _in_halves(prices: CsrPrices, factor: float) -> CsrPrices:
    """Return the costs with work on vectors of 512 bits multiplied by `factor`."""
    return prices._replace(
        weight=factor * prices.weight,
        product=factor * prices.product,
        far_product=factor * prices.far_product,
        sums=factor * prices.sums,
    )


ZEN4 = Core(
    key="zen4",
    data_of="zen4",
    caches=caches(32, 32, 1 << 10, 32 << 10),  # EPYC 9004
    vendor="AuthenticAMD",
    family=25,
    models=models(range(0x10, 0x20), range(0x60, 0xB0)),
    products="EPYC 9004, Ryzen 7000",
    rates=Rates(
        cycles_per_ns=3.7,
        data={"L1": 64.0, "padded L2": 32.0, "L2": 32.0, "L3": 16.0, "memory": 6.0},
        code={"L1": 32.0, "L2": 12.0, "L3": 7.0, "memory": 2.8},
    ),
    steps={
        key: StepPrice(
            price.cycles * (_WIDE_FACTOR if key[1] == "avx512" else 1.0), "assumed, from Zen 5's"
        )
        for key, price in STEPS.items()
    }
    | {
        ("int8-dense", "avx2", "int8"): StepPrice(1.05, "20x480 in 190 ns, 480x20 in 120"),
        ("int8-pairs", "avx2", "int8"): StepPrice(1.4, "256x256 at 10 % in 1.41 us"),
    },
    folding=ZEN5.folding,
    padding=False,
    redirects=True,
    # Assumed: it loads one vector of 512 bits a cycle.
    halves_share_loads=True,
    widened=ZEN5.widened,
    placement=False,
    # By products of 24 shapes: one load a cycle and one product leave room for each weight's own
    # load, and code is shorter, until x comes through L2 for many panels.
    shared_panel_loads={"avx512": (0.0,) * 8 + (0.2,) * 7 + (0.45,), "avx2": (0.0, 1.0)},
    # ResNet-50: 1.01 to 1.02 of the time with 0, 0.2 or 0.7.
    shared_window_loads=ZEN5.shared_window_loads,
    shared_way=ZEN5.shared_way,
    shared_far=ZEN5.shared_far,
    l2_ways=ZEN5.l2_ways,
    unhidden=ZEN5.unhidden,
    code_rates=ZEN5.code_rates,
    data_rates=ZEN5.data_rates,
    # In BERT-base at 128 columns: 768x768 0.2 more than warm; 3072x768 and 768x3072 0.25 and 0.4
    # more than four times the warm 768x768.
    # loads: one of 512 bits a cycle, but two that are broadcast; 17 panels, x as it lies, then take
    # 0.92 to 1.36 of the prediction, the most where x comes from L3.
    # products: 768x768, 256x1152, 512x512 at 128 to 784 columns, 20 to 60 % nonzeros: 1.05 to 1.2.
    # windows: 11 layers of ResNet-50 and small nets took 1.1 to 1.5 times one product a cycle; on
    # AVX2, where half of the vectors lie within a line, 9 of stride 1 take 0.86 to 1.09.
    # unhidden_code: 512x512, 1024x1024 at 16 and 32 columns, 30 to 100 % nonzeros, with prefetched
    # code: 0.9 to 1.2 of the prediction.
    # dense_fetch: 1000x1280, 1024x1024, 4096x1024 at 16 columns, weights from memory.
    batch=replace(
        ZEN5.batch,
        loads=1.5,
        products=0.94,
        from_memory=0.3,
        windows={"avx512": 1.16, "avx2": 0.87},
        unhidden_code=0.33,
        dense_fetch=0.15,
    ),
    csr={
        **{
            (isa, kind): _in_halves(prices, _FLOATS_FACTOR if kind == "floats" else _WIDE_FACTOR)
            if isa == "avx512"
            else prices
            for (isa, kind), prices in CSR.items()
        },
        # 768x768, 3072x768, 768x3072 at 128 columns, 768x768 at 33: 0.94 to 1.07 of these.
        ("avx512", "quads"): CsrPrices(1.95, 0.0, 0.0, 4.0, 30, (7, 9.5), (7, 10.5), 0.3),
    },
    forest=FOREST,
    attention=ATTENTION_BY_HALVES,
    gate_cycles={
        (cell, isa): _WIDE_FACTOR * cycles if isa == "avx512" else cycles
        for (cell, isa), cycles in ZEN5.gate_cycles.items()
    },
    reduction_cycles=25,
    multipliers=1,
    # MobileNet v1 and v2, a face detector: 0.92, 0.97 and 0.90 of the time with bands of 0.6.
    # Panels of 21 shapes at pitches of 16 to 3152: an x that stays takes 0.68 to 0.99 of the time
    # of one that is copied. With AVX2 0.61 to 1.31.
    # products: 1.01 to 1.05 cycles each in 14 dense layers and windows.
    layouts=LayoutPrices(
        bands_near=2.0,
        panels_spread={"avx512": math.inf, "avx2": 2.0},
        products={"avx512": 1.0, "avx2": 2.0},
    ),
    # 768x3072 dense, 128 columns, cold: 1.13 cycles a product by tiles of 29 rows, 1.07 of 7 or 14.
    loops=LoopPrices(far_element={"avx512": 0.00625, "avx2": 0.0}),
    prefetch_distance=16 << 10,  # 32 columns, 47 MB: 7.26 ms without, 4.70 with, 4.81 at 8 KB
    l3_share=0.75,
    # making: 16 to 20 in AVX2, 320 to 1920 lines, warm and cold; 17 to 20 of inputs by taps.
    # Measured in L1 and L2; ResNet-50's layers take 0.85 to 1.2 of the predictions by these, its
    # dense ones by tiles 0.96 to 1.06. AVX2's fours are assumed, from their instructions.
    quads={
        "avx512": QuadPrices(
            quad=(7.2, 8.5),
            shifted=(9.8, 10.6),
            far=1.6,
            fours=((5.2, 8.0), (7.7, 8.5)),
            tile=4.0,
            spilling=6.0,
            turning=8.0,
            making=17.0,
            row=20.0,
            added=16.0,
        ),
        "avx2": QuadPrices(
            quad=(12.5, 12.5),
            shifted=(13.5, 13.5),
            far=1.0,
            fours=((8.5, 8.5), (10.0, 10.0)),
            making=19.0,
            row=28.0,
            added=26.0,
            table=24.0,
        ),
        # As AVX2's without `vpmaddwd`, measured by code with wrong sums; the core lacks them.
        "avx_vnni": QuadPrices(
            quad=(10.5, 10.5),
            shifted=(11.5, 11.5),
            far=1.0,
            fours=((6.5, 6.5), (8.0, 8.0)),
            making=19.0,
            row=28.0,
            added=26.0,
            table=24.0,
        ),
    },
    # On two virtual cores: 640 to 700 ns and 33 to 41 bytes where they are cores apart, as they
    # are most of the time; 90 to 200 ns and 140 to 190 bytes where they share one.
    sharing=SharingPrices(barrier_ns=650.0, crossing_bytes=34.0),
    assumed=True,
)
