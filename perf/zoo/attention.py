"""Models with attention."""

from torch import nn

LAYERS, WIDTH, HEADS, TOKENS = 4, 256, 4, 32


def transformer_encoder() -> nn.Module:
    """(batch, tokens, 256) -> the same shape."""
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, dim_feedforward=4 * WIDTH, activation="gelu", batch_first=True
    )
    return nn.TransformerEncoder(layer, LAYERS)
