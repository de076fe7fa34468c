"""`sparsejit run-with` in processes of their own: a script imports ours as onnxruntime."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

SCRIPT = """
import sys

import numpy as np
import onnxruntime as ort
from onnx import helper
from onnxruntime import InferenceSession
from onnxruntime.capi import _pybind_state
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
import onnxruntime.quantization

x = helper.make_tensor_value_info("x", 1, [3, 3])
z = helper.make_tensor_value_info("z", 1, [])
nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Det", ["y"], ["z"])]
graph = helper.make_graph(nodes, "net", [x], [z])
opsets = [helper.make_opsetid("", 17)]
model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
session = InferenceSession(model.SerializeToString())
print(session.run(None, {"x": np.eye(3, dtype=np.float32)})[0], len(session.compiled))
try:
    session.run(None, {"x": np.eye(2, dtype=np.float32)})
except InvalidArgument:
    print(sys.argv[1:], type(session).__module__, __name__)
"""


def run(folder: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(script)
    command = [sys.executable, "-m", "sparsejit", "run-with"]
    return subprocess.run(
        [*command, *words], cwd=folder, capture_output=True, text=True, check=False
    )


def test_a_script_runs_on_compiled_code(tmp_path: Path) -> None:
    done = run(tmp_path, SCRIPT, "script.py", "--own", "option")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "1.0 1"
    assert second == "['--own', 'option'] sparsejit.onnxruntime.session __main__"
    assert "leaves 1 nodes to ONNX Runtime, the first is Det" in done.stderr


def test_sizes_may_be_compiled_later(tmp_path: Path) -> None:
    done = run(tmp_path, SCRIPT, "--compile-at-use", "2", "script.py")
    assert done.stdout.splitlines()[0] == "1.0 0"


def test_errors_of_a_script_show_where_they_were_raised(tmp_path: Path) -> None:
    script = "import onnxruntime\nonnxruntime.InferenceSession('none.onnx')\n"
    done = run(tmp_path, script, "script.py")
    assert done.returncode == 1
    assert 'script.py", line 2' in done.stderr
    assert "NO_SUCHFILE" in done.stderr


def test_a_script_without_onnx_runtime(tmp_path: Path) -> None:
    script = SCRIPT.split("x = helper")[0].replace("import onnxruntime.quantization", "")
    script = script.replace("from onnxruntime.capi import _pybind_state", "print(ort.__name__)")
    hidden = "import sys; sys.modules['onnxruntime'] = None; import runpy\n"
    hidden += "sys.argv = ['sparsejit', 'run-with', 'script.py']\n"
    hidden += "runpy.run_module('sparsejit', run_name='__main__')"
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-c", hidden], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["sparsejit.onnxruntime"], done.stderr
