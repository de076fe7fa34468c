"""A folder that CMake finds as a package: object, headers, and the C++ wrapper.

    find_package(mymodel REQUIRED)
    target_link_libraries(app PRIVATE mymodel::mymodel)

    mymodel.o, mymodel.h   the code and its C header
    mymodel.hpp            `mymodel::Model`, the sizes and functions of this model, and
                           `mymodel::Stream`
    sparsejit.hpp          the wrapper that all models share
    mymodelConfig.cmake    the target mymodel::mymodel
"""

import re
from pathlib import Path

from sparsejit.artefact.export import PathLike, export
from sparsejit.artefact.exported import ExportedFunction, c_name
from sparsejit.artefact.object_files import LINUX, system_named
from sparsejit.errors import InvalidInput
from sparsejit.files import atomic_path, check_writable, checked_path

WRAPPER = "sparsejit.hpp"


def package_name(name: str) -> str:
    """Return the name. Raises InvalidInput for one that is no name in C."""
    if not isinstance(name, str) or Path(name).name != name or c_name(f"{name}.o") != name:
        raise InvalidInput(f"cmake is {name!r}; name the package, such as mymodel")
    return name


def check_package(folder: PathLike, name: str, system: str = LINUX.name) -> None:
    """Raise the errors of `export_package` for these names, before there is a model."""
    suffix = system_named(system).suffixes[0]
    check_writable(checked_path(folder) / f"{package_name(name)}{suffix}")


def export_package(function: ExportedFunction, folder: PathLike, system: str = LINUX.name) -> None:
    """Write the package of a model into a folder, which is made if it is not there.

    Raises InvalidInput for a folder that cannot be written to, and what `export` raises.
    """
    if function.by_host:
        raise InvalidInput(
            f"the C++ class of a package runs on one thread, and {function.name} is compiled for "
            f"{function.threads}; compile it with threads=1, or export an object file"
        )
    name, chosen = package_name(function.name), system_named(system)
    place = checked_path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{place} is no folder that can be written to: {error}") from error
    binary = place / f"{name}{chosen.suffixes[0]}"
    export(function, binary, place / f"{name}.h", system)
    wrapper = Path(__file__).with_name(WRAPPER).read_text()
    target = _config(name, binary.name, chosen.cmake_name)
    files = {f"{name}.hpp": _model(function), WRAPPER: wrapper, f"{name}Config.cmake": target}
    for file, text in files.items():
        with atomic_path(place / file) as temporary:
            temporary.write_text(text)


def _model(function: ExportedFunction) -> str:
    """Return the text of the .hpp file."""
    name, numbers = function.name, {macro.name: macro.value for macro in function.macros}
    prefix, has_states = name.upper(), "STATE_BYTES" in numbers
    types = re.findall(r"(float|void) \*const \*", function.parameters)
    sizes = [
        ", ".join(f"{prefix}_{side}_{n}_SIZE" for n in range(numbers[f"{side}S"]))
        for side in ("INPUT", "OUTPUT")
    ]
    runs = f"{name}_run(inputs, outputs, workspace{'' if function.fixed else ', 1'})"
    step = f"{name}_step(inputs, outputs, state, workspace)" if has_states else runs
    first = f"{prefix}_INPUT_0_BYTES" if numbers["INPUTS"] else "0"
    delay = f"{prefix}_DELAY" if "DELAY" in numbers else "0"
    return f"""\
// Made by sparsejit: the model {name} for C++17. The header says what its arrays hold.
#ifndef {prefix}_HPP
#define {prefix}_HPP

#include "{name}.h"
#include "{WRAPPER}"

namespace {name} {{

struct Model {{
    using Input = {types[0]};
    using Output = {types[1]};
    static constexpr std::size_t inputs = {prefix}_INPUTS, outputs = {prefix}_OUTPUTS;
    // Elements of each, and a 0 behind the last.
    static constexpr std::size_t input_sizes[] = {{{", ".join(filter(None, (sizes[0], "0")))}}};
    static constexpr std::size_t output_sizes[] = {{{", ".join(filter(None, (sizes[1], "0")))}}};
    static constexpr std::size_t input_bytes = {first};
    static constexpr std::size_t state_bytes = {f"{prefix}_STATE_BYTES" if has_states else "0"};
    static constexpr std::size_t workspace_bytes = {prefix}_WORKSPACE_BYTES, delay = {delay};

    static int prepare(void *workspace) noexcept {{ return {name}_prepare(workspace); }}
    static void reset([[maybe_unused]] void *state) noexcept {{ {
        f"{name}_state_init(state);" if has_states else ""
    } }}
    static int step(const Input *const *inputs, Output *const *outputs,
                    [[maybe_unused]] void *state, void *workspace) noexcept
    {{
        return {step};
    }}
}};

using Stream = sparsejit::Stream<Model>;

}}  // namespace {name}

#endif
"""


def _config(name: str, binary: str, system: str) -> str:
    return f"""\
# Made by sparsejit: the model {name}, for {system} on x86-64.
if(NOT CMAKE_SYSTEM_NAME STREQUAL "{system}"
   OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set({name}_FOUND FALSE)
  set({name}_NOT_FOUND_MESSAGE "it was exported for {system} on x86-64, and the build is for \
${{CMAKE_SYSTEM_NAME}} on ${{CMAKE_SYSTEM_PROCESSOR}}: export it again with system=")
  return()
endif()
if(NOT TARGET {name}::{name})
  add_library({name}::{name} INTERFACE IMPORTED)
  set_target_properties({name}::{name} PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${{CMAKE_CURRENT_LIST_DIR}}"
    INTERFACE_LINK_LIBRARIES "${{CMAKE_CURRENT_LIST_DIR}}/{binary}")
endif()
"""
