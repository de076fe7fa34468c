"""Jumps to the next instruction, which have long straight-line code run as it was decoded before.

Zen 5 keeps 6000 decoded instructions, but while it decodes it changes over to them at taken jumps
only: after one miss it decodes all that follows in a straight line, 16 bytes a cycle, be it kept
or not. With a jump every 16 steps, 150 to 500 bytes, one miss spoils no more than that:

    512x512, 10 %, bfloat16 broadcast      516 ns -> 281       near the limit of what is kept
    384x384, 10 %, bfloat16 permute        518    -> 345
    1024x1024, 5 %, bfloat16 permute       2383   -> 1988
    768x256, 20 %, float32 permute, AVX2   2991   -> 2687
    1024x1024, 10 % in 1x16, int8          665    -> 591

Where all is kept, or nothing, it makes no difference.
"""

import numpy as np

from sparsejit.x86.assembler import Line, line
from sparsejit.x86.operands import Relative

_STEPS = 16


def fetch_redirects(steps: int, every: int = _STEPS) -> Line:
    """The line before each of so many steps that jumps to it now and then."""
    return line("jmp", Relative("next"), when=np.arange(1, steps + 1) % every == 0)
