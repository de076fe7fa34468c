"""Products of matrices: with weights, and of activations with each other."""

from dataclasses import dataclass

from sparsejit.ir.graph import Array, TensorType
from sparsejit.ir.ops.types import broadcast_shape, float_type, require
from sparsejit.ir.reference import ACTIVATIONS, on_steps
from sparsejit.ir.spec import Activation, DType


@dataclass(frozen=True)
class Linear:
    """y = activation(x W^T + bias) over the last axis: x (..., in), W (out, in), bias (out,).

    The bias may be left out. W counts as stored in `dtype`; with int8 x is quantised too, by
    `input_scale` or by its largest magnitude; other dtypes pass that over. `input_shift` is the
    zero point of x among -128 .. 127 (`spec.MatVec`): x is that of a quantised model, which is
    rounded and cut to those steps, and no dtype passes it over.
    """

    activation: Activation = Activation.NONE
    dtype: DType = DType.FLOAT32
    input_scale: float | None = None
    input_shift: int | None = None

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        x, weights, *bias = operands
        fits = (
            len(weights.shape) == 2
            and len(x.shape) >= 1
            and x.shape[-1] == weights.shape[1]
            and [b.shape for b in bias] in ([], [weights.shape[:1]])
        )
        require(fits, self, operands, "give x (..., in), weights (out, in) and bias (out,)")
        return (float_type((*x.shape[:-1], weights.shape[0])),)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        """In full precision, whatever the dtype: what the model means. It means a zero point."""
        x, weights, *bias = operands
        if self.input_scale is not None and self.input_shift is not None:
            x = on_steps(x, self.input_scale, self.input_shift)
        y = x @ weights.T + (bias[0] if bias else 0)
        return (ACTIVATIONS[self.activation](y),)


@dataclass(frozen=True)
class Bmm:
    """scale * A B for every matrix of a stack: A (..., m, k), B (..., k, n).

    With `transposed`, B is (..., n, k). The stacks broadcast.
    """

    transposed: bool = False
    scale: float = 1.0

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        a, b = operands
        wide = len(a.shape) >= 2 and len(b.shape) >= 2
        require(wide, self, operands, "give matrices or stacks of them")
        depth, columns = reversed(b.shape[-2:]) if self.transposed else b.shape[-2:]
        require(a.shape[-1] == depth, self, operands, "give matrices whose inner sizes agree")
        stack = broadcast_shape(self, [float_type(a.shape[:-2]), float_type(b.shape[:-2])])
        return (float_type((*stack, a.shape[-2], columns)),)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        a, b = operands
        return (self.scale * (a @ (b.swapaxes(-1, -2) if self.transposed else b)),)
