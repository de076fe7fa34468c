"""Recipes: round trips, and one clear message for everything that can be wrong in one."""

import io
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from torch import nn

from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.prune import GroupLasso, IterativeSchedule, Movement, Pruner, Random, Recipe
from sparsejit.prune.patterns import BlockPattern
from sparsejit.prune.recipe import OPTIMIZERS, LearningRate

GRADUAL = {
    "method": "gradual",
    "prune": {
        "targets": ["0.weight"],
        "amount": 0.9,
        "schedule": {"kind": "cubic", "start": 0, "end": 60, "every": 10},
    },
    "train": {"steps": 100},
}

SHARE = st.floats(0, 0.99)
COUNT = st.integers(1, 500)
SMALL = st.floats(1e-6, 0.1)
TARGETS = st.sampled_from(["*.weight", ["fc*.weight", "!fc1.*"]])
AMOUNT = SHARE | st.dictionaries(
    st.sampled_from(["rnn.*", "*"]), SHARE | st.lists(SHARE, max_size=4)
)
SHAPE = {
    "pattern": st.sampled_from(["unstructured", "1x8", "1x16", "lane16"]),
    "per_gate": st.booleans() | st.dictionaries(st.just("cell.*"), st.integers(1, 4)),
}


def kind(name: str, needed: dict[str, Any] | None = None, **optional: Any) -> Any:
    """Recipes' mappings with this `kind`, some of them with optional arguments."""
    return st.fixed_dictionaries({"kind": st.just(name), **(needed or {})}, optional=optional)


SCHEDULE = st.one_of(
    kind("one-shot", {"at": COUNT}),
    kind("cubic", {"start": st.just(0), "end": COUNT}, every=COUNT),
    kind("constant", {"start": st.just(0), "end": COUNT}),
    kind(
        "iterative",
        {"rounds": st.integers(1, 3), "length": COUNT},
        rewind_to=st.just(0),
        rewind_weights=st.booleans(),
    ),
)
TRAIN = st.fixed_dictionaries(
    {"steps": st.just(1500)},
    optional={
        "optimizer": st.one_of(
            st.sampled_from(sorted(OPTIMIZERS)),
            kind("adam", lr=SMALL, betas=st.tuples(SHARE, SHARE), fused=st.none()),
            kind("sgd", momentum=SHARE, weight_decay=SMALL),
        ),
        "learning_rate": st.one_of(
            st.just("constant"), kind("cosine", final=SHARE, warm_up=st.integers(0, 9))
        ),
        "clip": st.none() | SMALL,
    },
)
CUT_BY_PRUNER = {
    **SHAPE,
    "keep_diagonal": st.lists(st.just("rnn.*")),
}
RECIPES = st.one_of(
    st.fixed_dictionaries(
        {
            "method": st.just("gradual") | kind("gradual", keep_zeros=st.booleans()),
            "prune": st.fixed_dictionaries(
                {"targets": TARGETS, "amount": AMOUNT, "schedule": SCHEDULE},
                optional={
                    **CUT_BY_PRUNER,
                    "criterion": st.just("movement") | kind("random", seed=COUNT),
                    "regulariser": st.one_of(
                        kind("l1", {"strength": SMALL}),
                        kind("group-lasso", {"strength": SMALL}, pattern=st.just("1x8")),
                        kind("admm", rho=SMALL, every=COUNT),
                    ),
                },
            ),
            "train": TRAIN,
        },
        optional={"seed": COUNT},
    ),
    st.fixed_dictionaries(
        {
            "method": kind("one-shot", refit=st.booleans(), batches=COUNT),
            "prune": st.fixed_dictionaries(
                {"targets": TARGETS, "amount": SHARE, "block": st.tuples(COUNT, COUNT)},
                optional={"allocation": st.sampled_from(["uniform", "global", "lamp", "erk"])},
            ),
        },
        optional={"train": TRAIN | st.none()},
    ),
    st.fixed_dictionaries(
        {
            "method": kind("second-order", batches=COUNT, damping=SMALL)
            | kind("wanda", refit=st.booleans()),
            "prune": st.fixed_dictionaries({"targets": TARGETS, "amount": AMOUNT}, optional=SHAPE),
        },
        optional={"train": TRAIN},
    ),
)


@given(data=RECIPES)
@settings(max_examples=300)
def test_a_recipe_is_its_data_also_through_yaml(data: dict[str, Any]) -> None:
    recipe = Recipe.from_dict(data)
    plain = recipe.to_dict()
    assert Recipe.from_dict(plain) == recipe
    assert Recipe.from_dict(plain).to_dict() == plain
    yaml, text = YAML(typ="safe", pure=True), io.StringIO()
    yaml.dump(plain, text)
    assert Recipe.from_dict(yaml.load(text.getvalue())) == recipe


def test_data_becomes_the_objects_it_names() -> None:
    recipe = Recipe.from_dict(
        {
            "method": "gradual",
            "prune": {
                "targets": "weight",
                "amount": 0.5,
                "block": [4, 2],
                "schedule": {"kind": "iterative", "rounds": 2, "length": 10},
                "criterion": "movement",
                "regulariser": {"kind": "group-lasso", "strength": 0.1, "pattern": "1x16"},
            },
            "train": {"steps": 20, "optimizer": {"kind": "sgd", "lr": 0.5, "momentum": 0.9}},
        }
    )
    pruner = recipe.build_pruner()
    assert pruner.pattern == BlockPattern(4, 2)
    assert pruner.schedule == IterativeSchedule(rounds=2, length=10)
    assert isinstance(pruner.criterion, Movement)
    assert isinstance(pruner.regulariser, GroupLasso)
    assert pruner.regulariser.pattern == BlockPattern(16, 1)
    optimizer = recipe.build_optimizer(nn.Linear(2, 2).parameters())
    assert isinstance(optimizer, torch.optim.SGD)
    assert (optimizer.defaults["lr"], optimizer.defaults["momentum"]) == (0.5, 0.9)
    # State is not shared between runs of one recipe.
    assert recipe.build_pruner().criterion is not pruner.criterion


def test_a_recipe_does_not_change_with_the_data_it_was_made_from() -> None:
    data = {"method": "one-shot", "prune": {"targets": ["a"], "amount": {"a": [0.1, 0.2]}}}
    recipe = Recipe.from_dict(data)
    data["prune"]["targets"].append("b")
    data["prune"]["amount"]["a"][0] = 0.9
    assert recipe.to_dict()["prune"] == {"targets": ["a"], "amount": {"a": [0.1, 0.2]}}


def test_yaml_is_that_of_2009_not_of_2005(tmp_path: Path) -> None:
    """1e-3 is a number and 2:4 is text, as they look."""
    file = tmp_path / "r.yaml"
    file.write_text(
        "method: one-shot\nprune: {targets: ['*'], amount: 0.5, pattern: 2:4}\n"
        "train: {steps: 5, optimizer: {kind: adam, lr: 1e-3}}\n"
    )
    recipe = Recipe.load(file)
    assert recipe.prune["pattern"] == "2:4"
    assert recipe.train is not None and recipe.train.optimizer.options == {"lr": 1e-3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1, 2", r"r.yaml is not YAML: line 1: expected .* got .*; correct it"),
        ("a: 1\na: 2", r'r.yaml is not YAML: line 2: found duplicate key "a"'),
        ("a: !!python/object/apply:os.getcwd []", r"line 1: could not determine a constructor"),
        ("a: 1\n---\nb: 2", r"line 2: but found another document"),
    ],
)
def test_text_that_is_not_yaml_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(text)
    with pytest.raises(DamagedFile, match=message):
        Recipe.load(file)


def changed(path: str, value: Any) -> dict[str, Any]:
    """GRADUAL with another value at a dotted path, or without it where the value is None."""

    def replaced(data: Any, keys: list[str]) -> Any:
        if not keys:
            return value
        copy = dict(data)
        copy[keys[0]] = replaced(copy.get(keys[0], {}), keys[1:])
        return {key: each for key, each in copy.items() if each is not None}

    result: dict[str, Any] = replaced(GRADUAL, path.split("."))
    return result


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("methud", "gradual", "methud is unknown: did you mean 'method'?"),
        ("method", None, "method is missing"),
        ("method", "grad", "method.kind is 'grad': did you mean 'gradual'?"),
        ("method", "xyz", "method.kind is 'xyz': use one of gradual, one-shot, second-order"),
        ("method", 3, "method is 3: give a mapping of names to values"),
        ("method", {}, "method.kind is missing: use one of gradual"),
        ("method", {"kind": "wanda", "batches": 0}, "method: batches=0: calibrate with 1 or more"),
        ("seed", 1.5, "seed is 1.5: give a whole number"),
        ("seed", -1, "seed is -1: give 0 to 2**64 - 1"),
        ("seed", 2**64, "seed is 18446744073709551616: give 0 to 2**64 - 1"),
        ("prune", [], "prune is []: give a mapping"),
        ("prune.patern", "1x8", "prune.patern is unknown: did you mean 'pattern'?"),
        ("prune.amount", 1.5, "prune: amount=1.5 is outside [0, 1): give the share to prune"),
        ("prune.amount", float("nan"), "prune: amount=nan is outside [0, 1)"),
        ("prune.amount", "x", "prune.amount is 'x': give a number or a mapping of text to (a numb"),
        ("prune.amount", {"*": [0.5, True]}, "prune.amount is {'*': [0.5, True]}: give"),
        ("prune.targets", [], "prune: targets is empty: name weights"),
        ("prune.dtype", "float8", "prune: dtype 'float8' is unknown; use one of float32, bfloat16"),
        ("prune.pattern", "9x9", "prune: pattern='9x9' is unknown: use one of unstructured, 1x8"),
        ("prune.block", [8], "prune.block is [8]: give [a whole number, a whole number]"),
        ("prune.per_gate", 3, "prune.per_gate is 3: give true or false or a mapping of text to a"),
        ("prune.schedule", None, "prune.schedule is missing: say when method gradual prunes"),
        ("prune.schedule.kind", "cubical", "prune.schedule.kind is 'cubical': did you mean 'cubi"),
        ("prune.schedule.end", None, "prune.schedule.end is missing: give a whole number"),
        ("prune.schedule.end", 60.0, "prune.schedule.end is 60.0: give a whole number"),
        ("prune.schedule.end", 0, "prune.schedule: CubicSchedule got start=0, end=0: choose 0 <="),
        ("prune.schedule.end", 101, "prune.schedule ends at step 101 and train.steps is 100"),
        ("prune.criterion", "moment", "prune.criterion.kind is 'moment': did you mean 'movement'?"),
        ("prune.regulariser", {"kind": "l1"}, "prune.regulariser.strength is missing: give a num"),
        ("prune.regulariser", {"kind": "admm", "rho": 0}, "prune.regulariser: ADMM got rho=0"),
        ("train", None, "train is missing: method gradual prunes while training"),
        ("train.steps", True, "train.steps is True: give a whole number"),
        ("train.steps", 0, "train: steps=0: train for 1 or more"),
        ("train.clip", -1, "train: clip=-1: give a norm above 0"),
        ("train.optimizer", "lion", "train.optimizer.kind is 'lion': use one of adam, adamw, sgd"),
        ("train.optimizer", {"kind": "adam", "lr": "x"}, "train.optimizer.lr is 'x': give"),
        ("train.optimizer", {"kind": "adam", "lr": -1}, "train.optimizer: Invalid learning rate"),
        ("train.optimizer", {"kind": "sgd", "params": []}, "train.optimizer.params is unknown"),
        ("train.learning_rate", {"kind": "cosine", "final": 2}, "train.learning_rate: final=2"),
    ],
)
def test_the_message_names_file_key_value_and_remedy(path: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^r\.yaml: {re.escape(message)}"):
        Recipe.from_dict(changed(path, value), file="r.yaml")


@pytest.mark.parametrize(
    ("method", "extra", "message"),
    [
        ("one-shot", {"schedule": "one-shot"}, r"prune\.schedule is of no use to method one-shot"),
        ("one-shot", {"criterion": "movement"}, r"prune\.criterion is movement.*use method grad"),
        ("one-shot", {"regulariser": "admm"}, "before the regulariser can act"),
        ("wanda", {"schedule": "one-shot"}, r"prune\.schedule is unknown: use one of amount"),
        ("second-order", {"allocation": "lamp"}, r"prune\.allocation is unknown"),
        ("second-order", {"pattern": "2:4"}, r"amount=0.9 contradicts pattern='2:4': give 0.5"),
    ],
)
def test_options_without_use_for_a_method_are_refused(
    method: str, extra: dict[str, Any], message: str
) -> None:
    prune = {"targets": ["0.weight"], "amount": 0.9, **extra}
    with pytest.raises(InvalidInput, match=message):
        Recipe.from_dict({"method": method, "prune": prune})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


def paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """To every value in nested mappings and lists."""
    found = [path]
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            found += paths(value, (*path, key))
    return found


@given(data=RECIPES, value=JSON, choice=st.randoms())
@settings(max_examples=300)
def test_whatever_is_wrong_is_invalid_input(data: Any, value: Any, choice: Any) -> None:
    """Any one value replaced by any other: a recipe still, or InvalidInput, and nothing else."""
    plain = Recipe.from_dict(data).to_dict()
    *parents, key = choice.choice(paths(plain)[1:])
    holder = plain
    for parent in parents:
        holder = holder[parent]
    holder[key] = value
    with suppress(InvalidInput):
        Recipe.from_dict(plain)


def test_only_mappings_are_recipes() -> None:
    for data in (None, [1], "text", {1: 2}):
        with pytest.raises(InvalidInput, match="give a mapping of names to values"):
            Recipe.from_dict(data)  # type: ignore[arg-type]


@pytest.mark.parametrize("build", [dict, Random])
def test_python_objects_are_refused(build: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInput, match=r"prune\.criterion"):
        Recipe.from_dict(changed("prune.criterion", build()))


@given(final=SHARE, warm_up=st.integers(0, 50), steps=COUNT)
def test_the_learning_rate_rises_then_falls_to_its_end(
    final: float, warm_up: int, steps: int
) -> None:
    rate = LearningRate(final, warm_up)
    shares = [rate.share(step, steps) for step in range(steps + 1)]
    assert max(shares) <= 1
    assert shares[0] == pytest.approx(1 / (warm_up + 1))
    after = shares[warm_up:]
    assert after == sorted(after, reverse=True)
    if steps > warm_up:
        assert shares[-1] == pytest.approx(final, abs=1e-12)


def test_a_pruner_that_only_holds_zeros_prunes_nothing_more() -> None:
    for pattern, amount in (("1x8", 0.5), ("2:4", 0.5)):
        prune = {"targets": "weight", "amount": amount, "pattern": pattern}
        layer = nn.Linear(8, 16)
        Pruner(**prune).prepare(layer)
        zeros = layer.weight == 0
        recipe = Recipe.from_dict({"method": "wanda", "prune": prune})
        recipe.build_pruner().prepare(layer, keep_zeros=True)
        assert torch.equal(layer.weight == 0, zeros)
