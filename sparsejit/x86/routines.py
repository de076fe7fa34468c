"""Code that an image needs at several places, once in it: each of them calls it.

    call body;  jmp behind
    body:  ...  ret                                   where it is called first
    behind:
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from sparsejit.x86.assembler import POOL_ALIGNMENT, Assembler, Label
from sparsejit.x86.literal_pool import COMMON


def call_routine(asm: Assembler, key: Hashable, emit_body: Callable[[Assembler], None]) -> None:
    """Call the code that `emit_body` appends; what has an equal key is appended once.

    The body finds rsp 8 bytes below where the caller had it, and falls through to its return.
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
    """What another image of the neighbourhood shares under an equal key; None where none does."""
    place = None if asm.common is None else asm.common.routine(key)
    return None if place is None else Label("routine in common", COMMON + place)


def share_routine(asm: Assembler, key: Hashable, label: Label) -> None:
    """Let images to come call what stands at a label, which may be anything that returns."""
    asm.for_others[key] = label
