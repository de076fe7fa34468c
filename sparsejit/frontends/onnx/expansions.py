"""Operators of quantised files that are others in a row: DequantizeLinear, the operator, and back.

QLinearConv(x, W, b)  ->  x, W, b = DequantizeLinear(...); y = Conv(x, W, b); QuantizeLinear(y)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import NodeProto


def _convolution(node: NodeProto) -> list[NodeProto]:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = node.input
    name = node.output[0]
    terms, made = [], []
    if bias and bias[0]:
        terms = [f"{name}/bias"]
        made = [
            _node("Mul", [x_scale, w_scale], f"{name}/bias scale"),
            _node("DequantizeLinear", [bias[0], f"{name}/bias scale"], terms[0], axis=0),
        ]
    operands = [f"{name}/x", f"{name}/w", *terms]
    return [
        *made,
        _node("DequantizeLinear", [x, x_scale, x_zero], operands[0]),
        _node("DequantizeLinear", [w, w_scale, w_zero], operands[1], axis=0),
        _node("Conv", operands, f"{name}/y", like=node),
        _node("QuantizeLinear", [f"{name}/y", y_scale, y_zero], name),
    ]


def _product(node: NodeProto) -> list[NodeProto]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.input
    name = node.output[0]
    operands = [f"{name}/a", f"{name}/b"]
    return [
        _node("DequantizeLinear", [a, a_scale, a_zero], operands[0], axis=-2),
        _node("DequantizeLinear", [b, b_scale, b_zero], operands[1], axis=-1),
        _node("MatMul", operands, f"{name}/y", like=node),
        _node("QuantizeLinear", [f"{name}/y", y_scale, y_zero], name),
    ]


def _node(
    operator: str, inputs: list[str], output: str, like: NodeProto | None = None, **more: Any
) -> NodeProto:
    """A node; one that is `like` another has its name and attributes."""
    from onnx.helper import make_node

    made = make_node(operator, inputs, [output], like.name if like is not None else "", **more)
    if like is not None:
        made.attribute.extend(like.attribute)
    return made


EXPANSIONS: Mapping[str, Callable[[NodeProto], list[NodeProto]]] = {
    "QLinearConv": _convolution,
    "QLinearMatMul": _product,
}


def expanded(node: NodeProto) -> list[NodeProto]:
    """The nodes that stand for a node: itself, where it is of no such operator."""
    expansion = EXPANSIONS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    return [node] if expansion is None else expansion(node)
