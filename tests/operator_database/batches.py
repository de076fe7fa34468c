"""Samples compiled many at a time, and the outcome of each."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from operator_database.comparing import differences, in_float64
from operator_database.samples import Sample
from torch.utils._pytree import tree_leaves

import sparsejit
from sparsejit.errors import InvalidInput, UnsupportedOperator

EQUAL, REFUSED, WRONG, RAW = "equal", "refused", "wrong", "raw"
_IN_MODULE = re.compile(r"\bsample_(\d+)\b")


@dataclass
class Case:
    """A sample with torch's results for it; tensors at `fixed` are the module's own."""

    sample: Sample
    plain: list[torch.Tensor]
    exact: list[torch.Tensor] | None
    fixed: bool = False


@dataclass(frozen=True)
class Outcome:
    """The outcome of a sample; `text` is the reason, unless it is equal."""

    case: Case
    kind: str
    text: str = ""


class One(torch.nn.Module):
    """The call of one sample. An empty tensor is a part of an input that has elements."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.sample, self.is_fixed = case.sample, case.fixed
        if isinstance(case.sample.function, torch.nn.Module):
            self.function = case.sample.function
        for number, tensor in enumerate(case.sample.tensors[1:] if case.fixed else ()):
            self.register_buffer(f"fixed_{number}", tensor)

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        tensors = []
        for x, like in zip(inputs, self.sample.tensors, strict=False):
            for axis, length in enumerate(like.shape):
                if not length:
                    x = x.narrow(axis, 0, 0)
            tensors.append(x)
        tensors += self.buffers(recurse=False)
        return self.sample.call(tensors)


class Together(torch.nn.Module):
    """The calls of several samples, one after the other."""

    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__()
        self.counts: list[int] = []
        for number, case in enumerate(cases):
            self.add_module(f"sample_{number}", One(case))
            self.counts.append(len(inputs_of(case)))

    def forward(self, *inputs: torch.Tensor) -> list[list[torch.Tensor]]:
        results, first = [], 0
        for count, one in zip(self.counts, self.children(), strict=True):
            results.append(one(*inputs[first : first + count]))
            first += count
        return results


def inputs_of(case: Case) -> list[torch.Tensor]:
    """The tensors of a call of the compiled sample."""
    tensors = case.sample.tensors[:1] if case.fixed else case.sample.tensors
    return [x if x.numel() else _with_elements(x) for x in tensors]


def _with_elements(x: torch.Tensor) -> torch.Tensor:
    return torch.ones([max(1, length) for length in x.shape], dtype=x.dtype)


def cases_of(samples: Sequence[Sample]) -> list[Case]:
    """The samples that torch computes, with its results in the sample's dtype and in float64."""
    cases = []
    for sample in samples:
        plain = _by_torch(sample, [x.clone() for x in sample.tensors], sample.function)
        if plain is None or any(x.layout is not torch.strided for x in plain):
            continue
        function = sample.function
        if isinstance(function, torch.nn.Module):
            function = copy.deepcopy(function).double()
        exact = _by_torch(sample, [in_float64(x).clone() for x in sample.tensors], function)
        cases.append(Case(sample, plain, exact))
    return cases


def _by_torch(sample: Sample, tensors: Any, function: Any) -> list[torch.Tensor] | None:
    # It returns 0 for tokens that a mask leaves out, and others read that; export traces the rest.
    torch.backends.mha.set_fastpath_enabled(False)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            return [x.clone() for x in sample.call(tensors, function)]
        except Exception:  # whatever torch raises for a sample that it does not take
            return None


def outcomes(cases: Sequence[Case]) -> list[Outcome]:
    """The outcome of every case; those refused are tried again alone or in smaller batches."""
    if not cases:
        return []
    found = attempt(cases)
    if len(cases) == 1:
        return found
    settled = [each for each in found if each.kind == EQUAL]
    open_ = [each for each in found if each.kind != EQUAL]
    if len(open_) < len(cases):
        known = [each for each in open_ if each.kind == REFUSED]
        rest = [each.case for each in open_ if each.kind == ""]
        singles = [each.case for each in open_ if each.kind in (WRONG, RAW)]
        found = settled + known + outcomes(rest)
        return found + [each for case in singles for each in attempt([case])]
    if all(each.kind == REFUSED for each in open_):
        return open_
    half = len(cases) // 2
    return outcomes(cases[:half]) + outcomes(cases[half:])


def attempt(cases: Sequence[Case]) -> list[Outcome]:
    """One compilation of all; an outcome without a kind is of a case that another one stopped."""
    inputs = tuple(x for case in cases for x in inputs_of(case))
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            compiled = sparsejit.compile(Together(cases).eval(), inputs, free_batch=False)
            results = compiled(*inputs)
    except UnsupportedOperator as error:
        return _refused(cases, str(error))
    except InvalidInput as error:
        return [Outcome(case, REFUSED if len(cases) == 1 else WRONG, str(error)) for case in cases]
    except Exception as error:  # whatever is raised is what we look for
        return [Outcome(case, RAW, f"{type(error).__name__}: {error}"[:600]) for case in cases]
    made = []
    for case, result in zip(cases, results, strict=True):
        text = differences(tree_leaves(result), case.plain, case.exact, case.sample.any_places)
        made.append(Outcome(case, WRONG if text else EQUAL, text))
    return made


def _refused(cases: Sequence[Case], text: str) -> list[Outcome]:
    """By the module that each line of the message names."""
    reasons: dict[int, str] = {}
    lines = text.splitlines()[1:-1]
    for line in lines:
        for number in _IN_MODULE.findall(line):
            reasons.setdefault(int(number), line.partition("  # ")[0].strip())
    if len(cases) == 1:
        return [Outcome(cases[0], REFUSED, next(iter(reasons.values()), text))]
    if not reasons:
        return [Outcome(case, WRONG, text) for case in cases]
    return [
        Outcome(case, REFUSED, reasons[n]) if n in reasons else Outcome(case, "")
        for n, case in enumerate(cases)
    ]
