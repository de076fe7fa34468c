"""The source of a compiled estimator: read from a fitted one, and stored in a file.

    {"name": ..., "library": ..., "settings": record, "dtypes": name, or names by patterns,
     "tile": ..., "shared": ..., "float64": bool, "names": [name, ...] or null, "flags": name,
     "no_nan": [...], "no_infinity": [...], "known": [[feature, [number, ...]], ...],
     "no_sparse_nan": [...], "together": [[feature, ...], ...],
     "least": [number or null, ...], "left_out": name, "frames": bool,
     "targets": [labels, ...] or null, "splits": bool, "kind": name, "rounds": ...,
     "words": null or {"read": [bool for each feature], "codes": bool, "columns":
     [{"feature": ..., "words": [...], "codes": [...], "nan": code, "others": code, "step": name},
     ...], and of CatBoost "categories": [feature, ...], "hashed": [{"elements":
     [[kind, feature, border, bool], ...], "hashes": [...], "values": [...], "others": ...}, ...]},
     "classes": labels, "labels": labels, "columns": labels, "outputs": labels,
     "text": null or the fields of a TextReader, "column": bool,
     "forms": [[[feature, ...], [form, ...]], ...], "mark": "nan", "inf" or null,
     "required": null or [feature, ...], "texts": [[feature, fields of a TextReader], ...],
     "methods": [{"dtype": of X, "method": name, "graph": ...}, ...]}

"dtype" ends with " sparse" for a sparse X; files of 1.0 lack the fields of `_NEWER`. A code is a
number, "nan", or null where the word is refused. Labels are null or {"dtype": ..., "values":
[...]}; NaN among them is null.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

import numpy as np

from sparsejit.api.models.final_graph import NamedDtypes
from sparsejit.api.models.model_file import settings_from_data, settings_to_data
from sparsejit.api.options import ModelSettings
from sparsejit.artefact.arrays import ArrayReader, ArrayWriter
from sparsejit.artefact.graph_file import graph_from_data, graph_to_data
from sparsejit.artefact.records import fields_of
from sparsejit.artefact.sealed import Tensors
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.estimators.category_hashes import (
    HashColumn,
    HashColumns,
    HashElement,
    hash_columns,
)
from sparsejit.estimators.forest_rounds import BY_OPTION
from sparsejit.estimators.forests import labels_of
from sparsejit.estimators.graphs import read_estimator
from sparsejit.estimators.inputs import EstimatorInput, Refusals
from sparsejit.estimators.left_out_zeros import LeftOut
from sparsejit.estimators.own_models import labels_of_model
from sparsejit.estimators.parts import held, targets_of
from sparsejit.estimators.sklearn_tags import estimator_kind
from sparsejit.estimators.text import (
    ACCENTS,
    ANALYSERS,
    WEIGHT_NORMS,
    TextColumn,
    TextReader,
)
from sparsejit.estimators.words import WordColumn, WordColumns
from sparsejit.ir.graph import Graph
from sparsejit.ir.spec import DType
from sparsejit.ir.values import Array, Element
from sparsejit.lowering.tiles import batch_tiles

KIND = "estimator"
METHODS = (
    *("predict", "predict_proba", "predict_log_proba", "decision_function", "score_samples"),
    *("transform", "apply", *BY_OPTION),
)
_WORDS = (str, bool, int, float, type(None))  # types of words that are saved
_KINDS = "biufU"  # kinds of numpy dtypes that labels may have
_FLAGS = ("int64", "float64")
_SPARSE = " sparse"
# Fields that files of 1.0 lack.
_NEWER = (
    *("left_out", "frames", "targets", "splits", "kind", "rounds", "words", "outputs", "text"),
    *("least", "column", "forms", "mark", "required", "no_sparse_nan", "texts"),
)


@dataclass(frozen=True, eq=False)
class EstimatorSource:
    """The data from which an estimator is compiled.

    `graphs` are the methods' graphs before all passes, for `tile` samples, by the `x_kind` of X and
    the method's name. `predict` returns `labels` by index; for several labels, `flags` is the dtype
    of its result. `targets` are the classes of each column of y, where a classifier predicts
    several; with `splits` its probabilities are a list with an array for each. `kind` is
    scikit-learn's type of the estimator, such as "classifier"; empty for a booster. `rounds` is the
    number of boosting rounds of a model of XGBoost or LightGBM.
    `outputs` are the columns of the frame that `transform` returns, None for arrays.
    """

    input: EstimatorInput
    settings: ModelSettings
    dtypes: NamedDtypes
    tile: int
    shares_tiles: bool
    graphs: Mapping[str, Mapping[str, Graph]]
    classes: Array | None
    labels: Array | None
    flags: str
    columns: Array | None
    targets: tuple[Array, ...] | None = None
    splits: bool = False
    kind: str = ""
    rounds: int = 0
    outputs: Array | None = None


def x_kind(dtype: str, is_sparse: bool) -> str:
    """Return the key of `EstimatorSource.graphs` for an X of this dtype."""
    return f"{dtype}{_SPARSE}" if is_sparse else dtype


def source_of(
    estimator: Any, settings: ModelSettings, dtypes: NamedDtypes, example: Any
) -> EstimatorSource:
    """Read a fitted estimator, for batches like the example. Raises InvalidInput if unknown."""
    # With weights in short dtypes, X is read in float32 only.
    in_full = dtypes == DType.FLOAT32.value
    read = read_estimator(estimator)
    given = read.input if in_full else replace(read.input, reads_float64=False)
    labels, flags = labels_of(held(estimator))
    targets, splits = targets_of(held(estimator))
    own = labels_of_model(held(estimator))
    batch = 1 if example is None else given.samples(example)
    single = next(iter(read.graphs(1, Element.FLOAT32).values()))
    (tile,), shared = batch_tiles(single, batch, settings.resolved().threads, one_tile=True)
    kinds = [kind for kind in read.writes if in_full or kind[0] is Element.FLOAT32]
    return EstimatorSource(
        given,
        settings,
        dtypes,
        tile,
        shared,
        {x_kind(kind[0].value, kind[1]): read.graphs(tile, *kind) for kind in kinds},
        None if targets else getattr(estimator, "classes_", None),
        labels if own is None else own,
        np.dtype(flags).name,
        getattr(estimator, "feature_names_in_", None),
        targets,
        splits,
        estimator_kind(estimator),
        read.rounds,
        _frame_of(held(estimator)) if "transform" in next(iter(read.writes.values())) else None,
    )


def _frame_of(estimator: Any) -> Array | None:
    """The columns of the frame that `transform` returns, as `set_output` asks for."""
    last = estimator
    while hasattr(last, "steps"):
        last = last.steps[-1][1]
    asked = getattr(last, "_sklearn_output_config", {}).get("transform")
    if asked in (None, "default"):
        return None
    if asked != "pandas":
        raise InvalidInput(
            f"the {type(last).__name__} returns frames of {asked}; call set_output(transform="
            "'pandas') or 'default'"
        )
    try:
        return np.asarray(estimator.get_feature_names_out(), object)
    except (AttributeError, ValueError) as error:
        raise InvalidInput(
            f"the {type(last).__name__} returns frames, and a step names no columns ({error}); "
            "give a FunctionTransformer feature_names_out='one-to-one', or call "
            "set_output(transform='default')"
        ) from error


def estimator_to_data(source: EstimatorSource) -> tuple[dict[str, Any], Tensors]:
    """Return header and tensors. Raises InvalidInput for labels and names that cannot be saved."""
    writer = ArrayWriter()
    methods = [
        {"dtype": dtype, "method": name, "graph": graph_to_data(graph, writer)}
        for dtype, graphs in source.graphs.items()
        for name, graph in graphs.items()
    ]
    rules, refused = source.input, source.input.refusals
    header = {
        "name": rules.name,
        "library": rules.library,
        "settings": settings_to_data(source.settings),
        "dtypes": source.dtypes if isinstance(source.dtypes, str) else dict(source.dtypes),
        "tile": source.tile,
        "shared": bool(source.shares_tiles),
        "float64": rules.reads_float64,
        "names": _labels_to_data(None if rules.names is None else np.array(rules.names)),
        "flags": source.flags,
        "no_nan": refused.no_nan.tolist(),
        "no_infinity": refused.no_infinity.tolist(),
        "no_sparse_nan": refused.no_sparse_nan.tolist(),
        "known": [[feature, _labels_to_data(seen)] for feature, seen in refused.known],
        "together": [group.tolist() for group in refused.together],
        "least": [None if each == -np.inf else each for each in refused.least.tolist()],
        "left_out": rules.left_out.value,
        "frames": rules.takes_frames,
        "targets": None if source.targets is None else [*map(_labels_to_data, source.targets)],
        "splits": source.splits,
        "kind": source.kind,
        "rounds": source.rounds,
        "classes": _labels_to_data(source.classes),
        "labels": _labels_to_data(source.labels),
        "columns": _labels_to_data(source.columns),
        "words": _words_to_data(rules.words),
        "outputs": _labels_to_data(source.outputs),
        "text": _text_to_data(rules.text),
        "texts": [[each.feature, _text_to_data(each.reader)] for each in rules.text_columns],
        "column": rules.is_column,
        "required": None if rules.required is None else rules.required.tolist(),
        "forms": [[each.tolist(), sorted(names)] for each, names in refused.forms],
        "mark": None if refused.mark is None else str(refused.mark),
        "methods": methods,
    }
    return header, writer.tensors


def read_estimator_file(header: Any, tensors: Mapping[str, Array]) -> EstimatorSource:
    """Return the source that `estimator_to_data` wrote.

    Raises DamagedFile, without the file's name, for other data.
    """
    wanted = {
        "name": str, "library": str, "settings": dict, "tile": int, "shared": bool,
        "float64": bool, "flags": str, "no_nan": list, "no_infinity": list, "known": list,
        "together": list, "methods": list,
    }
    free = {key: header.get(key) for key in ("dtypes", "names", "classes", "labels", "columns")}
    rest = {key: value for key, value in header.items() if key not in (*free, *_NEWER)}
    if free.keys() - header.keys():
        raise DamagedFile("has no labels, names or dtypes of an estimator")
    name, library, settings, tile, shared, float64, flags, *refused, methods = fields_of(
        rest, **wanted
    )
    if tile < 1 or flags not in _FLAGS:
        raise DamagedFile(f"has an estimator of tile {tile} and flags {flags!r}")
    left_out = _left_out_from_data(header.get("left_out"), library)
    graphs = _graphs_from_data(methods, tile, (float64, left_out is LeftOut.BOTH), tensors)
    width = next(iter(graphs[Element.FLOAT32.value].values())).inputs[0].shape[1]
    texts = _texts_from_data(header.get("texts", []), header.get("words"))
    width -= sum(each.reader.width for each in texts)
    words = _words_from_data(header.get("words"), width)
    features = width if words is None else words.features
    names = _labels_from_data(free["names"])
    rules = EstimatorInput(
        name,
        library,
        features,
        None if names is None else tuple(names.tolist()),
        float64,
        _refusals_from_data(refused, header, features, width),
        left_out,
        header.get("frames", True) is True,
        words,
        _text_from_data(header.get("text"), width),
        header.get("column", False) is True,
        None if (asked := header.get("required")) is None else _group_from_data(asked, features),
        texts,
    )

    kept = settings_from_data(settings)
    arrays = [_labels_from_data(free[key]) for key in ("classes", "labels", "columns")]
    classes, labels, columns = arrays
    dtypes = _dtypes_from_data(free["dtypes"])
    return EstimatorSource(
        *(rules, kept, dtypes, tile, shared, graphs, classes, labels, flags, columns),
        *(_targets_from_data(header.get("targets")), header.get("splits", False) is True),
        *_kind_from_data(header.get("kind", ""), header.get("rounds", 0)),
        _labels_from_data(header.get("outputs")),
    )


def _graphs_from_data(
    methods: list[Any], tile: int, more: tuple[bool, bool], tensors: Mapping[str, Array]
) -> dict[str, dict[str, Graph]]:
    """Return the graphs by dtype and method: float32 and, with `more`, float64 and sparse X."""
    reader = ArrayReader(tensors)
    graphs: dict[str, dict[str, Graph]] = {}
    for data in methods:
        dtype, method, described = fields_of(data, dtype=str, method=str, graph=dict)
        graph = graph_from_data(described, reader)
        kinds = [(value.type.element.value, len(value.shape)) for value in graph.inputs]
        batches = {value.shape[:1] for value in (*graph.inputs, *graph.outputs)}
        expected = [(dtype.removesuffix(_SPARSE), 2)]
        if method not in METHODS or kinds != expected or batches != {(tile,)}:
            raise DamagedFile(f"has a graph that is no {method!r} of {tile} samples of {dtype}")
        if len(graph.outputs) != 1 or method in graphs.get(dtype, {}):
            raise DamagedFile(f"has a method {method!r} of several results, or twice")
        graphs.setdefault(dtype, {})[method] = graph
    reader.finish()
    elements = [Element.FLOAT32.value, *([Element.FLOAT64.value] if more[0] else [])]
    wanted = [x_kind(dtype, twice) for dtype in elements for twice in (False, True)[: 1 + more[1]]]
    features = {
        graph.inputs[0].shape[1] / (1 + kind.endswith(_SPARSE))
        for kind, each in graphs.items()
        for graph in each.values()
    }
    names = {tuple(each) for each in graphs.values()}
    if list(graphs) != wanted or len(features) != 1 or len(names) != 1:
        raise DamagedFile("has methods that are not one estimator's")
    return graphs


def _left_out_from_data(name: Any, library: str) -> LeftOut:
    if name is None:
        kinds = {"xgboost": LeftOut.MISSING}
        return kinds.get(library, LeftOut.REFUSED if "xgboost" in library else LeftOut.ZERO)
    try:
        return LeftOut(name)
    except ValueError:
        raise DamagedFile(f"reads a sparse X as {name!r}") from None


def _labels_to_data(labels: Any) -> Any:
    if labels is None:
        return None
    array = np.asarray(labels)
    values = array.tolist()
    texts = array.dtype.kind == "O" and all(type(value) is str for value in values)
    if array.ndim != 1 or not (texts or array.dtype.kind in _KINDS):
        raise InvalidInput(f"labels {array!r} cannot be saved; use numbers or strings")
    if array.dtype.kind == "f":
        values = [None if value != value else value for value in values]
        if not np.isfinite(array[~np.isnan(array)]).all():
            raise InvalidInput("labels that are infinite cannot be saved; use finite numbers")
    return {"dtype": "str" if array.dtype.kind == "U" else array.dtype.name, "values": values}


def _labels_from_data(data: Any) -> Array | None:
    if data is None:
        return None
    dtype, values = fields_of(data, dtype=str, values=list)
    try:
        kind = np.dtype(dtype)
        texts = dtype in ("str", "object")
        if not texts and (kind.kind not in _KINDS[:-1] or kind.name != dtype):
            raise TypeError(dtype)
        if texts and not all(type(value) is str for value in values):
            raise TypeError("no text")
        filled = [np.nan if value is None and kind.kind == "f" else value for value in values]
        array: Array = np.array(filled, kind)
    except (TypeError, ValueError, OverflowError) as error:
        raise DamagedFile(f"has labels of another dtype ({error})") from error
    if array.ndim != 1:
        raise DamagedFile("has labels of several axes")
    return array


def _kind_from_data(name: Any, rounds: Any) -> tuple[str, int]:
    if type(name) is not str or type(rounds) is not int or rounds < 0:
        raise DamagedFile(f"is an estimator of type {name!r} with {rounds!r} rounds")
    return name, rounds


def _targets_from_data(data: Any) -> tuple[Array, ...] | None:
    if data is None:
        return None
    found = [_labels_from_data(each) for each in data] if type(data) is list else []
    targets = tuple(each for each in found if each is not None)
    if not targets or len(targets) != len(found):
        raise DamagedFile("has targets without labels")
    return targets


def _words_to_data(words: WordColumns | None) -> Any:
    if words is None:
        return None
    columns = [
        {
            "feature": each.feature,
            "words": [_word_to_data(word) for word in each.codes],
            "codes": [_code_to_data(code) for code in each.codes.values()],
            "nan": _code_to_data(each.nan),
            "others": _code_to_data(each.others),
            "step": each.step,
        }
        for each in words.columns
    ]
    found = {"read": words.is_read.tolist(), "columns": columns, "codes": words.reads_codes}
    if isinstance(words, HashColumns):
        hashed = [
            {
                "elements": [[*astuple(one)] for one in each.elements],
                "hashes": list(each.hashes),
                "values": list(each.values),
                "others": each.others,
            }
            for each in words.hashed
        ]
        found |= {"hashed": hashed, "categories": list(words.categories)}
    return found


def _word_to_data(word: Any) -> Any:
    plain = word.item() if isinstance(word, np.generic) else word
    if type(plain) not in _WORDS or plain in (np.inf, -np.inf):
        raise InvalidInput(f"the category {word!r} cannot be saved; use strings or numbers")
    return plain


def _code_to_data(code: float | None) -> Any:
    return "nan" if code is not None and code != code else code


def _words_from_data(data: Any, width: int) -> WordColumns | None:
    if data is None:
        return None
    if type(data) is dict and "hashed" in data:
        return _hashes_from_data(data, width)
    read, columns, codes = fields_of(data, read=list, columns=list, codes=bool)
    if width != len(read) + len(columns):
        raise DamagedFile(f"has {len(columns)} columns of words for {width} columns")
    found = tuple(_word_column(each, len(read)) for each in columns)
    return WordColumns(len(read), found, _mask(read, len(read)), codes)


def _hashes_from_data(data: dict[str, Any], width: int) -> HashColumns:
    read, hashed, categories = fields_of(
        {name: data.get(name) for name in ("read", "hashed", "categories")},
        read=list, hashed=list, categories=list,
    )
    count = len(read)
    places = _group_from_data(categories, count).tolist()
    if width != count + len(hashed):
        raise DamagedFile(f"has {len(hashed)} columns of hashes for {width} columns")
    return hash_columns(count, places, [_hash_column(each, count, places) for each in hashed])


def _hash_column(data: Any, features: int, categories: Sequence[int]) -> HashColumn:
    elements, hashes, values, others = fields_of(
        data, elements=list, hashes=list, values=list, others=float
    )
    made = []
    for each in elements:
        if type(each) is not list or [*map(type, each)] != [str, int, float, bool]:
            raise DamagedFile(f"combines hashes by {each!r}")
        kind, feature = each[:2]
        fits = 0 <= feature < features and (kind == "above") is (feature not in categories)
        if kind not in ("category", "above", "equal") or not fits:
            raise DamagedFile(f"combines hashes by {each!r} of {features} features")
        made.append(HashElement(*each))
    plain = {*map(type, hashes)} <= {int} and {*map(type, values)} <= {float}
    alone = len(made) == 1 and made[0].kind == "equal"
    if not made or not plain or len(hashes) != len(values) or not (values or alone):
        raise DamagedFile(f"has {len(hashes)} hashes with {len(values)} values")
    return HashColumn(tuple(made), tuple(hashes), tuple(values), others)


def _word_column(data: Any, features: int) -> WordColumn:
    free = {key: data.get(key) for key in ("nan", "others")} if type(data) is dict else {}
    rest = {key: value for key, value in data.items() if key not in free} if free else data
    wanted = {"feature": int, "words": list, "codes": list, "step": str}
    feature, words, codes, step = fields_of(rest, **wanted)
    numbers = [_code_from_data(code) for code in (*codes, *free.values())]
    *known, of_nan, others = numbers
    plain = all(type(word) in _WORDS for word in words) and None not in known
    if not (plain and 0 <= feature < features and len(words) == len(known)):
        raise DamagedFile(f"has words of feature {feature} of {features} without their codes")
    named = dict(zip(words, known, strict=True))
    return WordColumn(feature, named, of_nan, others, step)


def _text_to_data(text: TextReader | None) -> Any:
    if text is None:
        return None
    fields = asdict(text)
    return {name: list(each) if type(each) is tuple else each for name, each in fields.items()}


def _text_from_data(data: Any, width: int) -> TextReader | None:
    if data is None:
        return None
    if type(data) is not dict:
        raise DamagedFile(f"counts texts by {data!r}")
    data = {"hashed": 0, "alternates": False, **data}  # which files of 1.0 lack
    kinds = {
        "words": list, "analyser": str, "pattern": str, "least": int, "most": int,
        "stop_words": list, "is_lower": bool, "is_binary": bool, "is_sublinear": bool,
        "weights": list, "norm": str, "hashed": int, "alternates": bool,
    }
    rest = {key: value for key, value in data.items() if key != "accents"}
    words, analyser, pattern, least, most, stops, *others = fields_of(rest, **kinds)
    is_lower, is_binary, is_sublinear, weights, norm, hashed, alternates = others
    accents = data.get("accents")
    if not all(type(word) is str for word in (*words, *stops)) or len(words) + hashed != width:
        raise DamagedFile(f"counts {len(words)} words for {width} columns")
    if analyser not in ANALYSERS or accents not in ACCENTS or not 0 < least <= most:
        raise DamagedFile(f"counts texts by {analyser!r}, from {least} to {most}, {accents!r}")
    if norm not in WEIGHT_NORMS or not all(type(weight) is float for weight in weights):
        raise DamagedFile(f"weights texts by the norm {norm!r}, or by things that are no numbers")
    if len(weights) not in (0, width):
        raise DamagedFile(f"has {len(weights)} weights of {width} words")
    try:
        re.compile(pattern)
    except re.error as error:
        raise DamagedFile(f"has the pattern {pattern!r} of tokens ({error})") from error
    named = tuple(words), analyser, pattern, least, most, tuple(stops), accents
    if hashed < 0 or (hashed and words) or (alternates and not hashed):
        raise DamagedFile(f"counts texts by {len(words)} words and {hashed} hashes")
    flags = is_lower, is_binary, is_sublinear
    return TextReader(*named, *flags, tuple(weights), norm, hashed, alternates)


def _texts_from_data(data: Any, words: Any) -> tuple[TextColumn, ...]:
    """The columns of texts, which are features that are read as no numbers."""
    read = words.get("read") if type(words) is dict else None
    features = len(read) if type(read) is list else 0
    found = []
    for entry in data if type(data) is list else [data]:
        if type(entry) is not list or [*map(type, entry)] != [int, dict]:
            raise DamagedFile(f"counts texts of columns by {entry!r}")
        feature, fields = entry
        if feature not in range(features):
            raise DamagedFile(f"has texts in column {feature}, of {features} features")
        known = fields.get("words")
        width = fields.get("hashed") or (len(known) if type(known) is list else 0)
        reader = _text_from_data(fields, width)
        assert reader is not None
        found.append(TextColumn(feature, reader))
    return tuple(found)


def _code_from_data(code: Any) -> float | None:
    if code == "nan":
        return float("nan")
    if code is not None and type(code) is not float:
        raise DamagedFile(f"has the code {code!r} of a word")
    return code


def _mask(values: Any, features: int) -> Array:
    is_mask = type(values) is list and {*map(type, values)} <= {bool}
    if not is_mask or len(values) != features:
        raise DamagedFile(f"has a mask that is not of {features} features")
    return np.array(values, bool)


def _known_from_data(entry: Any, features: int) -> tuple[int, Array]:
    if type(entry) is not list or len(entry) != 2 or type(entry[0]) is not int:
        raise DamagedFile("has a list of known numbers without a feature")
    feature, seen = entry[0], _labels_from_data(entry[1])
    if not 0 <= feature < features or seen is None or seen.dtype.kind not in "biuf":
        raise DamagedFile(f"has known numbers of feature {feature} of {features}")
    return feature, seen


def _group_from_data(entry: Any, features: int) -> Array:
    if type(entry) is not list or not entry or not {*map(type, entry)} <= {int}:
        raise DamagedFile("has a group of no features")
    if not 0 <= min(entry) <= max(entry) < features:
        raise DamagedFile(f"has a group of features that are not of {features}")
    return np.array(entry)


def _refusals_from_data(
    refused: Sequence[list[Any]], header: Mapping[str, Any], features: int, width: int
) -> Refusals:
    nan, infinity, known, together = refused
    return Refusals(
        _mask(nan, width),
        _mask(infinity, width),
        [_known_from_data(entry, features) for entry in known],
        [_group_from_data(entry, width) for entry in together],
        _least_from_data(header.get("least", [None] * width), width),
        _forms_from_data(header.get("forms", []), width),
        mark=_mark_from_data(header.get("mark")),
        no_sparse_nan=_mask(header.get("no_sparse_nan", nan), width),
    )


def _forms_from_data(data: Any, width: int) -> list[tuple[Array, frozenset[str]]]:
    found = []
    for entry in data if type(data) is list else [data]:
        if type(entry) is not list or [*map(type, entry)] != [list, list]:
            raise DamagedFile(f"takes X in the form {entry!r}")
        group, names = entry
        if not all(type(name) is str for name in names):
            raise DamagedFile(f"takes X in the forms {names!r}")
        found.append((_group_from_data(group, width), frozenset(names)))
    return found


def _mark_from_data(data: Any) -> float | None:
    if data not in (None, "nan", "inf"):
        raise DamagedFile(f"marks rows by {data!r}")
    return None if data is None else float(data)


def _least_from_data(values: Any, features: int) -> Array:
    plain = type(values) is list and {*map(type, values)} <= {float, type(None)}
    if not plain or len(values) != features:
        raise DamagedFile(f"has least numbers that are not of {features} features")
    return np.array([-np.inf if each is None else each for each in values])


def _dtypes_from_data(data: Any) -> NamedDtypes:
    pairs = data.items() if type(data) is dict else [("", data)]
    if not all(type(name) is str and type(dtype) is str for name, dtype in pairs):
        raise DamagedFile(f"has dtypes {data!r}")
    dtypes: NamedDtypes = data
    return dtypes
