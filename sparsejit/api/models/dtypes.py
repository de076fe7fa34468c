"""Conversion of inputs and outputs between the dtypes of a model and of its graph.

A graph computes float16, bfloat16 and float64 as float32, whole numbers as int64, complex numbers
as pairs of float32 on a last axis, and strings as places in a table of words.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsejit.api.models.called import as_arrays
from sparsejit.errors import InvalidInput
from sparsejit.frontends.arrays import is_tensor
from sparsejit.frontends.nesting import Nest, dtypes, words_of
from sparsejit.ir.dtypes import BFLOAT16, TEXT, as_pairs, dtype_named, from_pairs, rounded
from sparsejit.ir.values import Array, Element, Value

_INT64 = np.dtype(np.int64)


class _NumberedTexts:
    """The words of a model in order, and the number of each."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = np.array([*texts], TEXT)
        self.numbers = {text: number for number, text in enumerate(texts)}


class CallWords:
    """The words of a model, and the strings of one call that are not among them."""

    def __init__(self, words: _NumberedTexts) -> None:
        self._words, self._added = words, dict[str, int]()

    def numbers(self, array: Array, name: str) -> Array:
        """Return the numbers of strings. Raises InvalidInput for anything else."""
        known, added = self._words.numbers, self._added
        first, found = len(known), []
        for text in array.reshape(-1).tolist():
            if type(text) is not str:
                raise InvalidInput(f"{name} has {text!r} of {array.dtype}; give strings")
            number = known.get(text)
            found.append(added.setdefault(text, first + len(added)) if number is None else number)
        return np.array(found, np.int64).reshape(array.shape)

    def texts(self, numbers: Array) -> Array:
        """Return the strings of numbers."""
        texts = self._words.texts
        if self._added:
            texts = np.concatenate([texts, np.array([*self._added], TEXT)])
        return np.asarray(texts[numbers])


class ModelDtypes:
    """Converter of a call's arrays between the model's dtypes and the graph's.

    values: the graph's inputs. Behind the model's arguments are buffers that it changes, which are
        given in the graph's dtypes.
    inputs, outputs: the model's nested structures of arguments and results, with the dtypes of
        their leaves.
    """

    def __init__(self, values: Sequence[Value], inputs: Nest, outputs: Nest) -> None:
        noted = dtypes(inputs)
        noted += [""] * (len(values) - len(noted))
        self.inputs = [
            (place, value.origin.name, dtype_named(dtype or _INT64))
            for place, (value, dtype) in enumerate(zip(values, noted, strict=True))
            if dtype or value.type.element is Element.INT64
        ]
        self.outputs = [(n, dtype_named(each)) for n, each in enumerate(dtypes(outputs)) if each]
        # Inputs that graphs read in float64, and all words of the model with their numbers.
        self._doubles = {
            place for place, value in enumerate(values) if value.type.element is Element.FLOAT64
        }
        is_of_texts = TEXT in [*(dtype for *_, dtype in self.inputs), *(x for _, x in self.outputs)]
        self._words = _NumberedTexts(words_of(inputs) or words_of(outputs)) if is_of_texts else None

    @property
    def has_others(self) -> bool:
        """Whether an input or output has a dtype other than float32, int64 and bool."""
        return bool(self.outputs) or any(dtype is not _INT64 for _, _, dtype in self.inputs)

    def words(self) -> CallWords | None:
        """Return the numbers of words for one call, which adds the others; None without strings."""
        return None if self._words is None else CallWords(self._words)

    def arrays(self, leaves: Sequence[Any], words: CallWords | None = None) -> list[Array]:
        """Convert the tensors or arrays of a call to the dtypes of the graph.

        Whole numbers become int64, floats of the model's dtype float32; a float32 array is rounded
        to the model's dtype. Strings that are not among the `words` are added to them. Raises
        InvalidInput for whole numbers that the model's dtype does not hold, for real numbers in the
        place of complex ones, and for numbers in the place of strings.
        """
        given = list(leaves)
        for place, _, dtype in self.inputs:  # numpy has no such dtype
            if dtype is BFLOAT16 and place < len(given) and is_tensor(given[place]):
                given[place] = _as_float32(given[place])
        arrays = as_arrays(given)
        self._widen(arrays, self.words() if words is None else words)
        return arrays

    def _widen(self, arrays: list[Array], words: CallWords | None) -> None:
        for place, name, dtype in self.inputs:
            if place >= len(arrays):
                break
            array = arrays[place]
            given = array.dtype
            if dtype.kind == "c":
                arrays[place] = _paired(array, name, dtype)
                continue
            if dtype.kind == TEXT.kind:
                assert words is not None
                arrays[place] = words.numbers(array, name)
                continue
            if place in self._doubles:
                arrays[place] = array.astype(np.float64) if given.kind == "f" else array
                continue
            if dtype.kind == "f":
                if given.name in (dtype.name, "float32"):
                    arrays[place] = rounded(array, dtype)
                continue
            if given is not dtype:
                check_held(array, name, dtype)
            if given is not _INT64 and given.kind in "iu":
                arrays[place] = array.astype(_INT64)

    def as_given(self, arrays: Sequence[Array]) -> list[Any]:
        """Convert widened inputs back to the model's dtypes; bfloat16 inputs become tensors."""
        found: list[Any] = list(arrays)
        for place, _, dtype in self.inputs:
            if dtype.kind == "c":
                found[place] = from_pairs(found[place], np.dtype(dtype.name))
            elif dtype.kind == TEXT.kind:
                found[place] = np.full(found[place].shape, "", TEXT)
            elif isinstance(dtype, np.dtype):
                found[place] = found[place].astype(dtype, copy=False)
            elif (torch := sys.modules.get("torch")) is not None:
                found[place] = torch.from_numpy(found[place]).bfloat16()
        return found

    def shapes(self, arrays: Sequence[Array]) -> list[tuple[int, ...]]:
        """Return the model's shapes of widened inputs: complex ones lack the axis of the pairs."""
        found = [array.shape for array in arrays]
        for place, _, dtype in self.inputs:
            if dtype.kind == "c":
                found[place] = found[place][:-1]
        return found

    def narrowed(self, results: list[Array], words: CallWords | None = None) -> list[Array]:
        """Convert outputs to the model's dtypes, and numbers of `words` to strings.

        bfloat16 outputs stay float32.
        """
        for place, dtype in self.outputs:
            if dtype.kind == TEXT.kind:
                assert words is not None
                results[place] = words.texts(results[place])
                continue
            if dtype.kind == "c":
                results[place] = from_pairs(results[place], np.dtype(dtype.name))
            elif isinstance(dtype, np.dtype):
                results[place] = results[place].astype(dtype)
        return results


def _paired(array: Array, name: str, dtype: Any) -> Array:
    if array.dtype.kind != "c":
        raise InvalidInput(f"{name} has {array.dtype}; give {dtype.name}")
    return as_pairs(array)


def _as_float32(tensor: Any) -> Any:
    is_short = str(tensor.dtype) == "torch.bfloat16"
    return tensor.detach().float() if is_short else tensor


def check_held(array: Array, name: str, dtype: Any) -> None:
    """Raise InvalidInput for whole numbers that a dtype does not hold."""
    if array.dtype.kind not in "iu" or np.can_cast(array.dtype, dtype) or not array.size:
        return
    limits = np.iinfo(dtype)
    if not limits.min <= array.min() <= array.max() <= limits.max:
        raise InvalidInput(
            f"{name} has {array.dtype} numbers beyond {dtype}, for which the model was compiled; "
            f"give {dtype}, or compile it for {array.dtype}"
        )
