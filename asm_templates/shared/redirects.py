"""Jumps to the next instruction, for long straight-line code that stays decoded.

    step 0 .. step 15, jmp next, step 16 .. step 31, jmp next, ...      150 to 500 bytes each

While it decodes, the processor looks up its cache of decoded instructions at taken jumps only:
after one miss it decodes all code that follows in a straight line. With a jump every 16 steps, a
miss spoils only these. If all code is kept decoded, or none, jumps make no difference
(docs/kernels/memory.md); the data of a core say whether it gains.
"""

import numpy as np

from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Line, line
from sparsejit.x86.operands import Relative

_STEPS = 16


def fetch_redirects(steps: int, target: Target, every: int = _STEPS) -> Line:
    """Return the jump before every `every`-th of `steps` steps, on cores that gain by it."""
    now = (np.arange(1, steps + 1) % every == 0) & target.core.redirects
    return line("jmp", Relative("next"), when=now)
