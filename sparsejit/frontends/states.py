"""States of a model: given by the user's names, found by names that exporters write, or its own.

    ModelInterface    the inputs and outputs of a model by name, and its own states
    RULES        names of states before and after a call, a row for each convention
    states_of    the states of a model
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sparsejit.errors import InvalidInput, suggest
from sparsejit.frontends.nesting import Nest, dtypes, paths
from sparsejit.ir.graph import Graph
from sparsejit.ir.state import State, check_states
from sparsejit.ir.values import Element

AUTO = "auto"
# Inputs by the outputs that they take, each a name or a position; or "auto".
GivenStates = Mapping[str | int, str | int] | str
# The name of an input or output, and the keys and positions that lead to a tensor inside it.
Path = tuple[str, ...]


class ModelInterface(NamedTuple):
    """Inputs and outputs of a model: the nests of a call, and the path to each of their tensors.

    `own_states` are states beyond these tensors, with inputs and outputs of the graph behind them.
    """

    inputs: Nest
    outputs: Nest
    input_paths: Sequence[Path]
    output_paths: Sequence[Path]
    own_states: tuple[State, ...] = ()


def interface_of(
    inputs: Nest,
    outputs: Nest,
    arguments: Sequence[str] = (),
    own_states: Sequence[State] = (),
) -> ModelInterface:
    """The interface of a model whose arguments by position have these names.

    Without names, arguments and results are called by their positions.
    """
    by_place, by_name = inputs.items
    names = list(arguments[: len(by_place.items)]) or list(map(str, range(len(by_place.items))))
    items = zip(names, by_place.items, strict=True)
    given = [(name, *rest) for name, item in items for rest in paths(item)]
    made = [path or ("0",) for path in paths(outputs)]
    return ModelInterface(inputs, outputs, [*given, *paths(by_name)], made, tuple(own_states))


# Shape, element, and the dtype in the model where that differs.
_Kind = tuple[tuple[int, ...], Element, str]


class Naming(NamedTuple):
    """Names of a state before and after a call; `before` is a pattern, `after` its expansion.

    `is_plain`: inputs that are no states may have such names too, as x and x_out may.
    """

    before: str
    after: str
    origin: str
    is_plain: bool = False


RULES = (
    Naming(r"([hc])", r"\1n", "Silero VAD 3 and 4"),
    Naming(r"([hc])_?0", r"\1n", "arguments of torch.nn.GRU and LSTM"),
    Naming(r"([hc])_?0", r"\1_n", "arguments of torch.nn.GRU and LSTM"),
    Naming(r"(states?)", r"\1N", "Silero VAD 5"),
    Naming(r"in_(.*cache.*)", r"out_\1", "FunASR"),
    Naming(r"(att_cache|cnn_cache)", r"r_\1", "WeNet"),
    Naming(r"(cache_.*)_len", r"\1_next_len", "NeMo"),
    Naming(r"past_key_values?\.(.*)", r"present.\1", "Hugging Face Optimum"),
    Naming(r"past_(.*)", r"present_\1", "ONNX Runtime's transformers"),
    Naming(r"(.*)_in", r"\1_out", "RSL-RL", True),
    Naming(r"in_(.*)", r"out_\1", "FunASR", True),
    Naming(r"input_(.*)", r"output_\1", "NeMo", True),
    Naming(r"(.*)", r"\1_out", "GTCRN", True),
    Naming(r"(.*)", r"\1_next", "NeMo", True),
    Naming(r"(.*)", r"next_\1", "icefall", True),
    Naming(r"(.*)", r"new_\1", "icefall, DeepFilterNet", True),
    Naming(r"(.*)", r"\1_new", "the opposite order of new_x", True),
)


def states_of(
    given: GivenStates | None, interface: ModelInterface, graph: Graph, tile: int | None = None
) -> tuple[State, ...]:
    """All states of a model: the ones that a user gives or asks to find, then its own.

    `graph` is the model's for a batch of `tile` samples, or, where that is None, a fixed one.
    Raises InvalidInput for names that the model lacks, for types that differ, and where none is
    found.
    """
    found: list[State] = []
    if isinstance(given, str):
        if given != AUTO:
            raise InvalidInput(
                f"state={given!r}; give a dict from inputs to outputs, or {AUTO!r} to find them by "
                "their names"
            )
        found = list(_found(interface, graph))
    elif given is not None:
        if not isinstance(given, Mapping):
            raise InvalidInput(
                f"state is a {type(given).__name__}; give a dict from inputs to outputs, such as "
                f"{{'h': 'hn'}}, or {AUTO!r}"
            )
        found = [state for pair in given.items() for state in _tied(*pair, interface)]
    states = (*found, *interface.own_states)
    if given == AUTO and not states:
        raise InvalidInput(
            f"state={AUTO!r} finds no state: no input has a name and a type that tie it to an "
            f"output. The inputs are {_listed(interface.input_paths)}; the outputs are "
            f"{_listed(interface.output_paths)}. Give a dict from inputs to outputs"
        )
    _check_dtypes(interface, found)
    check_states(graph, states, tile)
    return states


def _check_dtypes(interface: ModelInterface, states: Sequence[State]) -> None:
    """Raise InvalidInput for dtypes that differ in the model, if not in its graph."""
    before, after = dtypes(interface.inputs), dtypes(interface.outputs)
    for state in states:
        pair = before[state.input], after[state.output]
        if pair[0] != pair[1]:
            first, second = (name or "float32, int64 or bool" for name in pair)
            raise InvalidInput(
                f"state {state.name} is {first} before a call and {second} after it; tie an input "
                "to an output of the same shape and dtype"
            )


def _tied(before: str | int, after: str | int, interface: ModelInterface) -> Iterator[State]:
    """States that tie all tensors of an input to the tensors of an output of the same form."""
    first = _NamedTensors("input", interface.input_paths).found(before)
    second = _NamedTensors("output", interface.output_paths).found(after)
    if list(first) != list(second):
        raise InvalidInput(
            f"state ties input {before!r} ({_form(first)}) to output {after!r} ({_form(second)}); "
            "give two of the same form"
        )
    for rest, number in first.items():
        name, output = interface.input_paths[number], interface.output_paths[second[rest]]
        origin = f"takes {'.'.join(output)}, as given"
        yield State(".".join(name), number, second[rest], origin=origin)


def _form(found: Mapping[Path, int]) -> str:
    return ", ".join(".".join(rest) or "a tensor" for rest in found)


class _NamedTensors:
    """The inputs or the outputs of a model, by name."""

    def __init__(self, side: str, paths: Sequence[Path]) -> None:
        self._side, self._paths = side, paths

    def found(self, key: str | int) -> dict[Path, int]:
        """The tensors of an input or output: its number, by the path inside."""
        heads = list(dict.fromkeys(path[0] for path in self._paths))
        parts: Path = (str(key),)
        if isinstance(key, str) and key not in heads:
            # "state[0]" and "state['h']" are "state.0" and "state.h".
            parts = tuple(re.sub(r"\[['\"]?([^]'\"]*)['\"]?\]", r".\1", key).split("."))
        is_place = not isinstance(key, bool) and parts[0].isdigit() and parts[0] not in heads
        if is_place and int(parts[0]) < len(heads):
            parts = (heads[int(parts[0])], *parts[1:])
        found = {
            path[len(parts) :]: number
            for number, path in enumerate(self._paths)
            if path[: len(parts)] == parts
        }
        if not found:
            known = [".".join(path) for path in self._paths]
            remedy = suggest(key, dict.fromkeys([*heads, *known]))
            raise InvalidInput(
                f"state names {self._side} {key!r}; the {self._side}s are {', '.join(known)}, or "
                f"their numbers from 0 to {len(heads) - 1}: {remedy}"
            )
        return found


def _found(interface: ModelInterface, graph: Graph) -> Iterator[State]:
    """States that names of exporters tell, then one that a type tells."""
    befores, afters = interface.input_paths, interface.output_paths
    types = _types(interface, graph)
    free = {path: number for number, path in enumerate(afters)}
    left = dict.fromkeys(range(len(befores)))
    for rule in RULES:
        for number in list(left):
            head, *rest = befores[number]
            match = re.fullmatch(rule.before, head)
            path = (match.expand(rule.after), *rest) if match else ()
            output = free.get(path)
            if output is None or types[0][number] != types[1][output]:
                continue
            if rule.is_plain and number == output == 0:
                continue  # the data of a call, such as x -> x_out
            del left[number], free[path]
            origin = f"takes {'.'.join(path)}, by its name, as in {rule.origin}"
            yield State(".".join(befores[number]), number, output, origin=origin)
    # The first input and output are the data.
    pairs = [
        (number, output)
        for number in left
        for output in free.values()
        if number and output and types[0][number] == types[1][output] and types[0][number][0]
    ]
    if len(pairs) == 1:
        ((number, output),) = pairs
        shape = list(types[0][number][0])
        origin = (
            f"takes {'.'.join(afters[output])}, by its shape {shape} alone: no other input shares "
            "one with an output; check it, and give both names"
        )
        yield State(".".join(befores[number]), number, output, origin=origin)


def _types(interface: ModelInterface, graph: Graph) -> list[list[_Kind]]:
    """The kind of each tensor of the nests, of inputs and of outputs."""
    sides = (graph.inputs, interface.inputs), (graph.outputs, interface.outputs)
    return [
        [(v.shape, v.type.element, name) for v, name in zip(values, dtypes(nest), strict=False)]
        for values, nest in sides
    ]


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(".".join(path) for path in paths) or "none"
