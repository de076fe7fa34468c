"""Executable memory, never writable and executable at once, and the calls into it.

The only importer of ctypes in the compiler. Code is written into a fresh anonymous mapping,
which then loses write permission as it gains execute permission, for good.
`return_free_memory` is about the heap: it bounds the memory of work that plans many large layers.
"""

import ctypes
import errno
import os
import stat
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from sparsejit.errors import CompileError, InvalidInput
from sparsejit.native.copying import NotCopied, SharedCode
from sparsejit.whole_numbers import round_up

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_PROT_NONE, _PROT_READ, _PROT_WRITE, _PROT_EXEC = 0, 1, 2, 4
_MAP_PRIVATE, _MAP_ANONYMOUS, _MAP_NORESERVE = 0x02, 0x20, 0x4000
_HUGE_PAGE, _MADV_DONTNEED, _MADV_HUGEPAGE = 2 << 20, 4, 14
_WITHIN_REACH = (1 << 31) - (4 << 20)  # bytes: any two addresses are a signed 32-bit offset apart
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Neighbourhood(NotCopied):
    """A reserved address range for images that read each other's literals.

    It takes no memory until an image is placed there. The addresses of a dead image are used
    again. Images hold the range, which is unmapped when the last reference to it is gone.
    """

    def __init__(self) -> None:
        """Reserve the range. Raises CompileError where the system refuses it."""
        flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE
        self.first = _mapped(_WITHIN_REACH, _PROT_NONE, flags)
        self._lock = threading.Lock()
        self._free = [(self.first, _WITHIN_REACH)]  # by address; no two ranges touch
        # Ranges of dead images. A finaliser may run while its thread holds the lock, so it only
        # appends here.
        self._returned: deque[tuple[int, int]] = deque()
        weakref.finalize(self, _libc.munmap, self.first, _WITHIN_REACH).atexit = False

    def take(self, size: int) -> int | None:
        """Return the address of `size` writable bytes, or None where no range is large enough."""
        page = PAGE_BYTES if size < _HUGE_PAGE else _HUGE_PAGE
        with self._lock:
            while self._returned:
                self._free.append(self._returned.popleft())
            self._free = _joined(self._free)
            address = self._lowest(size, page)
        if address is None:
            return None
        if _libc.mprotect(address, size, _PROT_READ | _PROT_WRITE):
            raise _refused("let it be written (mprotect)", size)
        if page == _HUGE_PAGE:
            _libc.madvise(address, size, _MADV_HUGEPAGE)
        return address

    def give_back(self, address: int, size: int) -> None:
        """Free the memory and the addresses of an image that `take` placed."""
        _libc.madvise(address, size, _MADV_DONTNEED)
        _libc.mprotect(address, size, _PROT_NONE)
        self._returned.append((address, size))

    def _lowest(self, size: int, page: int) -> int | None:
        """Take `size` bytes, aligned to `page`, from the first free range that holds them."""
        for number, (first, room) in enumerate(self._free):
            address = round_up(first, page)
            behind = first + room - (address + size)
            if behind >= 0:
                parts = (first, address - first), (address + size, behind)
                self._free[number : number + 1] = [part for part in parts if part[1]]
                return address
        return None


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort free address ranges (address, size) by address, and merge those that touch."""
    joined: list[tuple[int, int]] = []
    for address, size in sorted(ranges):
        if joined and sum(joined[-1]) == address:
            joined[-1] = joined[-1][0], joined[-1][1] + size
        else:
            joined.append((address, size))
    return joined


class ExecutableMemory(SharedCode):
    """An image mapped read-only and executable; unmapped when the object dies.

    `address` is the address of the first byte. Raises CompileError where the system refuses the
    mapping.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        self._fill(len(data), lambda room: room.__setitem__(slice(None), data))

    @classmethod
    def filled(
        cls,
        size: int,
        fill: Callable[[memoryview], object],
        within: Neighbourhood | None = None,
        beside: "ExecutableMemory | None" = None,
    ) -> "ExecutableMemory":
        """Map an image of `size` bytes, which `fill` writes; its exceptions are passed on.

        The image lies `within` a neighbourhood, which must have room for it. It keeps the image
        `beside` it alive, since it reads that.
        """
        memory = cls.__new__(cls)
        memory._within, memory._beside = within, beside
        memory._fill(size, fill)
        return memory

    _within: Neighbourhood | None = None
    _beside: "ExecutableMemory | None" = None

    def _fill(self, size: int, fill: Callable[[memoryview], object]) -> None:
        self.size = round_up(max(size, 1), PAGE_BYTES)
        release: Callable[..., Any] = _libc.munmap
        if self._within is None:
            self.address = _map(self.size)
        else:
            address = self._within.take(self.size)
            if address is None:
                raise CompileError(f"{self.size} bytes of code: the region for nearby code is full")
            self.address, release = address, self._within.give_back
        self._release = weakref.finalize(self, release, self.address, self.size)
        self._release.atexit = False  # a daemon thread may be in it until the very end
        try:
            fill(memoryview((ctypes.c_ubyte * size).from_address(self.address)).cast("B"))
        except BaseException:
            self._release()
            raise
        if _libc.mprotect(self.address, self.size, _PROT_READ | _PROT_EXEC):
            self._release()
            raise _refused("make it executable (mprotect)", self.size)

    def view(self, size: int, address: int | None = None) -> memoryview:
        """Return a read-only view of `size` bytes; the view holds this memory alive.

        It starts at `address`, which may lie in the image beside this one; by default at the first
        byte.
        """
        start = self.address if address is None else address
        held: Any = (ctypes.c_ubyte * size).from_address(start)
        held.memory = self
        return memoryview(held).cast("B").toreadonly()

    def function(
        self,
        arguments: int,
        offset: int = 0,
        *,
        with_status: bool = False,
        keeps_lock: bool = False,
    ) -> Callable[..., Any]:
        """Return the code at `offset` as a ctypes function of `arguments` pointers or integers.

        Integers have 64 bits. The function returns an int `with_status`, else nothing. It holds
        this memory alive. The interpreter lock is released during the call, unless it `keeps_lock`.
        """
        result = ctypes.c_int if with_status else None
        prototypes = ctypes.CFUNCTYPE, ctypes.PYFUNCTYPE
        prototype = prototypes[keeps_lock](result, *[ctypes.c_void_p] * arguments)
        native: Any = prototype(self.address + offset)
        native.memory = self
        return native


def write_perf_map(address: int, code_bytes: int, name: str) -> None:
    """Name a piece of code for Linux's `perf` (/tmp/perf-PID.map: start, size, symbol).

    Another user may have put a file or a link there. Raises InvalidInput unless it is a regular
    file that this user owns, without other links.
    """
    path = f"/tmp/perf-{os.getpid()}.map"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o644)
    except OSError as error:
        raise _not_ours(path, str(error.strerror)) from error
    with os.fdopen(handle, "a") as symbols:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
            raise _not_ours(path, "it is another user's, linked elsewhere, or no regular file")
        symbols.write(f"{address:x} {code_bytes:x} {name}\n")


def _not_ours(path: str, reason: str) -> InvalidInput:
    return InvalidInput(
        f"{path}, where perf looks for names of code, cannot be written: {reason}; remove it, or "
        "set SPARSEJIT_DEBUG to less than 2"
    )


def _map(size: int) -> int:
    """Map fresh memory; from 2 MiB on in huge pages, where the system grants them."""
    if size < _HUGE_PAGE:
        return _mapped(size)
    # A huge page begins at a multiple of its size: the memory before and behind is unmapped.
    whole = _mapped(size + _HUGE_PAGE)
    address = round_up(whole, _HUGE_PAGE)
    for first, end in ((whole, address), (address + size, whole + size + _HUGE_PAGE)):
        if first < end:
            _libc.munmap(first, end - first)
    _libc.madvise(address, size, _MADV_HUGEPAGE)  # a system without huge pages refuses: ignored
    return address


def _mapped(
    size: int,
    protection: int = _PROT_READ | _PROT_WRITE,
    flags: int = _MAP_PRIVATE | _MAP_ANONYMOUS,
) -> int:
    address = _libc.mmap(None, size, protection, flags, -1, 0)
    if address in (None, _MAP_FAILED):
        raise _refused("map it (mmap)", size)
    return int(address)


def _refused(action: str, size: int) -> CompileError:
    code = ctypes.get_errno()
    return CompileError(
        f"{size} bytes of code: the system refused to {action}: "
        f"{errno.errorcode.get(code, code)} {os.strerror(code)}; "
        "free memory, or allow executable mappings for this process"
    )


class BoundCall(NotCopied):
    """Objects that a built-in function keeps alive as its `self`: its definition and its code."""

    instead_of_copying = "pickle the kernel or model, and bind its copy"

    def __init__(self, *held: object) -> None:
        self.held = held


class _MethodDefinition(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


def builtin(name: str, address: int, flags: int, keep: object) -> Callable[..., Any]:
    """Return native code as a built-in function, which holds `keep` alive.

    `flags` are CPython's METH_ constants: how the code takes its arguments.
    """
    definition = _MethodDefinition(name.encode(), address, flags, None)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    held = BoundCall(definition, keep)
    function: Callable[..., Any] = make(ctypes.addressof(definition), held, None)
    return function


def python_function(name: str) -> int:
    """Address of a function of CPython's C API."""
    address = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
    assert address is not None
    return address


def native_field(address: int, size: int) -> int:
    """The unsigned integer of `size` bytes at an address that is known to be readable."""
    return int.from_bytes(ctypes.string_at(address, size), "little")


def return_free_memory() -> None:
    """Return the free pages of the heap to the system (glibc's malloc_trim; elsewhere nothing).

    Blocks under 32 MB that are freed between others stay with the process: planning BERT-base 20
    times with other weights leaves 6.4 GB of these.
    """
    if trim := getattr(_libc, "malloc_trim", None):
        trim(0)
