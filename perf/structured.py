"""Compare products of sparse factors, and attention under known masks, with torch, in turns.

`python -m sparsejit.perf.structured` prints every contest; `--record` also appends them to
perf/results/structured.jsonl.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import linear, scaled_dot_product_attention

import sparsejit
from sparsejit import attention_masks
from sparsejit.attention_masks import BoolArray
from sparsejit.machine.target import Target
from sparsejit.perf import history
from sparsejit.perf.kernels import checked_error
from sparsejit.perf.machine import machine_limits
from sparsejit.perf.peers.peers import single_threaded
from sparsejit.perf.timing import RoundsInTurn, time_python
from sparsejit.prune import factorise
from sparsejit.runtime.native_timing import pinned

FEATURES, TOKENS, DEPTH, ROUNDS = 1024, 512, 64, 12
LINEAR, SDPA, FLEX = "F.linear", "scaled_dot_product_attention", "flex_attention"
Timed = dict[str, Callable[[], Tensor]]

# Functions of the number of tokens; all but the last keep 12 % of all pairs for 512 tokens.
MASKS: dict[str, Callable[[int], BoolArray]] = {
    "strided causal": partial(attention_masks.strided, stride=62),
    "strided two-sided": partial(attention_masks.strided, stride=16, is_causal=False),
    "fixed": partial(attention_masks.fixed, stride=64, c=4),
    "local": partial(attention_masks.local, window=60),
    "block": partial(attention_masks.block, size=64),
    "causal": attention_masks.causal,
}


@dataclass(frozen=True)
class StructuredTimes:
    """Microseconds of each contestant, the least of all rounds; ours is called "sparsejit"."""

    subject: str
    density: float
    relative_error: float
    us: dict[str, float]

    def ratio(self, peer: str) -> float:
        """The peer's time over ours."""
        return self.us[peer] / self.us["sparsejit"]


class MaskedLayer(nn.Module):
    """Attention softmax(q k^T / sqrt(depth) + mask) v with a mask that is the layer's own."""

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(query, key, value, attn_mask=self.mask)


def factor_contest(kind: str, batch: int) -> "StructuredContest":
    """Contest of the factors of a random matrix against one dense product by their product."""
    torch.manual_seed(0)
    bias, x = torch.randn(FEATURES), torch.randn(batch, FEATURES)
    found = factorise(torch.randn(FEATURES, FEATURES) / FEATURES**0.5, kind)
    fast = sparsejit.compile(found.as_module(bias).eval(), example_inputs=(x,))
    dense = torch.from_numpy(found.matrix())
    exact, whole = x.double() @ dense.T + bias, dense.float()
    calls: Timed = {"sparsejit": lambda: fast(x), LINEAR: lambda: linear(x, whole, bias)}
    return StructuredContest(f"{kind}, batch {batch}", found.density, exact, calls)


def attention_contest(name: str, heads: int, with_flex: bool = True) -> "StructuredContest":
    """Contest of attention under a mask against torch's, and torch's compiled flex_attention."""
    torch.manual_seed(0)
    mask = torch.from_numpy(MASKS[name](TOKENS))
    given = tuple(torch.randn(1, heads, TOKENS, DEPTH) for _ in range(3))
    fast = sparsejit.compile(MaskedLayer(mask).eval(), example_inputs=given)
    # torch takes longer for a mask of bools.
    offsets = torch.zeros(TOKENS, TOKENS).masked_fill(~mask, float("-inf"))
    query, key, value = given
    wide = query.double(), key.double(), value.double()
    exact = scaled_dot_product_attention(*wide, attn_mask=mask)
    calls: Timed = {
        "sparsejit": lambda: fast(*given),
        SDPA: lambda: scaled_dot_product_attention(query, key, value, offsets),
    }
    if with_flex:
        blocks = create_block_mask(
            lambda b, h, i, j: mask[i, j], None, None, TOKENS, TOKENS, device="cpu"
        )
        torch._dynamo.reset()  # else it stops compiling after 8 shapes
        flex: Any = torch.compile(flex_attention)
        calls[FLEX] = lambda: flex(*given, block_mask=blocks)
    density = float(mask.double().mean())
    return StructuredContest(f"{name} attention, {heads} heads", density, exact, calls)


class StructuredContest:
    """Contestants for one result, checked against float64 and then timed in turn."""

    def __init__(self, subject: str, density: float, exact: Tensor, calls: Timed) -> None:
        """Raises CompileError where an output is wrong."""
        self.subject, self.density = subject, density
        self._turns = RoundsInTurn({name: partial(_us, call) for name, call in calls.items()})
        with torch.inference_mode():
            errors = {
                name: checked_error(name, np.asarray(call()).ravel(), exact.numpy().ravel())
                for name, call in calls.items()
            }
        self.relative_error = errors["sparsejit"]

    def round(self) -> dict[str, float]:
        """Run one round; return microseconds of each contestant, the least of a few samples."""
        with torch.inference_mode():
            return self._turns.round()

    def times(self, rounds: int = ROUNDS) -> StructuredTimes:
        """Run rounds; return the least times."""
        with torch.inference_mode():
            self._turns.run(rounds)
        least = self._turns.least()
        return StructuredTimes(self.subject, self.density, self.relative_error, least)


def _us(call: Callable[[], Tensor], _: int) -> float:
    return time_python(call, samples=3, budget_ns=20_000_000).min_ns / 1000


def _against(make: Callable[[], StructuredContest], peer: str) -> Callable[[], float]:
    contest = make()

    def one_round() -> float:
        us = contest.round()
        return us[peer] / us["sparsejit"]

    return one_round


def _attention(peer: str) -> Callable[[], StructuredContest]:
    return partial(attention_contest, "strided causal", 1, with_flex=peer == FLEX)


# By subject and `against` of the claim.
CONTESTS: dict[tuple[str, str], Callable[[], Callable[[], float]]] = {
    **{
        (f"monarch, batch {batch}", LINEAR): partial(
            _against, partial(factor_contest, "monarch", batch), LINEAR
        )
        for batch in (1, 16)
    },
    **{
        ("strided causal attention, 1 heads", peer): partial(_against, _attention(peer), peer)
        for peer in (SDPA, FLEX)
    },
}


def main(
    record: Annotated[bool, typer.Option("--record", help="Append to structured.jsonl.")] = False,
    flex: Annotated[bool, typer.Option(help="Also compile flex_attention.")] = True,
) -> None:
    """Print a line for every contest."""
    makers: list[Callable[[], StructuredContest]] = [
        partial(factor_contest, kind, batch)
        for kind in ("monarch", "butterfly", "block-circulant", "low-rank-plus-sparse")
        for batch in (1, 16)
    ]
    makers += [
        partial(attention_contest, name, heads, flex) for name in MASKS for heads in (1, 8)
    ]
    rows = []
    with single_threaded(), pinned():
        for make in makers:
            times = make().times()
            us = ", ".join(f"{name} {value:,.1f}" for name, value in times.us.items())
            typer.echo(f"{times.subject}, density {times.density:.1%}: {us} us")
            rows.append(asdict(times))
    if record:
        limits = machine_limits(Target.detect())
        typer.echo(f"recorded in {history.append('structured', rows, limits)}")


if __name__ == "__main__":
    typer.run(main)
