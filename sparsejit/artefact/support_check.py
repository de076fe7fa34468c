"""The entry of exported code: checks the processor once, then runs the image.

    NAME_run:  mov eax, [state]         0: not checked yet, 1: supported, -1: unsupported
               test eax, eax
               jle ask
    go:        call the image; its int is the result, or 0
    ask:       js done                  the state is the error code
               CPUID, XGETBV            microseconds in a virtual machine, hence only once
               arch_prctl               for AMX: asks Linux to let this process use tiles
               mov [state], eax
               jg go
    done:      ret

Threads that check at the same time store the same answer, in one write, so no lock is needed.
"""

from typing import NamedTuple

from sparsejit.artefact.exported import UNSUPPORTED_CPU, ExportedFunction
from sparsejit.machine.cpuid import HIGHEST_LEAF, questions, saved_state
from sparsejit.x86.assembler import POOL_ALIGNMENT, Assembler, Label
from sparsejit.x86.operands import (
    Literal,
    Register,
    dword,
    r8,
    r9,
    r10,
    r11,
    rax,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
    rsp,
)
from sparsejit.x86.routines import pop, push

SUPPORTED = 1
_REGISTERS = {"eax": rax, "ebx": rbx, "ecx": rcx, "edx": rdx}
# arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA): see runtime/program.py.
_ASK_FOR_TILES = ((rax, 158), (rdi, 0x1023), (rsi, 18))
# Registers that CPUID overwrites, and the registers that hold their values meanwhile.
_KEPT = ((rbx, r11), (rdx, r10), (rcx, r9))


class Entry(NamedTuple):
    """Code for the bytes right before the image, and the offsets in it of the state's addresses.

    Each of these 32-bit fields must hold `state - end of field`.
    """

    code: bytes
    state_fields: tuple[int, ...]


def entry(function: ExportedFunction) -> Entry:
    """Return the code that checks the processor before the image runs, which it precedes.

    Its length is a multiple of 64 bytes.
    """
    asm = Assembler(function.target)
    ask, go, done, image = (asm.label(name) for name in ("ask", "go", "done", "image"))
    asm.emit("mov", dword(rax), Literal(0))
    fields = [asm.position - 4]
    asm.emit("test", dword(rax), dword(rax))
    asm.jump("jle", ask)
    asm.bind(go)
    _run(asm, function, image)
    asm.bind(ask)
    asm.jump("js", done)
    _ask(asm, function.instruction_sets)
    asm.emit("mov", Literal(0), dword(rax))
    fields.append(asm.position - 4)
    asm.emit("test", dword(rax), dword(rax))
    asm.jump("jg", go)
    asm.bind(done)
    asm.emit("ret")
    asm.align(POOL_ALIGNMENT)
    asm.bind(image)
    return Entry(asm.finish().data, tuple(fields))


def _run(asm: Assembler, function: ExportedFunction, image: Label) -> None:
    for register, number in function.fixed:
        asm.emit("mov", register, number)
    if function.returns_status:
        asm.jump("jmp", image)
        return
    asm.emit("sub", rsp, 8)  # the stack is aligned to 16 bytes at a call
    asm.jump("call", image)
    asm.emit("add", rsp, 8)
    asm.emit("xor", dword(rax), dword(rax))
    asm.emit("ret")


def _ask(asm: Assembler, instruction_sets: frozenset[str]) -> None:
    """Set eax to SUPPORTED or UNSUPPORTED_CPU; keep the registers of the image's arguments."""
    lacks, end = asm.label("lacks"), asm.label("end")
    for register, free in _KEPT:
        asm.emit("mov", free, register)
    asm.emit("xor", dword(rax), dword(rax))
    asm.emit("cpuid")
    asm.emit("cmp", dword(rax), HIGHEST_LEAF)
    asm.jump("jb", lacks)
    masks = questions(instruction_sets)
    for leaf, subleaf in sorted({(q.leaf, q.subleaf) for q in masks}):
        asm.emit("mov", dword(rax), leaf)
        asm.emit("mov", dword(rcx), subleaf)
        asm.emit("cpuid")
        for question, mask in masks.items():
            if (question.leaf, question.subleaf) == (leaf, subleaf):
                _require(asm, _REGISTERS[question.name], mask, lacks)
        if leaf == 1:  # it has the bit for XGETBV
            asm.emit("xor", dword(rcx), dword(rcx))
            asm.emit("xgetbv")
            _require(asm, rax, saved_state(instruction_sets), lacks)
    if "amx_tile" in instruction_sets:
        _ask_for_tiles(asm, lacks)
    asm.emit("mov", dword(rax), SUPPORTED)
    asm.jump("jmp", end)
    asm.bind(lacks)
    asm.emit("mov", rax, UNSUPPORTED_CPU)
    asm.bind(end)
    for register, free in _KEPT:
        asm.emit("mov", register, free)


def _ask_for_tiles(asm: Assembler, lacks: Label) -> None:
    """Jump to `lacks` where Linux refuses AMX tiles. A system call also writes rcx and r11."""
    kept = (rdi, rsi, r11)
    push(asm, kept)
    for register, number in _ASK_FOR_TILES:
        asm.emit("mov", dword(register), number)
    asm.emit("syscall")
    pop(asm, kept)
    asm.emit("test", rax, rax)
    asm.jump("jnz", lacks)


def _require(asm: Assembler, register: Register, mask: int, lacks: Label) -> None:
    asm.emit("mov", dword(r8), dword(register))
    asm.emit("and", dword(r8), mask)
    asm.emit("cmp", dword(r8), mask)
    asm.jump("jne", lacks)
