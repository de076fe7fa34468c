"""A session with the methods of ONNX Runtime's, which runs compiled code."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.api.models.parted_model import PartedModel
from sparsejit.errors import MissingDependency, SparseJitError
from sparsejit.ir.values import Array
from sparsejit.onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    OnnxRuntimeError,
    own_errors,
)
from sparsejit.onnxruntime.code_by_sizes import CodeBySizes
from sparsejit.onnxruntime.declared import Declared, GivenFile, NodeArg
from sparsejit.onnxruntime.settings import RunOptions, SessionOptions, is_of_runtime
from sparsejit.onnxruntime.values import IOBinding, OrtValue, array_of, type_of_array

PROVIDERS = ("CPUExecutionProvider",)
_MOST_SEEN = 4096  # sets of shapes that are known to fit
_FOREIGN = np.dtype(np.float64)  # code computes in float32
_KINDS = "biufU"  # of dtypes that code takes, strings among them


class InferenceSession:
    """A model in compiled code, with the interface of ONNX Runtime's session. Thread-safe.

    Code is made when a call first has certain sizes, and the time is logged. Where a node cannot be
    compiled, ONNX Runtime runs it, or all of them, and a warning says so once.
    """

    _code: CodeBySizes
    _places: dict[str, int]
    _dtypes: list[tuple[str, np.dtype[Any] | None]]

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        """Read a model.

        Args:
            path_or_bytes: the path of a file, or its bytes
            sess_options: options, of this package or of ONNX Runtime's
            providers: names of devices; all run on the processor
            provider_options: accepted, without effect
            **kwargs: accepted, without effect

        Raises:
            NoSuchFile: the file does not exist
            InvalidProtobuf: the bytes are no model
            InvalidGraph: the model is not valid
        """
        self._options = SessionOptions() if sess_options is None else sess_options
        self._file = GivenFile(path_or_bytes)
        self._model_path = self._file.path
        self.set_providers(providers)
        self._session: Any = None  # ONNX Runtime's, where it has all nodes from the start
        self._declared: Declared | None = None
        self._read()
        if self._session is None:
            assert self._declared is not None
            self._code = CodeBySizes(self._file, self._declared, self._options)
            self._places = {each.name: n for n, each in enumerate(self._declared.outputs)}
            self._dtypes = [(each.name, each.dtype) for each in self._declared.inputs]
            self._seen: set[tuple[Any, ...]] = set()

    def _read(self) -> None:
        """Read inputs, outputs and metadata, or open a session of ONNX Runtime in their place.

        That is for models that only it reads or runs as the options ask for.
        """
        if not self._file.is_onnx or _needs_runtime(self._options):
            self._session = self._file.session(self._options)
            return
        if self._options.optimized_model_filepath:
            with suppress(MissingDependency):
                self._file.session(self._options)  # writes the file
        try:
            self._declared = self._file.declared()
        except (MissingDependency, InvalidGraph, InvalidProtobuf) as refusal:
            try:
                self._session = self._file.session(self._options)
            except MissingDependency:
                raise refusal from None
            return
        outputs = [each for each in self._declared.outputs if not each.of_dicts]
        kinds = [each.dtype for each in (*self._declared.inputs, *outputs)]
        if any(kind is None or kind.kind not in _KINDS or kind == _FOREIGN for kind in kinds):
            try:
                self._session = self._file.session(self._options)
            except MissingDependency:
                if any(kind is None or kind.kind not in _KINDS for kind in kinds):
                    raise

    @property
    def compiled(self) -> list[CompiledModel | PartedModel]:
        """The models that have been compiled, each with `explain()`, `advise()` and `save()`."""
        return [] if self._session is not None else list(self._code.made)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Return the outputs of these names, or all.

        Args:
            output_names: names of outputs; None or [] for all
            input_feed: arrays by the names of the inputs
            run_options: accepted, without effect

        Raises:
            ValueError: an input is missing
            InvalidArgument: a name, dtype or shape is not the model's
        """
        if self._session is not None:
            return self._run_left(output_names, input_feed)
        if len(input_feed) > len(self._dtypes) and self._overrides(input_feed):
            return self._run_left(output_names, input_feed)
        places = None
        if output_names:
            places = [self._place(name) for name in output_names]
        arrays = self._arrays(input_feed)
        try:
            results = self._code.run(arrays)
        except OnnxRuntimeError:
            raise
        except SparseJitError as error:
            raise InvalidArgument.saying(error) from error
        return results if places is None else [results[place] for place in places]

    def _run_left(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]
    ) -> list[Any]:
        """Run all nodes in ONNX Runtime."""
        session = self._session or self._code.session()
        feeds = {name: array_of(value) for name, value in input_feed.items()}
        with own_errors():
            return list(session.run(output_names or None, feeds))

    def _overrides(self, input_feed: Mapping[str, Any]) -> bool:
        """Whether a call with more arrays than inputs replaces values of the file: True.

        Raises InvalidArgument for unknown names.
        """
        assert self._declared is not None
        known = {name for name, _ in self._dtypes}
        held = {each.name for each in self._declared.overridable}
        for name in input_feed:
            if name not in known | held:
                raise InvalidArgument.saying(f"Invalid input name: {name}")
        return True

    def _place(self, name: str) -> int:
        place = self._places.get(name)
        if place is None:
            raise InvalidArgument.saying(f"Invalid output name:{name}")
        return place

    def _arrays(self, input_feed: Mapping[str, Any]) -> list[Array]:
        """Return the arrays in the order of the inputs. Raises the errors of `run`."""
        try:
            values = [input_feed[name] for name, _ in self._dtypes]
        except KeyError:
            known = {name for name, _ in self._dtypes}
            missing = [name for name in known if name not in input_feed]
            raise ValueError(
                f"Required inputs ({missing}) are missing from input feed ({list(input_feed)})."
            ) from None
        arrays = [
            x if type(x) is np.ndarray else _as_array(x, dtype)
            for x, (_, dtype) in zip(values, self._dtypes, strict=True)
        ]
        shapes = tuple([array.shape for array in arrays])
        for array, (_, dtype) in zip(arrays, self._dtypes, strict=True):
            if array.dtype is not dtype and not _is_of(array.dtype, dtype):
                _refuse_dtype(array, dtype)
        if shapes not in self._seen:
            self._check_shapes(arrays)
            if len(self._seen) > _MOST_SEEN:
                self._seen.clear()
            self._seen.add(shapes)
        return arrays

    def _check_shapes(self, arrays: Sequence[Array]) -> None:
        assert self._declared is not None
        for each, array in zip(self._declared.inputs, arrays, strict=True):
            if each.name not in self._declared.ranked:
                continue
            if array.ndim != len(each.shape):
                raise InvalidArgument.saying(
                    f"Invalid rank for input: {each.name} Got: {array.ndim} Expected: "
                    f"{len(each.shape)} Please fix either the inputs/outputs or the model."
                )
            wrong = [
                f" index: {axis} Got: {found} Expected: {size}"
                for axis, (found, size) in enumerate(zip(array.shape, each.shape, strict=True))
                if isinstance(size, int) and found != size
            ]
            if wrong:
                lines = "\n".join(wrong)
                raise InvalidArgument.saying(
                    f"Got invalid dimensions for input: {each.name} for the following indices\n"
                    f"{lines}\n Please fix either the inputs/outputs or the model."
                )

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run the model in a thread of its own, and call back with outputs, data and an error.

        Args:
            output_names: as for `run`
            input_feed: as for `run`
            callback: gets the outputs, `user_data`, and the text of an error or ""
            user_data: handed to the callback
            run_options: as for `run`
        """

        def work() -> None:
            results, error = list[Any](), ""
            try:
                results = self.run(output_names, input_feed, run_options)
            except Exception as failure:  # the callback gets it
                error = str(failure)
            callback(results, user_data, error)

        threading.Thread(target=work).start()

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Return the outputs as values.

        Args:
            output_names: as for `run`
            input_dict_ort_values: values by the names of the inputs
            run_options: as for `run`
        """
        return [OrtValue(each) for each in self.run(output_names, input_dict_ort_values)]

    def io_binding(self) -> IOBinding:
        """Return an object that binds inputs and outputs."""
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run the model with bound inputs and outputs.

        Args:
            iobinding: what `io_binding` returned
            run_options: as for `run`
        """
        try:
            iobinding.take(self.run(iobinding.names, iobinding.feeds, run_options))
        except ValueError as error:
            raise RuntimeError(f"Error in execution: {error}") from error

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs that a call gives."""
        return self._session.get_inputs() if self._declared is None else self._declared.inputs

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs."""
        return self._session.get_outputs() if self._declared is None else self._declared.outputs

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the inputs with a value in the file; ONNX Runtime runs calls that give one."""
        if self._declared is None:
            return list(self._session.get_overridable_initializers())
        return self._declared.overridable

    def get_modelmeta(self) -> Any:
        """Return the descriptions in the file."""
        return self._session.get_modelmeta() if self._declared is None else self._declared.about

    def get_session_options(self) -> SessionOptions:
        """Return the options of the session."""
        return self._options

    def get_providers(self) -> list[str]:
        """Return the provider of the processor."""
        return list(PROVIDERS)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return no options for each provider."""
        return {name: {} for name in PROVIDERS}

    def set_providers(
        self,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Warn of providers other than the processor's.

        Args:
            providers: names, or pairs of a name and options
            provider_options: accepted, without effect
        """
        for each in providers or ():
            name = each if isinstance(each, str) else each[0]
            if name not in PROVIDERS:
                warnings.warn(
                    f"Specified provider '{name}' is not in available provider names."
                    f"Available providers: '{', '.join(PROVIDERS)}'",
                    stacklevel=3,
                )

    def disable_fallback(self) -> None:
        """Do nothing: there is one provider."""

    def enable_fallback(self) -> None:
        """Do nothing: there is one provider."""

    def end_profiling(self) -> str:
        """Return the file of ONNX Runtime's profile; "" without a profile."""
        return "" if self._session is None else str(self._session.end_profiling())


def _needs_runtime(options: Any) -> bool:
    if is_of_runtime(options):
        return bool(options.enable_profiling)
    return bool(options.needs_runtime)


def _as_array(value: Any, dtype: np.dtype[Any] | None) -> Array:
    """Return a value or a list as an array. Raises RuntimeError for other objects."""
    found = array_of(value)
    if isinstance(found, np.ndarray):
        return found
    if isinstance(found, list | tuple):
        with suppress(ValueError, TypeError, OverflowError):
            return np.array(found, dtype)
        raise Fail.saying("a list has elements that are no numbers")
    raise RuntimeError(f"Unable to handle object of type {type(value)}")


def _is_of(found: np.dtype[Any], wanted: np.dtype[Any] | None) -> bool:
    """Whether arrays of a dtype are taken for another: strings are of any length, or objects."""
    if wanted is not None and wanted.kind == "U":
        return found.kind in "OU"
    return found == wanted


def _refuse_dtype(array: Array, dtype: np.dtype[Any] | None) -> None:
    expected = "" if dtype is None else type_of_array(np.empty(0, dtype))
    raise InvalidArgument.saying(
        f"Unexpected input data type. Actual: ({type_of_array(array)}) , expected: ({expected})"
    )
