"""The spec of a product of two dense matrices."""

from dataclasses import dataclass

from sparsejit.errors import InvalidInput
from sparsejit.ir.spec import MOST_BYTES, Activation


@dataclass(frozen=True)
class DenseProduct:
    """C = activation(scale * A B + bias): float32 A (rows, depth), B (depth, columns).

    Attributes:
        rows: of A and C
        columns: of B and C
        depth: columns of A, rows of B
        a_pitch: bytes from row to row of A as it is stored, at least the bytes of a row
        b_pitch: the same of B as it is stored
        c_pitch: the same of C
        transposed: whether B is stored as (columns, depth)
        scale: factor of the product
        activation: applied to each element of C
        added_pitch: bytes from row to row of an operand (rows, columns) that is added to C before
            the activation, which may be C itself; None without one. With one, A is constant.
        a_transposed: whether A is stored as (depth, rows)

    Raises:
        InvalidInput: a size below 1, a short or odd pitch, more than `MOST_BYTES`
    """

    rows: int
    columns: int
    depth: int
    a_pitch: int
    b_pitch: int
    c_pitch: int
    transposed: bool = False
    scale: float = 1.0
    activation: Activation = Activation.NONE
    added_pitch: int | None = None
    a_transposed: bool = False

    def __post_init__(self) -> None:
        if min(self.rows, self.columns, self.depth) < 1:
            raise InvalidInput(
                f"a dense product of {self.rows}x{self.depth} by {self.depth}x{self.columns}; "
                "give sizes of at least 1"
            )
        a_shape = (self.rows, self.depth)[:: -1 if self.a_transposed else 1]
        b_shape = (self.depth, self.columns)[:: -1 if self.transposed else 1]
        for name, pitch, (rows, columns) in (
            ("a_pitch", self.a_pitch, a_shape),
            ("b_pitch", self.b_pitch, b_shape),
            ("c_pitch", self.c_pitch, (self.rows, self.columns)),
        ):
            if pitch % 4 or pitch < 4 * columns:
                raise InvalidInput(
                    f"{name}={pitch} for rows of {columns} floats; give a multiple of 4 "
                    f"of at least {4 * columns} bytes"
                )
            if pitch * rows > MOST_BYTES:
                raise InvalidInput(
                    f"{name}={pitch} times {rows} rows is more than 2 GiB; split the product"
                )

    @classmethod
    def contiguous(
        cls,
        rows: int,
        columns: int,
        depth: int,
        transposed: bool = False,
        scale: float = 1.0,
        activation: Activation = Activation.NONE,
    ) -> "DenseProduct":
        """A product whose operands have no gaps between rows."""
        b_pitch = 4 * (depth if transposed else columns)
        sizes = (rows, columns, depth)
        return cls(*sizes, 4 * depth, b_pitch, 4 * columns, transposed, scale, activation)
