"""The result of `sparsejit.quantise`: dtype and scales of each layer, and their error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sparsejit.api.compiled import Loader, PathLike
from sparsejit.api.reports.shown import Shown, table_of
from sparsejit.artefact import sealed
from sparsejit.artefact.arrays import ArrayReader, ArrayWriter
from sparsejit.artefact.records import RecordCodec, fields_of
from sparsejit.errors import DamagedFile
from sparsejit.ir.layer_scales import LayerScales, SumScales
from sparsejit.ir.spec import DType
from sparsejit.ir.values import Array

if TYPE_CHECKING:
    from rich.console import RenderableType

KIND = "scales"
_ARRAYS = ("correction", "factors")
_RECORDS = RecordCodec((LayerScales, SumScales))


@dataclass(frozen=True, eq=False)
class Scales(Shown):
    """Dtype and scales of each layer, for `compile(model, ..., dtype=scales)`. `print` shows them.

    Attributes:
        layers: one record for each layer with weights, float32 layers too, in the model's order
        error: the largest error of an output over its largest value, on the data
        budget: the limit of `error`; None where a function decided
        predicted_ns: predicted nanoseconds of one run with these dtypes
        float32_ns: the same, all in float32
        sums: the steps of sums between convolutions in bytes
    """

    layers: tuple[LayerScales, ...]
    error: float
    budget: float | None
    predicted_ns: float
    float32_ns: float
    sums: tuple[SumScales, ...] = ()

    @property
    def dtypes(self) -> dict[str, str]:
        """The dtype of each layer that is not float32, by the layer's name."""
        return {
            each.layer: each.dtype.value
            for each in self.layers
            if each.dtype is not DType.FLOAT32
        }

    def save(self, path: PathLike) -> None:
        """Write a .sjit file, for `sparsejit.load`.

        Args:
            path: the file to write

        Raises:
            InvalidInput: it cannot be written
        """
        sealed.write(path, KIND, *scales_to_data(self))

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        saved = 1 - self.predicted_ns / self.float32_ns if self.float32_ns else 0.0
        short = sum(each.dtype is not DType.FLOAT32 for each in self.layers)
        title = (
            f"{short} of {len(self.layers)} layers stored short: "
            f"{self.error:.2g} of the largest output, {saved:.0%} less time predicted"
        )
        table = table_of("", ("layer", "dtype", "x"), ("error", "saves ns"))
        for each in self.layers:
            if each.dtype is DType.FLOAT32:
                table.add_row(each.layer, each.dtype.value)
                continue
            figures = f"{each.error:.2g}", f"{each.saved_ns:,.0f}"
            table.add_row(each.layer, each.dtype.value, _range(each), *figures)
        return Group(Text(title), table)


def _range(each: LayerScales) -> str:
    """Describe the range of x and its origin."""
    steps = each.x_steps
    if steps is None:
        return each.how
    least, largest = ((end - steps.zero_point) * steps.scale for end in (-128, 127))
    return f"{least:.3g} to {largest:.3g}, {each.how}"


def scales_to_data(scales: Scales) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return header and tensors."""
    writer = ArrayWriter()
    layers = [
        {
            "scales": _RECORDS.encode(replace(each, correction=None, factors=None)),
            **{
                name: {} if (array := getattr(each, name)) is None else writer.add(array)
                for name in _ARRAYS
            },
        }
        for each in scales.layers
    ]
    header = {
        "layers": layers,
        "error": float(scales.error),
        "budget": -1.0 if scales.budget is None else float(scales.budget),
        "predicted_ns": float(scales.predicted_ns),
        "float32_ns": float(scales.float32_ns),
        "sums": list(map(_RECORDS.encode, scales.sums)),
    }
    return header, writer.tensors


def read_scales(header: Any, tensors: Mapping[str, Array]) -> Scales:
    """Return the scales that `scales_to_data` wrote.

    Raises DamagedFile, without the file's name, for other data.
    """
    layers, sums, *numbers = fields_of(
        header,
        **dict.fromkeys(("layers", "sums"), list),
        **dict.fromkeys(("error", "budget", "predicted_ns", "float32_ns"), float),
    )
    reader, found = ArrayReader(tensors), []
    for data in layers:
        record, *described = fields_of(data, scales=dict, **dict.fromkeys(_ARRAYS, dict))
        arrays = {
            name: _vector(reader.read(about))
            for name, about in zip(_ARRAYS, described, strict=True)
            if about
        }
        found.append(replace(_RECORDS.decode(record), **arrays))
    reader.finish()
    error, budget, predicted_ns, float32_ns = numbers
    limit = None if budget < 0 else budget
    kept = tuple(map(_RECORDS.decode, sums))
    return Scales(tuple(found), error, limit, predicted_ns, float32_ns, kept)


def _vector(array: Array) -> Array:
    if array.ndim != 1 or array.dtype.name != "float32":
        raise DamagedFile(f"has {array.dtype}{array.shape} where a vector belongs")
    return array


LOADER = Loader(read_scales, lambda found: found)
