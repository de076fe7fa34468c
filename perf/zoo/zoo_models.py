"""The table of models."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from sparsejit.errors import InvalidInput
from sparsejit.perf.zoo.attention import (
    TOKENS,
    WIDTH,
    Bert,
    VisionTransformer,
    transformer_encoder,
)
from sparsejit.perf.zoo.convolutional import (
    depthwise,
    efficientnet_b0,
    mobilenet_like,
    mobilenet_v1,
    mobilenet_v2,
    resnet_18,
    resnet_50,
    resnet_like,
    small_1d,
    small_2d,
    temporal_convolutions,
)
from sparsejit.perf.zoo.perceptrons import (
    DeepAndWide,
    Recommendation,
    autoencoder,
    multilayer_perceptron,
)
from sparsejit.perf.zoo.recurrent import LPCNetLike, Tagger
from sparsejit.perf.zoo.yolox import yolox_tiny
from sparsejit.prune import Pruner

SEED = 20


@dataclass(frozen=True)
class ZooModel:
    """One model. `make` builds it, `make_inputs(batch)` its arguments, both from torch's seed.

    `targets` are globs over names of weights, as `Pruner` reads them: `pruned` prunes each gate of
    each by magnitude. Without any the model stays dense. `origin` is its source. `quantises` are
    kinds of operators: the model is a QDQ file in which these are quantised, all that ONNX
    Runtime's quantiser takes for (); None for a torch module. Models that are `is_benchmark` are
    timed, but too large or too many for every test.
    """

    name: str
    make: Callable[[], nn.Module]
    make_inputs: Callable[[int], tuple[Tensor, ...]]
    targets: tuple[str, ...]
    origin: str
    is_benchmark: bool = False
    quantises: tuple[str, ...] | None = None

    def build(self) -> nn.Module:
        """The dense model in eval mode, the same at every call."""
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            return _lively(self.make()).eval()

    def inputs(self, batch: int) -> tuple[Tensor, ...]:
        """Its arguments, the same at every call."""
        with torch.random.fork_rng():
            torch.manual_seed(SEED + batch)
            return self.make_inputs(batch)


def pruned(model: ZooModel, density: float, pattern: str = "unstructured") -> nn.Module:
    """The model with round((1 - density) * blocks) of each gate of each target zeroed.

    density: the share of blocks that stays, 0 < density <= 1.
    pattern: as `Pruner` takes it.
    """
    check_density(density)
    module = model.build()
    if model.targets and density < 1:
        pruner = Pruner(1 - density, pattern, targets=model.targets, allocation="uniform")
        pruner.prepare(module)
    return module


def check_density(density: float) -> None:
    """Raise InvalidInput unless 0 < density <= 1."""
    if not 0 < density <= 1:
        raise InvalidInput(f"density {density} is out of range; use 0 < density <= 1")


def models_named(names: Iterable[str]) -> list[ZooModel]:
    """The models of those names; raises InvalidInput for a name that is not in the table."""
    names = list(names)
    unknown = [name for name in names if name not in ZOO]
    if unknown:
        raise InvalidInput(f"model {unknown[0]!r} is unknown; use one of {', '.join(ZOO)}")
    return [ZOO[name] for name in names]


def _lively(module: nn.Module) -> nn.Module:
    """The module with weights under which signals keep their size, as in a trained net.

    torch's own weights shrink signals at every layer, until outputs are hardly more than the last
    bias, and no comparison of outputs would show an error of the first layers.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
    return module


def _normal(*shape: int) -> Callable[[int], tuple[Tensor, ...]]:
    """A function from the batch to one float32 input (batch, *shape), standard normal."""
    return lambda batch: (torch.randn(batch, *shape),)


def _deep_and_wide_inputs(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 1, 32), torch.randn(batch, 1, 32), torch.randn(batch, 50)


def _recommendation_inputs(batch: int) -> tuple[Tensor, ...]:
    shape = (batch, Recommendation.TABLES, Recommendation.BAG)
    return torch.randn(batch, 13), torch.randint(Recommendation.ROWS, shape)


def _words(tokens: int) -> Callable[[int], tuple[Tensor, ...]]:
    """A function from the batch to one input (batch, tokens): ids of words."""
    return lambda batch: (torch.randint(Bert.WORDS, (batch, tokens)),)


def _lpcnet_inputs(batch: int, steps: int = 40) -> tuple[Tensor, ...]:
    levels = torch.randint(256, (batch, steps, 3))
    states = torch.zeros(1, batch, 384), torch.zeros(1, batch, 16)
    return levels, torch.randn(batch, steps, 128), *states


_ENCODER = tuple(f"*.{one}.weight" for one in ("query", "key", "value", "output", "linear?"))
_RECURRENT = ("rnn.weight*", "out.weight")
_SEQUENCE = _normal(100, 64)
_IMAGE = _normal(3, 64, 64)
_PHOTOGRAPH = _normal(3, 224, 224)
_MODELS = (
    ZooModel(
        "mlp", multilayer_perceptron, _normal(784), ("*.weight",), "the usual first net on MNIST"
    ),
    ZooModel(
        "deep-and-wide",
        DeepAndWide,
        _deep_and_wide_inputs,
        (),
        "torch, benchmarks/static_runtime/deep_wide_pt.h",
    ),
    ZooModel(
        "gru-tagger",
        partial(Tagger, nn.GRU, 1, False),
        _SEQUENCE,
        _RECURRENT,
        "torch's tutorial on sequence models, with a GRU",
    ),
    ZooModel(
        "lstm-tagger",
        partial(Tagger, nn.LSTM, 1, False),
        _SEQUENCE,
        _RECURRENT,
        "torch's tutorial on sequence models",
    ),
    ZooModel(
        "gru-tagger-both-ways",
        partial(Tagger, nn.GRU, 2, True),
        _SEQUENCE,
        _RECURRENT,
        "the GRU tagger, two layers, both directions",
    ),
    ZooModel(
        "lstm-tagger-both-ways",
        partial(Tagger, nn.LSTM, 2, True),
        _SEQUENCE,
        _RECURRENT,
        "the LSTM tagger, two layers, both directions",
    ),
    ZooModel(
        "temporal-convolutions",
        temporal_convolutions,
        _normal(32, 128),
        ("*.conv?.weight",),
        "Bai et al. 2018, arXiv:1803.01271, without weight-norm and dropout",
    ),
    ZooModel(
        "mobilenet-like",
        mobilenet_like,
        _IMAGE,
        ("*.pointwise.weight",),
        "Howard et al. 2017, arXiv:1704.04861; the rest stays dense",
    ),
    ZooModel(
        "resnet-like",
        resnet_like,
        _IMAGE,
        ("*.conv?.weight", "*.shortcut.0.weight"),
        "He et al. 2015, arXiv:1512.03385; the first and last layer stay dense",
    ),
    ZooModel(
        "mobilenet-v1",
        mobilenet_v1,
        _PHOTOGRAPH,
        ("*.pointwise.weight", "18.weight"),
        "Howard et al. 2017, arXiv:1704.04861, table 1; depthwise layers and the first stay dense",
        is_benchmark=True,
    ),
    ZooModel(
        "resnet-18",
        resnet_18,
        _PHOTOGRAPH,
        ("*.conv?.weight",),
        "He et al. 2015, arXiv:1512.03385, table 1; only the 3 x 3 layers are pruned",
        is_benchmark=True,
    ),
    ZooModel(
        "resnet-50",
        resnet_50,
        _PHOTOGRAPH,
        ("*.conv?.weight", "*.shortcut.0.weight"),
        "He et al. 2015, arXiv:1512.03385, table 1; the first and last layer stay dense",
        is_benchmark=True,
    ),
    ZooModel(
        "mobilenet-v2",
        mobilenet_v2,
        _PHOTOGRAPH,
        ("*.expand.0.weight", "*.project.weight", "20.weight"),
        "Sandler et al. 2018, arXiv:1801.04381; depthwise layers, first and last stay dense",
        is_benchmark=True,
    ),
    ZooModel(
        "efficientnet-b0",
        efficientnet_b0,
        _PHOTOGRAPH,
        ("*.expand.0.weight", "*.project.0.weight", "17.0.weight"),
        "Tan and Le 2019, arXiv:1905.11946; depthwise layers, scales, first and last stay dense",
        is_benchmark=True,
    ),
    ZooModel(
        "yolox-tiny",
        yolox_tiny,
        _normal(3, 640, 640),
        (
            *(f"{part}*.0.weight" for part in ("dark", "lateral", "up", "down", "out")),
            *(f"heads.*.{part}.*0.weight" for part in ("stem", "classes", "boxes")),
        ),
        "Ge et al. 2021, arXiv:2107.08430; the first layer and the last ones stay dense",
        is_benchmark=True,
    ),
    ZooModel(
        "small-1d",
        small_1d,
        _normal(40, 64),
        ("*.weight",),
        "a net of features of sound, as recognisers of words begin",
        is_benchmark=True,
    ),
    ZooModel(
        "small-2d",
        small_2d,
        _normal(3, 32, 32),
        ("2.weight", "4.weight", "6.weight"),
        "a net for images of CIFAR-10's size; the first and last layer stay dense",
        is_benchmark=True,
    ),
    ZooModel(
        "transformer-encoder",
        transformer_encoder,
        _normal(TOKENS, WIDTH),
        ("*in_proj_weight", "*out_proj.weight", "*linear?.weight"),
        "Vaswani et al. 2017, arXiv:1706.03762, with GELU",
    ),
    ZooModel(
        "bert-base",
        partial(Bert, 12, 768, 12),
        _words(128),
        _ENCODER,
        "Devlin et al. 2018, arXiv:1810.04805, without segments; the tables stay dense",
        is_benchmark=True,
    ),
    ZooModel(
        "bert-mini",
        partial(Bert, 4, 256, 4),
        _words(128),
        _ENCODER,
        "Turc et al. 2019, arXiv:1908.08962, without segments; the tables stay dense",
        is_benchmark=True,
    ),
    ZooModel(
        "bert-6x384",
        partial(Bert, 6, 384, 12),
        _words(128),
        _ENCODER,
        "Wang et al. 2020, arXiv:2002.10957 (MiniLM), without segments; the tables stay dense",
        is_benchmark=True,
    ),
    ZooModel(
        "vit-b-16",
        partial(VisionTransformer, 12, 768, 12),
        _PHOTOGRAPH,
        _ENCODER,
        "Dosovitskiy et al. 2020, arXiv:2010.11929; patches and the last layer stay dense",
        is_benchmark=True,
    ),
    ZooModel(
        "autoencoder",
        autoencoder,
        _normal(784),
        ("*.weight",),
        "Hinton and Salakhutdinov 2006, with GELU",
    ),
    ZooModel(
        "recommendation",
        Recommendation,
        _recommendation_inputs,
        ("bottom.*.weight", "top.*.weight"),
        "DLRM, Naumov et al. 2019, arXiv:1906.00091, small; the tables stay dense",
    ),
    ZooModel(
        "lpcnet-like",
        LPCNetLike,
        _lpcnet_inputs,
        ("gru_a.weight*",),
        "Valin and Skoglund 2018, arXiv:1810.11846; only the large GRU is sparse, as there",
    ),
)
# Channels, height and width, and stride of depthwise layers of MobileNet v1 and v2.
_DEPTHWISE = (
    *((32, 112, 1), (96, 112, 2), (144, 56, 1), (144, 56, 2), (192, 28, 1)),
    *((192, 28, 2), (384, 14, 1), (576, 14, 1), (576, 14, 2), (960, 7, 1)),
)
_DEPTHWISE_MODELS = (
    ZooModel(
        f"depthwise-{channels}-{size}-{stride}",
        partial(depthwise, channels, stride),
        _normal(channels, size, size),
        (),
        "one layer of Sandler et al. 2018, arXiv:1801.04381",
        is_benchmark=True,
    )
    for channels, size, stride in _DEPTHWISE
)
# Other numbers of tokens for BERT-mini, which has 128.
_LENGTHS = (
    ZooModel(
        f"bert-mini-{tokens}",
        partial(Bert, 4, 256, 4),
        _words(tokens),
        _ENCODER,
        f"bert-mini with {tokens} token{'s' * (tokens > 1)}",
        is_benchmark=True,
    )
    for tokens in (1, 7, 31, 384, 512)
)
# Models as quantised ONNX files; of transformers only products are quantised, as is usual.
_PRODUCTS = ("MatMul", "Gemm")
_QUANTISED = {
    **dict.fromkeys(("resnet-50", "mobilenet-v1", "mobilenet-v2", "efficientnet-b0"), ()),
    "yolox-tiny": (),
    **dict.fromkeys(("bert-base", "bert-mini", "bert-6x384", "vit-b-16"), _PRODUCTS),
}
_ALL = {model.name: model for model in (*_MODELS, *_LENGTHS, *_DEPTHWISE_MODELS)}
ZOO = _ALL | {
    f"{name}-qdq": replace(_ALL[name], name=f"{name}-qdq", quantises=operators)
    for name, operators in _QUANTISED.items()
}
SMALL_ZOO = {name: model for name, model in ZOO.items() if not model.is_benchmark}
