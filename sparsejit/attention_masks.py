"""Attention masks that exclude most pairs of query and key, so that compiled models do less work.

Each mask is a bool array (queries, keys), both `length` long, True where a query may see a key, as
in torch's `attn_mask`. Combine masks by `|` and `&`; stack them to give each head its own:

>>> mask = strided(512, stride=32) | block(512, size=64)
>>> model.register_buffer("mask", torch.from_numpy(mask))
"""

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput

BoolArray = npt.NDArray[np.bool_]
_IntArray = npt.NDArray[np.int64]


def causal(length: int) -> BoolArray:
    """Mask of every key up to the query's own.

    Args:
        length: number of queries, and of keys

    Raises:
        InvalidInput: length is below 1
    """
    query, key = _places(length)
    return key <= query


def local(length: int, window: int, is_causal: bool = False) -> BoolArray:
    """Mask of a window around each query: w / 2 keys on each side and its own.

    The sliding window of Longformer (Beltagy et al. 2020, section 3.1), whose w is `window`.

    Args:
        length: number of queries, and of keys
        window: w, the number of keys beside the query's own
        is_causal: see the last `window` keys up to and including the query's own instead, as in
            Mistral 7B (Jiang et al. 2023)

    Raises:
        InvalidInput: unless window is even and 2 or more, or with `is_causal` 1 or more
    """
    if is_causal:
        back = _positive("window", window)
        query, key = _places(length)
        return (key <= query) & (query - key < back)
    if _positive("window", window) % 2:
        raise InvalidInput(f"window is {window}; give an even number, half of it for each side")
    query, key = _places(length)
    return np.abs(query - key) <= window // 2


def strided(length: int, stride: int, is_causal: bool = True) -> BoolArray:
    """Mask of the nearest keys, and of one in `stride` of the keys beyond them.

    Both parts of the strided pattern of Sparse Transformers (Child et al. 2019, section 4.3) in one
    head, with its l as `stride`.

    Args:
        length: number of queries, and of keys
        stride: keys less than `stride` away are seen, and keys at multiples of `stride`
        is_causal: see only keys up to the query's own; else keys on both sides

    Raises:
        InvalidInput: stride is below 1
    """
    _positive("stride", stride)
    query, key = _places(length)
    near = (np.abs(query - key) < stride) | ((query - key) % stride == 0)
    return near & (key <= query) if is_causal else near


def fixed(length: int, stride: int, c: int, is_causal: bool = True) -> BoolArray:
    """Mask of the query's own block of keys, and of the last c keys of every block.

    Both parts of the fixed pattern of Sparse Transformers (Child et al. 2019, section 4.3) in one
    head: blocks of l keys, its l as `stride`, of which the last c stand for the rest.

    Args:
        length: number of queries, and of keys
        stride: keys in a block
        c: keys at the end of each block that every query sees
        is_causal: leave out keys after the query

    Raises:
        InvalidInput: unless 1 <= c <= stride
    """
    _positive("stride", stride)
    if not 1 <= _positive("c", c) <= stride:
        raise InvalidInput(f"c is {c}, above stride {stride}; give at most all keys of a block")
    query, key = _places(length)
    seen = (query // stride == key // stride) | (key % stride >= stride - c)
    return seen & (key <= query) if is_causal else seen


def block(length: int, size: int, is_causal: bool = False) -> BoolArray:
    """Mask of the query's own block of keys only; the last block may be shorter.

    The diagonal of blocks of BlockBERT (Qiu et al. 2020).

    Args:
        length: number of queries, and of keys
        size: keys in a block
        is_causal: leave out keys after the query

    Raises:
        InvalidInput: size is below 1
    """
    _positive("size", size)
    query, key = _places(length)
    own = query // size == key // size
    return own & (key <= query) if is_causal else own


def _places(length: int) -> tuple[_IntArray, _IntArray]:
    """The positions of queries (length, 1), and of keys (length,)."""
    places = np.arange(_positive("length", length))
    return places[:, None], places


def _positive(name: str, value: int) -> int:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < 1:
        raise InvalidInput(f"{name} is {value!r}; give a whole number, 1 or more")
    return value
