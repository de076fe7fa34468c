"""Conversion of an exported graph, node by node, to a Graph.

    computed      operators of tensors that are known at compile time, computed by torch
    graph_of      the conversion
    Interpreter   its state while it runs nodes in order
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends.arrays import is_tensor
from sparsejit.frontends.torch_export.aten.complex_values import complex_dtype, pairs
from sparsejit.frontends.torch_export.aten.open_sizes import OPENING
from sparsejit.frontends.torch_export.aten.table import COMPLEX_OPERATORS, OPERATORS
from sparsejit.frontends.torch_export.decomposing import decomposed
from sparsejit.frontends.torch_export.open_symbols import OpenSymbols, examples_of
from sparsejit.frontends.torch_export.tracing import origin_of
from sparsejit.frontends.writing.complex_values import Complex, from_last_axis, on_last_axis
from sparsejit.frontends.writing.missing import Missing, refuse
from sparsejit.frontends.writing.unwritten import without_unwritten
from sparsejit.frontends.writing.writer import Unmapped, Writer, element_of, type_of
from sparsejit.ir.dtypes import LARGEST, SHORT_FLOATS, dtype_named
from sparsejit.ir.graph import Graph
from sparsejit.ir.values import Array, Element, Origin, TensorType, Value

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule, Node

def computed(target: Any, args: Any, kwargs: Any, example: Any) -> Any:
    """Return an operator's result, computed in float32 where torch lacks it for short floats.

    `example` has the dtype of the result. Raises Unmapped with torch's message.
    """
    import torch

    with torch.no_grad():
        try:
            return target(*args, **kwargs)
        except Exception as error:  # of whatever type torch raises
            reason = str(error).partition("\n")[0]
        if not _is_short(example):
            raise Unmapped(reason)
        args, kwargs = each((args, kwargs), lambda x: x.float() if _is_short(x) else x)
        try:
            return target(*args, **kwargs).to(example.dtype)
        except Exception:  # as before
            raise Unmapped(reason) from None


def each(nest: Any, change: Callable[[Any], Any]) -> Any:
    """A nest of lists, tuples and dicts with its leaves changed; tuples become lists."""
    if isinstance(nest, list | tuple):
        return [each(item, change) for item in nest]
    if isinstance(nest, dict):
        return {key: each(item, change) for key, item in nest.items()}
    return change(nest)


def _is_short(x: Any) -> bool:
    return is_tensor(x) and str(x.dtype).removeprefix("torch.") in SHORT_FLOATS


# Stands for the result of a missing operator that no graph can hold.
_ABSENT = object()
# The result of a node of the exported graph: a value, a known tensor, a number, or a list.
Result = Any


def graph_of(
    module: GraphModule,
    constants: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int] | None = None,
    arrays: dict[str, Array] | None = None,
    names: Mapping[str, Origin] | None = None,
    results: Sequence[int] | None = None,
    states: Sequence[str] = (),
) -> Graph:
    """The graph of a module of ATen operators whose nodes carry fake tensors (`meta["val"]`).

    Placeholders named in `constants` are known; the other tensors are inputs, in their order.
    `sizes` has the numbers of symbols in shapes; others have their number in torch's example.
    `arrays` keeps constants as arrays for further graphs, and `names` has their origins, both by
    placeholder. Outputs are the module's result tensors with the numbers `results`, or all. Inputs
    of placeholders named in `states` come last, in that order. A complex input or output is float32
    with a last axis of two, the real and the imaginary part. Raises UnsupportedOperator, which
    lists every operator that has no mapping, and InvalidInput for an input of a dtype that no graph
    holds.
    """
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():  # a compiler that torch calls runs in such a mode
        return _graph_of(module, constants, sizes or {}, arrays, names or {}, results, states)


def missing_in(
    module: GraphModule, constants: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
) -> list[Missing]:
    """The operators that `graph_of` would refuse, by origin; inputs may have any dtype."""
    interpreter = Interpreter(Writer(), sizes)
    interpreter.opening = {}  # a part of a graph returns arrays of known sizes
    given = [
        constants[node.name].detach()
        if node.name in constants
        else interpreter.stand_in(node.meta.get("val"))
        for node in module.graph.nodes
        if node.op == "placeholder"
    ]
    interpreter.run(module, given)
    return interpreter.missing


def _graph_of(
    module: GraphModule,
    constants: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int],
    arrays: dict[str, Array] | None,
    names: Mapping[str, Origin],
    results: Sequence[int] | None,
    states: Sequence[str],
) -> Graph:
    write = Writer(arrays)
    interpreter = Interpreter(write, sizes)
    given: dict[Node, Result] = {}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    order = {name: number for number, name in enumerate(states)}
    for node in sorted(placeholders, key=lambda node: order.get(node.name, -1)):
        origin = names.get(node.name, Origin(node.name))
        if node.name in constants:
            given[node] = constants[node.name].detach()
            write.name(given[node], node.name, origin)
        else:
            given[node] = interpreter.input(node, origin.name)
    made = leaves(interpreter.run(module, [given[node] for node in placeholders]))
    if interpreter.missing:
        refuse(interpreter.missing)
    examples = examples_of(module.graph.output_node())
    numbers = range(len(made)) if results is None else results
    wanted = pairs(write, [made[number] for number in numbers])
    whole = write.finish(*(_as_output(write, x) for x in wanted if is_value(x)))
    graph, missing = without_unwritten(whole, interpreter.unwritten)
    if not missing:
        tensors = [examples[number] for number in numbers if is_tensor(examples[number])]
        graph, missing = interpreter.open.finished(graph, tensors)
    if missing:
        refuse(missing)
    return graph


def is_value(x: Result) -> bool:
    """Whether x is a tensor: a value of the graph, a complex one, or a known tensor of torch."""
    return isinstance(x, Value | Complex) or is_tensor(x)


def _as_output(write: Writer, x: Result) -> Result:
    return on_last_axis(write, x) if isinstance(x, Complex) else x


def leaves(nest: Result) -> list[Result]:
    """The leaves of nested lists and tuples, in order."""
    if isinstance(nest, list | tuple):
        return [leaf for item in nest for leaf in leaves(item)]
    return [nest]


class Interpreter:
    """Runs nodes in order, and collects operators without a mapping in `missing`."""

    def __init__(self, write: Writer, sizes: Mapping[str, int]) -> None:
        self.write, self.sizes = write, sizes
        self.missing: list[Missing] = []
        # Inputs that stand for memory which an operator reserves, with the operator's name.
        self.unwritten: dict[Value, str] = {}
        self.open = OpenSymbols()
        self.opening: Mapping[str, Callable[..., Any]] = OPENING
        self._inside = 0  # depth of decompositions; they keep the outer operator's origin

    def input(self, node: Node, name: str) -> Result:
        """The input of a placeholder, or the number that torch took for constant."""
        example = node.meta.get("val")
        if not is_tensor(example):
            return self._number(example)
        try:
            return self._input(example, name)
        except Unmapped as reason:
            raise InvalidInput(
                f"input {name} has {reason}; give float16 to float64, complex64, bool, or "
                "whole numbers of uint8 or int8 to int64"
            ) from None

    def _input(self, example: Any, name: str) -> Result:
        """An input for a tensor of a call. Raises Unmapped for one that no graph can hold."""
        dtype = complex_dtype(example)
        if dtype == "complex32":
            raise Unmapped("dtype complex32")
        if dtype:
            kind = TensorType((*self._shape(example), 2))
            return from_last_axis(self.write, self.write.input(kind, name))
        return self.write.input(self._type(example), name, dtype_of(example))

    def run(self, module: GraphModule, given: Sequence[Result]) -> Result:
        """Run a module's nodes for these arguments, and return its results."""
        known: dict[Node, Result] = {}
        arguments = iter(given)
        live = _live(module)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                known[node] = next(arguments)
            elif node.op == "get_attr":
                known[node] = _attribute(module, str(node.target))
            elif node.op == "output":
                return self._resolved(node.args[0], known)
            elif node in live:
                if not self._inside:
                    self.write.origin = origin_of(node)
                arguments_ = self._resolved(node.args, known)
                known[node] = self._call(node, arguments_, self._resolved(node.kwargs, known))
        return None

    def _resolved(self, nest: Any, known: Mapping[Node, Result]) -> Any:
        from torch.fx import Node

        if isinstance(nest, Node):
            return known[nest]
        if isinstance(nest, list | tuple):
            return type(nest)(self._resolved(item, known) for item in nest)
        if isinstance(nest, dict):
            return {key: self._resolved(item, known) for key, item in nest.items()}
        if isinstance(nest, slice):
            return nest
        return self._number(nest)

    def _number(self, x: Any) -> Any:
        """A size of torch as a number: given, the example's, or the bound where a mask decides it.

        It is _ABSENT where other values decide it. Other objects are returned as they are.
        """
        if not hasattr(x, "node") or not hasattr(x.node, "expr"):
            return x
        expression = x.node.expr
        numbers = {
            symbol: self.sizes.get(str(symbol), x.node.shape_env.backed_var_to_val.get(symbol))
            for symbol in expression.free_symbols
        }
        bounds = {symbol: self.open.bound(str(symbol)) for symbol in numbers}
        numbers |= {symbol: bound for symbol, bound in bounds.items() if bound is not None}
        if None in numbers.values():
            return _ABSENT
        result = expression.subs(numbers)
        if result.is_Boolean:
            return bool(result)
        return int(result) if result.is_integer else float(result)

    def _call(self, node: Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Result:
        target: Any = node.target
        try:
            if (size := self.open.of(node.meta.get("val"))) is not None:
                return size
            args, kwargs = self.open.operands(node, (args, kwargs))
        except Unmapped as reason:
            return self._leave_out(node, str(target), str(reason))
        if not hasattr(target, "_schema"):
            return self._python(node, target, args, kwargs)
        target = functional(target)
        if any(leaf is _ABSENT for leaf in leaves([*args, *kwargs.values()])):
            return self.stand_in(node.meta.get("val"))
        if target._schema.name == "aten::squeeze" and isinstance(args[0], Value | Complex):
            args = [args[0], _always_one(node, len(args[0].shape))]
        try:
            if target._schema.name in _OF_STORAGE and not _fills_its_storage(node):
                raise Unmapped("reads a view, whose memory a graph does not have")
            result = self._mapped(target, args, kwargs, node.meta.get("val"))
            self._check_shape(result, node.meta.get("val"))
            return result
        except Unmapped as reason:
            return self._leave_out(node, str(target), str(reason))
        except InvalidInput as reason:
            return self._leave_out(node, str(target), str(reason))

    def _check_shape(self, result: Result, example: Any) -> None:
        """Raise Unmapped for a value of another shape than torch's, as a decomposition may give."""
        if not isinstance(result, Value | Complex) or not is_tensor(example):
            return
        shape = [self._number(n) for n in example.shape]
        if _ABSENT not in shape and list(result.shape) != shape:
            raise Unmapped(f"its result has shape {list(result.shape)} here, {shape} in torch")

    def _mapped(
        self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], example: Any
    ) -> Result:
        """The results of an operator, in the dtypes of `example`."""
        import torch

        made = [dtype_of(leaf) for leaf in leaves([example]) if is_tensor(leaf)]
        name = target._schema.name.removeprefix("aten::")
        jumps = name in _JUMPING or kwargs.get("rounding_mode") is not None
        args, kwargs = each((args, kwargs), lambda leaf: self.write.read(leaf, made, jumps))
        operands = [*args, *kwargs.values()]
        dtype = complex_dtype([*operands, example])
        mapping = (COMPLEX_OPERATORS if dtype else OPERATORS).get(str(target))
        if mapping is None and torch.Tag.nondeterministic_seeded in target.tags:
            raise Unmapped("draws random numbers")
        if target._schema.name in _RESERVING:
            return self._reserved(target, args, example)
        if not any(isinstance(leaf, Value | Complex) for leaf in leaves(operands)):
            return self._with_weights(name, operands, computed(target, args, kwargs, example))
        if dtype == "complex32":
            raise Unmapped("computes in complex32; compute in complex64")
        if dtype:
            args, kwargs = pairs(self.write, (args, kwargs))
        elif (opened := self._opened(target, args, kwargs, example)) is not None:
            return opened
        args, kwargs = each((args, kwargs), _held)
        if mapping is None:
            reason = f"of {dtype}; give real and imaginary parts as two tensors"
            return self._decomposed(target, args, kwargs, Unmapped(reason if dtype else ""))
        try:
            return self._typed(mapping(self.write, *args, **_meaningful(kwargs)), example)
        except Unmapped as reason:
            return self._decomposed(target, args, kwargs, reason)

    def _with_weights(self, name: str, operands: Sequence[Any], made: Any) -> Any:
        """Return a computed tensor, noting the weights it is made of if it keeps their zeros."""
        noted = [self.write.origin_of(leaf) for leaf in leaves(operands)]
        weights = tuple(dict.fromkeys(weight for each in noted for weight in each.weights))
        is_computed = any(each.is_computed for each in noted)
        if weights and (name in _KEEPING_ZEROS or (is_computed and len(weights) == 1)):
            for tensor in filter(is_tensor, leaves([made])):
                origin = Origin("", weights=weights, is_computed=is_computed)
                self.write.name(tensor, "", origin)
        return made

    def _opened(
        self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], example: Any
    ) -> Result:
        """The result of an operator such as x[mask], one of whose sizes values decide.

        Returns None for an operator that leaves no size open.
        """
        row = self.opening.get(str(target))
        opened = row(self.write, *args, **_meaningful(kwargs)) if row else None
        if opened is None:
            return None
        result, size = opened
        self.open.note(example, size)
        return self._typed(result, example)

    def _reserved(self, target: Any, args: Sequence[Any], example: Any) -> Result:
        """A graph input that stands for the unwritten memory of an operator such as `empty`."""
        sizes = [arg for arg in args if isinstance(arg, list | tuple)]
        shape = sizes[0] if sizes else self.write.shape(args[0])
        if complex_dtype(example):
            parts = [self._reserved(target, args, example.real) for _ in range(2)]
            return Complex(*parts)
        kind = TensorType(tuple(shape), element_of(example.dtype))
        if not kind.size:
            return self.write.constant(np.zeros(shape, kind.element.value), "empty")
        value = self.write.input(kind, self.write.origin.name, dtype_of(example))
        self.unwritten[value] = str(target)
        return value

    def _decomposed(
        self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], reason: Unmapped
    ) -> Result:
        """Run torch's decomposition of the operator. Raises `reason` if it has none."""
        parts = decomposed(target, args, kwargs, self.write.dtype)
        if parts is None:
            raise reason
        module, given = parts
        self._inside += 1
        before, self.missing = self.missing, []
        try:
            result = self.run(module, given)
        finally:
            self._inside -= 1
            inner, self.missing = self.missing, before
        if inner:
            raise Unmapped(str(reason) or "needs " + ", ".join(each.operator for each in inner))
        return result

    def _typed(self, result: Result, example: Any) -> Result:
        """A result with torch's dtypes. Raises Unmapped for whole numbers that came as floats."""
        if isinstance(result, list | tuple) and isinstance(example, list | tuple):
            return [self._typed(*pair) for pair in zip(result, example, strict=False)]
        if not isinstance(result, Value) or not is_tensor(example):
            return result
        element = element_of(example.dtype)
        if element is Element.INT64 and result.type.element is Element.FLOAT32:
            raise Unmapped("of whole numbers")
        return self.write.noted(self.write.cast(result, element), dtype_named(example.dtype))

    def _python(
        self, node: Node, target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Result:
        """Results of Python functions: arithmetic of sizes, items of lists, grad mode regions."""
        if target is operator.getitem and isinstance(args[0], list | tuple):
            part = args[0][args[1]]
            if part is not None or not is_tensor(node.meta.get("val")):
                return part
            whole: Any = node.args[0]
            return self._leave_out(node, str(whole.target), f"without its result {args[1]}")
        name = getattr(target, "__name__", str(target))
        if name in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
            first = next(n for n, x in enumerate(args) if hasattr(x, "graph"))
            return self.run(args[first], args[first + 1 :])
        if any(is_value(leaf) for leaf in leaves([*args, *kwargs.values()])):
            return self._leave_out(node, name, "")
        return target(*args, **kwargs)

    def _leave_out(self, node: Node, name: str, reason: str) -> Result:
        """Note a missing operator, and return stand-ins, so that others are found as well."""
        self.missing.append(Missing(name, reason, self.write.origin))
        return self.stand_in(node.meta.get("val"))

    def stand_in(self, example: Any) -> Result:
        """An input like the example, or _ABSENT where no graph can hold it."""
        if isinstance(example, list | tuple):
            return [self.stand_in(item) for item in example]
        if not is_tensor(example):
            return self._number(example)
        try:
            return self._input(example, self.write.origin.name)
        except Unmapped:
            return _ABSENT

    def _type(self, example: Any) -> Any:
        return type_of(_Sized(self._shape(example), example.dtype))

    def _shape(self, example: Any) -> Sequence[int]:
        sizes = [self._number(n) for n in example.shape]
        if any(size is _ABSENT for size in sizes):
            raise Unmapped("its size depends on values")
        return sizes


def dtype_of(example: Any) -> str:
    """numpy's name of a tensor's dtype."""
    return str(example.dtype).removeprefix("torch.")


# Operators that reserve memory and leave it, or a part of it, unwritten.
_RESERVING = {
    *("aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided"),
    *("aten::new_empty_strided", "aten::empty_permuted", "aten::resize", "aten::resize_as"),
}


# Operators whose results are 0 where an operand is 0, or hold the operands as they are.
_KEEPING_ZEROS = {
    *("mul", "div", "neg", "_to_copy", "to", "clone", "alias", "contiguous", "detach"),
    *("t", "transpose", "permute", "numpy_T", "mT", "view", "_unsafe_view", "reshape", "flatten"),
    *("unflatten", "squeeze", "unsqueeze", "expand", "select", "slice", "split", "unbind", "flip"),
    *("split_with_sizes", "chunk", "narrow", "cat", "stack", "concat", "index_select"),
}


# Functions whose results may differ much for operands that hardly differ.
_JUMPING = {
    *("floor", "ceil", "round", "trunc", "fix", "frac", "sign", "sgn", "nan_to_num"),
    *("floor_divide", "remainder", "fmod", "hardshrink", "threshold", "heaviside"),
}


def _held(leaf: Any) -> Any:
    """A finite float beyond float32 as float32's largest; any other leaf as it is.

    Masks contain such a number, the least of float64.
    """
    is_beyond = isinstance(leaf, float) and LARGEST < abs(leaf) < math.inf
    return math.copysign(LARGEST, leaf) if is_beyond else leaf


class _Sized:
    """A stand-in for a tensor, with its shape and dtype alone."""

    def __init__(self, shape: Sequence[int], dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype


# Arguments for the device or the layout of a result.
_PLACEMENT = {"layout", "device", "pin_memory", "memory_format", "non_blocking", "copy"}


def _meaningful(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key not in _PLACEMENT}


# Operators that read memory wherever a tensor lies in it.
_OF_STORAGE = {f"aten::as_strided{kind}" for kind in ("", "_copy", "_scatter")}


def _fills_its_storage(node: Node) -> bool:
    """Whether the first operand lies in row-major order, alone in its memory."""
    source: Any = node.args[0]
    example = source.meta.get("val") if hasattr(source, "meta") else source
    if not is_tensor(example):
        return True
    alone = example.untyped_storage().nbytes() == example.numel() * example.element_size()
    return bool(alone and example.is_contiguous())


def functional(target: Any) -> Any:
    """`aten.relu.default` for `aten.relu_.default`; all others as they are."""
    import torch

    namespace, name = target._schema.name.split("::")
    if not target._schema.is_mutable or not name.endswith("_"):
        return target
    packet = getattr(getattr(torch.ops, namespace), name[:-1], None)
    return getattr(packet, target._overloadname, target)


def _always_one(squeeze: Node, rank: int) -> list[int]:
    """The axes that an exported squeeze may remove: the batch, of a free size, always stays."""
    source: Any = squeeze.args[0]
    named = squeeze.args[1] if len(squeeze.args) > 1 else range(rank)
    axes: Any = [named] if isinstance(named, int) else named
    sizes = source.meta["val"].shape if "val" in source.meta else ()
    return [axis for axis in axes if not sizes or isinstance(sizes[axis], int)]


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module.detach() if is_tensor(module) else module


def _live(module: GraphModule) -> set[Node]:
    """The nodes that outputs depend on; checks of sizes are not among them."""
    live: set[Node] = set()
    waiting = [node for node in module.graph.nodes if node.op == "output"]
    while waiting:
        node = waiting.pop()
        if node not in live:
            live.add(node)
            waiting += node.all_input_nodes
    return live
