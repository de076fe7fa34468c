"""Saved kernels: the same bits after loading, and one exception for any file that is damaged."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matvec_checks import block_weights, scattered, target_of
from safetensors.numpy import save_file

import sparsejit
from sparsejit.artefact import sealed
from sparsejit.artefact.records import RecordCodec
from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.asm_templates.families import MATVEC_TEMPLATES
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.ir.ops.convolution import RoundedResult
from sparsejit.ir.spec import Activation, Layout, Quantisation
from sparsejit.machine.target import Target
from sparsejit.voice.bundled import VOICE

# One row of each strategy, dtype and level; which kernel it repeats, the planner chooses.
BATCHES = {(row.family, row.dtype, row.isa): row for row in MATMUL_TEMPLATES}.values()
TARGET = RecordCodec((Target,)).encode(Target.named("avx2"))
KERNELS = [
    pytest.param(
        row,
        id=row.name,
        marks=pytest.mark.skipif(
            not target_of(row).runs_on(Target.detect()), reason="needs another processor"
        ),
    )
    for row in (*MATVEC_TEMPLATES, *BATCHES)
]


@pytest.mark.parametrize("row", KERNELS)
def test_a_loaded_kernel_gives_the_same_bits(tmp_path: Path, row: Any) -> None:
    kernel = sparsejit.compile_matrix(
        block_weights((48, 32), 0.3, 16),
        np.linspace(-1, 1, 48),
        batch=19 if row in BATCHES else 1,
        dtype=row.dtype.value,
        strategy=row.family,
        target=target_of(row),
    )
    assert (kernel.strategy, kernel.plan.chosen.template.isa) == (row.family, row.isa)
    kernel.save(tmp_path / "k.sjit")
    loaded = sparsejit.load(tmp_path / "k.sjit")
    assert loaded.image.data == kernel.image.data and loaded.pointer != kernel.pointer
    x = np.random.default_rng(0).standard_normal(kernel.spec.x_shape).astype(np.float32)
    np.testing.assert_array_equal(loaded(x), kernel(x))


W = scattered((16, 8), 0.2)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation": Activation.TANH, "layout": Layout.FEATURE_MAJOR, "batch": np.int64(7)},
        {"activation": "relu", "threads": "auto", "exact": True, "tune": True},
        {"dtype": "int8", "input_scale": np.float32(0.03), "threads": 2},
        {"target": Target.named("avx2"), "strategy": "dense"},
        {"target": "avx2"},
    ],
)
def test_all_options_are_kept(tmp_path: Path, options: dict[str, Any]) -> None:
    kernel = sparsejit.compile_matrix(-W, **options)
    kernel.save(tmp_path / "k.sjit")
    loaded = sparsejit.load(tmp_path / "k.sjit")
    kept, again = kernel._source, loaded._source
    assert again.options == kept.options and again.bias is None
    assert again.weights.tobytes() == kept.weights.tobytes()
    assert repr(loaded.explain()) and loaded.spec.case == kernel.spec.case


def test_the_same_kernel_is_the_same_file(tmp_path: Path) -> None:
    kernel = sparsejit.compile_matrix(W, np.ones(16))
    contents = set()
    for _ in range(5):
        kernel.save(tmp_path / "k.sjit")
        contents.add((tmp_path / "k.sjit").read_bytes())
    assert len(contents) == 1
    assert header_end(contents.pop()) % 8 == 0


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "k.sjit"
    sparsejit.compile_matrix(W, np.ones(16), activation="relu").save(path)
    return path.read_bytes()


def header_end(content: bytes) -> int:
    return 8 + int.from_bytes(content[:8], "little")


REFUSED = r"hurt\.sjit .*; copy it again, or save"


def assert_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "hurt.sjit").write_bytes(content)
    with pytest.raises(DamagedFile, match=REFUSED):
        sparsejit.load(tmp_path / "hurt.sjit")


def assert_flips_are_refused(tmp_path: Path, sound: bytes, flips: list[tuple[int, int]]) -> None:
    """Changes one byte at a time in place, which is faster than a file for each."""
    path = tmp_path / "hurt.sjit"
    path.write_bytes(sound)
    with path.open("r+b", buffering=0) as file:
        for place, flip in flips:
            file.seek(place)
            file.write(bytes([sound[place] ^ flip]))
            with pytest.raises(DamagedFile, match=REFUSED):
                sparsejit.load(path)
            file.seek(place)
            file.write(sound[place : place + 1])
    assert sparsejit.load(path).shape == (16, 8)


def test_no_byte_of_a_header_can_change_unnoticed(tmp_path: Path, sound: bytes) -> None:
    places = range(header_end(sound))
    assert_flips_are_refused(tmp_path, sound, [(i, flip) for i in places for flip in (32, 255)])


def test_no_bit_elsewhere_can_change_unnoticed(tmp_path: Path, sound: bytes) -> None:
    generator = np.random.default_rng(0)
    places = generator.integers(header_end(sound), len(sound), 10_000).tolist()
    bits = generator.integers(0, 8, 10_000).tolist()
    flips = [(place, 1 << bit) for place, bit in zip(places, bits, strict=True)]
    assert_flips_are_refused(tmp_path, sound, flips)


def test_truncated_and_extended_files_are_refused(tmp_path: Path, sound: bytes) -> None:
    for length in range(len(sound)):
        assert_refused(tmp_path, sound[:length])
    end = header_end(sound)
    for more in (b"\0", b" ", b"x" * 1000, sound):
        assert_refused(tmp_path, sound + more)
        assert_refused(tmp_path, sound[:end] + more + sound[end:])
        assert_refused(tmp_path, more + sound)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "hurt.sjit"
    save_file({"weight": np.zeros(3, np.float32)}, path)
    foreign = [b"", b"PK\x03\x04", pickle.dumps(W), path.read_bytes(), b"\x7fELF" + bytes(100)]
    foreign += [VOICE.read_bytes(), b"\xff" * 64, json.dumps({"__metadata__": {}}).encode()]
    for content in foreign:
        assert_refused(tmp_path, content)


def test_no_file_is_said_to_be_none(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    with pytest.raises(InvalidInput, match=f"there is no file {absent}; give one that `save`"):
        sparsejit.load(absent)
    with pytest.raises(InvalidInput, match=f"{tmp_path} is a folder; give a file that `save`"):
        sparsejit.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "4"}, r"of format version 4, written by sparsejit .*: install a newer"),
        ({"version": "2"}, "of format version 2, .* reads version 3: save it with this one"),
        ({"version": "999999999"}, "install a newer sparsejit"),
        ({"version": "0"}, "has format version '0', which does not exist"),
        ({"version": ""}, "has format version ''"),
        ({"kind": "voice"}, "holds a 'voice'; give the file of: .*kernel or model"),
        ({"format": "another"}, "has format 'another', not 'sparsejit'"),
        ({"header": "{"}, "has no readable header"),
        ({"header": "[" * 100_000}, "has no readable header"),
        ({"header": "[]"}, "has a header that is not an object"),
        ({"header": '{"options": NaN}'}, "NaN is not a number"),
        ({"header": "{}"}, "has {} where only options, arrays belong"),
    ],
)
def test_a_whole_file_of_something_else_says_what(
    tmp_path: Path, sound: bytes, change: dict[str, str], message: str
) -> None:
    path = tmp_path / "odd.sjit"
    path.write_bytes(sound)
    tensors, metadata = sealed.read_sealed(path, "")
    del metadata["sha256"]
    sealed.write_sealed(path, tensors, {**metadata, **change})
    with pytest.raises(DamagedFile, match=rf"odd\.sjit .*{message}"):
        sparsejit.load(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda h: h.update(options=TARGET), "record belongs"),
        (lambda h: h["options"].update(batch=True), "True is no int"),
        (lambda h: h.update(arrays={}), "unread tensors: 0, 1, 2"),
        (lambda h: h["arrays"]["weights"].update(shape=[128]), "are no float32 matrix"),
        (lambda h: h["arrays"]["weights"].update(shape=[16, 9]), "as tensor 0"),
    ],
)
def test_a_kernel_that_cannot_be_is_refused(
    tmp_path: Path, sound: bytes, damage: Callable[[Any], None], message: str
) -> None:
    path = tmp_path / "odd.sjit"
    path.write_bytes(sound)
    kind, header, tensors = sealed.read(path, {"kernel"})
    damage(header)
    sealed.write(path, kind, header, tensors)
    with pytest.raises(DamagedFile, match=rf"odd\.sjit has .*{message}.*; copy it again"):
        sparsejit.load(path)


def test_a_file_that_cannot_be_written_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    kernel = sparsejit.compile_matrix(W)
    with pytest.raises(InvalidInput, match="it is a folder"):
        kernel.save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_records_of_older_files_have_the_present_names() -> None:
    old = {"record": "QuantisedSteps", "scale": 0.5, "shift": 3}
    assert RecordCodec((Quantisation,)).decode(old) == Quantisation(0.5, 3)
    rounded = {"record": "RoundedResult", "result": old, "own": None, "added": None}
    assert RecordCodec((RoundedResult,)).decode(rounded).result == Quantisation(0.5, 3)
