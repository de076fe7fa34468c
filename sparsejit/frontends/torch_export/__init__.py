"""Torch models as graphs: exported by torch.export, mapped operator by operator.

torch is imported when a model is given, never before.
"""

from sparsejit.frontends.torch_export.exporting import Exported, export
from sparsejit.frontends.torch_export.interpreting import graph_of, missing_in
from sparsejit.frontends.torch_export.program_files import read_program

__all__ = ["Exported", "export", "graph_of", "missing_in", "read_program"]
