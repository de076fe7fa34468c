"""Parts that every family uses: rows, tiles, storage, padding, redirects, activations."""
