"""Weights that a pruner prunes, and weights that torch computes before every forward pass.

    fold                 turns computed weights into plain weights
    match_targets        the weights that the targets select
    weights_of_products  the weights of products
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune, remove_weight_norm
from torch.nn.utils.weight_norm import WeightNorm

from sparsejit.errors import InvalidInput
from sparsejit.prune.patterns import Pattern, on_weight


def computed_weights(model: nn.Module) -> list[str]:
    """Names of the weights that `fold` would make plain parameters."""
    names = []
    for prefix, module in model.named_modules():
        dot = f"{prefix}." if prefix else ""
        names += [dot + name for name in (*_parametrized(module), *_hooked(module))]
    return names


def fold(model: nn.Module) -> list[str]:
    """Turn computed weights into plain parameters of the same value; return their names.

    Masks of torch.nn.utils.prune become exact zeros (`Pruner.prepare(..., keep_zeros=True)` keeps
    them), weight_norm and any other parametrization a plain weight. Where several parameters made
    up one weight a new one takes their place: build the optimizer afterwards.

    Raises:
        InvalidInput: the model is no torch module
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model is {model!r:.80}: give a torch.nn.Module")
    names = computed_weights(model)
    for module in model.modules():
        for name in _parametrized(module):
            parametrize.remove_parametrizations(module, name, leave_parametrized=True)
            # Only an assignment updates an RNN's list of flat weights with the new parameter.
            setattr(module, name, getattr(module, name))
        for name, hook in _hooked(module).items():
            if isinstance(hook, WeightNorm):
                remove_weight_norm(module, name)
            else:
                prune.remove(module, name)
    return names


def _parametrized(module: nn.Module) -> list[str]:
    found = getattr(module, "parametrizations", None)
    return list(found) if isinstance(found, nn.ModuleDict) else []


def _hooked(module: nn.Module) -> dict[str, object]:
    """Hooks of torch's old weight_norm and pruning, by the name of the weight each computes."""
    hooks = module._forward_pre_hooks.values()
    named = {h.name: h for h in hooks if isinstance(h, WeightNorm)}
    return named | {h._tensor_name: h for h in hooks if isinstance(h, prune.BasePruningMethod)}


# Modules that look numbers up or scale them hold no weights of a product.
_NO_PRODUCTS = (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.RMSNorm)

GATES: dict[type[nn.Module], int] = {nn.GRU: 3, nn.GRUCell: 3, nn.LSTM: 4, nn.LSTMCell: 4}

# A glob over parameter names ("!" before it leaves matches out), or a function that selects.
Target = str | Callable[[str, nn.Parameter], bool]


def as_list(targets: Target | Sequence[Target], argument: str = "targets") -> list[Target]:
    """The targets as a list; raises InvalidInput for an object that is no target."""
    if isinstance(targets, str) or callable(targets):
        return [targets]
    many = isinstance(targets, Iterable) and not isinstance(targets, Tensor)
    listed: list[Any] = list(targets) if many else [targets]
    for target in listed:
        if not isinstance(target, str) and not callable(target):
            raise InvalidInput(
                f"{argument} has {target!r}: give globs over parameter names, such as "
                "'fc*.weight', or functions of a name and a parameter"
            )
    return listed


def check_model(model: object) -> None:
    """Raise InvalidInput unless the model is a torch module whose weights can be read and written.

    A class of modules, a scripted module, a lazy layer that never ran and a tensor on the meta
    device are refused.
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model is {_described(model)}: give a torch.nn.Module")
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.RecursiveScriptModule):
            raise InvalidInput(
                f"{name or 'model'} is a ScriptModule, whose weights cannot be replaced: give the "
                "module that torch.jit.script was called with"
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise InvalidInput(
                f"{name} belongs to a lazy layer and has no shape yet: run the model on an example "
                "first"
            )
        if tensor.is_meta:
            raise InvalidInput(
                f"{name} is on the meta device, which holds no values: load the weights first"
            )


def warn_of_one_block(name: str, weight: Tensor, gates: int, pattern: Pattern) -> None:
    """Warn where a gate of a weight is a single block, so that all of it is pruned or nothing."""
    rows, cols = weight.shape[0] // gates, weight.shape[1:].numel()
    if rows * cols > 1 and on_weight(pattern, weight.shape).count(rows, cols) == 1:
        warnings.warn(
            f"{name} has {gates} x {rows} x {cols} weights (gates, rows, columns), no more than a "
            f"block of {pattern.name!r} a gate, so all of a gate is pruned or nothing: give a "
            f"smaller block, or leave it out by '!{name}'",
            stacklevel=3,
        )


def match_targets(model: nn.Module, targets: Target | Sequence[Target]) -> list[str]:
    """Names of the parameters that any target selects and no "!glob" leaves out, in order.

    A parameter that modules share is listed once. Each of its names may select it; a name in a
    module that multiplies comes before one in an embedding.

    No target, or none but "!glob", selects as `weights_of_products` does. Raises InvalidInput for a
    model that `check_model` refuses, a glob without a match, for a selection that is empty, and for
    a match that is no weight matrix.
    """
    check_model(model)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    wanted = as_list(targets)
    globs = [target for target in wanted if isinstance(target, str)]
    _check_not_computed(model, globs)
    check_globs(parameters, [glob.removeprefix("!") for glob in globs])
    if all(isinstance(target, str) and target.startswith("!") for target in wanted):
        _check_not_computed(model, ["*"])
        wanted += weights_of_products(model)
    matched = [
        name
        for name, weight in parameters.items()
        if any(_selects(target, name, weight) for target in wanted)
        and not any(glob[0] == "!" and fnmatchcase(name, glob[1:]) for glob in globs)
    ]
    if not matched:
        raise InvalidInput(
            f"the targets select none of {_abbreviate(list(parameters))}: name weights, for "
            "example targets=['fc*.weight']"
        )
    for name in matched:
        _check_matrix(name, parameters[name])
    chosen: dict[int, str] = {}
    for name in (*filter(partial(_multiplies, model), matched), *matched):
        chosen.setdefault(id(parameters[name]), name)
    return [name for name in matched if chosen[id(parameters[name])] == name]


def _multiplies(model: nn.Module, name: str) -> bool:
    """Whether the module that holds the parameter computes products with it."""
    return not isinstance(model.get_submodule(name.rpartition(".")[0]), _NO_PRODUCTS)


def weights_of_products(model: nn.Module) -> list[str]:
    """Names of floating-point weights of two or more axes, without embeddings' and norms'.

    A weight is a parameter with "weight" in its own name. One that an embedding shares is none.
    """
    others = {
        id(weight)
        for module in model.modules()
        if isinstance(module, _NO_PRODUCTS)
        for weight in module.parameters(recurse=False)
    }
    return [
        name
        for name, weight in model.named_parameters()
        if "weight" in name.rpartition(".")[2]
        and weight.ndim >= 2
        and weight.numel()
        and weight.is_floating_point()
        and id(weight) not in others
    ]


def _selects(target: Target, name: str, weight: nn.Parameter) -> bool:
    return fnmatchcase(name, target) if isinstance(target, str) else target(name, weight)


def protect_diagonal(name: str, weight: Tensor) -> Tensor:
    """True on the diagonal of every square gate: bool, in the weight's shape.

    Raises InvalidInput unless the rows are one or more squares.
    """
    rows, cols = weight.shape[0], weight.shape[1:].numel()
    if rows % cols:
        raise InvalidInput(
            f"{name} of shape {tuple(weight.shape)} is no stack of squares: "
            "keep_diagonal is for recurrent matrices such as 'rnn.weight_hh_l0'"
        )
    diagonal = torch.eye(cols, dtype=torch.bool, device=weight.device)
    return diagonal.repeat(rows // cols, 1).view(weight.shape)


def count_gates(model: nn.Module, name: str, per_gate: bool | Mapping[str, int]) -> int:
    """Row groups of one weight that are pruned on their own: 3 for a GRU, 4 for an LSTM, else 1.

    `per_gate` false: always 1. A mapping from globs to counts adds weights of other modules.
    Raises InvalidInput where the count does not divide the rows.
    """
    if per_gate is False:
        return 1
    module_name, _, parameter_name = name.rpartition(".")
    gates = 1
    if parameter_name.startswith(("weight_ih", "weight_hh")):
        module = model.get_submodule(module_name)
        gates = next((n for kind, n in GATES.items() if isinstance(module, kind)), 1)
    if isinstance(per_gate, Mapping):
        gates = next((n for glob, n in per_gate.items() if fnmatchcase(name, glob)), gates)
    rows = model.get_parameter(name).shape[0]
    if gates < 1 or rows % gates:
        raise InvalidInput(
            f"{name} has {rows} rows, which {gates} gates do not divide: correct per_gate"
        )
    return gates


def check_globs(names: Iterable[str], globs: Iterable[str]) -> None:
    """Raise InvalidInput for a glob that matches none of the names."""
    listed = list(names)
    for glob in globs:
        if not isinstance(glob, str):
            raise InvalidInput(f"{glob!r} is no glob: give patterns of names, such as 'fc*.weight'")
        if not any(fnmatchcase(name, glob) for name in listed):
            raise InvalidInput(
                f"{glob!r} matches no parameter: name one or more of {_abbreviate(listed)}"
            )


def check_finite(name: str, weight: Tensor) -> None:
    """Raise InvalidInput if the weight holds a NaN or an infinity."""
    finite = weight.detach().isfinite()
    if not finite.all():
        wrong = int((~finite).sum())
        raise InvalidInput(
            f"{name} has {wrong} NaN or infinite of {weight.numel()} weights: "
            "magnitudes mean nothing here; go back to a sound checkpoint"
        )


def _check_not_computed(model: nn.Module, globs: Sequence[str]) -> None:
    """Raise InvalidInput for a glob that names a weight which hooks compute from others."""
    parameters = dict(model.named_parameters())
    for name in computed_weights(model):
        if name not in parameters and any(fnmatchcase(name, glob) for glob in globs):
            raise InvalidInput(
                f"{name} is computed from other parameters (weight_norm, torch.nn.utils.prune or "
                "another parametrization): call sparsejit.prune.fold(model) first"
            )


def _check_matrix(name: str, weight: Tensor) -> None:
    if weight.ndim < 2 or weight.numel() == 0:
        raise InvalidInput(
            f"{name} has shape {tuple(weight.shape)}, no matrix: "
            "narrow the target to weights, for example 'fc*.weight' or 'rnn.weight_*'"
        )
    if not weight.is_floating_point():
        raise InvalidInput(f"{name} has dtype {weight.dtype}: prune before quantising")


def _described(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else repr(value)[:80]


def _abbreviate(names: Sequence[str], limit: int = 12) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
