"""Measure kernels and peers side by side; import as `sparsejit.perf`."""

if __name__ != "sparsejit.perf":
    raise ImportError(f"this package was imported as {__name__!r}; write `import sparsejit.perf`")
