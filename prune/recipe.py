"""A pruning run as data, read from a YAML file and checked.

    read_arguments   plain data, as of a YAML file, checked against the signature of the function
                     that takes it
    Recipe           the run

pydantic was tried: its errors hold branches of unions among the keys, and neither the known names
nor the type of a missing parameter, so that rewording them cost the lines it saved.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from math import cos, pi
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from sparsejit.errors import DamagedFile, InvalidInput, MissingDependency, suggest
from sparsejit.prune.allocation import Amount
from sparsejit.prune.criteria import Magnitude, Movement, Random
from sparsejit.prune.patterns import NofM, choose_pattern
from sparsejit.prune.post_training import prune_second_order, prune_wanda
from sparsejit.prune.pruner import Pruner
from sparsejit.prune.regularisers import ADMM, L1, GroupLasso
from sparsejit.prune.schedules import (
    ConstantRate,
    CubicSchedule,
    IterativeSchedule,
    OneShot,
    Schedule,
)
from sparsejit.prune.targets import Target

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    NoneType: "null",
}


@dataclass(frozen=True)
class Place:
    """The place of a value in a file, for messages: "recipe.yaml: train.steps"."""

    file: str
    keys: tuple[str, ...] = ()

    def __truediv__(self, key: str) -> "Place":
        return Place(self.file, (*self.keys, key))

    def __str__(self) -> str:
        return f"{self.file}: {'.'.join(self.keys)}" if self.keys else self.file


@dataclass(frozen=True)
class NamedChoice:
    """The name of a row in a table of functions, and the arguments to call it with."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, table: Mapping[str, Callable[..., Any]]) -> Any:
        return table[self.kind](**self.options)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.options}


# Makes a value from data that stands at a place in a file.
Reader = Callable[[Any, Place], Any]


def read_arguments(
    function: Callable[..., Any], data: Any, place: Place, readers: Mapping[str, Reader]
) -> dict[str, Any]:
    """Check `data`, a mapping, and return it as keyword arguments of `function`.

    readers: functions that read parameters which are not plain data. Raises InvalidInput for an
    unknown or missing parameter and for a value of another type than the parameter's; the function
    itself checks ranges.
    """
    given = read_mapping(data, place)
    parameters = inspect.signature(function, eval_str=True).parameters
    for key in given:
        if key not in parameters:
            raise InvalidInput(f"{place / key} is unknown: {suggest(key, parameters)}")
    for name, parameter in parameters.items():
        if name not in given:
            if parameter.default is inspect.Parameter.empty:
                words = in_words(parameter.annotation)
                raise InvalidInput(f"{place / name} is missing: give {words}")
        elif name in readers:
            given[name] = readers[name](given[name], place / name)
        elif not fits(given[name], parameter.annotation):
            words = in_words(parameter.annotation)
            raise InvalidInput(f"{place / name} is {given[name]!r}: give {words}")
    return given


def read_choice(table: Mapping[str, Callable[..., Any]], data: Any, place: Place) -> NamedChoice:
    """A name in the table, or a mapping with that name under `kind` beside its arguments.

    Raises InvalidInput as `read_arguments` does, and where the function refuses its arguments.
    """
    options = {"kind": data} if isinstance(data, str) else read_mapping(data, place)
    if "kind" not in options:
        raise InvalidInput(f"{place}.kind is missing: use one of {', '.join(table)}")
    kind = options.pop("kind")
    if not isinstance(kind, str) or kind not in table:
        raise InvalidInput(f"{place}.kind is {kind!r}: {suggest(kind, table)}")
    choice = NamedChoice(kind, read_arguments(table[kind], options, place, {}))
    with refusals_at(place):
        choice.build(table)
    return choice


def read_mapping(data: Any, place: Place) -> dict[str, Any]:
    """A deep copy of a mapping whose keys are text."""
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise InvalidInput(f"{place} is {data!r}: give a mapping of names to values")
    copied: dict[str, Any] = _plain(data)
    return copied


@contextmanager
def refusals_at(place: Place) -> Iterator[None]:
    """Turn a ValueError, which InvalidInput is too, into InvalidInput that names the place."""
    try:
        yield
    except ValueError as error:
        raise InvalidInput(f"{place}: {error}") from error


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; a whole number is a number, but no bool is."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if origin is tuple:
        return (
            isinstance(value, list | tuple)
            and len(value) == len(parts)
            and all(map(fits, value, parts))
        )
    if origin is Sequence:
        return isinstance(value, list | tuple) and all(fits(each, parts[0]) for each in value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            fits(key, parts[0]) and fits(each, parts[1]) for key, each in value.items()
        )
    if hint is Any:
        return True
    if origin is Callable:
        return callable(value)
    if hint is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return hint in _WORDS and isinstance(value, hint)


def in_words(hint: Any) -> str:
    """A type in the words of a file's author; types that no file can hold are left out."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(filter(None, dict.fromkeys(map(in_words, parts))))
    if origin is tuple:
        return f"[{', '.join(map(in_words, parts))}]"
    if origin is Sequence:
        return f"a list of {_grouped(parts[0])}"
    if origin is Mapping:
        return f"a mapping of {in_words(parts[0])} to {_grouped(parts[1])}"
    return _WORDS.get(hint, "")


def _grouped(hint: Any) -> str:
    words = in_words(hint)
    return f"({words})" if " or " in words else words


def _plain(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _plain(value) for key, value in data.items()}
    return [_plain(value) for value in data] if isinstance(data, list | tuple) else data


@dataclass(frozen=True)
class Method:
    """A method of pruning.

    keep_zeros: whether existing zeros of the model stay, and count.
    cut: a function that zeroes weights without training, by `batches` batches of inputs; without
        it the Pruner chooses the zeros.
    refit: whether the remaining weights are fitted by least squares on these batches.
    """

    keep_zeros: bool = False
    cut: Callable[..., Any] | None = None
    refit: bool = False
    batches: int = 0


def _gradual(keep_zeros: bool = False) -> Method:
    return Method(keep_zeros)


def _one_shot(keep_zeros: bool = False, refit: bool = False, batches: int = 16) -> Method:
    return Method(keep_zeros, refit=refit, batches=_at_least_one(batches) if refit else 0)


def _second_order(batches: int = 16, damping: float = 0.01) -> Method:
    cut = partial(prune_second_order, damping=damping)
    return Method(keep_zeros=True, cut=cut, batches=_at_least_one(batches))


def _wanda(batches: int = 16, refit: bool = False) -> Method:
    return Method(True, prune_wanda, refit, _at_least_one(batches))


def _at_least_one(batches: int) -> int:
    if batches < 1:
        raise InvalidInput(f"batches={batches}: calibrate with 1 or more")
    return batches


@dataclass(frozen=True)
class LearningRate:
    """The share of the optimizer's rate at a step: a rise, then a cosine from 1 to `final`.

    Raises InvalidInput unless 0 <= final <= 1 and warm_up >= 0.
    """

    final: float = 0.0
    warm_up: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.final <= 1 or self.warm_up < 0:
            raise InvalidInput(
                f"final={self.final}, warm_up={self.warm_up}: choose a share from 0 to 1 and a "
                "number of steps"
            )

    def share(self, step: int, steps: int) -> float:
        rise = min(1.0, (step + 1) / (self.warm_up + 1))
        cosine = 0.5 * (1 + cos(pi * min(step / steps, 1.0)))
        return rise * (self.final + (1 - self.final) * cosine)


def _constant_learning_rate(warm_up: int = 0) -> LearningRate:
    return LearningRate(final=1.0, warm_up=warm_up)


def _group_lasso(
    strength: float, pattern: str = "unstructured", block: tuple[int, int] | None = None
) -> GroupLasso:
    return GroupLasso(strength, choose_pattern(pattern, block))


def _post_training(
    amount: Amount,
    targets: Target | Sequence[Target] | None = None,
    pattern: str = "unstructured",
    block: tuple[int, int] | None = None,
    per_gate: bool | Mapping[str, int] = True,
    dtype: str = "float32",
) -> None:
    """The parameters of the Pruner that methods with a `cut` take: a signature, never called."""


METHODS: dict[str, Callable[..., Method]] = {
    "gradual": _gradual,
    "one-shot": _one_shot,
    "second-order": _second_order,
    "wanda": _wanda,
}
# By the Pruner's parameter.
PARTS: dict[str, dict[str, Callable[..., Any]]] = {
    "schedule": {
        "one-shot": OneShot,
        "cubic": CubicSchedule,
        "constant": ConstantRate,
        "iterative": IterativeSchedule,
    },
    "criterion": {"magnitude": Magnitude, "movement": Movement, "random": Random},
    "regulariser": {"l1": L1, "group-lasso": _group_lasso, "admm": ADMM},
}
_ADAM, _CONSTANT = NamedChoice("adam"), NamedChoice("constant")
LEARNING_RATES: dict[str, Callable[..., LearningRate]] = {
    "constant": _constant_learning_rate,
    "cosine": LearningRate,
}
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"adam": Adam, "adamw": AdamW, "sgd": SGD}
# The same with their first parameter, the weights, filled in; a recipe gives the others.
_OPTIMIZERS_OF_ONE = {
    kind: partial(build, [nn.Parameter(torch.zeros(1))]) for kind, build in OPTIMIZERS.items()
}


@dataclass(frozen=True)
class Training:
    """Length and optimizer of the training before, during and after pruning, by the method.

    clip: the largest norm of all gradients together.
    Raises InvalidInput unless steps >= 1 and clip > 0.
    """

    steps: int
    optimizer: NamedChoice = _ADAM
    learning_rate: NamedChoice = _CONSTANT
    clip: float | None = None

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InvalidInput(f"steps={self.steps}: train for 1 or more, or drop `train`")
        if self.clip is not None and not self.clip > 0:
            raise InvalidInput(f"clip={self.clip}: give a norm above 0, or drop it")

    @classmethod
    def read(cls, data: Any, place: Place) -> "Training | None":
        """A Training from a mapping; None from None."""
        if data is None:
            return None
        readers = {
            "optimizer": partial(read_choice, _OPTIMIZERS_OF_ONE),
            "learning_rate": partial(read_choice, LEARNING_RATES),
        }
        arguments = read_arguments(cls, data, place, readers)
        with refusals_at(place):
            return cls(**arguments)

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "optimizer": self.optimizer.to_dict(),
            "learning_rate": self.learning_rate.to_dict(),
        }


@dataclass(frozen=True)
class Recipe:
    """Everything about a pruning run except the model and its data.

    Make one with `load` or `from_dict`, which check everything.

    Attributes:
        prune: the Pruner's parameters; `schedule`, `criterion` and `regulariser` are NamedChoices
        method: a row of METHODS
        train: steps, optimizer and learning rate, where the method trains
        seed: seed of the order of the batches, and of torch's other random numbers
    """

    prune: Mapping[str, Any]
    method: NamedChoice
    train: Training | None = None
    seed: int = 0

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Recipe":
        """Read a recipe from a YAML file.

        Args:
            path: the file

        Raises:
            DamagedFile: the file is not YAML
            InvalidInput: as `from_dict` does
        """
        try:
            from ruamel.yaml import YAML
            from ruamel.yaml.error import MarkedYAMLError, YAMLError
        except ImportError as error:
            raise MissingDependency(
                "recipes need ruamel.yaml, which cannot be imported: pip install 'sparsejit[torch]'"
            ) from error
        try:
            data = YAML(typ="safe", pure=True).load(Path(path))
        except YAMLError as error:
            problem = str(error)
            if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
                problem = f"line {error.problem_mark.line + 1}: {error.problem}"
            raise DamagedFile(f"{path} is not YAML: {problem}; correct it") from error
        return cls.from_dict(data, file=Path(path).name)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], file: str = "recipe") -> "Recipe":
        """Make a recipe from plain data; `to_dict` returns them.

        Args:
            data: as a recipe's YAML file holds it
            file: the name of the file, for messages

        Raises:
            InvalidInput: unknown, missing and mistyped keys, values out of range, and settings that
                contradict; the message names `file`, the key, the value found and the remedy
        """
        place = Place(file)
        readers: dict[str, Reader] = {
            "prune": read_mapping,
            "method": partial(read_choice, METHODS),
            "train": Training.read,
        }
        arguments = read_arguments(cls, data, place, readers)
        takes = Pruner if METHODS[arguments["method"].kind]().cut is None else _post_training
        parts = {name: partial(read_choice, table) for name, table in PARTS.items()}
        arguments["prune"] = read_arguments(takes, arguments["prune"], place / "prune", parts)
        recipe = cls(**arguments)
        with refusals_at(place / "prune"):
            pruner = recipe.build_pruner()
        with refusals_at(place):
            recipe._check(pruner)
        return recipe

    def to_dict(self) -> dict[str, Any]:
        """Plain data that YAML and JSON can hold."""
        return {
            "method": self.method.to_dict(),
            "prune": {
                name: value.to_dict() if isinstance(value, NamedChoice) else value
                for name, value in self.prune.items()
            },
            "train": None if self.train is None else self.train.to_dict(),
            "seed": self.seed,
        }

    def build_method(self) -> Method:
        method: Method = self.method.build(METHODS)
        return method

    def build_pruner(self) -> Pruner:
        """A Pruner for this run; if the method cuts, one that only keeps the zeros."""
        settings = {
            name: value.build(PARTS[name]) if isinstance(value, NamedChoice) else value
            for name, value in self.prune.items()
        }
        pruner = Pruner(**settings)
        if self.build_method().cut is None:
            return pruner
        # N:M insists on its own amount, which it has reached when the method is done.
        nothing_more = pruner.pattern.amount if isinstance(pruner.pattern, NofM) else 0.0
        return Pruner(**{**settings, "amount": nothing_more})

    def build_optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer | None:
        if self.train is None:
            return None
        chosen = self.train.optimizer
        return OPTIMIZERS[chosen.kind](parameters, **chosen.options)

    def _check(self, pruner: Pruner) -> None:
        if not 0 <= self.seed < 2**64:
            raise InvalidInput(f"seed is {self.seed}: give 0 to 2**64 - 1")
        if self.method.kind == "gradual":
            self._check_gradual(pruner.schedule)
        elif "schedule" in self.prune:
            raise InvalidInput(
                f"prune.schedule is of no use to method {self.method.kind}, which prunes "
                "before any training: drop it, or use method gradual"
            )
        elif isinstance(pruner.criterion, Movement):
            raise InvalidInput(
                f"prune.criterion is movement, and method {self.method.kind} prunes before "
                "any weight moves: use method gradual"
            )

    def _check_gradual(self, schedule: Schedule) -> None:
        if self.train is None:
            raise InvalidInput("train is missing: method gradual prunes while training")
        if "schedule" not in self.prune:
            raise InvalidInput(
                "prune.schedule is missing: say when method gradual prunes, for example "
                f"{{kind: cubic, start: 0, end: {self.train.steps * 2 // 3}}}"
            )
        if schedule.end > self.train.steps:
            raise InvalidInput(
                f"prune.schedule ends at step {schedule.end} and train.steps is "
                f"{self.train.steps}, too few to prune the whole amount: set it to "
                f"{schedule.end} or more"
            )
