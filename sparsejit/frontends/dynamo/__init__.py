"""A backend of torch.compile: parts of what dynamo finds as graphs, the rest left to torch.

torch is imported when dynamo calls, never before.
"""

from sparsejit.frontends.dynamo.backend import compiled_by_parts
from sparsejit.frontends.dynamo.notices import forget_notices

__all__ = ["compiled_by_parts", "forget_notices"]
