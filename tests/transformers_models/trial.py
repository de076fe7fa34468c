"""One model class, built small, exported, compiled and compared with torch."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers_models.catalogue import Case
from transformers_models.example_inputs import MOST_ROWS, Inputs, arguments
from transformers_models.small_configs import divisors, small

import sparsejit
from sparsejit.errors import SparseJitError
from sparsejit.frontends.torch_export.exporting import export

EXAMPLE_ROWS = 2
# Calls with other batches, where the batch is free.
OTHER_ROWS = (1, MOST_ROWS)
# Against float64, relative to the largest element of an output; and how many times torch's own
# float32 may be off.
BOUND, MARGIN = 1e-5, 10.0
MOST_PARAMETERS = 20_000_000
# Large enough for each weight to show in the outputs, small enough for no overflow.
NOISE = 0.04


@dataclass(frozen=True)
class Outcome:
    """One case's result.

    Attributes:
        name: the case's
        kind: the case's
        model_class: the case's
        status: "equal", "refused", "not exported", "not built", or "finding"
        text: the reason of any status but "equal"; there why the batch is fixed, if it is
    """

    name: str
    kind: str
    model_class: str
    status: str
    text: str = ""


class NotBuilt(Exception):
    """No small configuration builds a model that runs on the inputs that were made."""


class TooLarge(NotBuilt):
    """A model has more than MOST_PARAMETERS."""


class Wrong(AssertionError):
    """A compiled model's output differs from torch's."""


class Part(nn.Module):
    """A model, or a part of it, as a module that takes its arguments by name.

    Raises NotBuilt for a part that the model lacks.
    """

    def __init__(self, model: nn.Module, path: str) -> None:
        super().__init__()
        self.model, self._path = model, path
        self.function()

    def function(self) -> Callable[..., Any]:
        """A bound method of the model or of its part."""
        found: Any = self.model
        for name in filter(None, self._path.split(".")):
            getter = getattr(found, f"get_{name}", None)
            found = getattr(found, name, None) if getter is None else getter()
        if found is None:
            raise NotBuilt(f"the model has no {self._path}")
        return found.forward if isinstance(found, nn.Module) else found

    def forward(self, **inputs: Tensor) -> Any:
        """The part's result."""
        return self.function()(**inputs)


def try_case(case: Case) -> Outcome:
    """Build, compile and compare it. Never raises an Exception."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            part, inputs = build(case)
        except NotBuilt as reason:
            return _outcome(case, "not built", reason)
        try:
            compiled = compiled_part(part, inputs)
        except SparseJitError as reason:
            problem = why_not_exported(part, inputs)
            return _outcome(case, "not exported" if problem else "refused", problem or reason)
        except Exception as error:
            return _outcome(case, "finding", f"{type(error).__name__}: {error}")
        try:
            compare(part, compiled, inputs)
        except Exception as error:
            return _outcome(case, "finding", f"{type(error).__name__}: {error}")
        reason = "" if compiled.batch_is_free else why_not_free(part, inputs)
        return _outcome(case, "equal", reason)


def _outcome(case: Case, status: str, reason: Any) -> Outcome:
    lines = [line.strip() for line in str(reason).splitlines() if line.strip()]
    return Outcome(case.name, case.kind, case.model_class, status, " ".join(lines)[:500])


def build(case: Case) -> tuple[Part, Inputs]:
    """The model with the smallest configuration that runs, and MOST_ROWS rows of its inputs.

    Raises NotBuilt with the last reason.
    """
    import transformers

    try:
        config_class = transformers.CONFIG_MAPPING[case.model_type]
        own = config_class().to_dict()
        model_class = getattr(transformers, case.model_class)
    except Exception as error:
        raise NotBuilt(f"{type(error).__name__}: {error}") from error
    reason: Exception | None = None
    for divisor in divisors(own):
        try:
            config = config_class.from_dict(small(case.model_type, own, divisor))
            return _built(case, model_class, config)
        except TooLarge as error:
            reason = reason or error
        except Exception as error:
            reason = error
    raise NotBuilt(f"{type(reason).__name__}: {reason}")


def _built(case: Case, model_class: Any, config: Any) -> tuple[Part, Inputs]:
    if hasattr(config, "use_cache"):
        config.use_cache = False
    text = config.get_text_config()
    if hasattr(text, "use_cache"):
        text.use_cache = False
    found = _parameters(model_class, config)
    if found > MOST_PARAMETERS:
        raise TooLarge(f"{found} parameters with these sizes")
    torch.manual_seed(0)
    model = model_class(config).eval().float()
    for weight in model.parameters():
        weight.add_(NOISE * torch.randn_like(weight))
    part = Part(model, case.part)
    torch.manual_seed(1)
    inputs = arguments(case.name, part.function(), config)
    part(**inputs.rows(EXAMPLE_ROWS))
    return part.eval(), inputs


def _parameters(model_class: Any, config: Any) -> int:
    """The number of parameters, from a model without memory; 0 where it needs its numbers."""
    try:
        with torch.device("meta"):
            model = model_class(copy.deepcopy(config))
    except Exception:
        return 0
    return sum(each.numel() for each in model.parameters())


def compiled_part(part: nn.Module, inputs: Inputs) -> Any:
    """The part, compiled for EXAMPLE_ROWS rows, or any number where its batch is free."""
    return sparsejit.compile(part, example_kwargs=inputs.rows(EXAMPLE_ROWS))


def why_not_exported(part: nn.Module, inputs: Inputs) -> str:
    """The message of torch.export, for a fixed batch; empty where it succeeds."""
    try:
        torch.export.export(part, (), inputs.rows(EXAMPLE_ROWS), strict=False)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def why_not_free(part: nn.Module, inputs: Inputs) -> str:
    """Why the batch of a part that compiles is fixed."""
    return export(part, (), inputs.rows(EXAMPLE_ROWS)).why_not_free


def compare(part: nn.Module, compiled: Any, inputs: Inputs) -> None:
    """Raises Wrong where a compiled output differs from torch's, in any of several batches."""
    wide = _in_float64(part)
    others = OTHER_ROWS if compiled.batch_is_free else ()
    for rows in (EXAMPLE_ROWS, *others):
        call = inputs.rows(rows)
        wanted = _arrays(part(**call))
        exact = _exact(wide, call) or wanted
        found = _arrays(compiled(**call))
        if len(found) != len(wanted):
            raise Wrong(f"{len(found)} outputs and not {len(wanted)}")
        for number, outputs in enumerate(zip(found, wanted, exact, strict=True)):
            _check(f"output {number} of {rows} rows", *outputs)


def _check(where: str, found: np.ndarray, wanted: np.ndarray, exact: np.ndarray) -> None:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise Wrong(f"{where} is {found.dtype}{found.shape}, not {wanted.dtype}{wanted.shape}")
    if wanted.dtype.kind != "f":
        if not np.array_equal(found, wanted):
            raise Wrong(f"{where}: {(found != wanted).sum()} of {found.size} differ")
        return
    if np.isnan(exact).any():  # float64's least number overflows where float32's is cast to it
        exact = wanted
    is_same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    with np.errstate(invalid="ignore"):
        off, own = (np.where(is_same, 0.0, np.abs(x - exact)) for x in (found, wanted))
    finite = np.abs(exact[np.isfinite(exact)])
    bound = BOUND * finite.max(initial=0.0) + MARGIN * np.nanmax(own, initial=0.0)
    if not (off <= bound).all():
        worst = np.nan if np.isnan(off).any() else off.max()
        raise Wrong(f"{where} is off by {worst:.3g}, bound {bound:.3g}")


def _in_float64(part: nn.Module) -> nn.Module | None:
    """A copy in float64; None where the model cannot be copied."""
    try:
        return copy.deepcopy(part).double()
    except Exception:
        return None


def _exact(wide: nn.Module | None, call: Mapping[str, Tensor]) -> list[np.ndarray] | None:
    """A copy's results in float64; None where the model casts to float32 itself and fails."""
    try:
        return None if wide is None else _arrays(wide(**_widened(call)))
    except RuntimeError:
        return None


def _widened(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: value.double() if value.is_floating_point() else value
        for name, value in inputs.items()
    }


def _arrays(nest: Any) -> list[np.ndarray]:
    leaves = (each for each in tree_leaves(nest) if isinstance(each, Tensor | np.ndarray))
    return [np.asarray(each) for each in leaves]
