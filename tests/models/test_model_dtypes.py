"""float16, bfloat16 and float64 in torch models: dtypes and roundings are torch's."""

from __future__ import annotations

import itertools
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from runnable import LEVELS
from torch import Tensor, nn

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.frontends.writing.writer import Writer, element_of
from sparsejit.ir.values import TensorType
from sparsejit.machine.target import Target
from sparsejit.planner.attention_plan import PAIRS
from sparsejit.planner.cheapest_row import preferring

SHORT = [torch.float16, torch.bfloat16]
FLOATS = [*SHORT, torch.float64]
shorts = pytest.mark.parametrize("dtype", SHORT, ids=str)
Functions = list[Callable[..., Tensor]]


class Of(nn.Module):
    """The results of several functions."""

    def __init__(self, *functions: Callable[..., Any]) -> None:
        super().__init__()
        self.functions = functions
        self.eval()

    def forward(self, *inputs: Tensor) -> list[Any]:
        return [function(*inputs) for function in self.functions]


def assert_same(found: Tensor, wanted: Tensor, what: object = "") -> None:
    assert found.dtype is wanted.dtype, what
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True, msg=f"{what}")


def equal(functions: Functions, *inputs: Tensor, **options: Any) -> None:
    """Raises AssertionError unless compiled functions give torch's numbers and dtypes."""
    model = Of(*functions)
    compiled = sparsejit.compile(model, inputs, **options)
    for number, pair in enumerate(zip(compiled(*inputs), model(*inputs), strict=True)):
        assert_same(*pair, number)


def numbers(count: int = 40) -> Tensor:
    """(count, 9) of all sizes, among them those beyond float16, below it and not finite."""
    generator = torch.Generator().manual_seed(3)
    powers = torch.randint(-40, 40, (count, 9), generator=generator).float()
    x = torch.randn(count, 9, generator=generator) * 2**powers
    x[1, :5] = torch.tensor([0.1, 0.3, 2.9999, 3.0001, 0.9001])
    x[0, :6] = torch.tensor([torch.inf, -torch.inf, torch.nan, 65519.9, 65520, -0.0])
    return x


def _choices(d: torch.dtype) -> Functions:
    """Functions that choose or arrange elements of a short dtype, or compare them."""
    return [
        lambda x: torch.where(x > 0, x.to(d) * 3, 0.1),
        lambda x: torch.where(x > 0, x.to(d) * 3, x),
        lambda x: torch.cat([x.to(d) * 3, x.to(d)]),
        lambda x: torch.cat([x.to(d) * 3, x]),
        lambda x: torch.maximum(x.to(d) * 3, x.to(d)),
        lambda x: x.to(d).masked_fill(x > 1, 0.1),
        lambda x: x.to(d).reshape(9, 40).t()[1:],
        lambda x: (x > 0).to(d) * 0.1,
        lambda x: torch.full_like(x, 0.1, dtype=d),
        lambda x: torch.ones_like(x.to(d)) / 3,
        lambda x: x.to(d).amax(1),
        lambda x: torch.max(x[1:].to(d) * 3, 1).values,
        lambda x: x[1:].to(d).sum(1, dtype=torch.float32)[:0],
        lambda x: (x[1:].to(d) * 3).unsqueeze(0).clamp(-1e4, 1e4).double(),
        lambda x: torch.nan_to_num(x.to(d) * 2),
        lambda x: torch.nan_to_num(x.to(d) * 2, 0.5, 6.0, -7.0),
        lambda x: x.to(d) == 0.1,
        lambda x: x.to(d) < torch.tensor(0.1),
        lambda x: (x.to(d) * 3.3333).floor(),
        lambda x: torch.sign(x.to(d) * 1e-4),
        lambda x: F.threshold(x.to(d) * 1.001, 3.0, 7.0),
        lambda x: (x.to(d) * 3.3).to(d),
        lambda x: torch.float_power(x[1:].clamp(-1, 1).to(d), 0.0),
    ]


def casts(d: torch.dtype) -> Functions:
    """Each has one rounding in torch, and one here."""
    other = torch.bfloat16 if d is torch.float16 else torch.float16
    return [
        lambda x: x.to(d),
        lambda x: x.to(d).float(),
        lambda x: x.to(d).double(),
        lambda x: x.to(d).to(other).float(),
        lambda x: x.double().to(d),
        lambda x: x.to(d) * 2,
        lambda x: (x.to(d) * 3).float(),
        lambda x: x.to(d) * 1.1,
        lambda x: x.to(d) + x,
        lambda x: (x.to(d) * 3) + x,
        lambda x: (x.to(d) * 3) + torch.ones(9, dtype=other),
        lambda x: x.to(d).relu() * 0.3,
        lambda x: -x.to(d).abs(),
        lambda x: x.to(d).type_as(x) * 1e-3,
        lambda x: x.type_as(torch.zeros((), dtype=d)),
        lambda x: torch.zeros(40, 9, dtype=d).copy_(x),
        lambda x: (x.to(d) * 3).isinf(),
        lambda x: x.to(d).isnan(),
        lambda x: (x.to(d) * 1.001) == x.to(d),
        lambda x: (x.to(d) * 0.01) > 0,
        lambda x: (x.to(d) * 1e-4).bool(),
        lambda x: torch.logical_not(x.to(d) * 1e-4),
        lambda x: (x.to(d).clamp(-300, 300) * 3.3).to(torch.int64),
        lambda x: (x.to(d).clamp(0, 40) * 3.3).to(torch.int8),
        lambda x: (x.clamp(-1, 1).to(d) * 3.3).round().to(torch.int32),
        *_choices(d),
    ]


@pytest.mark.parametrize("isa", LEVELS)
@shorts
def test_casts_round_as_in_torch(dtype: torch.dtype, isa: str) -> None:
    equal(casts(dtype), numbers(), target=isa)


@shorts
def test_inputs_and_weights_of_a_short_float(dtype: torch.dtype) -> None:
    weight = torch.tensor([0.1, 3.0, -7.7]).to(dtype)
    functions: Functions = [
        lambda x: x * weight,
        lambda x: x.float() * weight,
        lambda x: x * 3 > weight,
        lambda x: x * weight.sum(),
        lambda x: (x * 3).float(),
        lambda x: x + weight * 3,
        lambda x: x * torch.tensor(0.125, dtype=torch.float64),
    ]
    equal(functions, torch.randn(5, 3).to(dtype))
    equal(functions, torch.randn((), dtype=torch.float32).to(dtype))


def test_whole_numbers_become_short_floats() -> None:
    whole = torch.tensor([[0, 1, 2047, 2049, 65519, 65520, -70000, 2**24 + 1, 2**62 + 1]])
    equal([lambda n: n.half(), lambda n: n.bfloat16(), lambda n: n.half().float() + n], whole)
    narrow = whole.clamp(0, 99).to(torch.uint8)
    equal([lambda n: n.half() * 3, lambda n: (n * 0.5).bfloat16()], narrow)


def test_a_double_keeps_its_dtype() -> None:
    x = numbers()
    functions: Functions = [
        lambda x: x.double(),
        lambda x: x.double() * 2,
        lambda x: (x.double() * 2).float(),
        lambda x: torch.cat([x.double(), x.half()]),
        lambda x: torch.cat([x.double(), x]),
        lambda x: x,
        lambda x: (x * 2).double().float() - x,
        lambda x: torch.full_like(x, 0.5, dtype=torch.float64),
    ]
    equal(functions, x)
    equal(functions, x.clamp(-1e9, 1e9).double())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_least_number_of_a_dtype_masks(dtype: torch.dtype) -> None:
    """Rows that are masked throughout are uniform, as in torch: no infinity cancels another."""
    least = torch.finfo(dtype).min
    mask = torch.tensor([[True, False, True], [True, True, True]])
    known = torch.tensor([[least, 0.0, least], [0.0, 0.0, least]], dtype=dtype)
    model = Of(
        lambda x: torch.softmax(x.masked_fill(mask, least), -1),
        lambda x: torch.softmax(x + known, -1),
        lambda x: torch.softmax(torch.full_like(x, least), -1),
    )
    x = torch.randn(2, 3).to(dtype)
    for found, wanted in zip(sparsejit.compile(model, (x,))(x), model(x), strict=True):
        assert (found - wanted).abs().max() <= 2 * max(1e-7, torch.finfo(dtype).eps)


NAMES = ("bool", "uint8", "int16", "int64", "float16", "bfloat16", "float32", "float64")


@pytest.mark.parametrize("shapes", [((2,), (2,)), ((2,), ()), ((), (2,)), ((), ())], ids=str)
def test_operands_are_promoted_as_in_torch(shapes: tuple[tuple[int, ...], ...]) -> None:
    for names in itertools.product(NAMES, repeat=2):
        tensors = [
            torch.zeros(shape, dtype=getattr(torch, name))
            for shape, name in zip(shapes, names, strict=True)
        ]
        write = Writer()
        values = [
            write.input(TensorType(tuple(x.shape), element_of(x.dtype)), "x", name)
            for x, name in zip(tensors, names, strict=True)
        ]
        wanted = torch.result_type(*tensors)
        assert f"torch.{write.common_dtype(values)}" == str(wanted), names
        for number in (True, 3, 0.5):
            wanted = torch.result_type(tensors[0], number)
            found = write.common_dtype([values[0], number])
            assert f"torch.{found}" == str(wanted), (names, number)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.GRU(12, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows, state = self.layer(x)
        return self.last(rows), state


class Normed(nn.Module):
    """Norms and softmax in float32, products in the model's dtype, as language models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.layer = nn.Parameter(torch.rand(12) + 0.5), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        query = self.layer(self.weight * wide.to(x.dtype))
        scores = query @ query.transpose(-1, -2) / 4
        return torch.softmax(scores, -1, dtype=torch.float32).to(x.dtype) @ x


def layers() -> dict[str, nn.Module]:
    convolutions = nn.Sequential(
        *(nn.Conv1d(7, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(2)),
        *(nn.Conv1d(8, 8, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 5)),
    )
    return {
        "mlp": nn.Sequential(nn.Linear(12, 30), nn.GELU(), nn.Linear(30, 4)),
        "convolutions": convolutions,
        "recurrent": Recurrent(),
        "attention": nn.TransformerEncoderLayer(12, 2, 24, dropout=0.0, batch_first=True),
        "normed": Normed(),
    }


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["mlp", "convolutions", "recurrent", "attention", "normed"])
def test_models_of_other_floats(name: str, dtype: torch.dtype) -> None:
    model = layers()[name].to(dtype).eval()
    x = torch.randn(3, 7, 12).to(dtype)
    compiled = sparsejit.compile(model, (x,))
    assert compiled.batch_is_free
    exact = model.double()(x.double())
    for given in (x, x[:1], x.repeat(2, 1, 1)):
        found, exact = compiled(given), model.double()(given.double())
        for one, wanted in zip(*map(_tuple, (found, exact)), strict=True):
            assert one.dtype is dtype
            unit = max(2e-7, torch.finfo(dtype).eps)
            error = (one.double() - wanted).abs().max() / wanted.abs().max()
            assert error < 4 * unit, error


def _tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


@shorts
def test_autocast_regions(dtype: torch.dtype) -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(12, 12), nn.Linear(12, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            with torch.autocast("cpu", dtype=dtype):
                inside = self.last(torch.relu(self.first(x)))
            return inside, inside.float() * 2 + x[:, :4]

    model, x = Cast().eval(), torch.randn(5, 12)
    compiled = sparsejit.compile(model, (x,))
    for found, wanted in zip(compiled(x), model(x), strict=True):
        assert found.dtype is wanted.dtype
        assert (found - wanted).abs().max() < 8 * torch.finfo(dtype).eps
    inside, wide = compiled(x)
    assert torch.equal(wide, inside.float() * 2 + x[:, :4])


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 3


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_what_a_call_takes_and_gives(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.1, 1e6, 1e39, torch.nan, 1.0]], dtype=torch.float64)
    model = Scaled().eval()
    compiled = sparsejit.compile(model, (x.to(dtype),))
    rounded = x.to(dtype)
    wanted = (rounded.float() * 3).to(dtype)  # 1e39 is infinite in float32
    assert_same(compiled(rounded), wanted)
    assert_same(compiled(rounded.t().contiguous().t()), wanted)
    # float32 in place of the model's dtype is rounded to it.
    assert_same(compiled(x.float()), (x.float().to(dtype).float() * 3).to(dtype))
    arrays = compiled(x.float().numpy())
    assert arrays.dtype == (np.float32 if dtype is torch.bfloat16 else str(dtype)[6:])
    np.testing.assert_array_equal(arrays, compiled(x.float()).float().numpy())
    if dtype is not torch.bfloat16:
        np.testing.assert_array_equal(compiled(rounded.numpy()), arrays)
        swapped = rounded.numpy().astype(rounded.numpy().dtype.newbyteorder())
        np.testing.assert_array_equal(compiled(swapped), arrays)
    for other in {torch.float16, torch.float64, torch.int32} - {dtype}:
        with pytest.raises(InvalidInput, match="convert it to "):
            compiled(x.nan_to_num().clamp(-9, 9).to(other))


def test_a_float32_model_takes_no_other_floats() -> None:
    compiled = sparsejit.compile(Scaled().eval(), (torch.ones(2, 3),))
    for dtype in (torch.float16, torch.float64):
        with pytest.raises(InvalidInput, match="convert it to float32"):
            compiled(torch.ones(2, 3, dtype=dtype))
    with pytest.raises(InvalidInput, match="give a dense tensor of float32"):
        compiled(torch.ones(2, 3, dtype=torch.bfloat16))


def test_arrays_of_bfloat16_from_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    compiled = sparsejit.compile(Scaled().eval(), (torch.ones(2, 3).bfloat16(),))
    x = np.array([[0.1, 2, 3]], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(compiled(x), (x * 3).astype(np.float32))


@shorts
def test_bound_calls_have_float32(dtype: torch.dtype) -> None:
    compiled = sparsejit.compile(Scaled().eval(), (torch.ones(2, 3).to(dtype),))
    x, y = np.full((2, 3), 0.1, np.float32), np.zeros((2, 3), np.float32)
    compiled.bind([x], [y])()
    assert torch.equal(torch.from_numpy(y), (torch.from_numpy(x) * 3).to(dtype).float())
    given: Any = x.astype(np.float16) if dtype is torch.float16 else torch.ones(2, 3).to(dtype)
    with pytest.raises(InvalidInput, match=r"16.*bind a numpy array of float32"):
        compiled.bind([given], [y])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_other_sizes_and_files_keep_the_dtypes(dtype: torch.dtype, tmp_path: Path) -> None:
    model, x = Recurrent().to(dtype).eval(), torch.randn(2, 7, 12).to(dtype)
    sizes = {"x": {0: "batch", 1: "time"}}
    compiled = sparsejit.compile(model, (x,), dynamic_shapes=sizes)
    compiled.prepare(time=4)
    longer = torch.randn(3, 11, 12).to(dtype)
    found, wanted = compiled(longer)[0], model(longer)[0]
    assert found.dtype is dtype
    assert (found - wanted).abs().max() < 8 * max(1e-7, torch.finfo(dtype).eps)
    compiled.save(tmp_path / "model.sjit")
    for again in (sparsejit.load(tmp_path / "model.sjit"), pickle.loads(pickle.dumps(compiled))):
        assert_same(again(longer)[0], found)


@shorts
def test_torch_compile_takes_short_floats(dtype: torch.dtype) -> None:
    model = layers()["mlp"].to(dtype).eval()
    x = torch.randn(3, 12).to(dtype)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", message="sparsejit")
        found, wanted = torch.compile(model, backend="sparsejit")(x), model(x)
    assert found.dtype is dtype
    assert (found - wanted).abs().max() < 8 * torch.finfo(dtype).eps


def test_torch_compile_within_autocast() -> None:
    model, x = layers()["mlp"].eval(), torch.randn(3, 12)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = torch.compile(model, backend="sparsejit")(x), model(x)
    assert found.dtype is torch.bfloat16
    assert (found - wanted).abs().max() < 8 * torch.finfo(torch.bfloat16).eps


def test_dtypes_of_eight_bits_are_refused_by_name() -> None:
    x = torch.ones(2, 3)
    with pytest.raises(sparsejit.UnsupportedOperator, match="dtype float8_e4m3fn"):
        sparsejit.compile(Of(lambda x: x.to(torch.float8_e4m3fn).float()), (x,))
    with pytest.raises(InvalidInput, match="dtype float8_e5m2"):
        sparsejit.compile(Scaled().eval(), (x.to(torch.float8_e5m2),))


@pytest.mark.skipif(
    not Target.detect().has("avx512_bf16"), reason="needs products of pairs of bfloat16"
)
def test_x_is_rounded_where_the_whole_model_is_bfloat16(tmp_path: Path) -> None:
    """Not layer by layer, nor with exact=True; a file keeps it."""
    torch.manual_seed(0)
    model, x = nn.Linear(512, 512).eval(), torch.randn(64, 512)

    def kernels(fast: Any) -> set[str]:
        return {step.kernel for step in fast.parts.variants[0].steps}

    fast = sparsejit.compile(model, (x,), dtype="bfloat16", free_batch=False)
    assert kernels(fast) == {"bf16-dense-pairs-avx512"}
    for options in ({"dtype": {"*": "bfloat16"}}, {"dtype": "bfloat16", "exact": True}):
        other = sparsejit.compile(model, (x,), free_batch=False, **options)
        assert not kernels(other) & kernels(fast)
    fast.save(tmp_path / "m.sjit")
    loaded = sparsejit.load(tmp_path / "m.sjit")
    assert kernels(loaded) == kernels(fast)
    np.testing.assert_array_equal(loaded(x), fast(x))
    with torch.no_grad():
        exact = model.double()(x.double()).numpy()
    error = np.abs(fast(x).numpy() - exact).max() / np.abs(exact).max()
    assert 1e-5 < error < 1e-2


class _Attends(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


@pytest.mark.skipif(
    not Target.detect().has("avx512_bf16"), reason="needs products of pairs of bfloat16"
)
def test_attention_is_rounded_where_the_whole_model_is_bfloat16(tmp_path: Path) -> None:
    """At any length, in a file, and as `accuracy` shows; not with exact=True."""
    torch.manual_seed(0)
    model, x = _Attends().eval(), torch.randn(2, 4, 128, 64)
    shapes = ({2: torch.export.Dim("length", max=300)},)

    def kernels(**options: Any) -> set[str]:
        fast = sparsejit.compile(model, (x,), free_batch=False, **options)
        return {step.kernel for step in fast.parts.variants[0].steps}

    assert "attention-pairs" not in kernels(dtype={"*": "bfloat16"}) | kernels(dtype="float32")
    assert "attention-pairs" not in kernels(dtype="bfloat16", exact=True)
    with preferring(PAIRS):
        assert kernels(dtype="bfloat16") == {"attention-pairs"}
        fast = sparsejit.compile(model, (x,), dtype="bfloat16", dynamic_shapes=shapes)
        fast.save(tmp_path / "m.sjit")
        loaded = sparsejit.load(tmp_path / "m.sjit")
        for shorter in (x, x[:, :, :37], x[:, :, :8]):
            found = np.asarray(fast(shorter))
            assert found.tobytes() == np.asarray(loaded(shorter)).tobytes()
            wanted = model(shorter.double()).numpy()
            error = abs(found - wanted).max() / abs(wanted).max()
            assert 1e-4 < error < 1e-2
    (shown,) = fast.accuracy([x]).outputs
    assert shown.largest > 1e-4 > shown.float32
