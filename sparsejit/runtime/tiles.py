"""Linux gives a process the tiles of AMX only when it asks for them.

Source: Documentation/arch/x86/xstate.rst of the Linux kernel. Children inherit the permission; a
process that has it pays with larger signal frames, so it is asked for when code needs it.
"""

import ctypes
import errno
import os
from functools import cache

from sparsejit.errors import UnsupportedTarget

_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM = 158, 0x1023
_TILE_DATA = 18  # the number of the tiles' state in XCR0

_libc = ctypes.CDLL(None, use_errno=True)


@cache
def allow_tiles() -> None:
    """Ask for the permission, once a process. Raises UnsupportedTarget where it is refused."""
    if _libc.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _TILE_DATA):
        code = ctypes.get_errno()
        raise UnsupportedTarget(
            "the system does not let this process use AMX tiles (arch_prctl: "
            f"{errno.errorcode.get(code, code)} {os.strerror(code)}); allow that call, enlarge "
            "alternate signal stacks, or choose target='avx512'"
        )
