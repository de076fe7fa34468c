"""Assignment of the positions of a padded image to vectors.

    along rows      one vector after the other in each row, the last of which overlaps
    across rows     vectors continue over the zeros between rows, whose lanes are left out of y
    in order        all rows as one, if planes of taps have no zeros between rows

A vector's offsets and masks lie in a table, an entry each:

    int32 bytes into a plane of x, int32 bytes into a plane of y, uint16 lanes kept, uint16 stored
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.padded_image import PaddedImage
from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.location import Location
from sparsejit.asm_templates.shared.masks import lane_mask, load_masked, store_masked
from sparsejit.ir.spec import Activation
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, k

ENTRY_BYTES = 12
_ENTRY = np.dtype([("x", "<i4"), ("y", "<i4"), ("kept", "<u2"), ("stored", "<u2")])
_KEPT, _STORED = k(1), k(2)


@dataclass(frozen=True, eq=False)
class WindowPanels:
    """The table; vectors run `across` rows or along them, and have at most `width` positions."""

    table: npt.NDArray[np.void]
    across: bool
    width: int

    @property
    def count(self) -> int:
        return len(self.table)


def window_panels(image: PaddedImage, target: Target) -> WindowPanels:
    """Return the panels with the fewest vectors; across rows only if lanes can be left out."""
    if image.by_tap:
        return _in_order(image, target.lanes)
    along = _along_rows(image, target.lanes)
    if target.isa != "avx512":
        return along
    across = _across_rows(image, target.lanes)
    return across if across.count < along.count else along


def _along_rows(image: PaddedImage, lanes: int) -> WindowPanels:
    columns = image.columns.positions
    starts = _starts(columns, lanes)
    rows = np.arange(image.rows.positions)[:, None]
    return _overlapping(rows * image.pitch + starts, rows * columns + starts, min(columns, lanes))


def _in_order(image: PaddedImage, lanes: int) -> WindowPanels:
    positions = image.rows.positions * image.columns.positions
    starts = _starts(positions, lanes)
    return _overlapping(starts, starts, min(positions, lanes))


def _starts(positions: int, lanes: int) -> npt.NDArray[np.int64]:
    """Return the first position of each vector; the last vector overlaps the one before."""
    return np.array([*range(0, positions - lanes, lanes), max(0, positions - lanes)])


def _overlapping(
    x: npt.NDArray[np.int64], y: npt.NDArray[np.int64], width: int
) -> WindowPanels:
    """Return vectors of `width` positions that begin at these elements of x and y."""
    table = np.zeros(x.shape, _ENTRY)
    table["x"], table["y"] = 4 * x, 4 * y
    table["kept"] = table["stored"] = (1 << width) - 1
    return WindowPanels(table.ravel(), False, width)


def _across_rows(image: PaddedImage, lanes: int) -> WindowPanels:
    rows, columns = image.rows.positions, image.columns.positions
    vectors = ceil_div((rows - 1) * image.pitch + columns, lanes)
    place = np.arange(vectors * lanes).reshape(vectors, lanes)
    row, column = np.divmod(place, image.pitch)
    kept = (row < rows) & (column < columns)
    counts = kept.sum(axis=1)
    table = np.zeros(vectors, _ENTRY)
    table["x"], table["y"] = 4 * place[:, 0], 4 * (np.cumsum(counts) - counts)
    table["kept"] = (kept << np.arange(lanes)).sum(axis=1)
    table["stored"] = (1 << counts) - 1
    return WindowPanels(table[counts > 0], True, lanes)


def set_masks(asm: Assembler, panels: WindowPanels, entry: Register, number: int = 0) -> None:
    """Load a vector's masks from its table entry into k registers, for `store_panel`."""
    if asm.target.isa == "avx512":
        if panels.across:
            asm.emit("kmovw", _KEPT, Memory(entry, number * ENTRY_BYTES + 8))
        asm.emit("kmovw", _STORED, Memory(entry, number * ENTRY_BYTES + 10))


@dataclass(frozen=True)
class AddedOperand:
    """An operand that is added to y before the activation, and y; both have the same layout."""

    operand: Location
    y: Location

    def point(self, asm: Assembler, place: Register, y_place: Register, spare: Register) -> None:
        """place = the address in the operand that matches y_place in y; clobbers `spare`."""
        self.operand.point(asm, place)
        self.y.point(asm, spare)
        asm.emit("sub", place, spare)
        asm.emit("add", place, y_place)


def store_panel(
    asm: Assembler,
    panels: WindowPanels,
    activation: Activation,
    sums: list[tuple[Register, Memory]],
    free: list[Register],
    added: Register | None = None,
) -> None:
    """Store sums to y, through the activation; `free` are at least three registers to clobber.

    `added` is the address of the added operand, whose layout is y's.
    """
    if panels.across:
        for total, _ in sums:
            asm.emit("vcompressps", total.masked(_KEPT, zeroing=True), total)
    wide, partial = asm.target.isa == "avx512", panels.width < asm.target.lanes
    masked = wide and (panels.across or partial)
    if added is not None:
        for total, place in sums:
            _add(asm, panels, total, place._replace(base=added), free, masked)
    apply_activation(asm, activation, [total for total, _ in sums], free)
    if partial and not wide:
        asm.emit("vmovups", free[0], lane_mask(asm, panels.width))
    for total, place in sums:
        if masked or partial:
            store_masked(asm, place, _STORED if masked else free[0], total)
        else:
            asm.emit("vmovups", place, total)


def _add(
    asm: Assembler,
    panels: WindowPanels,
    total: Register,
    place: Memory,
    free: list[Register],
    masked: bool,
) -> None:
    """total += the operand at `place`, in the lanes that are stored."""
    if masked:
        load_masked(asm, free[0], _STORED, place)
    elif panels.width < asm.target.lanes:
        asm.emit("vmovups", free[0], lane_mask(asm, panels.width))
        load_masked(asm, free[0], free[0], place)
    else:
        asm.emit("vaddps", total, total, place)
        return
    asm.emit("vaddps", total, total, free[0])
