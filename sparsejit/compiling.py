"""`sparsejit.compile`: a torch model or a scikit-learn estimator to native code.

    check_model     check that the argument is a model, with a remedy for common other objects
    compile_model   `sparsejit.compile`
    quantise        `sparsejit.quantise`: the dtype of each layer's weights
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from sparsejit.api.compiled import Explained
from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.api.models.compiler import AUTO, ModelCompiler
from sparsejit.api.models.final_graph import Dtypes
from sparsejit.api.models.parted_model import PartedModel
from sparsejit.api.options import ModelSettings
from sparsejit.api.quantising.quantise import BUDGET, Budget, checked_budget
from sparsejit.api.quantising.scales import Scales
from sparsejit.api.quantising.seen_inputs import ExampleCall, calls_of
from sparsejit.api.sizes.named_sizes import (
    DynamicShapes,
    NamedSizes,
    arguments_by_name,
    named_sizes,
    sizes_of_exported,
)
from sparsejit.api.sizes.step_reading import step_size
from sparsejit.errors import InvalidInput, called, check_flags
from sparsejit.estimators.compiled_estimator import (
    CompiledEstimator,
    Estimator,
    compile_estimator,
    is_estimator,
)
from sparsejit.estimators.model_files import is_model_file, read_model_file
from sparsejit.frontends.model_source import is_opened, read_source
from sparsejit.frontends.onnx import is_onnx
from sparsejit.frontends.states import GivenStates
from sparsejit.frontends.torch_export import exported_examples, is_program
from sparsejit.ir.spec import DType
from sparsejit.lowering.context import Progress, progress_function
from sparsejit.machine.target import Target

_WEIGHTS = "give the module with these weights; compile_matrix takes a file with one layer"
# Remedies for a file in place of a model, by its suffix.
_FILES = {
    ".sjit": "use sparsejit.load({path!r})",
    **dict.fromkeys((".pt", ".safetensors"), _WEIGHTS),
}
_MODELS = "give a torch.nn.Module, an .onnx or .pt2 file, or a fitted estimator"


def opened(model: Any, inputs: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """A model and its example inputs, read where the model is a .pt2 file or names a factory.

    Inputs that are given take the place of those that the file has.
    """
    if not is_opened(model):
        return model, inputs, kwargs
    source = read_source(str(model))
    if inputs is None and not kwargs:
        return source.model, source.args, source.kwargs
    return source.model, inputs, kwargs


def check_model(model: Any) -> None:
    """Raise InvalidInput unless `model` is a torch module or program, or an ONNX model."""
    if is_onnx(model) or is_program(model) or _is_module(model):
        return
    if isinstance(model, str | os.PathLike):
        path = os.fspath(model)
        if Path(os.fsdecode(path)).is_dir():
            raise InvalidInput(f"{path} is a folder; {_MODELS}")
        remedy = _FILES.get(Path(os.fsdecode(path)).suffix, _MODELS).format(path=path)
        raise InvalidInput(f"the model is a path, {path!r}; {remedy}")
    if isinstance(model, Explained):
        raise InvalidInput(f"the model is compiled already: {model.title}; call it")
    if isinstance(model, type):
        raise InvalidInput(f"the model is the class {model.__name__}; give an instance of it")
    if isinstance(model, Mapping):
        raise InvalidInput("the model is a dict; give the module, after load_state_dict of it")
    raise InvalidInput(f"the model is a {type(model).__name__}; {_MODELS}")


def _is_module(model: Any) -> bool:
    """Whether it is a module of torch; does not import torch."""
    nn = sys.modules.get("torch.nn")
    return nn is not None and isinstance(model, nn.Module)


_ONE_X = (
    "an estimator takes one X of any length; leave out example_kwargs, dynamic_shapes, "
    "free_shapes, constants, state, step, fallback and "
    "free_batch"
)


@overload
def compile_model(
    model: Estimator,
    example_inputs: Any = None,
    *,
    dtype: Dtypes = "float32",
    target: str | Target = "native",
    threads: int | str = 1,
    tune: bool = False,
    exact: bool = False,
    progress: Progress | None = None,
) -> CompiledEstimator: ...


@overload
def compile_model(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: DynamicShapes | None = None,
    free_batch: bool = True,
    free_shapes: bool = False,
    constants: Mapping[str, Any] | None = None,
    state: GivenStates | None = None,
    step: int | None = None,
    axis: int = -1,
    window: int | None = None,
    fallback: None = None,
    dtype: Dtypes = "float32",
    target: str | Target = "native",
    threads: int | str = 1,
    tune: bool = False,
    exact: bool = False,
    progress: Progress | None = None,
) -> CompiledModel: ...


@overload
def compile_model(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: DynamicShapes | None = None,
    free_batch: bool = True,
    free_shapes: bool = False,
    constants: Mapping[str, Any] | None = None,
    state: GivenStates | None = None,
    step: int | None = None,
    axis: int = -1,
    window: int | None = None,
    fallback: str,
    dtype: Dtypes = "float32",
    target: str | Target = "native",
    threads: int | str = 1,
    tune: bool = False,
    exact: bool = False,
    progress: Progress | None = None,
) -> CompiledModel | PartedModel: ...


@called("compile")
def compile_model(
    model: Any,
    example_inputs: Any = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: DynamicShapes | None = None,
    free_batch: bool = True,
    free_shapes: bool = False,
    constants: Mapping[str, Any] | None = None,
    state: GivenStates | None = None,
    step: int | None = None,
    axis: int = -1,
    window: int | None = None,
    fallback: str | None = None,
    dtype: Dtypes = "float32",
    target: str | Target = "native",
    threads: int | str = 1,
    tune: bool = False,
    exact: bool = False,
    progress: Progress | None = None,
) -> CompiledModel | PartedModel | CompiledEstimator:
    """Compile a whole model to one native function, which computes `model.eval()`.

    Args:
        model: a torch module, a torch.export.ExportedProgram, an ONNX model (the path of an .onnx
            file or a ModelProto), a fitted estimator of scikit-learn, XGBoost, LightGBM or
            CatBoost, or its file (.json, .ubj, .txt, .cbm); or any of them as the command line
            names it, "net.pt2" or "net.py:factory", whose code runs.
        example_inputs: the arguments of a call, a tuple of tensors or arrays. The model is compiled
            for their shapes, and reports are about their batch. Programs and estimators need none,
            ONNX models only for sizes other than the batch that the file leaves open.
        example_kwargs: arguments of a torch model by name.
        dynamic_shapes: the sizes that may change, by argument and axis: {"x": {0: "batch", 1:
            "time"}}. A size is a name, or a torch.export.Dim, which has bounds. A name that begins
            with "batch" is the batch, on any axis; without one, the name of axis 0 of the first
            input is. Another size compiles the model once more, at its first use or by
            `prepare(time=9)`.
        free_batch: without names, whether the batch may have any length, if the model computes its
            samples apart.
        free_shapes: without names, whether other shapes compile the model once more.
        constants: numbers or arrays for inputs of an ONNX model by their names: {"sr": 16000}. The
            compiled model has no such inputs; values that depend on them alone are computed now.
        state: the inputs that take an output of the call before, which a stream carries: a dict
            from inputs to outputs, each a name or a position: {"state": "stateN"}, {1: 1}. A tuple
            is tied to a tuple, tensor by tensor; "state.0" and "1.0" are tensors inside. "auto"
            finds them by the names that exporters write; `explain()` shows what it found. Buffers
            that a torch module changes are states in any case.
        step: the new frames of each call, for a model of whole sequences, of which the example has
            one. The compiled model takes and returns these frames alone, and keeps what it needs of
            those before as states: the left context of convolutions and pooling, states of
            recurrent layers. It is a multiple of the product of strides. Where the model looks
            ahead its results are late, by `delay` frames. The batch is the example's.
        axis: with a step, the axis of time in the first argument, and in others that are as long.
        window: with a step, the number of last frames that causal attention keeps, where the model
            attends to all earlier ones; results differ from the model's from there on. Attention
            that a mask bounds needs none.
        fallback: "onnxruntime" leaves nodes of an ONNX model that cannot be compiled to ONNX
            Runtime. Where there are any, a PartedModel is made, whose batch is the example's.
        dtype: how weights are stored: a name as in `compile_matrix`; a dict from patterns of names
            of layers ("encoder.*") to names of dtypes, where the last pattern that matches counts;
            the Scales that `quantise` returned; or "auto", which chooses as `quantise` does, on the
            example inputs, within 1 % of the largest output. With `exact`, in estimators and in
            parts "auto" stays float32.
        target: as in `compile_matrix`.
        threads: the number of threads that may share a call, or "auto" for one a core.
        tune: as in `compile_matrix`, for every layer.
        exact: as in `compile_matrix`, for every layer. Also keeps one tile, so that a sample has
            the same bits in any batch, and rules out Winograd's algorithm.
        progress: a function that is called at the start of each stage, with its name and the share
            of the work done, 0 to 1.

    Returns:
        A callable with the arguments and results of the model.

    Raises:
        UnsupportedOperator: the model has operators that sparsejit does not know; it lists them;
            or, with a step, one that reads all frames of a sequence
        InvalidInput: an argument has a value that makes no sense
        UnsupportedTarget: this machine cannot run the target
    """
    settings = ModelSettings(target, threads, tune, exact)
    report = progress_function(progress)
    if is_model_file(model):
        model = read_model_file(model)
    model, example_inputs, example_kwargs = opened(model, example_inputs, example_kwargs)
    if is_estimator(model):
        options = example_kwargs, dynamic_shapes, free_shapes, constants, state, fallback
        if any((*options, step is not None, not free_batch)):
            raise InvalidInput(_ONE_X)
        if isinstance(dtype, Scales):
            raise InvalidInput("dtype is Scales, which are for networks; give an estimator a name")
        plain = "float32" if dtype == AUTO else dtype
        return compile_estimator(model, example_inputs, settings, plain, report)
    check_model(model)
    check_flags(free_batch=free_batch, free_shapes=free_shapes)
    _check_constants(constants)
    args, kwargs = _arguments(model, example_inputs, example_kwargs)
    is_whole = step is None  # else the example has the only size
    sizes = _sizes(model, dynamic_shapes, args, kwargs, constants or {}) if is_whole else None
    free = free_batch, free_shapes, sizes, constants or {}
    others = dynamic_shapes, free_shapes, state, fallback
    size = step_size(step, axis, window, *others)
    if dtype in (DType.BFLOAT16.value, DType.FLOAT16.value):
        settings = replace(settings, rounds_x=True)
    compiler = ModelCompiler(model, *free, fallback, dtype, settings, state=state, step=size)
    return compiler.compiled_or_cached(args, kwargs, report)


@called("quantise")
def quantise(
    model: Any,
    data: Iterable[Any],
    *,
    budget: Budget = BUDGET,
    example_inputs: Sequence[Any] | None = None,
    constants: Mapping[str, Any] | None = None,
    target: str | Target = "native",
    threads: int | str = 1,
    progress: Progress | None = None,
) -> Scales:
    """Choose the dtype of each layer's weights, from examples of a trained model's inputs.

    Nothing is trained. A layer becomes int8, bfloat16 or float16 only where that is predicted to be
    faster, and only while the outputs of the compiled code on the data stay within the budget. With
    int8 the range of x is fixed where that costs least error, or measured for each row of x at
    every call, where that is clearly better. It takes as long as compiling some ten times.

    Args:
        model: as for `compile`, without estimators
        data: examples of the model's inputs, some tens: arrays or tensors, tuples of several
            arguments, or dicts of arguments by name
        budget: the error that outputs may have, as a share of the largest one; or a function that
            gets a list of outputs, one for each element of the data, and returns whether they are
            good enough
        example_inputs: a tuple of the arguments of a typical call: times are predicted for their
            shapes; by default the first element of the data, whose batch may differ
        constants: as for `compile`
        target: as for `compile`
        threads: as for `compile`
        progress: as for `compile`

    Returns:
        Scales for `compile(model, ..., dtype=scales)`; `print` shows them.

    Raises:
        UnsupportedOperator: the model has operators that sparsejit does not know; it lists them
        InvalidInput: an argument makes no sense, NaN appears inside the model on the data, or
            outputs of float32 are not good enough for the budget
    """
    model, _, _ = opened(model, None, None)
    if is_estimator(model):
        raise InvalidInput("quantise takes networks; an estimator stays float32")
    check_model(model)
    _check_constants(constants)
    calls, allowed = calls_of(data), checked_budget(budget)
    settings = ModelSettings(target, threads, tune=False, exact=False)
    given = True, False, None, constants or {}, None, "float32", settings
    like = None
    if example_inputs is not None:
        like = ExampleCall(_arguments(model, example_inputs, None)[0], {})
    return ModelCompiler(model, *given).scales(calls, allowed, progress_function(progress), like)


def _check_constants(constants: Any) -> None:
    if constants is not None and not isinstance(constants, Mapping):
        raise InvalidInput(
            f"constants is a {type(constants).__name__}; give a dict from names of inputs, such as "
            "{'sr': 16000}"
        )


def _arguments(
    model: Any, inputs: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the example arguments by position and by name; an exported program has its own.

    Raises InvalidInput for `inputs` other than a tuple or list, and `kwargs` other than a mapping.
    """
    if inputs is None and not kwargs and (own := exported_examples(model)) is not None:
        return own
    if inputs is None and not kwargs and not is_onnx(model):
        raise InvalidInput("example_inputs is missing; give a tuple of the model's arguments")
    if inputs is not None and not isinstance(inputs, tuple | list):
        raise InvalidInput(
            f"example_inputs is a {type(inputs).__name__}; give a tuple of the model's arguments, "
            "such as (x,)"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InvalidInput(f"example_kwargs is a {type(kwargs).__name__}; give a dict")
    for leaf in (*(inputs or ()), *(kwargs or {}).values()):
        if 0 in getattr(leaf, "shape", ()):
            raise InvalidInput(
                f"an example input has shape {tuple(leaf.shape)}; give one with elements"
            )
    return tuple(inputs or ()), dict(kwargs or {})


def _sizes(
    model: Any,
    given: DynamicShapes | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    constants: Mapping[str, Any],
) -> NamedSizes | None:
    """Return the sizes named in `dynamic_shapes`, or by an exported program.

    The sizes of a program count only where one besides the batch is open.
    """
    if given is not None:
        return named_sizes(given, arguments_by_name(model, args, kwargs, constants))
    if not is_program(model) or kwargs:
        return None
    sizes = sizes_of_exported(model, args)
    return sizes if sizes is not None and sizes.has_others else None
