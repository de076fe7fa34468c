"""A kernel as C calls it."""

from math import prod

from sparsejit.artefact.exported import ExportedFunction, Macro
from sparsejit.errors import InvalidInput
from sparsejit.ir.spec import Layer
from sparsejit.machine.target import Target
from sparsejit.planner.split import Split
from sparsejit.x86.assembler import Image


def exported_kernel(
    name: str, spec: Layer, division: Split, image: Image, target: Target
) -> ExportedFunction:
    """`int NAME_run(const float *x, float *y)`. Raises InvalidInput for one on several threads."""
    threads = len(division.parts)
    if threads > 1:
        raise InvalidInput(
            f"this kernel runs on {threads} threads of this process; "
            "compile it with threads=1 to export it"
        )
    x, y = (f"float {label}{_dimensions(shape)}" for label, shape in _shapes(spec))
    return ExportedFunction(
        name,
        image,
        target,
        "const float *x, float *y",
        returns_status=False,
        macros=(
            Macro("IN_FEATURES", spec.in_features, "columns of the weights"),
            Macro("OUT_FEATURES", spec.out_features, "rows of the weights"),
            Macro("X_SIZE", prod(spec.x_shape), "floats that x points to"),
            Macro("Y_SIZE", prod(spec.y_shape), "floats that y points to"),
        ),
        about=(f"y = activation(W x + bias): {spec.case}.", f"{x} and {y} must not overlap."),
    )


def _shapes(spec: Layer) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return ("x", spec.x_shape), ("y", spec.y_shape)


def _dimensions(shape: tuple[int, ...]) -> str:
    return "".join(f"[{size}]" for size in shape)
