"""A model of several parts, with the methods of a compiled model where they apply."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from sparsejit.api.compiled import Loader, PathLike, compiled_anew
from sparsejit.api.models.called import CalledModel, as_arrays
from sparsejit.api.models.parted_file import KIND, PartedSource, parted_to_data, read_parted
from sparsejit.api.models.parts import LeftPart, OwnPart, PartChain
from sparsejit.api.models.variant import sizes_text
from sparsejit.api.options import ModelSettings
from sparsejit.api.reports.advisor import Advice
from sparsejit.api.reports.parted_report import advice_of_parts, parted_report, parted_statistics
from sparsejit.api.reports.report import Report
from sparsejit.api.reports.shown import counted
from sparsejit.artefact import sealed
from sparsejit.errors import InvalidInput
from sparsejit.frontends.nesting import Nest
from sparsejit.ir.values import Array


class PartedModel(CalledModel):
    """An ONNX model of which ONNX Runtime runs the nodes that are not compiled. Thread-safe.

    It has the batch of the example, since nodes of ONNX Runtime may mix samples. Call it as a
    `CompiledModel`: it has `run`, `bind`, `explain`, `advise`, `stats` and `save`, and can be
    pickled and copied in the same way. It is no single function, so it has no `pointer` and cannot
    be exported.

    Attributes:
        parts: the parts of sparsejit and of ONNX Runtime, in the order in which they run
        stats: sums over the compiled parts, and the number of nodes that ONNX Runtime runs
    """

    batch_is_free = False
    tile = None

    def __init__(
        self,
        chains: Sequence[PartChain],
        input_nest: Nest,
        output_nest: Nest,
        settings: ModelSettings,
        compile_for: Callable[[Sequence[Any]], PartChain] | None = None,
    ) -> None:
        super().__init__(input_nest, output_nest)
        self._first, self._settings = chains[0], settings
        self._chains = {tuple(each.shape for each in chain.inputs): chain for chain in chains}
        self._compile_for = compile_for
        self._compiling = threading.Lock()

    @property
    def title(self) -> str:
        """Counts of layers, weights, kernels and parts, in one line."""
        stats = self.stats
        return (
            f"sparsejit model: {sizes_text(stats)}, a fixed batch, {len(self.parts)} parts, "
            f"{counted(stats['onnxruntime_nodes'], 'node')} in ONNX Runtime"
        )

    @property
    def parts(self) -> tuple[OwnPart | LeftPart, ...]:
        """The parts for the shapes of the example, in the order in which they run."""
        return self._first.parts

    @property
    def stats(self) -> dict[str, Any]:
        """Sums over the compiled parts, and the number of nodes that ONNX Runtime runs."""
        return parted_statistics(self._first)

    @property
    def _input_names(self) -> list[str]:
        return [each.name for each in self._first.inputs]

    def run(self, inputs: Sequence[Any]) -> list[Array]:
        """Return the flat list of outputs, numpy arrays, for a flat list of inputs.

        They have the dtypes of the file. ONNX Runtime decides the sizes of its own outputs.
        """
        arrays = as_arrays(inputs)
        return self._chain_for(arrays).run(arrays)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """Return a function without arguments that computes outputs from the current inputs.

        It holds all arrays. Each value between parts has one buffer, which both parts use in place.
        One thread may call it at a time.

        Args:
            inputs: a flat list of contiguous numpy arrays
            outputs: the same, for the results

        Raises:
            InvalidInput: other arrays, and models whose sizes are known only once ONNX Runtime has
                run
        """
        arrays = as_arrays(inputs)
        return self._chain_for(arrays).bind(arrays, list(outputs))

    def explain(self, *, measure: bool = False) -> Report:
        """Report the parts, the nodes of ONNX Runtime with reasons, and the cost of other layers.

        `measure` runs each part for some tenths of a second, on random inputs.
        """
        return parted_report(self._first, self.title, measure)

    def advise(self) -> Advice:
        """Suggest how to make the compiled parts faster, as `CompiledModel.advise` does."""
        return advice_of_parts(self._first)

    def disassemble(self) -> str:
        """Return the instructions of all native functions."""
        own = (part for part in self.parts if isinstance(part, OwnPart))
        return "\n".join(part.model.disassemble() for part in own)

    def save(self, path: PathLike) -> None:
        """Write all parts, for `sparsejit.load`; parts of ONNX Runtime are written as ONNX.

        Loading needs onnxruntime and onnx. Otherwise it is as `CompiledModel.save`.
        """
        sealed.write(path, *self._saved())

    def export(
        self, path: PathLike, header: PathLike | None = None, *, system: str = "linux"
    ) -> NoReturn:
        """Raise InvalidInput: C code cannot contain the nodes that ONNX Runtime runs.

        Args:
            path: as for `CompiledModel.export`
            header: as for `CompiledModel.export`
            system: as for `CompiledModel.export`

        Raises:
            InvalidInput: always
        """
        left = [node for part in self.parts if isinstance(part, LeftPart) for node in part.left]
        names = ", ".join(dict.fromkeys(f"{node.operator} (node {node.name})" for node in left))
        raise InvalidInput(
            f"{path} would lack the nodes that ONNX Runtime runs: {names}; write these with other "
            "operators and compile without fallback, or save the model and load it in Python"
        )

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return compiled_anew, (*self._saved(),)

    def source(self) -> PartedSource:
        """Return the data from which the model is made."""
        nests = self._input_nest, self._output_nest
        return PartedSource(self._settings, *nests, tuple(self._chains.values()))

    def _saved(self) -> sealed.SealedFile:
        return sealed.SealedFile(KIND, *parted_to_data(self.source()))

    def _chain_for(self, arrays: Sequence[Array]) -> PartChain:
        if len(self._chains) == 1 and self._compile_for is None:
            return self._first
        shapes = tuple(array.shape for array in arrays)
        if shapes not in self._chains and self._compile_for is not None:
            with self._compiling:
                if shapes not in self._chains:  # another thread may have been first
                    self._chains[shapes] = self._compile_for(arrays)
        return self._chains.get(shapes, self._first)


def load_parted(source: PartedSource) -> PartedModel:
    """Return the model of a source."""
    return PartedModel(source.chains, source.input_nest, source.output_nest, source.settings)


LOADER = Loader(read_parted, load_parted)
