"""A GRU layer for training on one core: time loop with buffers, weight gradients at the end."""

from typing import Any

import torch
from torch import Tensor

# Steps whose tensors fit the second-level cache together.
BLOCK = 20


class FusedGRU(torch.autograd.Function):
    """torch.nn.GRU's recurrence, given the input half of the gates.

    r = sigmoid(x_r + W_hr h + b_hr), z = sigmoid(x_z + W_hz h + b_hz),
    n = tanh(x_n + r * (W_hn h + b_hn)), h' = n + z * (h - n).

    Written out because autograd over a Python loop, and torch's own CPU GRU, spend most of
    their time outside the matrix products at 16 streams. The backward loop holds only what
    is truly sequential: three operations a step.
    """

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, state: Tensor, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """gates (T, B, 3H) in order r, z, n; state (B, H); weight (3H, H); bias (3H,).

        Returns the states after each step (T, B, H), and the last one (B, H).
        """
        steps, batch, size = gates.shape[0], gates.shape[1], state.shape[1]
        states = gates.new_empty(steps + 1, batch, size)
        states[0] = state
        reset_update = gates.new_empty(steps, batch, 2 * size)
        new = gates.new_empty(steps, batch, size)
        hidden_new = gates.new_empty(steps, batch, 3 * size)
        weight_t = weight.t().contiguous()
        gates_ru, gates_new = gates[..., : 2 * size].unbind(0), gates[..., 2 * size :].unbind(0)
        rows, activations, news = states.unbind(0), reset_update.unbind(0), new.unbind(0)
        resets = reset_update[..., :size].unbind(0)
        updates = reset_update[..., size:].unbind(0)
        products = hidden_new.unbind(0)
        products_ru = hidden_new[..., : 2 * size].unbind(0)
        products_new = hidden_new[..., 2 * size :].unbind(0)
        for t in range(steps):
            torch.addmm(bias, rows[t], weight_t, out=products[t])
            torch.add(gates_ru[t], products_ru[t], out=activations[t]).sigmoid_()
            torch.addcmul(gates_new[t], resets[t], products_new[t], out=news[t]).tanh_()
            torch.lerp(news[t], rows[t], updates[t], out=rows[t + 1])
        ctx.save_for_backward(weight, states, reset_update, new, hidden_new)
        return states[1:], states[-1].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor, Tensor]:
        """Truncated: no gradient flows to the initial state."""
        grad_states, grad_last = gradients
        weight, states, reset_update, new, hidden_new = ctx.saved_tensors
        steps, batch, size = new.shape
        # W_h's side of the gates, and the inputs' side; they differ in n alone.
        grad_products = new.new_empty(steps, batch, 3 * size)
        grad_gates = new.new_empty(steps, batch, 3 * size)
        carried = grad_last.clone()
        for end in range(steps, 0, -BLOCK):
            block = slice(max(end - BLOCK, 0), end)
            carried = _backward_block(
                grad_states[block],
                carried,
                weight,
                states[block],
                new[block],
                reset_update[block],
                hidden_new[block],
                grad_products[block],
                grad_gates[block],
            )
        flat = grad_products.view(steps * batch, 3 * size)
        inputs = states[:-1].reshape(steps * batch, size)
        return grad_gates, None, flat.t() @ inputs, flat.sum(0)


def _backward_block(
    grad_states: Tensor,
    carried: Tensor,
    weight: Tensor,
    states: Tensor,
    new: Tensor,
    reset_update: Tensor,
    hidden_new: Tensor,
    grad_products: Tensor,
    grad_gates: Tensor,
) -> Tensor:
    """Fill the gradients of one block of steps; return that of the state before it.

    The local derivatives of all its gates come first, so that a step multiplies them by its
    state's gradient and does one matrix product.
    """
    steps, batch, size = new.shape
    reset, update = reset_update[..., :size], reset_update[..., size:]
    through_new = (1 - update) * (1 - new * new)
    local = grad_products.view(steps, batch, 3, size)
    torch.mul(through_new * hidden_new[..., 2 * size :], reset * (1 - reset), out=local[:, :, 0])
    torch.mul(states - new, update * (1 - update), out=local[:, :, 1])
    torch.mul(through_new, reset, out=local[:, :, 2])
    grads = grad_states.clone()
    grads[-1] += carried
    products, updates = grad_products.unbind(0), update.unbind(0)
    rows, expanded, locals_ = grads.unbind(0), grads.unsqueeze(2).unbind(0), local.unbind(0)
    for t in range(steps - 1, -1, -1):
        locals_[t].mul_(expanded[t])
        previous = rows[t - 1] if t else torch.zeros_like(carried)
        previous.addcmul_(rows[t], updates[t]).addmm_(products[t], weight)
    grad_gates[..., : 2 * size] = grad_products[..., : 2 * size]
    torch.mul(grads, through_new, out=grad_gates[..., 2 * size :])
    return previous
