"""Table of the claims of speed; `sparsejit bench check` measures every row that applies.

All are ratios of two figures of the same run, which vary less between machines than times. The
least ratios lie well below the measured ones, since clocks, memory and neighbours vary.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sparsejit.errors import InvalidInput
from sparsejit.perf.problems import ALL_PROBLEMS

MKL_CSR = "MKL CSR"
PREDICTED, ONE_THREAD = "the predicted choice", "one thread"
FASTEST, ALL_PREDICTIONS, BEST_LIBRARY = "the fastest kernel", "all predictions", "the best library"
# Batches of planner surveys; layers (out_features, in_features) and batches of library contests.
SURVEYED_BATCHES = (1, 16, 64)
CONTESTED_SHAPES = ((256, 256), (1024, 1024), (2048, 1024), (4096, 4096))
CONTESTED_BATCHES = (16, 64, 256)
_RECORDED = "perf/results/kernels.jsonl"


@dataclass(frozen=True)
class Claim:
    """`subject` is at least `least` times as good as `against`, where it applies.

    subject: a problem's name, whose kernel strategy="auto" picks, or one of `contests.CONTESTS`,
        or of `model_contests.MODEL_SUBJECTS`.
    against: a peer's name, or the other side of a contest.
    microarchitecture, isa: where the claim applies; None for everywhere.
    source: origin of the least ratio.
    measured: the ratio found when `least` was set, where it is known.
    """

    subject: str
    against: str
    least: float
    source: str
    dtype: str = "float32"
    microarchitecture: str | None = None
    isa: str | None = None
    measured: float | None = None

    @property
    def batch(self) -> int:
        """Batch size: the number of columns of x."""
        return ALL_PROBLEMS[self.subject].batch if self.subject in ALL_PROBLEMS else 1

    def applies(self, microarchitecture: str, isa: str) -> bool:
        """Whether the claim applies to a core of this design at this level."""
        return self.microarchitecture in (None, microarchitecture) and self.isa in (None, isa)


def _over_mkl_csr(
    microarchitecture: str, isa: str, source: str, least: dict[tuple[str, str], float]
) -> list[Claim]:
    return [
        Claim(subject, MKL_CSR, ratio, source, dtype, microarchitecture, isa)
        for (subject, dtype), ratio in least.items()
    ]


_ZEN5 = {
    ("A", "float32"): 6.0,
    ("A", "bfloat16"): 6.0,
    ("A", "float16"): 6.0,
    ("A", "int8"): 14.0,
    ("B", "float32"): 6.0,
    ("C90", "float32"): 2.5,
    ("C90", "int8"): 8.0,
    ("C95", "float32"): 3.0,
    ("C95", "int8"): 8.0,
    ("G95", "float32"): 2.0,
    ("E", "float32"): 2.0,
    ("1x16", "float32"): 6.0,
    ("A-lane", "float32"): 9.0,
    ("D16", "float32"): 3.5,
    ("D64", "float32"): 3.5,
}

# About 0.75 of the ratios on a quiet machine: A 12.2, B 5.2, C90 5.4, C95 3.6, G95 3.3, D64 1.5.
_GOLDEN_COVE = {
    ("A", "float32"): 9.0,
    ("A", "bfloat16"): 6.7,
    ("A", "float16"): 6.7,
    ("A", "int8"): 13.0,
    ("B", "float32"): 3.9,
    ("C90", "float32"): 4.0,
    ("C90", "int8"): 11.0,
    ("C95", "float32"): 2.6,
    ("C95", "int8"): 9.5,
    ("G95", "float32"): 2.4,
    ("1x16", "float32"): 3.8,
    ("A-lane", "float32"): 7.3,
    ("D16", "float32"): 2.3,
    ("D64", "float32"): 1.1,
}

_MEASURED_HERE = "Emerald Rapids, shared virtual machine, November 2026"
_TESTS = "bounds of the tests until November 2026"

# Other parts of the runtime, on any core with AVX2 unless a microarchitecture is named.
_OF_THE_REST = (
    Claim("A", PREDICTED, 0.9, _TESTS),
    Claim("C95", PREDICTED, 0.9, _TESTS),
    Claim("C90", ONE_THREAD, 1.2, "docs/notes/threads.md", microarchitecture="zen5", isa="avx512"),
    Claim("C90", ONE_THREAD, 1.35, _MEASURED_HERE, microarchitecture="golden_cove", isa="avx512"),
    Claim("four threads on one core", ONE_THREAD, 0.05, _TESTS),
    Claim("idle workers", "one busy core", 4.0, _TESTS),
    Claim("a call from Python", "numpy's of the same size", 0.8, _MEASURED_HERE),
    Claim("a bound call", "an empty call and the kernel", 0.5, _MEASURED_HERE),
    Claim("each cache", "the next one out", 1.0, _TESTS),
    Claim("padded lines from L2", "all lines", 0.6, _TESTS),
    Claim("ten times the work", "ten times the time", 0.8, _TESTS),
    Claim(
        "a larger batch's time",
        "the longest before",
        0.9,
        source="perf/results/batch.jsonl",
        microarchitecture="zen5",
        isa="avx512",
    ),
    Claim("a larger batch's time", "the longest before", 0.6, _MEASURED_HERE),
    Claim("a network at 95 %", "itself dense", 2.0, _TESTS),
    Claim("a network pruned for time", "its budget", 0.8, _TESTS),
    Claim("speech", "real time", 10.0, "README.md", microarchitecture="zen5", isa="avx512"),
    Claim(
        "speech",
        "real time",
        6.0,
        source=_MEASURED_HERE,
        microarchitecture="golden_cove",
        isa="avx512",
    ),
    Claim("speech", "real time", 1.0, _MEASURED_HERE),
    Claim("speech", "torch eager", 5.0, _TESTS, isa="avx512"),
)

# Whole models on golden_cove: three quarters of the ratios measured from Python.
_OF_MODELS = tuple(
    Claim(subject, peer, least, _MEASURED_HERE, microarchitecture="golden_cove", isa="avx512")
    for subject, peer, least in (
        ("mlp at 90 %", "torch", 10.0),
        ("mlp at 90 %", "onnxruntime", 8.0),
        ("mlp at 90 %", "deepsparse", 5.5),
        ("mlp at 90 %, batch 64", "onnxruntime", 3.7),
        ("mlp at 90 %, batch 64", "deepsparse", 1.1),
        ("gru-tagger at 90 %", "torch", 13.0),
        ("gru-tagger at 90 %", "onnxruntime", 5.5),
        ("transformer-encoder at 90 %", "torch", 4.5),
        ("transformer-encoder at 90 %", "openvino", 2.7),
        ("transformer-encoder at 90 %", "deepsparse", 3.4),
        ("mobilenet-v1 at 90 %", "deepsparse", 1.45),
        ("mobilenet-v1 at 90 %", "onnxruntime", 3.2),
        ("resnet-18 at 90 %", "deepsparse", 1.8),
        ("resnet-18 at 90 %", "onnxruntime", 2.4),
        ("depthwise of 32 channels, 112x112", "torch-channels-last", 1.0),
        ("depthwise of 384 channels, 14x14", "onnxruntime", 2.5),
        ("deep-and-wide, bound", "static-runtime", 80.0),
        ("deep-and-wide, bound", "tvm", 30.0),
    )
)


# Whole models on two threads of golden_cove: three quarters of the measured ratios.
_OF_MODELS_ON_THREADS = tuple(
    Claim(
        f"{model}, two threads",
        ONE_THREAD,
        least,
        source="perf/results/model_threads.jsonl",
        microarchitecture="golden_cove",
        isa="avx512",
        measured=measured,
    )
    for model, least, measured in (
        ("transformer-encoder, batch 1", 1.0, 1.28),
        ("transformer-encoder, batch 16", 1.5, 2.01),
        ("mobilenet-v1, batch 1", 1.0, 1.33),
        ("mobilenet-v1, batch 8", 1.5, 2.02),
    )
)


# Networks that make a sample at a time, on golden_cove: about 0.85 of the ratios of quiet rounds.
_OF_NETWORKS = tuple(
    Claim(
        subject,
        against,
        least,
        source="perf/results/synth.jsonl",
        dtype=subject.split()[-1],
        microarchitecture="golden_cove",
        isa="avx512",
        measured=measured,
    )
    for subject, against, least, measured in (
        ("deck in float32", "C float32", 1.0, 1.17),
        ("deck in bfloat16", "C bfloat16", 1.2, 1.43),
        ("deck in int8", "C bfloat16", 1.7, 1.97),
        ("wavernn-16k in float32", "torch", 40.0, 58.9),
        ("wavernn-16k in float32", "onnxruntime", 24.0, 31.3),
        ("lpcnet in int8", "real time", 24.0, 30.4),
    )
)


# Products of factors and attention, from Python on golden_cove: about 0.75 of measured ratios.
_OF_STRUCTURES = tuple(
    Claim(
        subject,
        against,
        least,
        source="perf/results/structured.jsonl",
        microarchitecture="golden_cove",
        isa="avx512",
        measured=measured,
    )
    for subject, against, least, measured in (
        ("monarch, batch 1", "F.linear", 16.0, 23.3),
        ("monarch, batch 16", "F.linear", 9.5, 15.4),
        ("strided causal attention, 1 heads", "scaled_dot_product_attention", 4.6, 6.2),
        ("strided causal attention, 1 heads", "flex_attention", 8.0, 10.7),
    )
)


def choices(batch: int, generic: bool) -> str:
    """Subject's name in claims about the planner's choices: a geometric mean over a survey."""
    return f"choices at batch {batch}{_whose(generic)}"


def worst_choice(batch: int, generic: bool) -> str:
    """Subject's name in claims about the planner's choice that loses most, of a survey's layers."""
    return f"the worst choice at batch {batch}{_whose(generic)}"


def predictions(batch: int, generic: bool) -> str:
    """Subject's name in claims about the share of the planner's times within a factor of 1.5."""
    return f"good predictions at batch {batch}{_whose(generic)}"


def _whose(generic: bool) -> str:
    return ", as on an unknown core" if generic else ""


def layer_at(shape: tuple[int, int], batch: int) -> str:
    """Subject's name in claims about a layer (out_features, in_features) at one batch size."""
    return f"{shape[0]}x{shape[1]} at 90 %, batch {batch}"


# Surveys on golden_cove: subject, against, least ratio, and measured ratio or None if not yet
# measured. First the planner: the fastest kernel's time over the choice's, as geometric mean and at
# worst, and the share of good predictions, with the core's data and without, measured over all
# layers of the survey. Then batch-major float32 called from Python.
_OF_SURVEYS: tuple[tuple[str, str, float, float | None], ...] = (
    (choices(1, False), FASTEST, 0.95, 0.985),
    (worst_choice(1, False), FASTEST, 0.6, 0.752),
    (predictions(1, False), ALL_PREDICTIONS, 0.8, 0.96),
    (choices(1, True), FASTEST, 0.8, None),
    (worst_choice(1, True), FASTEST, 0.25, None),
    (predictions(1, True), ALL_PREDICTIONS, 0.3, None),
    (choices(16, False), FASTEST, 0.95, 0.993),
    (worst_choice(16, False), FASTEST, 0.6, 0.862),
    (predictions(16, False), ALL_PREDICTIONS, 0.8, 0.94),
    (choices(16, True), FASTEST, 0.8, None),
    (worst_choice(16, True), FASTEST, 0.25, None),
    (predictions(16, True), ALL_PREDICTIONS, 0.3, None),
    (choices(64, False), FASTEST, 0.95, 0.99),
    (worst_choice(64, False), FASTEST, 0.6, 0.862),
    (predictions(64, False), ALL_PREDICTIONS, 0.8, 0.93),
    (choices(64, True), FASTEST, 0.8, None),
    (worst_choice(64, True), FASTEST, 0.25, None),
    (predictions(64, True), ALL_PREDICTIONS, 0.3, None),
    (layer_at((256, 256), 16), BEST_LIBRARY, 3.5, 4.98),
    (layer_at((256, 256), 64), BEST_LIBRARY, 1.8, 2.49),
    (layer_at((256, 256), 256), BEST_LIBRARY, 1.7, 2.26),
    (layer_at((1024, 1024), 16), BEST_LIBRARY, 2.6, 3.6),
    (layer_at((1024, 1024), 64), BEST_LIBRARY, 1.2, 1.58),
    (layer_at((1024, 1024), 256), BEST_LIBRARY, 1.2, 1.6),
    (layer_at((2048, 1024), 16), BEST_LIBRARY, 2.3, 3.18),
    (layer_at((2048, 1024), 64), BEST_LIBRARY, 1.15, 1.49),
    (layer_at((2048, 1024), 256), BEST_LIBRARY, 1.15, 1.5),
    (layer_at((4096, 4096), 16), BEST_LIBRARY, 2.3, 3.14),
    (layer_at((4096, 4096), 64), BEST_LIBRARY, 1.2, 1.66),
    (layer_at((4096, 4096), 256), BEST_LIBRARY, 1.2, 1.57),
    ("batches of 16 to 256", BEST_LIBRARY, 1.7, 2.23),
    ("batches in int8", "in float32", 0.8, 0.96),
)


def _surveyed() -> Iterator[Claim]:
    for subject, against, least, measured in _OF_SURVEYS:
        yield Claim(
            subject,
            against,
            least,
            source=_MEASURED_HERE,
            microarchitecture="golden_cove",
            isa="avx512",
            measured=measured,
        )


CLAIMS = (
    *_over_mkl_csr("zen5", "avx512", _RECORDED, _ZEN5),
    *_over_mkl_csr("golden_cove", "avx512", _MEASURED_HERE, _GOLDEN_COVE),
    *_OF_THE_REST,
    *_OF_MODELS,
    *_OF_NETWORKS,
    *_OF_MODELS_ON_THREADS,
    *_OF_STRUCTURES,
    *_surveyed(),
)


def claims_of(subjects: Iterable[str], among: Iterable[Claim] = CLAIMS) -> list[Claim]:
    """The claims about these subjects; raises InvalidInput for a subject without a claim."""
    among, subjects = list(among), list(subjects)
    known = dict.fromkeys(claim.subject for claim in among)
    for subject in subjects:
        if subject not in known:
            raise InvalidInput(f"nothing is claimed of {subject!r}; use one of {', '.join(known)}")
    return [claim for claim in among if claim.subject in subjects]
