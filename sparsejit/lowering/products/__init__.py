"""Linear layers, products of activations, attention."""
