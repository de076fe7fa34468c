"""A backend of torch.compile: it compiles parts of dynamo's graphs and leaves the rest to torch.

torch is imported when dynamo calls, never before.
"""

from sparsejit.frontends.dynamo.backend import compiled_by_parts
from sparsejit.frontends.dynamo.part import PartCall, forget_notices

__all__ = ["PartCall", "compiled_by_parts", "forget_notices"]
