"""Other lengths of a model: by rule, from the graphs of three, with the weights of the first."""

from __future__ import annotations

import gc
import re
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim

import sparsejit
from sparsejit.api.models import code_cache
from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.ir.sized_graph import with_constants_of
from sparsejit.lowering import tiles
from sparsejit.planner import kernel_choice, sample_plan
from sparsejit.planner.cost import Cost
from sparsejit.planner.kernel_choice import Candidate

WIDTH = 48


class Reader(nn.Module):
    """A transformer's layer over words with places: all that a length is in."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(60, WIDTH), nn.Embedding(70, WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.words(ids) + self.places(places)
        parts = self.mixed(x).view(*x.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4)
        scores = torch.softmax(parts[0] @ parts[1].transpose(-1, -2) / 4, -1)
        x = self.norm(x + self.out((scores @ parts[2]).transpose(1, 2).reshape(x.shape)))
        return x + self.narrow(nn.functional.gelu(self.wide(x)))


class Averaging(nn.Module):
    """A length that divides: no rule for whole numbers says how."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).mean(1)


class Cutting(nn.Module):
    """At most ten frames: a length that three others do not tell of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[:, :10]


def pruned(model: nn.Module, density: float = 0.2) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.mul_(torch.rand(layer.weight.shape, generator=generator) < density)
    return model.eval()


def words(batch: int, time: int) -> torch.Tensor:
    return torch.randint(0, 60, (batch, time), generator=torch.Generator().manual_seed(time))


def frames(batch: int, time: int) -> torch.Tensor:
    return torch.randn((batch, time, WIDTH), generator=torch.Generator().manual_seed(time))


def assert_same(fast: sparsejit.CompiledModel, model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)


READER = pruned(Reader())


def reading(time: int = 24, **options: object) -> sparsejit.CompiledModel:
    sizes = [{0: "batch", 1: Dim("time", min=1, max=70)}]
    return sparsejit.compile(READER, (words(1, time),), dynamic_shapes=sizes, **options)


@pytest.fixture(scope="module")
def fast() -> sparsejit.CompiledModel:
    return reading()


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(batch=st.integers(1, 20), time=st.integers(1, 70))
def test_any_order_of_lengths(fast: sparsejit.CompiledModel, batch: int, time: int) -> None:
    assert_same(fast, READER, words(batch, time))


@pytest.mark.parametrize("first", [2, 17, 64])
def test_the_graph_of_a_length_is_the_one_that_is_read(first: int) -> None:
    fast = reading(first)
    for time in (9, 33, 40, 70):
        fast.prepare(time=time)
    for variant in fast.parts.variants[1:]:
        (time,) = variant.input_shapes[0]
        alone = reading(time)
        assert str(variant.graph) == str(alone.graph)
        found, wanted = variant.graph.constants, alone.graph.constants
        pairs = zip(found.values(), wanted.values(), strict=True)
        assert all(one.tobytes() == two.tobytes() for one, two in pairs)


def only(families: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no other kernels for batches."""
    from sparsejit.planner import batch_plan

    real = batch_plan._possible
    monkeypatch.setattr(
        batch_plan,
        "_possible",
        lambda *given: [each for each in real(*given) if each.family in families],
    )


def weights_by_loop(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """A model whose weights are data of a loop, as those are that no cache holds."""
    only(["csr", "int8-tiles"], monkeypatch)
    return READER


def test_other_lengths_read_the_weights_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    model = weights_by_loop(monkeypatch)
    fast = reading()
    for time in (30, 40, 50, 70):
        assert_same(fast, model, words(3, time))
    first, *others = (variant.program.image for variant in fast.parts.variants)
    # A length's own arrays are places of words beyond the first's, numbers and masks.
    own = [image.pool_bytes for image in others]
    assert max(own) < 4 * WIDTH * 70 + 10_000 < first.pool_bytes, own
    del first, others
    kept = fast.parts.variants[-1].call
    del fast
    gc.collect()
    assert kept.run(words(1, 70).numpy())[0].shape == (1, 70, WIDTH)  # its weights are still there


def test_streams_made_for_a_later_length_are_read_by_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    families = ["panels"]
    only(families, monkeypatch)
    fast = reading()
    families[:] = ["csr"]
    for time in (30, 40, 50):
        assert_same(fast, READER, words(3, time))
    _, second, *others = (variant.program.image.pool_bytes for variant in fast.parts.variants)
    assert max(others) < 4 * WIDTH * 70 + 10_000 < second / 2, (second, others)
    kept = fast.parts.variants[-1].call
    del fast
    gc.collect()
    assert kept.run(words(1, 50).numpy())[0].shape == (1, 50, WIDTH)  # its weights are still there


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_lengths_call_the_code_of_weights_that_others_have(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(["panels"], monkeypatch)
    fast = reading(dtype=dtype)
    times = range(33, 65, 3)
    far = 0.1 if dtype == "int8" else 1e-5
    for time in times:
        alone = sparsejit.compile(READER, (words(1, time),), dtype=dtype)
        x = words(3, time)
        torch.testing.assert_close(fast(x), alone(x), rtol=far, atol=far)
    first, *others = fast.parts.variants
    sizes = [variant.program.image.code_bytes for variant in others]
    assert sum(size > max(sizes) / 2 for size in sizes) <= 4 < len(times) / 2, sizes
    kept = others[-1].call
    del fast, first, others
    gc.collect()
    assert kept.run(words(1, 63).numpy())[0].shape == (1, 63, WIDTH)  # what it calls is there


@pytest.mark.parametrize("first", [4, 24])
def test_short_lengths_of_large_models_have_tiles_of_several_samples(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "_MOST_WEIGHTS", 0)  # as if it were large
    monkeypatch.setattr(sample_plan, "_MOST_OF_SMALLER", 1e9)  # as if every tile paid
    fast = reading(first)
    for time in (30, 6, 2, 40):
        for batch in (1, 3, 16, 35):
            assert_same(fast, READER, words(batch, time))
    found = {v.input_shapes[0][0]: v.tiles for v in fast.parts.variants[1:]}
    for time, own in found.items():
        wanted = tiles.batch_tiles(reading(time).graph, 1, 1, one_tile=False).samples
        assert set(own) <= set(wanted) and (time < 16) == (len(wanted) > 1)
    assert any(16 in own for own in found.values())


def test_the_oldest_code_for_other_sizes_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = reading()
    fast.prepare(time=30)
    _, other = fast.parts.variants
    module = import_module("sparsejit.api.models.compiled_model")
    monkeypatch.setattr(module, "_MOST_BYTES", int(2.5 * other.bytes))
    with ThreadPoolExecutor(3) as threads:
        calls = [threads.submit(assert_same, fast, READER, words(2, n)) for n in (31, 32, 33) * 6]
        for call in calls:
            call.result()
    assert len(fast.parts.variants) <= 3
    assert fast.parts.variants[0].input_shapes == ((24,),)


def test_constants_with_other_bits_stay_those_of_the_graph() -> None:
    fast, other = reading(), sparsejit.compile(pruned(Reader(), 0.3), (words(1, 24),))
    first, graph = fast.parts.variants[0].graph, other.parts.variants[0].graph
    joined = with_constants_of(first, graph)
    assert len(joined.constants) == len(graph.constants) == len(list(joined.constants))
    taken = [value for value in joined.constants if value in first.constants]
    for value in joined.constants:
        assert (value in first.constants) != (value in graph.constants)
    ids = words(1, 24).numpy()
    for found, wanted in zip(joined.evaluate([ids]), graph.evaluate([ids]), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert len(taken) < len(graph.constants)  # norms begin alike, weights do not


def test_weights_that_serve_all_lengths_are_read_where_that_is_hardly_slower() -> None:
    costs = {"panels": 100.0, "csr": 107.0, "rows": 300.0}
    candidates = [
        next(
            Candidate(row, Cost(0, 0, 0, ns, ""))
            for row in MATMUL_TEMPLATES
            if row.family == family
        )
        for family, ns in costs.items()
    ]
    assert kernel_choice._as_good(frozenset(), candidates) is None
    found = kernel_choice._as_good(frozenset({"csr"}), candidates)
    assert found is not None and found.template.family == "csr"
    assert kernel_choice._as_good(frozenset({"panels"}), candidates) is None
    assert kernel_choice._as_good(frozenset({"rows"}), candidates) is None


def test_a_model_for_all_lengths_is_not_taken_from_the_cache_of_code(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There its weights are not where other lengths read them."""
    monkeypatch.setenv(code_cache.VARIABLE, "64")
    for _ in range(2):
        fast = reading()
        for time in (30, 40, 50, 70):
            assert_same(fast, READER, words(2, time))
    assert not (cache_folder / "code").exists()


def test_a_saved_model_has_all_lengths(tmp_path: Path) -> None:
    fast = reading()
    fast.save(tmp_path / "one.sjit")
    lengths = (30, 12, 50)
    for time in lengths:
        fast.prepare(time=time)
    fast.save(tmp_path / "four.sjit")
    sizes = [(tmp_path / f"{name}.sjit").stat().st_size for name in ("one", "four")]
    assert sizes[1] < 2.5 * sizes[0]  # one of them has three tiles, and all their nodes
    loaded = sparsejit.load(tmp_path / "four.sjit")
    for time in (24, *lengths):
        assert torch.equal(torch.as_tensor(loaded(words(2, time))), fast(words(2, time)))
    held = ", ".join(f"{time}" for time in (24, *lengths))
    with pytest.raises(InvalidInput, match="was loaded with code for") as raised:
        loaded(words(2, 1))
    found = re.findall(r"\(any, (\d+)\)", str(raised.value))
    assert "(2, 1)" in str(raised.value) and ", ".join(found) == held


@pytest.mark.parametrize("model", [Averaging(), Cutting()], ids=lambda each: type(each).__name__)
def test_models_without_a_rule(model: nn.Module) -> None:
    pruned(model)
    fast = sparsejit.compile(model, (frames(1, 4),), dynamic_shapes=[{0: "batch", 1: "time"}])
    for time in (5, 8, 9, 10, 11, 17, 1, 40):
        assert_same(fast, model, frames(2, time))


def test_weights_that_change_later_change_no_length() -> None:
    model = pruned(Reader())
    fast = sparsejit.compile(model, (words(1, 24),), dynamic_shapes=[{0: "batch", 1: "time"}])
    wanted = [model(words(1, time)).detach() for time in (10, 20, 30, 40)]
    fast.prepare(time=10)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    for time, each in zip((10, 20, 30, 40), wanted, strict=True):
        torch.testing.assert_close(fast(words(1, time)), each, rtol=1e-5, atol=1e-5)


def test_exact_and_threaded_models_take_all_lengths() -> None:
    for options in ({"exact": True}, {"threads": 2}, {"dtype": "int8"}):
        fast = reading(**options)
        for time in (30, 12, 50):
            x, wanted = words(3, time), READER(words(3, time)).detach()
            far = 0.2 if "dtype" in options else 1e-5
            torch.testing.assert_close(fast(x), wanted, rtol=far, atol=far)


def test_bits_are_those_of_a_model_compiled_for_the_length() -> None:
    fast = reading()
    for time in (30, 12, 50):
        assert torch.equal(fast(words(3, time)), reading(time)(words(3, time)))


@settings(max_examples=4, deadline=None, derandomize=True, database=None)
@given(order=st.permutations([9, 17, 30, 33, 50, 64]))
def test_code_of_a_length_does_not_depend_on_which_came_before(order: list[int]) -> None:
    """But for where the weights lie: kernels, reasons, prices and results are the same."""
    fast = reading()
    for time in order:
        fast.prepare(time=time)
    found = {v.input_shapes[0][0]: v for v in fast.parts.variants[1:]}
    for time, variant in found.items():
        kernels = [(step.kernel, step.facts.reason, step.ns) for step in variant.steps]
        now = kernels, fast(words(2, time)).numpy().tobytes()
        assert KNOWN.setdefault(time, now) == now


KNOWN: dict[int, object] = {}


def test_a_system_without_so_many_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise CompileError("no addresses")

    module = import_module("sparsejit.lowering.kept_weights")
    reading().save(tmp_path / "m.sjit")
    monkeypatch.setattr(module, "KeptWeights", refuse)
    fast, loaded = reading(), sparsejit.load(tmp_path / "m.sjit")
    for time in (30, 12, 50):
        assert_same(fast, READER, words(2, time))
        assert_same(loaded, READER, words(2, time))


def test_sizes_out_of_bounds_are_refused_as_ever(fast: sparsejit.CompiledModel) -> None:
    with pytest.raises(InvalidInput, match="'time', has 71 elements; it takes 1 to 70"):
        fast(words(1, 71))


def test_code_beside_the_weights_is_never_writable_and_executable() -> None:
    fast = reading()
    fast.prepare(time=30)
    places = [variant.program.pointer for variant in fast.parts.variants]
    rows = Path("/proc/self/maps").read_text().splitlines()
    for place in places:
        (flags,) = (
            row.split()[1]
            for row in rows
            if int(row.split("-")[0], 16) <= place < int(row.split()[0].split("-")[1], 16)
        )
        assert flags == "r-xp"


