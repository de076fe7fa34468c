"""Files and state dicts of other projects' voices, as arrays by name."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparsejit.frontends.arrays import to_array
from sparsejit.frontends.files import read_tensors
from sparsejit.voice.features import FloatArray

# Counters that training keeps in a state dict.
_COUNTERS = ("num_batches_tracked", "step")


def read_checkpoint(source: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, FloatArray]:
    """Tensors by name, float32, of a state dict or of a file of one: safetensors, or torch's.

    They are copies, since training may go on; counters of steps and batches are left out. Raises
    as `read_tensors` does.
    """
    state = source if isinstance(source, Mapping) else read_tensors(source)
    return {
        name: np.array(to_array(value, name, takes_bools=name.endswith("_mask")), np.float32)
        for name, value in state.items()
        if name.rpartition(".")[2] not in _COUNTERS
    }
