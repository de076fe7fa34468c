"""`torch.compile(model, backend="sparsejit")`: results as without it, and what is compiled."""

import copy
import gc
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from sparsejit.api.models import dynamo_backend as api
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.frontends.dynamo import forget_notices
from sparsejit.frontends.dynamo.part import MOST_CHANGES, MOST_SIZES


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    """Each test begins without compiled frames and with nothing said."""
    torch._dynamo.reset()
    forget_notices()
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", module="torch")
        yield
    torch._dynamo.reset()


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The tile of each part that is compiled, in order."""
    made: list[int | None] = []
    real = api.make_variant

    def counted(graph: Any, options: Any, dtypes: Any, tile: int | None, **rest: Any) -> Any:
        made.append(tile)
        return real(graph, options, dtypes, tile, **rest)

    monkeypatch.setattr(api, "make_variant", counted)
    return made


def compiled(model: Callable[..., Any], **options: Any) -> Any:
    """Under the name that is installed, where it is."""
    backend: Any = api.dynamo_backend
    if "sparsejit" in torch._dynamo.list_backends():
        backend = "sparsejit"
    return torch.compile(model, backend=backend, **options)


def check(fast: Any, model: Any, *inputs: Any) -> None:
    """Values, dtypes and strides are the model's."""
    with torch.no_grad():
        found, wanted = fast(*inputs), model(*inputs)
    found, wanted = (x if isinstance(x, tuple) else (x,) for x in (found, wanted))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        long = [axis for axis, size in enumerate(one.shape) if size > 1]
        assert [one.stride(axis) for axis in long] == [other.stride(axis) for axis in long]


def check_each(fast: Any, model: Any, inputs: Iterable[Any]) -> None:
    for x in inputs:
        check(fast, model, x)


def said(record: Any) -> list[str]:
    return [str(w.message) for w in record if "leaves this to torch" in str(w.message)]


def pruned(model: nn.Module) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter *= torch.rand_like(parameter) < 0.1
    return model.eval()


class Broken(nn.Module):
    """A graph break in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(33, 64), nn.BatchNorm1d(64)
        self.last = nn.Linear(64, 17)

    def forward(self, x: Any) -> Any:
        hidden = self.norm(self.first(x)).relu()
        torch._dynamo.graph_break()
        return self.last(hidden).softmax(-1), hidden


class Layers(nn.Module):
    """The function `between`, between two layers."""

    def __init__(self, between: Callable[[Any], Any]) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(16, 24), nn.Linear(24, 8), between

    def forward(self, x: Any) -> Any:
        return self.last(self.between(self.first(x).relu())).tanh()


def test_a_pruned_model_with_a_graph_break_takes_any_batch(tiles: list[int | None]) -> None:
    model = pruned(Broken())
    fast = compiled(model)
    check_each(fast, model, [torch.randn(batch, 33) for batch in (3, 5, 1, 16, 7, 65, 2, 3)])
    # Each of the two parts for the first batch, for any, and for one sample.
    assert tiles == [None, None, 5, 5, None, None]


@pytest.mark.parametrize(
    ("error", "words"),
    [(CompileError("no kernel for this"), "no kernel for this"), (KeyError("x"), "please report")],
)
def test_a_part_that_is_not_compiled_is_left_to_torch(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(api, "make_variant", refused)
    model = pruned(Broken())
    with pytest.warns(UserWarning, match=words) as record:
        check_each(compiled(model), model, [torch.randn(batch, 33) for batch in (3, 4, 5)])
    assert len(said(record)) == 1


def test_empty_batches_are_left_to_torch(tiles: list[int | None]) -> None:
    model = pruned(Broken())
    fast = compiled(model)
    check_each(fast, model, [torch.randn(batch, 33) for batch in (0, 4, 5, 0)])
    assert tiles == [4, 4]


@pytest.mark.parametrize("isa", ["avx2", "native"])
def test_options_are_those_of_compile(isa: str, tiles: list[int | None]) -> None:
    model = pruned(Broken())
    dtypes = {"first": "bfloat16", "last": "bfloat16"}
    fast = compiled(model, options={"target": isa, "threads": 2, "dtype": dtypes})
    x = torch.randn(4, 33)
    with torch.no_grad():
        (found, _), (wanted, _) = fast(x), model(x)
    assert 1e-6 < (found - wanted).abs().max() < 1e-2
    assert len(tiles) == 2


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"options": {"thread": 2}}, "did you mean 'threads'"), ({"mode": "max-autotune"}, "mode")],
)
def test_wrong_options_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        api.dynamo_backend(None, [], **wrong)


def test_the_whole_model_is_one_part(tiles: list[int | None]) -> None:
    model = pruned(Layers(torch.sigmoid))
    fast = compiled(model, fullgraph=True, dynamic=True)
    for batch in (4, 2, 9):
        check(fast, model, torch.randn(batch, 16))
    assert tiles == [4]


def test_a_batch_behind_time_is_one_part_too(tiles: list[int | None]) -> None:
    fast = compiled(model := pruned(Layers(torch.sigmoid)), fullgraph=True)
    for x in (torch.randn(5, batch, 16) for batch in (6, 2, 9)):
        torch._dynamo.mark_dynamic(x, 1)
        check(fast, model, x)
    assert tiles == [6]


def test_changed_parameters_are_read_again(tiles: list[int | None]) -> None:
    model = pruned(Layers(torch.sigmoid))
    fast, x = compiled(model), torch.randn(4, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    check(fast, model, x)
    check(fast, model, x)
    assert len(tiles) == 1

    model(x).sum().backward()
    optimizer.step()
    check(fast, model, x)
    check(fast, model, x)
    with torch.no_grad():
        model.first.weight[:4] = 0
    check(fast, model, x)
    check(fast, model, x)
    model.last.weight.data = torch.randn(8, 24)
    check(fast, model, x)
    model.last.weight = nn.Parameter(torch.randn(8, 24))
    check(fast, model, x)
    assert len(tiles) == 5


def test_parameters_that_change_always_are_not_compiled_always(tiles: list[int | None]) -> None:
    model = pruned(Layers(torch.sigmoid))
    fast, x = compiled(model), torch.randn(4, 16)

    def inputs_after_changes() -> Iterator[Any]:
        for _ in range(3 * MOST_CHANGES):
            with torch.no_grad():
                model.first.weight *= 0.9
            yield x

    with pytest.warns(UserWarning, match="change at every call") as record:
        check_each(fast, model, inputs_after_changes())
    assert len(tiles) == 1 + MOST_CHANGES
    assert len(said(record)) == 1
    check(fast, model, x)
    check(fast, model, x)
    assert len(tiles) == 2 + MOST_CHANGES


def test_unknown_operators_are_left_to_torch_with_one_warning(tiles: list[int | None]) -> None:
    def between(x: Any) -> Any:
        return torch.special.airy_ai(x)

    model = pruned(Layers(between))
    fast = compiled(model)
    with pytest.warns(UserWarning, match="leaves this to torch") as record:
        check_each(fast, model, [torch.randn(batch, 16) for batch in (4, 5, 9)])
    reasons = said(record)
    assert len(reasons) == 1
    assert "aten.special_airy_ai.default" in reasons[0] and "test_dynamo.py" in reasons[0]
    assert tiles == [None, None, 5, 5], "a part before and one after, each at two shapes"


def test_floats_of_other_sizes_are_left_to_torch(tiles: list[int | None]) -> None:
    model = Layers(torch.sigmoid).double().eval()
    with pytest.warns(UserWarning, match="float64"):
        check(compiled(model), model, torch.randn(4, 16, dtype=torch.float64))
    assert not tiles


def test_few_operators_are_left_to_torch(tiles: list[int | None]) -> None:
    check(compiled(torch.sin), torch.sin, torch.randn(5))
    assert not tiles


def test_gradients_are_left_to_torch(tiles: list[int | None]) -> None:
    model = pruned(Layers(torch.sigmoid))
    twin, x = copy.deepcopy(model), torch.randn(4, 16)
    fast = compiled(model)
    with pytest.warns(UserWarning, match="gradients are enabled") as record:
        outputs = [fast(torch.randn(5, 16)), fast(x)]
    outputs[1].sum().backward()
    twin(x).sum().backward()
    torch.testing.assert_close(model.first.weight.grad, twin.first.weight.grad)
    assert len(said(record)) == 1 and not tiles
    check(fast, model, x)
    assert len(tiles) == 1
    with torch.inference_mode():
        torch.testing.assert_close(fast(x), model(x))


def test_outputs_are_views_where_the_model_gives_views() -> None:
    layer = nn.Linear(12, 12).eval()

    def model(x: Any) -> Any:
        y = layer(x).relu().tanh()
        return y, y.t(), x.t(), x[1:], y.transpose(1, 2) if y.dim() > 2 else y[:, ::2]

    fast = compiled(model)
    for batch in (4, 5, 7):
        x = torch.randn(batch, 12)
        check(fast, model, x)
        with torch.no_grad():
            y, turned, given, rest, _ = fast(x)
        assert given.data_ptr() == x.data_ptr() and rest.data_ptr() == x[1:].data_ptr()
        assert turned.data_ptr() == y.data_ptr()


def test_all_results_of_an_operator_stay_in_one_part(tiles: list[int | None]) -> None:
    layer, norm = nn.Conv2d(3, 6, 3).eval(), nn.BatchNorm2d(6).eval()

    def model(x: Any) -> Any:
        whole = norm(layer(x))
        left, right = whole.split(3, 1)
        return left.tanh(), right, left, whole

    fast, x = compiled(model), torch.randn(2, 3, 6, 7)
    check_each(fast, model, [torch.randn(batch, 3, 6, 7) for batch in (2, 3, 5)])
    assert tiles == [None, 1]
    with torch.no_grad():
        _, _, left, whole = fast(x)
    assert left.data_ptr() == whole.data_ptr()


def test_outputs_keep_their_strides_and_are_never_reused() -> None:
    layer = nn.Conv2d(3, 5, 3, padding=1).eval()

    def model(x: Any) -> Any:
        return layer(x).relu().contiguous(memory_format=torch.channels_last)

    fast, x = compiled(model), torch.randn(2, 3, 6, 7)
    check(fast, model, x)
    check(fast, model, x.contiguous(memory_format=torch.channels_last))
    with torch.no_grad():
        one = fast(x)
        kept = one.clone()
        other = fast(torch.randn(2, 3, 6, 7))
    assert torch.equal(one, kept) and one.data_ptr() != other.data_ptr()


def test_inputs_and_buffers_that_a_model_changes() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x: Any) -> Any:
            self.mean.mul_(0.5).add_(x.mean(0))
            x.add_(1)
            return self.layer(x - self.mean).tanh()

    model = Counting().eval()
    twin, fast = copy.deepcopy(model), compiled(model)
    for batch in (4, 4, 6):
        x = torch.randn(batch, 8)
        other = x.clone()
        with torch.no_grad():
            torch.testing.assert_close(fast(x), twin(other))
        assert torch.equal(x, other)
        torch.testing.assert_close(model.mean, twin.mean)


def test_models_of_one_class_do_not_displace_each_other(tiles: list[int | None]) -> None:
    models = [pruned(Layers(torch.sigmoid)) for _ in range(3)]
    fast = [compiled(model) for model in models]
    x = torch.randn(4, 16)
    for _ in range(3):
        for number in range(3):
            check(fast[number], models[number], x)
    assert len(tiles) == 3


def test_parameters_are_not_kept_alive(tiles: list[int | None]) -> None:
    model = pruned(Layers(torch.sigmoid))
    fast = compiled(model)
    check(fast, model, torch.randn(4, 16))
    assert len(tiles) == 1
    weight = weakref.ref(model.first.weight)
    del model, fast
    gc.collect()
    assert weight() is None


def test_sizes_that_are_no_batch_are_compiled_a_few_times(tiles: list[int | None]) -> None:
    layer = nn.Linear(8, 8).eval()

    def model(x: Any) -> Any:
        return layer(x).softmax(0)

    fast = compiled(model, dynamic=True)
    with pytest.warns(UserWarning, match="softmax over the batch") as record:
        check_each(fast, model, [torch.randn(n, 8) for n in range(2, 2 * MOST_SIZES)])
    assert tiles == [None] * MOST_SIZES
    assert len(said(record)) == 1


@pytest.mark.parametrize("cell", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent_layers_are_compiled_where_dynamo_gives_them(
    cell: Any, tiles: list[int | None]
) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.last = nn.Embedding(11, 8), nn.Linear(24, 5)
            self.layer = cell(8, 12, bidirectional=True, batch_first=True)

        def forward(self, words: Any) -> Any:
            return self.last(self.layer(self.embedding(words))[0]).log_softmax(-1)

    model = pruned(Tagger())
    check(compiled(model), model, torch.randint(11, (3, 6)))  # dynamo leaves the layer out
    torch._dynamo.reset()
    tiles.clear()
    with torch._dynamo.config.patch(allow_rnn=True):
        fast = compiled(model, fullgraph=True)
        for batch in (3, 4, 9):
            check(fast, model, torch.randint(11, (batch, 6)))
    assert tiles == [None, 4]


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layers_that_torch_fuses(norm_first: bool, tiles: list[int | None]) -> None:
    torch.backends.mha.set_fastpath_enabled(True)
    options: dict[str, Any] = {"batch_first": True, "norm_first": norm_first, "activation": "gelu"}
    model = pruned(nn.TransformerEncoderLayer(32, 4, 64, **options))
    fast = compiled(model)
    for batch in (2, 3, 5):
        check(fast, model, torch.randn(batch, 7, 32))
    assert tiles == [None, 3]
