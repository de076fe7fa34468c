"""Parts that the examples share: pruning by magnitude, and torch's time beside ours on one core."""

from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

ROUNDS, SECONDS_A_ROUND = 15, 0.02


def prune_by_magnitude(model: nn.Module, amount: float) -> nn.Module:
    """Zero that share of each weight matrix, its smallest ones. A real model is trained on then."""
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            if "weight" in name and parameter.ndim > 1:
                prune.l1_unstructured(module, name, amount)
                prune.remove(module, name)
    return model.eval()


def compare(model: nn.Module, fast: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Check that both give the same for x, and print the least time that each takes."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        least = {"torch": float("inf"), "sparsejit": float("inf")}
        for _ in range(ROUNDS):  # by turns, so that both meet the same machine
            for name, call in (("torch", model), ("sparsejit", fast)):
                least[name] = min(least[name], _seconds(call, x))
    theirs, ours = (1e6 * least[name] for name in ("torch", "sparsejit"))
    print(
        f"x {list(x.shape)}: torch {theirs:,.1f} us, sparsejit {ours:,.1f} us, "
        f"{theirs / ours:.1f} times as fast; results agree"
    )


def _seconds(call: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """The mean of as many calls as a round has time for."""
    started, calls = perf_counter(), 0
    while perf_counter() < started + SECONDS_A_ROUND:
        call(x)
        calls += 1
    return (perf_counter() - started) / calls
