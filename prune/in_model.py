"""Times of kernels as parts of a model, where they push each other out of the nearest caches.

Alone in a loop, the layers of a perceptron add up to 0.55 to 1.1 of the time of all in turn
(docs/notes/pruning.md), so nothing here is measured alone.
"""

import math
import statistics
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparsejit.api.kernels.kernel import Kernel
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.prune.convolutions import CompiledConvolution
from sparsejit.runtime.native_timing import Call, aligned, time_in_turn

Vector = npt.NDArray[np.float32]
CompiledLayer = Kernel | CompiledConvolution

# Places in memory: the placement of its pages in L2 changes a model's time by up to 1.5 times.
_PLACES = 9
_PLACES_OF_COPIES = 3
_SAMPLES = 40
# Time for a place if a turn takes long: its few samples are as steady as a number of short ones.
_BUDGET_NS = 60_000_000
# Copies that fill L2 this number of times come from L3, and more would too.
_FILLS_OF_L2 = 4
_MOST_COPIES = 256
_CACHE_LINE = 64


def us_in_turn(kernels: Sequence[CompiledLayer], places: int = _PLACES) -> float:
    """Microseconds of calling all kernels one after another, the median over places in memory.

    The time at each place is a median over samples. Where a model just outgrows a cache, the least
    of 40 samples is now and then a fifth below the rest; medians repeat within 2 % between
    processes.
    """
    # All are held until the end, or the next would get the same pages again.
    placed = [_Placed(kernels) for _ in range(places)]
    timings = [
        time_in_turn(place.calls, samples=_SAMPLES, budget_ns=_BUDGET_NS) for place in placed
    ]
    return statistics.median(timing.median_ns for timing in timings) / 1e3


def us_among_others(kernel: CompiledLayer, room: int) -> float:
    """Microseconds of one call in a model of `room` bytes of code and weights.

    Copies of the kernel, one after another, fill the room in place of the other layers. So the
    kernel is read from L1 if the whole model fits there, else from the level that holds the model.
    """
    wanted = min(room, _FILLS_OF_L2 * Target.detect().l2_bytes) / len(kernel.image.data)
    copies = min(max(math.ceil(wanted), 1), _MOST_COPIES)
    return us_in_turn([kernel] * copies, _PLACES_OF_COPIES) / copies


class _Placed:
    """Kernels side by side in memory, each with an x and a y, which its copies share.

    All convolutions share two images and a workspace: in a model, images follow each other in the
    same memory, so that a layer finds the image that was just computed in a near cache.
    """

    def __init__(self, kernels: Sequence[CompiledLayer]) -> None:
        codes = [k.image.data + bytes(-len(k.image.data) % _CACHE_LINE) for k in kernels]
        self._memory = ExecutableMemory(b"".join(codes))
        each = list(dict.fromkeys(kernels))
        self._images = _Images([one for one in each if isinstance(one, CompiledConvolution)])
        self._vectors = {one: _vectors(one) for one in each if isinstance(one, Kernel)}
        arguments = dict(self._images.arguments)
        for one, vectors in self._vectors.items():
            arguments[one] = [vector.ctypes.data for vector in vectors]
        starts = self._memory.address + np.cumsum([0, *map(len, codes[:-1])])
        self.calls: list[Call] = [
            (int(start), arguments[kernel]) for start, kernel in zip(starts, kernels, strict=True)
        ]


class _Images:
    """Arguments of convolutions: an image to read, one to write, and a workspace."""

    def __init__(self, kernels: Sequence[CompiledConvolution]) -> None:
        sizes = [(one.x_size, one.y_size) for one in kernels]
        x_size, y_size = (max(each) for each in zip((0, 0), *sizes, strict=True))
        x = np.random.default_rng(0).standard_normal(x_size, np.float32)
        images = aligned(x), aligned(np.zeros(y_size, np.float32))
        floats = max((one.workspace_floats for one in kernels), default=0)
        workspace = aligned(np.zeros(floats, np.float32))
        tables = [np.array([image.ctypes.data], np.uint64) for image in images]
        self._held = images, workspace, tables
        addresses = [*(table.ctypes.data for table in tables), workspace.ctypes.data, 1]
        layers: Sequence[CompiledLayer] = kernels
        self.arguments = dict.fromkeys(layers, addresses)


def _vectors(kernel: Kernel) -> tuple[Vector, Vector]:
    x = np.random.default_rng(0).standard_normal(kernel.spec.x_shape).astype(np.float32)
    return aligned(x), aligned(np.zeros(kernel.spec.y_shape, np.float32))
