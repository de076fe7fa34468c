"""Tensors out of files, one at a time: .npy, .safetensors and torch's state dicts.

    SHORT_FLOATS               floating-point formats that numpy lacks, read from their bytes
    read_matrix, read_layer    one tensor, or the weights and bias of one layer
    read_tensors               every tensor by its name
    read_arrays                the arrays for a model's inputs
"""

import json
import tokenize
from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from sparsejit.errors import DamagedFile, InvalidInput, MissingDependency
from sparsejit.files import existing_file
from sparsejit.frontends.arrays import Array, is_tensor, to_array
from sparsejit.frontends.layers import factors, layer_names, product

Floats = npt.NDArray[np.float32]


def _bfloat16(data: bytes) -> Floats:
    """float32 values of bfloat16 bytes: each number is the upper half of a float32."""
    words = np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)
    return words.view(np.float32)


def _float8_e5m2(data: bytes) -> Floats:
    """float32 values of float8_e5m2 bytes: each number is the upper half of a float16."""
    words = np.frombuffer(data, np.uint8).astype(np.uint16) << np.uint16(8)
    return words.view(np.float16).astype(np.float32)


def _float8_e4m3fn(data: bytes) -> Floats:
    """float32 values of float8_e4m3fn bytes: a sign, four bits of exponent, three of fraction.

    There is no infinity; NaN is where all seven bits are set.
    """
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, codes & 7
    magnitudes = np.where(
        exponent == 0, np.ldexp(fraction, -9), np.ldexp(8 + fraction, exponent - 10)
    )
    values = np.where(codes < 128, magnitudes, -magnitudes).astype(np.float32)
    values[[0x7F, 0xFF]] = np.nan
    result: Floats = values[np.frombuffer(data, np.uint8)]
    return result


# By the names of the safetensors format.
SHORT_FLOATS: dict[str, Callable[[bytes], Floats]] = {
    "BF16": _bfloat16,
    "F8_E4M3": _float8_e4m3fn,
    "F8_E5M2": _float8_e5m2,
}


_FORMATS = ".npy, .safetensors, .pt or .pth"
_NO_ARCHIVE = (*(ValueError, EOFError, OSError), MemoryError, AttributeError, BadZipFile, TypeError)
# Functions by tensor name, each of which reads only that tensor of a file.
_Readers = dict[str, Callable[[], Array]]


def read_matrix(path: str | PathLike[str], tensor: str | None = None) -> Array:
    """The array in a .npy file, or one tensor of a .safetensors file or a torch state dict.

    `tensor` may be left out for a file of one tensor, or of one layer's weights and bias. bfloat16
    and float8 become float32; a tensor that torch.nn.utils.prune has masked goes by its plain name.
    Raises DamagedFile for a file that is not of its suffix's format, and InvalidInput where
    `tensor` is missing, ambiguous, misspelt or of a dtype that cannot be read.
    """
    parameters = _parameters(Path(path))
    only = layer_names(parameters)
    name = only[0] if tensor is None and only else tensor
    if name not in parameters:
        names = ", ".join(parameters) or "the file has none"
        raise InvalidInput(f"{path} has no tensor {tensor!r}; name one with --tensor: {names}")
    return parameters[name]()


def read_layer(path: str | PathLike[str]) -> dict[str, Array]:
    """The weights in a file of one layer, and the bias if there is one, by name.

    Raises InvalidInput for a file of several layers, else as `read_matrix` does.
    """
    parameters = _parameters(Path(path))
    names = layer_names(parameters)
    if names is None:
        raise InvalidInput(
            f"{path} holds {len(parameters)} parameters ({', '.join(list(parameters)[:8])}); "
            "load it and give one layer's"
        )
    return {name: parameters[name]() for name in names if name is not None}


def read_tensors(path: str | PathLike[str]) -> dict[str, Array]:
    """Every tensor of a .safetensors file, or of a state dict that torch.save wrote, by its name.

    Any suffix but .safetensors is torch's. Raises as `read_matrix` does, and DamagedFile where
    there is no tensor.
    """
    file = existing_file(path)
    is_safetensors = file.suffix == ".safetensors"
    readers = _safetensors_readers(file) if is_safetensors else _torch_readers(file)
    if not readers:
        raise DamagedFile(f"{file} holds no tensors; save model.state_dict()")
    return {name: read() for name, read in readers.items()}


def read_torch_file(path: str | PathLike[str], remedy: str) -> Any:
    """Read a file of torch.save on the CPU, without running code from it.

    Raises DamagedFile, with the remedy, if that fails, and MissingDependency without torch.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependency(
            f"reading {path} needs torch: pip install 'sparsejit[torch]'"
        ) from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise DamagedFile(f"{path} cannot be read as tensors alone; {remedy}") from error


def read_npy(file: Path) -> Array:
    """The array of a .npy file. Raises DamagedFile for anything else."""
    existing_file(file, "a .npy file")
    try:
        array: Array = np.load(file, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("an archive of several arrays")
    except (ValueError, EOFError, MemoryError, tokenize.TokenError) as error:
        raise DamagedFile(f"{file} is not a .npy array ({error}); save it again") from error
    return array


def read_arrays(
    path: str | PathLike[str], names: Sequence[str], all_of_them: bool = False
) -> dict[str, Array]:
    """The arrays in a file, by the names of a model's inputs.

    An .npz file has them by name, an .npy file is the array of the only input; so is the only array
    of an .npz file. Raises InvalidInput for other files, for names that the model does not have,
    and for missing names where the file has to have all of them.
    """
    file, inputs = existing_file(path, "an .npz or .npy file"), ", ".join(names)
    if file.suffix not in (".npy", ".npz"):
        raise InvalidInput(f"{file} is no data; give an .npz or .npy file")
    if file.suffix == ".npy" and len(names) != 1:
        raise InvalidInput(
            f"{file} is one array, and the model takes {inputs}; give an .npz file with an array "
            "for each"
        )
    arrays = {"": read_npy(file)} if file.suffix == ".npy" else read_npz(file)
    if len(arrays) == len(names) == 1:
        return dict(zip(names, arrays.values(), strict=True))
    if arrays.keys() - set(names) or (all_of_them and arrays.keys() != set(names)):
        raise InvalidInput(
            f"{file} has {', '.join(sorted(arrays)) or 'nothing'}, and the model takes {inputs}; "
            "give an array for each input, by its name, without labels"
        )
    return arrays


def read_npz(file: Path) -> dict[str, Array]:
    """The arrays of a .npz file by name. Raises DamagedFile for anything else."""
    try:
        with np.load(existing_file(file, "a .npz file"), allow_pickle=False) as held:
            return {name: held[name] for name in held.files}
    except _NO_ARCHIVE as error:
        raise DamagedFile(f"{file} is not a .npz archive ({error}); save it again") from error


def _parameters(file: Path) -> _Readers:
    """The parameters in a file; the weight and mask of torch.nn.utils.prune are one parameter."""
    readers = _readers(file)

    def read(parts: tuple[str, ...]) -> Array:
        return product(readers[part]() for part in parts)

    return {name: partial(read, parts) for name, parts in factors(readers).items()}


def _readers(file: Path) -> _Readers:
    existing_file(file, f"a file: {_FORMATS}")
    if file.suffix == ".npy":
        return {file.stem: partial(read_npy, file)}
    if file.suffix == ".safetensors":
        return _safetensors_readers(file)
    if file.suffix not in (".pt", ".pth"):
        raise InvalidInput(f"{file} is none of {_FORMATS}; convert it to one of them")
    return _torch_readers(file)


def _torch_readers(file: Path) -> _Readers:
    content = read_torch_file(file, "write it with torch.save(model.state_dict(), path)")
    try:
        return _tensors_within(content, file.stem)
    except RecursionError as error:
        raise DamagedFile(f"{file} holds a dict within itself; save a state dict") from error


def _tensors_within(content: Any, name: str) -> _Readers:
    """Every tensor in nested dicts, by its keys joined by dots; a bare one by `name`."""
    if is_tensor(content):
        return {name: partial(to_array, content, name)}
    if not isinstance(content, dict):
        return {}
    found: _Readers = {}
    for key, value in content.items():
        if is_tensor(value):
            found[str(key)] = partial(to_array, value, str(key))
        else:
            within = _tensors_within(value, "")
            found |= {f"{key}.{inner}": reader for inner, reader in within.items()}
    return found


def _safetensors_readers(file: Path) -> _Readers:
    try:
        with safe_open(file, framework="numpy") as opened:
            names = list(opened.keys())
    except SafetensorError as error:
        raise DamagedFile(f"{file} is not a .safetensors file ({error}); save it again") from error
    return {name: partial(_read_safetensor, file, name) for name in names}


def _read_safetensor(file: Path, name: str) -> Array:
    with safe_open(file, framework="numpy") as opened:
        dtype = opened.get_slice(name).get_dtype()
        if dtype in SHORT_FLOATS:
            return _read_short_floats(file, name)
        try:
            array: Array = opened.get_tensor(name)
        except (AttributeError, KeyError, TypeError, SafetensorError) as error:
            raise InvalidInput(
                f"{name} in {file} has dtype {dtype}, which numpy lacks; save it as float32"
            ) from error
    return array


def _read_short_floats(file: Path, name: str) -> Array:
    """Read a tensor of a dtype that numpy lacks from its offset; safetensors has checked the file.

    The format: eight bytes of the header's length, the header as JSON, the tensors.
    """
    with file.open("rb") as opened:
        header_bytes = int.from_bytes(opened.read(8), "little")
        entry = json.loads(opened.read(header_bytes))[name]
        start, end = entry["data_offsets"]
        opened.seek(8 + header_bytes + start)
        values = SHORT_FLOATS[entry["dtype"]](opened.read(end - start))
    return values.reshape(entry["shape"])
