"""The per-sample network of a voice as one native function.

`void generate(arguments)` produces frames * 220 samples without returning to Python.
Each sample runs, in this order, with every intermediate in one workspace:

    p          = prediction from the last samples           asm_templates/pointwise/signal.py
    recurrent  = W_h h + b                                  the planner's kernel for W_h
    input      = three table rows + the frame's gate term   asm_templates/pointwise/signal.py
    h          = GRU update                                 asm_templates/pointwise/gru_gates.py
    dense      = relu(W_1 h + the frame's bias)             the planner's kernel for W_1
    logits     = W_2 dense + b                              the planner's kernel for W_2
    class      ~ softmax(logits / temperature)              asm_templates/pointwise/categorical.py
    s, y       = reconstruction, de-emphasis, feedback      here

Registers held across a sample: rbx arguments, rbp workspace, r12 the frame's gate term, r13 next
output sample, r14 next class, r15 samples left in the frame. The native code advances the pointers
in ARGUMENTS by whole frames; Python makes a new one for each call.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.pointwise import categorical, gru_gates, random_uniform, signal
from sparsejit.asm_templates.pointwise.signal import PREDICTION_WINDOW, Quantiser
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import CategoricalDraw, GruUpdate, MatVec
from sparsejit.machine.target import Target
from sparsejit.planner.plan import Plan, plan
from sparsejit.runtime.program import Program, build
from sparsejit.voice.features import HOP_LENGTH
from sparsejit.voice.prediction import (
    CLASSES,
    DECODED,
    PRE_EMPHASIS,
    SIGNAL_LIMIT,
    THRESHOLDS,
    ZERO_CLASS,
)
from sparsejit.voice.weights import VoiceWeights
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    r12,
    r13,
    r14,
    r15,
    rax,
    rbp,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
    xmm,
)
from sparsejit.x86.stack import pop, push

FLOAT = 4
_SAVED = (rbx, rbp, r12, r13, r14, r15)


# What one call reads: addresses, then the length and the draw's seed and counter. Frame arrays are
# float32, one row a frame: gate_terms (padded to 16 floats), dense_biases, predictors
# (PREDICTION_WINDOW floats, oldest sample first), scales (residual, input).
ARGUMENTS = np.dtype(
    [
        ("workspace", np.uint64),
        ("gate_terms", np.uint64),
        ("dense_biases", np.uint64),
        ("predictors", np.uint64),
        ("scales", np.uint64),
        ("samples", np.uint64),
        ("classes", np.uint64),
        ("frames", np.uint64),
        ("seed", np.uint64),
        ("counter", np.uint64),
    ]
)


def argument(name: str) -> Memory:
    """The field of ARGUMENTS, through rbx."""
    return Memory(rbx, 8 * list(ARGUMENTS.names or ()).index(name))


def padded(length: int) -> int:
    """Floats of an array that is read and written in whole vectors of either width."""
    return -(-length // 16) * 16


@dataclass(frozen=True)
class WorkspaceLayout:
    """Byte offsets into the workspace; the first three, and last_output, outlive a call."""

    hidden: int

    def offsets(self) -> dict[str, int]:
        """Offset of each array, 64-byte aligned, and of the end under "size"."""
        lengths = {
            "state": padded(self.hidden),
            "history": padded(PREDICTION_WINDOW + HOP_LENGTH),
            "last": 16,
            "input": padded(3 * self.hidden),
            "recurrent": padded(3 * self.hidden),
            "dense": CLASSES,
            "logits": CLASSES,
            "scratch": CLASSES,
        }
        starts = np.cumsum([0, *lengths.values()]) * FLOAT
        return dict(zip([*lengths, "size"], starts.tolist(), strict=True))


# Slots of the array "last": class drawn last, output sample, prediction in hand, uniform number.
LAST_CLASS, LAST_OUTPUT, PREDICTION, UNIFORM = (slot * FLOAT for slot in range(4))


@dataclass(frozen=True)
class SampleLoop:
    """The native function, the kernels chosen for its layers, and its workspace's layout."""

    program: Program
    plans: dict[str, Plan]
    layout: WorkspaceLayout

    def new_workspace(self) -> npt.NDArray[np.float32]:
        """A workspace in the initial state: silence, class ZERO_CLASS."""
        offsets = self.layout.offsets()
        raw = np.zeros(offsets["size"] // FLOAT + 16, np.float32)
        first = -raw.ctypes.data % 64 // FLOAT
        workspace = raw[first : first + offsets["size"] // FLOAT]
        last_class = offsets["last"] // FLOAT + LAST_CLASS // FLOAT
        workspace[last_class : last_class + 1].view(np.int32)[:] = ZERO_CLASS
        return workspace


def compile_sample_loop(weights: VoiceWeights, target: Target) -> SampleLoop:
    """Compile the voice's per-sample network for `target`."""
    layers = _layers(weights)
    plans = {name: plan(spec, matrix, target) for name, (matrix, spec) in layers.items()}
    layout = WorkspaceLayout(weights.hidden_size)

    def body(asm: Assembler) -> None:
        _Emitter(asm, weights, layout, plans).emit()

    program = build("sample-loop", target, body)
    return SampleLoop(program, {name: choice.record() for name, choice in plans.items()}, layout)


def _layers(weights: VoiceWeights) -> dict[str, tuple[SparseMatrix, MatVec]]:
    hidden = weights.hidden_size
    recurrent_bias = np.zeros(3 * hidden, np.float32)
    recurrent_bias[2 * hidden :] = weights.recurrent_new_bias
    layers = {
        "recurrent": (weights.recurrent, recurrent_bias),
        "dense": (weights.dense, None),  # its bias changes with the frame
        "output": (weights.output, weights.output_bias),
    }
    return {
        name: (SparseMatrix(values), MatVec(values.shape[0], values.shape[1], bias))
        for name, (values, bias) in layers.items()
    }


class _Emitter:
    """Emits the loop; one method a step of the docstring above."""

    def __init__(
        self,
        asm: Assembler,
        weights: VoiceWeights,
        layout: WorkspaceLayout,
        plans: dict[str, Plan],
    ) -> None:
        self.asm = asm
        self.weights = weights
        self.hidden = weights.hidden_size
        self.offsets = layout.offsets()
        self.plans = plans
        self.quantiser = Quantiser(asm, THRESHOLDS)
        self.row_bytes = padded(3 * self.hidden) * FLOAT
        tables = np.zeros((3, CLASSES, padded(3 * self.hidden)), np.float32)
        tables[:, :, : 3 * self.hidden] = weights.input_tables
        self.tables = asm.literal(tables)
        self.decoded = asm.literal(DECODED)

    def emit(self) -> None:
        asm = self.asm
        push(asm, _SAVED)
        asm.emit("mov", rbx, rdi)
        asm.emit("mov", rbp, argument("workspace"))
        asm.emit("mov", r12, argument("gate_terms"))
        asm.emit("mov", r13, argument("samples"))
        asm.emit("mov", r14, argument("classes"))
        frame, sample = asm.label("frame"), asm.label("sample")
        asm.bind(frame)
        asm.emit("mov", r15, HOP_LENGTH)
        asm.bind(sample)
        self._sample()
        asm.emit("sub", r15, 1)
        asm.jump("jnz", sample)
        self._next_frame()
        asm.jump("jnz", frame)
        pop(asm, _SAVED)

    def _sample(self) -> None:
        self._predict()
        self._layer("recurrent", "state", "recurrent")
        self._sum_input()
        self._update_state()
        self._layer("dense", "state", "dense")
        self._add_dense_bias()
        self._layer("output", "dense", "logits")
        self._draw()
        self._reconstruct()

    def _place(self, name: str, extra: int = 0) -> Memory:
        return Memory(rbp, self.offsets[name] + extra)

    def _point(self, register: Register, name: str, extra: int = 0) -> None:
        self.asm.emit("lea", register, self._place(name, extra))

    def _predict(self) -> None:
        """p from the PREDICTION_WINDOW samples before this one; they end at history + 32."""
        asm = self.asm
        self._history_address(rcx)
        asm.emit("mov", rdx, argument("predictors"))
        signal.emit_prediction(asm, xmm(0), Memory(rcx), Memory(rdx))
        asm.emit("vmovss", self._place("last", PREDICTION), xmm(0))

    def _history_address(self, register: Register) -> None:
        """register = address of the oldest sample in this sample's window."""
        asm = self.asm
        asm.emit("mov", register, HOP_LENGTH)
        asm.emit("sub", register, r15)
        asm.emit("lea", register, Memory(rbp, self.offsets["history"], register, FLOAT))

    def _layer(self, name: str, source: str, destination: str) -> None:
        self._point(rdi, source)
        self._point(rsi, destination)
        self.plans[name].emit(self.asm)

    def _sum_input(self) -> None:
        """input = rows of s[t-1], class[t-1] and p, each quantised as in training."""
        asm = self.asm
        self._history_address(rcx)
        asm.emit("vmovss", xmm(3), Memory(rcx, FLOAT * (PREDICTION_WINDOW - 1)))
        self._row_address(rsi, 0, from_value=True)
        self._row_address(rdi, 1, from_value=False)
        asm.emit("vmovss", xmm(3), self._place("last", PREDICTION))
        self._row_address(rdx, 2, from_value=True)
        sources = [Memory(rsi), Memory(rdi), Memory(rdx), Memory(r12)]
        signal.emit_sum_of_rows(asm, self._place("input"), sources, 3 * self.hidden)

    def _row_address(self, destination: Register, table: int, from_value: bool) -> None:
        """destination = row of a table: of the quantised value in xmm3, or of the last class."""
        asm = self.asm
        if from_value:
            asm.emit("mov", rax, argument("scales"))
            asm.emit("vmulss", xmm(3), xmm(3), Memory(rax, FLOAT))
            self.quantiser.emit(destination, xmm(3), rcx)
        else:
            asm.emit("mov", dword(destination), self._place("last", LAST_CLASS))
        asm.emit("imul", destination, destination, self.row_bytes)
        asm.emit("lea", rcx, Literal(self.tables + table * CLASSES * self.row_bytes))
        asm.emit("add", destination, rcx)

    def _update_state(self) -> None:
        self._point(rdi, "input")
        self._point(rsi, "recurrent")
        self._point(rdx, "state")
        gru_gates.emit_gru_update(self.asm, GruUpdate(self.hidden))

    def _add_dense_bias(self) -> None:
        self.asm.emit("mov", rcx, argument("dense_biases"))
        signal.emit_add_relu(self.asm, self._place("dense"), Memory(rcx), CLASSES)

    def _draw(self) -> None:
        asm = self.asm
        asm.emit("mov", rdi, argument("seed"))
        asm.emit("mov", rsi, argument("counter"))
        random_uniform.emit_random_uniform(asm)
        self._point(rdi, "logits")
        self._point(rsi, "last", LAST_CLASS)
        self._point(rdx, "scratch")
        spec = CategoricalDraw(CLASSES, 1.0 / self.weights.temperature)
        categorical.emit_categorical_draw(asm, spec)
        asm.emit("mov", rax, argument("counter"))
        asm.emit("add", rax, 1)
        asm.emit("mov", argument("counter"), rax)

    def _reconstruct(self) -> None:
        """s = clamp(p + DECODED[class] * residual scale); y = s + PRE_EMPHASIS * last y."""
        asm = self.asm
        asm.emit("mov", dword(rax), self._place("last", LAST_CLASS))
        asm.emit("mov", Memory(r14), dword(rax))
        asm.emit("lea", rcx, Literal(self.decoded))
        asm.emit("vmovss", xmm(0), Memory(rcx, 0, rax, FLOAT))
        asm.emit("mov", rdx, argument("scales"))
        asm.emit("vmulss", xmm(0), xmm(0), Memory(rdx))
        asm.emit("vaddss", xmm(0), xmm(0), self._place("last", PREDICTION))
        asm.emit("vminss", xmm(0), xmm(0), self._constant(SIGNAL_LIMIT))
        asm.emit("vmaxss", xmm(0), xmm(0), self._constant(-SIGNAL_LIMIT))
        self._history_address(rcx)
        asm.emit("vmovss", Memory(rcx, FLOAT * PREDICTION_WINDOW), xmm(0))
        asm.emit("vmovss", xmm(1), self._place("last", LAST_OUTPUT))
        asm.emit("vmulss", xmm(1), xmm(1), self._constant(PRE_EMPHASIS))
        asm.emit("vaddss", xmm(0), xmm(0), xmm(1))
        asm.emit("vmovss", self._place("last", LAST_OUTPUT), xmm(0))
        asm.emit("vmovss", Memory(r13), xmm(0))
        asm.emit("add", r13, FLOAT)
        asm.emit("add", r14, FLOAT)

    def _constant(self, value: float) -> Literal:
        return Literal(self.asm.constant(value).offset)

    def _next_frame(self) -> None:
        """Keep the newest samples as history, move to the next frame; zero flag when done."""
        asm = self.asm
        lanes = asm.target.lanes
        for first in range(0, PREDICTION_WINDOW, lanes):
            register = signal.vector(asm, first // lanes)
            place = self._place("history", FLOAT * (HOP_LENGTH + first))
            asm.emit("vmovups", register, place)
        for first in range(0, PREDICTION_WINDOW, lanes):
            register = signal.vector(asm, first // lanes)
            asm.emit("vmovups", self._place("history", FLOAT * first), register)
        asm.emit("add", r12, self.row_bytes)
        self._advance("dense_biases", CLASSES * FLOAT)
        self._advance("predictors", PREDICTION_WINDOW * FLOAT)
        self._advance("scales", 2 * FLOAT)
        asm.emit("mov", rax, argument("frames"))
        asm.emit("sub", rax, 1)
        asm.emit("mov", argument("frames"), rax)

    def _advance(self, name: str, distance: int) -> None:
        asm = self.asm
        asm.emit("mov", rax, argument(name))
        asm.emit("add", rax, distance)
        asm.emit("mov", argument(name), rax)
