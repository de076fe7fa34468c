"""Times of models in turns, and their zeros, for the studies of `sparsejit.shrink`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparsejit.perf.timing import RoundsInTurn
from sparsejit.prune.shrink.shrunk import Shrunk

Call = Callable[..., Any]
ROUNDS = 60


def onnx_runtime(model: str | bytes) -> Call:
    """A function of all inputs that runs a model, or its path, in ONNX Runtime on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(*inputs: Any) -> Any:
        outputs = session.run(None, dict(zip(names, inputs, strict=True)))
        return outputs[0] if len(outputs) == 1 else outputs

    return run


def least_ms(
    models: Sequence[Call], elements: Sequence[Sequence[Any]], rounds: int = ROUNDS
) -> list[float]:
    """The least milliseconds of a call of each model, in turns, each round on another element.

    The clock is the thread's: all models run on one thread, and other processes may share its core.
    """

    def timed(model: Call) -> Callable[[int], float]:
        def measure(number: int) -> float:
            inputs = elements[number % len(elements)]
            start = time.thread_time()
            model(*inputs)
            return 1e3 * (time.thread_time() - start)

        return measure

    turns = RoundsInTurn({place: timed(model) for place, model in enumerate(models)})
    turns.run(rounds)
    return list(turns.least().values())


def share_of_zeros(made: Shrunk) -> float:
    """The share of zeros in the weights of all layers that may have some."""
    sizes = [np.prod(layer.shape) for layer in made.layers]
    return float(np.average([layer.zeros for layer in made.layers], weights=sizes))
