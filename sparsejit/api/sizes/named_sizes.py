"""Named sizes: axes of a model's inputs that may have other lengths than in the example."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparsejit.errors import InvalidInput
from sparsejit.frontends.batch_axis import SizedInput, named_axes
from sparsejit.frontends.onnx import declared_inputs, is_onnx
from sparsejit.frontends.torch_export import OpenSize, names_of_places, sizes_of_program

Shape = tuple[int, ...]
# For each argument, by name or in order: sizes by axis, each a name or a torch.export.Dim.
DynamicShapes = Mapping[str, Any] | Sequence[Any]
_UNBOUNDED = 1 << 62


@dataclass(frozen=True)
class NamedSize:
    """A size that may change, from `least` to `most` elements."""

    name: str
    least: int = 0
    most: int = _UNBOUNDED

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise InvalidInput(f"size {self.name!r} has bounds {self.bounds}; give 0 <= min <= max")

    @property
    def largest(self) -> int | None:
        """The upper bound; None where there is none."""
        return None if self.most == _UNBOUNDED else self.most

    @property
    def bounds(self) -> str:
        """The bounds, in words."""
        largest = self.largest
        return f"at least {self.least}" if largest is None else f"{self.least} to {largest}"


@dataclass(frozen=True)
class NamedInput:
    """An input: its name, its shape in the example, and the named size of each axis, or None."""

    name: str
    shape: tuple[int, ...]
    sizes: tuple[NamedSize | None, ...]

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.shape):
            raise InvalidInput(
                f"input {self.name} has {len(self.sizes)} sizes and shape {self.shape}; give a "
                "size or None for each axis"
            )

    @classmethod
    def of(cls, name: str, shape: Shape, axes: Mapping[int, NamedSize]) -> NamedInput:
        """Return the input with these named axes."""
        return cls(name, shape, tuple(map(axes.get, range(len(shape)))))

    @property
    def axes(self) -> dict[int, NamedSize]:
        """The named sizes by axis."""
        return {axis: size for axis, size in enumerate(self.sizes) if size is not None}


class NamedSizes:
    """The sizes that `dynamic_shapes` names, for the flat list of a model's inputs.

    All axes with the same name have the same length.
    """

    def __init__(self, inputs: Sequence[NamedInput]) -> None:
        """Raise InvalidInput where the example's shapes do not fit the declared sizes."""
        self.inputs = tuple(inputs)
        self.check(self.example)

    def in_order(self, names: Sequence[str]) -> NamedSizes:
        """Return the same sizes, with the inputs of these names last, in this order."""
        last = {each.name: each for each in self.inputs if each.name in names}
        first = [each for each in self.inputs if each.name not in names]
        return NamedSizes([*first, *(last[name] for name in names)])

    @property
    def batch_axes(self) -> tuple[int | None, ...] | None:
        """The batch axis of each input; None where no named size is the batch."""
        return named_axes(
            [
                SizedInput(each.shape, {axis: size.name for axis, size in each.axes.items()})
                for each in self.inputs
            ]
        )

    @property
    def example(self) -> list[Shape]:
        """The shapes of the example."""
        return [each.shape for each in self.inputs]

    @property
    def has_others(self) -> bool:
        """Whether a size other than the batch may change."""
        batch = self.batch_axes or (None,) * len(self.inputs)
        pairs = zip(self.inputs, batch, strict=True)
        return any(axis != own for each, own in pairs for axis in each.axes)

    @property
    def are_bounded(self) -> bool:
        """Whether any named size has a lower or an upper bound."""
        sizes = [size for each in self.inputs for size in each.axes.values()]
        return any(size.least > 0 or size.largest is not None for size in sizes)

    def lengths(self, shapes: Sequence[Shape]) -> dict[str, int]:
        """Return the length of each named size, except the batch, in inputs of these shapes."""
        batch = self.batch_axes or (None,) * len(self.inputs)
        return {
            size.name: shape[axis]
            for each, shape, own in zip(self.inputs, shapes, batch, strict=True)
            for axis, size in each.axes.items()
            if axis != own
        }

    def bounds(self, name: str) -> tuple[int, int | None]:
        """Return the bounds of a size; None where there is no upper one."""
        every = (size for each in self.inputs for size in each.axes.values() if size.name == name)
        sizes = list(every)
        largest = min((each.largest for each in sizes if each.largest is not None), default=None)
        return max(each.least for each in sizes), largest

    def like(self, shapes: Sequence[Shape]) -> NamedSizes:
        """Return the same sizes, with these shapes as the example. Raises as `check`."""
        pairs = zip(self.inputs, shapes, strict=True)
        return NamedSizes([replace(each, shape=shape) for each, shape in pairs])

    def open_sizes(self) -> list[dict[int, OpenSize]]:
        """Return the sizes that may change, for each input by axis."""
        return [
            {axis: OpenSize(size.name, size.least, size.largest) for axis, size in axes.items()}
            for axes in (each.axes for each in self.inputs)
        ]

    def check(self, shapes: Sequence[Shape]) -> None:
        """Raise InvalidInput for shapes that do not fit; it names input, axis, size and bounds."""
        found: dict[str, tuple[int, str]] = {}
        for each, shape in zip(self.inputs, shapes, strict=True):
            if len(shape) != len(each.shape):
                raise InvalidInput(
                    f"input {each.name} has shape {tuple(shape)}; give {len(each.shape)} axes"
                )
            for axis, length in enumerate(shape):
                self._check_axis(each, axis, length, found)

    def _check_axis(
        self, each: NamedInput, axis: int, length: int, found: dict[str, tuple[int, str]]
    ) -> None:
        where, size = f"axis {axis} of input {each.name}", each.sizes[axis]
        if size is None:
            if length != each.shape[axis]:
                raise InvalidInput(
                    f"{where} has {length} elements and is fixed at {each.shape[axis]}; name it "
                    "in dynamic_shapes where it may change"
                )
            return
        if not size.least <= length <= size.most:
            raise InvalidInput(
                f"{where}, {size.name!r}, has {length} elements; it takes {size.bounds}"
            )
        known, elsewhere = found.setdefault(size.name, (length, where))
        if known != length:
            raise InvalidInput(
                f"{where}, {size.name!r}, has {length} elements, and {elsewhere} has {known}; "
                "one name is one size"
            )

    def shapes_for(self, sizes: Mapping[str, int]) -> list[Shape]:
        """Return the shapes of all inputs for these sizes, with all others as in the example.

        Raises InvalidInput for undeclared names, and for sizes out of bounds.
        """
        known = {size.name for each in self.inputs for size in each.axes.values()}
        for name, length in sizes.items():
            if name not in known:
                raise InvalidInput(
                    f"prepare({name}=...): the model's sizes are {', '.join(sorted(known))}"
                )
            if isinstance(length, bool) or not isinstance(length, int):
                raise InvalidInput(f"{name}={length!r}; give a number of elements")
        shapes = [_resized(each, sizes) for each in self.inputs]
        self.check(shapes)
        return shapes


def _resized(each: NamedInput, sizes: Mapping[str, int]) -> Shape:
    return tuple(
        length if size is None else sizes.get(size.name, length)
        for length, size in zip(each.shape, each.sizes, strict=True)
    )


def arguments_by_name(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], known: Container[str]
) -> dict[str, Any]:
    """Return the example arguments by the model's names for them, in the order of a call.

    The inputs of an ONNX model that are `known` are left out, as in a call. Raises InvalidInput for
    a model whose arguments have no names, and without examples.
    """
    if is_onnx(model):
        names = [each.name for each in declared_inputs(model) if each.name not in known]
    elif hasattr(model, "forward"):
        names = names_of_places(model, args)
    else:
        raise InvalidInput(
            f"dynamic_shapes is given with a {type(model).__name__}, which names its sizes itself; "
            "leave it out"
        )
    if len(args) > len(names) or not (args or kwargs):
        raise InvalidInput(
            "dynamic_shapes needs an example of each argument; give as many example_inputs as the "
            f"model has: {', '.join(names)}"
        )
    return {**dict(zip(names, args, strict=False)), **kwargs}


def named_sizes(given: DynamicShapes, examples: Mapping[str, Any]) -> NamedSizes:
    """Read `dynamic_shapes`, in the notation of torch.export.

    given: for each argument, by name or in order, a dict from axes to sizes, or a list with a size
        for each axis; None where nothing changes. A size is a name, or a torch.export.Dim.
    examples: the arguments by name, all tensors or arrays.

    Raises InvalidInput for other types, and for arguments and axes that do not exist.
    """
    if not isinstance(given, Mapping):
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise InvalidInput(
                f"dynamic_shapes is a {type(given).__name__}; give a dict by argument, such as "
                "{'x': {0: 'batch', 1: 'time'}}"
            )
        given = dict(zip(examples, given, strict=False))
    for name in given:
        if name not in examples:
            raise InvalidInput(
                f"dynamic_shapes names {name!r}; the model's arguments are {', '.join(examples)}"
            )
    inputs = []
    for name, example in examples.items():
        if not hasattr(example, "shape"):
            raise InvalidInput(
                f"argument {name} is a {type(example).__name__}; dynamic_shapes is for models "
                "whose arguments are tensors: free_shapes=True takes others"
            )
        shape = tuple(map(int, example.shape))
        inputs.append(NamedInput.of(name, shape, dict(_axes_of(name, given.get(name), len(shape)))))
    return NamedSizes(inputs)


def sizes_of_exported(program: Any, args: Sequence[Any]) -> NamedSizes | None:
    """Return the open sizes of an exported program, by their symbols.

    It is None unless all arguments are tensors passed by position.
    """
    names = list(program.graph_signature.user_inputs)
    if len(names) != len(args) or not all(hasattr(each, "shape") for each in args):
        return None
    axes: dict[str, dict[int, NamedSize]] = {name: {} for name in names}
    for each in sizes_of_program(program):
        most = _UNBOUNDED if each.most is None else each.most
        axes[each.input_name][each.axis] = NamedSize(each.symbol, each.least, most)
    shapes = [tuple(map(int, each.shape)) for each in args]
    return NamedSizes([NamedInput.of(n, s, axes[n]) for n, s in zip(names, shapes, strict=True)])


def _axes_of(name: str, given: Any, rank: int) -> Iterator[tuple[int, NamedSize]]:
    if given is None:
        return
    is_sequence = isinstance(given, Sequence) and not isinstance(given, str)
    if not isinstance(given, Mapping) and not is_sequence:
        raise InvalidInput(
            f"dynamic_shapes[{name!r}] is a {type(given).__name__}; give a dict from axes to names"
        )
    for axis, size in given.items() if isinstance(given, Mapping) else enumerate(given):
        if isinstance(axis, bool) or not isinstance(axis, int) or not -rank <= axis < rank:
            raise InvalidInput(f"dynamic_shapes[{name!r}] has axis {axis!r}; it has {rank} axes")
        if size is not None:
            yield axis % rank, _size_of(f"dynamic_shapes[{name!r}][{axis}]", size)


def _size_of(where: str, given: Any) -> NamedSize:
    if isinstance(given, str):
        return NamedSize(given)
    name, least, most = (getattr(given, part, None) for part in ("__name__", "min", "max"))
    if not isinstance(name, str) or not isinstance(least, int | None):
        raise InvalidInput(f"{where} is {given!r}; give a name, or a torch.export.Dim with one")
    return NamedSize(name, least or 0, most if isinstance(most, int) else _UNBOUNDED)
