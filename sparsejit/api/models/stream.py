"""A stream: a model whose states stay inside from call to call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from sparsejit.api.compiled import Explained
from sparsejit.api.models.called import CalledModel, as_tensors, bound_arrays
from sparsejit.api.models.stepped import StateValues, SteppedModel
from sparsejit.api.reports.report import Report
from sparsejit.errors import InvalidInput, check_flags
from sparsejit.frontends.nesting import unflatten
from sparsejit.ir.values import Array
from sparsejit.runtime.filled_memory import fill, fills
from sparsejit.runtime.moved_call import MovedCall
from sparsejit.runtime.native_call import NativeCall, address_table, require_success


class _StepCalls(CalledModel):
    """Calls of a stream's step: arguments and results are nested as in the model."""

    def __init__(
        self, shared: SteppedModel, call: NativeCall | MovedCall, model: Explained
    ) -> None:
        super().__init__(shared.given, shared.made)
        self.shared, self.call, self.model = shared, call, model

    @property
    def title(self) -> str:
        return f"stream of {self.model!r}"

    def explain(self, *, measure: bool = False) -> Report:
        return self.model.explain(measure=measure)

    @property
    def _input_names(self) -> list[str]:
        return [each.kind.name for each in self.shared.inputs]

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the flat list of inputs. Raises InvalidInput if the arguments do not fit."""
        is_plain = not kwargs and len(args) == self._plain_arguments
        return list(args) if is_plain else self._leaves(args, kwargs)

    def run(self, inputs: Sequence[Any]) -> list[Array]:
        dtypes = self.shared.dtypes
        results: list[Array] = self.call.run(*dtypes.arrays(inputs))
        return dtypes.narrowed(results)

    def _new_direct(self, torch: Any) -> Callable[..., Any] | None:
        if self.shared.dtypes.has_others:
            return None
        return self.call.direct(self._is_plain_result, torch)


class _Kept(NamedTuple):
    """The end of the blocks that `run` has had: less than a step behind the context.

    `values` are in the model's layout; steps are cut along `axis`, and see `context` of the values
    before them.
    """

    values: Array
    axis: int
    context: int


class _BlockInput(NamedTuple):
    """A native input of the steps of a block, and the bytes from a step's data to the next one's.

    They are 0 for an input that is the same for all steps.
    """

    values: Array
    advance: int


class ModelStream:
    """A model whose states stay inside from call to call: `y = stream(x)`.

    `CompiledModel.stream` makes it. Arguments and results are the model's, without the states; a
    single result comes alone. Denormal numbers count as zero within a step, so that silence is no
    slower than speech. One thread at a time may use a stream; a step releases the interpreter
    lock. A copy is another stream, with the same states; so is a pickle, which has the model too.

    Attributes:
        batch: the number of samples that a step takes
        check: whether a step that makes a state NaN raises InvalidInput, with the state's name;
            for debugging, as it takes some microseconds
    """

    def __init__(self, shared: SteppedModel, model: Explained) -> None:
        self._shared, self._model = shared, model
        self._block = shared.new_block()
        self._native, call = shared.call_of(self._block)
        self._calls = _StepCalls(shared, call, model)
        self._is_closed = False
        self._kept: _Kept | None = None
        self.batch, self.check = shared.batch, False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step, and return its outputs.

        Args:
            *args: the model's arguments without the states: torch tensors or numpy arrays
            **kwargs: arguments that the model takes by name

        Raises:
            InvalidInput: inputs that differ from the model's; a state became NaN, with `check`
        """
        if self._is_closed:
            self._refuse()
        results = self._calls(*args, **kwargs)
        if self.check:
            self._shared.require_numbers(self._block)
        return results

    def run(
        self,
        *args: Any,
        axis: int | None = None,
        context: int = 0,
        out_axis: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run all steps of a block of any length, in one native call.

        The first input is cut into steps along one axis; what is left over is kept for the next
        block. Every other input is the same for all steps, or has a further first axis, of steps.

        Args:
            *args: the arguments of a call, the first input longer or shorter
            axis: the axis of the first input that is cut; by default the axis of time of a model
                that was compiled with a step, else the axis in which its shape differs from a
                step's, or the last axis where none differs
            context: the number of values that a step sees again, the last ones of the step before;
                zeros before the first block
            out_axis: the axis of each output along which steps are joined; by default each output's
                axis of time, where the model was compiled with a step, else they are stacked along
                a new first axis
            **kwargs: arguments that the model takes by name

        Returns:
            The outputs of a call, for all steps.

        Raises:
            InvalidInput: inputs that do not fit; a status other than 0, after which the steps
                before it have run
        """
        if self._is_closed:
            self._refuse()
        leaves = self._calls.leaves(args, kwargs)
        if not leaves:
            raise InvalidInput("all inputs of the model are states; call the stream for each step")
        # Pairs of complex numbers lie on a further last axis.
        lengths = len(np.shape(leaves[0]))
        arrays = self._shared.dtypes.arrays(leaves)
        pace = self._shared.streamed.pace
        if axis is None and pace.step is not None:
            axis = pace.axis
        axis = self._cut_axis(arrays[0], None if axis is None else _place(axis, lengths))
        arrays[0], kept = self._cut(arrays[0], axis, context)
        inputs = self._native_inputs(arrays)
        self._kept = kept if kept.values.size else None
        results = self._shared.dtypes.narrowed(self._run_steps(inputs, len(arrays[0])))
        axes = [out_axis] * len(results) if out_axis is not None or not pace.axes else pace.axes
        results = [
            result if along is None else _joined(result, along)
            for result, along in zip(results, axes, strict=True)
        ]
        if not all(isinstance(leaf, np.ndarray) for leaf in leaves):
            results = as_tensors(results, self._shared.made)
        return unflatten(self._shared.made, results)

    def _cut_axis(self, block: Array, axis: int | None) -> int:
        """Return the axis along which a block is cut. Raises InvalidInput if its shape is wrong."""
        kind = self._shared.inputs[0].given
        fits = isinstance(block, np.ndarray) and block.ndim == len(kind.shape)
        if not fits or block.dtype != kind.dtype or not kind.shape:
            raise InvalidInput(
                f"{kind.name} is {block.dtype}{block.shape}; give {kind.dtype}{kind.shape}, longer "
                "or shorter along one axis"
            )
        pairs = enumerate(zip(block.shape, kind.shape, strict=True))
        others = [number for number, (found, step) in pairs if found != step]
        if axis is None:
            usual = len(kind.shape) - 1 if self._kept is None else self._kept.axis
            axis = others[0] if others else usual
        if others not in ([], [axis]):
            raise InvalidInput(
                f"{kind.name} has shape {block.shape}, and a step {kind.shape}; give one that "
                f"differs along axis {axis} alone"
            )
        return axis

    def _cut(self, block: Array, axis: int, context: int) -> tuple[Array, _Kept]:
        """Return the inputs of all whole steps, stacked, and the rest."""
        operand, kept = self._shared.inputs[0], self._kept
        step = operand.given.shape[axis] or 0
        if isinstance(context, bool) or not isinstance(context, int) or not 0 <= context < step:
            raise InvalidInput(f"context={context!r}; give a whole number from 0 to {step - 1}")
        if kept is None:
            shape = list(block.shape)
            shape[axis] = context
            kept = _Kept(np.zeros(shape, block.dtype), axis, context)
        if (axis, context) != kept[1:]:
            raise InvalidInput(
                f"{kept.values.shape[kept.axis]} are kept of the block before along axis "
                f"{kept.axis}, with context={kept.context}; go on in the same way, or drop them by "
                "reset()"
            )
        block = np.ascontiguousarray(np.concatenate((kept.values, block), axis))
        new = step - context
        count = (block.shape[axis] - context) // new
        rest = block[(*[slice(None)] * axis, slice(count * new, None))]
        steps = (count, *block.shape[:axis], step, *block.shape[axis + 1 :])
        strides = (new * block.strides[axis], *block.strides)
        stacked: Array = np.ndarray(steps, block.dtype, block, 0, strides)
        return stacked, _Kept(rest.copy(), axis, context)

    def _native_inputs(self, arrays: Sequence[Array]) -> list[_BlockInput]:
        """Return the inputs of the steps of a block. Raises InvalidInput where one does not fit."""
        inputs, count = [], len(arrays[0])
        for array, operand in zip(arrays, self._shared.inputs, strict=True):
            kind, leading = operand.given, int(array.ndim > len(operand.kind.shape))
            if array.dtype != kind.dtype or array.shape != (*[count] * leading, *kind.shape):
                raise InvalidInput(
                    f"{kind.name} is {array.dtype}{array.shape}; give {kind.dtype}{kind.shape}, "
                    f"or one for each of the {count} steps of this block"
                )
            values = np.ascontiguousarray(operand.native(array, leading))
            inputs.append(_BlockInput(values, kind.bytes * leading))
        return inputs

    def _run_steps(self, inputs: Sequence[_BlockInput], count: int) -> list[Array]:
        """Run the steps of a block; return their results, stacked."""
        made = self._shared.outputs
        outputs = [np.empty((count, *each.shape), each.kind.dtype) for each in made]
        if fills():
            fill(outputs)
        self._run_native(inputs, outputs, count)
        pairs = zip(outputs, self._shared.outputs, strict=True)
        return [operand.placed(output, 1) for output, operand in pairs]

    def _run_native(
        self, inputs: Sequence[_BlockInput], outputs: list[Array], count: int
    ) -> None:
        made = [each.kind.bytes for each in self._shared.outputs]
        steps = self._shared.steps((*(each.advance for each in inputs), *made))
        turns = [count] if not self.check else [1] * count
        checked = self._native.checked
        block, first = checked.take_workspace(), 0
        try:
            for turn in turns:
                now = [values[first:] if size else values for values, size in inputs]
                tables = address_table(now), address_table([each[first:] for each in outputs])
                require_success(steps(*tables, block.ctypes.data, turn))
                if self.check:
                    self._shared.require_numbers(block)
                first += turn
        finally:
            checked.workspaces.append(block)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """Return a function without arguments that runs a step, and allocates nothing.

        It reads the current values of `inputs` and writes `outputs`, holds all arrays and the
        stream's memory, and keeps the interpreter lock. An index out of range raises nothing, and
        leaves the states as they are; `check` has no effect. Arrays whose batch lies behind other
        axes are copied at every step of more than one sample.

        Args:
            inputs: a flat list of contiguous numpy arrays without the states, all whole numbers as
                int64, all floats as float32
            outputs: the same, for the results

        Raises:
            InvalidInput: arrays of other types, shapes or layouts
        """
        if self._is_closed:
            self._refuse()
        return self._calls.call.bind(bound_arrays(inputs), bound_arrays(outputs))

    def reset(self, *, rest: bool = False, steps: int | None = None) -> None:
        """Begin again with the initial states, and drop the samples that `run` has kept.

        Args:
            rest: begin with the states after silence, zeros in all inputs, instead; they are
                computed once
            steps: the number of silent steps; by default until the states change by less than
                1e-6 of their largest value, at most 1,000 steps

        Raises:
            InvalidInput: steps is no whole number from 0 on
        """
        check_flags(rest=rest)
        if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int)):
            raise InvalidInput(f"steps={steps!r}; give a whole number from 0 on")
        if steps is not None and (steps < 0 or not rest):
            raise InvalidInput(f"steps={steps}; give a whole number from 0 on, with rest=True")
        values = self._shared.rest(steps) if rest else None
        with self._taken() as block:
            self._shared.fill(block, values)
            self._kept = None

    @property
    def state(self) -> StateValues:
        """The states by name, as numpy arrays that are copies; assign items or a dict to set them.

        Assigning a dict sets all states, and needs a value for each; `stream.state.update` sets
        some.
        """
        return StateValues(self._shared, self._taken_views)

    @state.setter
    def state(self, values: Mapping[str, Any]) -> None:
        missing = [name for name in self._shared.states if name not in values]
        if missing:
            raise InvalidInput(f"state {', '.join(missing)} is missing; give all, or use update()")
        self.state.update(values)

    def copy(self) -> ModelStream:
        """Return another stream of the model, with the same states."""
        made = ModelStream(self._shared, self._model)
        with self._taken() as block:
            size = self._shared.layout.bytes
            made._block[:size] = block[:size]
        made._kept, made.check = self._kept, self.check
        return made

    def __copy__(self) -> ModelStream:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelStream:
        return self.copy()

    def __reduce__(self) -> tuple[Callable[..., ModelStream], tuple[Any, ...]]:
        with self._taken_views() as views:
            values = [view.copy() for view in views]
        kept = None if self._kept is None else tuple(self._kept)
        return stream_again, (self._model, self.batch, values, kept, self.check)

    def close(self) -> None:
        """Free the memory of the states, once no bound function holds it; calls raise."""
        self._is_closed = True
        self._native.checked.workspaces.clear()
        self._native, self._calls, self._block = None, None, None  # type: ignore[assignment]

    def __repr__(self) -> str:
        state = "closed stream" if self._is_closed else "stream"
        return f"<{state} of {self._model!r}, states {', '.join(self.state)}>"

    @contextmanager
    def _taken(self) -> Iterator[Array]:
        """The block, which no step uses meanwhile."""
        if self._is_closed:
            self._refuse()
        checked = self._native.checked
        block = checked.take_workspace()
        try:
            yield block
        finally:
            checked.workspaces.append(block)

    @contextmanager
    def _taken_views(self) -> Iterator[list[Array]]:
        with self._taken() as block:
            yield self._shared.views(block)

    def _refuse(self) -> None:
        raise InvalidInput("the stream is closed; make another by stream() of its model")


def stream_again(
    model: Any,
    batch: int,
    values: Sequence[Array],
    kept: tuple[Array, int, int] | None,
    check: bool,
) -> ModelStream:
    """Return the stream that was pickled."""
    made: ModelStream = model.stream(batch)
    with made._taken() as block:
        made._shared.fill(block, values)
    made._kept, made.check = None if kept is None else _Kept(*kept), check
    return made


def _place(axis: int, lengths: int) -> int:
    """Return the number of an axis, counted from the first. Raises InvalidInput for no axis."""
    if isinstance(axis, bool) or not isinstance(axis, int) or not -lengths <= axis < lengths:
        raise InvalidInput(f"axis={axis!r}; give a whole number from {-lengths} to {lengths - 1}")
    return axis % lengths


def _joined(stacked: Array, axis: int) -> Array:
    """Join steps that are stacked on the first axis along an axis of one step."""
    axis = _place(axis, stacked.ndim - 1)
    shape = list(stacked.shape[1:])
    shape[axis] *= len(stacked)
    return np.moveaxis(stacked, 0, axis).reshape(shape)
