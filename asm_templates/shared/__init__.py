"""What every family uses: rows, tiles, storage, padding, redirects, activations."""
