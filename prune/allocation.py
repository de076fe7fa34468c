"""Allocations of one amount over all layers: the number of blocks that each layer loses.

    amounts_by_gate   the share to prune of every layer and gate, from the user's `amount`
    ALLOCATIONS       table of allocations by name
    choose_pruned     the weights to prune
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from numbers import Real

import torch
from torch import Tensor

from sparsejit.errors import InvalidInput
from sparsejit.prune.patterns import BlockPattern, Blocks, NofM, Pattern, least

# One share for all targets, or globs with a share each, or with one share a gate.
Amount = float | Mapping[str, float | Sequence[float]]


def check_amount(amount: Amount, pattern: Pattern) -> None:
    """Raise InvalidInput for a share outside [0, 1), or one that an N:M pattern contradicts."""
    for glob in amount if isinstance(amount, Mapping) else ():
        if not isinstance(glob, str):
            raise InvalidInput(f"amount has {glob!r}: give a share by globs, {{'fc*': 0.9}}")
    for share in _shares(amount):
        if not isinstance(share, Real) or isinstance(share, bool):
            raise InvalidInput(f"amount={share!r}: give the share to prune, 0.9 for 90 %")
        if not 0.0 <= share < 1.0:
            raise InvalidInput(
                f"amount={share} is outside [0, 1): give the share to prune, 0.9 for 90 %"
            )
        if isinstance(pattern, NofM) and abs(share - pattern.amount) > 1e-6:
            raise InvalidInput(
                f"amount={share} contradicts pattern={pattern.name!r}: give {pattern.amount:g}"
            )


def amounts_by_gate(
    amount: Mapping[str, float | Sequence[float]], gates: Mapping[str, int]
) -> dict[str, tuple[float, ...]]:
    """Return the shares to prune of every target, one a gate, by the first glob that matches.

    A single number in `amount` holds for all gates of a target. Raises InvalidInput for a target
    without a glob, a glob without a target, and a wrong number of gates.
    """
    for glob in amount:
        if not any(fnmatchcase(name, glob) for name in gates):
            raise InvalidInput(
                f"amount has a glob {glob!r} that matches no target: drop it, or add the target"
            )
    chosen = {}
    for name, count in gates.items():
        share = next((s for glob, s in amount.items() if fnmatchcase(name, glob)), None)
        if share is None:
            raise InvalidInput(f"amount has no glob for the target {name}: add one")
        shares = tuple(share) if isinstance(share, Sequence) else (share,) * count
        if len(shares) != count:
            raise InvalidInput(
                f"amount gives {len(shares)} shares to {name}, which has {count} gates: "
                "give one for each, in torch's order, or one for all"
            )
        chosen[name] = shares
    return chosen


def _shares(amount: Amount) -> Iterable[float]:
    if not isinstance(amount, Mapping):
        yield amount
        return
    for share in amount.values():
        yield from share if isinstance(share, Sequence) else (share,)


# Each returns, for every layer, the blocks to prune in each of its gates, not yet rounded.
Allocation = Callable[[Mapping[str, Blocks], float], dict[str, float]]


def uniform(layers: Mapping[str, Blocks], amount: float) -> dict[str, float]:
    """Blocks to prune in each gate of every layer, by name: the same share of all layers."""
    return {name: amount * blocks.per_gate for name, blocks in layers.items()}


def global_magnitude(layers: Mapping[str, Blocks], amount: float) -> dict[str, float]:
    """Blocks to prune in each gate of every layer, by name: the least of all layers' blocks go.

    A layer's number is the mean of its gates.
    """
    return _rank_together(layers, {name: b.scores.flatten() for name, b in layers.items()}, amount)


def lamp(layers: Mapping[str, Blocks], amount: float) -> dict[str, float]:
    """Blocks to prune in each gate of every layer, by name: the least LAMP scores of all go.

    A LAMP score is a block's score over the sum of its layer's scores from its rank upwards. Lee et
    al. 2021, "Layer-adaptive sparsity for the magnitude-based pruning", equation 2.
    """
    scores = {name: lamp_scores(blocks.scores.flatten()) for name, blocks in layers.items()}
    return _rank_together(layers, scores, amount)


def lamp_scores(scores: Tensor) -> Tensor:
    """Each score over the sum of the scores from its rank upwards; infinities stay as they are."""
    ascending, order = scores.sort(stable=True)
    finite = ascending.where(ascending.isfinite(), 0.0)
    from_there_up = finite.flip(0).cumsum(0).flip(0)
    ratio = torch.where(from_there_up > 0, finite / from_there_up, 0.0)
    return torch.empty_like(scores).scatter_(0, order, ratio.where(ascending.isfinite(), ascending))


def erdos_renyi_kernel(layers: Mapping[str, Blocks], amount: float) -> dict[str, float]:
    """Blocks to prune in each gate of every layer, by name, for Erdos-Renyi densities.

    A density is in proportion to (inputs + outputs) / (inputs * outputs), none above 1: Evci et al.
    2020, "Rigging the lottery". Every gate is a matrix of its own, and a convolution counts as
    (out, everything else). The density of all blocks together is 1 - amount.
    """
    rows_and_cols = {name: blocks.labels.shape[1:] for name, blocks in layers.items()}
    raw = {name: (m + n) / (m * n) for name, (m, n) in rows_and_cols.items()}
    total = {name: float(blocks.scores.numel()) for name, blocks in layers.items()}
    left = (1 - amount) * sum(total.values())
    dense: set[str] = set()
    while True:
        sparse = [name for name in layers if name not in dense]
        scale = (left - sum(total[name] for name in dense)) / sum(
            raw[name] * total[name] for name in sparse
        )
        too_dense = {name for name in sparse if scale * raw[name] > 1}
        if not too_dense:
            break
        dense |= too_dense
    density = {name: 1.0 if name in dense else scale * raw[name] for name in layers}
    return {name: (1 - density[name]) * blocks.per_gate for name, blocks in layers.items()}


def _rank_together(
    layers: Mapping[str, Blocks], scores: Mapping[str, Tensor], amount: float
) -> dict[str, float]:
    together = torch.cat([scores[name].cpu() for name in layers])
    lowest = least(together, round(amount * len(together)))
    owned = lowest.split([scores[name].numel() for name in layers])
    return {
        name: int(chosen.sum()) / layers[name].gates
        for name, chosen in zip(layers, owned, strict=True)
    }


ALLOCATIONS: dict[str, Allocation] = {
    "uniform": uniform,
    "global": global_magnitude,
    "lamp": lamp,
    "erk": erdos_renyi_kernel,
}


def choose_allocation(
    asked: str | None, amount: Amount, pattern: Pattern, is_magnitude: bool
) -> str:
    """Name of the allocation; by default the one that loses least in docs/notes/pruning.md.

    is_magnitude: whether weights are scored by magnitude, without which LAMP has no meaning.
    Raises InvalidInput for an unknown name, and for one that the other arguments contradict.
    """
    shares_one = not isinstance(amount, Mapping) and not isinstance(pattern, NofM)
    if asked is None:
        return ("lamp" if is_magnitude else "erk") if shares_one else "uniform"
    if not isinstance(asked, str) or asked not in ALLOCATIONS:
        raise InvalidInput(f"allocation={asked!r} is unknown: use one of {', '.join(ALLOCATIONS)}")
    if asked != "uniform" and isinstance(amount, Mapping):
        raise InvalidInput(
            f"allocation={asked!r} shares one amount, and amount has one for each glob: drop either"
        )
    if asked != "uniform" and not shares_one:
        raise InvalidInput(
            f"pattern={pattern.name!r} fixes the amount of every layer: drop allocation={asked!r}"
        )
    if asked == "lamp" and not is_magnitude:
        raise InvalidInput(
            "allocation='lamp' is defined for magnitudes: drop the criterion, or use 'global'"
        )
    return asked


def choose_pruned(
    layers: Mapping[str, Blocks], counts: Mapping[str, Sequence[float]]
) -> dict[str, Tensor]:
    """Weights to prune in every layer, bool (gates, rows, columns): the blocks of least score.

    `counts` has the number of blocks for each gate of each layer. Counts are rounded, a half to the
    even neighbour: also torch.nn.utils.prune's rule. Raises InvalidInput where protected blocks
    would have to go.
    """
    pruned = {}
    for name, blocks in layers.items():
        # A count may be below the number of blocks already pruned, which stay pruned.
        gone = blocks.scores == -torch.inf
        chosen = torch.stack(
            [least(blocks.scores[gate], round(count)) for gate, count in enumerate(counts[name])]
        )
        if (blocks.scores[chosen] == torch.inf).any():
            protected = int((blocks.scores == torch.inf).sum())
            raise InvalidInput(
                f"{name} is to keep {int((~chosen).sum())} of {chosen.numel()} blocks, but "
                f"keep_diagonal protects {protected}: lower the amount or leave it out"
            )
        pruned[name] = blocks.spread(chosen | gone)
    return pruned


def choose_least(
    importance: Tensor, pattern: Pattern, counts: Sequence[int], alive: Tensor | None = None
) -> Tensor:
    """Weights to prune in one matrix: bool, (out_features, in_features) like `importance`.

    counts: number of blocks of least mean importance to prune in each of `len(counts)` equal parts
        of the rows, blocks that are not `alive` included.
    """
    by_part = (len(counts), importance.shape[0] // len(counts), -1)
    left = torch.ones_like(importance, dtype=torch.bool) if alive is None else alive
    if pattern == BlockPattern(1, 1):  # a short way, for blocks of one weight
        parts = importance.masked_fill(~left, -torch.inf).reshape(len(counts), -1)
        pairs = zip(parts, counts, strict=True)
        chosen = torch.stack([least(part, count) for part, count in pairs])
        if not (parts[chosen] == torch.inf).any():
            return chosen.view_as(importance) | ~left
    blocks = pattern.blocks(importance.reshape(by_part), left.reshape(by_part))
    return choose_pruned({"": blocks}, {"": counts})[""].view_as(importance)
