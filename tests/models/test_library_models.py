"""Models of libraries that know nothing of us, small and with random weights, against torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sparsejit

BOUND = 1e-5
TEXT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
IMAGE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
GPT = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
DISTIL = {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
WHISPER = {
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_layers": 1,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 64,
    "max_source_positions": 30,
    "num_mel_bins": 20,
}


def tokens() -> Tensor:
    return torch.randint(0, 99, (2, 7))


def image() -> Tensor:
    return torch.randn(2, 3, 32, 32)


# From a name of transformers' models to its configuration's arguments and an input.
TRANSFORMERS: dict[str, tuple[str, dict[str, Any], Callable[[], Tensor]]] = {
    "BertModel": ("BertConfig", TEXT, tokens),
    "BertForSequenceClassification": ("BertConfig", TEXT, tokens),
    "DistilBertModel": ("DistilBertConfig", DISTIL, tokens),
    "ElectraModel": ("ElectraConfig", {**TEXT, "embedding_size": 16}, tokens),
    "GPT2LMHeadModel": ("GPT2Config", {**GPT, "use_cache": False}, tokens),
    "LlamaModel": (
        "LlamaConfig",
        {**TEXT, "num_key_value_heads": 2, "use_cache": False},
        tokens,
    ),
    "RobertaModel": ("RobertaConfig", TEXT, tokens),
    "T5EncoderModel": ("T5Config", T5, tokens),
    "ViTModel": ("ViTConfig", IMAGE, image),
    "CLIPVisionModel": ("CLIPVisionConfig", IMAGE, image),
    "WhisperModel": ("WhisperConfig", WHISPER, lambda: torch.randn(2, 20, 60)),
}
TORCHVISION = ["squeezenet1_1", "shufflenet_v2_x0_5", "resnet18"]
TIMM = ["resnet10t", "convnext_atto", "lcnet_035"]


class FirstOutput(nn.Module):
    """A model that returns a tensor, not a library's own container."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        result = self.model(x)
        return result if isinstance(result, Tensor) else result[0]


def library(name: str) -> Any:
    """The library; skips where it is absent or does not load beside this torch."""
    reason = f"needs {name}: pip install {name}"
    return pytest.importorskip(name, reason=reason, exc_type=(ImportError, RuntimeError))


def check(model: nn.Module, x: Tensor) -> None:
    """Compiled, it equals torch for a batch of two and of one."""
    model = FirstOutput(model).eval()
    compiled = sparsejit.compile(model, (x,))
    for batch in (x, x[:1]) if compiled.batch_is_free else (x,):
        with torch.no_grad():
            wanted = model(batch).numpy()
        assert np.abs(wanted).max() > 0
        bound = BOUND * np.abs(wanted).max()
        np.testing.assert_allclose(compiled(batch).numpy(), wanted, rtol=0, atol=bound)


@pytest.fixture(autouse=True)
def _same_weights_each_time() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(name: str) -> None:
    transformers = library("transformers")
    config, sizes, make_input = TRANSFORMERS[name]
    model = getattr(transformers, name)(getattr(transformers, config)(**sizes))
    check(model.encoder if name == "WhisperModel" else model, make_input())


@pytest.mark.filterwarnings("ignore")  # of torch's older exporter
def test_as_torch_writes_it_to_onnx(tmp_path: Path) -> None:
    """It gathers the kinds of words from a constant, by fewer places than that has."""
    pytest.importorskip("onnx")
    transformers = library("transformers")
    model = FirstOutput(transformers.BertModel(transformers.BertConfig(**TEXT))).eval()
    path, x = str(tmp_path / "bert.onnx"), tokens()
    torch.onnx.export(model, (x,), path, dynamo=False, opset_version=17)
    with torch.no_grad():
        wanted = model(x).numpy()
    found = sparsejit.compile(path)(x.numpy())
    np.testing.assert_allclose(found, wanted, rtol=0, atol=BOUND * np.abs(wanted).max())


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name: str) -> None:
    models = library("torchvision").models
    check(getattr(models, name)(weights=None), torch.randn(2, 3, 64, 64))


@pytest.mark.parametrize("name", TIMM)
def test_timm(name: str) -> None:
    model = library("timm").create_model(name, pretrained=False)
    check(model, torch.randn(2, 3, 64, 64))
