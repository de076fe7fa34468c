"""Random torch models written as ONNX by torch's exporter, compared with ONNX's reference.

    case = make(seed)        as of torch_models
    check(case)              "equal", "refused" by one of our errors, or "not exported" by torch

The reference is the onnx package's own: torch's exporter errs now and then. It runs in a child, for
it crashes too: where an array is written in place, and where one is empty.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from fuzzing import torch_models
from fuzzing.torch_models import TorchCase
from guard import run_in_child

import sparsejit
from sparsejit.errors import SparseJitError

OPSET = 17

make = torch_models.make


def exported(
    program: torch.nn.Module, inputs: tuple[torch.Tensor, ...], names: list[str]
) -> bytes | None:
    """The file that torch writes, or None where it does not."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"

        def export() -> None:
            torch.onnx.export(
                program, inputs, str(path), dynamo=False, opset_version=OPSET, input_names=names
            )

        outcome = run_in_child([("export", export)])
        return None if outcome.signal or outcome.failure else path.read_bytes()


def check(case: TorchCase) -> str:
    """The outcome. Raises AssertionError for a wrong result, and whatever else comes."""
    from onnx import load_from_string
    from onnx.reference import ReferenceEvaluator
    from onnx.shape_inference import InferenceError, infer_shapes

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        inputs = tuple(x[: case.example].clone() for x in case.inputs)
        names = [f"x{number}" for number in range(len(inputs))]
        data = exported(case.program, inputs, names)
        if data is None:
            return "not exported"
        model = load_from_string(data)
        try:
            infer_shapes(model, check_type=True, strict_mode=True)
        except InferenceError:
            return "not exported"
        kept = {declared.name for declared in model.graph.input}
        given = [x for name, x in zip(names, inputs, strict=True) if name in kept]
        try:
            compiled = sparsejit.compile(model, target=case.options["target"], free_batch=False)
            found = compiled(*(x.numpy() for x in given))
        except SparseJitError as refused:
            return f"refused: {type(refused).__name__}"
        results = found if isinstance(found, tuple | list) else (found,)
        arrays = {x.name: y.numpy() for x, y in zip(model.graph.input, given, strict=True)}
        try:
            wanted = ReferenceEvaluator(model).run(None, arrays)
        except Exception:  # of any type, for operators that it has not
            return "no reference"
        wanted = [np.asarray(x) for x in wanted]
        try:
            torch_models.compare(case, inputs, [np.asarray(x) for x in results], wanted)
        except AssertionError:  # the package errs as well: ConvTranspose in groups
            theirs = torch_models.by_torch(case, inputs)
            torch_models.compare(case, inputs, [np.asarray(x) for x in results], theirs)
            return "equal to torch"
    return "equal"
