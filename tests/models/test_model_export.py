"""Exported models in C programs: the bits of Python's calls, on any threads."""

import ctypes
import re
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from c_program import built
from saved_models import (
    CASES,
    Case,
    as_native,
    compiled,
    inputs_of,
    native_inputs,
    perceptron,
    words,
)
from system_tools import GCC, needs_gcc, needs_linker, run_tool
from torch import nn

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.ir.values import Origin
from sparsejit.runtime.native_call import address_table, new_workspace
from sparsejit.runtime.workers import available_cores


@needs_gcc
@needs_linker
@pytest.mark.parametrize("name", CASES)
def test_c_gets_the_bits_of_python_from_two_threads(tmp_path: Path, name: str) -> None:
    model = CASES[name].compiled()
    inputs = native_inputs(model, samples=7)
    (tmp_path / "x").write_bytes(b"".join(array.tobytes() for array in inputs))
    results = model.run(inputs_of(model, samples=7))
    if model.batch_axes is not None:
        results = as_native(results, model.batch_axes.outputs)
    for kind in ("o", "so"):
        run_tool(built(model, tmp_path, 7, kind), tmp_path / "x", tmp_path / "y")
        wanted = b"".join(array.tobytes() for array in results)
        assert (tmp_path / "y").read_bytes() == wanted


@needs_gcc
def test_an_index_out_of_range_is_the_positive_number_of_its_kernel(tmp_path: Path) -> None:
    model = CASES["words"].compiled()
    inputs = inputs_of(model, samples=2)
    inputs[0][1, 1] = 9
    (tmp_path / "x").write_bytes(b"".join(array.tobytes() for array in inputs))
    command = [built(model, tmp_path, 2, "o"), tmp_path / "x", tmp_path / "y"]
    kernels = [step.kernel for step in model.parts.variants[0].steps]
    assert subprocess.run(command, check=False).returncode == 1 + kernels.index("embedding")
    assert "positive result, neither MODEL_OK nor MODEL_UNSUPPORTED_CPU" in header(tmp_path)


def header(folder: Path) -> str:
    return (folder / "model.h").read_text()


def exported(case: Case, folder: Path) -> str:
    """The header of a model."""
    case.compiled().export(folder / "model.o", header=folder / "model.h")
    return header(folder)


def test_the_header_says_shapes_sizes_and_types(tmp_path: Path) -> None:
    case = CASES["words"]
    text = exported(case, tmp_path)
    macros = dict(re.findall(r"^#define MODEL_(\w+) (\S+)", text, re.MULTILINE))
    assert re.fullmatch('"[0-9a-f]{16}"', macros.pop("HASH"))
    assert macros.pop("WORKSPACE_BYTES") == str(case.compiled().stats["workspace_bytes"])
    assert macros == {
        "OK": "0",
        "UNSUPPORTED_CPU": "(-1)",
        "INPUTS": "2",
        "OUTPUTS": "3",
        "INPUT_0_SIZE": "3",
        "INPUT_0_BYTES": "24",
        "INPUT_1_SIZE": "1",
        "INPUT_1_BYTES": "1",
        "OUTPUT_0_SIZE": "6",
        "OUTPUT_0_BYTES": "24",
        "OUTPUT_1_SIZE": "3",
        "OUTPUT_1_BYTES": "24",
        "OUTPUT_2_SIZE": "1",
        "OUTPUT_2_BYTES": "1",
        "WORKSPACE_ALIGNMENT": "64",
        "OUTPUT_TOPK": "0",
        "OUTPUT_TOPK_SIZE": "6",
        "OUTPUT_TOPK_BYTES": "24",
        "OUTPUT_ARGMAX": "1",
        "OUTPUT_ARGMAX_SIZE": "3",
        "OUTPUT_ARGMAX_BYTES": "24",
        "OUTPUT_LOGICAL_NOT": "2",
        "OUTPUT_LOGICAL_NOT_SIZE": "1",
        "OUTPUT_LOGICAL_NOT_BYTES": "1",
    }  # both inputs are x, so neither has its name
    assert "   inputs[0]: int64 x[samples][3]\n" in text
    assert "   outputs[2]: bool logical_not[samples]\n" in text
    assert (
        "int model_run(const void *const *inputs, void *const *outputs, void *workspace, "
        "ptrdiff_t samples);" in text
    )


@needs_gcc
@needs_linker
def test_a_header_of_another_interface_does_not_link(tmp_path: Path) -> None:
    """New weights keep the interface; another shape makes it another."""
    main = "#include \"model.h\"\nint main(void) { return model_prepare(0); }\n"
    (tmp_path / "main.c").write_text(main)
    command = [GCC, tmp_path / "main.c", tmp_path / "model.o", "-o", tmp_path / "main"]
    exported(CASES["perceptron"], tmp_path)
    run_tool(*command)
    random = np.random.default_rng(5)
    graph = perceptron(1)
    for constant in graph.constants.values():
        constant *= random.uniform(0.5, 2, constant.shape).astype(np.float32)
    compiled(graph, 1).export(tmp_path / "model.o")
    run_tool(*command)
    compiled(perceptron(1, features=17), 1).export(tmp_path / "model.o")
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode and re.search("undefined reference to .model_prepare_", done.stderr)


def test_a_fixed_batch_needs_no_samples(tmp_path: Path) -> None:
    text = exported(CASES["recurrent"], tmp_path)
    assert (
        "int model_run(const float *const *inputs, float *const *outputs, void *workspace);" in text
    )
    assert "   outputs[0]: float32 Recurrence[7][2][10]\n" in text
    assert "samples" not in text


def test_the_header_says_where_samples_lie(tmp_path: Path) -> None:
    text = exported(CASES["time-first"], tmp_path)
    assert "   inputs[0]: float32 x[samples][7][6]\n" in text
    assert "     samples come first here; the model has them on axis 1\n" in text
    assert "   inputs[2]: float32 x[10]\n *     the same for all samples\n" in text
    assert re.search(r"MODEL_INPUT_2_BYTES 40 +/\* bytes of inputs\[2\] \*/", text)
    assert re.search(r"MODEL_INPUT_1_BYTES 40 +/\* bytes of inputs\[1\] for each sample \*/", text)


def test_no_name_ends_the_comment(tmp_path: Path) -> None:
    graph = perceptron(1)
    object.__setattr__(graph.inputs[0], "origin", Origin("x*/ int y; /*"))
    compiled(graph, None).export(tmp_path / "model.o", header=tmp_path / "model.h")
    assert "inputs[0]: float32 x___int_y____[1][16]" in header(tmp_path)


def on_threads(width: int = 512, samples: int = 1, **options: Any) -> tuple[Any, np.ndarray]:
    """A perceptron whose layers two threads share, or where they take turns with tiles."""
    torch.manual_seed(0)
    layers = nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.Linear(width, 8)
    x = torch.randn(samples, width)
    fast = sparsejit.compile(nn.Sequential(*layers).eval(), (x,), threads=2, **options)
    return fast, x.numpy()


EXAMPLE = Path(__file__).parents[2] / "examples" / "host_threads.c"


@needs_gcc
@pytest.mark.skipif(available_cores() < 2, reason="needs two cores")
@pytest.mark.parametrize("gives_threads", [True, False])
def test_threads_of_the_host_give_the_bits_of_python(tmp_path: Path, gives_threads: bool) -> None:
    """The example's program; without a table the caller's thread runs all parts."""
    fast, x = on_threads(free_batch=False)
    assert any(wave.is_shared for wave in fast.parts.variants[0].waves)
    fast.export(tmp_path / "model.o", header=tmp_path / "model.h")
    given = "workspace, &threads)" if gives_threads else "workspace, count == 3 ? NULL : &threads)"
    text = EXAMPLE.read_text()
    assert "workspace, &threads)" in text
    (tmp_path / "main.c").write_text(text.replace("workspace, &threads)", given))
    strict = "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"
    run_tool(GCC, *strict, tmp_path / "main.c", tmp_path / "model.o", "-o", tmp_path / "main")
    (tmp_path / "x").write_bytes(x.tobytes())
    for _ in range(20):
        run_tool(tmp_path / "main", tmp_path / "x", tmp_path / "y")
        assert (tmp_path / "y").read_bytes() == fast(x).tobytes()


class Host(ctypes.Structure):
    """The table of a host with a thread that was there before; `started` counts its parts."""

    _RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    _START = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, _RUN, ctypes.c_void_p)
    _WAIT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)
    _fields_ = (("self", ctypes.c_void_p), ("start", _START), ("wait", _WAIT))

    def __init__(self) -> None:
        self.started, running, pool = 0, dict[int, Future[None]](), ThreadPoolExecutor(1)
        pool.submit(int).result()  # a thread has the MXCSR of the one that begins it

        def start(own: int, number: int, function: Any, argument: int) -> None:
            assert own == 77
            self.started += 1
            running[number] = pool.submit(function, argument)

        super().__init__(77, self._START(start), self._WAIT(lambda _, n: running.pop(n).result()))


def called(library: Any, name: str, arrays: list[list[np.ndarray]], *others: Any) -> int:
    tables = [ctypes.byref(address_table(each)) for each in arrays]
    return int(getattr(library, name)(*tables, *others))


@needs_linker
@pytest.mark.skipif(available_cores() < 2, reason="needs two cores")
def test_the_host_has_threads_take_turns_with_tiles(tmp_path: Path) -> None:
    fast, x = on_threads(64, samples=150)
    assert fast.parts.variants[0].options.shares_tiles
    fast.export(tmp_path / "model.so", header=tmp_path / "model.h")
    library, host, y = ctypes.CDLL(str(tmp_path / "model.so")), Host(), np.zeros((150, 8), "f4")
    room = new_workspace(int(re.search(r"WORKSPACE_BYTES (\d+)", header(tmp_path))[1]))
    given = ctypes.c_void_p(room.ctypes.data), ctypes.c_ssize_t(150)
    assert called(library, "model_run", [[x], [y]], *given, ctypes.byref(host)) == 0
    assert host.started > 0
    np.testing.assert_array_equal(y, fast(x))


@needs_linker
@pytest.mark.skipif(available_cores() < 2, reason="needs two cores")
def test_steps_on_threads_of_the_host_count_denormals_as_zero(tmp_path: Path) -> None:
    """So that all parts have the caller's rounding and flushing."""

    class Fading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Linear(512, 512, bias=False) for _ in range(2))

        def forward(self, x: Any, h: Any) -> Any:
            h = self.second(self.first(x + 1e-30 * h))
            return h, h

    torch.manual_seed(0)
    given = torch.randn(1, 512), torch.zeros(1, 512)
    options = {"threads": 2, "free_batch": False, "state": {1: 1}}
    fast = sparsejit.compile(Fading().eval(), given, **options)
    assert any(wave.is_shared for wave in fast.parts.variants[0].waves)
    fast.export(tmp_path / "model.so", header=tmp_path / "model.h")
    library, host, stream = ctypes.CDLL(str(tmp_path / "model.so")), Host(), fast.stream()
    sizes = dict(re.findall(r"MODEL_(STATE|WORKSPACE)_BYTES (\d+)", header(tmp_path)))
    state, room = (new_workspace(int(sizes[each])) for each in ("STATE", "WORKSPACE"))
    places = [ctypes.c_void_p(each.ctypes.data) for each in (state, room)]
    assert library.model_state_init(places[0]) == 0
    for scale in (1.0, 1e-37, 1e-37, 1e-38):
        x, y = given[0].numpy() * np.float32(scale), np.zeros((1, 512), np.float32)
        assert called(library, "model_step", [[x], [y]], *places, ctypes.byref(host)) == 0
        np.testing.assert_array_equal(y, stream(x))
    assert host.started > 0


def test_exports_that_no_threads_can_run_are_refused(tmp_path: Path) -> None:
    fast, _ = on_threads(free_batch=False)
    with pytest.raises(InvalidInput, match="cannot take a table of threads; compile with thread"):
        fast.export(tmp_path / "model.obj", system="windows")
    with pytest.raises(InvalidInput, match="runs on one thread, and vad is compiled for 2"):
        fast.export(tmp_path / "vad", cmake="vad")
    with pytest.raises(InvalidInput, match=r"is no \.o or \.so file"):
        compiled(words(1), 1).export(tmp_path / "model.sjit")
    assert not list(tmp_path.iterdir())


def test_an_exported_model_is_the_same_each_time(tmp_path: Path) -> None:
    model = CASES["images"].compiled()
    contents = set()
    for _ in range(2):
        model.export(tmp_path / "model.o")
        contents.add((tmp_path / "model.o").read_bytes())
    assert len(contents) == 1


@needs_linker
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64", "int8"])
def test_the_header_names_the_models_dtypes(name: str, tmp_path: Path) -> None:
    x = torch.ones(2, 3).to(getattr(torch, name))
    model = torch.nn.ReLU().eval()
    sparsejit.compile(model, (x,)).export(tmp_path / "net.o", header=tmp_path / "net.h")
    lines = [line.strip(" *") for line in (tmp_path / "net.h").read_text().splitlines()]
    first, second = (n for n, line in enumerate(lines) if line.startswith("the model has"))
    assert lines[first] == f"the model has {name}; numbers are read as they are"
    assert lines[second] == f"the model has {name}; numbers are values that it can hold"
    element = "int64" if name == "int8" else "float32"
    assert lines[first - 1].startswith(f"inputs[0]: {element} ")
