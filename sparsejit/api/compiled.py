"""Base classes of compiled objects: display, explanation, saving, and export to C."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from sparsejit.api.reports.report import Report
from sparsejit.artefact import sealed
from sparsejit.artefact.export import export
from sparsejit.artefact.exported import ExportedFunction, c_name
from sparsejit.native.copying import SharedCode
from sparsejit.runtime.program import Program
from sparsejit.x86.image import Image

if TYPE_CHECKING:
    from rich.console import RenderableType

PathLike = str | os.PathLike[str]


class Loader(NamedTuple):
    """The functions that turn one kind of file into an object.

    `read` turns header and tensors into a source; `compile` makes the object for this machine. Both
    raise DamagedFile, without the file's name: `read` for contents that were never written,
    `compile` where no code can be made for them.
    """

    read: Callable[[dict[str, Any], sealed.Tensors], Any]
    compile: Callable[[Any], Any]


# The module of each kind of file, whose `LOADER` compiles it; a file's module is imported when the
# file is loaded.
LOADER_MODULES = {
    "estimator": "sparsejit.estimators.compiled_estimator",
    "kernel": "sparsejit.api.kernels.compile_layer",
    "model": "sparsejit.api.models.compiled_model",
    "model in parts": "sparsejit.api.models.parted_model",
    "scales": "sparsejit.api.quantising.scales",
}


class Explained(SharedCode):
    """Machine code with a title and a report."""

    @property
    @abstractmethod
    def title(self) -> str:
        """A description in one line."""

    @abstractmethod
    def explain(self, *, measure: bool = False) -> Report:
        """Report the cost of every layer and why; `measure` runs the code for about a second."""

    def __repr__(self) -> str:
        return f"<{self.title}>"

    def __rich__(self) -> RenderableType:
        return self.explain().__rich__()

    def _repr_html_(self) -> str:
        return self.explain()._repr_html_()


class Compiled(Explained):
    """A kernel, model or estimator as machine code with its weights. Thread-safe.

    It never changes: a copy is the object itself. A pickle has the contents of a file of `save`,
    and is compiled again where it is loaded.
    """

    @property
    @abstractmethod
    def program(self) -> Program:
        """The native function; `pointer` is its address."""

    @abstractmethod
    def _exported(self, name: str) -> ExportedFunction:
        """Return the function for C. Raises InvalidInput for one on several threads."""

    @abstractmethod
    def _saved(self) -> sealed.SealedFile:
        """Return the data to compile it from. Raises InvalidInput if no file can hold them."""

    @property
    def pointer(self) -> int:
        """The address of the native function, valid while this object lives."""
        return self.program.pointer

    @property
    def image(self) -> Image:
        """The code and its literals, position-independent, starting with the function."""
        return self.program.image

    def disassemble(self) -> str:
        """Return the instructions as emitted, with the literals they read."""
        return "\n".join(self.image.listing())

    def save(self, path: PathLike) -> None:
        """Write weights, graphs and options, for `sparsejit.load` to compile where it runs.

        A target of "native" becomes the machine that loads the file. A model keeps the sizes that
        it has been compiled for so far, its named sizes, and the rules by which it is compiled for
        others after loading; for these it may be read at a few more lengths. Your own classes are
        not kept: a dataclass that the model returns becomes a dict, and a named tuple has a new
        class.

        Args:
            path: the file to write, usually with the suffix .sjit

        Raises:
            InvalidInput: the file cannot be written
        """
        sealed.write(path, *self._saved())

    def __reduce__(self) -> tuple[Callable[..., Compiled], tuple[Any, ...]]:
        return compiled_anew, (*self._saved(),)

    def export(
        self, path: PathLike, header: PathLike | None = None, *, system: str = "linux"
    ) -> None:
        """Write `int NAME_run(...)` for C; NAME is the name of the file, without its suffix.

        The function computes the same bits as a call, from any number of threads at once. It
        returns 0; or -1, without an effect, where the processor lacks an instruction set that it
        uses; or a positive number where an index was out of range.

        For a kernel it is `NAME_run(const float *x, float *y)`, for a model `NAME_run(inputs,
        outputs, workspace)` for the shapes of the example inputs, with a workspace for each thread.
        Where the batch is free, a last parameter `ptrdiff_t samples` is its length. A model with
        states has `NAME_step(inputs, outputs, state, workspace)` for one sample instead, and
        `NAME_state_init(state)`. A model for several threads takes a table with which the host
        starts threads and waits for them, as its last argument.
        `NAME_prepare` touches all memory that a call needs, so that the first call waits for none.

        Args:
            path: an object file to link, .o for Linux and macOS, .obj for Windows; or a shared
                object (.so) for Linux, which needs a linker on PATH
            header: a C header (.h) with sizes, error codes, the prototypes, and a hash that it has
                in common with the file of this export
            system: "linux", "windows" or "macos", on x86-64 processors

        Raises:
            InvalidInput: another suffix or system, a file that cannot be written, AMX tiles for
                another system than Linux, a kernel for several threads, whose workers belong to
                this process, or a model for several on Windows
            MissingDependency: there is no linker
        """
        export(self._exported(c_name(path)), path, header, system)


def compiled_anew(kind: str, header: dict[str, Any], tensors: sealed.Tensors) -> Any:
    """Compile a saved or pickled object for this machine.

    Raises DamagedFile, without the file's name.
    """
    loader: Loader = import_module(LOADER_MODULES[kind]).LOADER
    return loader.compile(loader.read(header, tensors))
