"""The peers: every library here that multiplies the same matrix by the same vector.

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
from sparsejit.perf.timing import time_python
from sparsejit.runtime.native_timing import Timing, call_native, time_native

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Peer:
    """A library's product of one matrix with one vector.

    `call` is the loop that times it: "native", without Python, or "python". `output()` computes and
    returns y (out_features,).
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
    """Every peer for y = weights x, and the reason for each absent one."""
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
    return python_peer(name, lambda: np.dot(weights, x, out=y))


def _torch_linear(name: str, weights: FloatArray, x: FloatArray) -> Peer:
    matrix, vector = torch.from_numpy(weights), torch.from_numpy(x)
    return torch_peer(name, lambda: linear(vector, matrix))


def _torch_mv(name: str, weights: FloatArray, x: FloatArray) -> Peer:
    matrix, vector = torch.from_numpy(weights), torch.from_numpy(x)
    y = torch.empty(len(weights))
    return torch_peer(name, lambda: torch.mv(matrix, vector, out=y))


def _torch_csr(name: str, weights: FloatArray, x: FloatArray) -> Peer:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        matrix = torch.from_numpy(weights).to_sparse_csr()
    vector = torch.from_numpy(x)
    return torch_peer(name, lambda: torch.mv(matrix, vector))


def _scipy_csr(name: str, weights: FloatArray, x: FloatArray) -> Peer:
    matrix = scipy.sparse.csr_matrix(weights)
    return python_peer(name, lambda: matrix @ x)


def _openblas(name: str, weights: FloatArray, x: FloatArray) -> Peer:
    return _sgemv_peer(name, openblas("sgemv"), weights, x)


def _mkl_dense(name: str, weights: FloatArray, x: FloatArray) -> Peer:
    return _sgemv_peer(name, address_of(mkl().cblas_sgemv), weights, x)


def _mkl_csr(name: str, weights: FloatArray, x: FloatArray) -> Peer:
    matrix = MklMatrix(weights)
    y = np.empty(len(weights), np.float32)
    # status mkl_sparse_s_mv(operation, alpha, A, descr, x, beta, y); descr is 12 bytes by value.
    arguments = (
        *(NO_TRANSPOSE, 1.0, matrix.handle, *GENERAL_MATRIX_WORDS),
        *(x.ctypes.data, 0.0, y.ctypes.data),
    )
    return native_peer(name, address_of(mkl().mkl_sparse_s_mv), arguments, y, (matrix, x))


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


def python_peer(name: str, compute: Callable[[], FloatArray]) -> Peer:
    """A peer whose product is a Python function that returns y, timed in a Python loop."""
    return Peer(name, "python", compute, lambda: time_python(compute))


def torch_peer(name: str, compute: Callable[[], torch.Tensor]) -> Peer:
    """A peer whose product is a torch function that returns y, timed in a Python loop.

    It runs in inference mode, so that no graph is recorded.
    """

    def timing() -> Timing:
        with torch.inference_mode():
            return time_python(compute)

    return Peer(name, "python", lambda: compute().numpy(), timing)


def native_peer(
    name: str, address: int, arguments: tuple[int | float, ...], y: FloatArray, keep: Any
) -> Peer:
    """A peer whose product is a C function that writes `y`, timed in a native loop.

    `keep` owns the memory that the arguments point to.
    """

    def output() -> FloatArray:
        call_native(address, arguments)
        return y

    def timing(kept: Any = (keep, y)) -> Timing:
        return time_native(address, arguments)

    return Peer(name, "native", output, timing)


def _sgemv_peer(name: str, address: int, weights: FloatArray, x: FloatArray) -> Peer:
    """A BLAS's product of a matrix and a vector, by cblas_sgemv, timed natively.

    Its arguments: layout, transpose, m, n, alpha, A, lda, x, incx, beta, y, incy.
    """
    rows, columns = weights.shape
    y = np.empty(rows, np.float32)
    arguments = (
        *(ROW_MAJOR, CBLAS_NO_TRANSPOSE, rows, columns, 1.0, weights.ctypes.data, columns),
        *(x.ctypes.data, 1, 0.0, y.ctypes.data, 1),
    )
    return native_peer(name, address, arguments, y, (weights, x))


ROW_MAJOR, COLUMN_MAJOR, CBLAS_NO_TRANSPOSE, CBLAS_TRANSPOSE = 101, 102, 111, 112

# mkl_spblas.h. struct matrix_descr is {type, mode, diag}; only the type matters if it is general.
NO_TRANSPOSE, _INDEX_BASE_ZERO, _GENERAL = 10, 0, 20
GENERAL_MATRIX_WORDS = (_GENERAL, 0)
_EXPECTED_CALLS = 1_000_000
_SEQUENTIAL, _LP64 = 1, 0


class _MatrixDescription(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("type", "mode", "diag")]


class MklMatrix:
    """A CSR matrix inside MKL, optimised for many products with a vector, or with a matrix.

    `batch` is the number of columns of the second matrix, `order` its layout.
    """

    def __init__(self, weights: FloatArray, batch: int = 1, order: int = ROW_MAJOR) -> None:
        library, handle = mkl(), ctypes.c_void_p()
        csr = scipy.sparse.csr_matrix(weights)
        self._arrays = starts, columns, values = (
            csr.indptr.astype(np.int32),
            csr.indices.astype(np.int32),
            csr.data.astype(np.float32),
        )
        description = _MatrixDescription(_GENERAL, 0, 0)
        _require_success(
            library.mkl_sparse_s_create_csr(
                *(ctypes.byref(handle), _INDEX_BASE_ZERO, *map(ctypes.c_int, weights.shape)),
                *(_pointer(starts), _pointer(starts[1:]), _pointer(columns), _pointer(values)),
            ),
            self._hint(handle, description, batch, order),
            library.mkl_sparse_optimize(handle),
        )
        self.handle = int(handle.value or 0)
        weakref.finalize(self, library.mkl_sparse_destroy, handle)

    @staticmethod
    def _hint(
        handle: ctypes.c_void_p, description: _MatrixDescription, batch: int, order: int
    ) -> int:
        library, matrix = mkl(), (handle, NO_TRANSPOSE, description)
        if batch == 1:
            return int(library.mkl_sparse_set_mv_hint(*matrix, _EXPECTED_CALLS))
        return int(library.mkl_sparse_set_mm_hint(*matrix, order, batch, _EXPECTED_CALLS))


def _require_success(*statuses: int) -> None:
    if any(statuses):
        raise MissingDependency(f"MKL's sparse functions returned {statuses}; reinstall mkl")


def _pointer(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def address_of(function: Any) -> int:
    """The address of a function that ctypes loaded."""
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


@cache
def mkl() -> Any:
    """MKL's single dynamic library, sequential; raises MissingDependency where it is absent."""
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
def openblas(function: str) -> int:
    """The address of a function of cblas in the OpenBLAS that numpy loaded.

    OpenBLAS's integers may be 32 or 64 bits wide: an argument register holds either. Raises
    MissingDependency where numpy has another BLAS.
    """
    for pool in threadpoolctl.threadpool_info():
        path = Path(pool["filepath"])
        if pool["internal_api"] != "openblas" or "numpy" not in path.parent.name:
            continue
        library = ctypes.CDLL(str(path))
        for end in ("64_", ""):
            for start in ("scipy_cblas_", "cblas_"):
                if hasattr(library, f"{start}{function}{end}"):
                    return address_of(getattr(library, f"{start}{function}{end}"))
    raise MissingDependency(f"numpy's OpenBLAS has no cblas_{function} under a known name")
