"""Small numbers that no rule finds, by model type; and inputs that no signature tells."""

from __future__ import annotations

from typing import Any, TypeAlias

# Sizes of a row: numbers, or names of entries of the configuration.
Shape: TypeAlias = tuple[int | str, ...]

_RESNET = {
    "model_type": "resnet",
    "embedding_size": 16,
    "hidden_sizes": [8, 16, 32, 64],
    "depths": [1, 1, 1, 1],
    "out_indices": [4],
}
_WITHOUT_TIMM = {"use_timm_backbone": False, "backbone": None, "backbone_config": _RESNET}

# Entries that a small configuration has in place of its own.
CONFIGS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("detr", "conditional_detr", "dab-detr", "table-transformer"), _WITHOUT_TIMM),
    "deformable_detr": {
        **_WITHOUT_TIMM,
        "backbone_config": {**_RESNET, "out_indices": [2, 3, 4]},
    },
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320},
    "align": {
        "vision_config": {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 64}
    },
    "audio-spectrogram-transformer": {"max_length": 64},
    "timesfm2_5": {"context_length": 64, "horizon_length": 32},
    "swin": {"window_size": 2},
    "lw_detr": {"backbone_config": {"out_indices": [1, 2]}},
    "perceiver": {"d_model": 32, "d_latents": 64, "num_latents": 8},
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
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
    "voxtral_realtime.encoder": ("input_features",),
    "vit_mae": ("noise",),
    "clap": ("input_features",),
    "layoutlm": ("bbox",),
    "lilt": ("bbox",),
    "bros": ("bbox",),
}

# Sizes of a row of arguments, by the case's name and the argument's.
SHAPES: dict[str, dict[str, Shape]] = {
    "audio-spectrogram-transformer": {"input_values": ("max_length", "num_mel_bins")},
    "granite_speech5_ctc": {"input_features": (48, 320)},
    "wav2vec2-bert": {"input_features": (48, "feature_projection_input_dim")},
    "speecht5.encoder": {"input_values": (9, "hidden_size")},
    "granite_speech.encoder": {"hidden_states": (20, 160)},
    "granite_speech_plus.encoder": {"hidden_states": (20, 160)},
    "vit_mae": {"noise": (16,)},
    "perceiver": {"inputs": (9, "d_model")},
    "detr.encoder": {"inputs_embeds": (9, "d_model")},
    "encodec.encoder": {"hidden_states": (1, 1280)},
    "encodec.decoder": {"hidden_states": ("hidden_size", 6)},
    "encodec.quantizer.decode": {"codes": (4, 9)},
    "mimi.encoder": {"hidden_states": (1, 1920)},
    "mimi.decoder": {"hidden_states": ("hidden_size", 6)},
    "mimi.quantizer.decode": {"codes": (8, 9)},
    "dac": {"input_values": (1, 1024)},
    "clap": {"input_features": (1, 256, 64)},
    "clap.get_audio_features": {"input_features": (1, 256, 64)},
    "omniasr_ctc": {"input_values": (1, 1200)},
    "dac.encoder": {"hidden_state": (1, 1024)},
    "dac.decoder": {"hidden_state": ("hidden_size", 6)},
}

# The axis of the rows where it is not the first one.
AXES: dict[str, dict[str, int]] = {"encodec.quantizer.decode": {"codes": 1}}
