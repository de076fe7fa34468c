"""Golden Cove: Sapphire and Emerald Rapids, Alder and Raptor Lake.

Only port 5 permutes, and it is one of two that multiply 512 bits, so that steps that permute cost
about twice what they cost on Zen 5. What is not said here is taken to be as on Zen 5.
"""

from dataclasses import replace

from sparsejit.machine.core import Core, CsrPrices, StepPrice, models
from sparsejit.machine.processors.zen5 import STEPS, ZEN5
from sparsejit.machine.rates import Rates

_LOOPS = "a loop of 24 steps in L1, a Sapphire Rapids core"

_STEPS = {
    ("permute", "avx512", "float32"): StepPrice(1.53, _LOOPS),
    ("permute", "avx512", "bfloat16"): StepPrice(2.05, _LOOPS),
    ("permute", "avx512", "float16"): StepPrice(2.5, _LOOPS),
    ("lane16", "avx512", "float32"): StepPrice(1.18, _LOOPS),
    ("lane16", "avx512", "bfloat16"): StepPrice(1.18, "the same kernel as float32"),
    ("lookup", "avx512", "float32"): StepPrice(4.0, _LOOPS),
    ("lookup", "avx512", "bfloat16"): StepPrice(4.1, _LOOPS),
    ("lookup", "avx512", "float16"): StepPrice(5.0, _LOOPS),
    ("broadcast", "avx512", "float32"): StepPrice(0.63, _LOOPS),
    ("broadcast", "avx512", "bfloat16"): StepPrice(1.03, _LOOPS),
    ("broadcast", "avx512", "float16"): StepPrice(1.63, _LOOPS),
    ("broadcast-mixed", "avx512", "float32"): StepPrice(0.63, "as in broadcast"),
    ("broadcast-mixed", "avx512", "bfloat16"): StepPrice(1.03, "as in broadcast"),
    ("broadcast-mixed", "avx512", "float16"): StepPrice(1.63, "as in broadcast"),
    ("broadcast-loop", "avx512", "float32"): StepPrice(1.22, _LOOPS),
    ("broadcast-loop", "avx512", "bfloat16"): StepPrice(1.27, _LOOPS),
    ("broadcast-loop", "avx512", "float16"): StepPrice(1.67, _LOOPS),
    ("int8-permute", "avx512", "int8"): StepPrice(2.3, _LOOPS),
}

GOLDEN_COVE = Core(
    key="golden_cove",
    data_of="golden_cove",
    vendor="GenuineIntel",
    family=6,
    models=models(0x8F, 0xCF, 0x97, 0x9A, 0xB7, 0xBA, 0xBF),
    products="Sapphire and Emerald Rapids, Alder and Raptor Lake",
    # Beyond L1 in bytes a cycle: 43.8 in order, 39.5 of three of four lines; straight-line code
    # 37 to 42 from L1, 12.7 from L2, 2.4 to 3.3 at 4 MB. The clock is 1.95 to 3.1 GHz.
    rates=Rates(
        cycles_per_ns=3.0,
        data={"L1": 115.0, "padded L2": 39.5, "L2": 43.8, "L3": 9.5, "memory": 5.0},
        code={"L1": 37.0, "L2": 12.7, "L3": 3.0, "memory": 2.0},
    ),
    steps=STEPS | _STEPS,
    folding=ZEN5.folding,
    # 768x256 at 90 %, permute: 1030 ns with, 890 without.
    padding=False,
    # A layer of 512x512 in 1x8, bfloat16, takes 1.20, C95 1.26 without; smaller ones 0.92 to 1.15.
    redirects=True,
    # D16 takes 0.90 to 0.96 without.
    placement=False,
    # Port 5 spreads: 512x784 at 90 %, 64 columns: 52.9 us with 0.2, 54.7 with 0.45.
    shared_panel_loads={"avx512": (0.12, 0.2, 0.2, 0.2), "avx2": (0.0, 1.0)},
    # The best of 0 to 0.25 for 104 layers, one of 0.15 and 0.25 for 93 others.
    shared_way=0.15,
    code_rates=ZEN5.code_rates,
    batch=replace(ZEN5.batch, loads=2.0),
    # Of 370 layers of 64 to 4096 inputs and outputs, 50 to 99 % zero, batch 2 to 256;
    # integers and bytes from 256x256, 1024x1024 and 4096x4096 at 90 %.
    csr={
        ("avx512", "floats"): CsrPrices(0.4, 0.7, 0.8, 3.2, 30, (2.4, 3.2), (8.8, 15), 0.3),
        ("avx512", "integers"): CsrPrices(0.4, 0.7, 0.8, 4.2, 30, (7, 9), (11, 17), 0.3),
        ("avx512", "bytes"): CsrPrices(0.4, 0.75, 0.8, 3.2, 30, (8, 10), (11, 17), 0.3),
        ("avx2", "floats"): CsrPrices(0.7, 0.54, 0.1, 3.7, 30, (1.4, 2.7), (2.3, 5.7), 0.4),
        ("avx2", "integers"): CsrPrices(0.7, 0.54, 0.1, 4.7, 30, (5, 7.5), (4, 7.5), 0.4),
    },
    gate_cycles=ZEN5.gate_cycles,
    reduction_cycles=25,
    multipliers=2,
    barrier_ns=583.0,
)
