"""The rivals: every library here that multiplies the same matrix by the same vector.

A peer is made for one problem, computes once for the check of its output, and is then timed: a C
function in the native loop, a Python function in a Python loop. All run on one thread.
"""

import ctypes
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse
import threadpoolctl
import torch
from torch.nn.functional import linear

from sparsejit.errors import MissingDependency
from sparsejit.perf.timing import Timing, call_native, time_native, time_python

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Peer:
    """A library's product of one matrix with one vector.

    `call` is how it is timed: "native" leaves Python out, "python" cannot. `output()` computes
    and returns y (out_features,).
    """

    name: str
    call: Literal["native", "python"]
    output: Callable[[], FloatArray]
    time: Callable[[], Timing]


@contextmanager
def single_threaded() -> Iterator[None]:
    """Let no library use more than one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpoolctl.threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def peers_for(weights: FloatArray, x: FloatArray) -> tuple[list[Peer], dict[str, str]]:
    """Every peer for y = weights x, and why each absent one is skipped."""
    peers, skipped = [], {}
    for name in _MAKERS:
        try:
            peers.append(make_peer(name, weights, x))
        except MissingDependency as problem:
            skipped[name] = str(problem)
    return peers, skipped


def make_peer(name: str, weights: FloatArray, x: FloatArray) -> Peer:
    """The peer of that name for y = weights x; raises MissingDependency where it is absent."""
    return _MAKERS[name](name, weights, x)


def _numpy(name: str, weights: FloatArray, x: FloatArray) -> Peer:
    y = np.empty(len(weights), np.float32)
    return _python_peer(name, lambda: np.dot(weights, x, out=y))


def _torch_linear(name: str, weights: FloatArray, x: FloatArray) -> Peer:
    matrix, vector = torch.from_numpy(weights), torch.from_numpy(x)
    return _torch_peer(name, lambda: linear(vector, matrix))


def _torch_mv(name: str, weights: FloatArray, x: FloatArray) -> Peer:
    matrix, vector = torch.from_numpy(weights), torch.from_numpy(x)
    y = torch.empty(len(weights))
    return _torch_peer(name, lambda: torch.mv(matrix, vector, out=y))


def _torch_csr(name: str, weights: FloatArray, x: FloatArray) -> Peer:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        matrix = torch.from_numpy(weights).to_sparse_csr()
    vector = torch.from_numpy(x)
    return _torch_peer(name, lambda: torch.mv(matrix, vector))


def _scipy_csr(name: str, weights: FloatArray, x: FloatArray) -> Peer:
    matrix = scipy.sparse.csr_matrix(weights)
    return _python_peer(name, lambda: matrix @ x)


def _openblas(name: str, weights: FloatArray, x: FloatArray) -> Peer:
    return _sgemv_peer(name, _openblas_sgemv(), weights, x)


def _mkl_dense(name: str, weights: FloatArray, x: FloatArray) -> Peer:
    return _sgemv_peer(name, _address(_mkl().cblas_sgemv), weights, x)


def _mkl_csr(name: str, weights: FloatArray, x: FloatArray) -> Peer:
    matrix = _MklMatrix(weights)
    y = np.empty(len(weights), np.float32)
    # status mkl_sparse_s_mv(operation, alpha, A, descr, x, beta, y); descr is 12 bytes by value.
    arguments = (
        *(_NO_TRANSPOSE, 1.0, matrix.handle, *_GENERAL_MATRIX_WORDS),
        *(x.ctypes.data, 0.0, y.ctypes.data),
    )
    return _native_peer(name, _address(_mkl().mkl_sparse_s_mv), arguments, y, (matrix, x))


_MAKERS: dict[str, Callable[[str, FloatArray, FloatArray], Peer]] = {
    "numpy (OpenBLAS)": _numpy,
    "OpenBLAS sgemv": _openblas,
    "MKL sgemv": _mkl_dense,
    "torch F.linear": _torch_linear,
    "torch.mv": _torch_mv,
    "scipy CSR": _scipy_csr,
    "torch CSR": _torch_csr,
    "MKL CSR": _mkl_csr,
}
DENSE_PEERS = ("numpy (OpenBLAS)", "OpenBLAS sgemv", "MKL sgemv", "torch F.linear", "torch.mv")


def _python_peer(name: str, compute: Callable[[], FloatArray]) -> Peer:
    return Peer(name, "python", compute, lambda: time_python(compute))


def _torch_peer(name: str, compute: Callable[[], torch.Tensor]) -> Peer:
    def timing() -> Timing:
        with torch.inference_mode():
            return time_python(compute)

    return Peer(name, "python", lambda: compute().numpy(), timing)


def _native_peer(
    name: str, address: int, arguments: tuple[int | float, ...], y: FloatArray, keep: Any
) -> Peer:
    """A C function that writes `y`; `keep` owns what the arguments point to."""

    def output() -> FloatArray:
        call_native(address, arguments)
        return y

    def timing(kept: Any = keep) -> Timing:
        return time_native(address, arguments)

    return Peer(name, "native", output, timing)


def _sgemv_peer(name: str, address: int, weights: FloatArray, x: FloatArray) -> Peer:
    """cblas_sgemv(layout, transpose, m, n, alpha, A, lda, x, incx, beta, y, incy)."""
    rows, columns = weights.shape
    y = np.empty(rows, np.float32)
    arguments = (
        *(_ROW_MAJOR, _CBLAS_NO_TRANSPOSE, rows, columns, 1.0, weights.ctypes.data, columns),
        *(x.ctypes.data, 1, 0.0, y.ctypes.data, 1),
    )
    return _native_peer(name, address, arguments, y, (weights, x))


_ROW_MAJOR, _CBLAS_NO_TRANSPOSE = 101, 111
_SGEMV_NAMES = ("scipy_cblas_sgemv64_", "cblas_sgemv64_", "scipy_cblas_sgemv", "cblas_sgemv")

# mkl_spblas.h. struct matrix_descr is {type, mode, diag}; only the type matters if it is general.
_NO_TRANSPOSE, _INDEX_BASE_ZERO, _GENERAL = 10, 0, 20
_GENERAL_MATRIX_WORDS = (_GENERAL, 0)
_EXPECTED_CALLS = 1_000_000
_SEQUENTIAL, _LP64 = 1, 0


class _MatrixDescription(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("type", "mode", "diag")]


class _MklMatrix:
    """A CSR matrix inside MKL, optimised for many products with a vector."""

    def __init__(self, weights: FloatArray) -> None:
        mkl, handle = _mkl(), ctypes.c_void_p()
        csr = scipy.sparse.csr_matrix(weights)
        self._arrays = starts, columns, values = (
            csr.indptr.astype(np.int32),
            csr.indices.astype(np.int32),
            csr.data.astype(np.float32),
        )
        description = _MatrixDescription(_GENERAL, 0, 0)
        _require_success(
            mkl.mkl_sparse_s_create_csr(
                *(ctypes.byref(handle), _INDEX_BASE_ZERO, *map(ctypes.c_int, weights.shape)),
                *(_pointer(starts), _pointer(starts[1:]), _pointer(columns), _pointer(values)),
            ),
            mkl.mkl_sparse_set_mv_hint(handle, _NO_TRANSPOSE, description, _EXPECTED_CALLS),
            mkl.mkl_sparse_optimize(handle),
        )
        self.handle = int(handle.value or 0)
        weakref.finalize(self, mkl.mkl_sparse_destroy, handle)


def _require_success(*statuses: int) -> None:
    if any(statuses):
        raise MissingDependency(f"MKL's sparse functions returned {statuses}; reinstall mkl")


def _pointer(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


@cache
def _mkl() -> Any:
    try:
        files = metadata.files("mkl") or []
    except metadata.PackageNotFoundError:
        files = []
    found = [str(file.locate()) for file in files if file.name.startswith("libmkl_rt.so")]
    if not found:
        raise MissingDependency("the mkl package is absent; pip install 'sparsejit[bench]'")
    library = ctypes.CDLL(found[0])
    library.MKL_Set_Interface_Layer(_LP64)
    library.MKL_Set_Threading_Layer(_SEQUENTIAL)
    return library


@cache
def _openblas_sgemv() -> int:
    """The address of cblas_sgemv in the OpenBLAS that numpy loaded.

    Its integers may be 32 or 64 bits wide: an argument register serves both.
    """
    for pool in threadpoolctl.threadpool_info():
        path = Path(pool["filepath"])
        if pool["internal_api"] != "openblas" or "numpy" not in path.parent.name:
            continue
        library = ctypes.CDLL(str(path))
        for symbol in _SGEMV_NAMES:
            if hasattr(library, symbol):
                return _address(getattr(library, symbol))
    raise MissingDependency("numpy's OpenBLAS has no cblas_sgemv under a known name")
