"""The function that dynamo calls: its graph in ATen operators, compiled by parts.

    fused_layers        decompositions of layers that torch runs as one operator where no gradients
                        are needed
    compiled_by_parts   the function; aot_autograd lowers the graph to ATen operators

aot_autograd undoes writes and views of inputs. Its graph computes new tensors only: aot_autograd
itself writes into inputs afterwards, and makes outputs that are views of inputs. Parameters are
among the graph's inputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from sparsejit.frontends.arrays import is_tensor
from sparsejit.frontends.dynamo.part import CompilePart, described, say_once
from sparsejit.frontends.dynamo.splitting import Captured, split

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

def fused_layers() -> dict[Any, Callable[..., Any]]:
    """Return functions that write fused operators by others; NotImplemented leaves one to torch."""
    import torch

    return {torch.ops.aten._transformer_encoder_layer_fwd.default: _encoder_layer}


def _encoder_layer(
    x: Any,
    width: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    out_weight: Any,
    out_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    *others: Any,
) -> Any:
    """torch.nn.TransformerEncoderLayer in evaluation, x (batch, length, width), without masks."""
    from torch.nn import functional

    norms, feed_forward, masks = others[:4], others[4:8], others[8:]
    if any(mask is not None for mask in masks) or x.dim() != 3 or x.is_nested:
        return NotImplemented

    def normed(y: Any, layer: int) -> Any:
        weight, bias = norms[2 * layer : 2 * layer + 2]
        return functional.layer_norm(y, (width,), weight, bias, eps)

    def attention(y: Any) -> Any:
        batch, length, _ = y.shape
        three = functional.linear(y, qkv_weight, qkv_bias).reshape(batch, length, 3, heads, -1)
        query, key, value = three.permute(2, 0, 3, 1, 4).unbind(0)
        each = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
        return functional.linear(each.reshape(batch, length, width), out_weight, out_bias)

    def forward(y: Any) -> Any:
        hidden = functional.linear(y, *feed_forward[:2])
        active = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
        return functional.linear(active, *feed_forward[2:])

    if norm_first:
        x = x + attention(normed(x, 0))
        return x + forward(normed(x, 1))
    x = normed(x + attention(x), 0)
    return normed(x + forward(x), 1)


def compiled_by_parts(
    module: GraphModule, inputs: Sequence[Any], compile_part: CompilePart
) -> Callable[..., Any]:
    """Return the function that dynamo calls; torch runs the graph if gradients are needed."""
    import torch
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    tensors = [*filter(is_tensor, inputs), *module.parameters()]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        say_once("gradients are enabled; call the model under torch.no_grad()")
        return module.forward
    names = [_path(node) for node in module.graph.nodes if node.op == "placeholder"]

    def inference(captured: GraphModule, _: Sequence[Any]) -> Callable[[list[Any]], Any]:
        return _FirstCall(_captured(captured, names), compile_part)

    with _whole_operators():
        return aot_autograd(
            fw_compiler=lambda traced, _: make_boxed_func(traced.forward),
            inference_compiler=inference,
            decompositions=fused_layers(),
        )(module, inputs)


class _FirstCall:
    """Splits the module at its first call: only then are the parameters known."""

    _boxed_call = True  # takes all arguments in one list, which it empties

    def __init__(self, captured: Captured, compile_part: CompilePart) -> None:
        self._captured, self._compile_part = captured, compile_part
        self._forward: Callable[..., Any] | None = None

    def __call__(self, arguments: list[Any]) -> Any:
        inputs = list(arguments)
        arguments.clear()
        if self._forward is None:
            self._forward = self._split(inputs)
        return self._forward(*inputs)

    def _split(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        try:
            return split(self._captured, inputs, self._compile_part)
        except Exception as error:  # an error in sparsejit must not stop a model of torch
            say_once(described(error))
            return self._captured.module.forward


def _captured(module: GraphModule, names: Sequence[str]) -> Captured:
    """Name the parameters and buffers that the model does not write, by place of their input."""
    import torch

    context = torch._guards.TracingContext.try_get()
    metadata: Any = context.fw_metadata if context is not None else None
    if metadata is None:
        return Captured(module, {})
    written = set(metadata.mutated_inp_runtime_indices)
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    constants = {
        place: _name(nodes[place], names)
        for place in metadata.static_input_indices
        if place not in written
    }
    return Captured(module, constants)


def _name(node: Node, names: Sequence[str]) -> str:
    """The user's name of a placeholder of aot_autograd, such as `layers.0.weight`."""
    described: Any = node.meta.get("desc")
    if hasattr(described, "target"):
        return str(described.target)
    place = getattr(described, "idx", len(names))
    return names[place] if place < len(names) else node.name


def _path(node: Node) -> str:
    """A tensor's name in the user's model, such as `layers.0.weight`, from a node's source.

    dynamo's source is L['self']._modules['layers']._modules['0']._parameters['weight'].
    """
    name: Any = getattr(getattr(node, "_dynamo_source", None), "name", node.name)
    source = str(name() if callable(name) else name)
    parts = re.findall(r"\['([^']*)'\]|\.(?!_modules|_parameters|_buffers)(\w+)", source)
    return ".".join(key or attribute for key, attribute in parts[1:]) or node.name


# aot_autograd would decompose these into hundreds of operators, one time step after the other.
_WHOLE = ("gru", "lstm", "rnn_tanh", "rnn_relu")


def _whole_operators() -> AbstractContextManager[Any]:
    """Context in which aot_autograd does not decompose operators that are mapped as a whole."""
    import torch

    try:
        from torch.export import exported_program

        keep = exported_program._override_composite_implicit_decomp
        mark = exported_program._special_op_to_preserve_cia
    except (ImportError, AttributeError):  # private to torch; without them, layers are decomposed
        return nullcontext()
    return keep(dict(_overloads(torch.ops.aten, mark)))


def _overloads(aten: Any, mark: Any) -> Iterator[tuple[Any, Any]]:
    for name in _WHOLE:
        yield getattr(aten, name).input, mark
    yield aten.linear.default, mark
    yield aten.scaled_dot_product_attention.default, mark
