"""Entries of torch's operator database that inference has no use for, and the reason for each."""

from __future__ import annotations

import re

# Names of entries in full, as `formatted_name` writes them, or as a pattern.
LEFT_OUT: dict[str, tuple[str, ...]] = {
    "draws random numbers": (
        *("cauchy", "exponential", "geometric", "log_normal", "uniform", "bernoulli"),
        *("multinomial", r"normal.*", r"rand.*"),
        *(r"nn_functional_.*dropout.*", "nn_functional_rrelu"),
    ),
    "returns memory without a value": (r"(new_)?empty.*", r"resize_.*"),
    "sparse or nested layout": (r"sparse_.*", "to_sparse"),
    "returns no tensor": ("item", "equal", "allclose", "broadcast_shapes"),
    "gradient": (r".*_backward(_data)?", r".*_grad", r".*_grad_oriented", r".*_subgradients.*"),
    "kernel source as an argument": (r"jiterator_.*",),
    "another device": (
        *("bmm_triton_optimized", r"torch__scaled_mm.*"),
        r"torch_ops_aten__(flash|efficient)_attention_forward",
    ),
    "matrix decomposition": (
        *(r"cholesky.*", r"lu(_.*)?", "geqrf", "ormqr", "qr", "svd", "svd_lowrank", "pca_lowrank"),
        *("triangular_solve", "pinverse", "logdet", "matrix_exp", "norm_nuc"),
        r"linalg_(cholesky|eig|lu|ldl|svd|solve|inv|pinv|tensor|lstsq|matrix_(rank|norm)).*",
        r"linalg_(det|slogdet|cond|qr|householder_product|norm)",
    ),
    "hash": ("hash_tensor",),
}


def reason(name: str) -> str:
    """The reason that an entry is left out; empty for entries of inference."""
    for text, patterns in LEFT_OUT.items():
        if any(re.fullmatch(pattern, name) for pattern in patterns):
            return text
    return ""
