"""Files of nonsense under a digest that fits: one exception, or a model that keeps to itself."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fuzz
import pytest
from fuzzing import operator_files
from saved_models import compiled
from sketch import Sketch

import sparsejit
from sparsejit.api.models import compiled_model as model_module
from sparsejit.api.models.model_file import KIND, model_to_data
from sparsejit.artefact import sealed
from sparsejit.errors import DamagedFile
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution, Pooling, PoolingKind
from sparsejit.ir.ops.products import Attention, Bmm, Linear
from sparsejit.ir.ops.recurrent import Recurrence, RecurrentCell
from sparsejit.ir.ops.row_chains import softmax
from sparsejit.ir.ops.sampling import TreeDraw
from sparsejit.ir.ops.selection import BagKind, Embedding, EmbeddingBag
from sparsejit.ir.values import Element


def forged(graph: Graph, folder: Path, change: Callable[[Any, Any], object]) -> Path:
    """The file of a graph after `change(graph's header, tensors)`, under a digest of its own."""
    header, tensors = model_to_data(compiled(graph, None).source())
    header = json.loads(json.dumps(header))
    change(header["variants"][0]["graphs"][0]["graph"], tensors)
    sealed.write(folder / "m.sjit", KIND, header, tensors)
    return folder / "m.sjit"


def one(op: Any, inputs: list[tuple[int, ...]], *weights: tuple[int, ...]) -> Graph:
    s = Sketch()
    given = [s.input(*shape) for shape in inputs]
    return s.finish(*s.all(op, *given, *(s.weight(*shape) for shape in weights)))


def looked_up(op: Any, *shape: int) -> Graph:
    s = Sketch()
    return s.finish(s(op, s.input(*shape, element=Element.INT64), s.weight(9, 8)))


POOLING = Pooling(PoolingKind.MAX, (2,), (1,), ((0, 0),), (1,))
GRAPHS = {
    "embedding": looked_up(Embedding(), 3),
    "bags": looked_up(EmbeddingBag(BagKind.SUM), 3, 2),
    "linear": one(Linear(), [(3, 8)], (5, 8)),
    "convolution": one(Convolution((1,), (0,), (1,)), [(2, 3, 9)], (4, 3, 3)),
    "recurrence": one(Recurrence(RecurrentCell.GRU), [(4, 2, 15), (2, 5)], (15, 5), (15,)),
    "bmm": one(Bmm(), [(2, 3, 4), (2, 4, 5)]),
    "attention": one(Attention(), [(2, 3, 4), (2, 5, 4), (2, 5, 6)]),
    "pooling": one(POOLING, [(2, 3, 9)]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_operands_of_another_element_are_refused(tmp_path: Path, name: str) -> None:
    """An eighth or a quarter of the bytes are there of those that the code would read."""

    def to_bools(graph: Any, tensors: Any) -> None:
        if not graph["constants"]:
            graph["inputs"][-1]["element"] = "bool"
            return
        graph["constants"][0]["array"].update(element="bool")
        tensors["0"] = tensors["0"] > 0

    path = forged(GRAPHS[name], tmp_path, to_bools)
    with pytest.raises(DamagedFile, match=r"a node that is not valid: .* got \(.*bool.*; give "):
        sparsejit.load(path)


def test_a_step_of_a_chain_is_no_operator(tmp_path: Path) -> None:
    step = {"record": "ChainStep", "kind": "relu", "arguments": [0]}
    path = forged(
        one(softmax((3, 4)), [(3, 4)]), tmp_path, lambda g, _: g["nodes"][0].update(op=step)
    )
    with pytest.raises(DamagedFile, match="where a record belongs"):
        sparsejit.load(path)


def test_a_tree_of_many_bits_is_refused_before_there_are_so_many(tmp_path: Path) -> None:
    def deepen(graph: Any, _: Any) -> None:
        graph["nodes"][0]["op"]["bits"] = 2_000_000_000

    with pytest.raises(DamagedFile, match=r"a TreeDraw that is not valid: .*give 1 to 24 bits"):
        sparsejit.load(forged(one(TreeDraw(3), [(8,), (3,)]), tmp_path, deepen))


@pytest.mark.parametrize(
    ("raised", "expected"), [(MemoryError(), DamagedFile), (AssertionError("ours"), AssertionError)]
)
def test_only_what_a_file_asks_for_is_its_fault(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    raised: Exception,
    expected: type[Exception],
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise raised

    path = forged(GRAPHS["linear"], tmp_path, lambda graph, _: None)
    monkeypatch.setattr(model_module, "lowered_variant", fails)
    with pytest.raises(expected):
        sparsejit.load(path)


def test_forged_files_are_refused_or_keep_to_their_memory() -> None:
    found = fuzz.run(["operators"], range(1000), minutes=10, jobs=1)["operators"]
    assert not found.findings and found.outcomes["ran"] > 80 and found.outcomes["refused"] > 700


def float_fields(record: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of the floats in an operator's record."""
    for key, value in record.items() if isinstance(record, dict) else enumerate(record):
        if isinstance(value, float):
            yield *path, key
        elif isinstance(value, dict | list):
            yield from float_fields(value, (*path, key))


def other_floats(number: float) -> Iterator[operator_files.OperatorFile]:
    """The files of all operators that have a float, with that number in its place."""
    seen = set()
    for header, tensors in operator_files.sources():
        for place, node in enumerate(operator_files.graph_in(header)["nodes"]):
            for path in float_fields(node["op"]):
                field = str(node["op"]), *(key for key in path if isinstance(key, str))
                if field in seen:
                    continue
                seen.add(field)
                made = copy.deepcopy(header)
                holder = operator_files.graph_in(made)["nodes"][place]["op"]
                for key in path[:-1]:
                    holder = holder[key]
                holder[path[-1]] = number
                operator_files.heal(made)
                yield from (operator_files.OperatorFile(n, made, tensors) for n in range(2))


@pytest.mark.parametrize("number", [1e308, -1e39, 1e-60])
def test_numbers_beyond_float32_are_refused_or_right(number: float) -> None:
    outcomes = [operator_files.check(each) for each in other_floats(number)]
    assert "refused" in outcomes or "ran" in outcomes
