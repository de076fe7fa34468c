"""Models of libraries that know nothing of us, small and with random weights, against torch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers_sweep
from torch import Tensor, nn
from transformers_models import catalogue
from transformers_models import page as pages

import sparsejit
from sparsejit.perf import history

BOUND = 1e-5
TEXT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
# Classes of transformers, by their names in the sweep's catalogue, and two with a head.
SAMPLE = (
    *("albert", "bert", "roberta", "xlm-roberta", "distilbert", "electra", "mpnet", "deberta-v2"),
    *(
        "clip_text_model",
        "clip_vision_model",
        "clip.get_text_features",
        "vit",
        "dinov2",
        "convnext",
        "swin",
    ),
    *("moonshine.encoder", "speech_to_text.encoder", "whisper.encoder", "t5.encoder", "wav2vec2"),
    *("encodec.encoder", "encodec.decoder", "encodec.quantizer.decode"),
    "exaone",  # LlamaModel
)
HEADS = {"bert": "BertForSequenceClassification", "gpt2": "GPT2LMHeadModel"}
# The least share of exported classes that compile and agree, and the number that are built.
FLOOR, LEAST_BUILT = 0.95, 220
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


def check_case(case: Any) -> None:
    outcome = pytest.importorskip("transformers_models.trial").try_case(case)
    assert (outcome.status, outcome.text) == ("equal", ""), outcome


@pytest.mark.parametrize("name", SAMPLE)
def test_transformers(name: str) -> None:
    library("transformers")
    check_case(catalogue.case_named(name))


@pytest.mark.parametrize("model_type", HEADS)
def test_transformers_with_a_head(model_type: str) -> None:
    library("transformers")
    check_case(catalogue.Case("text", model_type, HEADS[model_type]))


class Scaled(nn.Module):
    """A model beside whose results others are."""

    def __init__(self, factor: float, fails: bool = False) -> None:
        super().__init__()
        self.factor, self.fails = factor, fails

    batch_is_free = True

    def forward(self, x: Tensor) -> Tensor:
        if self.fails:
            raise IndexError("a raw error")
        return self.factor * x


@pytest.mark.parametrize(
    ("compiled", "text"),
    [
        (Scaled(1.001), "Wrong: output 0 of 2 rows is off by"),
        (Scaled(float("nan")), "Wrong: output 0 of 2 rows is off by nan"),
        (Scaled(1, fails=True), "IndexError: a raw error"),
    ],
)
def test_the_sweep_finds_faults(
    compiled: Scaled, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = pytest.importorskip("transformers_models.trial")
    inputs = trial.Inputs({"x": torch.randn(trial.MOST_ROWS, 3)}, {})
    monkeypatch.setattr(trial, "build", lambda case: (Scaled(1), inputs))
    monkeypatch.setattr(trial, "compiled_part", lambda part, inputs: compiled)
    outcome = trial.try_case(catalogue.Case("text", "none", "None"))
    assert outcome.status == "finding" and outcome.text.startswith(text)


def test_the_page_has_the_shares_of_the_sweep() -> None:
    rows = pages.latest(history.read_rows(transformers_sweep.RESULTS))
    assert pages.PAGE.read_text() == transformers_sweep.page_of(transformers_sweep.RESULTS)
    assert not [row for row in rows if row["status"] == "finding"]
    assert pages.built(rows) >= LEAST_BUILT and pages.share(rows) >= FLOOR
    named = {row["name"]: row["status"] for row in rows}
    assert {named[name] for name in SAMPLE} == {"equal"}


@pytest.mark.filterwarnings("ignore")  # of torch's older exporter
def test_as_torch_writes_it_to_onnx(tmp_path: Path) -> None:
    """It gathers the kinds of words from a constant, by fewer places than that has."""
    pytest.importorskip("onnx")
    transformers = library("transformers")
    model = FirstOutput(transformers.BertModel(transformers.BertConfig(**TEXT))).eval()
    path, x = str(tmp_path / "bert.onnx"), torch.randint(0, 99, (2, 7))
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
