"""Arguments of the wrong type are refused with the value and the remedy, before any work."""

from typing import Any

import numpy as np
import pytest

import sparsejit
from sparsejit.errors import InvalidInput

torch = pytest.importorskip("torch")

MODULE = torch.nn.Linear(4, 2).eval()
X = torch.ones(1, 4)
WEIGHTS = np.eye(4, dtype=np.float32)
NO_FLAGS = ("no", "yes", 1, 0, None, [])


@pytest.mark.parametrize(
    ("function", "given", "meant"),
    [
        ("compile", "dtyp", "dtype"),
        ("compile_matrix", "strateg", "strategy"),
        ("generate", "topk", "top_k"),
        ("load", "pathh", "path"),
        ("quantise", "budgets", "budget"),
        ("shrink", "finetuned", "finetune"),
    ],
)
def test_a_misspelt_argument_has_the_name_of_the_call_and_the_nearest(
    function: str, given: str, meant: str
) -> None:
    message = rf"^{function}\(\) has no argument '{given}'; did you mean '{meant}'\?$"
    with pytest.raises(TypeError, match=message):
        getattr(sparsejit, function)(**{given: 1})


@pytest.mark.parametrize("value", NO_FLAGS)
@pytest.mark.parametrize("name", ["exact", "tune", "free_batch", "free_shapes"])
def test_a_flag_of_a_model(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=rf"{name}=.*; give True or False"):
        sparsejit.compile(MODULE, (X,), **{name: value})


@pytest.mark.parametrize("value", NO_FLAGS)
@pytest.mark.parametrize("name", ["exact", "tune"])
def test_a_flag_of_a_matrix_and_of_an_estimator(name: str, value: Any) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    estimator = linear_model.LinearRegression().fit(WEIGHTS, WEIGHTS[0])
    with pytest.raises(InvalidInput, match=rf"{name}=.*; give True or False"):
        sparsejit.compile_matrix(WEIGHTS, **{name: value})
    with pytest.raises(InvalidInput, match=rf"{name}=.*; give True or False"):
        sparsejit.compile(estimator, **{name: value})


def test_flags_of_numpy_are_taken() -> None:
    flags = {"exact": np.True_, "tune": np.False_}
    assert sparsejit.compile_matrix(WEIGHTS, **flags)(WEIGHTS[1]).tolist() == [0, 1, 0, 0]


def test_a_flag_of_a_backend() -> None:
    from sparsejit.api.models.dynamo_backend import dynamo_backend

    with pytest.raises(InvalidInput, match="exact='no'; give True or False"):
        dynamo_backend(MODULE, (X,), options={"exact": "no"})


@pytest.mark.parametrize("value", NO_FLAGS)
def test_whether_a_report_measures(value: Any) -> None:
    compiled = sparsejit.compile(MODULE, (X,))
    for each in (compiled, sparsejit.compile_matrix(WEIGHTS)):
        with pytest.raises(InvalidInput, match=r"measure=.*; give True or False"):
            each.explain(measure=value)


@pytest.mark.parametrize("path", [5, None, True, b"a.sjit"])
def test_a_path(path: Any) -> None:
    kernel = sparsejit.compile_matrix(WEIGHTS)
    for take in (kernel.save, kernel.export, sparsejit.load):
        with pytest.raises(InvalidInput, match=r"the path is a \w+, .*; give a str or a Path"):
            take(path)


def test_a_header(tmp_path: Any) -> None:
    with pytest.raises(InvalidInput, match="the path is a int, 5"):
        sparsejit.compile_matrix(WEIGHTS).export(tmp_path / "a.o", 5)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (5, "the model is a int; give a torch.nn.Module, an .onnx or .pt2 file, or a fitted"),
        (None, "the model is a NoneType; give"),
        ("model.sjit", r"a path, 'model.sjit'; use sparsejit.load\('model.sjit'\)"),
        ("model.pt2", "there is no file model.pt2; check the path"),
        ("model.pt", r"a path, 'model.pt'; give the module with these weights"),
        ("model", "a path, 'model'; give a torch.nn.Module"),
        (WEIGHTS, "the model is a ndarray; give"),
        ("/", "/ is a folder; give a torch.nn.Module, an .onnx"),
        (MODULE.state_dict(), "the model is a dict; give the module, after load_state_dict of it"),
        (torch.nn.Linear, "the model is the class Linear; give an instance of it"),
    ],
)
def test_what_is_no_model(model: Any, message: str) -> None:
    for examples in ((), ((X,),)):
        with pytest.raises(InvalidInput, match=message):
            sparsejit.compile(model, *examples)
    with pytest.raises(InvalidInput, match=message):
        sparsejit.quantise(model, [X])


def test_a_model_that_is_compiled_already() -> None:
    compiled = sparsejit.compile(MODULE, (X,))
    with pytest.raises(InvalidInput, match=r"compiled already: .*; call it"):
        sparsejit.compile(compiled, (X,))


@pytest.mark.parametrize("constants", [5, [1], "x"])
def test_constants(constants: Any) -> None:
    with pytest.raises(InvalidInput, match=r"constants is a .*; give a dict"):
        sparsejit.compile(MODULE, (X,), constants=constants)
    with pytest.raises(InvalidInput, match=r"constants is a .*; give a dict"):
        sparsejit.quantise(MODULE, [X], constants=constants)


def test_examples_of_quantise() -> None:
    with pytest.raises(InvalidInput, match="example_inputs is a int; give a tuple"):
        sparsejit.quantise(MODULE, [X], example_inputs=5)
