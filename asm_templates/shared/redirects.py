"""Jumps to the next instruction, which have long straight-line code run as it was decoded before.

    step 0 .. step 15, jmp next, step 16 .. step 31, jmp next, ...      150 to 500 bytes each

While it decodes, the processor looks for instructions decoded before at taken jumps only: after one
miss it decodes all that follows in a straight line. With a jump every 16 steps one miss spoils no
more than that. Where all is kept, or nothing, it makes no difference (docs/kernels/memory.md); the
data of a core say whether it gains.
"""

import numpy as np

from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Line, line
from sparsejit.x86.operands import Relative

_STEPS = 16


def fetch_redirects(steps: int, target: Target, every: int = _STEPS) -> Line:
    """The line before each of so many steps that jumps to it now and then, where that gains."""
    now = (np.arange(1, steps + 1) % every == 0) & target.core.redirects
    return line("jmp", Relative("next"), when=now)
