"""Recurrent cells that torch lacks: clipped gates, peepholes, coupled gates, other activations.

Each cell runs in turns of a body, which is one step. Gates are in torch's order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.onnx.operators.elementwise import softsign
from sparsejit.frontends.writing import pointwise
from sparsejit.frontends.writing.recurrent import Product, Step
from sparsejit.frontends.writing.views import chunk
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.values import Array, Value

Function = Callable[[Writer, Value], Value]
_USUAL = {"GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh"), "RNN": ("Tanh",)}


def _affine(write: Writer, x: Value, alpha: float, beta: float) -> Value:
    f = write.formula("affine")
    return f.finish(f("add", f("mul", x, alpha), beta))


def _scaled_tanh(write: Writer, x: Value, alpha: float, beta: float) -> Value:
    f = write.formula("scaled_tanh")
    return f.finish(f("mul", f("tanh", f("mul", x, beta)), alpha))


def _hard_sigmoid(write: Writer, x: Value, alpha: float, beta: float) -> Value:
    f = write.formula("hard_sigmoid")
    return f.finish(f("minimum", f("maximum", f("add", f("mul", x, alpha), beta), 0.0), 1.0))


def _thresholded(write: Writer, x: Value, alpha: float) -> Value:
    return pointwise.threshold(write, x, alpha, 0.0)


def _named(kind: str) -> Function:
    return lambda write, x: write.pointwise(kind, x)


@dataclass(frozen=True)
class _CellFunction:
    """An activation with the defaults of its alpha and beta, None if it has none.

    A default of NaN must be given in the file: ONNX has none, or ONNX Runtime has another.
    """

    function: Callable[..., Value]
    alpha: float | None = None
    beta: float | None = None


_ACTIVATIONS = {
    "affine": _CellFunction(_affine, np.nan, np.nan),
    "elu": _CellFunction(pointwise.elu, 1.0),
    "hardsigmoid": _CellFunction(_hard_sigmoid, 0.2, 0.5),
    "leakyrelu": _CellFunction(pointwise.leaky_relu, 0.01),
    "relu": _CellFunction(_named("relu")),
    "scaledtanh": _CellFunction(_scaled_tanh, np.nan, np.nan),
    "sigmoid": _CellFunction(_named("sigmoid")),
    "softplus": _CellFunction(pointwise.softplus),
    "softsign": _CellFunction(softsign),
    "tanh": _CellFunction(_named("tanh")),
    "thresholdedrelu": _CellFunction(_thresholded, np.nan),
}


def names_of(call: Call) -> list[str]:
    """The activations of all directions in lower case; empty for the usual ones."""
    return [name.lower() for name in call.attribute("activations") or []]


def usual_names(call: Call) -> list[str]:
    """The activations of one direction if the file names none."""
    return [name.lower() for name in _USUAL[call.operator]]


def functions_of(call: Call, ways: int) -> list[list[Function]]:
    """The activations of each direction. Raises Unmapped for names that ONNX does not have."""
    each = len(_USUAL[call.operator])
    names = names_of(call) or usual_names(call) * ways
    if len(names) != each * ways:
        raise Unmapped(f"has the activations {names}, not {each * ways}")
    given = {name: list(call.attribute(f"activation_{name}") or []) for name in ("alpha", "beta")}
    functions = [_function(name, given) for name in names]
    return [functions[way * each : (way + 1) * each] for way in range(ways)]


def _function(name: str, given: dict[str, list[float]]) -> Function:
    """The activation of a name, which takes the next alpha and beta if it has any."""
    found = _ACTIVATIONS.get(name)
    if found is None:
        raise Unmapped(f"has the activation {name!r}")
    numbers = []
    for kind, default in (("alpha", found.alpha), ("beta", found.beta)):
        if default is None:
            continue
        number = given[kind].pop(0) if given[kind] else default
        if np.isnan(number):
            raise Unmapped(f"has no activation_{kind} for {name}")
        numbers.append(float(number))
    return lambda write, x: found.function(write, x, *numbers)


def is_usual(call: Call) -> bool:
    """Whether torch has the layer's cell."""
    names, usual = names_of(call), usual_names(call)
    others = {"relu"} if call.operator == "RNN" else set[str]()
    is_plain = names == usual * (len(names) // len(usual)) or (names and set(names) == others)
    special = call.attribute("clip") is not None or call.flag("input_forget") or call.has(7)
    return bool(is_plain) and not special


def step_of(call: Call, functions: Sequence[Function], way: int, hidden: int) -> Step:
    """The function that writes one step of time of the cell in direction `way`."""
    clip = call.attribute("clip")
    clipped = partial(_clipped, None if clip is None else float(clip))
    if call.operator == "RNN":
        return lambda write, given, product, states: [
            functions[0](write, clipped(write, pointwise.add(write, given, product(states[0]))))
        ]
    if call.operator == "GRU":
        return partial(_gru_step, functions, clipped, not call.flag("linear_before_reset"))
    return partial(_lstm_step, functions, clipped, _peepholes(call, way, hidden), call)


def _clipped(limit: float | None, write: Writer, x: Value) -> Value:
    return x if limit is None else pointwise.hardtanh(write, x, -limit, limit)


def _peepholes(call: Call, way: int, hidden: int) -> list[Array] | None:
    """Weights of c in the gates i, o and f; None without peepholes."""
    if not call.has(7):
        return None
    whole = call.known(7, "peepholes").astype(np.float32)
    if whole.ndim != 2 or whole.shape[1] != 3 * hidden or way >= len(whole):
        raise Unmapped(f"has peepholes {list(whole.shape)}")
    return np.split(whole[way], 3)


def _lstm_step(
    functions: Sequence[Function],
    clipped: Function,
    peepholes: list[Array] | None,
    call: Call,
    write: Writer,
    given: Value,
    product: Product,
    states: Sequence[Value],
) -> list[Value]:
    """One step of an LSTM: c' = f c + i g(...), h = o h(c'); with input_forget f = 1 - i."""
    gate, new, shown = functions
    h, c = states
    i, f, g, o = chunk(write, pointwise.add(write, given, product(h)), 4, 1)

    def with_peephole(x: Value, cell: Value, place: int) -> Value:
        if peepholes is None:
            return x
        return pointwise.add(write, x, pointwise.multiply(write, cell, peepholes[place]))

    opened = gate(write, clipped(write, with_peephole(i, c, 0)))
    if call.flag("input_forget"):
        kept = write.pointwise("sub", 1.0, opened)
    else:
        kept = gate(write, clipped(write, with_peephole(f, c, 2)))
    added = pointwise.multiply(write, opened, new(write, clipped(write, g)))
    cell = pointwise.add(write, pointwise.multiply(write, kept, c), added)
    out = gate(write, clipped(write, with_peephole(o, cell, 1)))
    return [pointwise.multiply(write, out, shown(write, cell)), cell]


def _gru_step(
    functions: Sequence[Function],
    clipped: Function,
    resets_first: bool,
    write: Writer,
    given: Value,
    product: Product,
    states: Sequence[Value],
) -> list[Value]:
    """One step of a GRU: h' = n + z (h - n)."""
    gate, new = functions
    (h,) = states
    r_x, z_x, n_x = chunk(write, given, 3, 1)
    r_h, z_h, n_h = chunk(write, product(h), 3, 1)
    reset = gate(write, clipped(write, pointwise.add(write, r_x, r_h)))
    update = gate(write, clipped(write, pointwise.add(write, z_x, z_h)))
    if resets_first:
        n_h = chunk(write, product(pointwise.multiply(write, reset, h)), 3, 1)[2]
    else:
        n_h = pointwise.multiply(write, reset, n_h)
    made = new(write, clipped(write, pointwise.add(write, n_x, n_h)))
    left = pointwise.multiply(write, update, write.pointwise("sub", h, made))
    return [pointwise.add(write, made, left)]
