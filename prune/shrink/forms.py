"""Forms that a layer may take: a pattern of zeros, and a dtype that its weights are stored in."""

from __future__ import annotations

from dataclasses import dataclass

from sparsejit.ir.spec import DType
from sparsejit.prune.patterns import PATTERNS

# Dtypes by rising error.
_BY_ERROR = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT8)


@dataclass(frozen=True)
class LayerForm:
    """A pattern of zeros by its name, and a dtype of the weights."""

    pattern: str
    dtype: DType

    def is_finer(self, other: LayerForm) -> bool:
        """Whether zeros lie as freely as in the other form, and weights err as little."""
        if _BY_ERROR.index(self.dtype) > _BY_ERROR.index(other.dtype):
            return False
        names = _PATTERNS[other.dtype]
        own = names.index(self.pattern) if self.pattern in names else len(names)
        return own <= names.index(other.pattern)


FINEST = "unstructured"
# Patterns that some kernel needs, the finest first: the rows of a vector, and the four inputs of a
# product in int8.
_PATTERNS = {
    DType.FLOAT32: (FINEST, "1x16"),
    DType.FLOAT16: (FINEST,),
    DType.BFLOAT16: (FINEST,),
    DType.INT8: (FINEST, "4x1in", "4x2in"),
}
FORMS = tuple(LayerForm(name, dtype) for dtype in _BY_ERROR for name in _PATTERNS[dtype])
DENSE = FORMS[0]

assert all(form.pattern in PATTERNS for form in FORMS)
