"""Base class of operators, which declare their types, float64 semantics and batch rule once.

    @dataclass(frozen=True)
    class Linear(Operator):
        types = "x float32 [*rows, in], weights float32 [out, in] -> float32 [*rows, out]"

A subclass is registered when it is defined. Files store its fields (`artefact.records`); its
lowering is registered beside the lowering's code (`lowering.table`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from sparsejit.errors import InvalidInput
from sparsejit.ir.batch import Follower, SamplesMixed
from sparsejit.ir.graph import Array, Node, TensorType
from sparsejit.ir.ops.signature import Bound, Signature, signature

# Every operator by its name.
OPERATORS: dict[str, type[Operator]] = {}


class Operator:
    """A frozen record with its types and its float64 semantics.

    `types` is the text of its `Signature`; `needs` describes the further checks of `sizes_of`.

    The batch may lie on any axis that operands and results name alike. On any other axis, and on
    the axes in `mixes`, the operator mixes samples, and `mixing` is the message.
    """

    types: ClassVar[str]
    needs: ClassVar[str] = ""
    mixes: ClassVar[tuple[str, ...]] = ()
    mixing: ClassVar[str] = "combines samples with each other"
    # Whether the operator computes something where an operand has no elements.
    takes_empty: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        OPERATORS[cls.__name__] = cls

    def signature(self, operands: int) -> Signature:
        """The types for this number of operands."""
        return signature(self.types)

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        """Sizes of results that operands do not determine; None where these operands do not fit."""
        return {}

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        """The types of the results. Raises InvalidInput for operands that it does not take."""
        declared = self.signature(len(operands))
        bound = declared.match(operands, self)
        more = None if bound is None else self.sizes_of(bound)
        if bound is not None and more is not None:
            with suppress(InvalidInput):  # for sizes that no tensor has
                return declared.made({**bound, **more}, self)
        raise self.refusal(operands)

    def refusal(self, operands: Sequence[TensorType]) -> InvalidInput:
        """The error to raise for operands that it does not take."""
        found = ", ".join(map(str, operands))
        wanted = self.signature(len(operands)).wanted
        return InvalidInput(f"{self} got ({found}); give {wanted}{self.needs}")

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        """The results in float64 where a type says float32, else int64 and bool."""
        raise NotImplementedError

    def follow_batch(self, follow: Follower, node: Node) -> None:
        """Set the batch's place in a node's outputs. Raises SamplesMixed where it mixes samples."""
        declared = self.signature(len(node.inputs))
        labels = [
            each.labels(len(value.shape))
            for each, value in zip(declared.operands, node.inputs, strict=False)
        ]
        found = {
            (labels[number][place.axis], place._replace(axis=0))
            for number, value in enumerate(node.inputs)
            if (place := follow.places.get(value)) is not None
        }
        if len(found) != 1:
            raise SamplesMixed(self.mixing)
        ((label, place),) = found
        for value, axes in zip(node.inputs, labels, strict=True):
            if value not in follow.places and label in axes:
                follow.check_shared(value, place._replace(axis=axes.index(label)))
        for value, made in zip(node.outputs, declared.results, strict=True):
            axes = made.labels(len(value.shape))
            if label not in axes or label[0] in self.mixes:
                raise SamplesMixed(self.mixing)
            follow.places[value] = place._replace(axis=axes.index(label))

    def of_any_size(self) -> Operator:
        """The operator without fields that only repeat sizes of its result."""
        return self
