"""The table of models with mathematics of their own, by the names of their classes."""

import copy
from typing import Any

from sparsejit.errors import InvalidInput
from sparsejit.estimators.column_maps import COLUMN_MODELS
from sparsejit.estimators.column_steps import inner_steps
from sparsejit.estimators.density_models import DENSITY_MODELS
from sparsejit.estimators.imputers import IMPUTERS
from sparsejit.estimators.kernel_models import KERNEL_MODELS
from sparsejit.estimators.label_encoders import LABEL_ENCODERS
from sparsejit.estimators.model_table import Model
from sparsejit.estimators.neighbour_models import NEIGHBOUR_MODELS
from sparsejit.estimators.parts import Mapped, held, is_pipeline, steps_of
from sparsejit.ir.values import Array

MODELS: dict[str, Model] = {
    **COLUMN_MODELS,
    **DENSITY_MODELS,
    **IMPUTERS,
    **KERNEL_MODELS,
    **LABEL_ENCODERS,
    **NEIGHBOUR_MODELS,
}


def as_step(step: Any) -> Any:
    """Return the step for writers: a `Mapped` for a model that transforms, else the step itself.

    A ColumnTransformer is copied, with such models inside of it.
    """
    if type(step).__name__ == "ColumnTransformer":
        return _with_steps(step)
    model = MODELS.get(type(step).__name__)
    if model is None or model.transform is None:
        return step
    write = model.transform(step)
    if write is None:
        raise InvalidInput(
            f"the {type(step).__name__} transforms nothing; fit it with solver='svd'"
        )
    return Mapped(step, write)


def _with_steps(transformer: Any) -> Any:
    from sklearn.pipeline import Pipeline

    entries = []
    for name, step, columns in transformer.transformers_:
        if not isinstance(step, str):
            inner = inner_steps(step)
            made = [as_step(each) for each in inner]
            if any(one is not other for one, other in zip(made, inner, strict=True)):
                step = Pipeline([(f"step{n}", each) for n, each in enumerate(made)])
        entries.append((name, step, columns))
    if all(one[1] is each[1] for one, each in zip(entries, transformer.transformers_, strict=True)):
        return transformer
    copied = copy.copy(transformer)
    copied.transformers_ = entries
    return copied


def labels_of_model(estimator: Any) -> Array | None:
    """The results of a model's `predict` by place, where they are not `classes_`."""
    if is_pipeline(estimator):
        estimator = held(steps_of(estimator)[1])
    model = MODELS.get(type(estimator).__name__)
    return None if model is None or model.labels is None else model.labels(estimator)
