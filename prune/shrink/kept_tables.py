"""A file with the tables of times and losses, from which a stopped `shrink` resumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparsejit.api.models.code_cache import digest_of
from sparsejit.artefact import sealed
from sparsejit.artefact.records import fields_of
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.files import check_writable
from sparsejit.ir.graph import Graph
from sparsejit.ir.spec import DType
from sparsejit.ir.values import Array
from sparsejit.lowering.context import ModelOptions
from sparsejit.prune.patterns import PATTERNS
from sparsejit.prune.shrink.layers import LayerForm, ShrinkLayer
from sparsejit.prune.shrink.losses import Losses
from sparsejit.prune.shrink.times import Times

_KIND = "shrink tables"
_TIMES, _ZEROS, _STORAGE = "times", "zeros", "storage"


class ShrinkTables(NamedTuple):
    """The layers that may change, the times of their forms, and the losses."""

    layers: list[ShrinkLayer]
    times: Times
    losses: Losses


@dataclass(frozen=True)
class KeptTables:
    """The file, and a digest of the model, the data and the options that its tables are for."""

    path: Path
    digest: str

    @classmethod
    def at(
        cls,
        path: str | Path,
        graph: Graph,
        elements: Sequence[Sequence[Array]],
        options: ModelOptions,
        *flags: bool,
    ) -> KeptTables:
        """The file at a path; raises InvalidInput where it cannot be written."""
        arrays = [array for each in elements for array in each]
        constants = list(graph.constants.values())
        digest = digest_of(str(graph), constants, arrays, options.target, flags)
        return cls(check_writable(path), digest)

    def read(self, layers: Sequence[ShrinkLayer]) -> ShrinkTables | None:
        """The tables in the file, which are of some of these layers; None without a file.

        Raises InvalidInput for the tables of another model or other data, and DamagedFile.
        """
        if not self.path.exists():
            return None
        found = sealed.read(self.path, (_KIND,))
        with sealed.naming(self.path):
            digest, numbers, forms, patterns, dtypes, amounts, others, bound = fields_of(
                found.header,
                digest=str,
                **dict.fromkeys(("layers", "forms", "patterns", "dtypes", "amounts"), list),
                others=float,
                bound=list,
            )
            if digest != self.digest:
                raise InvalidInput(
                    f"{self.path} has the tables of another model, other data or options; remove "
                    "it, or name another file"
                )
            try:
                own = [layers[number] for number in numbers]
                by_form = [_form(each) for each in forms]
                tables = {name: found.tensors[name] for name in (_TIMES, _ZEROS, _STORAGE)}
                own_times = dict(zip(by_form, tables[_TIMES], strict=True))
                times = Times(own_times, others, tuple(map(int, bound)))
                zeros = dict(zip(patterns, tables[_ZEROS], strict=True))
                storage = dict(zip(map(DType, dtypes), tables[_STORAGE], strict=True))
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise DamagedFile(f"has tables that do not belong together ({error})") from error
        return ShrinkTables(own, times, Losses(amounts, zeros, storage))

    def write(self, layers: Sequence[ShrinkLayer], tables: ShrinkTables) -> None:
        """Keep the tables, of some of these layers."""
        places = {layer: number for number, layer in enumerate(layers)}
        header = {
            "digest": self.digest,
            "layers": [places[layer] for layer in tables.layers],
            "forms": [[form.pattern, form.dtype.value] for form in tables.times.layers],
            "patterns": list(tables.losses.zeros),
            "dtypes": [dtype.value for dtype in tables.losses.storage],
            "amounts": list(tables.losses.amounts),
            "others": tables.times.others,
            "bound": list(tables.times.bound),
        }
        arrays = {
            _TIMES: np.stack(list(tables.times.layers.values())),
            _ZEROS: np.stack(list(tables.losses.zeros.values())),
            _STORAGE: np.stack(list(tables.losses.storage.values())),
        }
        sealed.write(self.path, _KIND, header, arrays)


def _form(data: Sequence[str]) -> LayerForm:
    """The form of a pattern and a dtype; raises ValueError for unknown ones."""
    pattern, dtype = data
    if pattern not in PATTERNS:
        raise ValueError(f"{pattern!r} is no pattern")
    return LayerForm(pattern, DType(dtype))
