"""How each kernel family is emitted, one file a family; import as `sparsejit.asm_templates`."""

if __name__ != "sparsejit.asm_templates":
    raise ImportError(
        f"this package was imported as {__name__!r}; write `import sparsejit.asm_templates`"
    )
