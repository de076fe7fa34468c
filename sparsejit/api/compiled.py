"""What all compiled things share: how they show themselves, explain, and leave for C."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sparsejit.api.report import Report
from sparsejit.artefact import sealed
from sparsejit.artefact.export import export
from sparsejit.artefact.exported import ExportedFunction, c_name
from sparsejit.native.copying import SharedCode
from sparsejit.runtime.program import Program
from sparsejit.x86.image import Image

if TYPE_CHECKING:
    from rich.console import RenderableType

PathLike = str | os.PathLike[str]


class Explained(SharedCode):
    """Machine code that says what it is and what it costs."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What it is, in a line."""

    @abstractmethod
    def explain(self, *, measure: bool = False) -> Report:
        """What every layer costs and why; `measure` runs it for about a second."""

    def __repr__(self) -> str:
        return f"<{self.title}>"

    def __rich__(self) -> RenderableType:
        return self.explain().__rich__()

    def _repr_html_(self) -> str:
        return self.explain()._repr_html_()


class Compiled(Explained):
    """Something with weights as machine code. Thread-safe.

    It never changes: a copy is the thing itself. Pickling keeps what `save` keeps, and compiles it
    anew where it is loaded.
    """

    @property
    @abstractmethod
    def program(self) -> Program:
        """The native function that `pointer` is the address of."""

    @abstractmethod
    def _exported(self, name: str) -> ExportedFunction:
        """The function as C calls it. Raises InvalidInput for one on several threads."""

    @abstractmethod
    def _saved(self) -> sealed.SealedFile:
        """All that it is compiled from. Raises InvalidInput for what no file can hold."""

    @property
    def pointer(self) -> int:
        """The address of the native function, valid while this object lives."""
        return self.program.pointer

    @property
    def image(self) -> Image:
        """The code and its literals, position-independent, starting with the function."""
        return self.program.image

    def disassemble(self) -> str:
        """The instructions as emitted, with the literals they read."""
        return "\n".join(self.image.listing())

    def save(self, path: PathLike) -> None:
        """Write weights, graphs and options, for `sparsejit.load` to compile where it runs.

        A target of "native" is that of the machine that loads. A model keeps the sizes that it was
        compiled for by then; no others can be added after loading. No class of yours is kept: what
        returned a dataclass returns a dict after loading, and a named tuple is of a new class.

        Args:
            path: the file to write, usually with the suffix .sjit

        Raises:
            InvalidInput: the file cannot be written
        """
        sealed.write(path, *self._saved())

    def __reduce__(self) -> tuple[Callable[..., Compiled], tuple[Any, ...]]:
        return compiled_anew, (*self._saved(),)

    def export(self, path: PathLike, header: PathLike | None = None) -> None:
        """Write `int NAME_run(...)` for C; NAME is the file's, without its suffix.

        The function gives the same bits as a call, from any number of threads at once. It returns
        0; -1 having done nothing where the processor lacks an instruction set that it uses; a
        positive number where an index was out of range.

        A kernel's is `NAME_run(const float *x, float *y)`. A model's is `NAME_run(inputs, outputs,
        workspace)` for the shapes of the example inputs, with a workspace for each thread. Where
        the batch is free, a last parameter `long samples` says how many there are.

        Args:
            path: an object file (.o) to link, or a shared object (.so), which needs a linker on
                PATH
            header: a C header (.h) with sizes, error codes and the prototype

        Raises:
            InvalidInput: another suffix, a file that cannot be written, or code for several
                threads, whose workers belong to this process
            MissingDependency: there is no linker
        """
        export(self._exported(c_name(path)), path, header)


def compiled_anew(kind: str, header: dict[str, Any], tensors: sealed.Tensors) -> Compiled:
    """What was pickled, for this machine."""
    from sparsejit.api.load import restored  # which knows every kind

    return restored(sealed.SealedFile(kind, header, tensors))
