"""The selftest finds what is planted, says what it is, and names the command that repeats it."""

import itertools
import math
import mmap
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.asm_templates.families import MATVEC_TEMPLATES
from sparsejit.errors import InvalidInput
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, Layout, MatVec
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.planner.kernels import (
    BATCH_PRODUCT,
    KERNELS,
    OTHER_KERNELS,
    PRODUCT,
    rounding_of,
)
from sparsejit.selftest import trials
from sparsejit.selftest.cases import (
    AWKWARD_SIZES,
    GRAPHS_EVERY,
    STRUCTURES,
    Case,
    GraphCase,
    ProductCase,
    derive,
    derive_product,
    graph_kinds,
    levels,
)
from sparsejit.selftest.examination import (
    Compile,
    NativeCase,
    Tally,
    Verdict,
    build_graph,
    compile_case,
    examine,
    is_writable,
)
from sparsejit.selftest.graphs import KERNEL_GRAPHS
from sparsejit.selftest.trials import MOST_FAILURES, PATIENCE_S, SelfTest
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, dword, rax, rbx, rcx, rdi, rsi, rsp, ymm

SEED = 5


def _suits(case: Case) -> bool:
    """A kernel of one thread whose y does not fill its page, and whose every weight counts."""
    if not isinstance(case, ProductCase):
        return False
    plain = case.each.dtype is DType.FLOAT32 and case.each.activation is Activation.NONE
    single = case.batch == 1 and case.threads == 1 and np.all(case.x != 0)
    return plain and single and np.count_nonzero(case.weights) > 0 and case.x.size < 100


NUMBER = next(number for number in itertools.count() if _suits(derive(SEED, number)))


def around(case: ProductCase, emit: Callable[[Assembler, int], None]) -> NativeCase:
    """The case's kernel, called from code that is given its address."""
    real = compile_case(case)
    asm = Assembler(Target.detect())
    emit(asm, real.pointer)
    memory = ExecutableMemory(asm.finish().data)
    return NativeCase(memory.address, real.family, real.threads, (memory, real))


def call(asm: Assembler, kernel: int) -> None:
    """Call the kernel, which keeps rdi and rsi as they are."""
    asm.emit("push", rdi)
    asm.emit("push", rsi)
    asm.emit("sub", rsp, 8)
    asm.emit("mov", rax, kernel)
    asm.emit("call", rax)
    asm.emit("add", rsp, 8)
    asm.emit("pop", rsi)
    asm.emit("pop", rdi)


def wrong_weight(case: ProductCase) -> NativeCase:
    row, column = np.argwhere(case.weights)[-1]
    case.weights[row, column] *= np.float32(1.01)
    compiled = compile_case(case)
    case.weights[row, column] /= np.float32(1.01)
    return compiled


def _storing(case: ProductCase, place: Memory) -> NativeCase:
    def emit(asm: Assembler, kernel: int) -> None:
        call(asm, kernel)
        asm.emit("mov", place, dword(rax))
        asm.emit("ret")

    return around(case, emit)


def store_after_y(case: ProductCase) -> NativeCase:
    return _storing(case, Memory(rsi, 4 * case.spec.out_features))


def store_before_y(case: ProductCase) -> NativeCase:
    return _storing(case, Memory(rsi, -4))


def store_to_x(case: ProductCase) -> NativeCase:
    return _storing(case, Memory(rdi))


def load_after_x(case: ProductCase) -> NativeCase:
    def emit(asm: Assembler, kernel: int) -> None:
        asm.emit("mov", dword(rax), Memory(rdi, 4 * case.spec.in_features))
        call(asm, kernel)
        asm.emit("ret")

    return around(case, emit)


def clobber_rbx(case: ProductCase) -> NativeCase:
    def emit(asm: Assembler, kernel: int) -> None:
        call(asm, kernel)
        asm.emit("mov", rbx, 7)
        asm.emit("ret")

    return around(case, emit)


def change_mxcsr(case: ProductCase) -> NativeCase:
    def emit(asm: Assembler, kernel: int) -> None:
        call(asm, kernel)
        asm.emit("mov", dword(rax), 0x9F80)
        asm.emit("push", rax)
        asm.emit("ldmxcsr", Memory(rsp))
        asm.emit("pop", rax)
        asm.emit("ret")

    return around(case, emit)


def leave_uppers_dirty(case: ProductCase) -> NativeCase:
    def emit(asm: Assembler, kernel: int) -> None:
        call(asm, kernel)
        asm.emit("vpcmpeqd", ymm(5), ymm(5), ymm(5))
        asm.emit("ret")

    return around(case, emit)


def change_the_last_bit(case: ProductCase) -> NativeCase:
    """Calls come in pairs, the second under an unusual MXCSR: the third gives another bit."""
    calls = np.zeros(1, np.uint64)

    def emit(asm: Assembler, kernel: int) -> None:
        call(asm, kernel)
        asm.emit("mov", rcx, calls.ctypes.data)
        asm.emit("mov", dword(rax), Memory(rcx))
        asm.emit("add", dword(rax), 1)
        asm.emit("mov", Memory(rcx), dword(rax))
        asm.emit("shr", dword(rax), 1)
        asm.emit("and", dword(rax), 1)
        asm.emit("add", dword(rax), Memory(rsi))
        asm.emit("mov", Memory(rsi), dword(rax))
        asm.emit("ret")

    compiled = around(case, emit)
    return compiled._replace(owner=(compiled.owner, calls))


def writable_code(case: ProductCase) -> NativeCase:
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    return NativeCase(address, "planted", 1, memory)


def refuse(case: Case) -> NativeCase:
    raise InvalidInput("no such kernel")


def end_the_process(case: Case) -> NativeCase:
    os._exit(3)


def tell_blas_threads(case: Case) -> NativeCase:
    raise InvalidInput(os.environ["OMP_NUM_THREADS"])


def crash_once(case: Case) -> NativeCase:
    return store_before_y(case) if case.number == NUMBER else compile_case(case)


def hang(entered: Path, case: ProductCase) -> NativeCase:
    def emit(asm: Assembler, kernel: int) -> None:
        again = asm.label("again")
        asm.bind(again)
        asm.jump("jmp", again)

    compiled = around(case, emit)
    entered.touch()
    return compiled


FAULTS: list[tuple[Compile, str]] = [
    (wrong_weight, "wrong value: y["),
    (store_after_y, "wrote outside y"),
    (store_before_y, "crashed: killed by SIGSEGV"),
    (store_to_x, "wrote to x"),
    (load_after_x, "crashed: killed by SIGSEGV"),
    (clobber_rbx, "changed the callee-saved register rbx"),
    (change_mxcsr, "changed MXCSR from 0x1f80 to 0x9f80"),
    (leave_uppers_dirty, "left the upper halves of vector registers dirty"),
    (change_the_last_bit, "gave other bits the second time, in 1 outputs"),
    (writable_code, "its code is writable"),
    (refuse, "was not compiled: InvalidInput: no such kernel"),
    (end_the_process, "ended its process with status 3"),
]


def tally_of(test: SelfTest, numbers: list[int]) -> Tally:
    tally = Tally(SEED)
    for verdict in test.run(iter(numbers)):
        tally.add(verdict)
    return tally


@pytest.mark.parametrize(("fault", "words"), FAULTS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_planted_fault_is_found(
    fault: Compile, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = tally_of(SelfTest(SEED, 1, fault), [NUMBER])
    monkeypatch.delenv("SPARSEJIT_MAX_ISA", raising=False)
    (failure,) = tally.as_dict()["failures"]
    assert failure["problem"].startswith(words)
    assert failure["command"] == f"sparsejit selftest --seed {SEED} --only {NUMBER}"


def test_a_kernel_that_hangs_is_ended(tmp_path: Path) -> None:
    """By the clock, the kernel is not late before it has begun, and then very late."""
    entered = tmp_path / "entered"
    test = SelfTest(SEED, 1, partial(hang, entered), lambda: PATIENCE_S if entered.exists() else 0)
    (failure,) = tally_of(test, [NUMBER]).failures
    assert failure.problem == "hung: no answer for 60 s"


def test_the_kernels_after_a_crash_are_examined() -> None:
    others = [number for number in range(4) if number != NUMBER]
    tally = tally_of(SelfTest(SEED, 2, crash_once), [NUMBER, *others])
    assert [failure.number for failure in tally.failures] == [NUMBER]
    assert tally.kernels == 1 + len(others)


def test_a_worker_keeps_to_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    (failure,) = tally_of(SelfTest(SEED, 1, tell_blas_threads), [NUMBER]).failures
    assert failure.problem == "was not compiled: InvalidInput: 1"
    assert os.environ["OMP_NUM_THREADS"] == "3" and "MKL_NUM_THREADS" not in os.environ


def test_it_stops_when_everything_fails() -> None:
    tally = Tally(SEED)
    for verdict in SelfTest(SEED, 2, refuse).run(itertools.count()):
        tally.add(verdict)
    assert MOST_FAILURES <= tally.kernels <= MOST_FAILURES + 1


def test_it_stops_when_it_is_told() -> None:
    answers = iter([True, True, True, False])
    verdicts = list(SelfTest(SEED, 1).run(itertools.count(), lambda: next(answers)))
    assert [verdict.number for verdict in verdicts] == [0, 1, 2]


def test_sound_kernels_hold() -> None:
    tally = tally_of(SelfTest(SEED, 2), list(range(40)))
    assert (tally.kernels, tally.failures) == (40, [])


def test_int8_sums_may_cancel_better_than_the_reference() -> None:
    """42 * -127 + 127 * 42 is zero; the same numbers times their steps are not, in float64."""
    weights, x = np.float32([[2, 6]]), np.float32([-0.8800446, 0.28912055])
    spec = MatVec(1, 2, dtype=DType.INT8)
    assert reference.matvec(spec, SparseMatrix(weights), x) != 0
    case = replace(
        derive_product(SEED, NUMBER), weights=weights, spec=spec, x=x, strategy="auto", threads=1
    )
    assert examine(case).problem is None


def test_a_limit_on_the_level_is_part_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes which kernels the numbers stand for."""
    monkeypatch.setenv("SPARSEJIT_MAX_ISA", "avx2")
    command = Tally(9).command(Verdict(4, "dense", "int8", "avx2", problem="wrote to x"))
    assert command == "SPARSEJIT_MAX_ISA=avx2 sparsejit selftest --seed 9 --only 4"


def test_a_kernel_is_derived_from_its_number_alone() -> None:
    for number in (3, 200):
        one, other = derive(SEED, number), derive(SEED, number)
        assert str(one) == str(other) and one.target == other.target
        assert one.weights.tobytes() == other.weights.tobytes()
        assert one.x.tobytes() == other.x.tobytes()
    assert str(derive(SEED, 3)) != str(derive(SEED + 1, 3))


def test_the_numbers_cover_what_there_is() -> None:
    cases = [derive_product(SEED, number) for number in range(1500)]
    assert {case.structure for case in cases} == set(STRUCTURES)
    assert {case.each.dtype for case in cases} == set(DType)
    assert {case.each.activation for case in cases} == set(Activation)
    assert {case.layout for case in cases} == set(Layout)
    assert {case.threads for case in cases} == {1, 2, 3}
    assert {case.target.isa for case in cases} == set(levels())
    assert {case.each.bias is None for case in cases} == {True, False}
    assert set(AWKWARD_SIZES) <= {case.spec.out_features for case in cases}
    assert set(AWKWARD_SIZES) <= {case.spec.in_features for case in cases}
    assert {2, 16, 70} <= {case.batch for case in cases}
    assert any(np.any((case.x != 0) & (np.abs(case.x) < 2.0**-126)) for case in cases)
    assert any(np.abs(case.x).max() > 1e9 for case in cases)


def test_kernels_that_round_x_are_held_to_their_own_error() -> None:
    """Another kernel's bounds would not do, and a sum without a product fails these."""
    drawn = (derive(1, number) for number in range(4000))
    of_products = (case for case in drawn if isinstance(case, ProductCase))
    rounding = (case for case in of_products if rounding_of(case.strategy, case.dtype))
    cases = list(itertools.islice((case for case in rounding if case.weights.any()), 6))
    if not cases:
        pytest.skip("needs products of pairs of bfloat16")
    assert not any(examine(case).problem for case in cases)
    kernels = [compile_case(replace(case, strategy="dense-pairs")) for case in cases]
    others = (replace(case, strategy="csr") for case in cases)
    found = zip(others, kernels, strict=True)
    assert any(examine(case, lambda _, made=made: made).problem for case, made in found)


def test_every_kernel_of_the_table_has_a_graph_or_is_a_product() -> None:
    """A new row without one is not tested, nor timed."""
    products = {row.name for row in KERNELS if row.operator in (PRODUCT, BATCH_PRODUCT)}
    families = {row.family for row in (*MATVEC_TEMPLATES, *MATMUL_TEMPLATES)}
    assert products == families
    others = {row.name for row in KERNELS if row.operator not in (PRODUCT, BATCH_PRODUCT)}
    assert others == KERNEL_GRAPHS.keys() == OTHER_KERNELS.keys()


@pytest.mark.plans
@pytest.mark.parametrize("name", KERNEL_GRAPHS)
@pytest.mark.parametrize("end", ["least", "most", "timed"])
def test_a_graph_runs_its_kernel_on_any_processor(name: str, end: str) -> None:
    row, graph = OTHER_KERNELS[name], KERNEL_GRAPHS[name]
    sizes = {size: getattr(span, end) for size, span in graph.spans.items()}
    for isa, dtype in itertools.product(row.levels, row.dtypes):
        level = Target.named(isa)
        target = replace(level, instruction_sets=level.instruction_sets | row.requires)
        made = graph.drawn(np.random.default_rng(1), dtype, sizes)
        build_graph(GraphCase(0, 0, target, row, dtype, sizes, made))


GRAPHS = [GRAPHS_EVERY * turn + GRAPHS_EVERY - 1 for turn in range(len(graph_kinds()))]


def test_the_numbers_walk_the_table() -> None:
    """All kernels that there are here, with every dtype at every level, before any comes again."""
    cases = [derive(SEED, number) for number in range(GRAPHS[-1] + 1)]
    graphs = [case for case in cases if isinstance(case, GraphCase)]
    assert [(each.row, each.dtype, each.target.isa) for each in graphs] == [*graph_kinds()]
    target = Target.detect()
    rows = [row for row in OTHER_KERNELS.values() if row.made_for(target, row.dtypes[0])]
    assert {row.name for row in rows} <= {case.row.name for case in graphs}


def test_sound_graphs_hold() -> None:
    tally = tally_of(SelfTest(SEED, 2), GRAPHS)
    assert (tally.kernels, tally.failures) == (len(GRAPHS), [])
    assert ("pooling: pooling", "float32") in tally.families()


def other_weights(case: Case) -> NativeCase:
    """The kernel of the same sizes, but not of the same graph."""
    assert isinstance(case, GraphCase)
    made = case.about.drawn(np.random.default_rng(1), case.dtype, case.sizes)
    return compile_case(replace(case, made=made))


def store_after_the_result(case: Case) -> NativeCase:
    real, size = compile_case(case), 4 * math.prod(case.y_shape)
    asm = Assembler(Target.detect())
    asm.emit("mov", rax, Memory(rsi))
    asm.emit("mov", Memory(rax, size), dword(rcx))
    asm.emit("mov", rax, real.pointer)
    asm.emit("jmp", rax)
    memory = ExecutableMemory(asm.finish().data)
    return real._replace(pointer=memory.address, owner=(memory, real))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (other_weights, "wrong value: y["),
        (store_after_the_result, "wrote outside y"),
        (lambda case: compile_case(replace(case, row=OTHER_KERNELS["attention"])), "no step is"),
    ],
    ids=["wrong", "outside", "other kernel"],
)
def test_a_fault_in_a_graph_is_found(fault: Compile, words: str) -> None:
    cases = (derive(SEED, number) for number in GRAPHS)
    case = next(each for each in cases if isinstance(each, GraphCase))
    assert words in str(examine(case, fault).problem)


def test_the_writable_parts_of_code_are_known() -> None:
    assert is_writable(np.zeros(1).ctypes.data)
    assert not is_writable(compile_case(derive_product(SEED, NUMBER)).pointer)


def test_workers_leave_the_interrupt_to_their_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(trials.signal, "signal", lambda *pair: asked.append(pair))

    class Closed:
        def recv(self) -> int:
            raise EOFError

    trials.serve(Closed(), abs)  # type: ignore[arg-type]
    assert asked == [(trials.signal.SIGINT, trials.signal.SIG_IGN)]
