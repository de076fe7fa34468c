"""Code generators of all kernel families, one file a family; import `sparsejit.asm_templates`."""

if __name__ != "sparsejit.asm_templates":
    raise ImportError(
        f"this package was imported as {__name__!r}; write `import sparsejit.asm_templates`"
    )
