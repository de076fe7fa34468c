"""Exported models with states: Python's bits, no system call, no allocation, no page fault."""

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import mach_o
import torch
from stream_program import stream_program
from system_tools import GCC, needs_gcc, run_tool

import sparsejit
from sparsejit.api.models.stepped import layout_of
from sparsejit.runtime.native_call import address_table, new_workspace

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "onnx"
STEPS = 1000


class Spotter(torch.nn.Module):
    """A network with two states, one of them a buffer of the past, and initial values."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(5, 24, 4)
        self.rnn = torch.nn.GRU(24, 200, batch_first=True)
        self.out = torch.nn.Linear(200, 3)

    def forward(self, x: Any, past: Any, h: Any) -> Any:
        window = torch.cat([past, x.mT], 2)
        y, h = self.rnn(self.conv(window).relu().mT, h)
        return self.out(y), window[:, :, -3:], h


def spotter() -> Any:
    given = torch.zeros(1, 2, 5), torch.zeros(1, 5, 3), torch.zeros(1, 1, 200)
    return sparsejit.compile(Spotter().eval(), given, state={1: 1, 2: 2})


# Files with states: the shape of a step's input, other inputs, and the outputs that states take.
FILES: dict[str, tuple[tuple[int, ...], dict[str, Any], dict[str, str]]] = {
    "silero_vad_16k_op15": ((1, 576), {"sr": 16000}, {"state": "stateN"}),
    "dtln_1": ((1, 1, 257), {}, {"input_3": "tf_op_layer_stack_2"}),
    "dtln_2": ((1, 1, 512), {}, {"input_5": "tf_op_layer_stack_5"}),
    "gtcrn_simple": (
        (1, 257, 1, 2),
        {},
        {name: f"{name}_out" for name in ("conv_cache", "tra_cache", "inter_cache")},
    ),
}


def model_of(name: str) -> tuple[Any, np.ndarray]:
    """A model and the inputs of its steps."""
    if name == "gru":
        return spotter(), frames(1, 2, 5)
    path = FOLDER / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"{path.name} is not there")
    shape, constants, states = FILES[name]
    silero = np.zeros((1, 576), np.float32), np.zeros((2, 1, 128), np.float32)
    example = silero if constants else None
    return sparsejit.compile(path, example, constants=constants, state=states), frames(*shape)


NAMES = ["gru", *FILES]


def macros_of(fast: Any, folder: Path) -> dict[str, str]:
    fast.export(folder / "m.o", header=folder / "m.h")
    return dict(re.findall(r"^#define M_(\w+) (\S+)", (folder / "m.h").read_text(), re.MULTILINE))


def test_outputs_are_called_as_in_the_file(tmp_path: Path) -> None:
    """The standard file of Silero has its network in a branch, with other names; saved too."""
    path = FOLDER / "silero_vad.onnx"
    if not path.exists():
        pytest.skip(f"{path.name} is not there")
    example = np.zeros((1, 576), np.float32), np.zeros((2, 1, 128), np.float32)
    given = {"constants": {"sr": 16000}, "state": {"state": "stateN"}}
    fast = sparsejit.compile(path, example, **given)
    found = macros_of(fast, tmp_path)
    assert (found["INPUT_INPUT"], found["OUTPUT_OUTPUT"], found["OUTPUT_OUTPUT_SIZE"]) == (
        *("0", "0", "1"),
    )
    text = (tmp_path / "m.h").read_text()
    assert "outputs[0]: float32 output[1][1]" in text
    fast.save(tmp_path / "m.sjit")
    assert macros_of(sparsejit.load(tmp_path / "m.sjit"), tmp_path) == found


class Keyed(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return {"low": x - 1, "high": x.sum(0)}


def test_outputs_are_called_by_their_keys(tmp_path: Path) -> None:
    fast = sparsejit.compile(Keyed().eval(), (torch.zeros(2, 3),))
    found = macros_of(fast, tmp_path)
    assert (found["OUTPUT_LOW"], found["OUTPUT_HIGH"], found["OUTPUT_HIGH_SIZE"]) == ("0", "1", "3")


@needs_gcc
def test_the_header_of_a_step_says_its_delay(tmp_path: Path) -> None:
    layers = torch.nn.ConstantPad1d((2, 3), 0.0), torch.nn.Conv1d(1, 4, 6)
    x = torch.zeros(1, 1, 64)
    fast = sparsejit.compile(torch.nn.Sequential(*layers).eval(), (x,), step=8)
    assert macros_of(fast, tmp_path)["DELAY"] == "3" == str(fast.delay)
    text = " ".join((tmp_path / "m.h").read_text().split())
    assert "A step takes 8 frames of inputs[0], on axis 2." in text
    fast.export(tmp_path / "p", cmake="p")
    main = '#include "p.hpp"\nstatic_assert(p::Model::delay == 3);\nint main() {}\n'
    (tmp_path / "main.cpp").write_text(main)
    command = GCC, "-std=c++17", "-I", tmp_path / "p", "-fsyntax-only", tmp_path / "main.cpp"
    run_tool(*command)
    assert "DELAY" not in macros_of(spotter(), tmp_path)


def frames(*shape: int) -> np.ndarray:
    return (0.3 * np.random.default_rng(1).standard_normal((STEPS, *shape))).astype(np.float32)


def built_stream(fast: Any, folder: Path, *options: str) -> Path:
    fast.export(folder / "model.o", header=folder / "model.h")
    (folder / "main.c").write_text(stream_program(1, 1))
    strict = ("-O2", "-Wall", "-Wextra", "-Werror", *options)
    run_tool(GCC, *strict, folder / "main.c", folder / "model.o", "-o", folder / "main")
    return folder / "main"


def stepped(program: Path, xs: np.ndarray, y_bytes: int, mode: str) -> tuple[int, bytes]:
    """The exit status and the outputs of all steps."""
    x, y = program.parent / "x", program.parent / "y"
    x.write_bytes(xs.tobytes())
    y.write_bytes(bytes(len(xs) * y_bytes))
    done = subprocess.run([program, x, y, mode], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not done.stderr, done.stderr
    return done.returncode, y.read_bytes()


@needs_gcc
@pytest.mark.parametrize("name", NAMES)
def test_steps_in_c_make_no_system_call_no_allocation_and_no_page_fault(
    tmp_path: Path, name: str
) -> None:
    fast, xs = model_of(name)
    stream = fast.stream()
    wanted = np.array([stream(x) for x in xs])
    program = built_stream(fast, tmp_path)
    for mode in "fp":
        status, found = stepped(program, xs, wanted[0].nbytes, mode)
        assert status == 0 and found == wanted.tobytes(), mode
    status, _ = stepped(program, xs, wanted[0].nbytes, "ff")
    assert status == -31  # SIGSYS: the filter is there


@needs_gcc
@pytest.mark.parametrize("name", NAMES)
def test_steps_in_c_are_the_same_under_the_address_sanitizer(tmp_path: Path, name: str) -> None:
    fast, xs = model_of(name)
    stream = fast.stream()
    wanted = np.array([stream(x) for x in xs])
    try:
        program = built_stream(fast, tmp_path, "-fsanitize=address", "-DSANITIZED")
    except AssertionError as error:
        if "asan" in str(error):
            pytest.skip("the compiler has no AddressSanitizer")
        raise
    assert stepped(program, xs, wanted[0].nbytes, "n") == (0, wanted.tobytes())


def test_steps_for_macos_are_those_of_python(tmp_path: Path) -> None:
    fast, xs = model_of("gru")
    fast.export(tmp_path / "model.o", system="macos")
    loaded = mach_o.Loaded(mach_o.read((tmp_path / "model.o").read_bytes()))
    stream, layout = fast.stream(), layout_of(fast.parts.variants[0], fast.states)
    state = new_workspace(layout.bytes)
    workspace = new_workspace(fast.stats["workspace_bytes"])
    assert loaded.call("_model_prepare", workspace.ctypes.data) == 0
    assert loaded.call("_model_state_init", state.ctypes.data) == 0
    for x in xs[:20]:
        y = np.zeros((1, 2, 3), np.float32)
        tables = [address_table([array]) for array in (x, y)]
        places = [*map(ctypes.addressof, tables), state.ctypes.data, workspace.ctypes.data]
        assert loaded.call("_model_step", *places) == 0
        np.testing.assert_array_equal(y, stream(x))


@needs_gcc
def test_an_exported_step_needs_nothing_from_outside(tmp_path: Path) -> None:
    spotter().export(tmp_path / "model.o")
    assert run_tool("nm", "--undefined-only", tmp_path / "model.o") == ""


def test_the_header_lists_what_a_step_takes(tmp_path: Path) -> None:
    fast = spotter()
    fast.export(tmp_path / "vad.o", header=tmp_path / "vad.h")
    text = (tmp_path / "vad.h").read_text()
    macros = dict(re.findall(r"^#define VAD_(\w+) (\S+)", text, re.MULTILINE))
    assert (macros["INPUTS"], macros["OUTPUTS"]) == ("1", "1")
    assert (macros["INPUT_X"], macros["INPUT_X_SIZE"], macros["INPUT_X_BYTES"]) == ("0", "10", "40")
    assert "INPUT_PAST" not in macros and "INPUT_1_SIZE" not in macros
    # The parity, then two halves: past takes 60 bytes, h 800 bytes, each in lines of 64.
    assert macros["STATE_BYTES"] == str(64 + 2 * (64 + 832))
    assert macros["STATE_ALIGNMENT"] == "64"
    step = "const float *const *inputs, float *const *outputs, void *state, void *workspace"
    assert f"int vad_step({step});" in text
    assert "int vad_state_init(void *state);" in text and "vad_run" not in text
    assert "The state holds past, h:" in text
