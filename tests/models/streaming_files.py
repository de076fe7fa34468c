"""Trained files with states, and ONNX Runtime, which is fed them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "onnx"
STATES: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, str]]] = {
    "silero_vad_16k_op15": ({"input": (1, 576), "state": (2, 1, 128)}, {"state": "stateN"}),
    "gtcrn_simple": (
        {},
        {name: f"{name}_out" for name in ("conv_cache", "tra_cache", "inter_cache")},
    ),
    "dtln_1": ({}, {"input_3": "tf_op_layer_stack_2"}),
    "dtln_2": ({}, {"input_5": "tf_op_layer_stack_5"}),
    "fsmnvad-online": (
        {"speech": (1, 10, 400)},
        {f"in_cache{n}": f"out_cache{n}" for n in range(4)},
    ),
}


class Rival:
    """ONNX Runtime, fed its own states."""

    def __init__(self, path: Path, sizes: Mapping[str, tuple[int, ...]], states: Any) -> None:
        runtime = pytest.importorskip("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = runtime.InferenceSession(path, options, ["CPUExecutionProvider"])
        self._states, self._names = states, [each.name for each in self._session.get_outputs()]
        self.given = {
            each.name: np.zeros(sizes.get(each.name, each.shape), np.float32)
            for each in self._session.get_inputs()
            if each.name != "sr"
        }
        self._held = {name: self.given[name] for name in states}
        self._rate = {
            each.name: np.array(16000, np.int64)
            for each in self._session.get_inputs()
            if each.name == "sr"
        }

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the inputs that are no states."""
        return {n: x.shape for n, x in self.given.items() if n not in self._states}

    def step(self, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        found = self._session.run(None, {**given, **self._held, **self._rate})
        named = dict(zip(self._names, found, strict=True))
        self._held = {name: named[after] for name, after in self._states.items()}
        return [named[name] for name in self._names if name not in self._states.values()]
