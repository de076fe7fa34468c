"""Entry points of exported code: each checks the processor once, then does its work.

    NAME_run:  mov eax, [state]         0: not checked yet, 1: supported, -1: unsupported
               test eax, eax
               jle cold
    go:        jump to the image; or call it, and return 0
    cold:      call ask
               test eax, eax
               jg go
               ret                      the state is the error code
    ask:       CPUID, XGETBV            microseconds in a virtual machine, hence only once
               arch_prctl               for AMX: asks Linux to let this process use tiles
               mov [state], eax

Threads that check at the same time store the same answer, in one write, so no lock is needed.

For Windows the work is a System V function that a frame calls. The frame keeps the registers that
callers there expect to be kept, and moves the arguments:

    go:        push rdi;  push rsi;  sub rsp, 168;  xmm6-xmm15 to the stack
               rdi, rsi, rdx, rcx = rcx, rdx, r8, r9
               call work
               everything back;  ret
"""

from functools import partial
from struct import pack

from sparsejit.artefact.exported import (
    UNSUPPORTED_CPU,
    EntryPoint,
    ExportedFunction,
    Frame,
    ObjectCode,
    Symbol,
)
from sparsejit.artefact.object_files import System
from sparsejit.errors import InvalidInput
from sparsejit.machine.cpuid import HIGHEST_LEAF, questions, saved_state
from sparsejit.whole_numbers import round_up
from sparsejit.x86.assembler import POOL_ALIGNMENT, Assembler, Label
from sparsejit.x86.operands import (
    Literal,
    Memory,
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
    xmm,
)
from sparsejit.x86.routines import PAGE, make_room, pop, push

SUPPORTED = 1
_REGISTERS = {"eax": rax, "ebx": rbx, "ecx": rcx, "edx": rdx}
# arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA): see runtime/program.py.
_ASK_FOR_TILES = ((rax, 158), (rdi, 0x1023), (rsi, 18))
# Registers that CPUID overwrites, and the registers that hold their values meanwhile.
_KEPT = ((rbx, r11), (rdx, r10), (rcx, r9))
# Microsoft's convention: arguments, in the order in which they move to System V's registers, places
# for the third and fourth that the caller keeps free, and registers that a function keeps.
_MOVES = ((rdi, rcx), (rsi, rdx), (rdx, r8), (rcx, r9))
_HOMES = ((r8, Memory(rsp, 8)), (r9, Memory(rsp, 16)))
_PUSHED = (rdi, rsi)
_SAVED_VECTORS = range(6, 16)
_VECTOR_BYTES = 16
_FRAME_BYTES = _VECTOR_BYTES * len(_SAVED_VECTORS) + 8  # aligns the stack to 16 bytes at the call
# Operations of Windows' unwind codes.
_PUSH_REGISTER, _ALLOCATE_LARGE, _SAVE_VECTOR = 0, 1, 8
# Stack that `prepare` touches besides frames of kernels, which nest in one another once.
_SMALL_FRAMES = 4 * PAGE
_NESTED = 2


def entry_points(function: ExportedFunction) -> tuple[EntryPoint, ...]:
    """Return all functions of C, the one that computes first."""
    workspace = "void *workspace" if function.workspace_bytes else "void"
    run = EntryPoint("run", function.parameters, partial(_run, function))
    prepare = EntryPoint("prepare", workspace, partial(_prepare, function), _ABOUT_PREPARE)
    return (*(function.functions or (run,)), prepare)


_ABOUT_PREPARE = (
    "Optional: touches all pages of code, weights, workspace and stack that a call uses,",
    "so that the first call waits for none.",
)


def object_code(function: ExportedFunction, system: System, digest: str) -> ObjectCode:
    """Return the code of all functions, under their names and under names that end in `digest`.

    Raises InvalidInput for AMX tiles on a system that has no call which asks for them.
    """
    if "amx_tile" in function.instruction_sets and not system.asks_for_tiles:
        raise InvalidInput(
            f"this code uses AMX tiles, for which it asks Linux; code for {system.name} cannot "
            "ask: compile with target='avx512' to export it"
        )
    if function.by_host and system.is_microsoft:
        raise InvalidInput(
            f"code for {system.name} cannot take a table of threads; compile with threads=1"
        )
    return _EntryCode(function, system).emit(digest)


class _EntryCode:
    """Appends the entry points behind the image."""

    def __init__(self, function: ExportedFunction, system: System) -> None:
        self.function, self.system = function, system
        self.asm = Assembler(function.target)
        self.first = round_up(function.image.size, POOL_ALIGNMENT)
        self.image = Label("image", -self.first)
        self.ask = self.asm.label("ask")
        self.fields: list[int] = []
        self.frames: list[Frame] = []

    def emit(self, digest: str) -> ObjectCode:
        name, image = self.function.name, self.function.image
        symbols = [Symbol(f"{name}_code", 0, image.size, is_global=False)]
        for point in entry_points(self.function):
            self.asm.align(_VECTOR_BYTES)
            start = self.asm.position
            self._entry(point)
            place = self.first + start, self.asm.position - start
            symbols += [Symbol(f"{name}_{point.name}{end}", *place) for end in ("", f"_{digest}")]
        self.asm.bind(self.ask)
        self._ask()
        code = bytearray(self.asm.finish().data)
        for field in self.fields:
            code[field : field + 4] = bytes(4)
        text = image.data.ljust(self.first, b"\0") + code
        fields = tuple(self.first + field for field in self.fields)
        return ObjectCode(text, tuple(symbols), f"{name}_state", fields, tuple(self.frames))

    def _entry(self, point: EntryPoint) -> None:
        asm = self.asm
        go, cold = asm.label(f"{point.name} goes"), asm.label(f"{point.name} asks")
        asm.emit("mov", dword(rax), Literal(0))
        self.fields.append(asm.position - 4)
        asm.emit("test", dword(rax), dword(rax))
        asm.jump("jle", cold)
        asm.bind(go)
        homes = _HOMES if self.system.is_microsoft else ()
        if self.system.is_microsoft:
            work = asm.label(f"{point.name} works")
            self._frame(work)
            asm.bind(work)
        point.emit(asm, self.image)
        asm.bind(cold)
        kept = (r8,) if self.function.by_host else ()  # an argument that `ask` overwrites
        push(asm, kept)
        for register, home in homes:
            asm.emit("mov", home, register)
        asm.jump("call", self.ask)
        for register, home in homes:
            asm.emit("mov", register, home)
        pop(asm, kept)
        asm.emit("test", dword(rax), dword(rax))
        asm.jump("jg", go)
        asm.emit("ret")

    def _frame(self, work: Label) -> None:
        """Append the frame of Windows around a call of `work`."""
        asm, start = self.asm, self.asm.position
        slots = [(xmm(n), Memory(rsp, _VECTOR_BYTES * k)) for k, n in enumerate(_SAVED_VECTORS)]
        codes: list[bytes] = []

        def saved(operation: int, number: int, *after: int) -> None:
            packed = pack("<BB", asm.position - start, number << 4 | operation)
            codes.insert(0, packed + b"".join(pack("<H", each) for each in after))

        for register in _PUSHED:
            push(asm, (register,))
            saved(_PUSH_REGISTER, int(register.number))
        asm.emit("sub", rsp, _FRAME_BYTES)
        saved(_ALLOCATE_LARGE, 0, _FRAME_BYTES // 8)
        for place, (register, slot) in enumerate(slots):
            asm.emit("vmovups", slot, register)
            saved(_SAVE_VECTOR, int(register.number), place)
        prologue = asm.position - start
        for register, given in _MOVES:
            asm.emit("mov", register, given)
        asm.jump("call", work)
        for register, slot in slots:
            asm.emit("vmovups", register, slot)
        asm.emit("add", rsp, _FRAME_BYTES)
        pop(asm, _PUSHED)
        asm.emit("ret")
        first, end = self.first + start, self.first + asm.position
        self.frames.append(Frame(first, end, prologue, b"".join(codes)))

    def _ask(self) -> None:
        """Return eax = the state; ask the processor if it is 0. Keeps the registers of arguments.
        """
        asm = self.asm
        known = asm.label("known")
        asm.emit("test", dword(rax), dword(rax))
        asm.jump("js", known)
        _ask(asm, self.function.instruction_sets, self.system.saves_on_demand)
        asm.emit("mov", Literal(0), dword(rax))
        self.fields.append(asm.position - 4)
        asm.bind(known)
        asm.emit("ret")


def _run(function: ExportedFunction, asm: Assembler, image: Label) -> None:
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


def _prepare(function: ExportedFunction, asm: Assembler, image: Label) -> None:
    """Read a word of each page of the text, and write a word of each page of workspace and stack.
    """
    again, more, end = asm.label("next page"), asm.label("next page of workspace"), asm.label("end")
    asm.address(rax, image)
    asm.address(rdx, end)
    asm.emit("and", rax, -PAGE)
    asm.bind(again)
    asm.emit("mov", dword(rcx), Memory(rax))
    asm.emit("add", rax, PAGE)
    asm.emit("cmp", rax, rdx)
    asm.jump("jb", again)
    asm.emit("xor", dword(rcx), dword(rcx))
    if function.workspace_bytes:
        asm.emit("lea", rdx, Memory(rdi, function.workspace_bytes))
        asm.bind(more)
        asm.emit("mov", Memory(rdi), dword(rcx))
        asm.emit("add", rdi, PAGE)
        asm.emit("cmp", rdi, rdx)
        asm.jump("jb", more)
        asm.emit("mov", Memory(rdx, -4), dword(rcx))
    asm.emit("mov", rdx, rsp)
    make_room(asm, _NESTED * function.image.counts.get("frame_bytes", 0) + _SMALL_FRAMES)
    asm.emit("mov", rsp, rdx)
    asm.emit("xor", dword(rax), dword(rax))
    asm.emit("ret")
    asm.bind(end)


def _ask(asm: Assembler, instruction_sets: frozenset[str], saves_on_demand: bool) -> None:
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
            state = saved_state(frozenset() if saves_on_demand else instruction_sets)
            _require(asm, rax, state, lacks)
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
