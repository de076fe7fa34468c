"""Weights that `compile_matrix` and the commands take, and objects that they refuse."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsejit
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.frontends.arrays import to_array
from sparsejit.frontends.files import SHORT_FLOATS, read_matrix
from sparsejit.frontends.layers import weights_and_bias

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore:Detected pickle")
RANDOM = np.random.default_rng(0)
KEPT = RANDOM.random((20, 30)) < 0.3
# Multiples of 1/8 below 4, which every format of eight bits and more holds exactly, but e5m2.
W = (np.where(KEPT, RANDOM.integers(-15, 16, KEPT.shape), 0) / 8).astype(np.float32)
BIAS = (RANDOM.integers(-15, 16, 20) / 8).astype(np.float32)
X = RANDOM.integers(-4, 5, 30).astype(np.float32)


def compiled(weights: Any, bias: Any = None) -> np.ndarray:
    """The product with X, which is exact in float32."""
    return sparsejit.compile_matrix(weights, bias, exact=True)(X)


def linear(bias: bool = True) -> Any:
    layer = nn.Linear(30, 20, bias=bias)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(W))
        if bias:
            layer.bias.copy_(torch.tensor(BIAS))
    return layer


WAYS = {
    "bfloat16": lambda w: w.bfloat16(),
    "float16": lambda w: w.half(),
    "float64": lambda w: w.double(),
    "float8": lambda w: w.to(torch.float8_e4m3fn),
    "integers": lambda w: (8 * w).to(torch.int16),
    "csr": lambda w: w.to_sparse_csr(),
    "csc": lambda w: w.to_sparse_csc(),
    "coo": lambda w: w.to_sparse(),
    "bsr": lambda w: w.to_sparse_bsr((10, 10)),
    "csr bfloat16": lambda w: w.bfloat16().to_sparse_csr(),
    "transposed view": lambda w: w.t().contiguous().t(),
    "strided view": lambda w: w.repeat_interleave(2, 1)[:, ::2],
    "negated view": lambda w: torch._neg_view(-w),
    "parameter": lambda w: nn.Parameter(w),
}


@pytest.mark.parametrize("way", WAYS)
def test_tensors_of_every_kind_are_taken(way: str) -> None:
    scale = 8 if way == "integers" else 1
    weights = WAYS[way](torch.tensor(W))
    np.testing.assert_array_equal(compiled(weights), scale * W @ X)


def test_a_sum_of_duplicates_is_taken_as_sparse_tensors_mean_it() -> None:
    places = torch.tensor([[0, 0, 1], [1, 1, 2]])
    weights = torch.sparse_coo_tensor(places, torch.tensor([1.0, 2.0, 4.0]), (2, 3))
    assert to_array(weights, "weights").tolist() == [[0, 3, 0], [0, 0, 4]]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "float32"])
def test_a_bias_of_every_dtype_is_taken(dtype: str) -> None:
    bias = torch.tensor(BIAS).to(getattr(torch, dtype))
    np.testing.assert_array_equal(compiled(W, bias), W @ X + BIAS)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "lil", "dok"])
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_scipy_sparse_weights_are_taken(form: str, kind: str) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    np.testing.assert_array_equal(compiled(getattr(sparse, f"{form}_{kind}")(W)), W @ X)


def test_convolution_weights_count_as_out_and_rest() -> None:
    np.testing.assert_array_equal(compiled(torch.tensor(W).reshape(20, 2, 5, 3)), W @ X)
    np.testing.assert_array_equal(compiled(W.reshape(20, 2, 5, 3)), W @ X)
    layer = nn.Conv2d(2, 20, (5, 3))
    expected = layer(torch.tensor(X).reshape(1, 2, 5, 3)).detach().numpy().ravel()
    np.testing.assert_allclose(compiled(layer), expected, atol=1e-5)


def test_a_linear_layer_brings_its_bias_unless_one_is_given() -> None:
    np.testing.assert_array_equal(compiled(linear()), W @ X + BIAS)
    np.testing.assert_array_equal(compiled(linear(), 2 * BIAS), W @ X + 2 * BIAS)
    np.testing.assert_array_equal(compiled(linear(bias=False)), W @ X)


def test_a_masked_layer_is_taken_as_it_is_now() -> None:
    """torch computes the masked weight before a forward pass, and none has come since."""
    layer = linear()
    from torch.nn.utils import prune

    prune.custom_from_mask(layer, "weight", torch.tensor(KEPT & (W > 0)))
    with torch.no_grad():
        layer.weight_orig.mul_(2)
    np.testing.assert_array_equal(compiled(layer), np.where(W > 0, 2 * W, 0) @ X + BIAS)
    state = layer.state_dict()
    assert set(state) == {"weight_orig", "weight_mask", "bias"}
    np.testing.assert_array_equal(compiled(state), np.where(W > 0, 2 * W, 0) @ X + BIAS)


def test_masked_weights_may_be_anything() -> None:
    state = {"fc.weight_orig": W.copy(), "fc.weight_mask": (W != 0).astype(np.float32)}
    state["fc.weight_orig"][W == 0] = np.inf
    np.testing.assert_array_equal(weights_and_bias(state)[0], W)


def test_a_state_dict_of_one_layer_is_taken() -> None:
    np.testing.assert_array_equal(compiled({"fc.weight": W, "fc.bias": BIAS}), W @ X + BIAS)
    np.testing.assert_array_equal(compiled({"anything": W}), W @ X)


class Mystery:
    """A tensor that will not become an array."""

    layout, dtype = "torch.strided", "torch.float32"

    def detach(self) -> Any:
        raise RuntimeError("no storage\nmore")


REFUSED: dict[str, tuple[Any, str]] = {
    "quantised": (
        lambda: torch.quantize_per_tensor(torch.tensor(W), 0.1, 0, torch.qint8),
        r"weights is quantised; give its dequantize",
    ),
    "complex": (lambda: torch.tensor(W) * 1j, r"weights has dtype complex64; give real"),
    "complex array": (lambda: W * 1j, r"weights has dtype complex64; give real"),
    "meta": (lambda: torch.empty(20, 30, device="meta"), r"meta device.*load the weights"),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(4)], layout=torch.jagged),
        r"weights is a nested tensor",
    ),
    "bool": (lambda: torch.ones(3, 3) > 0, r"weights has dtype bool; give real numbers"),
    "unreadable": (Mystery, r"a Mystery, cannot be read as an array of numbers \(no storage\)"),
    "ragged": (lambda: [[1.0, 2.0], [3.0]], r"a list, cannot be read.*all rows of one length"),
    "masked array": (lambda: np.ma.masked_less(W, 0), r"masked array; give its filled"),
    "quantised layer": (
        lambda: torch.ao.nn.quantized.dynamic.Linear(30, 20),
        r"Linear is quantised",
    ),
    "grouped": (lambda: nn.Conv2d(4, 8, 3, groups=2), r"groups=2 is several matrices"),
    "model": (lambda: nn.Sequential(linear()), r"weights is a Sequential; give a Linear"),
    "transposed": (lambda: nn.ConvTranspose2d(4, 8, 3), r"weights is a ConvTranspose2d"),
    "bilinear": (lambda: nn.Bilinear(3, 4, 5), r"weights is a Bilinear"),
    "two layers": (
        lambda: nn.Sequential(linear(), linear()).state_dict(),
        r"dict of 4 parameters \(0.bias, 0.weight, 1.bias, 1.weight\); give one layer's",
    ),
    "empty dict": (dict, r"dict of 0 parameters"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", REFUSED)
def test_other_things_than_real_matrices_are_refused(case: str) -> None:
    make, message = REFUSED[case]
    weights = make()
    with pytest.raises(InvalidInput, match=message):
        sparsejit.compile_matrix(weights)


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (lambda: torch.ones(20) * 1j, r"bias has dtype complex64"),
        (lambda: np.ones(20) * 1j, r"bias has dtype complex128; give real numbers"),
        (lambda: torch.ones(20, device="meta"), r"bias is on the meta device"),
        (lambda: [1.0, [2.0]], r"bias, a list, cannot be read"),
        (lambda: False, r"bias has dtype bool"),
        (lambda: torch.full((20,), 1e300, dtype=torch.float64), r"bias\[0\] is 1e\+300"),
    ],
)
def test_a_bias_that_is_no_real_vector_is_refused(bias: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        sparsejit.compile_matrix(W, bias())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("F8_E4M3", torch.float8_e4m3fn), ("F8_E5M2", torch.float8_e5m2), ("BF16", torch.bfloat16)],
)
def test_short_floats_are_what_torch_says(name: str, dtype: Any) -> None:
    """All 256 codes of eight bits, and all 65,536 of sixteen."""
    wide = name == "BF16"
    codes = np.arange(65536 if wide else 256).astype(np.uint16 if wide else np.uint8)
    integers = torch.tensor(codes.astype(np.int32)).to(torch.int16 if wide else torch.uint8)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(
            SHORT_FLOATS[name](codes.tobytes()), integers.view(dtype).float().numpy()
        )


DTYPES = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "f16": torch.float16,
    "f64": torch.float64,
    "i8": torch.int8,
}


@pytest.fixture(scope="module")
def mixed_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file such as people have: many dtypes, some that numpy lacks."""
    from safetensors.torch import save_file

    file = tmp_path_factory.mktemp("files") / "model.safetensors"
    tensors = {name: torch.tensor(W).to(dtype) for name, dtype in DTYPES.items()}
    tensors["e5m2"] = torch.tensor(W).to(torch.float8_e5m2)
    tensors["packed"] = torch.zeros(20, 30, dtype=torch.float8_e8m0fnu)
    tensors["fc.weight_orig"] = torch.full((20, 30), 2.0, dtype=torch.bfloat16)
    tensors["fc.weight_mask"] = torch.tensor(KEPT).to(torch.bfloat16)
    save_file(tensors, file)
    return file


@pytest.mark.parametrize("name", DTYPES)
def test_one_tensor_is_read_whatever_else_a_file_holds(mixed_file: Path, name: str) -> None:
    expected = W.astype(np.int8) if name == "i8" else W
    np.testing.assert_array_equal(read_matrix(mixed_file, name), expected)


def test_a_masked_tensor_goes_by_its_plain_name(mixed_file: Path) -> None:
    np.testing.assert_array_equal(read_matrix(mixed_file, "fc.weight"), 2 * KEPT)
    with pytest.raises(InvalidInput, match=r"no tensor 'fc\.weight_orig'; .*fc\.weight, i8"):
        read_matrix(mixed_file, "fc.weight_orig")


def test_a_dtype_that_nobody_reads_is_named(mixed_file: Path) -> None:
    with pytest.raises(InvalidInput, match=r"packed in .* has dtype F8_E8M0.*save it as float32"):
        read_matrix(mixed_file, "packed")


def test_a_short_tensor_is_read_where_there_is_no_torch(mixed_file: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from sparsejit.frontends.files import read_matrix\n"
        f"print(float(read_matrix({str(mixed_file)!r}, 'bf16').sum()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert float(done.stdout) == W.sum(), done.stderr


@pytest.mark.parametrize("wrap", ["state", "checkpoint", "tensor"])
def test_a_state_dict_is_read_from_a_torch_file(tmp_path: Path, wrap: str) -> None:
    layer, file = linear().bfloat16(), tmp_path / "layer.pt"
    content = {
        "state": layer.state_dict(),
        "checkpoint": {"model": layer.state_dict(), "epoch": 3, "notes": ["a"]},
        "tensor": layer.weight.detach(),
    }
    torch.save(content[wrap], file)
    np.testing.assert_array_equal(read_matrix(file), W)


def test_a_file_of_one_layer_is_compiled_with_its_bias(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    torch.save({"state_dict": linear().state_dict()}, tmp_path / "layer.pt")
    save_file(linear().half().state_dict(), tmp_path / "layer.safetensors")
    np.save(tmp_path / "layer.npy", W)
    for name, bias in (("layer.pt", BIAS), ("layer.safetensors", BIAS), ("layer.npy", 0)):
        np.testing.assert_array_equal(compiled(tmp_path / name), W @ X + bias)
        np.testing.assert_array_equal(compiled(str(tmp_path / name), 3 * BIAS), W @ X + 3 * BIAS)


def test_a_path_that_holds_no_layer_is_refused(mixed_file: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"holds 9 parameters .*give one layer's"):
        sparsejit.compile_matrix(mixed_file)
    with pytest.raises(InvalidInput, match=r"there is no file .*missing\.npy; check the path"):
        sparsejit.compile_matrix(tmp_path / "missing.npy")


def test_a_torch_file_of_several_layers_wants_a_name(tmp_path: Path) -> None:
    file = tmp_path / "model.pth"
    torch.save(nn.Sequential(linear(), linear()).state_dict(), file)
    np.testing.assert_array_equal(read_matrix(file, "1.weight"), W)
    with pytest.raises(InvalidInput, match=r"--tensor: 0.bias, 0.weight, 1.bias, 1.weight"):
        read_matrix(file)


def test_a_torch_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    ran, file = tmp_path / "ran", tmp_path / "model.pt"

    class Code:
        def __reduce__(self) -> Any:
            return Path.touch, (ran,)

    file.write_bytes(pickle.dumps(Code()))
    with pytest.raises(DamagedFile, match="cannot be read as tensors alone"):
        read_matrix(file)
    assert not ran.exists()


def test_weights_are_not_kept(tmp_path: Path) -> None:
    state = {"weight": copy.deepcopy(W)}
    kernel = sparsejit.compile_matrix(state, exact=True)
    state["weight"][:] = 0
    np.testing.assert_array_equal(kernel(X), W @ X)


def test_a_boolean_mask_is_a_mask() -> None:
    state = {"fc.weight_orig": torch.from_numpy(W), "fc.weight_mask": torch.from_numpy(W > 0)}
    expected = sparsejit.compile_matrix(W * (W > 0), exact=True)(X)
    np.testing.assert_array_equal(sparsejit.compile_matrix(state, exact=True)(X), expected)


class Doubled(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def test_a_module_that_does_more_than_its_base_is_refused() -> None:
    hooked = torch.nn.Linear(4, 4)
    hooked.register_forward_hook(lambda module, inputs, output: 2 * output)
    for module in (Doubled(4, 4), hooked):
        with pytest.raises(InvalidInput, match="a forward pass or a hook of its own"):
            sparsejit.compile_matrix(module)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({1: np.eye(3)}, "keys that are no names"),
        ({"w_orig": np.eye(3), "w_mask": np.eye(4)}, "differ in shape"),
    ],
)
def test_state_dicts_that_make_no_sense_are_refused(state: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        sparsejit.compile_matrix(state)


def test_sizes_beyond_all_memory_are_refused() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(InvalidInput, match="cannot be read as an array"):
        sparsejit.compile_matrix(sparse.coo_array((2**45, 2**45)))


def test_bools_are_numbers_only_where_asked_for_whatever_their_name() -> None:
    assert to_array(KEPT, "x", takes_bools=True).sum() == KEPT.sum()
    with pytest.raises(InvalidInput, match="x_mask has dtype bool"):
        to_array(KEPT, "x_mask")
