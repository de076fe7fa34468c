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
        """Whether zeros lie at least as freely as in the other form, with no larger errors."""
        if _BY_ERROR.index(self.dtype) > _BY_ERROR.index(other.dtype):
            return False
        names = _PATTERNS[other.dtype]
        own = names.index(self.pattern) if self.pattern in names else len(names)
        return own <= names.index(other.pattern)


FINEST = "unstructured"
# Patterns that some kernel needs, the finest first: 16 outputs fill a vector, and an int8 product
# takes four inputs.
_PATTERNS = {
    DType.FLOAT32: (FINEST, "1x16"),
    DType.FLOAT16: (FINEST,),
    DType.BFLOAT16: (FINEST,),
    DType.INT8: (FINEST, "4x1in", "4x2in"),
}
FORMS = tuple(LayerForm(name, dtype) for dtype in _BY_ERROR for name in _PATTERNS[dtype])
DENSE = FORMS[0]

assert all(form.pattern in PATTERNS for form in FORMS)
