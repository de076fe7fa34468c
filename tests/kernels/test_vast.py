"""Matrices of which hardly any weight is not zero: cost follows nonzeros, never the area."""

import copy
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from runnable import ISAS

import sparsejit
from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.asm_templates.families import MATVEC_TEMPLATES
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.ir import reference
from sparsejit.ir.compressed_rows import CompressedRows, count_distinct, distinct
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.machine.target import Target

OUT, IN, NNZ = 4_100, 4_100, 1_000


def scattered(rows: int, columns: int, nonzeros: int, seed: int = 0) -> Any:
    """A scipy matrix with random weights at random places."""
    rng = np.random.default_rng(seed)
    places = rng.integers(0, rows, nonzeros), rng.integers(0, columns, nonzeros)
    values = rng.uniform(0.5, 1, nonzeros).astype(np.float32)
    return scipy.sparse.coo_matrix((values, places), shape=(rows, columns)).tocsr()


WEIGHTS = scattered(OUT, IN, NNZ)


@pytest.fixture
def never_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """No view with zeros, and no scipy matrix made dense."""

    def refuse(self: object, *arguments: object) -> None:
        raise AssertionError("laid out with its zeros")

    monkeypatch.setattr(SparseMatrix, "block_mask", refuse)
    monkeypatch.setattr(CompressedRows, "dense", refuse)
    monkeypatch.setattr(scipy.sparse.csr_matrix, "toarray", refuse)


def families(isa: str, dtype: str, *, batch: bool) -> list[str]:
    rows = MATMUL_TEMPLATES if batch else MATVEC_TEMPLATES
    runs = Target.named(isa).instruction_sets
    fitting = (
        row.family
        for row in rows
        if row.takes_vast and (row.isa, row.dtype) == (isa, dtype) and row.most_inputs >= IN
        if row.requires <= runs
    )
    return ["auto", *dict.fromkeys(fitting)]


def check(kernel: sparsejit.Kernel, batch: int = 1) -> None:
    """A call against float64."""
    matrix = SparseMatrix(CompressedRows.of_places(WEIGHTS.shape, *places(WEIGHTS)))
    x = np.random.default_rng(1).standard_normal(kernel.spec.x_shape).astype(np.float32)
    expected = reference.product(kernel.spec, matrix, x)
    np.testing.assert_allclose(kernel(x), expected, rtol=2e-5, atol=2e-5)


def places(weights: Any) -> tuple[Any, Any, Any]:
    found = weights.tocoo()
    return found.row, found.col, found.data


@pytest.mark.usefixtures("never_dense")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("isa", ISAS)
def test_every_kernel_that_takes_it_is_right(isa: str, dtype: str) -> None:
    bias = np.linspace(-1, 1, OUT).astype(np.float32)
    for strategy in families(isa, dtype, batch=False):
        check(sparsejit.compile_matrix(WEIGHTS, bias, dtype=dtype, strategy=strategy, target=isa))


@pytest.mark.usefixtures("never_dense")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("isa", ISAS)
def test_every_kernel_for_a_batch_is_right(isa: str, dtype: str) -> None:
    for strategy in families(isa, dtype, batch=True):
        compiled = sparsejit.compile_matrix(
            WEIGHTS, dtype=dtype, strategy=strategy, batch=19, target=isa
        )
        check(compiled)


@pytest.mark.parametrize("batch", [1, 16])
def test_parts_on_threads(batch: int) -> None:
    check(sparsejit.compile_matrix(WEIGHTS, batch=batch, threads=2))


def test_an_array_keeps_nothing_but_its_nonzeros() -> None:
    matrix = SparseMatrix(WEIGHTS.toarray())
    assert isinstance(matrix.held, CompressedRows) and matrix.nnz == WEIGHTS.nnz
    with pytest.raises(CompileError, match="4100 by 4100"):
        _ = matrix.dense


def test_a_vast_matrix_answers_as_a_dense_one() -> None:
    """The same weights in a small corner, where a dense view is allowed."""
    part = scattered(70, 90, 300, seed=3)
    small, rows, columns, values = SparseMatrix(part.toarray()), *places(part)
    vast = SparseMatrix(CompressedRows.of_places((OUT, IN), rows, columns, values))
    assert vast.is_vast and not small.is_vast
    for height in (1, 8, 16):
        for found, expected in zip(vast.blocks(height), small.blocks(height), strict=True):
            np.testing.assert_array_equal(found, expected)
        assert vast.block_count(height) == small.block_count(height)
        assert vast.block_fill(height) == small.block_fill(height)
    np.testing.assert_array_equal(vast.row_counts[:70], small.row_counts)
    np.testing.assert_array_equal(vast.int8_steps[:70], small.int8_steps)
    zeros = np.unpackbits(np.frombuffer(vast.zero_bits(), np.uint8), count=OUT * IN)
    np.testing.assert_array_equal(zeros.reshape(OUT, IN)[:70, :90], part.toarray() == 0)
    assert zeros.sum() == OUT * IN - vast.nnz


def test_kernels_that_walk_over_zeros_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"'permute' has no kernel .*5\.9e-05 .*use one of auto"):
        sparsejit.compile_matrix(WEIGHTS, strategy="permute")


@pytest.mark.usefixtures("never_dense")
def test_a_kernel_is_saved_copied_and_tuned(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernel = sparsejit.compile_matrix(WEIGHTS, tune=True)
    kernel.save(tmp_path / "vast.sjit")
    assert (tmp_path / "vast.sjit").stat().st_size < 30 * NNZ + 20 * OUT
    for other in (
        sparsejit.load(tmp_path / "vast.sjit"),
        pickle.loads(pickle.dumps(kernel)),
        copy.deepcopy(kernel),
    ):
        assert other.image.data == kernel.image.data
    assert "4100 x 4100" in str(kernel.explain())


@pytest.mark.parametrize("inputs", [1_000_000, 8_000_000])
def test_memory_does_not_follow_the_area(inputs: int) -> None:
    """A bit for each weight would be 64 MB where there are most inputs."""
    weights = scattered(64, inputs, 1_000)
    sparsejit.compile_matrix(WEIGHTS)  # what is learned once
    tracemalloc.start()
    kernel = sparsejit.compile_matrix(weights)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kernel.stats["nnz"] == weights.nnz and most < 10_000_000


def test_torch_and_unsorted_matrices_are_read_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    dense = WEIGHTS[:50, :60].toarray()
    tensor = torch.tensor(dense)
    x = np.ones(60, np.float32)
    given = [tensor.to_sparse(), tensor.to_sparse_csr(), tensor.to_sparse_csc()]
    formats = ("coo", "csr", "csc", "dok", "lil", "bsr")
    given += [scipy.sparse.csr_matrix(dense).asformat(name) for name in formats]
    doubled = scipy.sparse.coo_matrix(([1.0, 2.0], ([3, 3], [4, 4])), shape=(50, 60))
    for weights in given:
        np.testing.assert_allclose(
            sparsejit.compile_matrix(weights, np.zeros(50))(x), dense @ x, rtol=1e-5
        )
    assert sparsejit.compile_matrix(doubled)(x)[3] == 3


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_infinite_and_missing_weights_are_named_by_their_place(value: float) -> None:
    weights = WEIGHTS.copy()
    weights.data[7] = value
    row = int(np.searchsorted(weights.indptr, 7, side="right")) - 1
    with pytest.raises(InvalidInput, match=rf"weights\[{row}, {weights.indices[7]}\]"):
        sparsejit.compile_matrix(weights)


def test_different_numbers_by_marks_and_by_sorting() -> None:
    numbers = np.array([7, 3, 7, 0, 3])
    for below in (10, 1 << 40):
        found, places = distinct(numbers, below)
        assert found.tolist() == [0, 3, 7] and places.tolist() == [2, 1, 2, 0, 1]
        assert count_distinct(numbers, below) == 3
