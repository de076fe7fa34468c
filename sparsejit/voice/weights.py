"""The weights of a voice that `train` made, in memory and in its file.

    pack, unpack     pruned matrices in a file: one bit a weight, and the values that are not zero
    VoiceWeights     a voice's tensors in float32
    read_training    content of a checkpoint of `train`

Nothing here imports torch. The file is safetensors with the torch module's parameter names.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from sparsejit.artefact.sealed import read_sealed, write_sealed
from sparsejit.errors import DamagedFile, InvalidInput, MissingDependency
from sparsejit.files import check_writable
from sparsejit.frontends.files import read_torch_file
from sparsejit.voice.features import HOP_LENGTH, N_MELS, SAMPLE_RATE, FloatArray
from sparsejit.voice.prediction import CLASSES
from sparsejit.voice.spec.known_checkpoints import read_checkpoint
from sparsejit.voice.spec.own_network import own_network
from sparsejit.voice.spec.trained import TrainedNetwork
from sparsejit.voice.spec.voice_spec import check_temperature
from sparsejit.whole_numbers import ceil_div

Array = npt.NDArray[Any]

# Suffixes of the tensors of a packed matrix: bits in row-major order, eight a byte, the first the
# highest; and the values where a bit is set, in the same order.
BITS, VALUES = ".bits", ".values"


def pack(name: str, matrix: Array) -> dict[str, Array]:
    """Return the tensors to store: the packed form, or the matrix itself where that is smaller."""
    kept = matrix != 0
    packed = {name + BITS: np.packbits(kept), name + VALUES: matrix[kept]}
    size = sum(tensor.nbytes for tensor in packed.values())
    return packed if size < matrix.nbytes else {name: matrix}


def unpack(name: str, bits: Array, values: Array, shape: tuple[int, ...]) -> Array:
    """Return the matrix `name` from its packed form; InvalidInput if that does not fit `shape`."""
    elements = int(np.prod(shape))
    if bits.dtype != np.uint8 or bits.shape != (ceil_div(elements, 8),):
        raise InvalidInput(f"{name + BITS} has shape {bits.shape}, {bits.dtype}, for {shape}")
    kept = np.unpackbits(bits, count=elements).astype(bool)
    if values.shape != (np.count_nonzero(kept),):
        raise InvalidInput(
            f"{name + VALUES} has shape {values.shape}, not ({np.count_nonzero(kept)},)"
        )
    matrix = np.zeros(shape, values.dtype)
    matrix[kept.reshape(shape)] = values
    return matrix


# Metadata that a file has, and must have to be read.
IDENTITY = {
    "format": "sparsejit-voice-3",
    "sample_rate": str(SAMPLE_RATE),
    "hop_length": str(HOP_LENGTH),
    "n_mels": str(N_MELS),
}
_KIND = "sparsejit-voice-"
# Format 2 differs in that no matrix is packed.
_READABLE = ("sparsejit-voice-2", IDENTITY["format"])
_REMEDY = (
    "copy it again, or repeat the `sparsejit train` that made it: its checkpoint has the voice"
)
_TRAINING_REMEDY = "give the voice.safetensors that `sparsejit train` writes at its end"
DENSE_SIZE = 256
CONDITION_SIZE = 128
EMBEDDING_SIZE = 64
INPUTS = 3
# The matrices that are pruned: one that is multiplied by the state, and the two dense layers.
RECURRENT = "rnn.weight_hh_l0"
DENSE_LAYERS = ("fc1.weight", "fc2.weight")
PRUNED = (RECURRENT, *DENSE_LAYERS)


def tensor_shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor in a voice file."""
    return {
        "mel_mean": (N_MELS,),
        "mel_scale": (N_MELS,),
        "embedding.weight": (INPUTS * CLASSES, EMBEDDING_SIZE),
        "conv1.weight": (CONDITION_SIZE, N_MELS, 3),
        "conv1.bias": (CONDITION_SIZE,),
        "conv2.weight": (CONDITION_SIZE, CONDITION_SIZE, 3),
        "conv2.bias": (CONDITION_SIZE,),
        "condition_gates.weight": (3 * hidden, CONDITION_SIZE),
        "condition_dense.weight": (DENSE_SIZE, CONDITION_SIZE),
        "rnn.weight_ih_l0": (3 * hidden, EMBEDDING_SIZE),
        "rnn.weight_hh_l0": (3 * hidden, hidden),
        "rnn.bias_ih_l0": (3 * hidden,),
        "rnn.bias_hh_l0": (3 * hidden,),
        "fc1.weight": (DENSE_SIZE, hidden),
        "fc1.bias": (DENSE_SIZE,),
        "fc2.weight": (CLASSES, DENSE_SIZE),
        "fc2.bias": (CLASSES,),
    }


@dataclass(frozen=True)
class VoiceWeights:
    """A voice that `train` made: its tensors in float32.

    Classes are drawn from softmax(logits / temperature). `held_out` names the recordings that the
    training did not see.

    Raises InvalidInput for tensors of other names or shapes than `tensor_shapes` has, values that
    are not finite, and a temperature out of range.
    """

    tensors: Mapping[str, FloatArray]
    temperature: float = 1.0
    held_out: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        _check_tensors(self.tensors)

    @property
    def hidden_size(self) -> int:
        return self.tensors[RECURRENT].shape[1]

    @cached_property
    def network(self) -> TrainedNetwork:
        """The network that is compiled."""
        return own_network(self.tensors, self.temperature)

    def __getstate__(self) -> dict[str, object]:
        """The fields without cached results."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def at_temperature(self, temperature: float) -> "VoiceWeights":
        return replace(self, temperature=temperature)

    def save(self, path: str | os.PathLike[str], dtype: npt.DTypeLike = np.float16) -> None:
        """Write the tensors as `dtype`, under a digest of the whole file that `load` verifies.

        Zeros of the pruned matrices are not stored.

        Raises InvalidInput for a dtype other than float16 and float32, where a value is beyond its
        range, and where the file cannot be written.
        """
        if np.dtype(dtype) not in (np.float16, np.float32):
            raise InvalidInput(f"dtype={np.dtype(dtype)}; a voice is saved as float16 or float32")
        check_writable(path)
        with np.errstate(over="ignore"):
            stored = {name: np.asarray(value, dtype) for name, value in self.tensors.items()}
        for name, value in stored.items():
            if not np.isfinite(value).all():
                raise InvalidInput(f"{name} exceeds the range of {value.dtype}; save as float32")
        metadata = {
            **IDENTITY,
            "temperature": repr(float(self.temperature)),
            "held_out": json.dumps(list(self.held_out)),
        }
        for name in PRUNED:
            stored |= pack(name, stored.pop(name))
        write_sealed(Path(path), stored, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "VoiceWeights":
        """Read a voice file, or the network in a .pt checkpoint of a training.

        Raises InvalidInput if there is no file, and DamagedFile if it has changed since it was
        saved, or is not a voice of this format.
        """
        file = Path(path)
        if not file.is_file():
            raise InvalidInput(f"there is no voice file {file}; give one that `train` wrote")
        if file.suffix == ".pt":
            return cls._in_training(file)
        tensors, metadata = read_sealed(file, _REMEDY)
        for name, wanted in IDENTITY.items():
            found = metadata.get(name)
            if found != wanted and not (name == "format" and found in _READABLE):
                raise DamagedFile(f"{file} has {name} {found!r}, not {wanted!r}; {_REMEDY}")
        try:
            return cls(
                {name: value.astype(np.float32) for name, value in _unpacked(tensors).items()},
                float(metadata["temperature"]),
                tuple(json.loads(metadata["held_out"])),
            )
        except (KeyError, TypeError, ValueError) as error:  # InvalidInput is a ValueError
            raise DamagedFile(f"{file} is not a voice ({error}); {_REMEDY}") from error

    @classmethod
    def _in_training(cls, file: Path) -> "VoiceWeights":
        content = read_training(file, _TRAINING_REMEDY)
        try:
            return cls(read_checkpoint(content["model"]), content["plan"]["temperature"])
        except (KeyError, TypeError, ValueError) as error:  # InvalidInput is a ValueError
            wrong = f"{file} holds no voice ({error})"
            raise DamagedFile(f"{wrong}; {_TRAINING_REMEDY}") from error

    @classmethod
    def random(cls, hidden: int = 64, density: float = 0.1, seed: int = 0) -> "VoiceWeights":
        """Return untrained weights, the pruned matrices in 1x8 blocks, for tests."""
        generator = np.random.default_rng(seed)
        tensors = {}
        for name, shape in tensor_shapes(hidden).items():
            spread = 1 / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 0.1
            tensors[name] = (spread * generator.standard_normal(shape)).astype(np.float32)
        tensors["mel_scale"] = np.abs(tensors["mel_scale"]) + 1
        for name in PRUNED:
            rows, columns = tensors[name].shape
            kept = generator.random((rows // 8, columns)) < density
            tensors[name] *= np.repeat(kept, 8, axis=0) / np.sqrt(density)
        return cls({name: value.astype(np.float32) for name, value in tensors.items()})


def read_training(path: Path, remedy: str) -> dict[str, Any]:
    """Content of a checkpoint of `train`, read without running code; DamagedFile if it is none."""
    content = read_torch_file(path, remedy)
    plan = content.get("plan") if isinstance(content, dict) else None
    if not isinstance(plan, dict) or "hidden_size" not in plan:
        raise DamagedFile(f"{path} is not sparsejit's checkpoint; {remedy}")
    return content


def is_voice_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one of our own voices, whole or damaged, not another project's network."""
    file = Path(path)
    if file.suffix == ".pt":
        with suppress(DamagedFile, MissingDependency):
            return bool(read_training(file, _TRAINING_REMEDY))
        return False
    try:
        with safe_open(file, framework="numpy") as opened:
            return str((opened.metadata() or {}).get("format")).startswith(_KIND)
    except (SafetensorError, OSError):
        return file.suffix == ".safetensors"


def _unpacked(stored: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a file with their pruned matrices whole."""
    tensors = dict(stored)
    shapes = tensor_shapes(len(stored["rnn.bias_hh_l0"]) // 3)
    for name in PRUNED:
        if name + BITS in stored:
            bits, values = tensors.pop(name + BITS), tensors.pop(name + VALUES)
            tensors[name] = unpack(name, bits, values, shapes[name])
    return tensors


def _check_tensors(tensors: Mapping[str, FloatArray]) -> None:
    """Raise InvalidInput unless these are all tensors of one voice, and finite."""
    found = {name: value.shape for name, value in tensors.items()}
    recurrent = found.get("rnn.weight_hh_l0")
    if recurrent is None or len(recurrent) != 2 or not recurrent[1]:
        wrong = f"rnn.weight_hh_l0 has shape {recurrent}, not (3 * hidden, hidden)"
        raise InvalidInput(f"{wrong}; give the tensors of a WaveRNNModule")
    wanted = tensor_shapes(recurrent[1])
    for name in sorted(found | wanted):
        if found.get(name) != wanted.get(name):
            wrong = f"{name} has shape {found.get(name)}, not {wanted.get(name)}"
            raise InvalidInput(f"{wrong}; give the tensors of a WaveRNNModule")
        if not np.isfinite(tensors[name]).all():
            raise InvalidInput(f"{name} contains NaN or infinity; train the voice again")
