"""Small numbers that no rule finds, by model type; and inputs that no signature tells."""

from __future__ import annotations

from typing import Any, TypeAlias

# Sizes of a row: numbers, or names of entries of the configuration.
Shape: TypeAlias = tuple[int | str, ...]

# Entries that a small configuration has in place of its own.
CONFIGS: dict[str, dict[str, Any]] = {
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
}

# Arguments beside those that the signature requires, by the case's name.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            *("clip", "siglip", "altclip", "chinese_clip", "clipseg", "metaclip_2", "align"),
            *("blip", "xclip", "groupvit", "aimv2", "bridgetower", "flava", "vilt", "tipsv2"),
            *("blip-2", "kosmos-2", "owlvit", "owlv2"),
        ),
        ("pixel_values",),
    ),
    "clap": ("input_features",),
    "layoutlm": ("bbox",),
    "lilt": ("bbox",),
    "bros": ("bbox",),
}

# Sizes of a row of arguments, by the case's name and the argument's.
SHAPES: dict[str, dict[str, Shape]] = {
    "encodec.encoder": {"hidden_states": (1, 1280)},
    "encodec.decoder": {"hidden_states": ("hidden_size", 6)},
    "encodec.quantizer.decode": {"codes": (2, 9)},
    "mimi.encoder": {"hidden_states": (1, 1920)},
    "mimi.decoder": {"hidden_states": ("hidden_size", 6)},
    "mimi.quantizer.decode": {"codes": (8, 9)},
    "dac.encoder": {"hidden_state": (1, 1024)},
    "dac.decoder": {"hidden_state": ("hidden_size", 6)},
}

# The axis of the rows where it is not the first one.
AXES: dict[str, dict[str, int]] = {"encodec.quantizer.decode": {"codes": 1}}
