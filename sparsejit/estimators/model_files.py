"""Models of XGBoost, LightGBM and CatBoost as files, which their libraries read.

    .txt           LightGBM
    .json, .ubj    XGBoost: the estimator that wrote it, if one did, or a Booster
    .cbm           CatBoost: a classifier or regressor by its loss
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sparsejit.errors import InvalidInput, MissingDependency
from sparsejit.files import existing_file


def _lightgbm(path: str) -> Any:
    import lightgbm

    return lightgbm.Booster(model_file=path)


def _xgboost(path: str) -> Any:
    import xgboost

    booster = xgboost.Booster(model_file=path)
    kinds = {
        "classifier": xgboost.XGBClassifier,
        "ranker": xgboost.XGBRanker,
        "regressor": xgboost.XGBRegressor,
    }
    written_by = booster.attr("scikit_learn") or ""
    for kind, estimator in kinds.items():
        if f'"_estimator_type": "{kind}"' in written_by:
            model = estimator()
            model.load_model(path)
            return model
    return booster


def _catboost(path: str) -> Any:
    import catboost

    model = catboost.CatBoost().load_model(path)
    loss = str(model._object._get_loss_function_name())
    is_classifier = catboost.CatBoost._is_classification_objective(loss)
    kind = catboost.CatBoostClassifier if is_classifier else catboost.CatBoostRegressor
    return kind().load_model(path)


_READERS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    ".txt": ("lightgbm", _lightgbm),
    ".json": ("xgboost", _xgboost),
    ".ubj": ("xgboost", _xgboost),
    ".cbm": ("catboost", _catboost),
}


def is_model_file(model: Any) -> bool:
    """Whether an argument is the path of such a file, by its suffix."""
    if not isinstance(model, str | os.PathLike):
        return False
    return Path(os.fsdecode(os.fspath(model))).suffix.lower() in _READERS


def read_model_file(path: str | os.PathLike[str]) -> Any:
    """Return the estimator or booster of a file.

    Raises InvalidInput for a file that its library cannot read, MissingDependency without it.
    """
    whole = existing_file(path)
    name, read = _READERS[Path(whole).suffix.lower()]
    try:
        return read(str(whole))
    except ImportError as error:
        raise MissingDependency(
            f"{whole} is read through {name} ({error}); pip install {name}"
        ) from error
    except Exception as error:  # each library has its own
        reason = str(error).strip().split("\n")[0]
        raise InvalidInput(
            f"{name} cannot read {whole}: {reason}; give a file that its save_model wrote"
        ) from error
