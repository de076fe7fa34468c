"""Strings of ONNX files as whole numbers: graphs hold indices into a table of a file's strings.

    Words      the table: all strings that constants and attributes of the file hold
    Texts      a value of a graph whose numbers stand for strings
    Zipped     the result of a ZipMap, each row of which becomes a dict
    ON_TEXT    operators that move strings, or compare them, and do nothing else with them

A call gives each string outside the table the next free number (`api.models.dtypes`), so that two
numbers are equal if and only if their strings are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.frontends.onnx.reading import all_graphs, tensor_array
from sparsejit.frontends.writing.writer import Unmapped
from sparsejit.ir.values import Array, Value

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

ML_DOMAIN = "ai.onnx.ml"
_ZIP_MAP = ML_DOMAIN, "ZipMap"
ON_TEXT = frozenset(
    """
    Cast Concat Equal Expand Flatten Gather GatherElements GatherND Identity Reshape Shape Size
    Slice Split Squeeze Tile Transpose Unsqueeze Where
    """.split()
) | {
    f"{ML_DOMAIN}.{name}"
    for name in ("ArrayFeatureExtractor", "CategoryMapper", "LabelEncoder", "OneHotEncoder")
}
# Attributes of nodes that hold strings of the data.
_HELD = frozenset(
    """
    cats_strings classes_strings classlabels_strings default_string default_tensor keys_strings
    keys_tensor value value_string value_strings values_strings values_tensor
    """.split()
)
# A LabelEncoder and a CategoryMapper return it by default.
UNUSED = "_Unused"
_KINDS = "OUS"  # of numpy's dtypes for strings


@dataclass(frozen=True)
class Texts:
    """A value of whole numbers, each the number of a string in `Words`."""

    numbers: Value


@dataclass(frozen=True)
class Zipped:
    """A value (rows, keys); the call turns each row into a dict of a ZipMap."""

    rows: Value


@dataclass(frozen=True)
class Words:
    """The strings of a file, each with its number."""

    numbers: Mapping[str, int]

    @classmethod
    def of(cls, graph: GraphProto) -> Words:
        """Find all strings of a file, in the order in which they appear."""
        found = dict.fromkeys(text for each in all_graphs(graph) for text in _texts_of(each))
        if found:
            found.setdefault(UNUSED)
        return cls({text: number for number, text in enumerate(found)})

    @property
    def texts(self) -> tuple[str, ...]:
        """All strings, in the order of their numbers."""
        return tuple(self.numbers)

    def of_texts(self, texts: Iterable[Any]) -> Array:
        """Return the numbers of strings. Raises Unmapped for a string that the file lacks."""
        try:
            return np.array([self.numbers[_decoded(text)] for text in texts], np.int64)
        except KeyError as error:
            raise Unmapped(f"makes the string {error.args[0]!r}") from None

    def of_array(self, array: Array) -> Array:
        """Replace an array of strings with their numbers; return any other array as it is."""
        if not is_text(array.dtype):
            return array
        return self.of_texts(array.reshape(-1).tolist()).reshape(array.shape)


def is_text(dtype: Any) -> bool:
    """Whether an array of this dtype holds strings."""
    return dtype is not None and dtype.kind in _KINDS


def zip_keys(nodes: Iterable[NodeProto]) -> dict[str, tuple[int | str, ...]]:
    """Return the dict keys of each ZipMap among the nodes, by the name of its result."""
    from onnx.helper import get_attribute_value

    found = dict[str, tuple[int | str, ...]]()
    for node in nodes:
        if (node.domain, node.op_type) == _ZIP_MAP:
            given = [get_attribute_value(each) for each in node.attribute]
            keys: Any = next(iter(given), [])
            found[str(node.output[0])] = tuple(
                key if isinstance(key, int) else _decoded(key) for key in keys
            )
    return found


def _texts_of(graph: GraphProto) -> Iterator[str]:
    for tensor in graph.initializer:
        yield from _held_by(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in _HELD:
                yield from map(_decoded, attribute.strings)
                yield from _held_by(attribute.t)
                if attribute.HasField("s"):
                    yield _decoded(attribute.s)


def _held_by(tensor: TensorProto) -> Iterator[str]:
    if tensor.data_type == tensor.STRING:
        yield from map(_decoded, tensor_array(tensor).reshape(-1).tolist())


def _decoded(text: Any) -> str:
    return text.decode() if isinstance(text, bytes) else str(text)
