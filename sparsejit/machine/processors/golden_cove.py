"""Golden Cove: Sapphire and Emerald Rapids.

Only port 5 permutes, and it is one of two that multiply 512 bits, so that steps that permute cost
about twice as much as on Zen 5. All other numbers are assumed to be Zen 5's.
"""

from dataclasses import replace

from sparsejit.machine.core import Core, FoldingRule, Rates, caches, models
from sparsejit.machine.price_records import (
    CsrPrices,
    LayoutPrices,
    QuadPrices,
    SharingPrices,
    StepPrice,
)
from sparsejit.machine.processors.assumed import ATTENTION, FOREST
from sparsejit.machine.processors.zen5 import STEPS, ZEN5

# Layers of up to 256x64 in L1 on an Emerald Rapids core at 3.0 GHz: between the times of the
# quietest and of an ordinary hour of a shared machine, which differ by a tenth, for loops by a
# third. Loops of 24 steps on a Sapphire Rapids core gave the same within a tenth.
_MEASURED = "layers in L1, docs/kernels/processors.md"


def _floats(kind: str, isa: str, *cycles: float) -> dict[tuple[str, str, str], StepPrice]:
    """Costs of a step with weights stored as float32, bfloat16 and float16, as far as given."""
    stored = ("float32", "bfloat16", "float16")
    return {
        (kind, isa, dtype): StepPrice(price, _MEASURED)
        for dtype, price in zip(stored, cycles, strict=False)
    }


_STEPS = {
    **_floats("broadcast", "avx512", 0.63, 0.97, 1.38),
    **_floats("broadcast-mixed", "avx512", 0.6, 0.97, 1.5),
    **_floats("broadcast-loop", "avx512", 1.2, 1.1, 1.5),
    **_floats("broadcast-4x4", "avx512", 0.7, 1.15, 1.65),
    **_floats("broadcast-4x4", "avx2", 0.62, 0.87, 0.95),
    **_floats("broadcast-4x1", "avx2", 0.8),
    **_floats("dense", "avx512", 0.68, 1.06, 1.62),
    **_floats("dense-narrow", "avx512", 0.028, 0.041, 0.047),
    **_floats("dot", "avx512", 0.44, 0.79, 1.25),
    **_floats("dot-end", "avx512", 1.55, 2.1, 2.45),
    **_floats("permute", "avx512", 1.44, 1.93, 2.33),
    **_floats("permute-inline", "avx512", 1.19),
    **_floats("lane16", "avx512", 1.18, 1.18),
    **_floats("lookup", "avx512", 4.15, 4.28, 5.1),
    **_floats("broadcast", "avx2", 0.6, 0.8, 1.0),
    **_floats("broadcast-loop", "avx2", 0.87, 1.0, 1.0),
    **_floats("dense", "avx2", 0.58, 0.78, 1.0),
    **_floats("dense-narrow", "avx2", 0.0127, 0.016, 0.022),
    **_floats("dot", "avx2", 0.33, 0.6, 0.7),
    **_floats("dot-end", "avx2", 1.15, 1.4, 1.65),
    **_floats("permute", "avx2", 1.03, 1.35, 1.5),
    **_floats("permute-inline", "avx2", 1.0),
    ("int8-permute", "avx512", "int8"): StepPrice(1.78, _MEASURED),
    ("int8-single", "avx512", "int8"): StepPrice(1.07, "A in 99 ns at 3.03 GHz"),
    ("int8-staged", "avx512", "int8"): StepPrice(1.1, "3072x1024 at 4 % in 16x1, weights in L1"),
    ("int8-dense", "avx512", "int8"): StepPrice(0.55, "assumed: two loads a cycle"),
    ("int8-dense", "avx2", "int8"): StepPrice(1.05, "assumed: as Zen 4 without VNNI"),
    ("int8-pairs", "avx512", "int8"): StepPrice(2.25, _MEASURED),
    ("int8-pairs", "avx2", "int8"): StepPrice(1.6, _MEASURED),
    ("immediate", "avx512", "float32"): StepPrice(0.8, _MEASURED),
    ("immediate", "avx2", "float32"): StepPrice(0.75, _MEASURED),
}

_SHARED_LOADS = {"avx512": (0.12, 0.2), "avx2": (0.0, 1.0)}

GOLDEN_COVE = Core(
    key="golden_cove",
    data_of="golden_cove",
    caches=caches(48, 32, 2 << 10, 105 << 10),  # Xeon Platinum 8480+
    vendor="GenuineIntel",
    family=6,
    models=models(0x8F, 0xCF),
    products="Sapphire and Emerald Rapids",
    # L2 gives 40 to 44 bytes a cycle in order, 37 to 39.5 of three of four lines, L3 9 to 10;
    # straight-line code arrives at 37 to 42 from L1, 9 to 12.7 from L2, 2.4 to 3.3 at 4 MB. The
    # clock is 1.95 to 3.1 GHz.
    rates=Rates(
        cycles_per_ns=3.0,
        data={"L1": 110.0, "padded L2": 38.0, "L2": 43.0, "L3": 9.5, "memory": 5.0},
        code={"L1": 37.0, "L2": 12.7, "L3": 3.0, "memory": 2.0},
    ),
    steps=STEPS | _STEPS,
    # Code beyond L1: 512x512 at 95 % 0.92, C95 level with four runs, whose lanes cost more bytes.
    folding={**ZEN5.folding, ("avx512", False): (FoldingRule(13_000, 0.045, 2),)},
    # 768x256 at 90 %, permute: 1030 ns with, 890 without.
    padding=False,
    # A layer of 512x512 in 1x8, bfloat16, takes 1.20, C95 1.26 without; smaller ones 0.92 to 1.15.
    redirects=True,
    # B takes 0.89 of the time of two loads a line, 1024x1024 at 10 % in 1x8 0.83.
    halves_share_loads=True,
    # Unpacking weights takes ports from multiplications. 256x256 at 20 % in 4x4 takes 511 ns in
    # bfloat16, 347 as float32; at 10 % in 1x8 220 and 145; B in float16 600 and 424.
    widened={
        ("broadcast", "bfloat16"): "L1",
        ("broadcast", "float16"): "L2",
        ("broadcast-4x4", "bfloat16"): "L2",
        ("broadcast-4x4", "float16"): "L2",
    },
    # D16 takes 0.90 to 0.96 without.
    placement=False,
    # Port 5 spreads: 512x784 at 90 %, 64 columns: 52.9 us with 0.2, 54.7 with 0.45.
    shared_panel_loads=_SHARED_LOADS,
    shared_window_loads=_SHARED_LOADS,
    # In 162 layers choices by these took 1.014 times the best family's time, and 94 % of layers
    # were predicted within 1.5; shares of 0.2 to 0.3 predict better in noisy hours and choose
    # worse. With 20 to 40 bytes of code beside a vector of data, the lesser added 0.05 from L2,
    # 0.32 to 0.48 from L3.
    shared_way=0.05,
    shared_far=0.4,
    # 2 MB: loads come at 44 bytes a cycle up to 1 MB, at 35, 21, 16 and 13 from 1.5, 1.75, 2 and
    # 2.5 MB.
    l2_ways=16,
    unhidden=0.1,
    # C90 in 4730 ns, C95 in 3120.
    code_rates={**ZEN5.code_rates, "permute-inline": 1.3},
    # Seven layers in float32 from L2 were predicted at 0.80 to 0.89 of their time, in straight code
    # at 0.94 to 0.99: nothing hides the ends of loops.
    data_rates={"broadcast-loop": 0.87, "broadcast-mixed": 0.87},
    # In 112 layers with 16 and 64 columns choices by these took 1.005 and 1.007 times the best
    # family's time, and 93 and 96 % were predicted within 1.5; in 70 layers on AVX2 1.003 and
    # 1.025. Port 5 spreads weights, and is one of two that multiply 512 bits. A store beyond L1
    # takes 5 cycles. A square takes 66 in L1, 109 beyond; on AVX2 23 and 30. Feature-major, a
    # square of 2 columns takes as long as one of 16: A at batch 2 to 16 as rows, 1000 ns beside
    # 208 a column.
    batch=replace(
        ZEN5.batch,
        l2_code=1.15,
        repeated=1.05,
        into_integers=0.85,
        l3_code=1.33,
        square={"avx512": (58, 0.5), "avx2": (18, 0.6)},
        feature_major_square={"avx512": (91, 0), "avx2": (26, 0)},
        spreading={"avx512": 1.0, "avx2": 0.9},
        late_inputs=1.0,
        late_stores=3.0,
        # 3 x 3 layers of 64 to 256 channels at 90 %: 1.25 to 1.4; a dense one of 7 x 7 1.5.
        # On AVX2 assumed.
        windows={"avx512": 1.4, "avx2": 1.4},
    ),
    # Panels of 15 shapes: where x stays they take 0.59 to 0.97 of the time up to 2.7 times L1, one
    # of them 1.05; 1.13 at 5.4 times. With AVX2 0.68 to 1.02 and 1.4 to 1.8.
    layouts=LayoutPrices(panels_spread={"avx512": 4.0, "avx2": 2.0}),
    # From 370 layers of 64 to 4096 inputs and outputs, 50 to 99 % zero, batch 2 to 256;
    # integers and bytes from 256x256, 1024x1024 and 4096x4096 at 90 %.
    csr={
        ("avx512", "floats"): CsrPrices(0.4, 0.7, 0.8, 3.2, 30, (2.4, 3.2), (8.8, 15), 0.3),
        ("avx512", "integers"): CsrPrices(0.4, 0.7, 0.8, 4.2, 30, (7, 9), (11, 17), 0.3),
        ("avx512", "bytes"): CsrPrices(0.4, 0.75, 0.8, 3.2, 30, (8, 10), (11, 17), 0.3),
        # Assumed: a quad takes eight cycles of the port that unpacks.
        ("avx512", "quads"): CsrPrices(2.1, 0.0, 0.0, 3.2, 30, (7, 9), (11, 17), 0.3),
        # Assumed: as floats, of which a product and a load of sums take two vectors at a time; x is
        # read twice, and converted on two ports.
        ("avx512", "halves"): CsrPrices(0.4, 0.35, 0.4, 1.85, 30, (5, 9), (11, 17), 0.3),
        ("avx2", "floats"): CsrPrices(0.6, 0.51, 0.1, 3.2, 20, (1.4, 2.7), (2.3, 5.7), 0.4),
        ("avx2", "integers"): CsrPrices(0.6, 0.51, 0.1, 4.2, 20, (5, 7.5), (4, 7.5), 0.4),
        # Assumed, from the instructions on its ports.
        ("avx2", "pairs"): CsrPrices(0.6, 0.68, 0.1, 3.7, 20, (5, 7.5), (4, 7.5), 0.4),
    },
    forest=FOREST,
    attention=ATTENTION,
    gate_cycles=ZEN5.gate_cycles,
    reduction_cycles=25,
    multipliers=2,
    prefetch_distance=16 << 10,  # assumed
    l3_share=0.5,
    # Assumed, from the instructions on its ports.
    quads={
        "avx512": QuadPrices(
            quad=(8.0, 8.5),
            shifted=(9.0, 9.5),
            far=1.5,
            fours=((2.6, 4.2), (4.5, 5.0)),
            tile=2.4,
            spilling=6.0,
            turning=14.0,
            making=14.0,
            row=24.0,
            added=16.0,
        ),
        "avx2": QuadPrices(
            quad=(14.0, 14.0),
            shifted=(15.0, 15.0),
            far=1.5,
            fours=((9.0, 9.0), (10.0, 10.0)),
            making=28.0,
            row=45.0,
            added=30.0,
            table=34.0,  # assumed: blends are three steps there
        ),
        "avx_vnni": QuadPrices(
            quad=(10.0, 10.0),
            shifted=(11.0, 11.0),
            far=1.5,
            fours=((5.5, 5.5), (7.0, 7.0)),
            making=28.0,
            row=45.0,
            added=30.0,
            table=34.0,  # assumed: blends are three steps there
        ),
    },
    # 64 KB to 1 MB, read and then written again by the other core in order: 8 to 15 bytes a ns. 6
    # gave the least time of a transformer and MobileNet on two threads.
    sharing=SharingPrices(barrier_ns=583.0, crossing_bytes=6.0),
)
