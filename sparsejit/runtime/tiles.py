"""Permission for AMX tiles, which Linux gives to a process only on request.

Source: Documentation/arch/x86/xstate.rst of the Linux kernel. Children inherit the permission; a
process that has it needs larger alternate signal stacks, so it is asked for only where the
processor has AMX.
"""

import ctypes
import errno
import os
from functools import cache

from sparsejit.errors import UnsupportedTarget
from sparsejit.machine.permission import must_ask

_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM = 158, 0x1023
_TILE_DATA = 18  # the number of the tiles' state in XCR0

_libc = ctypes.CDLL(None, use_errno=True)


@cache
def refusal() -> str | None:
    """Ask for the permission, once a process; return the reason of a refusal, or None."""
    if not _libc.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _TILE_DATA):
        return None
    code = ctypes.get_errno()
    return (
        "the system does not let this process use AMX tiles (arch_prctl: "
        f"{errno.errorcode.get(code, code)} {os.strerror(code)}); allow that call, enlarge "
        "alternate signal stacks, or choose strategy='auto' and target='native'"
    )


def allow_tiles() -> None:
    """Ask for the permission. Raises UnsupportedTarget where it is refused."""
    why = refusal()
    if why is not None:
        raise UnsupportedTarget(why)


must_ask(("amx_tile", "amx_int8", "amx_bf16"), refusal)
