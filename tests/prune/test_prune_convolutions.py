"""Convolutions in tables of latencies and under time budgets: whole layers, by their images."""


import numpy as np
import pytest
import torch
from fake_clock import TICK_NS, FakeClock
from torch import Tensor, nn

from sparsejit.api.kernels.compile_layer import compile_matrix
from sparsejit.api.kernels.kernel import Kernel
from sparsejit.errors import InvalidInput
from sparsejit.prune import Pruner, Recipe, Workload, in_model, latency_table, run_recipe
from sparsejit.prune.calibration import call
from sparsejit.prune.convolutions import CompiledConvolution, convolutions_in_model
from sparsejit.prune.in_model import CompiledLayer

pytestmark = pytest.mark.usefixtures("cache_folder")

TARGETS = ["*.weight"]
X = torch.zeros(2, 4, 20, 20)
# The time of the pretended machine: microseconds a product of a weight that is not zero.
A_CALL, A_PRODUCT = 0.5, 1e-4


def conv_net(seed: int = 0) -> nn.Sequential:
    """A stem, a convolution by channel, one of a single tap, one in groups, a linear layer."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(4, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, groups=32),
        nn.Conv2d(32, 64, 1),
        nn.Conv2d(64, 32, 3, padding=1, groups=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def is_by_channel(kernel: CompiledLayer) -> bool:
    return kernel.strategy.startswith("depthwise")


def pretended_us(kernel: CompiledLayer) -> float:
    """By nonzeros and positions; a convolution by channel gains nothing by zeros."""
    if isinstance(kernel, Kernel):
        return A_CALL + A_PRODUCT * kernel.stats["nnz"]
    if is_by_channel(kernel):
        return 3 * A_CALL
    return A_CALL + A_PRODUCT * kernel.stats["nnz"] * kernel.y_size / 1000


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[CompiledLayer]:
    """A machine of exact times, except for kernels by channel, which chance makes faster each time;
    returns every kernel timed in a model."""
    found: list[CompiledLayer] = []

    def among_others(kernel: CompiledLayer, room: int) -> float:
        found.append(kernel)
        return pretended_us(kernel) * (0.97 ** len(found) if is_by_channel(kernel) else 1.0)

    monkeypatch.setattr(in_model, "us_among_others", among_others)
    monkeypatch.setattr(in_model, "us_in_turn", lambda kernels: sum(map(pretended_us, kernels)))
    return found


# --- what is compiled


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv2d(3, 20, 3, padding=1, bias=False), (3, 13, 17)),
        (nn.Conv2d(3, 20, (3, 5), stride=(2, 1), padding=(0, 2), bias=False), (3, 13, 17)),
        (nn.Conv2d(8, 16, 3, dilation=2, groups=4, bias=False), (8, 13, 17)),
        (nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8, bias=False), (8, 13, 17)),
        (nn.Conv2d(8, 24, 1, bias=False), (8, 9, 9)),
        (nn.Conv2d(6, 9, (4, 3), padding="same", bias=False), (6, 10, 11)),
        (nn.Conv2d(6, 9, 3, padding=1, padding_mode="circular", bias=False), (6, 10, 11)),
        (nn.Conv1d(5, 7, 4, stride=3, padding=2, dilation=2, bias=False), (5, 50)),
        (nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1, bias=False), (6, 7, 8)),
    ],
)
@pytest.mark.filterwarnings("ignore:Using padding=")
def test_a_layer_is_compiled_as_it_is_in_the_model(
    module: nn.Conv2d, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    image = torch.randn(1, *shape)
    (found,) = convolutions_in_model(module, ["weight"], image, call).values()
    weight = torch.nn.functional.dropout(module.weight.detach(), 0.5)
    with torch.no_grad():
        module.weight.copy_(weight)
        wanted = module(image)
    (compiled,) = found.compiled(weight.flatten(1), "float32")
    assert compiled.stats["nnz"] == int(weight.count_nonzero())
    if found.images[0] != shape:  # what "same" and "circular" pad is padded before
        ends = module._reversed_padding_repeated_twice
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        kept = [0 if mode == "constant" else end for end in ends]
        if mode == "constant":
            kept[1::2] = [after - before for before, after in zip(*[iter(ends)] * 2, strict=True)]
        image = torch.nn.functional.pad(image, kept, mode=mode)
    (y,) = compiled.variant.call.run(image.numpy())
    np.testing.assert_allclose(y, wanted.numpy(), atol=1e-5)


def test_images_are_those_that_every_call_meets_whatever_the_batch() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.pool = nn.Conv2d(4, 4, 3, padding=1), nn.MaxPool2d(2)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.shared(self.pool(self.shared(x)))
            return self.shared(y[0])

    model = Twice().train()
    (found,) = convolutions_in_model(model, ["shared.weight"], X, call).values()
    assert found.images == ((4, 20, 20), (4, 10, 10), (4, 10, 10))
    assert model.training and not model.shared._forward_pre_hooks
    kernels = found.compiled(model.shared.weight.detach().flatten(1), "float32")
    assert [kernel.x_size for kernel in kernels] == [1600, 400, 400]
    assert kernels[1] is kernels[2]


def test_a_linear_model_is_not_run() -> None:
    assert convolutions_in_model(nn.Linear(3, 3), ["weight"], None, call) == {}


# --- the table


def test_a_table_times_whole_layers_for_their_images(timed: list[CompiledLayer]) -> None:
    table = latency_table(
        conv_net(), TARGETS, ["unstructured", "1x8"], (0.0, 0.5, 0.9), example_inputs=X
    )
    assert len(table.rows) == 2 * 3 * 5
    rows = {row.name: row for row in table.rows if (row.pattern, row.amount) == ("1x8", 0.9)}
    assert [row.nnz for row in rows.values()][:4] == [112, 32, 208, 920]
    assert rows["0.weight"].us == pytest.approx(A_CALL + A_PRODUCT * 112 * 3.2)
    assert rows["3.weight"].us == pytest.approx(A_CALL + A_PRODUCT * 208 * 6.4)
    assert rows["2.weight"].kernel.startswith("depthwise")
    assert "windows" in rows["0.weight"].kernel and "padding" in rows["0.weight"].kernel
    assert rows["7.weight"].us == pytest.approx(A_CALL + A_PRODUCT * rows["7.weight"].nnz)
    smaller = latency_table(conv_net(), TARGETS, ["1x8"], (0.9,), example_inputs=X[..., :10, :10])
    assert smaller.curve("0.weight", "1x8")[1] < table.curve("0.weight", "1x8")[1][2:]


def test_code_that_zeros_do_not_change_is_timed_once(timed: list[CompiledLayer]) -> None:
    table = latency_table(conv_net(), "2.weight", ["unstructured"], (0.0, 0.5), example_inputs=X)
    assert len(timed) == 1
    assert len({row.us for row in table.rows}) == 1
    assert [row.nnz for row in table.rows] == [288, 144]


def test_a_table_of_one_image_size_is_not_that_of_another(timed: list[CompiledLayer]) -> None:
    for size, count in ((20, 1), (20, 1), (10, 2)):
        x = torch.zeros(1, 4, size, size)
        latency_table(conv_net(), "0.weight", ["unstructured"], (0.9,), example_inputs=x)
        assert len(timed) == count


@pytest.mark.parametrize(
    ("model", "example", "message"),
    [
        (conv_net(), None, r"0\.weight belongs to a Conv2d, .* give example_inputs"),
        (nn.Sequential(nn.Conv3d(1, 2, 3)), torch.zeros(1, 1, 5, 5, 5), "Conv3d, which sparsejit"),
        (nn.ModuleList([nn.Conv2d(4, 4, 3)]), X, r"0\.weight met no image: example_inputs never"),
    ],
)
def test_a_convolution_without_images_is_refused(
    model: nn.Module, example: Tensor | None, message: str
) -> None:
    if isinstance(model, nn.ModuleList):
        model.forward = lambda x: x  # type: ignore[method-assign]
    with pytest.raises(InvalidInput, match=message):
        latency_table(model, "0.weight", example_inputs=example)
    with pytest.raises(InvalidInput, match=message):
        Pruner(budget_us=5, targets="0.weight").prepare(model, example_inputs=example)


# --- budgets


def compiled_us(model: nn.Module) -> float:
    found = convolutions_in_model(model, weight_names(model), X, call)
    us = 0.0
    for name in weight_names(model):
        weight = model.get_parameter(name).detach()
        if name in found:
            us += sum(map(pretended_us, found[name].compiled(weight.flatten(1), "float32")))
        else:
            us += pretended_us(compile_matrix(weight.numpy()))
    return us


def weight_names(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters() if name.endswith("weight")]


@pytest.mark.parametrize("pattern", ["unstructured", "1x16"])
def test_a_budget_is_met_and_spares_what_gains_nothing(
    timed: list[CompiledLayer], pattern: str
) -> None:
    model = conv_net()
    budget = 0.5 * compiled_us(model)
    pruner = Pruner(budget_us=budget, pattern=pattern, targets=TARGETS)
    pruner.prepare(model, example_inputs=X)
    assert pruner.trade_off is not None
    assert 0.9 * budget <= compiled_us(model) <= budget
    assert compiled_us(model) == pytest.approx(pruner.trade_off.measured_us)
    assert isinstance(pruner.amount, dict)
    assert pruner.amount["2.weight"] == 0 < pruner.amount["3.weight"]


def test_a_recipe_takes_the_sizes_of_images_from_its_batches(timed: list[CompiledLayer]) -> None:
    model = conv_net()
    budget = 0.5 * compiled_us(model)
    data = {
        "method": "one-shot",
        "prune": {"targets": TARGETS, "budget_us": budget},
    }

    def loss(network: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        output: Tensor = network(batch["x"])
        return output.square().mean()

    workload = Workload(model, batches=[{"x": X}], loss=loss)
    run_recipe(workload, Recipe.from_dict(data))
    assert 0.9 * budget <= compiled_us(model) <= budget
    with pytest.raises(InvalidInput, match="or a recipe's Workload batches"):
        run_recipe(Workload(conv_net()), Recipe.from_dict(data))


def test_convolutions_and_products_run_in_turn(steady_clock: FakeClock) -> None:
    """Every call of all of them takes a tick, however many they are."""
    model = conv_net()
    found = convolutions_in_model(model, ["0.weight", "2.weight"], X, call)
    kernels: list[CompiledLayer] = [compile_matrix(model[7].weight.detach().numpy())]
    for name, one in found.items():
        weight = model.get_parameter(name).detach().flatten(1)
        kernels += one.compiled(weight, "float32")
    assert isinstance(kernels[1], CompiledConvolution)
    assert in_model.us_in_turn(kernels, places=2) == TICK_NS / 1e3
    assert in_model.us_among_others(kernels[1], 3 * len(kernels[1].image.data)) == pytest.approx(
        TICK_NS / 3e3
    )
