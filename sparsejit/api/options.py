"""Options of a kernel or a model, kept so that it can be compiled again."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput, check_flags
from sparsejit.ir.compressed_rows import CompressedRows
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import (
    Activation,
    DType,
    Layer,
    Layout,
    MatMul,
    MatVec,
    Quantisation,
    fits_quantisation,
)
from sparsejit.lowering.context import ModelOptions
from sparsejit.machine.target import Target
from sparsejit.planner.calibration import calibrated
from sparsejit.planner.split import parse_threads
from sparsejit.whole_numbers import whole_number

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Options:
    """The keyword arguments of `compile_matrix`, as they were given."""

    activation: str | Activation | None
    batch: int
    dtype: str
    strategy: str
    target: str | Target
    threads: int | str
    tune: bool
    exact: bool
    layout: str | Layout
    input_scale: float | None
    pitch: int | None

    def __post_init__(self) -> None:
        check_flags(tune=self.tune, exact=self.exact)

    def layer(self, matrix: SparseMatrix, bias: npt.NDArray[Any] | None) -> Layer:
        """Return the layer to compute. Raises InvalidInput if its dtype cannot hold the weights."""
        each = MatVec(
            matrix.out_features,
            matrix.in_features,
            _checked_bias(bias, matrix.out_features),
            Activation.NONE if self.activation is None else Activation.parse(self.activation),
            DType.parse(self.dtype),
            self._x_steps(),
        )
        matrix.check_fits(each)
        columns, order = whole_number("batch", self.batch, 1), Layout.parse(self.layout)
        pitch = _checked_pitch(self.pitch, columns)
        return each if columns == 1 else MatMul(each, columns, order, pitch)


    def _x_steps(self) -> Quantisation | None:
        """Return the steps of x, around 0. Raises InvalidInput for a scale that is no such."""
        scale = self.input_scale
        if scale is None:
            return None
        if self.dtype != DType.INT8.value:
            raise InvalidInput(
                f"input_scale={scale!r} with dtype={self.dtype!r}; "
                "only dtype='int8' quantises x, leave it out"
            )
        is_number = isinstance(scale, Real) and not isinstance(scale, bool)
        if not is_number or not fits_quantisation(scale, 0):
            raise InvalidInput(
                f"input_scale={scale!r}; give the quantisation scale of x as a positive "
                "number, such as 1/127 where x lies in [-1, 1]"
            )
        return Quantisation(scale, 0, symmetric=True)


@dataclass(frozen=True, eq=False)
class KernelSource:
    """The data from which a kernel is compiled.

    `weights` are float32 (out_features, in_features), `bias` is float32 (out_features,).
    """

    weights: FloatArray | CompressedRows
    bias: FloatArray | None
    options: Options


@dataclass(frozen=True)
class ModelSettings:
    """The keyword arguments of `compile_model` that affect compiling a graph, as they were given.

    `any_length`: whether a size other than the batch has a name. `rounds_x`: whether dtype is
    "bfloat16" or "float16" for the whole model, so that a batch of x may be rounded as the weights
    are, and sums of float16 too.
    """

    target: str | Target
    threads: int | str
    tune: bool
    exact: bool
    any_length: bool = field(default=False, metadata={"newer": True})
    rounds_x: bool = field(default=False, metadata={"newer": True})

    def __post_init__(self) -> None:
        check_flags(tune=self.tune, exact=self.exact)

    def resolved(self) -> ModelOptions:
        """Return the options for this machine.

        Raises InvalidInput for invalid options, UnsupportedTarget for a target that cannot run
        here.
        """
        target, threads = calibrated(Target.resolve(self.target)), parse_threads(self.threads)
        own = self.tune, self.exact
        more = {"any_length": self.any_length, "rounds_x": self.rounds_x}
        return ModelOptions(target, threads, *own, **more)


def _checked_pitch(pitch: int | None, batch: int) -> int | None:
    if pitch is None:
        return None
    if isinstance(pitch, bool) or not isinstance(pitch, int | np.integer):
        raise InvalidInput(f"pitch={pitch!r}; give a whole number of elements, at least the batch")
    if batch == 1:
        raise InvalidInput(f"pitch={pitch} with batch=1; a single x has no rows, leave it out")
    return int(pitch)


def _checked_bias(bias: npt.NDArray[Any] | None, out_features: int) -> FloatArray | None:
    if bias is None:
        return None
    if bias.shape != (out_features,):
        raise InvalidInput(f"bias has shape {bias.shape}; give ({out_features},)")
    with np.errstate(over="ignore"):
        array = np.array(bias, np.float32)
    if not np.isfinite(array).all():
        where = int(np.flatnonzero(~np.isfinite(array))[0])
        raise InvalidInput(
            f"bias[{where}] is {bias[where]}, which float32 cannot hold; "
            "remove NaN and infinite values"
        )
    return array
