"""Arguments for every row of the table of complex operators.

A row that computes both parts alike has the cases of its row for real tensors, made complex.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from operator_calls import CALLS as REAL_CALLS
from operator_cases import Call, Known, call, positive, rand, truths

from sparsejit.frontends.torch_export.aten.table import COMPLEX_OPERATORS


def z(*shape: int) -> torch.Tensor:
    return torch.complex(rand(*shape), rand(*shape))


def known(*shape: int) -> Known:
    return Known(z(*shape))


Z, X = z(3, 5), rand(3, 5)
ZEROS = torch.complex(torch.tensor([0.0, 1, 0, -2, 0]), torch.tensor([0.0, 0, -3, 0, 1]))
FAR = torch.tensor([[3e38, 1.0], [1e30, -1e30], [-1e-30, 3e-30], [2.0, 1e20]])
FAR = torch.view_as_complex(FAR)
INFINITE = torch.tensor([[torch.inf, torch.nan], [1.0, -torch.inf], [torch.nan, 1.0]])
NEAR_ONE = torch.polar(1 + 1e-4 * rand(20), 3 * rand(20))
WINDOW = Known(torch.hann_window(8))
OWN: dict[str, list[Call]] = {
    "aten.complex.default": [call(X, rand(5)), call(rand(3, 1), X)],
    "aten.polar.default": [call(positive(3, 5), 3 * X), call(positive(5), Known(rand(3, 5)))],
    "aten.view_as_complex.default": [call(rand(3, 2)), call(rand(2))],
    "aten.view_as_real.default": [call(Z), call(z())],
    "aten.real.default": [call(Z)],
    "aten.imag.default": [call(Z)],
    **{f"aten.{n}.default": [call(Z)] for n in ("_conj", "_conj_physical", "conj_physical")},
    **{f"aten.{n}.default": [call(Z)] for n in ("conj", "resolve_conj", "resolve_neg")},
    "aten.adjoint.default": [call(z(2, 3, 5))],
    "aten.mH.default": [call(Z)],
    **{f"aten.{n}.default": [call(Z), call(ZEROS)] for n in ("abs", "sgn", "angle", "sqrt")},
    "aten.exp.default": [call(Z), call(ZEROS)],
    "aten.log.default": [call(Z), call(NEAR_ONE)],
    **{f"aten.{n}.default": [call(Z)] for n in ("log2", "log10", "rsqrt", "sigmoid", "silu")},
    **{f"aten.{n}.default": [call(2 * Z), call(ZEROS)] for n in ("sin", "cos", "sinh", "cosh")},
    **{f"aten.{n}.default": [call(2 * Z), call(ZEROS)] for n in ("tan", "tanh")},
    "aten.square.default": [call(Z)],
    "aten.reciprocal.default": [call(Z)],
    "aten.pow.Tensor_Scalar": [call(Z, n) for n in (0, 1, 2, 3, 0.5, -1, -2)],
    **{
        f"aten.{name}.Tensor": [
            call(Z, z(5)), call(Z, rand(3, 1)), call(X, z(5)), call(Z, known(3, 1)),
            call(X, known(5)),
        ]
        for name in ("mul", "div", "eq", "ne")
    },
    **{
        f"aten.{name}.Tensor": [
            call(Z, z(5)), call(Z, rand(2, 1, 5)), call(rand(2, 1, 5), Z),
            call(Z, known(5), alpha=2),
            call(X, known(5), alpha=1 - 2j), *([] if name == "rsub" else [call(Z, 1 + 2j)]),
        ]
        for name in ("add", "sub", "rsub")
    },
    **{
        f"aten.{name}.Scalar": [call(Z, 2), call(Z, 1 + 2j), call(X, 0.5j)]
        for name in ("add", "sub", "rsub", "mul", "div")
    },
    **{f"aten.{name}.Scalar": [call(ZEROS, 1), call(ZEROS, -3j)] for name in ("eq", "ne")},
    "aten.isnan.default": [call(torch.complex(ZEROS.real, torch.tensor([1, torch.nan, 2, 3, 0])))],
    "aten.isinf.default": [call(torch.complex(torch.tensor([torch.inf, 1]), torch.ones(2)))],
    "aten.where.self": [
        call(truths(3, 5), Z, z(5)), call(truths(3, 5), Z, X), call(truths(5), X, z(5)),
    ],
    "aten.where.ScalarOther": [call(truths(3, 5), Z, 2.0), call(truths(5), X, 1j)],
    "aten.where.ScalarSelf": [call(truths(3, 5), 1.5, Z)],
    "aten.where.Scalar": [call(truths(3, 5), 1.5, 2j)],
    "aten.masked_fill.Scalar": [call(Z, truths(5), 0), call(Z, truths(3, 1), 1 - 1j)],
    "aten.masked_fill.Tensor": [call(Z, truths(5), z())],
    "aten.matmul.default": [
        call(z(3, 4), z(4, 5)), call(z(4), z(4)), call(z(2, 3, 4), known(4, 5)),
    ],
    "aten.mm.default": [call(z(3, 4), known(4, 5))],
    "aten.bmm.default": [call(z(2, 3, 4), z(2, 4, 5))],
    "aten.mv.default": [call(z(3, 4), z(4))],
    "aten.dot.default": [call(z(4), z(4))],
    "aten.vdot.default": [call(z(4), z(4))],
    "aten.outer.default": [call(z(4), z(3))],
    "aten.linear.default": [
        call(z(3, 4), known(5, 4), known(5)), call(z(2, 3, 4), known(5, 4)), call(z(4), known(4)),
    ],
    "aten.addmm.default": [
        call(z(5), z(3, 4), z(4, 5)), call(z(5), z(3, 4), z(4, 5), beta=2, alpha=1j),
        call(z(5), z(3, 4), z(4, 5), beta=0),
    ],
    "aten.addmv.default": [call(z(3), z(3, 4), z(4))],
    "aten.baddbmm.default": [call(z(3, 5), z(2, 3, 4), z(2, 4, 5), alpha=0.5)],
    "aten.zeros_like.default": [
        call(Z), call(X, dtype=torch.complex64), call(Z, dtype=torch.float32),
    ],
    "aten.ones_like.default": [call(Z), call(X, dtype=torch.complex64)],
    "aten.full_like.default": [call(Z, 1 + 2j), call(Z, 2)],
    "aten.new_zeros.default": [call(Z, [2, 3]), call(X, [4], dtype=torch.complex64)],
    "aten.new_ones.default": [call(Z, [2, 3])],
    "aten.new_full.default": [call(Z, [2, 3], 1 - 1j)],
    "aten.zero.default": [call(Z)],
    "aten.fill.Scalar": [call(Z, 2 - 1j)],
    "aten.fill.Tensor": [call(Z, z()), call(Z, rand())],
    "aten.constant_pad_nd.default": [call(Z, [1, 2]), call(Z, [1, -1, 0, 2], 1 + 2j)],
    "aten.pad.default": [call(Z, [1, 2]), call(Z, [1, 2], "reflect"), call(Z, [1, 2], "circular")],
    "aten.cat.default": [call([Z, z(2, 5)]), call([Z, X], 1), call([X, Z, z(3, 0)], -1)],
    "aten.stack.default": [call([Z, X], 1), call([Z, Z])],
    "aten.embedding.default": [call(known(6, 4), torch.tensor([[1, 5], [0, 2]]))],
    "aten.to.dtype": [call(Z, torch.complex128), call(Z, torch.float32), call(X, torch.complex64)],
    "aten.to.dtype_layout": [call(Z, dtype=torch.complex64)],
    "aten.to.device": [call(X, "cpu", torch.complex64)],
    "aten.to.other": [call(X, Z), call(Z, X)],
    "aten._to_copy.default": [call(X, dtype=torch.complex64), call(Z)],
    "aten.type_as.default": [call(X, Z), call(Z, X)],
    "aten.copy.default": [call(Z, X), call(Z, z(5)), call(X, Z)],
    "aten.sum.default": [call(Z), call(X, dtype=torch.complex64)],
    "aten.fft_fftshift.default": [call(Z), call(z(3, 4), [0]), call(Z, [-1])],
    "aten.fft_ifftshift.default": [call(Z), call(z(3, 4), [0])],
    "aten._fft_c2c.default": [
        *(call(z(3, 4, 6), axes, norm, True) for axes, norm in (([2], 0), ([0, 1], 1), ([1], 2))),
        call(z(3, 70), [1], 2, False), call(z(3, 70), [0, 1], 0, False),
    ],
    "aten._fft_r2c.default": [
        *(call(rand(3, 4, 6), axes, norm, half)
          for axes, norm, half in (([2], 0, True), ([0, 1], 1, True), ([1], 2, False))),
        call(rand(2, 67), [1], 0, True), call(rand(2, 80), [0, 1], 0, False),
    ],
    "aten._fft_c2r.default": [
        *(call(z(3, 4, 5), axes, norm, size)
          for axes, norm, size in (([2], 0, 8), ([2], 2, 9), ([0, 1], 1, 6))),
        call(z(2, 40), [1], 2, 78), call(z(2, 40), [1], 2, 79),
    ],
    "aten.stft.default": [
        call(rand(2, 40), 8, 4, 8, WINDOW, return_complex=True),
        call(rand(40), 8, 3, 6, None, True, True, return_complex=True),
        call(rand(2, 40), 9, 12, None, None, False, False, return_complex=True),
        call(rand(2, 40), 8, None, 8, rand(8), return_complex=True),
        call(z(2, 40), 8, 4, 6, return_complex=True),
    ],
    "aten.stft.center": [
        call(rand(2, 40), 8, 4, 8, WINDOW, True, mode, return_complex=True)
        for mode in ("reflect", "constant")
    ] + [
        call(rand(40), 8, 4, 8, WINDOW, False, return_complex=True),
        call(z(40), 8, 4, 8, WINDOW, return_complex=True),
    ],
    "aten.istft.default": [
        call(z(2, 5, 9), 8, 2, 8, WINDOW), call(z(2, 5, 9), 8, 2, 8, WINDOW, True, True, None, 15),
        call(z(5, 9), 8, 4, None, None, False, False, True), call(z(2, 8, 9), 8, 3, 7),
        call(z(2, 5, 9), 8, 3, 6, Known(torch.ones(6)), True, True, True, 25),
    ],
}  # fmt: skip


def _complex(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return [_complex(item) for item in x]
    if isinstance(x, Known):
        return Known(_complex(x.tensor))
    is_float = isinstance(x, torch.Tensor) and x.is_floating_point()
    return torch.complex(x, rand(*x.shape)) if is_float else x


def _of_both_parts() -> dict[str, list[Call]]:
    cases: dict[str, list[Call]] = {}
    for row, each in REAL_CALLS:
        if row in COMPLEX_OPERATORS and row not in OWN:
            named = {key: _complex(x) for key, x in each.kwargs.items()}
            cases.setdefault(row, []).append(Call(tuple(map(_complex, each.args)), named))
    return cases


CASES = {**_of_both_parts(), **OWN}
CALLS = [(row, each) for row, calls in CASES.items() for each in calls]
# One operand at the ends of float32, whose squares are none of its numbers.
UNUSUAL: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]] = {
    "magnitude": (lambda x: x.abs(), FAR),
    "logarithm": (lambda x: x.log(), FAR),
    "root": (lambda x: x.sqrt(), FAR),
    "quotient": (lambda x: (1 + 2j) / x, FAR[1:]),
    "angle": (lambda x: x.angle(), FAR),
    "magnitude of infinity": (lambda x: x.abs(), torch.view_as_complex(INFINITE)),
}
