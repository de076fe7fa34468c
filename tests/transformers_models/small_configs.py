"""Small configurations: a model type's own one, with its widths divided and its layers left out.

    BertConfig: hidden 768, heads 12, intermediate 3072, layers 12, words 30522
    divided by 8:        96,       12,              384,        2,      99

All widths are divided by one number, so that relations between them stay: heads divide the hidden
size, projections meet. The largest divisor with which a model builds and runs is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from transformers_models.overrides import CONFIGS

WORDS, CODES = 99, 64
IMAGE = 64
POSITIONS = 128
LEAST_WIDTH = 32
MOST_DIVISOR = 64


def _ends_in(*words: str) -> re.Pattern[str]:
    """Names that end in one of these."""
    return re.compile(f"(?:{'|'.join(words)})$")


_WIDTH = _ends_in(
    *("hidden_size", "hidden_sizes", "hidden_dim", "hidden_channels", "d_model", "d_latents"),
    *("ffn_dim", "intermediate_size", "d_ff", "mlp_dim", "n_inner", "inner_dim", "width", "dim"),
    *("embed_dim", "embed_dims", "n_embd", "embedding_size", "embed_size", "head_dim", "d_kv"),
    *(r"proj\w*_dim", "projection_size", "conv_dim", "qk_channels", "v_channels", "feature_size"),
    *("lora_rank", "codebook_dim", "channels", "lru_width", "num_filters", "state_size"),
    *("upsample_initial_channel", "bottleneck_size", "ffn_hidden_size", "mamba_d_ssm"),
)
_KEPT = re.compile(r"(num_channels|in_channels|audio_channels|image_channels|mel|rope)")
_LAYERS = _ends_in(r"num_\w*layers", "n_layers?", "_layers", "depths?", r"num_\w*blocks", "layers")
_NO_LAYERS = re.compile(r"^(num_feat_extract_layers|num_adapter_layers|mlp_layers)$")
_EXPERTS = _ends_in(r"num_\w*experts", "n_routed_experts")
_A_TOKEN = _ends_in("top_k", r"experts_per_tok\w*", "n_group", "topk_group")
_VOCABULARY = _ends_in("vocab_size", "n_vocab", "n_tokens", "num_embeddings")
_CODES = _ends_in("codebook_size")
_POSITIONS = _ends_in(r"max\w*_positions?", "position_embeddings", "n_positions", "n_ctx")
_TOKEN = _ends_in("token_id", "token_index", "_token")
# Names of layers, which a smaller model lacks; the configuration finds its own.
_OF_LAYERS = {"out_features", "out_indices", "stage_names", "_out_features", "_out_indices"}
_QUERIES = _ends_in("num_queries", "num_query_tokens", "num_latents")


def divisors(config: dict[str, Any]) -> Iterator[int]:
    """The divisors of all widths: the largest first, 1 last."""
    widths = [width for width in _widths(config) if width >= LEAST_WIDTH]
    least = min(widths, default=LEAST_WIDTH)
    divisor = MOST_DIVISOR
    while divisor > 1:
        if least // divisor >= 4:
            yield divisor
        divisor //= 2
    yield 1


def _widths(config: dict[str, Any]) -> Iterator[int]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _widths(value)
        elif _is_int(value) and re.search(r"(hidden_size|d_model|n_embd|^dim)$", str(name)):
            yield value


def small(model_type: str, config: dict[str, Any], divisor: int) -> dict[str, Any]:
    """The configuration with its widths divided, few layers, few words and a small image."""
    return _with(_shrunk(config, divisor), CONFIGS.get(model_type, {}))


def _with(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    for name, value in changes.items():
        own = config.get(name)
        both = isinstance(own, dict) and isinstance(value, dict)
        config[name] = _with(own, value) if both else value
    return config


def _shrunk(config: dict[str, Any], divisor: int) -> dict[str, Any]:
    stages = len(config["depths"]) if isinstance(config.get("depths"), list) else None
    counts = {value for name, value in config.items() if _is_layers(name) and _is_int(value)}
    counts.discard(stages)
    patch = config.get("patch_size")
    # Pairs of widths, from one layer to the next.
    pairs = {"in_channels", "out_channels"} if isinstance(config.get("in_channels"), list) else ()
    made = {}
    for name, value in config.items():
        if name in _OF_LAYERS and not isinstance(config.get("depths"), list):
            continue
        if name in pairs or (_is_layers(name) and value == stages):
            made[name] = value
        elif isinstance(value, dict):
            is_config = "model_type" in value or str(name).endswith("config")
            made[name] = _shrunk(value, divisor) if is_config else value
        elif isinstance(value, list) and len(value) in counts and len(value) > 2:
            made[name] = _ends(value)  # an entry a layer
        elif name == "image_size" and value:
            made[name] = _image(value, patch)
        else:
            made[name] = _number(name, value, divisor)
    return made


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_layers(name: str) -> bool:
    return bool(_LAYERS.search(name)) and not _NO_LAYERS.search(name)


def _ends(entries: list[Any]) -> list[Any]:
    """Two entries of a list with one a layer: the first and the last other one."""
    first = entries[0]
    return [first, next((each for each in reversed(entries) if each != first), first)]


def _image(size: Any, patch: Any) -> Any:
    if isinstance(size, list):
        patches = patch if isinstance(patch, list) else [patch] * len(size)
        return [_image(*each) for each in zip(size, patches, strict=False)]
    least = 4 * patch if _is_int(patch) and patch >= 8 else IMAGE
    return min(size, least)


_RULES: tuple[tuple[re.Pattern[str], Callable[[int, int], int]], ...] = (
    (_VOCABULARY, lambda value, divisor: min(value, WORDS)),
    (_CODES, lambda value, divisor: min(value, CODES)),
    (_TOKEN, lambda value, divisor: value if value < WORDS else WORDS - 1 - value % 7),
    (_EXPERTS, lambda value, divisor: min(value, 4)),
    (_A_TOKEN, lambda value, divisor: min(value, 2)),
    (_POSITIONS, lambda value, divisor: min(value, POSITIONS)),
    (_QUERIES, lambda value, divisor: min(value, 10)),
    (_LAYERS, lambda value, divisor: min(value, 2)),
    (_WIDTH, lambda value, divisor: max(value // divisor, 1) if value > 8 else value),
)


def _number(name: str, value: Any, divisor: int) -> Any:
    if isinstance(value, list):
        return [_number(name, each, divisor) for each in value]
    if not _is_int(value) or value <= 0 or _KEPT.search(name):
        return value
    for pattern, smaller in _RULES:
        if pattern.search(name) and not (pattern is _LAYERS and not _is_layers(name)):
            return smaller(value, divisor)
    return value
