"""A zoo model as a quantised ONNX file that every engine reads: QDQ by ONNX Runtime's quantiser."""

import logging
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sparsejit.errors import MissingDependency

# Versions that DeepSparse still reads; quantised weights by channel need opset 13.
OPSET, _IR_VERSION = 14, 8

Inputs = dict[str, np.ndarray[Any, Any]]


class _Samples:
    """Inputs that the quantiser calibrates with, one after the other."""

    def __init__(self, samples: Sequence[Inputs]) -> None:
        self._samples: Iterator[Inputs] = iter(samples)

    def get_next(self) -> Inputs | None:
        return next(self._samples, None)


def quantise_file(
    plain: Path,
    into: Path,
    samples: Sequence[Inputs],
    operators: Sequence[str],
    *,
    per_channel: bool = True,
    activations: str = "QUInt8",
) -> None:
    """Write the file with these kinds of operators quantised, or all possible kinds if none given.

    Weights are int8 by channel or by tensor, activations uint8 by tensor, or "QInt8". Raises
    MissingDependency without ONNX Runtime.
    """
    if find_spec("onnxruntime") is None or find_spec("onnx") is None:
        raise MissingDependency(
            "a quantised file needs ONNX Runtime: pip install 'sparsejit[bench]'"
        )
    quantisation = import_module("onnxruntime.quantization")
    shapes = import_module("onnxruntime.quantization.shape_inference")
    onnx = import_module("onnx")
    prepared = into.with_suffix(".prepared.onnx")
    silenced = logging.getLogger()
    before = silenced.level
    silenced.setLevel(logging.ERROR)
    try:
        shapes.quant_pre_process(plain, prepared, skip_symbolic_shape=True)
        quantisation.quantize_static(
            prepared,
            into,
            _Samples(samples),
            quant_format=quantisation.QuantFormat.QDQ,
            per_channel=per_channel,
            activation_type=quantisation.QuantType[activations],
            weight_type=quantisation.QuantType.QInt8,
            op_types_to_quantize=list(operators) or None,
        )
    finally:
        silenced.setLevel(before)
        prepared.unlink(missing_ok=True)
    onnx.save(_for_all_engines(onnx.load(into)), into)


def _for_all_engines(model: Any) -> Any:
    """The model without imports of operator domains that it does not use, for older engines."""
    used = {node.domain for node in model.graph.node}
    kept = [each for each in model.opset_import if each.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    model.ir_version = min(model.ir_version, _IR_VERSION)
    return model
