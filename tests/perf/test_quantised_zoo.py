"""Rows of the zoo that are quantised files: one for all engines, compared with its own steps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import onnx
import onnxruntime

from sparsejit.errors import MissingDependency
from sparsejit.perf import models
from sparsejit.perf.models import ModelTask, compare
from sparsejit.perf.peers.model_peers import MODEL_PEERS
from sparsejit.perf.zoo import ZOO, quantised

SMALL = replace(ZOO["mlp"], name="mlp-qdq", quantises=())


def test_all_engines_read_the_same_file(tmp_path: Path) -> None:
    task = ModelTask(SMALL, 2, 0.1, tmp_path)
    file = task.onnx_file(17)
    assert file == task.onnx_file(14)
    model = onnx.load(file)
    kinds = {node.op_type for node in model.graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    assert [(each.domain, each.version) for each in model.opset_import] == [("", quantised.OPSET)]
    assert model.ir_version <= 8
    assert task.request == {"file": str(file), "names": ["x0"], "constants": {}, "fallback": None}
    with np.load(task.inputs_file) as inputs:
        (x,) = (inputs[name] for name in inputs.files)
    (found,) = onnxruntime.InferenceSession(str(file)).run(None, {"x0": x})
    (wanted,) = task.exact
    assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()


def test_only_readers_of_files_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = dict[str, Any]()

    def measure(
        task: Any, title: str, peers: Any, progress: Any, rounds: int, largest: float
    ) -> Any:
        asked[title] = [peer.name for peer in peers], largest
        return (), {}

    monkeypatch.setattr(models, "measure", measure)
    compare(SMALL, 1, 0.1)
    compare(ZOO["mlp"], 1, 0.1)
    names, largest = asked["mlp-qdq, batch 1"]
    assert names == ["sparsejit", *(n for n, peer in MODEL_PEERS.items() if peer.opset)]
    assert largest == 0.1
    assert asked["mlp, batch 1"] == (["sparsejit", "sparsejit-bound", *MODEL_PEERS], 1e-5)


def test_every_row_says_what_it_quantises() -> None:
    rows = {name for name, model in ZOO.items() if model.quantises is not None}
    assert rows == {name for name in ZOO if name.endswith("-qdq")}
    for name in rows:
        plain = ZOO[name.removesuffix("-qdq")]
        assert replace(ZOO[name], name=plain.name, quantises=None) == plain


def test_without_onnx_runtime_there_is_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantised, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'sparsejit\[bench\]'"):
        ModelTask(SMALL, 1, 1.0, tmp_path).onnx_file(14)
