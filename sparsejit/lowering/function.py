"""Build the native function of a model, for either way to run a batch."""

from __future__ import annotations

from collections.abc import Sequence

from sparsejit.lowering.batch_forms import build_forms, forms_workspace_bytes
from sparsejit.lowering.lowered_model import LoweredModel
from sparsejit.lowering.shared_tiles import build_shared_tiles, shared_workspace_bytes
from sparsejit.runtime.common_weights import CommonWeights
from sparsejit.runtime.program import Program


def build_function(
    forms: Sequence[LoweredModel],
    name: str,
    listed: bool = False,
    common: CommonWeights | None = None,
) -> Program:
    """Build the function of forms for one or more tiles. `listed`, `common` are as in `build`."""
    if forms[0].options.shares_tiles:
        return build_shared_tiles(forms[0], name, listed, common)
    return build_forms(forms, name, listed, common)


def function_workspace_bytes(forms: Sequence[LoweredModel]) -> int:
    """Bytes of workspace that a call of the function needs."""
    if forms[0].options.shares_tiles:
        return shared_workspace_bytes(forms[0])
    return forms_workspace_bytes(forms)
