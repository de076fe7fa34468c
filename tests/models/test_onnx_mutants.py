"""A bounded number of mutated ONNX models: compiled and right, or refused by errors of ours."""

import pytest

pytest.importorskip("onnx")

from fuzzing.onnx_files import check, make, read

pytestmark = pytest.mark.filterwarnings("ignore")  # of numpy and torch, in their making

# A share of the seeds is compiled, which takes longer.
READ, COMPILED = range(600), range(1000, 1040)


@pytest.mark.parametrize("first", READ[::100])
def test_a_mutant_is_read_or_refused(first: int) -> None:
    read_ones = sum(read(make(seed)) is not None for seed in range(first, first + 100))
    assert 0 < read_ones < 100


def test_a_mutant_that_compiles_computes_what_it_says() -> None:
    assert {check(make(seed)) for seed in COMPILED} >= {"compiled", "refused"}


def test_a_seed_says_its_case() -> None:
    for seed in range(5):
        assert str(make(seed)) == str(make(seed))
