"""The C header of exported code: sizes, error codes, prototypes; also for C++.

    MODEL_HASH            digest of all that the header says
    #define model_run     model_run_1f0c...     the name that the linker looks for

An object has its functions under both names. So a program that was compiled with one header does
not link with the object of another interface, and `dlsym` finds the short name.
"""

import hashlib

from sparsejit.artefact.entry_points import entry_points
from sparsejit.artefact.exported import OK, UNSUPPORTED_CPU, ExportedFunction, Macro

_HASH_DIGITS = 16


def interface_hash(function: ExportedFunction) -> str:
    """Return the hash that header and object share.

    Other weights of the same network change it only where sizes or needs of the code change.
    """
    return hashlib.sha256(_text(function, "").encode()).hexdigest()[:_HASH_DIGITS]


def c_header(function: ExportedFunction) -> str:
    """Return the text of the .h file."""
    return _text(function, interface_hash(function))


def _text(function: ExportedFunction, digest: str) -> str:
    prefix, points = function.name.upper(), entry_points(function)
    codes = (
        Macro("OK", OK, "a function has done its work"),
        Macro("UNSUPPORTED_CPU", UNSUPPORTED_CPU, "it did nothing: a feature above is missing"),
    )
    needs = " ".join(sorted(function.instruction_sets))
    macros = "\n".join(_define(prefix, macro) for macro in (*codes, *function.macros))
    about = "\n".join(f" * {line}" for line in function.about)
    tiles = _TILES if "amx_tile" in function.instruction_sets else ""
    names = [f"{function.name}_{point.name}" for point in points]
    renamed = "\n".join(f"#define {name} {name}_{digest}" for name in names)
    functions = "\n".join(
        "".join(f"/* {line} */\n" for line in point.about) + f"int {name}({point.parameters});"
        for name, point in zip(names, points, strict=True)
    )
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

#include <stddef.h>

{macros}

/* This header and its object file have this hash in common; others do not link. */
#define {prefix}_HASH "{digest}"
{renamed}

#ifdef __cplusplus
extern "C" {{
#endif

{functions}

#ifdef __cplusplus
}}
#endif

#endif
"""


_TILES = """\
 * The first call asks Linux to let this process use the tiles of AMX: arch_prctl with
 * ARCH_REQ_XCOMP_PERM. If Linux refuses, it returns UNSUPPORTED_CPU.
"""


def _define(prefix: str, macro: Macro) -> str:
    value = str(macro.value) if macro.value >= 0 else f"({macro.value})"
    return f"#define {prefix}_{macro.name} {value} /* {macro.meaning} */"
