"""Inputs of a model from its signature: what it requires, its main input, and a mask of texts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers_models.overrides import ARGUMENTS, AXES, SHAPES, Shape

TOKENS, SAMPLES, FRAMES = 7, 1200, 48
# Rows of the example: more are drawn, for calls with other batches.
MOST_ROWS = 5
_COMPANIONS = {"input_ids": ("attention_mask",)}


@dataclass(frozen=True)
class Inputs:
    """MOST_ROWS rows of each argument, on axis 0, and the axis on which a model takes them."""

    tensors: Mapping[str, Tensor]
    axes: Mapping[str, int]

    def rows(self, count: int) -> dict[str, Tensor]:
        """The first rows of all arguments, as the model takes them."""
        pairs = ((name, value[:count]) for name, value in self.tensors.items())
        return {name: value.movedim(0, self.axes.get(name, 0)).clone() for name, value in pairs}


def arguments(case_name: str, function: Callable[..., Any], config: Any) -> Inputs:
    """Rows of every argument that `function` requires, or that its model reads first.

    Raises KeyError for an argument that has no maker and no shape.
    """
    signature = inspect.signature(function).parameters
    wanted = [
        name
        for name, each in signature.items()
        if each.default is each.empty
        and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    owner = getattr(function, "__self__", None)
    main = getattr(owner, "main_input_name", None)
    wanted += [main] if main in signature else []
    wanted += [] if wanted else [name for name in _MAIN if name in signature][:1]
    for name in list(wanted):
        wanted += [each for each in _COMPANIONS.get(name, ()) if each in signature]
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in signature:
        wanted.append("decoder_input_ids")
    wanted += ARGUMENTS.get(case_name, ())
    shapes = SHAPES.get(case_name, {})
    made = {name: _made(name, config, shapes.get(name)) for name in dict.fromkeys(wanted)}
    return Inputs(made, AXES.get(case_name, {}))


def _made(name: str, config: Any, shape: Shape | None) -> Tensor:
    maker = _MAKERS.get(name)
    if shape is not None:
        whole = name.endswith(("_ids", "_thw", "_labels", "shapes", "sizes", "codes"))
        sizes = (getattr(config, each) if isinstance(each, str) else each for each in shape)
        full = (MOST_ROWS, *sizes)
        if name.endswith("_mask"):
            return torch.ones(full, dtype=torch.int64)
        return torch.randint(1, 9, full) if whole else torch.randn(full)
    if maker is None:
        raise KeyError(f"no input is known for the argument {name}")
    return maker(config)


def _words(config: Any) -> Tensor:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return torch.randint(3, min(getattr(text, "vocab_size", None) or 90, 90), (MOST_ROWS, TOKENS))


def _mask(config: Any) -> Tensor:
    """Texts of several lengths, padded to one: no two neighbours have the same."""
    lengths = torch.tensor([[TOKENS, TOKENS - 2, TOKENS - 3, TOKENS, TOKENS - 1]]).T
    return (torch.arange(TOKENS) < lengths).long()


def vision_of(config: Any) -> Any:
    """The part of a configuration that says what images are like."""
    return next(
        (
            part
            for name in ("vision_config", "backbone_config", "vision_encoder_config")
            if (part := getattr(config, name, None)) is not None
        ),
        config,
    )


def _sizes_of_image(config: Any) -> tuple[int, ...]:
    vision = vision_of(config)
    channels = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3
    size = getattr(vision, "image_size", None) or getattr(config, "image_size", None) or 64
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return (channels, height, width)


def _pixels(config: Any) -> Tensor:
    return torch.randn(MOST_ROWS, *_sizes_of_image(config))


def _video(config: Any) -> Tensor:
    vision = vision_of(config)
    frames = getattr(vision, "num_frames", None) or getattr(vision, "frames_per_clip", None) or 2
    return torch.randn(MOST_ROWS, frames, *_sizes_of_image(config))


def _images(config: Any) -> Tensor:
    return _video(config) if getattr(vision_of(config), "num_frames", None) else _pixels(config)


def _sound(config: Any) -> Tensor:
    channels = getattr(config, "audio_channels", None)
    shape = (MOST_ROWS, SAMPLES) if channels is None else (MOST_ROWS, channels, SAMPLES)
    return torch.randn(shape)


def _features(config: Any) -> Tensor:
    """Mels: (rows, mels, frames) where positions are fixed, else (rows, frames, mels)."""
    audio = getattr(config, "encoder_config", None) or getattr(config, "audio_config", config)
    names = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")
    mels = next((getattr(audio, n) for n in names if getattr(audio, n, None)), 80)
    frames = getattr(audio, "max_source_positions", None)
    if frames and not hasattr(audio, "conv_kernel_sizes"):
        return torch.randn(MOST_ROWS, mels, 2 * frames)
    return torch.randn(MOST_ROWS, FRAMES, mels)


def _floats(*shape: int) -> Callable[[Any], Tensor]:
    return lambda config: torch.randn(MOST_ROWS, *shape)


def _series(config: Any) -> Tensor:
    length = next(
        (
            getattr(config, name)
            for name in ("context_length", "seq_length")
            if getattr(config, name, None)
        ),
        32,
    )
    lags = max(getattr(config, "lags_sequence", None) or [0])
    channels = getattr(config, "num_input_channels", None)
    shape = (MOST_ROWS, length + lags)
    return torch.randn(*shape, channels) if channels else torch.randn(shape)


_MAKERS: dict[str, Callable[[Any], Tensor]] = {
    **dict.fromkeys(("input_ids", "decoder_input_ids", "task_inputs"), _words),
    "attention_mask": _mask,
    "pixel_values": _images,
    "pixel_values_videos": _video,
    "input_values": _sound,
    "input_features": _features,
    "past_values": _series,
    "bbox": lambda config: torch.randint(1, 20, (MOST_ROWS, TOKENS, 4)).sort(-1).values,
}
_MAIN = ("input_ids", "pixel_values", "input_values", "input_features", "hidden_states")
