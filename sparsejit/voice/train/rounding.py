"""Products rounded as the int8 kernels round them, for training: gradients ignore the rounding.

`quantised_weights` and `quantised_input` in `ir/reference.py` have the same formulas. Integers up
to 127 are exact in bfloat16 and their sums in float32, so that a product is the kernel's also
where matrix products round their inputs to bfloat16.
"""

from typing import Any

import torch
from torch import Tensor

from sparsejit.ir.spec import LARGEST_INT8, SMALLEST_SCALE
from sparsejit.voice.spec.sample_graph import STATE_STEP


def integer_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight (out, in) as integers in -127 .. 127, and the scale of each row (out,)."""
    scales = (weight.abs().amax(dim=1) / LARGEST_INT8).clamp_min(SMALLEST_SCALE)
    return (weight / scales[:, None]).round_(), scales


class Int8Linear(torch.autograd.Function):
    """x W^T with weights and inputs rounded to int8; gradients are of the product of both, rounded.

    The straight-through estimator of Bengio et al. 2013: rounding counts as the identity.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, state: bool) -> Tensor:
        """x (n, in), weight (out, in) to (n, out).

        The input's step is STATE_STEP with `state`, else each row's largest magnitude / 127.
        """
        rows, row_scales = integer_rows(weight)
        if state:
            steps = x.new_full((1, 1), STATE_STEP)
            integers = (x * LARGEST_INT8).round_()
        else:
            largest = x.abs().amax(dim=1, keepdim=True).clamp_min(SMALLEST_SCALE)
            steps = largest * (1 / LARGEST_INT8)
            integers = (x * (LARGEST_INT8 / largest)).round_()
        integers.clamp_(-LARGEST_INT8, LARGEST_INT8)
        ctx.save_for_backward(integers, steps, rows, row_scales)
        return (integers @ rows.t()).mul_(row_scales).mul_(steps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        integers, steps, rows, row_scales = ctx.saved_tensors
        (grad,) = gradients
        return (grad * row_scales) @ rows, grad.t() @ (integers * steps), None
