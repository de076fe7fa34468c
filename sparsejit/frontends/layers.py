"""One layer's matrix and bias from a module or a state dict, with masks multiplied in."""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends.arrays import Array, is_tensor, to_array, to_matrix
from sparsejit.ir.compressed_rows import CompressedRows

# Modules of torch that multiply by one matrix; classes derived from them count too.
_MATRIX_MODULES = frozenset({"Linear", "Conv1d", "Conv2d", "Conv3d"})
# Suffixes of the two factors of a parameter that torch.nn.utils.prune has pruned.
_MASKED = ("_orig", "_mask")


def weights_and_bias(weights: Any, bias: Any = None) -> tuple[Array | CompressedRows, Array | None]:
    """Read a matrix (out_features, in_features) and a bias, or None, from a user's objects.

    `weights` may be anything that `to_array` takes, of two dimensions or more; all after the first
    are flattened, so that a convolution's weights are (out, rest). Or they may be a torch.nn.Linear
    or an ungrouped convolution, or a state dict of one such layer; these have a bias of their own,
    which `bias` replaces if it is given. Raises InvalidInput for anything else.
    """
    own_bias = None
    if isinstance(weights, Mapping) and not hasattr(weights, "toarray"):  # scipy's dok is a dict
        weights, own_bias = _layer_of_state(weights)
    elif hasattr(weights, "named_parameters"):
        weights, own_bias = _layer_of_module(weights)
    matrix = to_matrix(weights, "weights")
    if not isinstance(matrix, CompressedRows) and matrix.ndim > 2 and matrix.size:
        matrix = matrix.reshape(len(matrix), -1)
    bias = own_bias if bias is None else bias
    return matrix, None if bias is None else to_array(bias, "bias")


def factors(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Names of the tensors whose product is each parameter of a state dict, by parameter.

    Such a name is the parameter's own, or `x_orig` and `x_mask` for a pruned `x`.
    """
    present, found = set(names), {}
    for name in sorted(present):
        stem = name.removesuffix(_MASKED[0]).removesuffix(_MASKED[1])
        pair = tuple(stem + suffix for suffix in _MASKED)
        if stem != name and present.issuperset(pair):
            found[stem] = pair
        else:
            found[name] = (name,)
    return found


def product(arrays: Iterable[Array]) -> Array:
    """The product of a parameter's factors; a zero of the mask gives 0 even for NaN."""
    return reduce(lambda value, mask: np.where(mask != 0, value, 0) * mask, arrays)


def layer_names(names: Iterable[str]) -> tuple[str, str | None] | None:
    """The names of the weights and of the bias if there is only one layer, else None."""
    left = set(names)
    weights = [name for name in left if name.split(".")[-1].startswith("weight")]
    if len(left) == 1:
        return left.pop(), None
    if len(weights) != 1:
        return None
    head, _, last = weights[0].rpartition("weight")
    bias = f"{head}bias{last}"
    return (weights[0], bias) if left == {weights[0], bias} else None


def _layer_of_state(state: Mapping[str, Any]) -> tuple[Array, Array | None]:
    if not all(isinstance(key, str) for key in state):
        raise InvalidInput("weights is a dict with keys that are no names; give a state dict")
    parts = factors(state)
    names = layer_names(parts)
    if names is None:
        raise InvalidInput(
            f"weights is a dict of {len(parts)} parameters ({', '.join(list(parts)[:8])}); "
            "give one layer's, such as state['fc.weight']"
        )
    weight, bias = (None if name is None else _product_of(state, parts[name]) for name in names)
    assert weight is not None
    return weight, bias


def _layer_of_module(module: Any) -> tuple[Any, Any]:
    kinds = {kind.__name__ for kind in type(module).__mro__}
    if not kinds & _MATRIX_MODULES:
        raise InvalidInput(
            f"weights is a {type(module).__name__}; give a Linear, an ungrouped convolution, or "
            "one weight of it"
        )
    _check_forward(module)
    if not is_tensor(getattr(module, "weight", None)):
        raise InvalidInput(f"{type(module).__name__} is quantised; give its weight dequantised")
    if getattr(module, "groups", 1) != 1:
        raise InvalidInput(
            f"a convolution with groups={module.groups} is several matrices; give each of them"
        )
    # A pruned weight is computed before each forward pass: the module's own may be out of date.
    held = dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))
    parts = factors(held)
    weight, bias = (
        _product_of(held, parts[name]) if len(parts.get(name, ())) == 2 else getattr(module, name)
        for name in ("weight", "bias")
    )
    return weight, bias


def _check_forward(module: Any) -> None:
    """Refuse a module that computes more than its base class in torch does."""
    kind: Any = type(module)
    base: Any = next(each for each in kind.__mro__ if each.__name__ in _MATRIX_MODULES)
    if kind.forward is not base.forward or getattr(module, "_forward_hooks", None):
        raise InvalidInput(
            f"weights is a {type(module).__name__} with a forward pass or a hook of its own; give "
            "its weight, and apply the rest of its computation yourself"
        )


def _product_of(state: Mapping[str, Any], names: tuple[str, ...]) -> Array:
    _, mask = _MASKED
    arrays = [to_array(state[name], name, takes_bools=name.endswith(mask)) for name in names]
    if len({array.shape for array in arrays}) > 1:
        shapes = ", ".join(f"{n} {a.shape}" for n, a in zip(names, arrays, strict=True))
        raise InvalidInput(f"a weight and its mask differ in shape: {shapes}")
    return product(arrays)
