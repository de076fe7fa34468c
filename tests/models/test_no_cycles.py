"""Compiling leaves no cycle of objects: large weights are free as soon as nothing uses them."""

import gc

import numpy as np
import pytest
import torch
from torch import nn

import sparsejit
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.lowering.context import Lowering
from sparsejit.perf.zoo.attention import Bert

_MODELS = {
    "attention": lambda: (Bert(1, 32, 2), torch.zeros(1, 8, dtype=torch.int64)),
    "recurrent": lambda: (nn.GRU(16, 16, batch_first=True), torch.zeros(1, 4, 16)),
    "convolutional": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(8, 8, 1)),
        torch.zeros(1, 3, 8, 8),
    ),
    "linear": lambda: (nn.Sequential(nn.Linear(32, 32), nn.Softmax(-1)), torch.zeros(1, 32)),
}


@pytest.mark.parametrize("name", _MODELS)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_compiling_leaves_no_cycle(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEJIT_CODE_CACHE_MB", "0")
    model, x = _MODELS[name]()
    gc.collect()
    gc.disable()
    try:
        fast = sparsejit.compile(model.eval(), (x,), dtype=dtype)
        assert np.isfinite(fast(x.numpy())[0]).all()
        del fast
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kept = [type(each).__name__ for each in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not {SparseMatrix.__name__, Lowering.__name__} & {*kept}
