"""Turn weights that torch computes before every forward pass into plain weights."""

from torch import nn
from torch.nn.utils import parametrize, prune, remove_weight_norm
from torch.nn.utils.weight_norm import WeightNorm

from sparsejit.errors import InvalidInput


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
    """The hooks of the old kind, by the name of the weight that each computes."""
    hooks = module._forward_pre_hooks.values()
    named = {h.name: h for h in hooks if isinstance(h, WeightNorm)}
    return named | {h._tensor_name: h for h in hooks if isinstance(h, prune.BasePruningMethod)}
