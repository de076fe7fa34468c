"""Worker process of one forest engine: loads a model, writes its predictions, and times it.

Run by the peers' own Python as `python forest_worker.py ENGINE CORE`; requests and replies are
JSON, one object a line:

    {"do": "load", "data": file.npz, "model": file, "folder": for compiled libraries} -> {"version"}
    {"do": "predict", "outputs": y.npy} -> {}
    {"do": "time", "batch": rows a call, "budget_ns": of all} -> {"ns": least of a row}

or {"error": words}. Calls take different rows in turn, since the branch predictor would learn a
repeated row. C functions are called from a loop in C.
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from time import perf_counter_ns as clock
from typing import Any

import numpy as np

_DRIVER = """
#include <string.h>
typedef union { int missing; double fvalue; int qvalue; } Entry;
void rows_tl2cgen(void (*predict)(Entry *, int, double *), const double *x, long rows,
                  long features, double *y, long outputs, Entry *entries) {
  for (long i = 0; i < rows; i++) {
    for (long j = 0; j < features; j++) entries[j].fvalue = x[i * features + j];
    memset(y + i * outputs, 0, outputs * sizeof(double));
    predict(entries, 0, y + i * outputs);
  }
}
void rows_lleaves(void (*root)(const double *, double *, int, int), const double *x, long rows,
                  long features, double *y, long batch) {
  for (long i = 0; i + batch <= rows; i += batch) root(x + i * features, y + i, 0, batch);
}
"""

# Predicts all rows, with the given number of rows a call.
Predict = Callable[[int], Any]


def _driver(folder: Path) -> ctypes.CDLL:
    """Compile and load the loops in C."""
    source, library = folder / "driver.c", folder / "driver.so"
    if not library.exists():
        source.write_text(_DRIVER)
        made = library.with_suffix(f".{os.getpid()}")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", made, source], check=True)
        made.rename(library)
    return ctypes.CDLL(str(library))


def _address(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _tl2cgen(request: dict[str, Any], data: Any, quantised: bool = False) -> Predict:
    tl2cgen, treelite = import_module("tl2cgen"), import_module("treelite")
    folder, bytes_of_model = Path(request["folder"]), Path(request["model"]).read_bytes()
    name = f"{sha256(bytes_of_model).hexdigest()[:16]}{'-quantised' * quantised}.so"
    if not (folder / name).exists():
        model = treelite.Model.deserialize(request["model"])
        settings = {"parallel_comp": 8, "quantize": int(quantised)}
        made = folder / f"{os.getpid()}-{name}"
        tl2cgen.export_lib(model, toolchain="gcc", libpath=str(made), params=settings)
        made.rename(folder / name)
    function = ctypes.CDLL(str(folder / name)).predict
    x = np.ascontiguousarray(data["x"], np.float64)
    y, entries = np.zeros((len(x), int(data["outputs"]))), np.zeros(x.shape[1])
    loop, sizes = _driver(folder).rows_tl2cgen, [ctypes.c_long(n) for n in (*x.shape, y.shape[1])]

    def predict(batch: int) -> Any:  # its functions take a row at a time
        loop(function, _address(x), *sizes[:2], _address(y), sizes[2], _address(entries))
        return y

    return predict


def _lleaves(request: dict[str, Any], data: Any) -> Predict:
    model = import_module("lleaves").Model(model_file=request["model"])
    name = sha256(Path(request["model"]).read_bytes()).hexdigest()[:16]
    model.compile(cache=Path(request["folder"]) / f"{name}-lleaves.bin")
    x = np.ascontiguousarray(data["x"], np.float64)
    y = np.zeros(len(x))
    loop, rows, features = _driver(Path(request["folder"])).rows_lleaves, *x.shape

    def predict(batch: int) -> Any:
        sizes = (ctypes.c_long(rows), ctypes.c_long(features))
        loop(model._c_entry_func, _address(x), *sizes, _address(y), ctypes.c_long(batch))
        return y[:, None]

    return predict


def _onnxruntime(request: dict[str, Any], data: Any) -> Predict:
    """ONNX Runtime's predictions of the forest, fitted again and converted to ONNX.

    The converter takes no other form.
    """
    ort, to_onnx = import_module("onnxruntime"), import_module("skl2onnx").to_onnx
    settings = json.loads(Path(request["model"]).read_text())
    kind = getattr(import_module("sklearn.ensemble"), settings.pop("kind"))
    x = np.ascontiguousarray(data["x"], np.float32)
    model = to_onnx(kind(**settings).fit(data["x_fit"], data["y_fit"]), x[:1])
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name

    def predict(batch: int) -> Any:
        calls = [{name: x[i : i + batch]} for i in range(0, len(x), batch)]
        return np.concatenate([session.run(None, call)[0] for call in calls])

    return predict


def _tl2cgen_quantised(request: dict[str, Any], data: Any) -> Predict:
    return _tl2cgen(request, data, quantised=True)


ENGINES = {
    "tl2cgen": _tl2cgen,
    "tl2cgen-quantised": _tl2cgen_quantised,
    "lleaves": _lleaves,
    "onnxruntime": _onnxruntime,
}


class ForestWorker:
    """Answers the requests of one engine."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._predict: Predict | None = None
        self._rows = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = getattr(self, request["do"])(request)
        return reply

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        with np.load(request["data"]) as arrays:
            data = dict(arrays)
        self._rows = len(data["x"])
        self._predict = ENGINES[self._engine](request, data)
        return {"version": version(self._engine.partition("-")[0])}

    def predict(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._predict is not None
        np.save(request["outputs"], self._predict(self._rows))
        return {}

    def time(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._predict is not None
        least, end = float("inf"), clock() + request["budget_ns"]
        while least == float("inf") or clock() < end:
            start = clock()
            self._predict(request["batch"])
            least = min(least, clock() - start)
        return {"ns": least / self._rows}


def main(engine: str, core: str) -> None:
    """Answer requests until there are no more, on one core, with libraries' prints on stderr."""
    os.sched_setaffinity(0, {int(core)})
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # This file's folder holds modules with names that a library may use for its own.
    own = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.realpath(path) != own]
    worker = ForestWorker(engine)
    for line in sys.stdin:
        try:
            reply = worker.answer(json.loads(line))
        except Exception as error:  # of any type: the other peers are still measured
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
