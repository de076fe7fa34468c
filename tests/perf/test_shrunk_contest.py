"""A shrunk model beside the dense one and other engines: one run for all, or the result alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sparsejit
from sparsejit.frontends.model_source import NamedModel
from sparsejit.frontends.onnx import declared_inputs
from sparsejit.perf import shrunk_contest
from sparsejit.perf.peers import model_peers
from sparsejit.perf.peers.model_peers import MODEL_PEERS
from sparsejit.perf.shrunk_contest import compare_shrunk, installed_peers
from sparsejit.prune.shrink.shrunk import Shrunk

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

FACTORY = """
from torch import nn

def make():
    import torch
    return nn.Linear(24, 16), (torch.zeros(1, 24),)
"""
X = np.linspace(-1, 1, 24).reshape(1, 24)  # float64, as files may have it


def shrunk(module: nn.Module, is_dense: bool = False) -> Shrunk:
    model = sparsejit.compile(module, (torch.zeros(1, 24),))
    return Shrunk(model, module, (), 0.5, None, 1.0, 1.0, is_dense, (), ())


def named(module: nn.Module, folder: Path, kind: str) -> NamedModel:
    if kind == "torch":
        (folder / "net.py").write_text(FACTORY)
        return NamedModel(f"{folder}/net.py:make", module, (), {})
    file = str(folder / "net.onnx")
    torch.onnx.export(module, (torch.zeros(1, 24),), file, dynamo=False, input_names=["x"])
    return NamedModel(file, file, (), {}, {}, tuple(declared_inputs(file)))


@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_all_are_timed_in_one_run(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Linear(24, 16).eval()
    small = nn.Linear(24, 16).eval()  # another model: its error is no mistake
    found, skipped = compare_shrunk(
        *(shrunk(small), named(module, tmp_path, kind), [X], {"threads": 1}, installed_peers()),
        rounds=1,
    )
    assert skipped == {}
    assert [peer.name for peer in found.peers] == ["onnxruntime"]
    assert 1.0 not in (found.ns, found.dense_ns, found.peers[0].ns)  # as in `shrunk`
    assert found.error == 0.5


def test_an_engine_that_computes_another_model_is_skipped(tmp_path: Path) -> None:
    source = named(nn.Linear(24, 16).eval(), tmp_path, "onnx")
    dense = shrunk(nn.Linear(24, 16).eval(), is_dense=True)
    found, skipped = compare_shrunk(dense, source, [X], {}, installed_peers(), rounds=1)
    assert found is dense and "wrong: its largest error" in skipped["sparsejit-dense"]


def test_a_model_that_no_onnx_file_can_hold_is_compared_with_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = nn.Linear(24, 16).eval()
    source = named(module, tmp_path, "torch")

    def fails(*_: Any, **__: Any) -> None:
        raise TypeError("no such\noperator")

    monkeypatch.setattr(torch.onnx, "export", fails)
    given = shrunk(module, is_dense=True), source, [X], {}, installed_peers()
    found, skipped = compare_shrunk(*given, rounds=1)
    assert found.peers == () and found.ns == found.dense_ns != 1.0
    assert skipped == {"onnxruntime": "no ONNX file of opset 17: no such"}


def test_peers_come_from_their_own_folder_or_from_this_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absent: set[str] = {"openvino"}
    found = {name: object() for name in ("onnxruntime", "openvino")}
    monkeypatch.setattr(
        shrunk_contest, "find_spec", lambda name: None if name in absent else found[name]
    )
    own = replace(MODEL_PEERS["onnxruntime"], requirements=())
    assert installed_peers() == [own]
    absent.add("onnxruntime")
    assert installed_peers() == []
    monkeypatch.setattr(model_peers.ModelPeer, "is_installed", True)
    assert installed_peers() == [MODEL_PEERS["onnxruntime"], MODEL_PEERS["openvino"]]
