"""Torch models as graphs: exported by torch.export, mapped operator by operator.

torch is imported when a model is given, never before.
"""

from sparsejit.frontends.torch_export.exporting import Exported, export, read_program
from sparsejit.frontends.torch_export.given_sizes import (
    ProgramSize,
    exported_examples,
    has_polynomial_sizes,
    is_program,
    names_of_places,
    sizes_of_program,
)
from sparsejit.frontends.torch_export.interpreting import graph_of, missing_in
from sparsejit.frontends.torch_export.tracing import OpenSize, opened

__all__ = [
    "Exported",
    "OpenSize",
    "ProgramSize",
    "export",
    "exported_examples",
    "graph_of",
    "has_polynomial_sizes",
    "is_program",
    "missing_in",
    "names_of_places",
    "opened",
    "read_program",
    "sizes_of_program",
]
