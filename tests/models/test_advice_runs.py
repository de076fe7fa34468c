"""Printed advice is carried out on the model that it is about: each statement runs as it stands."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import sparsejit
from sparsejit.api.models import compiled_model as compiled_model
from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.api.models.variant import Variant
from sparsejit.commands.cli import app
from sparsejit.runtime.step_timing import StepTimes

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402
from torch.nn.utils.prune import l1_unstructured  # noqa: E402

from sparsejit.perf.zoo.zoo_models import ZOO, pruned  # noqa: E402
from sparsejit.prune import Pruner, fold  # noqa: E402

ROOT = Path(__file__).parents[2]
GUIDES = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if ".advise()" in "".join(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
]
SMALL = [each for each in ZOO.values() if not each.is_benchmark and each.quantises is None]
BATCH = re.compile(r"example_inputs with a batch of \d+")
SIZES = re.compile(r"([\w.]+): \d+ x \d+")

Model = tuple[Any, tuple[Any, ...]]


@pytest.fixture(autouse=True)
def _times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every step take its predicted time, so that advice is the same on every machine."""

    def predicted(variant: Variant) -> StepTimes:
        steps = [step.facts.predicted_ns or 1.0 for step in variant.steps]
        return StepTimes(sum(steps), steps)

    monkeypatch.setattr(compiled_model, "measured_times", predicted)


def statements(fast: CompiledModel) -> list[str]:
    """The second line of each printed suggestion."""
    lines = str(fast.advise()).splitlines()
    assert len(lines) % 3 == 1
    return [line.strip() for line in lines[2::3]]


def carry_out(statement: str, model: Any, inputs: tuple[Any, ...]) -> None:
    """Run one advised statement on a torch model, which a Pruner changes.

    Raises where the statement names anything that the model has not.
    """
    if "Pruner(" in statement:
        names = {"model": model, "Pruner": Pruner, "fold": fold}
        *before, call = statement.split("; ")
        for each in before:
            exec(each, names)
        pruner = eval(call, names)
        pruner.prepare(model)
        assert pruner.finalize().density < 1
    elif statement.startswith(("dtype=", "threads=")):
        names = {"sparsejit": sparsejit, "model": model, "inputs": inputs}
        eval(f"sparsejit.compile(model, inputs, {statement})", names)
    elif statement == "torch.nn.ReLU()":
        assert isinstance(eval(statement), nn.Module)
    elif not BATCH.fullmatch(statement):
        layers = [SIZES.fullmatch(part) for part in statement.split(", ")]
        assert all(layers), f"advice that no one can carry out: {statement}"
        for layer in layers:
            model.get_submodule(layer[1])


def check(model: Any, inputs: tuple[Any, ...], wanted: str = "") -> None:
    found = statements(sparsejit.compile(model, inputs))
    for statement in sorted(found, key=lambda each: "Pruner" in each):
        carry_out(statement, model, inputs)
    assert any(wanted in statement for statement in found) or not wanted, found


@pytest.mark.parametrize("page", GUIDES, ids=lambda path: path.stem)
def test_advice_of_the_pages_runs(page: Path) -> None:
    start, end = r"(?:```|<!--- invisible-code-block: )python\n", r"(?:```|--->)"
    blocks = re.findall(f"{start}(.*?){end}", page.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
        if ".advise()" in block:
            break
    check(names["model"], (names["x"],), "fold(model); Pruner(")


@pytest.mark.parametrize("zoo", SMALL, ids=lambda each: each.name)
def test_advice_of_the_zoo_runs(zoo: Any) -> None:
    check(pruned(zoo, 0.1), zoo.inputs(1))


class Joined(nn.Module):
    """Two weights that one product has after each other."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(256, 256), nn.Linear(256, 256)

    def forward(self, x: Any) -> Any:
        return nn.functional.linear(x, torch.cat([self.key.weight, self.value.weight]))


class Adapted(nn.Module):
    """A weight that is a sum: zeros of its parts are none of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.down = nn.Linear(512, 256), nn.Linear(512, 8)
        self.up = nn.Linear(8, 256)

    def forward(self, x: Any) -> Any:
        return nn.functional.linear(x, self.linear.weight + self.up.weight @ self.down.weight)


class Held(nn.Module):
    """A weight in a buffer, which no Pruner takes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(256, 512))

    def forward(self, x: Any) -> Any:
        return nn.functional.linear(x, self.weight)


def masked_convolution() -> nn.Module:
    net = nn.Sequential(nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU()).eval()
    l1_unstructured(net[0], "weight", amount=0.9)
    return net


VECTOR = (torch.zeros(1, 512),)
IMAGE = (torch.zeros(1, 32, 12, 12),)
MADE: dict[str, tuple[Callable[[], nn.Module], Any, str]] = {
    "batch norm": (
        lambda: nn.Sequential(nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU()),
        IMAGE,
        'targets=["0.weight"]',
    ),
    "mask and batch norm": (masked_convolution, IMAGE, "fold(model); Pruner("),
    "weight norm": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(512, 256))),
        VECTOR,
        "fold(model); Pruner(",
    ),
    "orthogonal": (
        lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(512, 512))),
        VECTOR,
        "fold(model); Pruner(",
    ),
    "joined": (Joined, (torch.zeros(1, 256),), 'targets=["key.weight", "value.weight"]'),
}


@pytest.mark.parametrize("name", MADE)
def test_advice_names_weights_behind_computed_ones(name: str) -> None:
    make, inputs, wanted = MADE[name]
    check(make().eval(), inputs, wanted)


@pytest.mark.parametrize(
    "activation",
    [
        *(nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.LogSigmoid),
        *(nn.LeakyReLU, nn.PReLU, nn.Hardswish, nn.Hardsigmoid, nn.Hardshrink, nn.Softshrink),
    ],
)
def test_relu_is_advised_in_place_of_a_function_with_a_kernel_of_its_own(activation: Any) -> None:
    net = nn.Sequential(nn.Linear(4, 4096), activation()).eval()
    check(net, (torch.zeros(1, 4),), "torch.nn.ReLU()")


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ReLU6, nn.Tanh, nn.Sigmoid])
def test_a_function_that_products_apply_is_not_replaced(activation: Any) -> None:
    net = nn.Sequential(nn.Linear(4, 4096), activation()).eval()
    assert "torch.nn.ReLU()" not in statements(sparsejit.compile(net, (torch.zeros(1, 4),)))


@pytest.mark.parametrize("make", [Adapted, Held])
def test_no_advice_prunes_a_weight_that_is_no_parameter(make: Callable[[], nn.Module]) -> None:
    found = statements(sparsejit.compile(make().eval(), VECTOR))
    assert found and not [each for each in found if "Pruner" in each]


def test_advice_for_a_program_names_its_own_parameters() -> None:
    net = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 16)).eval()
    l1_unstructured(net[0], "weight", amount=0.9)
    program = torch.export.export(net, VECTOR)
    found = statements(sparsejit.compile(program))
    assert any("0.weight_orig" in each for each in found)
    assert not any("fold" in each for each in found)
    for statement in found:
        if "Pruner" in statement:
            carry_out(statement, program.module(), VECTOR)


def test_a_loaded_model_gives_the_advice_of_the_saved_one(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(512, 256), nn.ReLU()).eval()
    l1_unstructured(net[0], "weight", amount=0.9)
    fast = sparsejit.compile(net, VECTOR)
    fast.save(tmp_path / "net.sjit")
    for _ in range(2):  # the second time from the code cache
        loaded = sparsejit.load(tmp_path / "net.sjit")
        assert isinstance(loaded, CompiledModel)
        assert statements(loaded) == statements(fast)
    assert any("fold(model); Pruner(" in each for each in statements(fast))


def test_advice_for_an_onnx_file_is_the_command_that_shrinks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).eval()
    path = tmp_path / "a net.onnx"
    torch.onnx.export(net, (torch.zeros(1, 64),), path, dynamo=False, input_names=["x"])
    samples = np.random.default_rng(0).standard_normal((160, 1, 64)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=samples.reshape(160, 64))
    monkeypatch.chdir(tmp_path)
    fast = sparsejit.compile("a net.onnx")
    command = "sparsejit shrink 'a net.onnx' --data samples.npz --out small.onnx"
    fast.save("net.sjit")
    for model in (fast, sparsejit.compile("a net.onnx"), sparsejit.load("net.sjit")):
        found = statements(model)
        assert command in found
        assert not [each for each in found if "Pruner" in each or "torch" in each]
    result = CliRunner().invoke(app, [*shlex.split(command)[1:], "--no-peers", "--budget", "20%"])
    assert result.exit_code == 0, result.output
    assert onnx.load("small.onnx").graph.node
    model = onnx.load(path)
    (call,) = {each for each in statements(sparsejit.compile(model)) if "shrink" in each}
    names = {"sparsejit": sparsejit, "model": model, "samples": list(samples)}
    assert isinstance(eval(call, names).model, CompiledModel)
