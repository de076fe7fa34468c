"""A kernel as a file: weights, bias and options; it is compiled again where it is loaded."""

from typing import Any

from sparsejit.api.options import KernelSource, Options
from sparsejit.artefact import sealed
from sparsejit.artefact.arrays import ArrayReader, ArrayWriter
from sparsejit.artefact.records import RecordCodec, fields_of
from sparsejit.errors import DamagedFile
from sparsejit.ir.compressed_rows import CompressedRows

KIND = "kernel"
_RECORDS = RecordCodec((Options,))


def kernel_to_data(source: KernelSource) -> tuple[dict[str, Any], sealed.Tensors]:
    """Return header and tensors. Raises InvalidInput for options that cannot be saved."""
    writer, given = ArrayWriter(), {"weights": source.weights, "bias": source.bias}
    arrays = {name: writer.add(array) for name, array in given.items() if array is not None}
    return {"options": _RECORDS.encode(source.options), "arrays": arrays}, writer.tensors


def read_kernel(header: Any, tensors: sealed.Tensors) -> KernelSource:
    """Return the source that `kernel_to_data` wrote.

    Raises DamagedFile, without the file's name, for other data.
    """
    described, arrays = fields_of(header, options=dict, arrays=dict)
    options: Options = _RECORDS.decode(described)
    reader = ArrayReader(tensors)
    found = {name: reader.matrix(data) for name, data in arrays.items()}
    reader.finish()
    if found.keys() - {"bias"} != {"weights"}:
        raise DamagedFile("has arrays of no kernel")
    weights, bias = found["weights"], found.get("bias")
    if len(weights.shape) != 2 or {str(array.dtype) for array in found.values()} != {"float32"}:
        raise DamagedFile("has weights that are no float32 matrix")
    if isinstance(bias, CompressedRows):
        raise DamagedFile("has a bias that is a matrix")
    return KernelSource(weights, bias, options)
