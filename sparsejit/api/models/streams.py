"""Many streams of one model, which join and leave, and step together.

The states of active streams lie side by side on the batch axis of a block, one slot each. A step of
all of them runs the model on the block. A step of some gathers their states in a second block, and
scatters the new ones. The last stream moves into the slot of one that leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.api.models.called import as_tensors
from sparsejit.api.models.stepped import StateValues, SteppedModel, StreamedModel
from sparsejit.api.models.variant import Variant, lowered_variant
from sparsejit.errors import InvalidInput
from sparsejit.frontends.nesting import TENSOR, flatten, unflatten
from sparsejit.ir.state import fixed_batch_of
from sparsejit.ir.values import Array
from sparsejit.native.copying import NotCopied
from sparsejit.runtime.filled_memory import fill, fills
from sparsejit.runtime.native_call import address_table, require_success
from sparsejit.whole_numbers import ceil_div

Ids = Sequence[int] | npt.NDArray[np.integer]


def variant_of_one_tile(variant: Variant, capacity: int, threads: int) -> Variant:
    """Return the code for a batch in tiles of one size, which threads run in turn.

    A sample then has the same bits in any batch. The tile is the model's largest one that does not
    exceed the capacity, or a thread's share of it.
    """
    plan = variant.known_plan
    has_end = variant.tile == 1 and (plan is None or plan.end is not None)
    if len(variant.tiles) == 1 and threads == variant.options.threads and not has_end:
        return variant
    kept = [each for each in variant.make_graphs() if each.tile in variant.tiles]
    graphs = sorted(kept, key=lambda each: each.tile or 1)
    share = ceil_div(capacity, threads)
    chosen = [each for each in graphs if (each.tile or 1) <= share][-1:] or graphs[:1]
    options = replace(
        variant.options, threads=threads, shares_tiles=threads > 1, same_bits=True
    )
    return lowered_variant(chosen, options, f"{variant.program.name} streams")


class ModelStreams(NotCopied):
    """Streams of one model, which join and leave: `ys = streams.step(ids, x)`.

    `CompiledModel.streams` makes it. A stream is a number from `join`. The bits of a stream do not
    depend on the others. Any thread may call; one call runs at a time, without the interpreter
    lock.

    Attributes:
        capacity: the most streams at a time
        tile: the number of streams that run at a time
    """

    instead_of_copying = "copy the states of each, `state(stream)`"

    def __init__(self, streamed: StreamedModel, capacity: int, threads: int) -> None:
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise InvalidInput(f"capacity={capacity!r}; give a whole number from 1 on")
        _check_batch(streamed)
        variant = variant_of_one_tile(streamed.variant, capacity, threads)
        self._shared = SteppedModel(streamed._replace(variant=variant), capacity, is_open=True)
        self.capacity, self.tile = capacity, variant.tile or 1
        step = self._shared.step
        self._step = step.memory.function(4, with_status=True)
        self._program = step  # holds the code
        self._one = [each.for_samples(1).given for each in self._shared.inputs]
        self._block = self._shared.new_block()
        self._scratch: Array | None = None
        self._ids: list[int] = []  # by slot
        self._slots: dict[int, int] = {}
        self._order: npt.NDArray[np.int64] | None = None  # `_ids` as an array
        self._next = 0
        self._using = threading.RLock()

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """The active streams, in the order in which a step of all of them is fastest."""
        with self._using:
            if self._order is None:
                self._order = np.array(self._ids, np.int64)
                self._order.flags.writeable = False
            return self._order

    def join(self) -> int:
        """Add a stream in its initial state; return its number, which no other stream will have.

        Raises:
            InvalidInput: all `capacity` streams are there
        """
        with self._using:
            slot = len(self._ids)
            if slot == self.capacity:
                raise InvalidInput(
                    f"all {slot} streams are taken; let one leave, or make streams({2 * slot})"
                )
            made, self._next = self._next, self._next + 1
            self._ids.append(made)
            self._slots[made], self._order = slot, None
            self._begin(slot)
            return made

    def leave(self, stream: int) -> None:
        """End a stream.

        Args:
            stream: its number

        Raises:
            InvalidInput: there is no such stream
        """
        with self._using:
            slot, last = self._slot(stream), len(self._ids) - 1
            for view in self._shared.views(self._block):
                view[slot] = view[last]
            moved = self._ids.pop()
            del self._slots[stream]
            if slot != last:
                self._ids[slot], self._slots[moved] = moved, slot
            self._order = None

    def reset(self, stream: int) -> None:
        """Set a stream to its initial state.

        Args:
            stream: its number

        Raises:
            InvalidInput: there is no such stream
        """
        with self._using:
            self._begin(self._slot(stream))

    def state(self, stream: int) -> StateValues:
        """Return the states of a stream, as `ModelStream.state` does, with a batch of 1.

        Args:
            stream: its number

        Raises:
            InvalidInput: there is no such stream
        """
        self._slot(stream)
        return StateValues(self._shared, lambda: self._views_of(stream))

    def step(self, ids: Ids | Mapping[int, Any], *args: Any, **kwargs: Any) -> Any:
        """Run a step of some streams, or of all.

        Args:
            ids: the numbers of the streams; `ids` itself for all, which is fastest. Or a dict
                from numbers to the model's argument for each, a tuple where it has several.
            *args: the model's arguments without the states, the streams on its batch axis in the
                order of `ids`; none with a dict
            **kwargs: arguments that the model takes by name; none with a dict

        Returns:
            The outputs, the streams on the batch axis; with a dict, a dict from numbers to outputs.

        Raises:
            InvalidInput: a stream is not there or named twice, or inputs do not fit; or a
                status other than 0, after which all states are as before
        """
        if isinstance(ids, Mapping):
            if args or kwargs:
                raise InvalidInput("step takes a dict from streams to arguments, and no others")
            return self._step_each(ids)
        leaves = flatten(self._shared.given, (args, kwargs), "inputs")
        results = self._run(ids, self._shared.dtypes.arrays(leaves))
        return unflatten(self._shared.made, self._as_given(results, leaves))

    def _as_given(self, results: list[Array], leaves: Iterable[Any]) -> list[Any]:
        """Return the flat list of results in the model's dtypes, tensors if a leaf is."""
        results = self._shared.dtypes.narrowed(results)
        if not all(isinstance(leaf, np.ndarray) for leaf in leaves):
            results = as_tensors(results, self._shared.made)
        return results

    def _step_each(self, given: Mapping[int, Any]) -> dict[int, Any]:
        nest, shared = self._shared.given, self._shared
        if nest.items[1].items or any(each.axis is None for each in shared.inputs):
            raise InvalidInput(
                "an input is given by name, or is the same for all streams; give step the numbers "
                "of the streams and the model's arguments"
            )
        if not given:
            return {}
        is_one = nest.items[0].items == (TENSOR,)
        calls = [(each,) if is_one else each for each in given.values()]
        if not is_one:
            calls = [flatten(nest, (each, {}), "inputs of a stream") for each in calls]
        arrays = [shared.dtypes.arrays(each) for each in calls]
        for stream, each in zip(given, arrays, strict=True):
            self._check_one(stream, each)
        sides = zip(zip(*arrays, strict=True), shared.inputs, strict=True)
        results = self._run(list(given), [np.concatenate(a, each.axis) for a, each in sides])
        results = self._as_given(results, chain(*calls))
        made = shared.outputs
        rows = [
            [result[each.sample(number)] for result, each in zip(results, made, strict=True)]
            for number in range(len(given))
        ]
        pairs = zip(given, rows, strict=True)
        return {stream: unflatten(shared.made, row) for stream, row in pairs}

    def _check_one(self, stream: int, arrays: Sequence[Array]) -> None:
        """Raise InvalidInput for arrays that are not the inputs of one stream."""
        for array, kind in zip(arrays, self._one, strict=True):
            if array.dtype != kind.dtype or array.shape != kind.shape:
                raise InvalidInput(
                    f"{kind.name} of stream {stream} is {array.dtype}{array.shape}; give "
                    f"{kind.dtype}{kind.shape}"
                )

    def _run(self, ids: Ids, arrays: Sequence[Array]) -> list[Array]:
        """Run a step of some streams with arrays in the model's layout, and return such arrays."""
        count = len(ids)
        inputs = []
        for array, operand in zip(arrays, self._shared.inputs, strict=True):
            kind = operand.for_samples(count).given
            if array.dtype != kind.dtype or array.shape != kind.shape:
                raise InvalidInput(
                    f"{kind.name} is {array.dtype}{array.shape}; for {count} streams give "
                    f"{kind.dtype}{kind.shape}"
                )
            inputs.append(np.ascontiguousarray(operand.native(array)))
        made = [each.for_samples(count) for each in self._shared.outputs]
        outputs = [np.empty(each.shape, each.kind.dtype) for each in made]
        if fills():
            fill(outputs)
        with self._using:
            slots = self._slots_of(ids)
            if slots is None:
                self._run_block(self._block, inputs, outputs, count)
            else:
                self._run_some(slots, inputs, outputs)
        pairs = zip(outputs, self._shared.outputs, strict=True)
        return [operand.placed(output) for output, operand in pairs]

    def _run_block(
        self, block: Array, inputs: Sequence[Array], outputs: Sequence[Array], count: int
    ) -> None:
        tables = address_table(inputs), address_table(outputs)
        require_success(self._step(*tables, block.ctypes.data, count))

    def _run_some(
        self, slots: npt.NDArray[np.intp], inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        """Run some streams in a second block: from its first half to its second."""
        if self._scratch is None:
            self._scratch = self._shared.new_block()
        count, shared = len(slots), self._shared
        self._scratch[:8] = 0
        states = shared.views(self._block)
        for view, own in zip(states, shared.views(self._scratch, 0), strict=True):
            np.take(view, slots, 0, own[:count], mode="clip")
        self._run_block(self._scratch, inputs, outputs, count)
        for view, own in zip(states, shared.views(self._scratch, 1), strict=True):
            view[slots] = own[:count]

    def _slots_of(self, ids: Ids) -> npt.NDArray[np.intp] | None:
        """Return the slots of streams; None for all of them in the order of the slots."""
        if ids is self._order or list(ids) == self._ids:
            return None
        slots = [self._slot(int(stream)) for stream in ids]
        if len(set(slots)) < len(slots):
            raise InvalidInput(f"a stream is named twice in {list(ids)}; name each once")
        return np.array(slots, np.intp)

    def _slot(self, stream: int) -> int:
        if stream not in self._slots:
            raise InvalidInput(f"there is no stream {stream}; use a number that join() returned")
        return self._slots[stream]

    def _begin(self, slot: int) -> None:
        for view, value in zip(
            self._shared.views(self._block), self._shared.initial, strict=True
        ):
            view[slot] = value[0] if value.ndim else value

    @contextmanager
    def _views_of(self, stream: int) -> Iterator[list[Array]]:
        """The states of a stream, as native arrays of one sample."""
        with self._using:
            slot = self._slot(stream)
            yield [view[slot : slot + 1] for view in self._shared.views(self._block)]


def _check_batch(streamed: StreamedModel) -> None:
    """Raise InvalidInput for a model whose states do not have a free batch."""
    axes = streamed.variant.batch_axes
    if axes is None and streamed.states:
        if note := fixed_batch_of(streamed.variant.graph.notes):
            raise InvalidInput(f"streams cannot share the code of this model, since {note}")
        raise InvalidInput(
            "the batch of this model is fixed, so that streams cannot share its code; compile a "
            "model whose batch is free (free_batch=True), or use stream() for each"
        )
    for state in streamed.states:
        if axes is not None and axes.inputs[state.input] is None:
            raise InvalidInput(
                f"state {state.name} has no batch, so that streams cannot share the model's code; "
                "use stream() for each"
            )
