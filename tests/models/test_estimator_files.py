"""Saved and exported estimators: the same bits after loading, and one family of errors."""

import ctypes
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_model_files import changes

import sparsejit
from sparsejit.artefact import sealed
from sparsejit.errors import DamagedFile, InvalidInput, SparseJitError
from sparsejit.estimators.compiled_estimator import CompiledEstimator
from sparsejit.estimators.source import estimator_to_data, read_estimator_file

pytest.importorskip("sklearn")
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

RNG = np.random.default_rng(0)
X = np.column_stack([RNG.standard_normal((80, 5)), RNG.integers(0, 3, 80)])
LABELS = np.array(["cherry", "apple", "banana"])[RNG.integers(0, 3, 80)]
ENCODED = ColumnTransformer(
    [("codes", OneHotEncoder(), [5]), ("numbers", StandardScaler(), [0, 1, 2, 3, 4])]
)
ESTIMATORS = {
    "logistic": (LogisticRegression(), LABELS),
    "object labels": (LogisticRegression(), LABELS.astype(object)),
    "scaled": (make_pipeline(StandardScaler(), Ridge()), X[:, 0] * 2),
    "encoded": (make_pipeline(ENCODED, LogisticRegression()), LABELS),
    "forest": (RandomForestClassifier(5, max_depth=4, random_state=0), LABELS),
    "several labels": (MLPClassifier((6,), max_iter=5, random_state=0), X[:, :3] > 0),
}


def compiled(name: str, **options: Any) -> CompiledEstimator:
    estimator, y = ESTIMATORS[name]
    made: CompiledEstimator = sparsejit.compile(estimator.fit(X, y), X[:4], **options)
    return made


def assert_same(again: Any, made: CompiledEstimator) -> None:
    assert (again.methods, repr(again), again.tile) == (made.methods, repr(made), made.tile)
    for given in (X, X.astype(np.float32)):
        for method in made.methods:
            found, wanted = getattr(again, method)(given), getattr(made, method)(given)
            np.testing.assert_array_equal(found, wanted, strict=True)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_loaded_estimator_gives_the_same_bits(tmp_path: Path, name: str) -> None:
    made = compiled(name)
    made.save(tmp_path / "e.sjit")
    again = sparsejit.load(tmp_path / "e.sjit")
    assert_same(again, made)
    assert_same(pickle.loads(pickle.dumps(made)), made)
    again.save(tmp_path / "again.sjit")
    assert (tmp_path / "again.sjit").read_bytes() == (tmp_path / "e.sjit").read_bytes()


def test_it_needs_no_library_and_refuses_what_it_refused(tmp_path: Path) -> None:
    made = compiled("encoded", dtype={"*": "bfloat16"})
    made.save(tmp_path / "e.sjit")
    np.save(tmp_path / "x.npy", X)
    script = """
import sys
sys.modules["sklearn"] = None
import numpy as np, sparsejit
again, x = sparsejit.load("e.sjit"), np.load("x.npy")
print("".join(again.predict(x)))
for column, wrong in ((0, np.nan), (5, 7)):
    x = np.load("x.npy"); x[3, column] = wrong
    try:
        again.predict(x)
    except sparsejit.InvalidInput:
        print("refused")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["".join(made.predict(X)), "refused", "refused"]


def test_a_method_is_exported(tmp_path: Path) -> None:
    made = compiled("logistic")
    made.export(tmp_path / "p.so", tmp_path / "p.h", method="predict_proba")
    run = ctypes.CDLL(str(tmp_path / "p.so")).p_run
    x = X[:8].astype(np.float32)
    y, workspace = np.empty((8, 3), np.float32), np.zeros(1 << 16, np.uint8)
    tables = [ctypes.byref(ctypes.c_void_p(each.ctypes.data)) for each in (x, y)]
    aligned = ctypes.c_void_p(workspace.ctypes.data + -workspace.ctypes.data % 64)
    assert run(*tables, aligned, ctypes.c_long(len(x))) == 0
    np.testing.assert_array_equal(y, made.predict_proba(x))
    with pytest.raises(InvalidInput, match="no method 'transform'"):
        made.export(tmp_path / "t.so", method="transform")


def test_labels_that_no_file_can_hold_are_refused(tmp_path: Path) -> None:
    made = compiled("logistic")
    odd = np.empty(3, object)
    odd[:] = [(1, 2), "a", None]
    object.__setattr__(made._source, "labels", odd)
    with pytest.raises(InvalidInput, match="cannot be saved; use numbers or strings"):
        made.save(tmp_path / "e.sjit")
    assert not (tmp_path / "e.sjit").exists()


@pytest.mark.parametrize("name", ["logistic", "encoded"])
def test_a_forged_file_is_refused_or_is_an_estimator(name: str) -> None:
    header, tensors = estimator_to_data(compiled(name)._source)
    header = json.loads(json.dumps(header))
    # A graph in it is tested by itself; one method is enough.
    header["methods"] = [each for each in header["methods"] if each["method"] == "predict"]
    constants = [one for each in header["methods"] for one in each["graph"]["constants"]]
    read = {str(number) for one in constants for number in one["array"]["tensors"]}
    tensors = {number: array for number, array in tensors.items() if number in read}
    graphs = [each.pop("graph") for each in header["methods"]]
    before, refused = json.dumps(header), 0
    for what, change in changes(header):
        change()
        try:
            forged = json.loads(json.dumps(header))
            if isinstance(forged.get("methods"), list):
                for each, graph in zip(forged["methods"], graphs, strict=False):
                    if isinstance(each, dict):
                        each["graph"] = graph
            again = CompiledEstimator(read_estimator_file(forged, tensors))
            again.predict(X[:2])
        except SparseJitError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} after {what}") from error
    assert json.dumps(header) == before and refused > 200


def test_a_model_s_header_is_no_estimator(tmp_path: Path) -> None:
    sparsejit.compile_matrix(np.ones((2, 3))).save(tmp_path / "k.sjit")
    _, header, tensors = sealed.read(tmp_path / "k.sjit", {"kernel"})
    sealed.write(tmp_path / "odd.sjit", "estimator", header, tensors)
    with pytest.raises(DamagedFile, match=r"odd\.sjit has no labels, names or dtypes"):
        sparsejit.load(tmp_path / "odd.sjit")
