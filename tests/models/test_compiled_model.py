"""Calls of compiled models with arguments that they do not take, and arrays not to be copied."""

from collections.abc import Callable

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


class Several(torch.nn.Module):
    """Two inputs and a dict of two outputs."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": x + y, "product": x * y}


def only_by_stub(fast: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model refuse each further call that its stub leaves to Python."""

    def refuse(*arguments: object) -> None:
        raise AssertionError("a plain call was left to Python")

    monkeypatch.setattr(fast, "_call", refuse)


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="torch without exchange API"
)
@pytest.mark.parametrize("named", [None, {0: "rows"}], ids=["by default", "named"])
def test_plain_calls_from_the_second_on_go_to_a_stub(
    named: dict[int, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = torch.randn(2, 5), torch.randn(2, 5)
    sizes = {"dynamic_shapes": {"x": named, "y": named}} if named else {}
    fast = sparsejit.compile(Several().eval(), (x, y), **sizes)
    fast(x.numpy(), y.numpy())
    fast(x, y)
    only_by_stub(fast, monkeypatch)
    for a, b in ((x, y), (x[:1], y[:1]), (x.repeat(9, 1), y.repeat(9, 1))):
        for found in (fast(a, b), fast(a, b.numpy()), fast(a.numpy(), b.numpy())):
            assert list(found) == ["sum", "product"]
            torch.testing.assert_close(torch.as_tensor(found["sum"]), a + b)
            torch.testing.assert_close(torch.as_tensor(found["product"]), a * b)


def test_a_batch_on_another_axis_goes_to_a_stub_for_one_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Rows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.transpose(0, 1)).transpose(0, 1)

    model, many = Rows().eval(), np.ones((4, 2, 5), np.float32)
    fast = sparsejit.compile(model, (torch.randn(4, 3, 5),), dynamic_shapes={"x": {1: "batch"}})
    whole = fast(many)
    np.testing.assert_allclose(fast(many), whole)
    one = fast(many[:, :1])
    only_by_stub(fast, monkeypatch)
    np.testing.assert_allclose(fast(np.ascontiguousarray(many[:, :1])), one)


def outcome(call: Callable[[object], object], x: object) -> tuple[object, ...]:
    """The class, dtype and values of a result, or the class and message of an error."""
    try:
        result = call(x)
    except Exception as error:
        return type(error), str(error)
    return type(result), str(result.dtype), np.asarray(result).tolist()


PLAIN = torch.arange(10.0).reshape(2, 5)
ODD: dict[str, object] = {
    "plain": PLAIN,
    "needs a gradient": PLAIN.clone().requires_grad_(),
    "a parameter": torch.nn.Parameter(PLAIN),
    "columns first": PLAIN.t().contiguous().t(),
    "repeated": PLAIN[:1].expand(2, 5),
    "negated": torch._neg_view(PLAIN),
    "float64": PLAIN.double(),
    "int32": PLAIN.int(),
    "complex": PLAIN.to(torch.complex64),
    "meta": PLAIN.to("meta"),
    "no axes": torch.tensor(1.0),
    "one axis": PLAIN[0],
    "wrong width": PLAIN[:, :4],
    "no rows": PLAIN[:0],
    "zeros without memory": torch._efficientzerotensor((2, 5)),
    "none": None,
    "a number": 1.0,
    "an array of float64": np.ones((2, 5)),
    "an array of columns": np.asfortranarray(np.ones((2, 5), np.float32)),
}


@pytest.mark.parametrize("name", ODD)
def test_a_stub_changes_neither_results_nor_errors(linear: CompiledModel, name: str) -> None:
    x = ODD[name]
    linear(PLAIN), linear(PLAIN.numpy())  # have a stub from here on
    assert outcome(linear, x) == outcome(lambda x: linear._call((x,), {}), x)


def test_an_index_out_of_range_is_refused_at_each_call() -> None:
    fast = sparsejit.compile(Lookup().eval(), (torch.tensor([1, 2]),))
    for rows in (torch.tensor([8, 0]), np.array([8, 0])):
        for _ in range(3):
            assert fast(rows).shape == (2, 4)
            with pytest.raises(InvalidInput, match="index without a row"):
                fast(rows + 1)


def test_bounds_of_named_sizes_hold_at_each_call() -> None:
    rows = torch.export.Dim("rows", min=2, max=4)
    fast = sparsejit.compile(
        torch.nn.Linear(5, 3).eval(), (torch.randn(2, 5),), dynamic_shapes={"input": {0: rows}}
    )
    for _ in range(3):
        assert fast(torch.randn(4, 5)).shape == (4, 3)
        with pytest.raises(InvalidInput, match="'rows', has 5 elements; it takes 2 to 4"):
            fast(torch.randn(5, 5))
