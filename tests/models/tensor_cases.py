"""Arguments for the rows of the operator table whose operands have axes of a meaning."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from operator_cases import Call, Known, X, call, positive, rand, truths, weight, whole

TRIANGLE = Known(torch.ones(4, 4, dtype=torch.bool).tril())


def _layers(gates: int, layers: int, ways: int, bias: bool) -> list[Known]:
    """Weights of layers of 6 inputs and 4 hidden units."""
    weights = []
    for layer in range(layers):
        inputs = 6 if layer == 0 else 4 * ways
        for _ in range(ways):
            weights += [weight(gates * 4, inputs), weight(gates * 4, 4)]
            weights += [weight(gates * 4), weight(gates * 4)] if bias else []
    return weights


def _recurrent(gates: int, states: int) -> list[Call]:
    calls = []
    for layers, ways, bias, first in ((1, 1, True, False), (2, 2, True, True), (1, 2, False, True)):
        for zero in (False, True):
            initial: list[Any] = [
                Known(torch.zeros(layers * ways, 3, 4)) if zero else rand(layers * ways, 3, 4)
                for _ in range(states)
            ]
            hx = initial if states > 1 else initial[0]
            x = rand(3, 5, 6) if first else rand(5, 3, 6)
            weights = _layers(gates, layers, ways, bias)
            calls.append(call(x, hx, weights, bias, layers, 0.0, False, ways == 2, first))
    return calls


def _cell(gates: int, states: int) -> list[Call]:
    initial = [rand(3, 4) for _ in range(states)]
    return [
        call(rand(3, 6), initial if states > 1 else initial[0], *_layers(gates, 1, 1, bias))
        for bias in (True, False)
    ]


def _over_axes(*axes: Any, **named: Any) -> list[Call]:
    return [
        call(rand(3, 4, 5), axis, keep, **named)
        for axis in (*axes, 0, -1)
        for keep in (False, True)
    ]


SEVERAL = ([0, 2], [1], [-1, -2], [0, 1, 2])
IMAGE, SEQUENCE = rand(2, 4, 9, 8), rand(2, 4, 11)
VOLUME = rand(2, 4, 5, 6, 7)
STATISTICS = [weight(4), weight(4), weight(4), Known(positive(4))]

PRODUCTS = {
    "aten.linear.default": [
        call(X, weight(4, 5), weight(4)),
        call(rand(2, 3, 5), weight(4, 5)),
        call(rand(5), weight(4, 5)),
    ],
    "aten.matmul.default": [
        *(call(rand(2, 5, 0), rand(0, 3)), call(rand(3, 0), Known(torch.zeros(0, 4)))),
        call(X, weight(5, 4)),
        call(X, rand(5, 4)),
        call(rand(2, 3, 5), rand(5, 4)),
        call(rand(2, 1, 3, 5), rand(4, 5, 2)),
        call(rand(5), rand(5)),
        call(rand(5), rand(2, 5, 3)),
        call(rand(2, 3, 5), rand(5)),
        call(X, weight(5)),
    ],
    "aten.mm.default": [call(X, rand(5, 4))],
    "aten.bmm.default": [call(rand(2, 3, 5), rand(2, 5, 4))],
    "aten.mv.default": [call(X, rand(5))],
    "aten.dot.default": [call(rand(7), rand(7))],
    "aten.outer.default": [call(rand(3), rand(4))],
    "aten.addmm.default": [
        call(weight(4), X, weight(5, 4)),
        call(rand(4), X, rand(5, 4), beta=0.5, alpha=2),
        call(weight(3, 1), X, weight(5, 4)),
        call(rand(3, 4), X, weight(5, 4), beta=0),
    ],
    "aten.addmv.default": [call(rand(3), X, rand(5))],
    "aten.baddbmm.default": [call(rand(2, 1, 4), rand(2, 3, 5), rand(2, 5, 4), alpha=0.5)],
    "aten.addbmm.default": [call(rand(3, 4), rand(2, 3, 5), rand(2, 5, 4))],
    "aten.conv1d.default": [
        call(SEQUENCE, weight(6, 2, 3), weight(6), [2], [1], [2], 2),
        call(rand(4, 11), weight(6, 4, 3)),
    ],
    "aten.conv1d.padding": [
        call(SEQUENCE, weight(6, 4, size), None, [1], padding, [dilation])
        for size, padding, dilation in ((3, "same", 1), (4, "same", 1), (3, "valid", 2))
    ],
    "aten.conv2d.default": [
        call(IMAGE, weight(6, 4, 3, 2), weight(6), [2, 1], [1, 0], [1, 2]),
        call(IMAGE, weight(4, 1, 3, 3), None, [1], [1], [1], 4),
        call(rand(4, 9, 8), weight(6, 4, 1, 1)),
    ],
    "aten.conv3d.default": [
        call(VOLUME, weight(6, 4, 2, 3, 2), weight(6), [2, 1, 1], [1, 0, 1], [1, 2, 1]),
        call(VOLUME, weight(4, 2, 3, 1, 2), None, [1], [1], [2, 1, 1], 2),
        *(call(VOLUME[0], weight(3, 4, 1, 1, 1)), call(VOLUME, rand(3, 4, 2, 2, 2), rand(3))),
        call(VOLUME, weight(8, 1, 2, 2, 2), weight(8), [2], [0], [1], 4),
    ],
    "aten.conv3d.padding": [
        call(VOLUME, weight(6, 4, 2, 3, 2), None, [1], padding, [1, 2, 1])
        for padding in ("same", "valid")
    ],
    "aten.conv_transpose3d.input": [
        call(VOLUME, weight(4, 3, 2, 3, 2), weight(6), [2, 1, 3], [1, 0, 1], [1, 0, 2], 2),
        call(VOLUME, weight(4, 3, 3, 1, 2), None, [1], [0], [0], 1, [2, 1, 1]),
        call(VOLUME[0], weight(4, 3, 2, 2, 2), weight(3), [3], [2], [1]),
    ],
    "aten.conv2d.padding": [call(IMAGE, weight(6, 4, 4, 3), weight(6), [1, 1], "same", [1, 2])],
    "aten.conv_transpose1d.default": [
        call(SEQUENCE, weight(4, 3, 4), weight(6), [2], [1], [1], 2, [2])
    ],
    "aten.conv_transpose2d.input": [
        call(IMAGE, weight(4, 3, 3, 3), weight(3), [2, 2], [1, 1], [1, 0])
    ],
    "aten.convolution.default": [
        call(IMAGE, weight(6, 4, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        call(SEQUENCE, weight(4, 3, 3), weight(3), [2], [0], [1], True, [1], 1),
    ],
    "aten.gru.input": _recurrent(3, 1),
    "aten.lstm.input": _recurrent(4, 2),
    "aten.rnn_tanh.input": _recurrent(1, 1),
    "aten.rnn_relu.input": _recurrent(1, 1),
    "aten.gru_cell.default": _cell(3, 1),
    "aten.lstm_cell.default": _cell(4, 2),
    "aten.rnn_tanh_cell.default": _cell(1, 1),
    "aten.rnn_relu_cell.default": _cell(1, 1),
}
# Rows of another library's operators, which are there where it is installed.
with suppress(ImportError):
    import transformers.integrations.moe  # noqa: F401  which registers the operator
EXPERTS = {
    "transformers.grouped_mm_fallback.default": [
        call(rand(6, 5), weight(4, 5, 3), ends)
        for ends in (torch.tensor([2, 2, 5, 6]), torch.tensor([0, 1, 1, 4], dtype=torch.int32))
    ]
}
REDUCTIONS = {
    "aten.sum.dim_IntList": [
        *(*_over_axes(*SEVERAL), call(whole(9, 3, 4), [1]), call(X, None)),
        *(call(rand(3, 0), [1]), call(whole(9, 2, 0, 3), [1], True)),
    ],
    "aten.sum.default": [
        *(call(rand(3, 4, 5)), call(truths(9)), call(rand()), call(whole(9, 40))),
        *(call(whole(9, 3, 4), dtype=torch.float32), call(3 * X, dtype=torch.int64)),
    ],
    "aten.mean.dim": [*_over_axes(*SEVERAL), call(X, None), call(rand(3, 0), [1])],
    "aten.mean.default": [call(rand(3, 4, 5))],
    "aten.amax.default": [*_over_axes(*SEVERAL), call(whole(9, 3, 4), [0])],
    "aten.amin.default": [*_over_axes(*SEVERAL), call(whole(9, 3, 20), [-1]), call(truths(5), [0])],
    "aten.max.default": [call(rand(3, 4, 5)), call(whole(9, 3, 20))],
    "aten.min.default": [call(rand(3, 4, 5)), call(whole(9, 3, 20))],
    "aten.max.dim": [*_over_axes(1), call(whole(9, 3, 20), 1)],
    "aten.min.dim": [*_over_axes(1), call(whole(9, 3, 20), 0, True)],
    **{
        f"aten.{name}.correction": [
            call(X, [1], correction=0),
            call(X, [0], correction=1, keepdim=True),
            call(X),
        ]
        for name in ("var", "std")
    },
    **{f"aten.{n}.dim": [call(X, [1], False), call(X, [0], True, True)] for n in ("var", "std")},
    **{f"aten.{n}.default": [call(X), call(X, False)] for n in ("var", "std")},
    "aten.var_mean.correction": [call(X, [1], correction=0), call(X)],
    "aten.linalg_vector_norm.default": [
        *(call(X, order) for order in (2, 1, 0, 3, float("inf"), float("-inf"), 1.5)),
        call(rand(3, 4, 5), 2, [1], True),
    ],
    "aten.norm.ScalarOpt_dim": [call(X, 2, [1]), call(X, None, [0], True)],
    "aten.norm.ScalarOpt_dim_dtype": [call(X, 1, [1], True, dtype=torch.float64)],
    "aten.norm.Scalar": [call(X, 2)],
    "aten.logsumexp.default": [call(X, [1]), call(X, [0, 1], True)],
    **{f"aten.{name}.default": [call(truths(3, 4)), call(X)] for name in ("any", "all")},
    **{f"aten.{name}.dim": [call(truths(3, 2), 1), call(X, 0, True)] for name in ("any", "all")},
    **{f"aten.{name}.dims": [call(truths(3, 2, 2), [0, 1])] for name in ("any", "all")},
    "aten.argmax.default": [
        *(*_over_axes(1), call(X), call(X, None, True), call(whole(99, 3, 20), 1)),
        *(call(whole(99, 3, 4)), call(whole(99, 3, 4), 0, True)),
    ],
    "aten.argmin.default": [*_over_axes(1), call(X), call(whole(99, 3, 20), 1)],
    "aten.cumsum.default": [
        call(whole(9, 3, 4), 1),
        call(X, 1),
        call(rand(9, 2), 0),
        call(truths(5), 0),
        call(rand(1, 2), 0),
    ],
    "aten.histc.default": [
        call(torch.tensor([0.0, 3.0, 1.0, 1.0, 2.0, -1.0, 3.5]), 4, 0, 3),
        call(3 * rand(3, 7), 5, -1.0, 2.0),
    ],
    "aten.prod.dim_int": [
        *(call(X, 1), call(X, 0, True), call(whole(9, 3, 5), 1), call(truths(3, 5), 1)),
        call(whole(9, 3, 5), 1, dtype=torch.float32),
        *(call(torch.tensor(2.5), 0), call(torch.tensor(3), -1, True), call(rand(3, 0), 1)),
        *(call(rand(0, 3), 1), call(rand(2, 23), 1), call(1 + whole(2, 40).int(), 0)),
    ],
    "aten.prod.default": [
        *(call(X), call(torch.tensor(2.5)), call(whole(9, 5)), call(torch.zeros(0, 2))),
        call(X, dtype=torch.int64),
    ],
}
NORMALISATIONS = {
    "aten.stft.default": [
        call(rand(2, 30), 8, 4, 8, Known(torch.hann_window(8)), return_complex=False),
        call(rand(30), 6, 2, 4, None, True, False, return_complex=False),
    ],
    "aten.stft.center": [
        call(rand(2, 30), 8, 4, 8, Known(torch.hann_window(8)), True, return_complex=False)
    ],
    "aten.batch_norm.default": [
        call(IMAGE, *STATISTICS, False, 0.1, 1e-5, True),
        call(rand(3, 4), None, None, *STATISTICS[2:], False, 0.1, 1e-3, True),
    ],
    "aten._native_batch_norm_legit_no_training.default": [call(SEQUENCE, *STATISTICS, 0.1, 1e-5)],
    "aten.layer_norm.default": [
        call(X, [5], weight(5), weight(5)),
        call(rand(2, 3, 4), [3, 4], weight(3, 4), None, 1e-3),
        call(X, [5]),
    ],
    "aten.native_layer_norm.default": [call(X, [5], weight(5), weight(5), 1e-5)],
    "aten.rms_norm.default": [
        call(X, [5], weight(5), 1e-6),
        call(rand(2, 3, 4), [3, 4], None, 0.1),
    ],
    "aten.group_norm.default": [
        call(IMAGE, 2, weight(4), weight(4)),
        call(SEQUENCE, 4, None, None, 1e-3),
    ],
    "aten.native_group_norm.default": [call(SEQUENCE, weight(4), weight(4), 2, 4, 11, 2, 1e-5)],
    "aten.instance_norm.default": [
        call(IMAGE, weight(4), weight(4), None, None, True, 0.1, 1e-5, False),
        call(IMAGE, *STATISTICS, False, 0.1, 1e-5, False),
    ],
    **{
        f"aten.{name}": [call(rand(3, 4, 5), axis, last) for axis in (0, 1, -1)]
        for name, last in (
            ("softmax.int", None),
            ("log_softmax.int", None),
            ("_softmax.default", False),
            ("_log_softmax.default", False),
        )
    },
    "aten._safe_softmax.default": [
        call(X, 1),
        call(torch.tensor([[1.0, 2.0], [-torch.inf, -torch.inf]]), -1),
        call(rand(4, 3), 0),
    ],
    "aten.scaled_dot_product_attention.default": [
        call(*(rand(2, 3, 4, 6) for _ in range(3))),
        call(*(rand(2, 3, 4, 6) for _ in range(3)), is_causal=True),
        call(*(rand(3, 4, 6) for _ in range(3)), scale=0.3),
        call(*(rand(2, 3, 4, 6) for _ in range(3)), rand(4, 4)),
        call(*(rand(2, 3, 4, 6) for _ in range(3)), rand(2, 1, 1, 4)),
        call(*(rand(2, 3, 4, 6) for _ in range(3)), TRIANGLE),
        call(*(rand(2, 3, 4, 6) for _ in range(3)), Known(torch.full((4, 4), -torch.inf))),
        call(*(rand(2, 3, 4, 6) for _ in range(3)), truths(2, 1, 4, 4) | TRIANGLE.tensor),
        call(*(rand(2, 3, 4, 6) for _ in range(3)), torch.zeros(4, 4, dtype=torch.bool)),
        call(rand(2, 4, 5, 6), rand(2, 2, 5, 6), rand(2, 2, 5, 6), enable_gqa=True),
    ],
    "aten._scaled_dot_product_flash_attention_for_cpu.default": [
        call(*(rand(2, 3, 4, 6) for _ in range(3)), attn_mask=rand(4, 4), scale=0.3)
    ],
}
