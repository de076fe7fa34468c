"""The models of transformers' registry, one case a class, and the parts that are models alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# From a kind to the registry's tables whose model types belong to it; the first kind that has a
# type keeps it. All other types of the registry are of the kind OTHER.
TABLES: dict[str, tuple[str, ...]] = {
    "seq2seq": ("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ"),
    "text": ("MASKED_LM", "TEXT_ENCODING"),
    "vision": (
        *("IMAGE", "IMAGE_CLASSIFICATION", "BACKBONE", "SEMANTIC_SEGMENTATION"),
        *("DEPTH_ESTIMATION", "VIDEO_CLASSIFICATION", "OBJECT_DETECTION"),
        "ZERO_SHOT_IMAGE_CLASSIFICATION",
    ),
    "audio": ("CTC", "AUDIO_CLASSIFICATION", "TEXT_TO_WAVEFORM"),
    "decoder": ("CAUSAL_LM",),
    "series": ("TIME_SERIES_PREDICTION",),
}
ENCODER, OTHER = "encoder", "other"
KINDS = ("text", ENCODER, "vision", "audio", "seq2seq", "decoder", "series", OTHER)
# Parts that are computed alone, by the path to each: a module, or a method of one. Encoders of the
# kind "seq2seq" come on top.
PARTS: dict[str, tuple[str, ...]] = {
    "encodec": ("encoder", "decoder", "quantizer.decode"),
    "dac": ("encoder", "decoder"),
    "mimi": ("encoder", "decoder", "quantizer.decode"),
    "clip": ("get_text_features", "get_image_features"),
    "siglip": ("get_text_features", "get_image_features"),
    "clap": ("get_text_features", "get_audio_features"),
    "detr": ("encoder",),
    "musicgen": ("text_encoder",),
    "fastspeech2_conformer": ("encoder",),
    "vits": ("text_encoder", "decoder", "flow"),
    "speecht5": (),
    "perceiver": (),
}


@dataclass(frozen=True)
class Case:
    """A model class of the registry, or a part of one.

    Attributes:
        kind: one of KINDS
        model_type: the registry's name of the configuration
        model_class: the class that it builds
        part: path of a module or method of the model; empty for the model itself
    """

    kind: str
    model_type: str
    model_class: str
    part: str = ""

    @property
    def name(self) -> str:
        """`type` or `type.part`."""
        return f"{self.model_type}.{self.part}" if self.part else self.model_type


def tables() -> Any:
    """The module that holds the registry."""
    from transformers.models.auto import modeling_auto

    return modeling_auto


def _kinds_of_types() -> dict[str, str]:
    registry, found = tables(), {}
    for kind, names in TABLES.items():
        for name in names:
            for model_type in getattr(registry, f"MODEL_FOR_{name}_MAPPING_NAMES"):
                found.setdefault(model_type, kind)
    return found


def cases() -> Iterator[Case]:
    """All classes, kind by kind, each class once."""
    kinds, seen = _kinds_of_types(), set()
    by_kind: dict[str, list[Case]] = {kind: [] for kind in KINDS}
    for model_type, names in tables().MODEL_MAPPING_NAMES.items():
        model_class = names if isinstance(names, str) else names[0]
        if model_class in seen:
            continue
        seen.add(model_class)
        kind = kinds.get(model_type, OTHER)
        whole = Case(kind, model_type, model_class)
        by_kind[kind].append(whole)
        parts = (ENCODER, *PARTS.get(model_type, ())) if kind == "seq2seq" else ()
        for part in dict.fromkeys((*parts, *PARTS.get(model_type, ()))):
            own = ENCODER if part == ENCODER and kind == "seq2seq" else kind
            by_kind[own].append(Case(own, model_type, model_class, part))
    for kind in KINDS:
        yield from by_kind[kind]


def case_named(name: str) -> Case:
    """The case of that name. Raises KeyError for an unknown one."""
    return {case.name: case for case in cases()}[name]
