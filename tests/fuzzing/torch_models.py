"""Random torch models: tensors of all kinds through many operators, compiled and compared.

case = make(seed)        a program of steps, its inputs, and how it is compiled
check(case)              "equal" to torch, or "refused" by one of our errors
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from fuzzing.torch_layers import LAYERS
from fuzzing.torch_steps import STEPS, random_input
from fuzzing.torch_views import VIEWS
from fuzzing.torch_wholes import WHOLES
from runnable import LEVELS
from torch.utils._pytree import tree_leaves

import sparsejit
from sparsejit.errors import SparseJitError
from sparsejit.ir.graph import BatchAxes

BATCH = 5  # samples that a model is grown with; it is compiled for the first few of them
MOST_ELEMENTS, LARGEST = 1 << 13, 1e4
# The cost that rounding may have: of the largest number on the way, and of the cost of NOISE.
ROUNDING, NOISE, MARGIN = 1e-5, 1e-6, 20.0

Function = Callable[..., torch.Tensor]


@dataclass
class Step:
    """`function` of earlier values; it writes into the first where it is in place."""

    name: str
    function: Function
    places: tuple[int, ...]
    is_fresh: bool
    in_place: bool


class Program(torch.nn.Module):
    """Steps in order; the values at `outputs` are returned. `noise` disturbs fresh floats."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList()
        self.steps: list[Step] = []
        self.outputs: list[int] = []
        self.noise = 0.0

    def forward(self, *inputs: torch.Tensor) -> Any:
        values = list(inputs)
        for step in self.steps:
            value = step.function(*(values[place] for place in step.places))
            if self.noise and step.is_fresh and value.is_floating_point():
                sign = 2 * torch.randint(0, 2, value.shape) - 1
                value = value * (1 + self.noise * sign)
            values.append(value)
        return tuple(values[place] for place in self.outputs)


class Growing:
    """A program under construction: `values` are what its steps make of the example."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.program = Program().eval()
        self.inputs: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.largest = 1.0

    def input(self, tensor: torch.Tensor) -> None:
        self.inputs.append(tensor.clone())
        self.values.append(tensor)

    def any(self, fits: Callable[[torch.Tensor], bool] = lambda x: True) -> int | None:
        """The place of a value that fits, most often a late one."""
        places = [place for place, value in enumerate(self.values) if fits(value)]
        if not places:
            return None
        return self.draw.choice(places[-3:] if self.draw.random() < 0.6 else places)

    def layer(self, layer: torch.nn.Module) -> torch.nn.Module:
        """Pruned to a random density."""
        density = self.draw.choice([0.05, 0.3, 0.5, 1.0])
        with torch.no_grad():
            for weights in layer.parameters():
                if weights.dim() > 1:
                    weights *= torch.rand(weights.shape) < density
        self.program.layers.append(layer)
        return layer.eval()

    def add(self, name: str, function: Function, *places: int, in_place: bool = False) -> bool:
        """Apply it where torch does, and where the result is of a size to go on with."""
        operands = [self.values[place] for place in places]
        try:
            tried = [x.clone() for x in operands] if in_place else operands
            result = function(*tried)
            if not self._is_good(result):
                return False
            if in_place:
                result = function(*operands)
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
            return False
        aliases = any(_shares(result, x) for x in self.values)
        self.program.steps.append(Step(name, function, places, not aliases, in_place))
        self.values.append(result)
        return True

    def _is_good(self, x: torch.Tensor) -> bool:
        if x.numel() > MOST_ELEMENTS or x.dim() > 6:
            return False
        if x.is_floating_point():
            size = float(x.abs().max()) if x.numel() else 0.0
            if not size < LARGEST:  # NaN neither
                return False
            self.largest = max(self.largest, size)
        return True


def _shares(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


@dataclass
class TorchCase:
    """A program, inputs of BATCH samples, and how it is compiled."""

    seed: int
    program: Program
    inputs: list[torch.Tensor]
    example: int
    options: dict[str, Any]
    largest: float
    is_saved: bool

    @property
    def title(self) -> str:
        shapes = [f"{str(x.dtype)[6:]}{list(x.shape)}" for x in self.inputs]
        lines = [f"inputs {', '.join(shapes)}; example {self.example}; {self.options}"]
        first = len(self.inputs)
        for number, step in enumerate(self.program.steps, first):
            lines.append(f"v{number} = {step.name}({', '.join(f'v{n}' for n in step.places)})")
        return "\n".join([*lines, f"return {[f'v{n}' for n in self.program.outputs]}"])


def make(seed: int) -> TorchCase:
    """The case of a seed."""
    torch.manual_seed(seed)
    grow = Growing(seed)
    draw = grow.draw
    with torch.no_grad():
        for _ in range(draw.choice([1, 1, 2, 2, 3])):
            grow.input(random_input(draw, BATCH))
        for _ in range(draw.randint(2, 20)):
            draw.choice((*STEPS, *WHOLES, *VIEWS, *LAYERS))(grow)
    made = range(len(grow.inputs), len(grow.values))
    program = grow.program
    program.outputs = [len(grow.values) - 1]
    program.outputs += draw.sample(list(made), min(len(made), draw.randint(0, 3)))
    options = {
        "target": draw.choice(LEVELS),
        "threads": draw.choice([1, 1, 1, 2]),
        "free_batch": draw.random() < 0.85,
    }
    is_saved = draw.random() < 0.2
    inputs = grow.inputs
    return TorchCase(seed, program, inputs, draw.choice([1, 2, 5]), options, grow.largest, is_saved)


def check(case: TorchCase) -> str:
    """The outcome. Raises AssertionError for a wrong result, and whatever else comes."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        example = tuple(x[: case.example].clone() for x in case.inputs)
        try:
            compiled = sparsejit.compile(case.program, example, **case.options)
        except SparseJitError as refused:
            return f"refused: {type(refused).__name__}"
        batches = (1, case.example, BATCH) if compiled.batch_is_free else (case.example,)
        for batch in dict.fromkeys(batches):
            rows = _samples(case, compiled.batch_axes, batch)
            if not _runs(case, rows):
                continue
            found = arrays(compiled(*(x.clone() for x in rows)))
            compare(case, rows, found, by_torch(case, rows))
            if case.is_saved:
                _check_file(compiled, rows, found)
    return "equal"


def _samples(case: TorchCase, axes: BatchAxes | None, batch: int) -> list[torch.Tensor]:
    """Inputs of that batch; those that have none are the example's."""
    where = (0,) * len(case.inputs) if axes is None else axes.inputs
    samples = []
    for x, axis in zip(case.inputs, where, strict=True):
        example = x[: case.example]
        if axis is None:
            samples.append(example)
        elif axis == 0:
            samples.append(x[:batch])
        else:
            samples.append(example.index_select(axis, torch.arange(batch) % x.shape[axis]))
    return samples


def _runs(case: TorchCase, rows: Sequence[torch.Tensor]) -> bool:
    """Whether torch takes that batch: some layers ask for two samples."""
    try:
        case.program(*(x.clone() for x in rows))
    except (RuntimeError, ValueError, IndexError):
        return False
    return True


def arrays(nest: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in tree_leaves(nest)]


def by_torch(case: TorchCase, rows: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """Torch's results for them."""
    with torch.no_grad():
        return arrays(case.program(*(x.clone() for x in rows)))


def compare(
    case: TorchCase,
    rows: Sequence[torch.Tensor],
    found: Sequence[np.ndarray],
    wanted: Sequence[np.ndarray],
) -> None:
    """Raises AssertionError where results differ by more than rounding in their steps may."""
    case.program.noise = NOISE
    noisy = [by_torch(case, rows) for _ in range(2)]
    case.program.noise = 0.0
    for number, (got, like) in enumerate(zip(found, wanted, strict=True)):
        where = f"output {number} of batch {len(rows[0])}"
        assert got.shape == like.shape, f"{where} has shape {got.shape}, torch {like.shape}"
        assert got.dtype == like.dtype, f"{where} is {got.dtype}, torch's {like.dtype}"
        if like.dtype.kind != "f":
            assert np.array_equal(got, like), f"{where}: {got} instead of {like}"
            continue
        if not like.size:
            continue
        one, other = (each[number] for each in noisy)
        spread = float(np.nanmax(np.abs(one - other), initial=0))
        bound = ROUNDING * case.largest + MARGIN * spread
        same = (got == like) | (np.isnan(got) & np.isnan(like))
        with np.errstate(invalid="ignore"):
            wrong = ~(same | (np.abs(got - like) <= bound))
        text = f"{got[wrong][:3]} instead of {like[wrong][:3]}, bound {bound:.3g}"
        assert not wrong.any(), f"{where}: {text}, {wrong.sum()} of {like.size}"


def _check_file(compiled: Any, rows: Sequence[torch.Tensor], found: Sequence[np.ndarray]) -> None:
    """Saved and loaded it gives the same bits."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.sparsejit"
        compiled.save(path)
        loaded = sparsejit.load(path)
    again = arrays(loaded(*(x.clone() for x in rows)))
    for one, other in zip(found, again, strict=True):
        assert one.tobytes() == other.tobytes(), "loaded it gives other bits"
