"""Model files with forged headers and tensors: refused, or run without leaving their memory.

A file is a graph of the operator tables with one to three changes: another number, element, shape,
record, operand or array. Types that follow from a change are written anew, so that a change reaches
further than the first check.

    case = make(seed)        a file of an operator of the tables, and what was changed in it
    check(case)              "ran" between guard pages, "too large" for that, or "refused"
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import registered_operators
import saved_models
from guard import EDGES
from native import run_lowered

from sparsejit.api.models.compiled_model import CompiledModel, compile_saved
from sparsejit.api.models.model_file import ModelSource, SavedVariant, model_to_data, read_model
from sparsejit.api.models.variant import TiledGraph
from sparsejit.api.options import ModelSettings
from sparsejit.artefact.graph_file import OPERATOR_RECORDS
from sparsejit.artefact.sealed import naming
from sparsejit.errors import DamagedFile
from sparsejit.frontends.nesting import TENSOR, Nest, NestKind
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import DynamicConvolution
from sparsejit.ir.ops.sampling import Quantise
from sparsejit.ir.spec import DType, Quantisation
from sparsejit.ir.values import Array, Element, TensorType

Random = np.random.Generator
# Beyond this arrays are not made to run what a file says.
MOST_BYTES = 1 << 22
# Beyond this numbers are not compared with the reference's.
MODERATE = 1e6
# float32 does not hold the square of a larger constant; norms take it, and float64 references do.
SQUARED = 1e18
NUMBERS = (0, 1, 2, 3, 5, -1, 7, 64, 255, 1 << 16, 1 << 31, 1 << 40, 1 << 63, 10**30)
WRONG = (*NUMBERS, None, True, 0.5, -1.0, 1e308, "inf", "-inf", "float32", "int64", "", [], {})


@dataclass(frozen=True)
class OperatorFile:
    """Header and tensors of a file that says something else than it was written with."""

    seed: int
    header: dict[str, Any]
    tensors: dict[str, Array]

    @property
    def title(self) -> str:
        return json.dumps(self.header["variants"])


@cache
def sources() -> list[tuple[dict[str, Any], dict[str, Array]]]:
    """Header and tensors of every file that is changed."""
    graphs: list[Graph] = [case.graph() for case in registered_operators.CASES]
    graphs += [case.graph(2) for case in saved_models.CASES.values()]
    found = []
    for graph in graphs:
        settings = ModelSettings("native", 1, False, False)
        inputs = saved_models.call_of(len(graph.inputs))
        outputs = Nest(NestKind.LIST, (TENSOR,) * len(graph.outputs))
        saved = SavedVariant([TiledGraph(graph, None)], shares_tiles=False)
        source = ModelSource("forged", settings, inputs, outputs, [saved])
        header, tensors = model_to_data(source)
        found.append((json.loads(json.dumps(header)), tensors))
    return found


def make(seed: int) -> OperatorFile:
    """A changed copy of one of the sources."""
    random, known = np.random.default_rng(seed), sources()
    header, tensors = copy.deepcopy(known[random.integers(len(known))])
    changes = (other_value, other_value, other_record, other_operand, other_array, other_input)
    for _ in range(random.integers(1, 4)):
        change = changes[random.integers(len(changes))]
        try:
            change(random, header, tensors, known)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError):
            continue  # an earlier change left nothing there
    if random.random() < 0.8:
        heal(header)
    return OperatorFile(seed, header, tensors)


def check(case: OperatorFile) -> str:
    """The outcome: "refused", "too large" to run, or "ran"."""
    try:
        with naming(Path("forged.sjit")):
            model = compile_saved(read_model(case.header, case.tensors))
    except DamagedFile:
        return "refused"
    if too_large(model):
        return "too large"
    check_guarded(model, np.random.default_rng(case.seed))
    return "ran"


def too_large(model: CompiledModel) -> bool:
    graph = model.graph
    arrays = sum(value.type.bytes for value in (*graph.inputs, *graph.outputs))
    return arrays + model.stats["workspace_bytes"] > MOST_BYTES


def check_guarded(model: CompiledModel, random: Random) -> None:
    """Run it at both edges of guarded memory: the same bits, whatever lies around."""
    inputs = [array_of(random, value.type)[None] for value in model.graph.inputs]
    if not inputs:
        return
    bits = set()
    for edge in EDGES:
        ran = run_lowered(model.parts.variants[0].lowered_again(), inputs, edge)
        bits.add((ran.status, b"" if ran.status else b"".join(a.tobytes() for a in ran.outputs)))
        if not ran.status:
            check_values(model.graph, inputs, ran.outputs)
    assert len(bits) == 1, "results depend on what lies around"


def check_values(graph: Graph, inputs: list[Array], found: list[Array]) -> None:
    """About what the references say, where these are moderate: nothing else was read."""
    if any(getattr(node.op, "dtype", DType.FLOAT32) is not DType.FLOAT32 for node in graph.nodes):
        return
    # Thresholds may be in any order, and zero points no bytes.
    if any(isinstance(node.op, Quantise | DynamicConvolution) for node in graph.nodes):
        return
    if any((np.abs(np.float64(array)) > SQUARED).any() for array in graph.constants.values()):
        return
    try:
        with np.errstate(all="ignore"):
            wanted = graph.evaluate([array[0] for array in inputs])
    except TypeError:  # numpy subtracts no bools, also where nothing reads the difference
        return
    if all((np.abs(np.float64(array)) < MODERATE).all() for array in wanted):
        for got, exact in zip(found, wanted, strict=True):
            off = max(1e-2, 2 * largest_step(graph))
            np.testing.assert_allclose(np.float64(got[0]), np.float64(exact), rtol=1e-2, atol=off)


def largest_step(graph: Graph) -> float:
    """The largest step of a quantised value: ties in float32 round to either neighbour."""
    fields = (value for node in graph.nodes for value in vars(node.op).values())
    return max((each.scale for each in fields if isinstance(each, Quantisation)), default=0.0)


def array_of(random: Random, kind: TensorType) -> Array:
    """Numbers of all sizes; indices in range, or not."""
    if kind.element is Element.BOOL:
        return random.random(kind.shape) > 0.5
    if kind.element is Element.INT64:
        high = int(random.choice([2, 5, 300, 2**62]))
        return random.integers(-1 if random.random() < 0.3 else 0, high, kind.shape)
    return random.standard_normal(kind.shape).astype(kind.element.value)


def graph_in(header: dict[str, Any]) -> Any:
    return header["variants"][0]["graphs"][0]["graph"]


def other_value(random: Random, header: Any, tensors: Any, known: Any) -> None:
    """Anything in the place of anything, most often in an operator."""
    inner = header if random.random() < 0.2 else graph_in(header)
    if random.random() < 0.6:
        inner = pick(random, graph_in(header)["nodes"])["op"]
    while True:
        key = pick(random, list(inner) if isinstance(inner, dict) else list(range(len(inner))))
        if not isinstance(inner[key], dict | list) or not inner[key] or random.random() < 0.1:
            break
        inner = inner[key]
    value = inner[key]
    if isinstance(value, int) and random.random() < 0.5:
        inner[key] = pick(random, (value + 1, value - 1, 2 * value, -value))
    elif isinstance(value, int):
        inner[key] = pick(random, NUMBERS)
    elif isinstance(value, list) and value:
        inner[key] = pick(random, (value[1:], value[::-1], value + value))
    else:
        inner[key] = pick(random, WRONG)


def other_record(random: Random, header: Any, tensors: Any, known: Any) -> None:
    """Another operator, or a record that is none, in the place of one."""
    node = pick(random, graph_in(header)["nodes"])
    op = pick(random, graph_in(pick(random, known)[0])["nodes"])["op"]
    steps = op.get("steps")
    node["op"] = copy.deepcopy(pick(random, steps) if steps and random.random() < 0.5 else op)


def other_operand(random: Random, header: Any, tensors: Any, known: Any) -> None:
    """Operands in another order, another number of them, or others."""
    graph = graph_in(header)
    numbers = pick(random, graph["nodes"])["inputs"]
    place = int(random.integers(len(numbers)))
    kind = random.integers(3)
    if kind == 0:
        known = len(graph["inputs"]) + len(graph["constants"])
        numbers[place] = int(random.integers(-1, known + 1))
    elif kind == 1:
        del numbers[place]
    else:
        numbers.insert(place, numbers[0])


def other_array(random: Random, header: Any, tensors: Any, known: Any) -> None:
    """A constant of other values, another element or another shape."""
    described = pick(random, header["variants"][0]["graphs"][0]["graph"]["constants"])["array"]
    kind = TensorType(tuple(described["shape"]), Element(described["element"]))
    if random.random() < 0.5:
        kind = TensorType(kind.shape, pick(random, list(Element)))
    if random.random() < 0.3:
        kind = TensorType(other_shape(random, kind.shape), kind.element)
    array = array_of(random, kind)
    if array.size and array.dtype != bool:
        extremes = WHOLE if kind.element is Element.INT64 else FLOATS
        array.reshape(-1)[random.integers(array.size)] = pick(random, extremes)
    for number in described["tensors"]:
        tensors.pop(str(number), None)
    number = max(map(int, tensors), default=-1) + 1
    tensors[str(number)] = array
    held = {"element": kind.element.value, "shape": list(kind.shape)}
    described.update(held, form="whole", tensors=[number])


WHOLE = (-1, 0, 1 << 40, -(1 << 62))
FLOATS = (np.nan, np.inf, -np.inf, 3e38, 1e-45, -0.0)


def other_input(random: Random, header: Any, tensors: Any, known: Any) -> None:
    """An input of another shape or element."""
    value = pick(random, graph_in(header)["inputs"])
    if random.random() < 0.5:
        value["element"] = pick(random, list(Element)).value
    else:
        value["shape"] = list(other_shape(random, tuple(value["shape"])))


def other_shape(random: Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape of small sizes, at times with as many elements."""
    kind = random.integers(4)
    if kind == 0:
        return shape[::-1]
    if kind == 1:
        return (prod(shape),)
    if kind == 2:
        return (*shape, 1)
    return tuple(int(random.integers(0, 6)) if random.random() < 0.5 else n for n in shape)


def heal(header: Any) -> None:
    """Write what nodes make as their operators infer it, as far as they do."""
    try:
        graph = graph_in(header)
        kinds = [TensorType(tuple(v["shape"]), Element(v["element"])) for v in graph["inputs"]]
        arrays = (constant["array"] for constant in graph["constants"])
        kinds += [TensorType(tuple(a["shape"]), Element(a["element"])) for a in arrays]
        for node in graph["nodes"]:
            op = OPERATOR_RECORDS.decode(node["op"])
            made = op.infer(*(kinds[number] for number in node["inputs"]))
            node["outputs"] = [
                {"element": k.element.value, "shape": list(k.shape), "origin": ["y", "", "", ""]}
                for k in made
            ]
            kinds += made
    except Exception:  # what cannot be healed is for the reader to refuse
        return


def pick(random: Random, things: Any) -> Any:
    """One of them, of whatever kind."""
    return things[int(random.integers(len(things)))]
