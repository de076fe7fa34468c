"""`sparsejit.load`: reads a saved file of any kind, and compiles it again.

A model whose code is in the code cache is not compiled.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from sparsejit.api.compiled import LOADER_MODULES, compiled_anew
from sparsejit.api.kernels.kernel import Kernel
from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.api.models.known_files import OpenFile, compiled_or_cached
from sparsejit.api.models.model_file import KIND, read_model
from sparsejit.api.models.parted_model import PartedModel
from sparsejit.api.models.variant import TiledGraph
from sparsejit.api.quantising.scales import Scales
from sparsejit.artefact import sealed
from sparsejit.errors import InvalidInput, called
from sparsejit.estimators.compiled_estimator import CompiledEstimator
from sparsejit.files import checked_path
from sparsejit.frontends.model_source import is_opened
from sparsejit.frontends.onnx import is_onnx

Loaded = Kernel | CompiledModel | PartedModel | CompiledEstimator | Scales


@called("load")
def load(path: str | os.PathLike[str]) -> Loaded:
    """Load a file that `save` wrote, and compile it for this machine. No code of the file is run.

    Args:
        path: a .sjit file

    Returns:
        The kernel, model, estimator or scales that were saved.

    Raises:
        InvalidInput: there is no such file, or it is a model that is not compiled
        DamagedFile: the file was changed after it was saved, or has another format
        UnsupportedTarget: it was made for a target that this machine lacks
    """
    whole = checked_path(path)
    if is_onnx(whole) or is_opened(whole):
        raise InvalidInput(
            f"{whole} is not compiled yet; compile it first: sparsejit compile {whole} --out "
            "model.sjit"
        )

    def compiled() -> Loaded:
        file = sealed.read(whole, LOADER_MODULES)
        with sealed.naming(whole):
            result: Loaded = compiled_anew(*file)
        return result

    return compiled_or_cached(whole, lambda: "load", compiled, _saved_graphs)


def _saved_graphs(source: OpenFile) -> list[Sequence[TiledGraph]]:
    """Return the graphs of a model's file, by variant."""
    file = sealed.read(source.path, (KIND,))
    saved = read_model(file.header, file.tensors)
    return [graphs for graphs, _ in saved.variants]
