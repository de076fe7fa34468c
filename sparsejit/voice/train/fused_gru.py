"""Layers for training on a CPU: a GRU, and products rounded as the int8 kernels round them.

    Int8Linear   a rounded product; gradients ignore the rounding
    FusedGRU     a GRU's time loop written out, and its gradient by hand

`quantised_weights` and `quantised_input` in `ir/reference.py` have the formulas of `Int8Linear`.
Integers up to 127 are exact in bfloat16 and their sums in float32, so that a product is the
kernel's also where matrix products round their inputs to bfloat16.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsejit.ir.spec import LARGEST_INT8, SMALLEST_SCALE
from sparsejit.voice.spec.sample_graph import STATE_STEP


def integer_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight (out, in) as integers in -127 .. 127, and the scale of each row (out,)."""
    scales = (weight.abs().amax(dim=1) / LARGEST_INT8).clamp_min(SMALLEST_SCALE)
    return (weight / scales[:, None]).round_(), scales


class Int8Linear(torch.autograd.Function):
    """x W^T with x and W rounded to int8; gradients take the rounding for the identity.

    This is the straight-through estimator of Bengio et al. 2013. Gradients are of the product of
    the rounded x and W.
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


# Steps of the backward pass whose tensors fit the second-level cache together.
BLOCK = 20


class FusedGRU(torch.autograd.Function):
    """torch.nn.GRU's recurrence, given the gates' products with the inputs.

    r = sigmoid(x_r + W_hr h + b_hr), z = sigmoid(x_z + W_hz h + b_hz),
    n = tanh(x_n + r * (W_hn h + b_hn)), h' = n + z * (h - n).

    torch's own GRU spends most of its time outside the matrix products at 16 streams. With `int8`
    the product W_h h is rounded as in int8 kernels, h in steps of 1/127; h itself is not rounded.
    """

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, state: Tensor, weight: Tensor, bias: Tensor, int8: bool = False
    ) -> tuple[Tensor, Tensor]:
        """gates (T, B, 3H) in order r, z, n; state (B, H); weight (3H, H); bias (3H,).

        Returns the states after each step (T, B, H), and the last one (B, H).
        """
        steps, batch, size = gates.shape[0], gates.shape[1], state.shape[1]
        states = gates.new_empty(steps + 1, batch, size)
        states[0] = state
        reset_update = gates.new_empty(steps, batch, 2 * size)
        new = gates.new_empty(steps, batch, size)
        products = gates.new_empty(steps, batch, 3 * size)
        inputs, scales = states[:-1], None
        if int8:
            rows, scales = integer_rows(weight)
            weight, inputs = rows * scales[:, None], torch.empty_like(inputs)
            scales *= STATE_STEP
        # Contiguous: 1.5 times faster in the loop than the transposed view.
        transposed = (rows if int8 else weight).t().contiguous()
        x = inputs.unbind(0)
        h, ru, n, p = states.unbind(0), reset_update.unbind(0), new.unbind(0), products.unbind(0)
        reset, update = (half.unbind(0) for half in reset_update.split(size, dim=2))
        x_ru, x_n = (part.unbind(0) for part in gates.split([2 * size, size], dim=2))
        p_ru, p_n = (part.unbind(0) for part in products.split([2 * size, size], dim=2))
        for t in range(steps):
            if scales is None:
                torch.addmm(bias, x[t], transposed, out=p[t])
            else:
                torch.mul(h[t], LARGEST_INT8, out=x[t]).round_()
                torch.mm(x[t], transposed, out=p[t])
                torch.addcmul(bias, p[t], scales, out=p[t])
            torch.add(x_ru[t], p_ru[t], out=ru[t]).sigmoid_()
            torch.addcmul(x_n[t], reset[t], p_n[t], out=n[t]).tanh_()
            torch.lerp(n[t], h[t], update[t], out=h[t + 1])
        if int8:
            inputs.mul_(STATE_STEP)
        ctx.save_for_backward(weight, inputs, states, reset_update, new, products)
        return states[1:], states[-1].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor, Tensor, None]:
        """Truncated: no gradient flows to the initial state."""
        grad_states, carried = gradients
        weight, inputs, states, reset_update, new, products = ctx.saved_tensors
        trace = _Trace(states[:-1], reset_update, new, products)
        grad_products, grad_gates = torch.empty_like(products), torch.empty_like(products)
        for end in range(len(new), 0, -BLOCK):
            block = slice(max(end - BLOCK, 0), end)
            carried = _backward_block(
                trace.cut(block),
                weight,
                grad_states[block],
                carried,
                grad_products[block],
                grad_gates[block],
            )
        flat = grad_products.flatten(0, 1)
        return grad_gates, None, flat.t() @ inputs.flatten(0, 1), flat.sum(0), None


class _Trace(NamedTuple):
    """Tensors that the forward pass keeps for the backward one, a row for each step of time.

    states (T, B, H) before each step; reset_update (T, B, 2H), the gates r and z; new (T, B, H), n;
    products (T, B, 3H), W_h h + b.
    """

    states: Tensor
    reset_update: Tensor
    new: Tensor
    products: Tensor

    def cut(self, block: slice) -> "_Trace":
        return _Trace(*(tensor[block] for tensor in self))


def _backward_block(
    trace: _Trace,
    weight: Tensor,
    grad_states: Tensor,
    carried: Tensor,
    grad_products: Tensor,
    grad_gates: Tensor,
) -> Tensor:
    """Fill the gradients of one block of steps; return the gradient of the state before it.

    Gradients of the products and of the inputs' gates differ in n alone. All local derivatives
    come first, so that a step only scales them by its state's gradient and multiplies once.
    """
    states, reset_update, new, products = trace
    steps, batch, size = new.shape
    reset, update = reset_update.split(size, dim=2)
    through_new = (1 - update) * (1 - new * new)
    local = grad_products.view(steps, batch, 3, size)
    torch.mul(through_new * products[..., 2 * size :], reset * (1 - reset), out=local[:, :, 0])
    torch.mul(states - new, update * (1 - update), out=local[:, :, 1])
    torch.mul(through_new, reset, out=local[:, :, 2])
    grads = grad_states.clone()
    grads[-1] += carried
    grad, grad_wide, local_row = grads.unbind(0), grads.unsqueeze(2).unbind(0), local.unbind(0)
    grad_product, z = grad_products.unbind(0), update.unbind(0)
    before = torch.zeros_like(carried)
    for t in range(steps - 1, -1, -1):
        local_row[t].mul_(grad_wide[t])
        earlier = grad[t - 1] if t else before
        earlier.addcmul_(grad[t], z[t]).addmm_(grad_product[t], weight)
    grad_gates[..., : 2 * size] = grad_products[..., : 2 * size]
    torch.mul(grads, through_new, out=grad_gates[..., 2 * size :])
    return before
