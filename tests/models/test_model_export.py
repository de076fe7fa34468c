"""Exported models in C programs: the bits of Python's calls, from two threads at once."""

import re
import subprocess
from pathlib import Path

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

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.ir.values import Origin


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


def test_a_model_for_several_threads_is_not_exported(tmp_path: Path) -> None:
    model = compiled(words(1), 1, threads=2)
    with pytest.raises(InvalidInput, match="for 2 threads of this process; compile it with thread"):
        model.export(tmp_path / "model.o")
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
