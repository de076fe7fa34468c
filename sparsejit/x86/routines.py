"""Routines: code that an image needs at several places, appended once and called from each.

    call body;  jmp behind
    body:  ...  ret                                   at the first call
    behind:
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from sparsejit.x86.assembler import POOL_ALIGNMENT, Assembler, Label
from sparsejit.x86.literal_pool import COMMON


def call_routine(asm: Assembler, key: Hashable, emit_body: Callable[[Assembler], None]) -> None:
    """Call the code that `emit_body` appends; for an equal key it is appended once.

    In the body rsp is 8 bytes below the caller's; the body falls through to its return.
    """
    if key in asm.routines:
        asm.jump("call", asm.routines[key])
        return
    body, behind = asm.label("body"), asm.label("behind the body")
    asm.routines[key] = body
    asm.jump("call", body)
    asm.jump("jmp", behind)
    asm.align(POOL_ALIGNMENT)
    asm.bind(body)
    emit_body(asm)
    asm.emit("ret")
    asm.bind(behind)


def far_routine(asm: Assembler, key: Hashable) -> Label | None:
    """Return the routine that another image of the neighbourhood shares under this key, or None."""
    place = None if asm.common is None else asm.common.routine(key)
    return None if place is None else Label("routine in common", COMMON + place)


def share_routine(asm: Assembler, key: Hashable, label: Label) -> None:
    """Share the code at a label, which must end in a return, with later images."""
    asm.for_others[key] = label
