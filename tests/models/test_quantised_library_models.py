"""Networks of transformers as ONNX Runtime's quantiser writes them, beside ONNX Runtime."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("transformers")

import onnx
import onnxruntime
import torch
import transformers
from onnxruntime.quantization import CalibrationDataReader, QuantFormat
from onnxruntime.quantization import quantize_dynamic as quantise_dynamically
from onnxruntime.quantization import quantize_static as quantise_statically
from onnxruntime.quantization.shape_inference import quant_pre_process

import sparsejit

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

WORDS, LENGTH, SIZE, SAMPLES, CLASSES = 50, 12, 32, 4, 20
# A share of 255 over the range of outputs. Products of whole numbers are exact in both, and what is
# rounded to steps is rounded alike but for ties: one near the end moves an output by one.
MOST_STEPS = 1.0
TEXT = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": LENGTH + 4,
}
# sdpa's mask is of -infinity, of which the quantiser makes a scale.
SHARED = {"attn_implementation": "eager", "num_labels": CLASSES}


def bert() -> Any:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**TEXT, **SHARED))


def roberta() -> Any:
    config = transformers.RobertaConfig(**TEXT, **SHARED)
    return transformers.RobertaForSequenceClassification(config)


def distilbert() -> Any:
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
    config = transformers.DistilBertConfig(vocab_size=WORDS, **sizes, **SHARED)
    return transformers.DistilBertForSequenceClassification(config)


def resnet() -> Any:
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    config = transformers.ResNetConfig(**sizes, num_labels=CLASSES)
    return transformers.ResNetForImageClassification(config)


def mobilenet() -> Any:
    sizes = {"depth_multiplier": 0.25, "image_size": SIZE, "finegrained_output": False}
    config = transformers.MobileNetV2Config(**sizes, num_labels=CLASSES)
    return transformers.MobileNetV2ForImageClassification(config)


NETS: dict[str, Callable[[], Any]] = {
    each.__name__: each for each in (bert, roberta, distilbert, resnet, mobilenet)
}
# The way to quantise, and an operator that tells the file from others.
WAYS = {
    "dynamic": ("DynamicQuantizeLinear", None),
    "static, QDQ": ("DequantizeLinear", QuantFormat.QDQ),
    "static, QOperator": ("QGemm", QuantFormat.QOperator),
}


class Logits(torch.nn.Module):
    """Called with its tensors in order, it returns one."""

    def __init__(self, net: Any, names: list[str]) -> None:
        super().__init__()
        self.net, self._names = net, names

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net(**dict(zip(self._names, given, strict=True))).logits
        return logits


class Samples(CalibrationDataReader):  # type: ignore[misc]
    """Inputs that the quantiser calibrates with."""

    def __init__(self, samples: list[dict[str, np.ndarray]]) -> None:
        self._samples: Iterator[dict[str, np.ndarray]] = iter(samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._samples, None)


def samples_of(net: Any) -> list[dict[str, np.ndarray]]:
    """Words, the last three of which the mask hides, or an image."""
    rng = np.random.default_rng(2)
    if net.main_input_name == "pixel_values":
        images = rng.standard_normal((SAMPLES, 1, 3, SIZE, SIZE)).astype(np.float32)
        return [{"pixel_values": image} for image in images]
    mask = (np.arange(LENGTH) < LENGTH - 3).astype(np.int64)[None]
    words = rng.integers(5, WORDS, (SAMPLES, 1, LENGTH))
    return [{"input_ids": each, "attention_mask": mask} for each in words]


def quantised(name: str, way: str, folder: Path) -> tuple[Path, list[dict[str, np.ndarray]]]:
    """The file, and inputs. `reduce_range`: ONNX Runtime's sums overflow on AVX2 without."""
    torch.manual_seed(0)
    net = NETS[name]().eval()
    with torch.no_grad():  # else the exporter writes all biases, which are zeros, as one
        for each in net.parameters():
            each += 0.1 * torch.randn(each.shape) if each.ndim == 1 else 0.0
    samples = samples_of(net)
    plain, whole, made = (folder / f"{each}.onnx" for each in ("plain", "whole", "made"))
    given = tuple(torch.from_numpy(array) for array in samples[0].values())
    names = list(samples[0])
    torch.onnx.export(
        Logits(net, names), given, str(plain), dynamo=False, opset_version=17, input_names=names
    )
    quant_pre_process(plain, whole, skip_symbolic_shape=True)
    form = WAYS[way][1]
    if form is None:
        quantise_dynamically(whole, made, reduce_range=True)
    else:
        quantise_statically(
            whole, made, Samples(samples), quant_format=form, per_channel=True, reduce_range=True
        )
    return made, samples


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NETS)
def test_a_quantised_net_computes_what_onnx_runtime_does(
    name: str, way: str, tmp_path: Path
) -> None:
    path, samples = quantised(name, way, tmp_path)
    assert WAYS[way][0] in {node.op_type for node in onnx.load(path).graph.node}
    fast = sparsejit.compile(path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    for sample in samples:
        (wanted,) = session.run(None, sample)
        step = np.ptp(wanted) / 255
        assert step > 0
        assert np.abs(fast(*sample.values()) - wanted).max() <= MOST_STEPS * step
