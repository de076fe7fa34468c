"""Constant operands in the pool, in the order in which the kernel reads them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.dense_product.tiling import Tiling
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Packed:
    """A constant operand as one stream, in the product's tiles or strips.

    `biased`: each of these begins with its bias. `in_register`: the operand's register holds its
    address, because it is one of several.
    """

    stream: FloatArray
    biased: bool
    in_register: bool = False


def pack_columns(
    weights: FloatArray, bias: FloatArray | None, tiles: Tiling, target: Target
) -> Packed:
    """Pack B (depth, columns): by strip the bias (columns,), then row after row, padded with zeros.

    A last strip of fewer vectors is stored in that width.
    """
    lanes = target.lanes
    rows = weights if bias is None else np.concatenate([bias[None], weights])
    vectors = ceil_div(rows.shape[1], lanes)
    padded = np.zeros((len(rows), vectors * lanes), np.float32)
    padded[:, : rows.shape[1]] = rows
    strips = [
        padded[:, first * lanes : (first + tiles.vectors) * lanes].ravel()
        for first in range(0, vectors, tiles.vectors)
    ]
    return Packed(np.concatenate(strips), bias is not None)


def pack_rows(weights: FloatArray, bias: FloatArray | None, tiles: Tiling) -> Packed:
    """Pack A (rows, depth): by tile the bias (rows,), then column after column."""
    columns = weights if bias is None else np.concatenate([bias[:, None], weights], axis=1)
    parts, first = [], 0
    for each in tiles.row_tiles:
        for _ in range(each.count):
            parts.append(columns[first : first + each.height].T.ravel())
            first += each.height
    return Packed(np.concatenate(parts), bias is not None)
