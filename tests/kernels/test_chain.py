"""Chains against their float64 references: structure exactly, functions within their errors."""

import numpy as np
import pytest
from chain_checks import (
    EXACT,
    LENGTHS,
    Array,
    Operand,
    expected,
    floats,
    image_of,
    is_exact,
    lowered,
    run,
    step,
)
from disassembly import decode
from hypothesis import given, settings
from hypothesis import strategies as st
from iced_x86 import EncodingKind
from runnable import LEVELS

from sparsejit.asm_templates.pointwise.row_chain import MOST_OPERANDS
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.ir.ops.pointwise import FUNCTIONS, ROW_REDUCTIONS, Chain, ChainStep
from sparsejit.ir.ops.row_chains import layer_norm, log_softmax, rms_norm, softmax
from sparsejit.ir.values import Element
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.runtime.guard_pages import EDGES
from sparsejit.selftest.calling_convention import PATTERNS, Checker

QUESTIONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
LOGIC = ("logical_and", "logical_or", "logical_not")
isas = pytest.mark.parametrize("isa", LEVELS)


@st.composite
def operands_of(draw: st.DrawFn, shape: tuple[int, ...]) -> Operand:
    """Small whole numbers, or truths, that broadcast to `shape`, in any order of axes."""
    mine = tuple(1 if draw(st.integers(0, 3)) == 0 else length for length in shape)
    axes = tuple(draw(st.permutations(range(len(shape)))))
    if draw(st.integers(0, 1)):
        axes = tuple(range(len(shape)))
    stored = tuple(mine[axes.index(n)] for n in range(len(shape)))
    generator = np.random.default_rng(draw(st.integers(0, 999)))
    kind = draw(st.sampled_from((np.float32, np.float32, np.bool_, np.int64)))
    low, high = (0, 2) if kind is np.bool_ else (-3, 4)
    values = generator.integers(low, high, stored).astype(kind)
    known = values.size == 1 and draw(st.booleans())
    return Operand(values, axes, known)


@st.composite
def chains(draw: st.DrawFn) -> tuple[Chain, list[Operand]]:
    """A random graph of exact steps over random operands."""
    outer = draw(st.lists(st.sampled_from((1, 2, 3, 5, 9)), max_size=3))
    length = draw(st.sampled_from(LENGTHS if len(outer) < 2 else LENGTHS[:11]))
    shape = (*outer, length)
    operands = draw(st.lists(operands_of(shape), min_size=1, max_size=4))
    kinds = [o.stored.dtype.kind for o in operands]
    steps: list[ChainStep] = []
    for _ in range(draw(st.integers(0, 7))):
        of = {kind: [n for n, k in enumerate(kinds) if k == kind] for kind in "fbi"}
        steps.append(draw(steps_of(of)))
        logical = steps[-1].kind in (*QUESTIONS, *LOGIC)
        kinds.append("b" if logical else kinds[steps[-1].arguments[-1]])
    numbers = st.integers(0, len(kinds) - 1)
    results = draw(st.lists(numbers, min_size=1, max_size=3, unique=True))
    return Chain(shape, len(operands), tuple(steps), tuple(results)), operands


@st.composite
def steps_of(draw: st.DrawFn, of: dict[str, list[int]]) -> ChainStep:
    """A step over values of which `of` gives the numbers by their kind."""
    numbers = of["f"] or of["i"]
    choices = [*LOGIC] if of["b"] else []
    if of["f"]:
        choices += [*EXACT, *ROW_REDUCTIONS, *QUESTIONS]
    elif of["i"]:
        choices += ["add", "sub", "maximum", "minimum", "neg", "abs", *QUESTIONS, *ROW_REDUCTIONS]
    if of["b"] and numbers:
        choices += ["where"]
    kind = draw(st.sampled_from(choices))
    pool = st.sampled_from(of["b"] if kind in LOGIC else numbers)
    arity = 1 if kind in ROW_REDUCTIONS else FUNCTIONS[kind].arity
    arguments = [draw(pool) for _ in range(arity)]
    if kind == "where":
        arguments[0] = draw(st.sampled_from(of["b"]))
    return ChainStep(kind, tuple(arguments))


@isas
@settings(max_examples=80)
@given(case=chains(), edge=st.sampled_from(EDGES))
def test_random_chains(isa: str, case: tuple[Chain, list[Operand]], edge: str) -> None:
    chain, operands = case
    if not is_exact(chain, operands):
        return
    found = run(chain, operands, isa, edge)
    for result, wanted in zip(found, expected(chain, operands), strict=True):
        np.testing.assert_array_equal(result, wanted)


@isas
@pytest.mark.parametrize("length", [1, 5, 16, 33, 257, 900])
def test_a_chain_of_many_values_spills(isa: str, length: int) -> None:
    """More values at once than there are registers, with and without reductions."""
    shape = (3, length)
    operands = [Operand(floats(n, shape).round()) for n in range(6)]
    pairs = [(a, b) for a in range(6) for b in range(6) if a != b]
    steps = [step("sub", a, b) for a, b in pairs] + [step("mul", a, a) for a in range(6)]
    values = range(6, 42)
    total = 6
    for kind in ("add", "maximum", "sub"):  # so that all are needed once more after the first sum
        for number in values:
            steps.append(step(kind, total, number))
            total = 5 + len(steps)
    steps.append(step("row_max", total))
    chain = Chain(shape, 6, tuple(steps), (total, 24, total + 1))
    assert len(steps) == 3 * 36 + 37
    for result, wanted in zip(run(chain, operands, isa), expected(chain, operands), strict=True):
        np.testing.assert_array_equal(result, wanted)


SPECIAL = np.array(
    [
        *(0.0, -0.0, 1e-45, -1e-45, 1.1e-38, -1.1e-38, 1e-10, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5),
        *(3.0, -3.7, 9.9, -20.0, 50.0, 88.5, 88.8, -87.5, -100.0, -103.5, -104.5, -150.0),
        *(-175.5, -176.5, 200.0, -200.0),
        *(1e4, -9999.5, 3e38, -3e38, np.inf, -np.inf, np.nan),
    ],
    np.float32,
)
ROUNDINGS = {"rsqrt": 2.0}
ABSOLUTE = {"sin": 2e-7, "cos": 2e-7, "erf": 3.5e-7, "tanh": 5e-7, "sigmoid": 5e-7}
TRANSCENDENTAL = ("exp", "exp2", "expm1", "log", "log1p", "erf", "sin", "cos")


def within(kind: str, found: Array, wanted: Array, *arguments: Array) -> np.ndarray:
    """True where a result is as near as is promised, in float32's last place, or in parts of 1."""
    with np.errstate(all="ignore"):
        single = np.asarray(wanted).astype(np.float32)
        place = np.spacing(np.abs(single)).astype(np.float64)
        error = np.abs(found.astype(np.float64) - wanted)
    allowed = place * (4.0 if kind in TRANSCENDENTAL else ROUNDINGS.get(kind, 1.0))
    allowed = np.maximum(allowed, ABSOLUTE.get(kind, 0.0))
    allowed = np.maximum(allowed, 1.5e-45)
    alike = (found == single) | (np.isnan(found) & np.isnan(single))
    return alike | (error <= allowed)


@isas
@pytest.mark.parametrize("kind", [kind for kind, each in FUNCTIONS.items() if not each.whole])
def test_special_values(kind: str, isa: str) -> None:
    arity = FUNCTIONS[kind].arity
    values = [SPECIAL, SPECIAL, SPECIAL[::5]][:arity]
    columns = [c.reshape(-1).copy() for c in np.meshgrid(*values)]
    if kind.startswith("logical"):
        columns = [c > 0 for c in columns]
    if kind == "where":
        columns[0] = columns[0] > 0
    chain = Chain(columns[0].shape, arity, (step(kind, *range(arity)),), (arity,))
    operands = [Operand(c) for c in columns]
    (found,), (wanted,) = run(chain, operands, isa), expected(chain, operands)
    if kind == "fma":  # numpy rounds twice, and calls 0 * inf + nan what it likes
        wide = [c.astype(np.longdouble) for c in columns]
        with np.errstate(all="ignore"):
            wanted = (wide[0] * wide[1] + wide[2]).astype(np.float64)
    good = within(kind, found, wanted)
    bad = np.flatnonzero(~good)[:4]
    assert good.all(), [(*(c[n] for c in columns), found[n], wanted[n]) for n in bad]


@isas
@pytest.mark.parametrize("kind", [*TRANSCENDENTAL, "tanh", "sigmoid", "rsqrt"])
def test_functions_over_their_ranges(kind: str, isa: str) -> None:
    generator = np.random.default_rng(5)
    spans = {"exp": 104, "exp2": 150, "expm1": 89, "sin": 1e6, "cos": 1e6}
    x = generator.uniform(-1, 1, 60_000) * spans.get(kind, 12)
    x[::3] *= 10.0 ** generator.uniform(-12, 0, len(x[::3]))
    if kind in ("log", "rsqrt"):
        x = 10.0 ** generator.uniform(-44, 38, len(x))
        x[::2] = generator.uniform(0.5, 2, len(x[::2]))
    if kind == "log1p":
        x = np.where(np.arange(len(x)) % 2 == 0, x[::-1], np.expm1(x))
        x = np.maximum(x, -0.9999999)
    single = x.astype(np.float32)
    chain, operands = Chain(x.shape, 1, (step(kind, 0),), (1,)), [Operand(single)]
    (found,), (wanted,) = run(chain, operands, isa), expected(chain, operands)
    bad = np.flatnonzero(~within(kind, found, wanted))
    assert not len(bad), [(single[n], found[n], wanted[n]) for n in bad[:5]]


@isas
@pytest.mark.parametrize("kind", ["sin", "cos"])
@pytest.mark.parametrize("far", [1, 16, 160_000])
def test_sine_of_any_angle(kind: str, far: int, isa: str) -> None:
    """One angle in `far` is beyond 1e6, up to the largest number; others are near."""
    generator = np.random.default_rng(far)
    x = generator.uniform(-10, 10, 160_000)
    x[::far] = 10.0 ** generator.uniform(6, 38.5, len(x[::far])) * generator.choice([-1, 1])
    single = np.append(x, [1e6, 1000001.0, 3.4028235e38, np.inf, np.nan]).astype(np.float32)
    chain, operands = Chain(single.shape, 1, (step(kind, 0),), (1,)), [Operand(single)]
    (found,), (wanted,) = run(chain, operands, isa), expected(chain, operands)
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    allowed = np.where(np.abs(single) > 1e6, 4e-7, 2e-7)
    bad = np.flatnonzero(np.abs(found - wanted) > allowed)
    assert not len(bad), [(single[n], found[n], wanted[n]) for n in bad[:5]]


@isas
def test_powers_of_two_are_exact(isa: str) -> None:
    """Shifts to the left are written as products with them."""
    whole = np.arange(-150, 129, dtype=np.float32)
    with np.errstate(over="ignore"):
        wanted = np.exp2(whole.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(of_one("exp2", whole, isa), wanted)


def of_one(kind: str, x: Array, isa: str) -> Array:
    return run(Chain(x.shape, 1, (step(kind, 0),), (1,)), [Operand(x)], isa)[0]


@isas
def test_erf_is_one_where_it_rounds_to_one(isa: str) -> None:
    """Exactly, as gelu multiplies what is left by x; and nowhere more."""
    magnitudes = np.linspace(0, 8, 4001)
    x = np.array([*magnitudes, *np.logspace(1, 38, 200), 3e38, np.inf], np.float32)
    found = of_one("erf", np.concatenate([x, -x]), isa)
    np.testing.assert_array_equal(found[: len(x)], -found[len(x) :])
    assert (found[: len(x)][x > 4] == 1).all()
    assert (found[: len(x)] <= 1).all()


@isas
@pytest.mark.parametrize("kind", ["sin", "cos"])
def test_sines_are_bounded_beyond_their_accuracy(kind: str, isa: str) -> None:
    x = np.concatenate([np.logspace(-3, 38, 20_001), -np.linspace(1e6, 1e8, 20_001), [-3.4e38]])
    assert (np.abs(of_one(kind, x.astype(np.float32), isa)) <= 1).all()
    assert np.isnan(of_one(kind, np.array([np.inf, -np.inf, np.nan], np.float32), isa)).all()


@isas
@pytest.mark.parametrize("rows", [1, 9])
def test_rows_of_models(rows: int, isa: str) -> None:
    for length in (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65, 127, 128, 257, 300, 1000):
        shape = (rows, length)
        x = Operand(floats(length, shape, 4.0))
        inverse, epsilon = (
            Operand(np.full(1, v, np.float32), known=True) for v in (1 / length, 1e-5)
        )
        weight, bias = Operand(floats(1, (length,))), Operand(floats(2, (length,)))
        cases = [
            (softmax(shape), [x]),
            (log_softmax(shape), [x]),
            (layer_norm(shape, True, True), [x, inverse, epsilon, weight, bias]),
            (rms_norm(shape, True), [x, inverse, epsilon, weight]),
        ]
        for chain, operands in cases:
            (found,), (wanted,) = run(chain, operands, isa), expected(chain, operands)
            np.testing.assert_allclose(found, wanted, rtol=5e-6, atol=5e-6, err_msg=chain.title)


@isas
@pytest.mark.parametrize("length", [70_000, 300_001])
def test_sums_over_long_rows_round_little(length: int, isa: str) -> None:
    """Numbers above zero, which one after the other would round by 2e-6 of the sum."""
    x = Operand(np.random.default_rng(0).random((2, length), np.float32))
    squares = step("mul", 0, 0), step("row_sum", 1)
    for steps in ((step("row_sum", 0),), squares):
        chain = Chain((2, length), 1, steps, (len(steps),))
        (found,), (wanted,) = run(chain, [x], isa), expected(chain, [x])
        np.testing.assert_allclose(found, wanted, rtol=2.5e-7)


@isas
@pytest.mark.parametrize("length", [3, 32, 300])
def test_softmax_of_infinities(length: int, isa: str) -> None:
    x = floats(3, (4, length))
    x[0, 0], x[1, 1], x[2], x[3, length // 2] = -np.inf, np.inf, -np.inf, np.nan
    for chain in (softmax(x.shape), log_softmax(x.shape)):
        (found,), (wanted,) = run(chain, [Operand(x)], isa), expected(chain, [Operand(x)])
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@isas
@pytest.mark.parametrize("kind", ROW_REDUCTIONS)
def test_reductions_spread_nan(kind: str, isa: str) -> None:
    for length in (1, 7, 16, 40, 300):
        x = floats(1, (length, length))
        np.fill_diagonal(x, np.nan)
        chain = Chain(x.shape, 1, (step(kind, 0),), (1,))
        assert np.isnan(run(chain, [Operand(x)], isa)[0]).all()


@isas
@pytest.mark.parametrize("length", [1, 17, 40, 300])
@pytest.mark.parametrize("make", [softmax, log_softmax])
def test_in_place(make: object, length: int, isa: str) -> None:
    x = Operand(floats(1, (7, length)))
    chain = make((7, length))  # type: ignore[operator]
    apart, within_itself = run(chain, [x], isa), run(chain, [x], isa, in_place=0)
    np.testing.assert_array_equal(apart, within_itself)


@isas
@pytest.mark.parametrize("element", [np.float32, np.int64, np.bool_])
def test_permuted_copies(element: type, isa: str) -> None:
    for shape in ((2, 3, 5), (17, 33), (3, 16, 16), (2, 40, 7), (64, 48), (1, 2, 3, 19)):
        values = np.random.default_rng(1).integers(0, 2, shape).astype(element)
        if element is not np.bool_:
            values = np.arange(values.size).astype(element).reshape(shape)
        for axes in (tuple(reversed(range(len(shape)))), (*range(1, len(shape)), 0)):
            operand = Operand(values, axes)
            chain = Chain(operand.view.shape, 1, (), (0,))
            np.testing.assert_array_equal(run(chain, [operand], isa)[0], operand.view)


@isas
def test_numbers_as_truths(isa: str) -> None:
    """int64 of any size, and truths themselves."""
    shape = (3, 21)
    generator = np.random.default_rng(2)
    whole = generator.integers(-(2**62), 2**62, shape) >> generator.integers(0, 62, shape)
    whole[0, ::3] = 0
    for first in (whole, floats(2, shape) > 0):
        chain = Chain(shape, 1, (step("logical_not", 0),), (1,))
        found, wanted = run(chain, [Operand(first)], isa), expected(chain, [Operand(first)])
        np.testing.assert_array_equal(found[0], wanted[0])


@isas
def test_whole_numbers(isa: str) -> None:
    generator = np.random.default_rng(3)
    for length in (1, 4, 7, 8, 9, 16, 23, 100):
        a = generator.integers(-(2**40), 2**40, (2, length))
        b = np.where(generator.integers(0, 2, a.shape) > 0, a, generator.integers(-99, 99, a.shape))
        for kind in ("add", "sub", "mul", "maximum", "minimum", *QUESTIONS):
            chain = Chain(a.shape, 2, (step(kind, 0, 1),), (2,))
            operands = [Operand(a), Operand(b)]
            found, wanted = run(chain, operands, isa), expected(chain, operands)
            np.testing.assert_array_equal(found[0], wanted[0], err_msg=kind)


@isas
@pytest.mark.parametrize("kind", ROW_REDUCTIONS)
def test_rows_of_whole_numbers(kind: str, isa: str) -> None:
    """Rows of any size, sums modulo 2^64; beside values computed with the result."""
    generator = np.random.default_rng(4)
    for length in (1, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 25, 33, 64, 100, 257, 1000):
        a = generator.integers(-(2**63), 2**63 - 1, (3, length), endpoint=True)
        a >>= generator.integers(0, 63, a.shape)
        b, few = generator.integers(-9, 9, length), generator.integers(-9, 9, (3, 1))
        operands = [Operand(a), Operand(b), Operand(few)]
        operands.append(Operand(np.array([2**53 + 1]), known=True))
        steps = [step("mul", 0, 1), step(kind, 4), step("sub", 4, 5), step(kind, 2)]
        steps += [step("maximum", 5, 7), step("add", 6, 3), step(kind, 9)]
        chain = Chain(a.shape, 4, tuple(steps), (5, 8, 9, 10))
        for edge in EDGES:
            pairs = zip(run(chain, operands, isa, edge), expected(chain, operands), strict=True)
            for found, wanted in pairs:
                np.testing.assert_array_equal(found, wanted, err_msg=f"{length}")


@isas
@pytest.mark.parametrize("length", [5, 40, 300])
def test_callee_saved_registers_are_kept(length: int, isa: str) -> None:
    """By the most arrays there may be, which need them all, and with scratch."""
    target, shape = Target.named(isa), (3, length)
    operands = [Operand(floats(n, shape)) for n in range(MOST_OPERANDS)]
    steps = [step("exp", n) for n in range(8)] + [step("row_sum", n) for n in range(8, 16)]
    steps += [step("mul", 8 + n, 16 + n) for n in range(4)]
    chain = Chain(shape, 8, tuple(steps), (24, 25, 26, 27))
    plan = lowered(chain, operands, target)
    results = [np.zeros(shape, np.float32) for _ in chain.results]
    scratch = np.zeros(plan.scratch_bytes + 1, np.uint8)
    arrays = [*(o.stored for o in operands), *results, scratch]
    table = np.array([array.ctypes.data for array in arrays], np.uint64)
    memory = ExecutableMemory(image_of(plan, target).data)
    found = Checker(target).call(memory.address, table.ctypes.data, 0)
    assert found.registers == PATTERNS
    for result, wanted in zip(results, expected(chain, operands), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-5)


@settings(max_examples=25)
@given(case=chains())
def test_avx2_code_holds_no_avx512_instruction(case: tuple[Chain, list[Operand]]) -> None:
    target = Target.named("avx2")
    image = image_of(lowered(*case, target), target)
    encodings = {i.encoding for i in decode(image.data[: image.code_bytes])}
    assert encodings <= {EncodingKind.LEGACY, EncodingKind.VEX}


@pytest.mark.parametrize("element", [Element.FLOAT32, Element.INT64, Element.BOOL])
def test_every_function_of_an_element_has_code_or_is_refused(element: Element) -> None:
    """Elements that a function takes have code for it; all others are refused before."""
    target = Target.named("avx2")
    array = np.ones((2, 3), element.value)
    refused = set()
    for kind, function in FUNCTIONS.items():
        given = [Operand(array)] * function.arity
        chain = Chain((2, 3), len(given), (step(kind, *range(len(given))),), (len(given),), kind)
        try:
            lowered(chain, given, target)
        except InvalidInput:
            refused.add(kind)
    assert "add" not in refused and "less" not in refused and "logical_and" not in refused
    assert ("exp" in refused) == (element is not Element.FLOAT32)


def test_what_has_no_code_is_refused() -> None:
    target = Target.named("avx2")
    whole = Operand(np.zeros((2, 3), np.int64))
    with pytest.raises(InvalidInput, match=r"floor.*got \(int64"):
        lowered(Chain((2, 3), 1, (step("floor", 0),), (1,), "steps"), [whole], target)
    many = [Operand(floats(1, (2, 3))) for _ in range(MOST_OPERANDS + 1)]
    with pytest.raises(CompileError, match="split it"):
        lowered(Chain((2, 3), len(many), (), (0,)), many, target)
