"""ATen's activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsejit.frontends.writing import special_functions
from sparsejit.frontends.writing.pointwise import (
    celu,
    cosh,
    elu,
    gelu,
    glu,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    log_sigmoid,
    log_to,
    mish,
    prelu,
    relu6,
    selu,
    silu,
    sinh,
    softplus,
    softshrink,
    tan,
    threshold,
)
from sparsejit.frontends.writing.special_functions import INVERSES, atan2
from sparsejit.frontends.writing.writer import Operand, Writer
from sparsejit.ir.values import Value


def _floats_first(mapping: Callable[..., Value]) -> Callable[..., Value]:
    def converted(write: Writer, x: Operand, *rest: Any, **named: Any) -> Value:
        return mapping(write, write.floats(x), *rest, **named)

    return converted


_ROWS: dict[str, Callable[..., Value]] = {
    "gelu": gelu,
    "silu": silu,
    "mish": mish,
    "softplus": softplus,
    "log_sigmoid": log_sigmoid,
    "elu": elu,
    "selu": selu,
    "celu": celu,
    "leaky_relu": leaky_relu,
    "prelu": prelu,
    "hardsigmoid": hardsigmoid,
    "hardswish": hardswish,
    "hardshrink": hardshrink,
    "softshrink": softshrink,
    "tan": tan,
    "sinh": sinh,
    "cosh": cosh,
    "erfc": special_functions.erfc,
    "erfinv": special_functions.erfinv,
    "lgamma": special_functions.log_gamma,
    "digamma": special_functions.digamma,
    "glu": glu,
    "log2": log_to(2),
    "log10": log_to(10),
    **INVERSES,
    "_prelu_kernel": prelu,
}

_OF_ANY = {
    "atan2": atan2,
    "hypot": special_functions.hypot,
    "fmax": special_functions.extreme_number("maximum"),
    "fmin": special_functions.extreme_number("minimum"),
    "signbit": special_functions.signbit,
    "polygamma": special_functions.polygamma,
    "hardtanh": hardtanh,
    "relu6": relu6,
    "threshold": threshold,
}
OPERATORS = {
    **{f"aten.{name}.default": _floats_first(mapping) for name, mapping in _ROWS.items()},
    **{f"aten.{name}.default": mapping for name, mapping in _OF_ANY.items()},
    **{f"aten.copysign.{kind}": special_functions.copysign for kind in ("Tensor", "Scalar")},
    "aten.round.decimals": special_functions.round_to,
}
