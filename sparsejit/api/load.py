"""`sparsejit.load`: reads a saved file of any kind, and compiles it again.

A model whose code is in the code cache is not compiled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sparsejit.api import estimator_source, kernel_file, model_file, parted_file
from sparsejit.api import scales as scales_file
from sparsejit.api.compile_layer import compile_source
from sparsejit.api.compiled_estimator import CompiledEstimator
from sparsejit.api.kernel import Kernel
from sparsejit.api.known_files import OpenFile, compiled_once
from sparsejit.api.model import CompiledModel, compile_saved
from sparsejit.api.parted_model import PartedModel, load_parted
from sparsejit.api.variant import TiledGraph
from sparsejit.artefact import sealed
from sparsejit.errors import InvalidInput
from sparsejit.files import checked_path
from sparsejit.frontends.model_source import is_opened
from sparsejit.frontends.onnx import is_onnx

Loaded = Kernel | CompiledModel | PartedModel | CompiledEstimator | scales_file.Scales


class Loader(NamedTuple):
    """The functions that turn one kind of file into an object.

    `read` turns header and tensors into a source; `compile` makes the object for this machine. Both
    raise DamagedFile, without the file's name: `read` for contents that were never written,
    `compile` where no code can be made for them.
    """

    read: Callable[[dict[str, Any], sealed.Tensors], Any]
    compile: Callable[[Any], Any]


LOADERS: dict[str, Loader] = {
    kernel_file.KIND: Loader(kernel_file.read_kernel, compile_source),
    model_file.KIND: Loader(model_file.read_model, compile_saved),
    parted_file.KIND: Loader(parted_file.read_parted, load_parted),
    estimator_source.KIND: Loader(estimator_source.read_estimator_file, CompiledEstimator),
    scales_file.KIND: Loader(scales_file.read_scales, lambda found: found),
}


def restored(file: sealed.SealedFile) -> Any:
    """Compile the object that was saved. Raises DamagedFile, without the file's name."""
    loader = LOADERS[file.kind]
    return loader.compile(loader.read(file.header, file.tensors))


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
        file = sealed.read(whole, LOADERS.keys())
        with sealed.naming(whole):
            result: Loaded = restored(file)
        return result

    return compiled_once(whole, lambda: "load", compiled, _saved_graphs)


def _saved_graphs(source: OpenFile) -> list[Sequence[TiledGraph]]:
    """Return the graphs of a model's file, by variant."""
    file = sealed.read(source.path, (model_file.KIND,))
    saved = model_file.read_model(file.header, file.tensors)
    return [graphs for graphs, _ in saved.variants]
