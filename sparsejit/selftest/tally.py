"""Counts of kernels that passed and failed a selftest."""

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from sparsejit.machine.target import MAX_ISA_VARIABLE
from sparsejit.selftest.cases import derive
from sparsejit.selftest.examination import Verdict

# Family, dtype and level.
Kind = tuple[str, str, str]


@dataclass
class Tally:
    """Counts of the kernels of `seed` that passed (`held`), by kind, and the failures."""

    seed: int
    held: Counter[Kind] = field(default_factory=Counter)
    failures: list[Verdict] = field(default_factory=list)
    shared: int = 0  # kernels that ran on several threads

    def add(self, verdict: Verdict) -> None:
        """Count one kernel."""
        if verdict.problem is not None:
            self.failures.append(verdict)
            return
        self.held[_kind(verdict)] += 1
        self.shared += verdict.threads > 1

    @property
    def kernels(self) -> int:
        """Number of kernels tried."""
        return self.held.total() + len(self.failures)

    def families(self) -> list[tuple[str, str]]:
        """Return each family and dtype tried, sorted by name."""
        return sorted({kind[:2] for kind in (*self.held, *map(_kind, self.failures))})

    def failed(self, family: str, dtype: str) -> int:
        """Return the number of failures of this family and dtype."""
        return sum(_kind(verdict)[:2] == (family, dtype) for verdict in self.failures)

    def command(self, verdict: Verdict) -> str:
        """Return the shell command that tests this kernel alone."""
        limit = os.environ.get(MAX_ISA_VARIABLE)
        prefix = f"{MAX_ISA_VARIABLE}={limit} " if limit else ""
        return f"{prefix}sparsejit selftest --seed {self.seed} --only {verdict.number}"

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as plain JSON types."""
        return {
            "seed": self.seed,
            "kernels": self.kernels,
            "held": self.held.total(),
            "on_several_threads": self.shared,
            "by_kind": [
                {"family": family, "dtype": dtype, "level": level, "held": held}
                for (family, dtype, level), held in sorted(self.held.items())
            ],
            "failures": [
                {
                    "number": verdict.number,
                    "problem": verdict.problem,
                    "kernel": str(derive(self.seed, verdict.number)),
                    "command": self.command(verdict),
                }
                for verdict in self.failures
            ],
        }


def _kind(verdict: Verdict) -> Kind:
    return verdict.family, verdict.dtype, verdict.isa
