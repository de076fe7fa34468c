"""The code of one model for each set of sizes that calls have.

The first set of sizes has code for these sizes alone. Where the file leaves sizes open, code for
the second set reads its weights from memory, and further sets need little more. Whole numbers that
decide the graph, such as a sample rate, are constants of the code. Nodes that cannot be compiled
run in ONNX Runtime, or all nodes do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.api.models.parted_model import PartedModel
from sparsejit.api.models.parts import LeftPart
from sparsejit.compiling import compile_model
from sparsejit.errors import InvalidInput, MissingDependency, SparseJitError
from sparsejit.frontends.nesting import has_maps, with_maps
from sparsejit.ir.values import Array
from sparsejit.onnxruntime.capi.onnxruntime_pybind11_state import own_errors, refused
from sparsejit.onnxruntime.declared import Declared, GivenFile
from sparsejit.onnxruntime.settings import say, threads_of, uses_before_compiling
from sparsejit.planner.split import AUTO, parse_threads

Key = tuple[Any, ...]
Engine = Callable[[Sequence[Array]], list[Any]]
_MOST_SETS = 64  # of sizes; the code of the set that was used least recently is dropped
_MOST_VALUES = 8  # of constants; then their inputs are left to ONNX Runtime
_FEW = 8  # elements of an input that may be a constant
_SLOW_SECONDS = 1.0  # to compile; more is a warning
_MOST_COUNTED = 4096
# Calls on one thread that take longer, of no more kernels, may have several threads. The time to
# plan threads grows with the square of the kernels.
_LONG_SECONDS, _MOST_KERNELS = 1e-3, 250


class CodeBySizes:
    """Runs a model, and compiles it for sizes that it has not met. Thread-safe.

    `made` has the compiled models, for `explain()` and the like.
    """

    def __init__(self, file: GivenFile, declared: Declared, options: Any) -> None:
        self._file, self._declared, self._options = file, declared, options
        self._threads = threads_of(options)
        self._waits = uses_before_compiling(options)
        self._uses: dict[Key, int] = {}
        self._engines: OrderedDict[Key, Engine] = OrderedDict()
        self._frozen: tuple[int, ...] = ()  # inputs that are constants
        self._whole: OrderedDict[Key, _WholeModels] = OrderedDict()
        self._compiling = threading.RLock()
        self._session: Any = None
        self._compiles_whole = self._compiles_parts = True
        self._has_warned = False
        self.made: list[CompiledModel | PartedModel] = []

    def run(self, arrays: Sequence[Array]) -> list[Any]:
        """Return the outputs for arrays in the order of the inputs."""
        key = self._key(arrays)
        engine = self._engines.get(key)
        if engine is None:
            return self._first_run(key, arrays)
        with suppress(KeyError):  # another thread may have dropped it
            self._engines.move_to_end(key)
        return engine(arrays)

    def run_by_runtime(self, arrays: Sequence[Array]) -> list[Any]:
        """Return ONNX Runtime's outputs. Raises MissingDependency without the package."""
        names = (each.name for each in self._declared.inputs)
        feeds = dict(zip(names, arrays, strict=True))
        with own_errors():
            return list(self.session().run(None, feeds))

    def session(self) -> Any:
        """Return the session of ONNX Runtime, which is opened when it is first needed."""
        with self._compiling:
            if self._session is None:
                self._session = self._file.session(self._options)
            return self._session

    def _key(self, arrays: Sequence[Array]) -> Key:
        shapes = tuple([array.shape for array in arrays])
        return shapes if not self._frozen else (*shapes, *self._values(arrays))

    def _values(self, arrays: Sequence[Array]) -> list[bytes]:
        return [arrays[place].tobytes() for place in self._frozen]

    def _first_run(self, key: Key, arrays: Sequence[Array]) -> list[Any]:
        if self._runs_first(key):
            with suppress(MissingDependency):
                return self.run_by_runtime(arrays)
        with self._compiling:
            engine = self._engines.get(self._key(arrays))  # another thread may have been first
            if engine is not None:
                return engine(arrays)
            begin = time.perf_counter()
            engine, results, how = self._compiled(arrays)
            self._engines[self._key(arrays)] = engine
            while len(self._engines) > _MOST_SETS:
                self._engines.popitem(last=False)
        if how:
            self._say_time(arrays, time.perf_counter() - begin, how)
        return results

    def _runs_first(self, key: Key) -> bool:
        """Whether ONNX Runtime runs this call, its sizes being used too seldom to compile."""
        if not self._waits:
            return False
        if len(self._uses) > _MOST_COUNTED:
            self._uses.clear()
        self._uses[key] = self._uses.get(key, 0) + 1
        return self._uses[key] <= self._waits

    def _compiled(self, arrays: Sequence[Array]) -> tuple[Engine, list[Any], str]:
        """Return code for these sizes, the outputs, and a word for the log, "" without new code.

        Ways that have failed before are not tried again. A failing way counts only where the next
        one runs the call: the call itself may be wrong.
        """
        reason: Exception | None = None
        if any(0 in array.shape for array in arrays):
            with suppress(MissingDependency):
                return self.run_by_runtime, self.run_by_runtime(arrays), ""
        if self._compiles_whole:
            try:
                return self._by_whole_model(arrays)
            except Exception as error:  # ONNX Runtime decides whether the call is at fault
                reason = error
        if self._compiles_parts:
            try:
                return self._in_parts(arrays)
            except Exception as error:
                reason = reason or error
        return self._left_whole(arrays, reason)

    def _by_whole_model(self, arrays: Sequence[Array]) -> tuple[Engine, list[Any], str]:
        try:
            return self._with_constants(arrays)
        except Exception:
            numbers = self._small_numbers()
            if self._frozen or self._whole or not numbers:
                raise
            self._frozen = numbers
            try:
                return self._with_constants(arrays)
            except Exception:
                self._frozen = ()
                raise

    def _with_constants(self, arrays: Sequence[Array]) -> tuple[Engine, list[Any], str]:
        values = tuple(self._values(arrays))
        models = self._whole.get(values)
        if models is None:
            if len(self._whole) >= _MOST_VALUES:
                self._compiles_whole, self._frozen = False, ()
                self._engines.clear()
                raise InvalidInput("values of whole numbers decide the graph, and change too often")
            names = [self._declared.inputs[place].name for place in self._frozen]
            given = (arrays[place] for place in self._frozen)
            constants = dict(zip(names, (each.copy() for each in given), strict=True))
            models = _WholeModels(self._file, self._declared, constants, self._threads)
        places = [n for n in range(len(arrays)) if n not in self._frozen]
        leaves = [arrays[place] for place in places]
        model, is_new, results = models.run(leaves)
        self._whole[values] = models
        if is_new and model not in self.made:
            self.made.append(model)
        engine = _engine_of(model) if not self._frozen else _given_some(_engine_of(model), places)
        return engine, results, "compiled" if is_new else ""

    def _small_numbers(self) -> tuple[int, ...]:
        """Return the places of inputs with few integers or booleans and with a fixed shape."""
        found = []
        for place, each in enumerate(self._declared.inputs):
            fixed = [size for size in each.shape if isinstance(size, int)]
            is_small = len(fixed) == len(each.shape) and np.prod(fixed) <= _FEW
            if is_small and each.dtype is not None and each.dtype.kind in "iub":
                found.append(place)
        return tuple(found)

    def _in_parts(self, arrays: Sequence[Array]) -> tuple[Engine, list[Any], str]:
        model = compile_model(
            self._file.model,
            tuple(arrays),
            free_batch=False,
            fallback="onnxruntime",
            threads=self._threads,
        )
        results = model.run(arrays)
        self._compiles_whole = self._compiles_whole and bool(self._whole)
        parts = (part for part in model.parts if isinstance(part, LeftPart))
        left = [node for part in parts for node in part.left]
        if left:
            self._warn(f"leaves {len(left)} nodes to ONNX Runtime, the first is {left[0]}")
        self.made.append(model)
        return model.run, results, "compiled in parts"

    def _left_whole(
        self, arrays: Sequence[Array], reason: Exception | None
    ) -> tuple[Engine, list[Any], str]:
        """Leave all nodes to ONNX Runtime. Raises NotImplemented without the package."""
        try:
            results = self.run_by_runtime(arrays)
        except MissingDependency as error:
            raise refused(f"{reason}; {error}") from reason
        self._warn(f"is left to ONNX Runtime: {reason}")
        if not self._engines:
            self._compiles_whole = self._compiles_parts = False
        return self.run_by_runtime, results, ""

    def _warn(self, what: str) -> None:
        """Log a warning about ONNX Runtime, once a session."""
        if self._has_warned:
            return
        self._has_warned = True
        say(self._options, logging.WARNING, f"{self._file.title} {what}")

    def _say_time(self, arrays: Sequence[Array], seconds: float, how: str) -> None:
        names = (each.name for each in self._declared.inputs)
        sizes = ", ".join(
            f"{name}={'x'.join(map(str, array.shape)) or 'a number'}"
            for name, array in zip(names, arrays, strict=True)
        )
        level = logging.WARNING if seconds > _SLOW_SECONDS else logging.INFO
        text = f"{self._file.title} was {how} in {seconds:.1f} s for {sizes}"
        say(self._options, level, text)


class _WholeModels:
    """The models that have all nodes, for certain constants.

    The first is for its own sizes, the second for all sizes that have a name; the others are for
    sizes that the second does not take.
    """

    def __init__(
        self,
        file: GivenFile,
        declared: Declared,
        constants: Mapping[str, Array],
        threads: int | str,
    ) -> None:
        self._file, self._constants, self._threads = file, constants, threads
        self._named = {n: axes for n, axes in declared.named.items() if n not in constants}
        self._plain: list[CompiledModel] = []
        self._sized: CompiledModel | None = None
        self._may_be_sized = any(self._named.values())

    def run(self, leaves: Sequence[Array]) -> tuple[CompiledModel, bool, list[Any]]:
        """Return a model for these sizes, whether code was made, and the outputs."""
        shapes = [leaf.shape for leaf in leaves]
        for model in self._plain:
            if _takes(model, shapes):
                return model, False, _engine_of(model)(leaves)
        if self._plain and self._may_be_sized:
            with suppress(SparseJitError):
                return self._run_sized(leaves)
        made = self._compiled(leaves)
        results = _engine_of(made)(leaves)
        self._plain.append(made)
        return made, True, results

    def _run_sized(self, leaves: Sequence[Array]) -> tuple[CompiledModel, bool, list[Any]]:
        if self._sized is None:
            self._may_be_sized = False  # stays if it cannot be compiled
            self._sized = self._compiled(leaves, dynamic_shapes=self._named)
            self._may_be_sized = True
            return self._sized, True, _engine_of(self._sized)(leaves)
        before = self._sized.parts.variants
        results = _engine_of(self._sized)(leaves)
        return self._sized, self._sized.parts.variants != before, results

    def _compiled(self, leaves: Sequence[Array], **sizes: Any) -> CompiledModel:
        """Compile a model; the first one decides whether one thread a core may gain.

        Code for one thread is cached between processes, and planned sooner.
        """
        if self._threads != AUTO:
            return self._made(leaves, self._threads, sizes)
        made = self._made(leaves, 1, sizes)
        self._threads = AUTO if parse_threads(AUTO) > 1 and _may_gain(made, leaves) else 1
        return made if self._threads == 1 else self._made(leaves, self._threads, sizes)

    def _made(
        self, leaves: Sequence[Array], threads: int | str, sizes: Mapping[str, Any]
    ) -> CompiledModel:
        source = self._file.model if sizes else self._file.for_compiling()
        return compile_model(
            source, tuple(leaves), constants=self._constants, threads=threads, **sizes
        )


def _may_gain(model: CompiledModel, leaves: Sequence[Array]) -> bool:
    """Whether threads are worth planning: for calls of some length, of few kernels."""
    if model.stats["kernels"] > _MOST_KERNELS:
        return False
    model.run(leaves)  # brings code and weights into the caches
    begin = time.perf_counter()
    model.run(leaves)
    return time.perf_counter() - begin > _LONG_SECONDS


def _takes(model: CompiledModel, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether the code of a model without named sizes takes inputs of these shapes."""
    variant = model.parts.variants[0]
    if variant.without_batch(shapes) != variant.input_shapes:
        return False
    axes = () if variant.batch_axes is None else variant.batch_axes.inputs
    pairs = zip(shapes, axes, strict=False)
    return len({shape[axis] for shape, axis in pairs if axis is not None}) < 2


def _engine_of(model: CompiledModel) -> Engine:
    """The function of a model's outputs, dicts of a ZipMap among them."""
    nest = model.parts.output_nest
    return (lambda arrays: with_maps(nest, model.run(arrays))) if has_maps(nest) else model.run


def _given_some(run: Engine, places: Sequence[int]) -> Engine:
    def engine(arrays: Sequence[Array]) -> list[Any]:
        return run([arrays[place] for place in places])

    return engine
