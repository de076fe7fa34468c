"""The peers for a batch: the same libraries as `peers`, with a matrix for x.

x and y are (features, batch) or (batch, features), by the problem's layout. A peer that has a
choice gets x in its fastest layout, so that no transposition is timed.
"""

import warnings
from collections.abc import Callable

import numpy as np
import scipy.sparse
import torch
from torch.nn.functional import linear

from sparsejit.errors import MissingDependency
from sparsejit.ir.spec import Layout
from sparsejit.perf.peers.peers import (
    CBLAS_NO_TRANSPOSE,
    CBLAS_TRANSPOSE,
    COLUMN_MAJOR,
    GENERAL_MATRIX_WORDS,
    NO_TRANSPOSE,
    ROW_MAJOR,
    FloatArray,
    MklMatrix,
    Peer,
    address_of,
    mkl,
    native_peer,
    openblas,
    python_peer,
    torch_peer,
)


def batch_peers_for(
    weights: FloatArray, x: FloatArray, layout: Layout
) -> tuple[list[Peer], dict[str, str]]:
    """Every peer for the product of weights (out, in) with x, and the reason for each absent one.

    `output()` of each returns y in `layout`.
    """
    peers, skipped = [], {}
    for name in _MAKERS:
        try:
            peers.append(make_batch_peer(name, weights, x, layout))
        except MissingDependency as problem:
            skipped[name] = str(problem)
    return peers, skipped


def make_batch_peer(name: str, weights: FloatArray, x: FloatArray, layout: Layout) -> Peer:
    """The peer of that name; raises MissingDependency where it is absent."""
    return _MAKERS[name](name, weights, x, layout)


def _torch_linear(name: str, weights: FloatArray, x: FloatArray, layout: Layout) -> Peer:
    matrix = torch.from_numpy(weights)
    rows = torch.from_numpy(x.T.copy() if layout is Layout.FEATURE_MAJOR else x)
    peer = torch_peer(name, lambda: linear(rows, matrix))
    return _transposing(peer) if layout is Layout.FEATURE_MAJOR else peer


def _scipy_csr(name: str, weights: FloatArray, x: FloatArray, layout: Layout) -> Peer:
    matrix = scipy.sparse.csr_matrix(weights)
    columns = x if layout is Layout.FEATURE_MAJOR else np.ascontiguousarray(x.T)
    peer = python_peer(name, lambda: matrix @ columns)
    return peer if layout is Layout.FEATURE_MAJOR else _transposing(peer)


def _torch_csr(name: str, weights: FloatArray, x: FloatArray, layout: Layout) -> Peer:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        matrix = torch.from_numpy(weights).to_sparse_csr()
    feature_major = layout is Layout.FEATURE_MAJOR
    columns = torch.from_numpy(x if feature_major else np.ascontiguousarray(x.T))
    peer = torch_peer(name, lambda: matrix @ columns)
    return peer if feature_major else _transposing(peer)


def _openblas(name: str, weights: FloatArray, x: FloatArray, layout: Layout) -> Peer:
    return _sgemm_peer(name, openblas("sgemm"), weights, x, layout)


def _mkl_dense(name: str, weights: FloatArray, x: FloatArray, layout: Layout) -> Peer:
    return _sgemm_peer(name, address_of(mkl().cblas_sgemm), weights, x, layout)


def _mkl_csr(name: str, weights: FloatArray, x: FloatArray, layout: Layout) -> Peer:
    feature_major = layout is Layout.FEATURE_MAJOR
    batch = x.shape[1] if feature_major else x.shape[0]
    order = ROW_MAJOR if feature_major else COLUMN_MAJOR
    matrix = MklMatrix(weights, batch, order)
    y = _output(weights, x, layout)
    # status mkl_sparse_s_mm(operation, alpha, A, descr, layout, x, columns, ldx, beta, y, ldy).
    arguments = (
        *(NO_TRANSPOSE, 1.0, matrix.handle, *GENERAL_MATRIX_WORDS, order),
        *(x.ctypes.data, batch, x.shape[1], 0.0, y.ctypes.data, y.shape[1]),
    )
    return native_peer(name, address_of(mkl().mkl_sparse_s_mm), arguments, y, (matrix, x))


_MAKERS: dict[str, Callable[[str, FloatArray, FloatArray, Layout], Peer]] = {
    "OpenBLAS sgemm": _openblas,
    "MKL sgemm": _mkl_dense,
    "torch F.linear": _torch_linear,
    "scipy CSR": _scipy_csr,
    "torch CSR": _torch_csr,
    "MKL CSR": _mkl_csr,
}


def _sgemm_peer(
    name: str, address: int, weights: FloatArray, x: FloatArray, layout: Layout
) -> Peer:
    """A BLAS's product of a matrix and a batch, by cblas_sgemm, timed natively.

    Its arguments: order, trans A, trans B, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc.
    """
    y = _output(weights, x, layout)
    if layout is Layout.FEATURE_MAJOR:
        left, right, transpose_right = weights, x, CBLAS_NO_TRANSPOSE
    else:
        left, right, transpose_right = x, weights, CBLAS_TRANSPOSE
    arguments = (
        *(ROW_MAJOR, CBLAS_NO_TRANSPOSE, transpose_right, *y.shape, left.shape[1]),
        *(1.0, left.ctypes.data, left.shape[1], right.ctypes.data, right.shape[1]),
        *(0.0, y.ctypes.data, y.shape[1]),
    )
    return native_peer(name, address, arguments, y, (weights, x))


def _output(weights: FloatArray, x: FloatArray, layout: Layout) -> FloatArray:
    outputs = len(weights)
    shape = (outputs, x.shape[1]) if layout is Layout.FEATURE_MAJOR else (x.shape[0], outputs)
    return np.empty(shape, np.float32)


def _transposing(peer: Peer) -> Peer:
    """The same peer, whose output is transposed for the check, not while it is timed."""
    return Peer(peer.name, peer.call, lambda: peer.output().T, peer.time)
