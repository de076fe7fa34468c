"""Files and state dicts of other projects' voices, as arrays by name."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sparsejit.errors import DamagedFile, InvalidInput, MissingDependency
from sparsejit.frontends.arrays import to_array
from sparsejit.voice.features import FloatArray

# Counters that training keeps in a state dict.
_COUNTERS = ("num_batches_tracked", "step")


def read_checkpoint(source: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, FloatArray]:
    """Tensors by name, float32, of a state dict or of a file of one: safetensors, or torch's.

    Of torch's files only tensors are read (`weights_only`); nothing in them is run. Raises
    InvalidInput where there is no such file, DamagedFile where it cannot be read as one, and
    MissingDependency for torch's without torch.
    """
    if isinstance(source, Mapping):
        return _as_arrays(source)
    path = Path(source)
    if not path.is_file():
        raise InvalidInput(f"there is no checkpoint {path}; give a file, or a state dict")
    if path.suffix == ".safetensors":
        return _as_arrays(_read_safetensors(path))
    return _as_arrays(_read_torch(path))


def _read_safetensors(path: Path) -> Mapping[str, Any]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise DamagedFile(f"{path} is not safetensors ({error}); copy it again") from error


def _read_torch(path: Path) -> Mapping[str, Any]:
    try:
        import torch
    except ImportError as error:
        raise MissingDependency(
            f"reading {path} needs torch: pip install torch, or save it as safetensors"
        ) from error
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch names no type of its own
        raise DamagedFile(
            f"{path} is not a state dict that torch wrote ({error}); save model.state_dict() alone"
        ) from error
    if not isinstance(found, Mapping):
        raise DamagedFile(f"{path} holds a {type(found).__name__}; save model.state_dict()")
    return found


def _as_arrays(state: Mapping[str, Any]) -> dict[str, FloatArray]:
    """Copies in float32, since training may go on; counters of steps and batches are left out."""
    return {
        name: np.array(to_array(value, name), np.float32)
        for name, value in state.items()
        if name.rpartition(".")[2] not in _COUNTERS
    }
