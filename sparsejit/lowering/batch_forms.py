"""One function with a model's code for several tiles, which runs any batch in tiles that fit it.

    int run(const void *const *inputs, void *const *outputs, void *workspace, int64 samples)

    while 16 samples are left: run a tile of 16
    if 6 or more are left: run a tile of 16 once more (`batch_rest`)
    while a sample is left: run a tile of 1

The order in which a sample's terms are summed depends on the tile. Where a sample must have the
same bits in any batch, there is only one tile.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparsejit.lowering.batch_rest import BatchRest
from sparsejit.lowering.joint_code import code_of
from sparsejit.lowering.lowered_model import LoweredModel
from sparsejit.planner.choice import recording
from sparsejit.planner.sample_plan import TileTime, fewest_samples, tiles_that_pay
from sparsejit.runtime.common_weights import CommonWeights
from sparsejit.runtime.program import Program, build
from sparsejit.x86.assembler import Assembler


def paying(forms: Sequence[LoweredModel]) -> list[LoweredModel]:
    """The forms that are worth their code, the largest tile first."""
    by_tile = {form.tile: form for form in forms}
    with recording() as record:
        kept = tiles_that_pay(map(_time, forms))
    return [by_tile[tile].with_decisions(record.decisions) for tile, _ in kept[::-1]]


def _time(form: LoweredModel) -> TileTime:
    return TileTime(form.tile, form.ns)


def build_forms(
    forms: Sequence[LoweredModel],
    name: str,
    listed: bool = False,
    common: CommonWeights | None = None,
) -> Program:
    """The native function of a model's forms, the largest tile first.

    `listed` and `common` are as in `build`.
    """
    first, emit = forms[0], _FormsCode(forms).emit
    return build(name, first.options.target, emit, first.ask_ahead, listed, common)


def forms_workspace_bytes(forms: Sequence[LoweredModel]) -> int:
    """Bytes of workspace that a call needs."""
    return _room(forms) + max(rest.room_bytes for rest in _rests(forms))


def _room(forms: Sequence[LoweredModel]) -> int:
    return max(form.workspace_bytes for form in forms)


def _rests(forms: Sequence[LoweredModel]) -> list[BatchRest]:
    return [
        BatchRest.of(form, _fewest(form, forms[number + 1 :]), _room(forms))
        for number, form in enumerate(forms)
    ]


def _fewest(form: LoweredModel, smaller: Sequence[LoweredModel]) -> int:
    """Fewest samples that a tile runs beside the `smaller` forms, given largest first."""
    return fewest_samples(_time(form), list(map(_time, smaller[::-1]))) if smaller else 1


class _FormsCode:
    """Appends the function's code."""

    def __init__(self, forms: Sequence[LoweredModel]) -> None:
        self._codes = list(map(code_of, forms))
        self._rests = _rests(forms)

    def emit(self, asm: Assembler) -> None:
        """Append the whole function, except its `vzeroupper` and return."""
        first = self._codes[0]
        first.enter(asm)
        self._rests[0].begin(asm)
        for code, rest in zip(self._codes, self._rests, strict=True):
            start = asm.label(f"tiles of {rest.tile}")
            code.run_tiles(asm, start)
            if rest.tile > 1:
                rest.finish(asm)
                rest.prepare(asm, start)
        first.leave(asm)
