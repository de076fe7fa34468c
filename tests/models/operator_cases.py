"""Arguments for every row of the operator table: `CASES[row]` is a list of calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

_GENERATOR = torch.Generator().manual_seed(11)


@dataclass(frozen=True)
class Known:
    """A tensor that is a constant of the model."""

    tensor: torch.Tensor


@dataclass(frozen=True)
class Call:
    """Positional and named arguments of an operator; tensors among them are inputs."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def call(*args: Any, **kwargs: Any) -> Call:
    return Call(args, kwargs)


def rand(*shape: int) -> torch.Tensor:
    """Both signs, none of them near a whole number's half."""
    return torch.randn(shape, generator=_GENERATOR)


def positive(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=_GENERATOR) + 0.25


def whole(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=_GENERATOR)


def truths(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=_GENERATOR) > 0.5


def weight(*shape: int) -> Known:
    return Known(rand(*shape))


X = rand(3, 5)
DIVISORS = Known(torch.tensor([3, -2, 7, -100]))
UNARY = (
    *("neg", "abs", "relu", "sign", "sgn", "square", "floor", "ceil", "round", "trunc", "fix"),
    *("exp", "expm1", "tanh", "sigmoid", "erf", "sin", "cos", "special_expit", "isnan", "isinf"),
    *("alias", "detach", "clone", "contiguous", "lift_fresh", "lift_fresh_copy", "positive"),
    *("gelu", "silu", "mish", "softplus", "log_sigmoid", "elu", "selu", "celu", "leaky_relu"),
    *(
        "hardtanh",
        "relu6",
        "hardsigmoid",
        "hardswish",
        "hardshrink",
        "softshrink",
        "tan",
        "exp2",
        "sinh",
        "cosh",
        "erfc",
    ),
    *("erfinv", "lgamma", "digamma"),
    *("atan", "asin", "acos", "asinh", "acosh", "atanh"),
    *("nan_to_num", "t", "numpy_T", "mT", "view_as_self"),
)
OF_UNIT = ("asin", "acos", "atanh", "erfinv")
OF_POSITIVE = ("sqrt", "rsqrt", "reciprocal", "log", "log1p", "log2", "log10")
TRUTH = ("logical_and", "logical_or", "logical_xor")

CASES: dict[str, list[Call]] = {
    **{f"aten.{n}.default": [call(3 * X)] for n in UNARY if n != "view_as_self"},
    **{f"aten.{n}.default": [call(positive(2, 7))] for n in OF_POSITIVE},
    **{f"aten.{n}.default": [call(torch.linspace(-1, 1, 9))] for n in OF_UNIT},
    "aten.acosh.default": [call(1 + positive(2, 7))],
    "aten.atan2.default": [call(rand(3, 5), rand(5)), call(whole(9, 4) - 4, whole(9, 4) - 4)],
    **{f"aten.{n}.default": [call(truths(4), rand(4)), call(X, X)] for n in TRUTH},
    "aten.logical_not.default": [call(truths(4)), call(whole(2, 5))],
    **{
        f"aten.{n}.Tensor": [call(X, rand(3, 5)), call(X, rand(5)), call(whole(3, 4), whole(3, 4))]
        for n in ("eq", "ne", "lt", "le", "gt", "ge")
    },
    **{f"aten.{n}.Scalar": [call(X, 0.5)] for n in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{
        f"aten.{name}.{overload}": [
            call(truths(6) if bools else whole(9, 6), truths(6) if bools else whole(9, 6))
            if overload == "Tensor"
            else call(*((5, whole(9, 6)) if overload == "Scalar_Tensor" else (whole(9, 6), 5)))
            for bools in ((False, True) if overload == "Tensor" else (False,))
        ]
        for kind in ("and", "or", "xor")
        for name in (f"bitwise_{kind}", f"__{kind}__")
        for overload in ("Tensor", "Scalar", "Scalar_Tensor")
        if (name, overload) != (f"__{kind}__", "Scalar_Tensor")
    },
    **{f"aten.__{n}shift__.Tensor": [call(whole(9, 6), whole(70, 6))] for n in "lr"},
    **{f"aten.__{n}shift__.Scalar": [call(whole(9, 6), 2)] for n in "lr"},
    **{
        f"aten.bitwise_{side}_shift.{overload}": [call(*operands)]
        for side in ("left", "right")
        for overload, operands in {
            "Tensor": (whole(9, 6).byte(), whole(70, 6).byte()),
            "Tensor_Scalar": (whole(9, 6), 2),
            "Scalar_Tensor": (1, whole(40, 6)),
        }.items()
    },
    "aten.angle.default": [call(X), call(whole(5, 6) - 2)],
    "aten.bitwise_not.default": [call(truths(6)), call(whole(9, 6))],
    "aten.add.Tensor": [
        call(X, rand(5), alpha=2),
        call(X, 3),
        call(truths(3), truths(3)),
        call(whole(9, 3), whole(9, 3), alpha=2),
        call(X, whole(4, 3, 1)),
        call(truths(3, 1), X),
    ],
    "aten.add.Scalar": [call(X, 1.5), call(whole(9, 3), 2)],
    "aten.sub.Tensor": [call(X, rand(3, 1), alpha=0.5)],
    "aten.sub.Scalar": [call(X, 2)],
    "aten.rsub.Tensor": [call(X, rand(5))],
    "aten.rsub.Scalar": [call(X, 1, 2)],
    "aten.mul.Tensor": [call(X, weight(5)), call(X, 2.0), call(truths(3), truths(3))],
    "aten.mul.Scalar": [call(X, 0.5)],
    "aten.div.Tensor": [call(X, positive(5)), call(whole(9, 4), whole(3, 4) + 1), call(X, 4)],
    "aten.div.Scalar": [call(X, 3)],
    "aten.div.Tensor_mode": [
        call(5 * X, positive(5), rounding_mode=mode) for mode in (None, "floor", "trunc")
    ],
    "aten.div.Scalar_mode": [
        call(5 * X, 0.3, rounding_mode="trunc"),
        call(whole(99, 4) - 50, -7, rounding_mode="trunc"),
    ],
    "aten.floor_divide.default": [
        call(5 * X, positive(5)),
        call(whole(99, 4) - 50, DIVISORS),
        call((whole(99, 4) - 50).char(), DIVISORS),
        call(torch.ones(3), torch.full((3,), 0.1)),
    ],
    "aten.floor_divide.Scalar": [call(5 * X, 0.7)],
    "aten.remainder.Tensor": [call(5 * X, rand(5)), call(whole(99, 4) - 50, DIVISORS)],
    "aten.remainder.Scalar": [call(5 * X, 0.75), call((whole(99, 4) - 50).int(), -7)],
    "aten.remainder.Scalar_Tensor": [call(2.5, positive(5))],
    "aten.fmod.Tensor": [call(5 * X, rand(5)), call(whole(99, 4) - 50, DIVISORS)],
    "aten.fmod.Scalar": [call(5 * X, 0.75)],
    "aten.pow.Tensor_Scalar": [
        *(call(X, n) for n in (1, 2, 3, 4.0, 7, -1, -2)),
        *(call(positive(4), n) for n in (0.5, -0.5, 1.7, -0.3)),
        *(call(whole(9, 4) + 1, n) for n in (0, 1, 2, 3, 5, -1.0, 0.5)),
    ],
    "aten.pow.Tensor_Tensor": [
        *(call(X, Known(torch.tensor(3.0))), call(3 * X, 2 * rand(5)), call(positive(9), rand(9))),
        *(call(rand(4, 1), torch.arange(-4.0, 5)), call(rand(4), whole(9, 3, 1) - 4)),
        *(call(whole(9, 6) - 4, whole(9, 6) - 2), call(whole(9, 6).char(), whole(9, 6).byte())),
        *(call(whole(9, 6), rand(6)), call(X, Known(rand(5))), call(whole(2, 6), truths(6))),
    ],
    "aten.pow.Scalar": [
        *(call(2, X), call(0.5, X), call(2, whole(70, 4)), call(3, whole(50, 4))),
        *(call(-1.5, X), call(0, rand(4)), call(-2, whole(70, 4) - 5)),
    ],
    "aten.hypot.default": [call(X, rand(5)), call(torch.zeros(3), torch.tensor([0.0, -1, 2]))],
    **{
        f"aten.{n}.default": [call(X, rand(5)), call(whole(9, 4), whole(9, 4))]
        for n in ("fmax", "fmin")
    },
    "aten.copysign.Tensor": [call(X, rand(5)), call(whole(9, 4), rand(4))],
    "aten.copysign.Scalar": [call(X, -2), call(whole(9, 4), -0.0)],
    "aten.signbit.default": [call(X), call(whole(9, 4) - 4), call(truths(4))],
    "aten.polygamma.default": [call(0, positive(2, 7))],
    "aten.round.decimals": [
        *(call(9 * X, decimals=n) for n in (0, 2)),
        call(999 * X, decimals=-2),
    ],
    "aten.maximum.default": [call(X, rand(5))],
    "aten.minimum.default": [call(X, rand(5))],
    "aten.max.other": [call(X, rand(3, 1))],
    "aten.min.other": [call(X, rand(3, 1))],
    "aten.addcmul.default": [call(X, rand(5), rand(3, 1), value=0.5)],
    "aten.addcdiv.default": [call(X, rand(5), positive(3, 1), value=2)],
    "aten.lerp.Scalar": [call(X, rand(3, 5), 0.25)],
    "aten.lerp.Tensor": [call(X, rand(3, 5), positive(5)), call(X, rand(3, 5), rand(5))],
    "aten.clamp.default": [
        call(X, -0.5, 0.5),
        call(X, None, 0),
        call(X, 0.1),
        call(whole(9, 3), 2),
    ],
    "aten.clamp.Tensor": [call(X, rand(5), None), call(X, None, rand(5))],
    "aten.clamp_min.default": [call(X, 0.1)],
    "aten.clamp_min.Tensor": [call(X, rand(5))],
    "aten.clamp_max.default": [call(X, 0.1)],
    "aten.clamp_max.Tensor": [call(X, rand(5))],
    "aten.where.self": [call(truths(3, 5), X, rand(5)), call(truths(5), X, whole(3, 5))],
    "aten.where.ScalarOther": [call(truths(3, 5), X, 2.0)],
    "aten.where.ScalarSelf": [call(truths(3, 5), 2.0, X)],
    "aten.where.Scalar": [call(truths(3, 5), 2.0, 3.0)],
    "aten.masked_fill.Scalar": [call(X, truths(5), float("-inf")), call(whole(9, 5), truths(5), 0)],
    "aten.masked_fill.Tensor": [call(X, truths(3, 1), Known(torch.tensor(0.5)))],
    "aten.dropout.default": [call(X, 0.5, False)],
    "aten.feature_dropout.default": [call(X, 0.5, False)],
    "aten.alpha_dropout.default": [call(X, 0.5, False)],
    "aten.feature_alpha_dropout.default": [call(X, 0.5, False)],
    "aten.to.dtype": [
        call(3 * X, torch.int64),
        call(truths(4), torch.float32),
        call(whole(9, 4), torch.float32),
        call(whole(2, 4), torch.bool),
        call(X, torch.bool),
    ],
    "aten.to.dtype_layout": [call(whole(9, 4), dtype=torch.float32)],
    "aten.to.device": [call(truths(4), torch.device("cpu"), torch.int64)],
    "aten.to.other": [call(truths(4), X)],
    "aten._to_copy.default": [call(whole(9, 4), dtype=torch.float32), call(X)],
    "aten.type_as.default": [call(whole(9, 4), X)],
    "aten.copy.default": [call(X, rand(5)), call(X, whole(4, 3, 1))],
    "aten.prelu.default": [call(rand(2, 4, 3), weight(4)), call(X, weight(1))],
    "aten._prelu_kernel.default": [call(X, weight(1, 1))],
    "aten.threshold.default": [call(X, 0.25, -7), call(whole(9, 4), 3, -7)],
    "aten.glu.default": [call(rand(3, 6)), call(rand(4, 3, 2), 0)],
}
MORE: dict[str, list[Call]] = {
    "aten.gelu.default": [call(X, approximate="tanh")],
    "aten.elu.default": [call(X, 0.5, 2, 1.5)],
    "aten.softplus.default": [call(X, 2, 1)],
    "aten.celu.default": [call(X, 0.5)],
    "aten.t.default": [call(rand(4))],
    "aten.nan_to_num.default": [
        call(torch.tensor([1.0, torch.inf, -torch.inf, torch.nan]), 0.5, 9.0, -9.0),
        call(whole(9, 4)),
    ],
    **{f"aten.{name}.default": [call(whole(9, 4) - 4)] for name in ("floor", "relu", "sign")},
    **{f"aten.{n}.default": [call(whole(99, 4) - 4)] for n in ("relu6", "hardtanh", "square")},
    "aten.exp.default": [call(whole(4, 3))],
}
