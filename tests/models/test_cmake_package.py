"""Packages for CMake: the C++ wrapper gets Python's bits, from blocks of any length."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from system_tools import WINE, run_tool, run_windows

pytest.importorskip("torch")

import torch
from saved_models import CASES
from test_exported_streams import frames, spotter

from sparsejit.errors import InvalidInput

GXX, CMAKE = shutil.which("g++"), shutil.which("cmake")
MINGXX = shutil.which("x86_64-w64-mingw32-g++")
needs_gxx = pytest.mark.skipif(GXX is None, reason="g++ is not there to compile C++")
needs_cmake = pytest.mark.skipif(
    GXX is None or CMAKE is None, reason="g++ or cmake is not there to build a package"
)
needs_windows = pytest.mark.skipif(
    MINGXX is None or WINE is None, reason="mingw-w64's g++ or wine is not there"
)

# Steps one by one, blocks of 0 to 36 elements, then after a reset one block again: all the same.
MAIN = r"""
#include "spotter.hpp"
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

static bool is_armed = false;

void *operator new(std::size_t size)
{
    if (is_armed)
        std::abort();
    if (void *place = std::malloc(size))
        return place;
    throw std::bad_alloc();
}
void operator delete(void *place) noexcept { std::free(place); }
void operator delete(void *place, std::size_t) noexcept { std::free(place); }

int main(int, char **names)
{
    constexpr std::size_t size = SPOTTER_INPUT_X_SIZE, made = SPOTTER_OUTPUT_0_SIZE;
    std::vector<float> x(1000 * size), y(1000 * made), other(1000 * made), rest(made);
    std::FILE *file = std::fopen(names[1], "rb");
    if (!file || std::fread(x.data(), sizeof(float), x.size(), file) != x.size())
        return 1;
    std::fclose(file);
    spotter::Stream stream, blocks;
    is_armed = true;
    for (std::size_t step = 0; step < 1000; step++) {
        sparsejit::Span<const float> frame(x.data() + step * size, size);
        if (stream.step(frame, {y.data() + step * made, made}) != 0)
            return 2;
    }
    std::array<float, size + 1> odd{};
    if (stream.step(odd, rest) != sparsejit::wrong_size)
        return 3;
    for (int turn = 0; turn < 2; turn++) {
        std::size_t written = 0, place = 0;
        for (unsigned block = 1; place < x.size(); block = (block * 11 + 3) % 37) {
            std::size_t count = std::min<std::size_t>(block, x.size() - place);
            sparsejit::Span<const float> given(x.data() + place, count);
            std::size_t room = blocks.written_for(count);
            if (room && blocks.run(given, {other.data(), room - 1}).status != sparsejit::wrong_size)
                return 4;
            auto done = blocks.run(given, {other.data() + written, room});
            if (done.status != 0 || done.written != room || done.steps * made != room)
                return 5;
            written += room;
            place += count;
        }
        if (written != y.size() || other != y)
            return 6;
        blocks.run(odd, rest);
        blocks.reset();
    }
    spotter::Stream moved = std::move(blocks);
    if (moved.run(x, other).status != 0 || other != y)
        return 7;
    is_armed = false;
    file = std::fopen(names[2], "wb");
    std::fwrite(y.data(), sizeof(float), y.size(), file);
    return std::fclose(file) != 0;
}
"""
STRICT = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")


@pytest.fixture(scope="module")
def fast() -> Any:
    torch.manual_seed(0)
    return spotter()


def python_bits(fast: Any, folder: Path) -> bytes:
    xs = frames(1, 2, 5)
    xs.tofile(folder / "x")
    stream = fast.stream()
    return np.array([stream(x) for x in xs]).tobytes()


@needs_gxx
def test_the_wrapper_gets_the_bits_of_python_from_blocks_of_any_length(
    tmp_path: Path, fast: Any
) -> None:
    wanted = python_bits(fast, tmp_path)
    fast.export(tmp_path, cmake="spotter")
    (tmp_path / "main.cpp").write_text(MAIN)
    given = tmp_path / "main.cpp", tmp_path / "spotter.o", "-o", tmp_path / "main"
    run_tool(GXX, *STRICT, *given)
    run_tool(tmp_path / "main", tmp_path / "x", tmp_path / "y")
    assert (tmp_path / "y").read_bytes() == wanted


@needs_windows
def test_the_wrapper_gets_the_bits_of_python_on_windows(
    tmp_path: Path, fast: Any, windows: dict[str, str]
) -> None:
    wanted = python_bits(fast, tmp_path)
    fast.export(tmp_path, cmake="spotter", system="windows")
    (tmp_path / "main.cpp").write_text(MAIN)
    given = tmp_path / "main.cpp", tmp_path / "spotter.obj", "-o", tmp_path / "main.exe", "-static"
    run_tool(MINGXX, *STRICT, *given)
    run_windows(tmp_path / "main.exe", windows, "x", "y")
    assert (tmp_path / "y").read_bytes() == wanted


CMAKE_LISTS = """\
cmake_minimum_required(VERSION 3.13)
project(app CXX)
set(CMAKE_CXX_STANDARD 17)
find_package(spotter REQUIRED)
find_package(spotter REQUIRED)
add_executable(app main.cpp)
target_link_libraries(app PRIVATE spotter::spotter)
"""


@needs_cmake
def test_cmake_builds_with_the_folder_alone(tmp_path: Path, fast: Any) -> None:
    source, package = tmp_path / "source", tmp_path / "anywhere" / "package"
    source.mkdir()
    wanted = python_bits(fast, tmp_path)
    fast.export(package, cmake="spotter")
    assert {each.name for each in package.iterdir()} == {
        *("spotter.o", "spotter.h", "spotter.hpp", "sparsejit.hpp", "spotterConfig.cmake")
    }
    (source / "main.cpp").write_text(MAIN)
    (source / "CMakeLists.txt").write_text(CMAKE_LISTS)
    build = tmp_path / "build"
    run_tool(CMAKE, "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={package}")
    run_tool(CMAKE, "--build", build)
    run_tool(build / "app", tmp_path / "x", tmp_path / "y")
    assert (tmp_path / "y").read_bytes() == wanted


@needs_cmake
def test_cmake_refuses_a_package_for_another_system(tmp_path: Path, fast: Any) -> None:
    fast.export(tmp_path / "package", cmake="spotter", system="macos")
    (tmp_path / "main.cpp").write_text("int main() {}\n")
    (tmp_path / "CMakeLists.txt").write_text(CMAKE_LISTS)
    where = f"-DCMAKE_PREFIX_PATH={tmp_path / 'package'}"
    command = [CMAKE, "-S", tmp_path, "-B", tmp_path / "build", where]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode
    assert "it was exported for Darwin on x86-64, and the build is for" in done.stderr


PLAIN = r"""
#include "net.hpp"
#include <vector>

int main()
{
    net::Stream stream;
    std::vector<float> x(net::Model::input_sizes[0], 0.5f), y(net::Model::output_sizes[0], 9.0f);
    float *const outputs[] = {y.data()};
    const float *const inputs[] = {x.data()};
    std::vector<float> z(y);
    return stream.step(inputs, outputs) || stream.step(x, z) || y != z || y[0] == 9.0f;
}
"""


@needs_gxx
@pytest.mark.parametrize("name", ["perceptron", "perceptron-bfloat16"])
def test_a_model_without_states_has_the_wrapper_too(tmp_path: Path, name: str) -> None:
    """Its batch is free, or fixed."""
    CASES[name].compiled().export(tmp_path, cmake="net")
    (tmp_path / "main.cpp").write_text(PLAIN)
    given = tmp_path / "main.cpp", tmp_path / "net.o", "-o", tmp_path / "main"
    run_tool(GXX, *STRICT, *given)
    run_tool(tmp_path / "main")


@needs_gxx
def test_a_model_of_several_types_has_tables_of_pointers(tmp_path: Path) -> None:
    CASES["words"].compiled().export(tmp_path, cmake="words")
    (tmp_path / "main.cpp").write_text(
        '#include "words.hpp"\nint main() { words::Stream stream; return 0; }\n'
    )
    given = tmp_path / "main.cpp", tmp_path / "words.o", "-o", tmp_path / "main"
    run_tool(GXX, *STRICT, *given)
    run_tool(tmp_path / "main")


@pytest.mark.parametrize(
    ("name", "header", "message"),
    [
        ("my-model", None, "becomes a name in C"),
        ("a/b", None, "cmake is 'a/b'; name the package, such as mymodel"),
        ("net.so", None, "becomes a name in C|cmake is 'net.so'"),
        ("net", "net.h", "header net.h is given beside cmake; a package has its own"),
    ],
)
def test_a_package_that_cannot_be_is_refused(
    tmp_path: Path, name: str, header: str | None, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        CASES["perceptron"].compiled().export(tmp_path / "p", header, cmake=name)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="is no folder that can be written to"):
        CASES["perceptron"].compiled().export(tmp_path / "file", cmake="net")
