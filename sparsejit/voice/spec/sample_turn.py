"""From one sample to the next: the inputs that the network reads back, and the output sample.

A choice is a class that was drawn or is given; without classes it is the sample.
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.ir.ops.casts import Cast
from sparsejit.ir.ops.sampling import PREDICTION_WINDOW, Predict, Reconstruct
from sparsejit.ir.ops.types import float_type
from sparsejit.ir.values import Element, Value
from sparsejit.lowering.loop import Role
from sparsejit.voice.prediction import class_levels, expanded
from sparsejit.voice.spec.sample_draws import picked
from sparsejit.voice.spec.sample_graph import SampleWriter
from sparsejit.voice.spec.voice_spec import (
    LEVEL_SCALE,
    PREDICTOR,
    RESIDUAL_SCALE,
    BinaryTree,
    Categorical,
    Companding,
    DualSoftmax,
    LastClass,
    LastHalves,
    LastSample,
    LinearPrediction,
    NetworkInput,
    PredictionRow,
    VoiceSpec,
)


class PredictedSignal:
    """The signal of linear prediction: its states, and its inputs of a frame."""

    # In the order of the loop's inputs.
    terms = (PREDICTOR, RESIDUAL_SCALE, LEVEL_SCALE)

    def __init__(self, make: SampleWriter, spec: LinearPrediction) -> None:
        self._make, self._spec = make, spec
        predictor = make.given(Role.FRAME, PREDICTOR, float_type((PREDICTION_WINDOW,)))
        self._residual_scale = make.given(Role.FRAME, RESIDUAL_SCALE, float_type(()))
        self._level_scale = make.given(Role.FRAME, LEVEL_SCALE, float_type(()))
        self._history = make.state("history", np.zeros(PREDICTION_WINDOW, np.float32))
        self._last_output = make.state("last output", np.array(0, np.float32))
        self.last = make.newest(self._history)
        self.prediction = make.one(Predict(), self._history, predictor, name="prediction")

    def level(self, signal: Value) -> Value:
        """The row of a table for a signal."""
        return self._make.level(signal, self._level_scale)

    def after(self, choice: Value, amplitudes: Value) -> Value:
        """The output sample of a class; moves the states to the next turn."""
        op = Reconstruct(self._spec.limit, self._spec.emphasis)
        operands = choice, amplitudes, self._residual_scale, self.prediction, self._last_output
        signal, output = self._make.many(op, *operands, name="signal")
        self._history = self._make.shifted(self._history, signal)
        self._last_output = output
        return output

    def states(self) -> tuple[Value, Value]:
        return self._history, self._last_output


@dataclass(eq=False)
class SampleTurn:
    """The states that each sample leaves to the next one."""

    make: SampleWriter
    spec: VoiceSpec

    def __post_init__(self) -> None:
        make, prediction = self.make, self.spec.prediction
        self.signal = None if prediction is None else PredictedSignal(make, prediction)
        self._states: dict[NetworkInput, tuple[Value, ...]] = {}
        for each in self.spec.inputs:
            if isinstance(each, LastClass):
                self._states[each] = (make.state(each.name, np.array(each.first, np.int64)),)
            elif isinstance(each, LastHalves):
                self._states[each] = self._first_halves(each)
            elif isinstance(each, LastSample) and self.signal is None:
                self._states[each] = (make.state(each.name, np.array(0, np.float32)),)

    def _first_halves(self, each: LastHalves) -> tuple[Value, Value]:
        assert isinstance(self.spec.output, DualSoftmax)
        count = self.spec.output.half_classes
        coarse, fine = class_levels(count)[list(divmod(each.first, count))].astype(np.float32)
        return (
            self.make.state(f"{each.name}.coarse", np.array(coarse)),
            self.make.state(f"{each.name}.fine", np.array(fine)),
        )

    def last(self, each: NetworkInput) -> tuple[Value, ...]:
        """The numbers of an input, or its row of the table."""
        if each in self._states:
            return self._states[each]
        assert self.signal is not None
        if isinstance(each, LastSample):
            return (self.signal.last,)
        is_prediction = isinstance(each, PredictionRow)
        signal = self.signal.prediction if is_prediction else self.signal.last
        return (self.signal.level(signal),)

    def after(self, choice: Value) -> Value:
        """The output sample of a choice; moves the states to the next turn."""
        output = self.spec.output
        sample, fed_back = choice, choice
        if isinstance(output, Categorical | BinaryTree):
            sample, fed_back = self._of_class(output, choice)
        for each in self._states:
            self._states[each] = (fed_back if isinstance(each, LastSample) else choice,)
        return sample

    def after_halves(self, output: DualSoftmax, coarse: Value, fine: Value) -> tuple[Value, Value]:
        """The output sample and its class, int64 (), from halves; moves the states as `after`."""
        make = self.make
        count = make.constant(np.array(output.half_classes, np.int64), "half classes")
        high = make.pointwise("mul", coarse, count, name="class")
        whole = make.pointwise("add", high, fine, name="class")
        height, lowest = (
            make.constant(np.array(number, np.float32), "amplitude")
            for number in (2 / output.classes, -1)
        )
        wide = make.one(Cast(Element.FLOAT32), whole, name="class")
        sample = make.pointwise("fma", wide, height, lowest, name="sample")
        fed_back = self.half_level(output, coarse), self.half_level(output, fine)
        for each in self._states:
            self._states[each] = fed_back if isinstance(each, LastHalves) else (sample,)
        return sample, whole

    def half_level(self, output: DualSoftmax, half: Value) -> Value:
        """The number that the network reads back for a half, float32 ()."""
        levels = class_levels(output.half_classes).astype(np.float32)
        return picked(self.make, self.make.constant(levels, "levels"), half)

    def _of_class(self, output: Categorical | BinaryTree, choice: Value) -> tuple[Value, Value]:
        """The sample of a class, and the number that the network reads back."""
        levels = class_levels(output.classes)
        is_linear = output.companding is Companding.LINEAR
        heights = levels if is_linear else expanded(levels, output.classes)
        amplitudes = self.make.constant(heights.astype(np.float32), "amplitudes")
        if self.signal is not None:
            sample = self.signal.after(choice, amplitudes)
            return sample, sample
        sample = picked(self.make, amplitudes, choice)
        if is_linear:
            return sample, sample
        table = self.make.constant(levels.astype(np.float32), "levels")
        return sample, picked(self.make, table, choice)

    def states(self) -> tuple[Value, ...]:
        """The states for `SampleWriter.keep`, in their order."""
        signal = () if self.signal is None else self.signal.states()
        return (*signal, *(value for values in self._states.values() for value in values))
