"""The number of nodes that whole models keep after all passes."""

from collections import Counter

import numpy as np
from sketch import Sketch, applied, kinds

from sparsejit.ir.ops.convolution import Convolution, Pooling, PoolingKind
from sparsejit.ir.ops.pointwise import Chain
from sparsejit.ir.ops.products import Bmm, Linear
from sparsejit.ir.ops.recurrent import Recurrence, RecurrentCell
from sparsejit.ir.ops.row_chains import layer_norm, log_softmax, softmax
from sparsejit.ir.ops.selection import Embedding
from sparsejit.ir.ops.views import Concat, Expand, Permute, Reshape, Slice
from sparsejit.ir.spec import Activation
from sparsejit.ir.values import Element, Value
from sparsejit.passes.default import run_passes

BATCH, TIME, WIDE, HEADS = 2, 5, 16, 4
ROWS = (BATCH, TIME, WIDE)


def norm(s: Sketch, x: Value) -> Value:
    numbers = [s.constant(np.float32(1 / WIDE)), s.constant(np.float32(1e-5))]
    return s(layer_norm(x.shape, True, True), x, *numbers, s.weight(WIDE), s.weight(WIDE))


def dense(s: Sketch, x: Value, out: int) -> Value:
    return s(Linear(), x, s.weight(out, x.shape[-1]), s.weight(out))


def attention(s: Sketch, x: Value) -> Value:
    """As torch writes it: one product for q, k and v, then heads side by side."""
    split = s(Reshape((BATCH, TIME, 3, HEADS, WIDE // HEADS)), dense(s, x, 3 * WIDE))
    turned = s(Permute((2, 0, 3, 1, 4)), split)
    q, k, v = (s(Reshape(turned.shape[1:]), s(Slice(0, i, i + 1), turned)) for i in range(3))
    scores = s("mul", s(Bmm(transposed=True), q, k), s.constant(0.5))
    mask = s.constant(np.where(np.tri(TIME), 0.0, -1e9))
    masked = s("add", scores, s(Expand(scores.shape), mask))
    heads = s(Bmm(), s(softmax(scores.shape), masked), v)
    return dense(s, s(Reshape(ROWS), s(Permute((0, 2, 1, 3)), heads)), WIDE)


def gelu(s: Sketch, x: Value) -> Value:
    half = s("mul", x, s.constant(0.5))
    return s("mul", half, s("add", s("erf", s("mul", x, s.constant(2**-0.5))), s.constant(1.0)))


def test_a_transformer_encoder_keeps_one_chain_a_step() -> None:
    s, layers = Sketch(), 4
    x = s.input(*ROWS)
    for _ in range(layers):
        x = s("add", x, attention(s, norm(s, x)))
        x = s("add", x, dense(s, gelu(s, dense(s, norm(s, x), 32)), WIDE))
    counts = Counter(kinds(applied(run_passes, s.finish(norm(s, x)))))
    assert counts["Linear"] == 4 * layers
    assert counts["Attention"] == layers and not counts["Bmm"]
    chains = sum(n for name, n in counts.items() if name[0].islower())
    # The first norm; a layer's gelu, and twice a sum with the norm behind it.
    assert chains == 1 + 3 * layers


def test_a_mobile_net_keeps_its_convolutions_which_clamp() -> None:
    s = Sketch()
    x = s.input(2, 3, 8, 8)
    for channels, groups, size in ((8, 1, 3), (8, 8, 3), (16, 1, 1)):
        op = Convolution((1, 1), (size // 2,) * 2, (1, 1), groups)
        x = s(op, x, s.weight(channels, x.shape[1] // groups, size, size))
        x = s("sub", x, s.weight(channels, 1, 1))
        x = s("add", s("mul", x, s.weight(channels, 1, 1)), s.weight(channels, 1, 1))
        x = s("minimum", s("maximum", x, s.constant(0.0)), s.constant(6.0))
    pool = Pooling(PoolingKind.AVERAGE, (8, 8), (8, 8), ((0, 0),) * 2, (1, 1))
    graph = s.finish(dense(s, s(Reshape((2, 16)), s(pool, x)), 10))
    after = applied(run_passes, graph)
    assert kinds(after) == ["Convolution"] * 3 + ["Pooling", "Reshape", "Linear"]
    clamps = [node.op.activation for node in after.nodes if isinstance(node.op, Convolution)]
    assert clamps == [Activation.RELU6] * 3


def test_a_gru_tagger_keeps_its_layers() -> None:
    s, hidden = Sketch(), 8
    indices = s.constant(np.arange(BATCH * TIME).reshape(BATCH, TIME) % 7)
    x = s("add", s.input(BATCH, TIME, WIDE), s(Embedding(), indices, s.weight(7, WIDE)))
    x = s(Permute((1, 0, 2)), x)
    both = []
    for reverse in (False, True):
        state = s(Expand((BATCH, hidden)), s.constant(np.zeros((1, 1))))
        op = Recurrence(RecurrentCell.GRU, reverse)
        gates = dense(s, x, 3 * hidden)
        both.append(s(op, gates, state, s.weight(3 * hidden, hidden), s.weight(3 * hidden)))
    y = dense(s, s(Permute((1, 0, 2)), s(Concat(-1), *both)), 5)
    after = applied(run_passes, s.finish(s(log_softmax(y.shape), y)))
    counts = Counter(kinds(after))
    assert counts == Counter(
        {"Linear": 3, "Recurrence": 2, "Permute": 2, "Concat": 1, "add": 1, "log_softmax": 1}
    )


def test_a_wide_and_deep_net_keeps_its_products() -> None:
    s = Sketch()
    users = s.input(1, element=Element.INT64)
    user = s(Embedding(), users, s.weight(9, 32))
    item = s.input(1, 32)
    left, right = s(Reshape((1, 1, 32)), user), s(Reshape((1, 32, 1)), item)
    score = s(Reshape((1, 1)), s(Bmm(), left, right))
    wide = s("mul", s("add", s.input(1, 50), s.weight(50)), s.weight(50))
    wide = s("minimum", s("maximum", wide, s.constant(0.0)), s.constant(10.0))
    graph = s.finish(s("sigmoid", dense(s, s(Concat(-1), score, wide), 1)))
    after = run_passes(graph)
    counts = Counter(kinds(after))
    chains = [node.op.title for node in after.nodes if isinstance(node.op, Chain)]
    assert len(chains) == 2 and chains[-1] == "sigmoid"
    assert counts["Bmm"] == counts["Concat"] == counts["Linear"] == 1
