"""The deck network as a hand-written C loop with AVX-512 intrinsics, compiled here: a peer.

It computes the same as the compiled loop, with the same random numbers and the same folding: the
loop multiplies neither the linear layer nor W_ih, whose products only a frame changes.
"""

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.errors import MissingDependency
from sparsejit.ir.values import Array
from sparsejit.machine.target import Target
from sparsejit.perf.voice.voice_networks import FRAMES, SampleNetwork
from sparsejit.runtime import native_timing

SOURCE = Path(__file__).with_name("deck_loop.c")
DTYPES = ("float32", "bfloat16")
_LANES, _UNITS = 16, 1024


class _BlockPointers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("first", "inputs", "values")]


class _NetworkPointers(ctypes.Structure):
    _fields_ = [
        *((name, _BlockPointers) for name in ("recurrent", "dense", "output")),
        *((name, ctypes.c_void_p) for name in ("recurrent_bias", "output_bias", "gate_column")),
        *((name, ctypes.c_void_p) for name in ("dense_column", "gate_terms", "dense_terms")),
    ]


class DeckLoop:
    """The C loop of one dtype, float32 or bfloat16, over the network's frames."""

    def __init__(self, network: SampleNetwork, dtype: str) -> None:
        """Raises MissingDependency without a C compiler, or a processor with AVX-512."""
        self.dtype, self.samples = dtype, FRAMES * network.spec.hop_length
        self._function = compiled(dtype, network.spec.hop_length)
        self._kept: list[Array] = []
        self._network = self._packed(network, dtype)
        self.classes = np.zeros(self.samples, np.int64)

    def run(self, seed: int) -> npt.NDArray[np.int64]:
        """Run all frames and return the drawn classes."""
        self._call(seed, self.samples, None, None)
        return self.classes

    def logits(self, given: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Results of the last layer, (samples, 256), for given classes."""
        found = np.empty((len(given), 256), np.float32)
        self._call(0, len(given), given, found)
        return found

    def sample_us(self, seed: int) -> float:
        """Run all frames and return microseconds a sample."""
        started = native_timing.clock()
        self.run(seed)
        return (native_timing.clock() - started) / 1e3 / self.samples

    def _call(self, seed: int, count: int, given: Array | None, logits: Array | None) -> None:
        addresses = (None if array is None else array.ctypes.data for array in (given, logits))
        network = ctypes.byref(self._network)
        self._function(network, seed, count, *addresses, self.classes.ctypes.data)

    def _packed(self, network: SampleNetwork, dtype: str) -> _NetworkPointers:
        wide = {name: array.astype(np.float64) for name, array in network.tensors.items()}
        gates, dense = _folded(wide, network.conditioning)
        vectors = (
            *(wide["rnn.bias_hh"][2 * _UNITS :], wide["fc2.bias"]),
            *(gates[0], dense[0], gates[1], dense[1]),
        )
        matrices = (
            network.tensors["rnn.weight_hh"],
            network.tensors["fc1.weight"][:, :_UNITS],
            network.tensors["fc2.weight"],
        )
        addresses = [self._address(vector.astype(np.float32)) for vector in vectors]
        return _NetworkPointers(*(self._blocks(each, dtype) for each in matrices), *addresses)

    def _blocks(self, weights: Array, dtype: str) -> _BlockPointers:
        return _BlockPointers(*(self._address(part) for part in packed_blocks(weights, dtype)))

    def _address(self, array: Array) -> int:
        aligned = _aligned(array)
        self._kept.append(aligned)
        return int(aligned.ctypes.data)


def _folded(
    wide: Mapping[str, Array], conditioning: Mapping[str, Array]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Terms of the gates and of fc1, with the linear layer before them folded in.

    Each is a column (n,), which the last sample multiplies, and a sum (frames, n) from
    conditioning.
    """
    mel, first, second = conditioning.values()
    joined = np.concatenate([mel, first], axis=1)
    column, linear = wide["I.weight"][:, 0], joined @ wide["I.weight"][:, 1:].T + wide["I.bias"]
    of_both = np.where(np.arange(3 * _UNITS) < 2 * _UNITS, wide["rnn.bias_hh"], 0)
    bias = wide["rnn.bias_ih"] + of_both
    gates = wide["rnn.weight_ih"] @ column, linear @ wide["rnn.weight_ih"].T + bias
    fc1, features = wide["fc1.weight"][:, :_UNITS], wide["fc1.weight"][:, _UNITS:]
    return gates, (fc1 @ column, linear @ fc1.T + second @ features.T + wide["fc1.bias"])


def _aligned(array: Array) -> Array:
    """A copy aligned to a cache line."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def packed_blocks(weights: Array, dtype: str) -> tuple[Array, Array, Array]:
    """Weights in 16x1 blocks: the first block of each group of 16 outputs, the inputs, the values.

    bfloat16 is rounded to nearest and its blocks lie in pairs; an odd one is paired with zeros.
    """
    short = dtype == "bfloat16"
    first, inputs, values = [0], list[int](), list[Array]()
    for group in weights.reshape(-1, _LANES, weights.shape[1]):
        found = np.flatnonzero(group.any(axis=0)).tolist()
        columns = [group[:, column] for column in found]
        if short and len(found) % 2:
            found, columns = [*found, 0], [*columns, np.zeros(_LANES, np.float32)]
        inputs += found
        values += columns
        first.append(len(inputs))
    stored: Array = np.array(values, np.float32)
    if short:
        bits = stored.view(np.uint32)
        nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        stored = nearest.astype(np.uint16).reshape(-1, 2, _LANES).transpose(0, 2, 1)
    return np.array(first, np.int32), np.array(inputs, np.uint16), stored


def compiled(dtype: str, hop_length: int) -> Callable[..., Any]:
    """The C function, compiled for this processor. Raises MissingDependency where it cannot be."""
    if Target.detect().isa != "avx512":
        raise MissingDependency("the loop in C is written for AVX-512, which is not used here")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise MissingDependency("the loop in C needs a C compiler; install gcc or clang")
    options = ["-O3", "-march=native", f"-DHOP={hop_length}"]
    options += ["-DSHORT_WEIGHTS"] if dtype == "bfloat16" else []
    with tempfile.TemporaryDirectory(prefix="sparsejit-deck-") as folder:
        library = Path(folder) / "deck.so"
        command = [compiler, *options, "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            words = (done.stderr.strip().splitlines() or ["in silence"])[0]
            raise MissingDependency(f"{' '.join(command)} ended with {words!r}")
        function = ctypes.CDLL(str(library)).deck_samples
    pointers = [ctypes.c_void_p] * 3
    function.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64, *pointers]
    function.restype = None
    return function
