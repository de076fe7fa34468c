"""Files of a release, and what they gave: `python tests/release_files.py tests/data/release-1.0`.

Run it once, by the release itself, before it goes out. Later releases must read these files and
give the same results (`tests/models/test_release_files.py`), so never write them anew.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import sparsejit

_numbers = np.random.default_rng(0)
Made = tuple[Any, tuple[np.ndarray, ...]]


def _array(*shape: int) -> np.ndarray:
    return _numbers.standard_normal(shape).astype(np.float32)


def _pruned(rows: int, columns: int) -> np.ndarray:
    return _array(rows, columns) * (_numbers.random((rows, columns)) < 0.2)


def kernel() -> Made:
    made = sparsejit.compile_matrix(_pruned(24, 40), _array(24), activation="tanh", batch=3)
    return made, (_array(3, 40),)


def kernel_int8() -> Made:
    return sparsejit.compile_matrix(_pruned(16, 32), dtype="int8"), (_array(32),)


class Tagger(nn.Module):
    """Layers of many kinds, a state, and results in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 8)
        self.convolution = nn.Conv1d(8, 8, 3, padding=1)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.gru = nn.GRU(8, 8, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, words: torch.Tensor, state: torch.Tensor) -> dict[str, Any]:
        x = self.words(words)
        x = torch.nn.functional.gelu(self.convolution(x.mT).mT)
        x, _ = self.attention(*3 * (self.norm(x),), need_weights=False)
        x, state = self.gru(x, state)
        return {"tags": self.out(x).softmax(-1), "state": (state, words.sum(1))}


def model() -> Made:
    torch.manual_seed(0)
    words, state = torch.tensor([[1, 2, 3, 6, 0]]), torch.zeros(1, 1, 8)
    made = sparsejit.compile(Tagger().eval(), (words, state))
    given = np.array([[1, 2, 3, 6, 0], [5, 5, 4, 1, 2]]), np.asarray(_array(1, 2, 8))
    return made, given


def model_bfloat16() -> Made:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4))
    return sparsejit.compile(net.eval(), (torch.randn(1, 3, 6, 6),), dtype="bfloat16"), (
        _array(2, 3, 6, 6),
    )


def parted() -> Made:
    """`Hardmax` runs in ONNX Runtime."""
    names = ("x", [2, 6]), ("y", [2, 6])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in names)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Hardmax", ["h"], ["m"]),
        helper.make_node("Mul", ["m", "h"], ["y"]),
    ]
    weights = [numpy_helper.from_array(_array(6, 6), "w")]
    opsets = [helper.make_opsetid("", 17)]
    graph = helper.make_graph(nodes, "net", [x], [y], weights)
    path = Path("parted.onnx")
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    try:
        return sparsejit.compile(path, fallback="onnxruntime"), (_array(2, 6),)
    finally:
        path.unlink()


def estimator() -> Made:
    x = _array(60, 5)
    fitted = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, (x[:, 0] > 0) * 1)
    return sparsejit.compile(fitted), (_array(4, 5),)


KINDS: dict[str, Callable[[], Made]] = {
    each.__name__: each
    for each in (kernel, kernel_int8, model, model_bfloat16, parted, estimator)
}


def results(made: Any, inputs: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """The results of a compiled thing for arrays, in order."""
    if isinstance(made, sparsejit.CompiledEstimator):
        return [made.predict_proba(*inputs)]
    return [made(*inputs)] if isinstance(made, sparsejit.Kernel) else list(made.run(inputs))


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, make in KINDS.items():
        made, inputs = make()
        made.save(folder / f"{name}.sjit")
        outputs = results(sparsejit.load(folder / f"{name}.sjit"), inputs)
        arrays = {f"input_{i}": array for i, array in enumerate(inputs)}
        arrays |= {f"output_{i}": array for i, array in enumerate(outputs)}
        np.savez_compressed(folder / f"{name}.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
