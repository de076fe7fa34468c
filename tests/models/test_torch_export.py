"""Inputs and outputs of an export, besides the numbers."""

from __future__ import annotations

import copy
import json
import logging
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune
from torch_models import MODELS, Written, checked, encoder, in_float64

import sparsejit
from sparsejit.errors import InvalidInput, UnsupportedOperator
from sparsejit.frontends import nesting
from sparsejit.frontends.torch_export import export, graph_of
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.values import Origin

Pair = namedtuple("Pair", "first second")


def masked_linear() -> nn.Module:
    layer = nn.Linear(8, 4)
    prune.l1_unstructured(layer, "weight", 0.5)
    return layer


def test_a_mask_and_keyword_arguments() -> None:
    mask = torch.tensor([[False] * 4 + [True] * 2] * 2)
    assert checked(encoder(), torch.randn(2, 6, 16), src_key_padding_mask=mask).batch_is_free


def test_masked_weights_need_no_product_when_the_model_runs() -> None:
    graph = checked(masked_linear(), torch.randn(2, 8)).graph()
    assert [type(node.op) for node in graph.nodes] == [Linear]
    assert (graph.constants[graph.nodes[0].inputs[1]] == 0).mean() == 0.5


def test_values_say_where_they_come_from() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.out(torch.relu(x))

    model = Written(forward, out=nn.Linear(4, 2))
    graph = export(model.eval(), (torch.randn(3, 4),), {}, True).graph()
    line = forward.__code__.co_firstlineno + 1
    source, code = f"test_torch_export.py:{line}", "return m.out(torch.relu(x))"
    assert graph.outputs[0].origin == Origin("linear", "out", source, code)
    assert {value.origin.name for value in graph.constants} == {"out.weight", "out.bias"}


def writes_into_parts(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 0] = 1.0
    functional.relu_(y).add_(3)
    return y


def test_in_place_writes_into_parts_are_kept() -> None:
    assert checked(Written(writes_into_parts), torch.randn(3, 4)).batch_is_free


def test_missing_operators_are_listed_with_the_users_lines() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.special.airy_ai(x)
        return y.sum() + torch.special.bessel_j0(x) + torch.rand(4)

    with pytest.raises(UnsupportedOperator) as raised:
        export(Written(forward), (torch.randn(3, 4),), {}, True)
    line = forward.__code__.co_firstlineno
    code = "y.sum() + torch.special.bessel_j0(x) + torch.rand(4)"
    assert str(raised.value) == (
        "3 operators of this model cannot be compiled:\n"
        f"  aten.special_airy_ai.default  # test_torch_export.py:{line + 1}"
        ": y = torch.special.airy_ai(x)\n"
        "  aten.special_bessel_j0.default (needs prims.bessel_j0.default)"
        f"  # test_torch_export.py:{line + 2}: return {code}\n"
        f"  aten.rand.default (draws random numbers)  # test_torch_export.py:{line + 2}"
        f": return {code}\n"
        'leave them to torch with torch.compile(model, backend="sparsejit")'
    )


def test_training_mode_warns_and_stays() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    model[2].eval()
    before = copy.deepcopy(model.state_dict())
    with pytest.warns(UserWarning, match="training mode"):
        export(model, (torch.randn(3, 4),), {}, True)
    assert [module.training for module in model] == [True, True, False] and model.training
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_models_of_other_floats_are_computed_in_float32(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.GELU(), nn.LayerNorm(4)).to(dtype).eval()
    x = torch.randn(3, 8)
    graph = export(model, (x.to(dtype),), {}, True).graph()
    (result,) = graph.evaluate([x.numpy()])
    unit = max(1e-6, torch.finfo(dtype).eps)  # the result is rounded, the input is not
    np.testing.assert_allclose(result, in_float64(model, (x,), {})[0], rtol=unit, atol=unit)
    kinds = {v.type.element.value for v in graph.values()}
    assert kinds == {"float32"}


def test_whole_numbers_between_ends_that_a_call_gives_are_refused() -> None:
    """torch's own decomposition rounds them in float32 before it truncates."""
    class Between(torch.nn.Module):
        def forward(self, first: torch.Tensor) -> torch.Tensor:
            return torch.linspace(first, 4, 50, dtype=torch.int64)

    with pytest.raises(UnsupportedOperator, match=r"aten\.linspace\.Tensor_Scalar"):
        export(Between(), (torch.tensor(-3),))


def test_decomposed_programs_are_taken_too() -> None:
    model, inputs = MODELS["bottleneck"]()
    free = ({0: torch.export.Dim("n")},)
    program = torch.export.export(model.eval(), inputs, dynamic_shapes=free)
    exported = export(program.run_decompositions(), (), {}, True)
    (result,) = exported.graph(2).evaluate([inputs[0].numpy()])
    np.testing.assert_allclose(result, in_float64(model, inputs, {})[0], rtol=1e-5, atol=1e-6)
    assert exported.batch_is_free


def test_graphs_that_torch_compile_gives() -> None:
    from torch._dynamo.backends.common import aot_autograd

    model, inputs = MODELS["encoder"]()
    graphs = []

    def compiler(module: Any, _: Any) -> Any:
        graphs.append(graph_of(module, {}))
        return module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        backend = aot_autograd(fw_compiler=compiler, inference_compiler=compiler)
        torch.compile(model.eval(), backend=backend)(*inputs)
    (graph,) = graphs
    assert len(graph.inputs) == 1 + len(list(model.parameters()))


@pytest.mark.parametrize(
    ("model", "inputs", "words"),
    [
        (lambda x: x, (torch.randn(2),), "the model is a function; give a torch.nn.Module"),
        (nn.Linear(4, 2), (torch.randn(2, 5),), r"cannot export this Linear: [^<]+; try"),
        (Written(lambda m, x: x * 2), (torch.zeros(2, dtype=torch.complex32),), "complex32"),
    ],
)
def test_what_is_no_model_is_refused(model: Any, inputs: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        export(model, inputs, {}, True)


def by_number(m: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum() > 0 else x


def by_size(m: Any, x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].reshape(-1, 2)[:3].sum(0) if len(x[x > 0]) > 2 else x


def by_count(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(int(x.sum())).view(-1, 2) + 1


@pytest.mark.parametrize("forward", [by_number, by_size, by_count])
@pytest.mark.parametrize("free_batch", [True, False])
def test_values_that_decide_a_size_or_a_branch_are_refused_with_the_line(
    forward: Any, free_batch: bool, caplog: pytest.LogCaptureFixture
) -> None:
    line = f"{Path(__file__).name}:{forward.__code__.co_firstlineno + 1}: return "
    with pytest.raises(InvalidInput, match=f"depends on values of a tensor, at {line}"):
        export(Written(forward).eval(), (torch.rand(4, 3),), {}, free_batch)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("forward", "operator"),
    [
        (lambda m, x: torch.native_group_norm(x, None, None, 3, 4, 1, 2, 1e-5)[1], "group_norm"),
        (lambda m, x: functional.multilabel_margin_loss(x, (x > 0).long()), "multilabel_margin"),
        (lambda m, x: functional.multi_margin_loss(x[0], (x[0, 0] > 0).long()), "multi_margin"),
    ],
)
def test_options_that_an_operator_does_not_compute_are_refused_by_name(
    forward: Any, operator: str
) -> None:
    with pytest.raises(UnsupportedOperator, match=operator):
        sparsejit.compile(Written(forward).eval(), (torch.rand(3, 4),))


def grows(m: Any, x: torch.Tensor) -> None:
    m.state = torch.cat([m.state, x])


def starts(m: Any, x: torch.Tensor) -> None:
    m.empty = x if m.empty is None else m.empty + x


def adds_to_an_attribute(m: Any, x: torch.Tensor) -> None:
    m.own += 1


def assigns_an_attribute(m: Any, x: torch.Tensor) -> None:
    m.own = m.own + x


def starts_an_attribute(m: Any, x: torch.Tensor) -> None:
    m.plain = x if m.plain is None else m.plain + x


def replaces_data(m: Any, x: torch.Tensor) -> None:
    m.state.data = m.state + x


def adds_to_a_parameter(m: Any, x: torch.Tensor) -> None:
    m.weight.add_(1)


def counts_in_an_attribute(m: Any, x: torch.Tensor) -> None:
    m.count = m.count + 1
    m.state += m.count


def counts_in_a_list(m: Any, x: torch.Tensor) -> None:
    m.list.append(1)
    m.state += len(m.list)


@pytest.mark.parametrize(
    ("change", "name", "remedy"),
    [
        (grows, "state", "keep one size"),
        (starts, "empty", "give it a value"),
        (adds_to_an_attribute, "own", "register it as a buffer"),
        (assigns_an_attribute, "own", "register it as a buffer"),
        (starts_an_attribute, "plain", "register it as a buffer"),
        (adds_to_a_parameter, "weight", "register it as a buffer"),
        (counts_in_an_attribute, "count", "register it as a buffer"),
        (counts_in_a_list, "a list or a dict", "register it as a buffer"),
        (replaces_data, "state", r"write it by copy_\(\)"),
    ],
)
def test_a_model_that_changes_itself_is_refused(change: Any, name: str, remedy: str) -> None:
    """By the name of the tensor, also where torch cannot open its batch."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        change(m, x)
        held = m.state, m.empty, m.own, m.plain
        return sum((each for each in held if each is not None), x)

    model = Written(forward).eval()
    model.register_buffer("state", torch.zeros(1, 3))
    model.register_buffer("empty", None)
    model.own, model.plain = torch.zeros(1, 3), None
    model.count, model.list, model.weight = 0, [], nn.Parameter(torch.ones(3, 3))
    with pytest.raises(InvalidInput, match=f"changes '{name}' while it runs.*; {remedy}"):
        sparsejit.compile(model, (torch.randn(1, 3),))


def test_a_layer_that_carries_state_is_refused() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.last = x if m.last is None else m.last + x
        return m.last

    layer = Written(forward)
    layer.last = None
    model = nn.Sequential(nn.Linear(3, 3), layer, nn.ReLU(), layer).eval()
    with pytest.raises(InvalidInput, match="changes 'last' while it runs; register it as a buffer"):
        sparsejit.compile(model, (torch.randn(1, 3),))


def test_a_model_that_keeps_tensors_for_itself_is_compiled() -> None:
    """A table that it makes at the first call, and its last result."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        if m.table is None:
            m.table = torch.arange(3.0).cos()
        m.last = x * m.table
        return m.last

    model = Written(forward).eval()
    model.table = model.last = None
    x = torch.randn(2, 3)
    fast = sparsejit.compile(model, (x,))
    assert model.table is None and model.last is None
    torch.testing.assert_close(fast(x), model(x))


def test_nests_of_inputs_and_outputs() -> None:
    def forward(m: Any, d: dict[str, Any], factor: int) -> Any:
        return {"sum": d["a"] + d["b"][0] * factor, "pair": Pair(d["a"] * 2, None)}

    first, second = torch.randn(3, 4), torch.randn(3, 4)
    given_inputs = {"a": first, "b": [second]}
    exported = checked(Written(forward), given_inputs, 2)
    outputs = exported.graph().evaluate([first.numpy(), second.numpy()])
    results = nesting.unflatten(exported.output_tree, outputs)
    assert type(results["pair"]) is Pair and results["pair"].second is None
    np.testing.assert_allclose(results["sum"], (first + 2 * second).numpy(), rtol=1e-6)
    for tree in (exported.input_tree, exported.output_tree):
        described = json.loads(json.dumps(nesting.to_json(tree)))
        assert nesting.from_json(described, "model.sjit") == tree
    with pytest.raises(InvalidInput, match=r"inputs\[0\]\[1\] is 3, but .* compiled for 2"):
        nesting.flatten(exported.input_tree, ((given_inputs, 3), {}), "inputs")


def test_one_tensor_given_as_two_inputs() -> None:
    x = torch.randn(3, 4)
    for given in (x, x.numpy()):
        exported = export(Written(lambda m, a, b: a - 2.0 * b), (given, given))
        a, b = np.ones((3, 4), np.float32), np.full((3, 4), 5.0, np.float32)
        (result,) = exported.graph().evaluate([a, b])
        assert np.array_equal(result, a - 2.0 * b)
        named = export(Written(lambda m, pair: pair["a"] - pair["b"]), ({"a": x, "b": x[:]},))
        (result,) = named.graph().evaluate([a, b])
        assert np.array_equal(result, a - b)


def test_inputs_that_a_model_changes_stay_as_they_are() -> None:
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)).eval()
    x = torch.randn(3, 4)
    with pytest.warns(UserWarning, match=r"changes its input 'input' in place.*inplace=False") as w:
        compiled = sparsejit.compile(model, (x,))
    assert len(w) == 1 and w[0].filename == __file__
    given = x.clone()
    result = compiled(given)
    assert torch.equal(given, x) and compiled.batch_is_free
    np.testing.assert_allclose(result, model(x).detach(), rtol=1e-5, atol=1e-6)


def test_a_warning_names_the_line_that_compiles() -> None:
    with pytest.warns(UserWarning, match="training mode") as warned:
        sparsejit.compile(nn.Linear(4, 2), (torch.randn(1, 4),))
    assert [each.filename for each in warned] == [__file__]


def zeroes_what_is_expanded(m: Any, x: torch.Tensor) -> torch.Tensor:
    return (x + 1).unsqueeze(1).expand(-1, 2).zero_() + 1


def test_programs_with_changes_in_place_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It writes an expanded tensor as a sum of its elements, and raises errors of any type."""
    with pytest.raises(InvalidInput, match=r"zero_.* changes expand in place, .* a clone\(\)"):
        export(Written(zeroes_what_is_expanded), (torch.ones(4),))

    def fails(*_: Any) -> Any:
        raise NotImplementedError("no such operator")

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", fails)
    with pytest.raises(InvalidInput, match=r"no such operator; .* return a new tensor"):
        export(Written(writes_into_parts), (torch.ones(2, 4),))


class RepeatedAsAnInputSays(torch.nn.Module):
    def forward(self, x: torch.Tensor, repeats: torch.Tensor) -> torch.Tensor:
        return torch.repeat_interleave(x, repeats, dim=1) * 1.5


def test_a_size_that_values_decide_is_refused() -> None:
    inputs = torch.ones(2, 3), torch.tensor([1, 0, 2])
    with pytest.raises(UnsupportedOperator, match="which leaves the size open"):
        export(RepeatedAsAnInputSays().eval(), inputs)


def writes_into_chosen_rows(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    chosen = x[x.sum(1) > 0]
    wide = chosen.clone()
    wide[:, 1] = 0
    return wide + chosen


def test_a_write_into_a_tensor_whose_size_values_decide() -> None:
    model = Written(writes_into_chosen_rows).eval()
    fast = sparsejit.compile(model, (torch.ones(5, 3),))
    for seed in range(3):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(fast(x), model(x))


class Keeper(nn.Module):
    """Keeps its last result as an attribute, which is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(1, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x + self.last
        return self.last * 1


def test_a_state_in_an_attribute_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"assigns self\.last .*input and return it") as warned:
        sparsejit.compile(Keeper().eval(), (torch.zeros(1, 4),))
    assert [Path(each.filename).name for each in warned] == [Path(__file__).name]
