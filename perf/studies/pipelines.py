"""Compare pipelines of frames and texts with scikit-learn itself; print a table of times.

    python -m sparsejit.perf.studies.pipelines                               (three minutes)

Rounds of the library and of compiled code take turns in one process, on one thread. A time is the
least of all rounds, end to end: from a frame, or a list of texts, to probabilities.
"""

import time
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

import sparsejit

ROWS = 10_000
_SECONDS = 4.0  # for each row of the table
_WORDS = [f"word{number}" for number in range(4000)]

_LINE = "{:<34} {:>7} {:>12} {:>12} {:>7}"


def main() -> None:
    """Print a line for each pipeline, for one row and for many."""
    warnings.simplefilter("ignore")
    print(_LINE.format("pipeline", "rows", "library, us", "compiled, us", "times"))
    for name, make in _pipelines().items():
        estimator, X = make()
        compiled = sparsejit.compile(estimator, X[:1])
        several = sparsejit.compile(estimator, X)
        for rows, fast in ((1, compiled), (ROWS, several)):
            given = X[:rows]
            wanted, found = estimator.predict_proba(given), fast.predict_proba(given)
            assert np.abs(wanted - found).max() < 1e-6, name
            own, ours = _in_turn(estimator, fast, given)
            numbers = f"{own:,.0f}", f"{ours:,.1f}", f"{own / ours:,.0f}"
            print(_LINE.format(name, rows, *numbers), flush=True)


def _in_turn(estimator: Any, fast: Any, X: Any) -> tuple[float, float]:
    """The least times of the library and of compiled code, in microseconds."""
    least = [np.inf, np.inf]
    end = time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        for place, each in enumerate((estimator, fast)):
            begin = time.perf_counter()
            each.predict_proba(X)
            least[place] = min(least[place], 1e6 * (time.perf_counter() - begin))
    return least[0], least[1]


def _frame(generator: np.random.Generator) -> Any:
    pandas: Any = import_module("pandas")
    ages = np.where(generator.random(ROWS) < 0.1, np.nan, generator.uniform(1, 80, ROWS))
    ports = np.array(["S", "C", "Q", None], object)
    return pandas.DataFrame(
        {
            "age": ages,
            "fare": generator.gamma(2, 20, ROWS),
            "sex": generator.choice(["male", "female"], ROWS),
            "port": generator.choice(ports, ROWS, p=[0.6, 0.2, 0.15, 0.05]),
            "deck": pandas.Categorical(generator.choice([*"ABCDEFG"], ROWS)),
            "town": generator.choice(_WORDS[:1000], ROWS),
        }
    )


def _pipelines() -> dict[str, Callable[[], tuple[Any, Any]]]:
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder

    generator = np.random.default_rng(0)
    frame = _frame(generator)
    score = (frame.sex == "female") + (frame.deck == "A") + generator.standard_normal(ROWS)
    y = (score > 1).astype(int)

    def of_frame(encoder: Any, model: Any) -> Callable[[], tuple[Any, Any]]:
        numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
        filled = make_pipeline(SimpleImputer(strategy="most_frequent"), encoder)
        before = make_column_transformer(
            (numbers, ["age", "fare"]), (filled, ["sex", "port", "deck", "town"])
        )
        return lambda: (make_pipeline(before, model).fit(frame, y), frame)

    def of_texts() -> tuple[Any, Any]:
        lengths = generator.integers(20, 60, ROWS)
        texts = [" ".join(generator.choice(_WORDS, length)) for length in lengths]
        model = make_pipeline(TfidfVectorizer(), LogisticRegression())
        return model.fit(texts, y), texts

    ordinal = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    return {
        "one-hot, logistic regression": of_frame(
            OneHotEncoder(handle_unknown="ignore"), LogisticRegression()
        ),
        "one-hot, forest of 100 trees": of_frame(
            OneHotEncoder(handle_unknown="ignore"),
            RandomForestClassifier(100, max_depth=8, random_state=0),
        ),
        "ordinal, histogram boosting": of_frame(ordinal, HistGradientBoostingClassifier()),
        "target means, logistic regression": of_frame(TargetEncoder(), LogisticRegression()),
        "texts, logistic regression": of_texts,
    }


if __name__ == "__main__":
    main()
