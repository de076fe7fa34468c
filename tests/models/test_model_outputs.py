"""Outputs of a compiled model are of the classes that the model returns; a file knows none."""

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sparsejit
from sparsejit.errors import InvalidInput

Pair = namedtuple("Pair", "first second")


@dataclass
class Scores:
    """Registered with torch's pytrees; `hidden` is None unless asked for."""

    logits: torch.Tensor
    parts: dict[str, Any]
    hidden: torch.Tensor | None = None


torch.export.register_dataclass(Scores)
X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Net(nn.Module):
    """Results nested by `wrap`."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.layer, self.wrap = nn.Linear(4, 2), wrap

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(self.layer(x))


def compare(found: Any, wanted: Any) -> None:
    """The same classes at every place, and the same numbers."""
    assert type(found) is type(wanted) or isinstance(found, np.ndarray)
    if isinstance(wanted, torch.Tensor):
        np.testing.assert_allclose(np.asarray(found), wanted.detach().numpy(), rtol=1e-5, atol=1e-6)
    elif isinstance(wanted, Scores):
        compare(vars(found), vars(wanted))
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        compare(list(found.values()), list(wanted.values()))
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            compare(one, other)
    else:
        assert found == wanted


WRAPS = {
    "tensor": lambda y: y,
    "dataclass": lambda y: Scores(y, {"double": 2 * y, "both": (y, y + 1)}),
    "full dataclass": lambda y: Scores(y, {}, y * 3),
    "ordered": lambda y: OrderedDict(b=y, a=[y - 1, Pair(y, None)]),
    "default": lambda y: defaultdict(list, {"y": y}),
    "within": lambda y: ({"scores": [Scores(y, {"n": 3})]}, "words"),
}


@pytest.mark.parametrize("name", WRAPS)
@pytest.mark.parametrize("as_arrays", [False, True], ids=["torch", "numpy"])
def test_classes_are_those_of_the_model(name: str, as_arrays: bool) -> None:
    net = Net(WRAPS[name]).eval()
    fast = sparsejit.compile(net, (X,))
    compare(fast(X.numpy() if as_arrays else X), net(X))


def test_a_file_gives_dicts(tmp_path: Path) -> None:
    net = Net(WRAPS["dataclass"]).eval()
    sparsejit.compile(net, (X,)).save(tmp_path / "net.sjit")
    found, wanted = sparsejit.load(tmp_path / "net.sjit")(X), net(X)
    compare(found, {"logits": wanted.logits, "parts": wanted.parts})


class Reader(nn.Module):
    def forward(self, scores: Scores) -> torch.Tensor:
        return scores.logits + scores.parts["n"]


def test_a_dataclass_is_an_input_too() -> None:
    given = Scores(X, {"n": 2 * X})
    fast = sparsejit.compile(Reader().eval(), (given,))
    compare(fast(given), 3 * X)
    with pytest.raises(InvalidInput, match="give a dict of"):
        fast(X)
    with pytest.raises(InvalidInput, match=r"\['logits'\] is a NoneType; give a tensor"):
        fast(Scores(None, {"n": X}))


@pytest.fixture
def film_reader(tmp_path: Path) -> tuple[Any, Any]:
    """A tiny classifier of transformers, and its tokenizer, without a network."""
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "a", "very"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=len(words), num_hidden_layers=2, **sizes)
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).eval()
    return model, transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"))


def test_a_pipeline_of_transformers_runs_on_it(film_reader: tuple[Any, Any]) -> None:
    import transformers

    model, tokenizer = film_reader
    texts, options = ["a very good film", "bad"], {"padding": "max_length", "max_length": 16}
    pipe = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
    wanted = pipe(texts, **options)
    example = dict(tokenizer(texts, return_tensors="pt", **options))
    fast = sparsejit.compile(model, example_kwargs=example)
    assert type(fast(**example)) is type(model(**example))
    calls = []
    model.forward = lambda **inputs: calls.append(inputs) or fast(**inputs)
    found = pipe(texts, **options)
    assert calls
    assert [each["label"] for each in found] == [each["label"] for each in wanted]
    scores = ([each["score"] for each in side] for side in (found, wanted))
    np.testing.assert_allclose(*scores, rtol=1e-4)


def test_outputs_of_transformers_from_arrays(film_reader: tuple[Any, Any]) -> None:
    model, tokenizer = film_reader
    example = dict(tokenizer(["good film"], return_tensors="pt"))
    out = sparsejit.compile(model, example_kwargs=example)(
        **{name: tensor.numpy() for name, tensor in example.items()}
    )
    np.testing.assert_allclose(out.logits, model(**example).logits.detach(), rtol=1e-4, atol=1e-5)
