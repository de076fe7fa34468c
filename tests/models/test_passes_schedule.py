"""The order of nodes and the memory that it needs."""

from sketch import Sketch, applied, kinds

from sparsejit.ir.ops.pointwise import Chain, ChainStep
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.views import Reshape
from sparsejit.ir.values import Value
from sparsejit.passes.schedule import order_for_memory, peak_bytes


def row_sum(s: Sketch, x: Value) -> Value:
    return s(Chain(x.shape, 1, (ChainStep("row_sum", (0,)),), (1,), "sum"), x)


def test_nodes_that_free_memory_come_first() -> None:
    s = Sketch()
    x = s.input(4, 8)
    wide = [s(Linear(), x, s.weight(100, 8)) for _ in range(3)]
    graph = s.finish(s("add", s("add", *(row_sum(s, y) for y in wide[:2])), row_sum(s, wide[2])))
    after = applied(order_for_memory, graph)
    assert kinds(after)[:4] == ["Linear", "sum", "Linear", "sum"]
    one = 4 * 4 * 100
    assert peak_bytes(graph) == 3 * one + 4 * 4
    assert peak_bytes(after) == one + 4 * 4 * 2
    assert order_for_memory(after) is after


def test_a_reshape_holds_no_memory_and_outputs_are_the_callers() -> None:
    for reader, held in (("neg", 4 * 32), (None, 0)):
        s = Sketch()
        y = s(Reshape((32,)), s("exp", s.input(4, 8)))
        assert peak_bytes(s.finish(s(reader, y) if reader else y)) == held
