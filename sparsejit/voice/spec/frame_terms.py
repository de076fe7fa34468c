"""Inputs of a `VoiceSpec`'s loop for every frame and sample, from the conditioning."""

from collections.abc import Mapping

import numpy as np

from sparsejit.ir.values import Array
from sparsejit.runtime.call_arrays import aligned_copy
from sparsejit.voice.spec.exact_linear import DoubleArray, RowwiseLinear
from sparsejit.voice.spec.loop_arrays import LoopArrays
from sparsejit.voice.spec.network_graph import FrameTerm, SpecGraph


class FrameTerms:
    """Computes the terms of frames of a network from its conditioning."""

    def __init__(self, graph: SpecGraph) -> None:
        self._kernels = graph.kernels
        self._terms = graph.terms
        self._products = {
            (term.name, name): RowwiseLinear(weights)
            for term in graph.terms
            if isinstance(term, FrameTerm)
            for name, weights in term.weights.items()
            if not _is_identity(weights)
        }

    def __call__(self, conditioning: Mapping[str, DoubleArray], frames: int) -> LoopArrays:
        """The loop's inputs for `frames` frames.

        conditioning: arrays by name, (frames, size); interpolated conditioning is
        (frames + taps - 1, size), from `taps` // 2 frames before the first. With linear prediction
        also PREDICTOR, (frames, 32), and RESIDUAL_SCALE and LEVEL_SCALE, (frames,).
        """
        arrays: list[Array] = []
        for term in self._terms:
            if isinstance(term, FrameTerm):
                arrays += self._rows(term, conditioning, frames)
            else:
                arrays.append(np.ascontiguousarray(conditioning[term], np.float32))
        kernels = [np.tile(kernel, (frames, 1)) for kernel in self._kernels]
        return LoopArrays(frames, [aligned_copy(each) for each in arrays], kernels)

    def _rows(
        self, term: FrameTerm, conditioning: Mapping[str, DoubleArray], frames: int
    ) -> list[Array]:
        """An array (frames, n) for each tap of a term."""
        total = np.tile(term.constant, (frames + term.taps - 1, 1))
        for name in term.weights:
            product, rows = self._products.get((term.name, name)), conditioning[name]
            total = total + (rows if product is None else product(rows))
        narrow = np.ascontiguousarray(total, np.float32)
        return [narrow[tap : tap + frames] for tap in range(term.taps)]


def _is_identity(weights: DoubleArray) -> bool:
    """Whether the weights add conditioning unchanged."""
    rows, columns = weights.shape
    return rows == columns and np.array_equal(weights, np.eye(rows))
