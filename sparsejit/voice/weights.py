"""The weights of a voice, and what the sampler needs of them each sample and each frame.

Nothing here imports torch. The file is safetensors with the torch module's parameter names.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..errors import DamagedFile, InvalidInput
from ..files import atomic_path
from .conditioning import Conditioning, FrameNetwork
from .features import HOP_LENGTH, N_MELS, SAMPLE_RATE, FloatArray
from .prediction import CLASSES

FORMAT = "sparsejit-voice-1"
DENSE_SIZE = 256
CONDITION_SIZE = 128
EMBEDDING_SIZE = 64
INPUTS = 3


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
    """A trained voice: its tensors in float32, and their folded run-time form."""

    tensors: Mapping[str, FloatArray]
    temperature: float = 1.0
    held_out: tuple[str, ...] = field(default=())

    @property
    def hidden_size(self) -> int:
        return self.recurrent.shape[1]

    @property
    def recurrent(self) -> FloatArray:
        """W_h, (3H, H), gate order r, z, n."""
        return self.tensors["rnn.weight_hh_l0"]

    @property
    def recurrent_new_bias(self) -> FloatArray:
        """b_hn, (H,): n = tanh(x_n + r * (W_hn h + b_hn))."""
        return self.tensors["rnn.bias_hh_l0"][2 * self.hidden_size :]

    @property
    def dense(self) -> FloatArray:
        """First dense layer, (256, H); its bias is in the conditioning."""
        return self.tensors["fc1.weight"]

    @property
    def output(self) -> FloatArray:
        """Second dense layer, (256, 256), giving logits."""
        return self.tensors["fc2.weight"]

    @property
    def output_bias(self) -> FloatArray:
        return self.tensors["fc2.bias"]

    @cached_property
    def input_tables(self) -> FloatArray:
        """Embedding and input matrix in one, (3, 256, 3H): rows of s[t-1], class[t-1], p."""
        embedding, matrix = (
            self.tensors[name].astype(float) for name in ("embedding.weight", "rnn.weight_ih_l0")
        )
        tables = embedding @ matrix.T
        return tables.reshape(INPUTS, CLASSES, -1).astype(np.float32)

    @cached_property
    def _frame_network(self) -> FrameNetwork:
        return FrameNetwork(self.tensors)

    def conditioning(self, mel: npt.ArrayLike, context: bool = False) -> Conditioning:
        """Return the per-frame arrays for log10 mel (80, F); see `FrameNetwork.__call__`."""
        return self._frame_network(mel, context)

    def save(self, path: str | os.PathLike[str], dtype: npt.DTypeLike = np.float16) -> None:
        """Write the tensors as `dtype`, with the digest that `load` verifies."""
        stored = {name: np.asarray(value, dtype) for name, value in self.tensors.items()}
        metadata = {
            "format": FORMAT,
            "hidden_size": str(self.hidden_size),
            "sample_rate": str(SAMPLE_RATE),
            "hop_length": str(HOP_LENGTH),
            "n_mels": str(N_MELS),
            "temperature": repr(self.temperature),
            "held_out": json.dumps(list(self.held_out)),
            "sha256": _digest(stored),
        }
        with atomic_path(path) as temporary:
            save_file(stored, temporary, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "VoiceWeights":
        """Read a voice file.

        Raises InvalidInput if there is none, and DamagedFile if it is not safetensors, not a
        voice, or not what was saved (digest, names, shapes, finiteness).
        """
        file = Path(path)
        if not file.is_file():
            raise InvalidInput(f"there is no voice file {file}; give one that `train` wrote")
        try:
            with safe_open(file, framework="numpy") as stored:
                metadata = stored.metadata() or {}
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError, TypeError) as error:
            raise _damaged(file, f"is not readable as safetensors ({error})") from error
        _verify(file, metadata, tensors)
        return cls(
            {name: value.astype(np.float32) for name, value in tensors.items()},
            float(metadata["temperature"]),
            tuple(json.loads(metadata["held_out"])),
        )

    @classmethod
    def random(cls, hidden: int = 64, density: float = 0.1, seed: int = 0) -> "VoiceWeights":
        """Return untrained weights, the pruned matrices in 1x8 blocks, for tests."""
        generator = np.random.default_rng(seed)
        tensors = {}
        for name, shape in tensor_shapes(hidden).items():
            spread = 1 / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 0.1
            tensors[name] = (spread * generator.standard_normal(shape)).astype(np.float32)
        tensors["mel_scale"] = np.abs(tensors["mel_scale"]) + 1
        for name in ("rnn.weight_hh_l0", "fc1.weight", "fc2.weight"):
            rows, columns = tensors[name].shape
            kept = generator.random((rows // 8, columns)) < density
            tensors[name] *= np.repeat(kept, 8, axis=0) / np.sqrt(density)
        return cls({name: value.astype(np.float32) for name, value in tensors.items()})


def _digest(tensors: Mapping[str, npt.NDArray[np.generic]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape}".encode())
        digest.update(np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()


def _verify(
    file: Path, metadata: Mapping[str, str], tensors: Mapping[str, npt.NDArray[np.generic]]
) -> None:
    if metadata.get("format") != FORMAT:
        raise _damaged(file, f"has format {metadata.get('format')!r}, not {FORMAT!r}")
    if metadata.get("sha256") != _digest(tensors):
        raise _damaged(file, "does not match its own SHA-256 digest")
    found = {name: value.shape for name, value in tensors.items()}
    wanted = tensor_shapes(int(metadata["hidden_size"]))
    wrong = sorted(name for name in found | wanted if found.get(name) != wanted.get(name))
    if wrong:
        name = wrong[0]
        raise _damaged(file, f"has {name} of shape {found.get(name)}, not {wanted.get(name)}")
    for name, value in tensors.items():
        if not np.isfinite(value).all():
            raise _damaged(file, f"has NaN or infinity in {name}")


def _damaged(file: Path, what: str) -> DamagedFile:
    return DamagedFile(f"{file} {what}; copy it again, or train the voice again")
