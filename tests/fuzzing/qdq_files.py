"""Random nets as ONNX Runtime's quantiser writes them (QDQ), compared with ONNX Runtime.

    case = make(seed)        a pruned net of qdq_nets, how it is quantised, what is changed then
    check(case)              "equal"; "equal but for ties"; "refused" by one of our errors; "not
                             quantised" by ONNX Runtime; or "not defined": the file quantises NaN,
                             or an infinity, where a divisor was rounded to 0

The reference is ONNX Runtime without its optimisations, some of which round elsewhere than the file
says. Sums of whole numbers are exact, so that a result may differ by float32's rounding, and where
a number lies so near the middle between two steps that rounding decides. From there on bytes differ
by one step, which moves what is near a middle further on. What that may cost is measured: the
reference several times more with all that is quantised moved by `_NEAR` of the largest number
there: up in half of the places, down in the others, then the other way round, so that each tie goes
both ways; and all of a value up, then down, for equal numbers are ties together, as what a resize
repeats.

A result may then be off, at most and in the mean of squares, by twice what the moved ones are, in
twice as many places and two more; where these are not off, by float32's rounding.
"""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch
from fuzzing.onnx_growing import session
from fuzzing.qdq_nets import grown
from onnx import ModelProto, TensorProto, helper, numpy_helper
from runnable import LEVELS
from torch import Tensor, nn

import sparsejit
from sparsejit.errors import SparseJitError
from sparsejit.ir.values import Array
from sparsejit.perf.model_contest import export_onnx
from sparsejit.perf.zoo.quantised import quantise_file
from sparsejit.prune import Pruner

# A share of the largest number: one nearer to the middle of two steps may be rounded either way.
_NEAR = 4e-6
# A share of the largest result: float32's rounding behind the last steps.
_ROUNDING = 2e-5
# Moved runs, each with its opposite.
_PAIRS = 4
_MORE, _MORE_PLACES = 2.0, 2
_SAMPLES = 2
_PATTERNS = ("unstructured", "unstructured", "4x1in", "4x2in")
Inputs = dict[str, Array]


@dataclass(frozen=True)
class QdqCase:
    """A net, how its file is quantised, and what is changed in it."""

    seed: int
    net: nn.Module
    inputs: tuple[Tensor, ...]
    opset: int
    operators: tuple[str, ...]
    forms: dict[str, Any]
    # The probability that a scale or a zero point of activations is changed.
    changed: float
    options: dict[str, Any]
    pruned: str

    @property
    def title(self) -> str:
        shapes = [list(x.shape) for x in self.inputs]
        told = f"{self.forms}; of {self.operators or 'all'}; {self.changed} changed; {self.pruned}"
        return f"{shapes}; opset {self.opset}; {told}; {self.options}\n{self.net}"


def make(seed: int) -> QdqCase:
    """The case of a seed."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    net, inputs = grown(draw)
    pattern, amount = draw.choice(_PATTERNS), draw.choice((0.0, 0.5, 0.8, 0.9))
    _prepare(draw, net.eval(), pattern, amount)
    forms = {"per_channel": draw.random() < 0.7, "activations": draw.choice(("QUInt8", "QInt8"))}
    # Scores behind a mask have a range that would leave the others one step.
    some = ("MatMul", "Gemm")
    is_image = inputs[0].ndim == 4
    operators = some if len(inputs) > 1 or (not is_image and draw.random() < 0.3) else ()
    changed = draw.choice((0.0, 0.0, 0.15, 0.3))
    options = {"target": draw.choice(("native", "native", "native", *LEVELS))}
    pruned = f"{amount} pruned, {pattern}"
    opset = draw.choice((13, 14, 17))
    return QdqCase(seed, net, inputs, opset, operators, forms, changed, options, pruned)


def _prepare(draw: random.Random, net: nn.Module, pattern: str, amount: float) -> None:
    """Prune, spread vectors, and leave rows of zeros in some weights."""
    if amount:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of weights that are no larger than a block
            Pruner(amount, pattern, allocation="uniform").prepare(net)
    with torch.no_grad():
        for each in net.parameters():
            if each.ndim == 1:
                each += 0.1 * torch.randn(each.shape)
                continue
            each *= draw.choice((1.5, 2.5, 4.0)) / (1 - amount) ** 0.5
            if draw.random() < 0.2:
                each[draw.randrange(len(each)) :: 5] = 0


def check(case: QdqCase) -> str:
    """The outcome. Raises AssertionError for a wrong result, and whatever else comes."""
    inputs = {f"x{number}": x.numpy() for number, x in enumerate(case.inputs)}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        model = quantised(case, inputs)
        if model is None:
            return "not quantised"
        try:
            compiled = sparsejit.compile(model, **case.options)
        except SparseJitError as refused:
            return f"refused: {type(refused).__name__}"
        found = compiled(*inputs.values())
        wanted, runs = wanted_of(case.seed, model, inputs)
        return compare(found, wanted, runs) if runs else "not defined"


def quantised(case: QdqCase, inputs: Inputs) -> ModelProto | None:
    """The file's model; None where ONNX Runtime does not write it."""
    shapes = {name: x.shape for name, x in inputs.items()}
    numbers = np.random.default_rng(case.seed)
    normal = numbers.standard_normal(shapes["x0"]).astype(np.float32)
    samples = [inputs, *({**inputs, "x0": normal} for _ in range(_SAMPLES - 1))]
    with TemporaryDirectory() as folder:
        plain, made = Path(folder) / "plain.onnx", Path(folder) / "made.onnx"
        export_onnx(case.net, case.inputs, plain, case.opset, list(inputs))
        try:
            quantise_file(plain, made, samples, case.operators, **case.forms)
        except Exception:  # of whatever type its tools raise
            return None
        model = onnx.load(made)
    _change(random.Random(case.seed), model, case.changed)
    return model


def _change(draw: random.Random, model: ModelProto, share: float) -> None:
    """Scales so small that much saturates, or large, and zero points at the ends."""
    held = {each.name: each for each in model.graph.initializer}
    steps = {
        tuple(node.input[1:3])
        for node in model.graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] not in held
    }
    for scale, zero in sorted(steps):
        if draw.random() < share:
            factor = np.float32(draw.choice((0.2, 0.5, 1.5, 3.0)))
            _hold(held[scale], numpy_helper.to_array(held[scale]) * factor)
        if draw.random() < share:
            ends = np.iinfo(numpy_helper.to_array(held[zero]).dtype)
            number = draw.choice((ends.min, ends.max, ends.min + 1, ends.min + 128))
            _hold(held[zero], np.array(number, ends.dtype))


def _hold(tensor: TensorProto, array: Array) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(array), tensor.name))


def wanted_of(seed: int, model: ModelProto, inputs: Inputs) -> tuple[Array, list[Array]]:
    """ONNX Runtime's results, and the moved runs; none where a quantised value is not finite.

    ONNX defines no byte for NaN, and an infinity has the sign of the number divided by 0,
    which may be a rounding error's.
    """
    moved, places = _moved(model)
    whole = _with_outputs(model, [place for place, _ in places])
    wanted, *seen = session(whole).run(None, inputs)
    if not all(np.isfinite(x).all() for x in seen):
        return wanted, []
    near = [_NEAR * np.abs(x).max(initial=0) for x in seen]
    runs, numbers, again = [], np.random.default_rng(seed), session(moved)
    for pair in range(_PAIRS):
        shapes = [x.shape if pair % 2 else (1,) * x.ndim for x in seen]
        signs = [numbers.choice((-1, 1), shape) for shape in shapes]
        for way in (1, -1):
            moves = {
                name: np.float32(way * size * each)
                for (_, name), size, each in zip(places, near, signs, strict=True)
            }
            runs.append(again.run(None, {**inputs, **moves})[0])
    return wanted, runs


def _moved(model: ModelProto) -> tuple[ModelProto, list[tuple[str, str]]]:
    """Each number that is quantised plus an input; names of numbers and inputs."""
    moved = ModelProto()
    moved.CopyFrom(model)
    held = {each.name for each in model.graph.initializer}
    places, nodes = [], []
    for number, node in enumerate(moved.graph.node):
        if node.op_type == "QuantizeLinear" and node.input[0] not in held:
            name = f"move_{number}"
            places.append((node.input[0], name))
            nodes.append(helper.make_node("Add", [node.input[0], name], [f"{name}_sum"]))
            node.input[0] = f"{name}_sum"
            moved.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del moved.graph.node[:]
    moved.graph.node.extend(copies)
    return moved, places


def _with_outputs(model: ModelProto, names: list[str]) -> ModelProto:
    """The model's output, and these values."""
    more = ModelProto()
    more.CopyFrom(model)
    for number, name in enumerate(names):
        more.graph.node.append(helper.make_node("Identity", [name], [f"seen_{number}"]))
        more.graph.output.append(
            helper.make_tensor_value_info(f"seen_{number}", TensorProto.FLOAT, None)
        )
    return more


def compare(found: Array, wanted: Array, runs: list[Array]) -> str:
    """Raises AssertionError for differences that neither rounding nor ties explain."""
    found = np.asarray(found)
    assert found.shape == wanted.shape, f"shape {found.shape}, not {wanted.shape}"
    assert found.dtype == wanted.dtype, f"{found.dtype}, not {wanted.dtype}"
    rounding = _ROUNDING * np.abs(wanted).max(initial=1e-6)
    ours = _distances(found, wanted, rounding)
    theirs = np.max([_distances(each, wanted, rounding) for each in runs], axis=0)
    names = ("at most", "in the mean of squares", "in places")
    for name, one, other in zip(names, ours, theirs, strict=True):
        more = _MORE_PLACES if name == "in places" and other else 0
        text = f"{one:.3g}, by ties {other:.3g}; numbers up to {np.abs(wanted).max():.3g}"
        assert one <= _MORE * other + more, f"off {name} {text}, {wanted.size} of them"
    return "equal but for ties" if ours[0] else "equal"


def _distances(one: Array, other: Array, rounding: float) -> tuple[float, float, float]:
    """The largest, the root of the mean square, and the count of errors beyond rounding."""
    off = np.abs(np.float64(one) - other)
    off = np.where(np.isfinite(off), np.where(off > rounding, off, 0), np.inf)
    return float(off.max(initial=0)), float(np.sqrt((off**2).mean())), float((off > 0).sum())
