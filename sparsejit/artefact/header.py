"""The C header of an exported function: sizes, error codes, the prototype. Also for C++."""

from sparsejit.artefact.exported import OK, UNSUPPORTED_CPU, ExportedFunction, Macro


def c_header(function: ExportedFunction) -> str:
    """Return the text of the .h file."""
    prefix = function.name.upper()
    codes = (
        Macro("OK", OK, "run has written its outputs"),
        Macro("UNSUPPORTED_CPU", UNSUPPORTED_CPU, "run did nothing: a feature above is missing"),
    )
    needs = " ".join(sorted(function.instruction_sets))
    macros = "\n".join(_define(prefix, macro) for macro in (*codes, *function.macros))
    about = "\n".join(f" * {line}" for line in function.about)
    tiles = _TILES if "amx_tile" in function.instruction_sets else ""
    return f"""\
/* Made by sparsejit.
 *
{about}
 *
 * Any number of threads may call it at once. It calls no library.
{tiles} * The processor and the operating system must have:
 *   {needs}
 */
#ifndef {prefix}_H
#define {prefix}_H

{macros}

#ifdef __cplusplus
extern "C" {{
#endif

int {function.symbol}({function.parameters});

#ifdef __cplusplus
}}
#endif

#endif
"""


_TILES = """\
 * Its first call asks Linux to let this process use the tiles of AMX: arch_prctl with
 * ARCH_REQ_XCOMP_PERM. If Linux refuses, it returns UNSUPPORTED_CPU.
"""


def _define(prefix: str, macro: Macro) -> str:
    value = str(macro.value) if macro.value >= 0 else f"({macro.value})"
    return f"#define {prefix}_{macro.name} {value} /* {macro.meaning} */"
