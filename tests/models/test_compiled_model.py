"""Calls of compiled models with arguments that they do not take, and arrays not to be copied."""

import numpy as np
import pytest
import torch

import sparsejit
from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.errors import InvalidInput


class Lookup(torch.nn.Module):
    """Rows of a table, by index."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(9, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.table(rows)


@pytest.fixture(scope="module")
def linear() -> CompiledModel:
    return sparsejit.compile(torch.nn.Linear(5, 3).eval(), (torch.randn(2, 5),))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "example_inputs is missing"),
        ({"example_inputs": torch.zeros(2, 5)}, r"is a Tensor; give a tuple .* such as \(x,\)"),
        ({"example_inputs": (torch.zeros(0, 5),)}, r"shape \(0, 5\); give one with elements"),
        ({"example_inputs": (torch.zeros(2, 5),), "example_kwargs": 3}, "is a int; give a dict"),
        ({"example_inputs": (torch.zeros(2, 5),), "dtype": 3}, "dtype=3; give a name"),
        ({"example_inputs": (torch.zeros(2, 5),), "dtype": {3: "int8"}}, "give a name, or a dict"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        sparsejit.compile(torch.nn.Linear(5, 3).eval(), **arguments)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 5, dtype=torch.bfloat16), "input 0 is torch.bfloat16"),
        (torch.zeros(2, 5).to_sparse(), "torch.sparse_coo; give a dense tensor"),
        ([1.0, 2.0], "input 0 is a list"),
    ],
    ids=["bfloat16", "sparse", "list"],
)
def test_inputs_of_other_kinds_are_refused(
    linear: CompiledModel, x: object, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        linear(x)


def test_other_arguments_than_it_was_compiled_for_are_named(linear: CompiledModel) -> None:
    x = torch.randn(2, 5)
    compiled = "the model was compiled for 1 argument by position; its inputs are input"
    for args, kwargs, given in (
        ((), {"x": x}, "0 arguments by position and x="),
        ((x, x), {}, "2 arguments by position"),
        ((), {}, "0 arguments by position"),
    ):
        with pytest.raises(InvalidInput, match=f"the call gives {given}, and {compiled}"):
            linear(*args, **kwargs)


def test_subclasses_of_arrays_are_arrays(linear: CompiledModel) -> None:
    class Mine(np.ndarray):
        pass

    x = np.ones((2, 5), np.float32)
    np.testing.assert_array_equal(linear(x.view(Mine)), linear(x))


def test_a_bound_call_reads_its_arrays_as_they_are() -> None:
    model = sparsejit.compile(Lookup().eval(), (torch.tensor([1, 2]),))
    rows, out = np.array([1, 2]), np.zeros((2, 4), np.float32)
    run = model.bind([rows], [out])
    rows[:] = 3
    run()
    np.testing.assert_array_equal(out, model(rows))
    with pytest.raises(InvalidInput, match="input 0 is int32, which is not used in place"):
        model.bind([rows.astype(np.int32)], [out])
    np.testing.assert_array_equal(model(rows.astype(np.int32)), out)
