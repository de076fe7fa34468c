"""Nests of tensors: taken apart, put together, written down."""

from __future__ import annotations

import json
import math
from collections import namedtuple
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.frontends import nesting

Point = namedtuple("Point", "x y")


class Leaf:
    """Stands for a tensor."""


@dataclass
class Record:
    leaf: Leaf


def is_leaf(x: Any) -> bool:
    return isinstance(x, Leaf)


CONSTANTS = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=3))
NESTS = st.recursive(
    st.builds(Leaf) | CONSTANTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=8,
)


@given(NESTS)
def test_nests_taken_apart_are_put_together_again(nest: Any) -> None:
    form = nesting.describe(nest, is_leaf, "nest")
    leaves = nesting.flatten(form, nest, "nest")
    assert all(map(is_leaf, leaves)) and nesting.unflatten(form, leaves) == nest
    read = nesting.from_json(json.loads(json.dumps(nesting.to_json(form))), "file")
    assert read == form and nesting.unflatten(read, leaves) == nest


def test_tensors_have_the_names_of_their_file_or_of_their_keys() -> None:
    named = [replace(nesting.TENSOR, name=name) for name in ("prob", "")]
    form = nesting.Nest(nesting.NestKind.TUPLE, tuple(named))
    assert nesting.tensor_names(form) == ["prob", ""]
    assert nesting.paths(form) == [("prob",), ("1",)]
    assert nesting.tensor_names(named[0]) == ["prob"] and nesting.tensor_names(named[1]) == [""]
    nest = {"logits": Leaf(), "states": (Leaf(), Point(Leaf(), 2))}
    found = nesting.tensor_names(nesting.describe(nest, is_leaf, "nest"))
    assert found == ["logits", "states.0", "states.1.x"]
    read = nesting.from_json(json.loads(json.dumps(nesting.to_json(form))), "file")
    assert read == form
    with pytest.raises(DamagedFile):
        nesting.from_json({"kind": "tensor", "name": 3}, "file")


def test_keys_may_come_in_another_order() -> None:
    one, other = Leaf(), Leaf()
    form = nesting.describe({"a": one, "b": other}, is_leaf, "nest")
    assert nesting.flatten(form, {"b": other, "a": one}, "nest") == [one, other]


@pytest.mark.parametrize(
    ("example", "found", "words"),
    [
        ((Leaf(),), (Leaf(), Leaf()), "inputs is 2 items; give a tuple of 1"),
        ({"a": Leaf()}, {"b": Leaf()}, r"inputs is \['b'\]; give a dict of \['a'\]"),
        ([Leaf()], {"a": 1}, "inputs is dict; give a list of 1"),
        ([(Leaf(),)], [(None,)], r"inputs\[0\]\[0\] is a NoneType; give a tensor"),
        ([2], [2.0], r"inputs\[0\] is 2.0, but the model was compiled for 2"),
    ],
)
def test_another_form_is_refused(example: Any, found: Any, words: str) -> None:
    form = nesting.describe(example, is_leaf, "inputs")
    with pytest.raises(InvalidInput, match=words):
        nesting.flatten(form, found, "inputs")


def test_other_containers_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"outputs\['a'\] is a Record; give tensors in tuples"):
        nesting.describe({"a": Record(Leaf())}, is_leaf, "outputs")


@pytest.mark.parametrize("count", [0, 2])
def test_the_number_of_tensors_must_fit(count: int) -> None:
    form = nesting.describe([Leaf()], is_leaf, "outputs")
    with pytest.raises(InvalidInput, match=r"tensors .*than the nest holds"):
        nesting.unflatten(form, [Leaf()] * count)


@pytest.mark.parametrize(
    "described",
    [
        *(None, [], {}, {"kind": "set", "items": []}, {"kind": "tuple"}, {"kind": "constant"}),
        {"kind": "tuple", "items": 3},
        {"kind": "constant", "value": [1]},
        {"kind": "dict", "keys": ["a"], "items": []},
        {"kind": "dict", "keys": [["a"]], "items": [{"kind": "tensor"}]},
        {"kind": "namedtuple", "name": "class", "keys": ["a"], "items": [{"kind": "tensor"}]},
        {"kind": "namedtuple", "name": "N", "keys": [1], "items": [{"kind": "tensor"}]},
    ],
)
def test_a_damaged_description_gives_one_error(described: Any) -> None:
    with pytest.raises(DamagedFile, match=r"model\.sjit describes no nest"):
        nesting.from_json(described, "model.sjit")


def test_nan_is_a_constant_like_others() -> None:
    form = nesting.describe((Leaf(), math.nan), is_leaf, "inputs")
    assert len(nesting.flatten(form, (Leaf(), float("nan")), "inputs")) == 1
    for other in (1.0, None, Leaf()):
        with pytest.raises(InvalidInput, match="compiled for nan"):
            nesting.flatten(form, (Leaf(), other), "inputs")
