"""The instruction sets and kernels that this machine can run."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from sparsejit.asm_templates.families import Template
from sparsejit.machine.target import ISA_LEVELS, Target

LEVELS = [isa for isa in ISA_LEVELS if Target.named(isa).runs_on(Target.detect())]
# As pytest's parameters, the others skipped.
ISAS = [
    pytest.param(isa, marks=pytest.mark.skipif(isa not in LEVELS, reason=f"needs {isa}"))
    for isa in ISA_LEVELS
]


def target_of(row: Template) -> Target:
    """The least target that a row of the table is made for."""
    level = Target.named(row.isa)
    return replace(level, instruction_sets=level.instruction_sets | row.requires)


def runnable(rows: Iterable[Template]) -> list[Template]:
    return [row for row in rows if target_of(row).runs_on(Target.detect())]


def parameters(rows: Iterable[Template]) -> list[Any]:
    """All rows as pytest's parameters, those skipped that this machine cannot run."""
    rows = list(rows)
    here = set(map(id, runnable(rows)))
    return [
        pytest.param(
            row,
            id=row.name,
            marks=pytest.mark.skipif(id(row) not in here, reason="needs another processor"),
        )
        for row in rows
    ]
