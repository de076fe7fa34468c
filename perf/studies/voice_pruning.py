"""What pruning the voice's recurrent matrix costs, by pattern, amount and ranking of the gates.

One dense checkpoint; from it every arm trains equally long on the same samples in the same order,
pruned or not. Run `python -m sparsejit.perf.studies.voice_pruning --data FOLDER --out FOLDER`; it
resumes. Then `--kernels` times the trained matrices, `--table` prints docs/pruning.md's tables.
"""

import argparse
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsejit.errors import InvalidInput
from sparsejit.files import atomic_path
from sparsejit.perf.history import RESULTS, append_rows, circumstances, read_rows
from sparsejit.perf.studies.voice_pruning_report import add_kernel_times, markdown
from sparsejit.prune import CubicSchedule, Pruner
from sparsejit.voice.train.dataset import Clip, held_out_names, load_clips
from sparsejit.voice.train.likelihood import evaluate, matrix_product_precision
from sparsejit.voice.train.trainer import Trainer
from sparsejit.voice.train.training_plan import TrainingPlan
from sparsejit.voice.weights import read_training

TARGET = "rnn.weight_hh_l0"
PATTERNS = ("unstructured", "lane16", "1x8", "1x16")


@dataclass(frozen=True)
class Sizes:
    """The network, and the samples of audio up to the common checkpoint."""

    hidden_size: int = 256
    dense_samples: int = 25_000_000
    streams: int = 16

    def dense_plan(self) -> TrainingPlan:
        """Ends at a learning rate to go on from."""
        return TrainingPlan(
            self.hidden_size,
            self.dense_samples,
            self.streams,
            final_learning_rate=5e-4,
            int8_start=1.0,
        )

    def extra_plan(self, samples: int, order: int) -> TrainingPlan:
        """No warm-up: Adam's moments come with the checkpoint."""
        return TrainingPlan(
            self.hidden_size,
            samples,
            self.streams,
            learning_rate=5e-4,
            warm_up_steps=1,
            int8_start=1.0,
            seed=order,
        )


@dataclass(frozen=True)
class Arm:
    """One continuation of the checkpoint by so many samples; `order` seeds their order."""

    pattern: str
    amount: float
    per_gate: bool = True
    samples: int = 3_500_000
    order: int = 1

    @property
    def matrix(self) -> str:
        """The file name of the trained matrix."""
        gates = "per-gate" if self.per_gate else "across"
        return f"{self.pattern}-{self.amount:.2f}-{gates}-{self.samples}-{self.order}.npy"

    def pruner(self, steps: int) -> Pruner:
        """The amount rises over the first 60 % of the steps."""
        schedule = CubicSchedule(0, max(steps * 3 // 5, 1), every=10)
        return Pruner(
            self.amount, self.pattern, targets=TARGET, schedule=schedule, per_gate=self.per_gate
        )


DENSE = Arm("unstructured", 0.0)
# What tells most comes first.
RANKINGS = [(0.9, True), (0.95, True), (0.9, False), (0.95, False)]
RANKINGS += [(0.8, True), (0.97, True), (0.8, False), (0.97, False)]


def arms() -> Iterator[Arm]:
    """Yield every continuation, and again those at 90 %: in another order, two for longer."""
    yield DENSE
    for amount, per_gate in RANKINGS:
        yield from (Arm(pattern, amount, per_gate) for pattern in PATTERNS)
    for arm in (DENSE, *(Arm(pattern, 0.9) for pattern in PATTERNS)):
        yield replace(arm, order=2)
    for arm in (DENSE, Arm("lane16", 0.9), Arm("1x8", 0.9)):
        yield replace(arm, samples=2 * arm.samples)


class VoiceStudy:
    """The clips, the common checkpoint in folder `out`, and the rows in the file `results`."""

    def __init__(self, clips: list[Clip], out: Path, results: Path, sizes: Sizes) -> None:
        names = held_out_names([clip.name for clip in clips])
        self.held_out = [clip for clip in clips if clip.name in names]
        self.training = [clip for clip in clips if clip.name not in names]
        self.out, self.results, self.sizes = out, results, sizes

    def run(self, chosen: Sequence[Arm]) -> Iterator[dict[str, Any]]:
        """Train the arms that have no row yet, and yield each one's row once it is recorded.

        Raises InvalidInput where rows of another checkpoint or of other sizes are there already.
        """
        dense = self.checkpoint()
        common = {**asdict(self.sizes), "checkpoint": _fingerprint(dense)}
        done = read_rows(self.results)
        for row in done:
            if other := {name: row[name] for name in common if row[name] != common[name]}:
                raise InvalidInput(
                    f"{self.results} has a row with {other}, and this study has {common}: "
                    "give another results file"
                )
        recorded = {Arm(**{f.name: row[f.name] for f in fields(Arm)}) for row in done}
        for arm in chosen:
            if arm not in recorded:
                row = {**asdict(arm), **common, **self._train(arm, dense), **circumstances()}
                append_rows(self.results, [row])
                yield row

    def checkpoint(self) -> Path:
        """Train the dense network to its end, if it is not there yet."""
        path = self.out / "dense.pt"
        plan = self.sizes.dense_plan()
        trainer = Trainer(plan, self.training, "cpu", Pruner(0.0, targets=TARGET))
        if path.exists():
            trainer.restore(path)
        with matrix_product_precision("medium"):
            for batch in islice(trainer.streams, plan.steps - trainer.step):
                trainer.run_step(batch)
                if trainer.step % 100 == 0 or trainer.step == plan.steps:
                    trainer.save(path)
        return path

    def _train(self, arm: Arm, dense: Path) -> dict[str, Any]:
        """Go on from the checkpoint; save the matrix and return the row's own part."""
        plan = self.sizes.extra_plan(arm.samples, arm.order)
        trainer = Trainer(plan, self.training, "cpu", arm.pruner(plan.steps))
        content = read_training(dense, "delete it")
        trainer.model.load_state_dict(content["model"])
        trainer.optimizer.load_state_dict(content["optimizer"])
        with matrix_product_precision("medium"):
            losses = [trainer.run_step(batch) for batch in islice(trainer.streams, plan.steps)]
            shortest = min(clip.frames for clip in self.held_out)
            nats = evaluate(trainer.model, self.held_out, "cpu", most_frames=shortest)
        trainer.pruner.finalize()
        matrix = trainer.model.get_parameter(TARGET).detach().numpy()
        with atomic_path(self.out / arm.matrix) as temporary, temporary.open("wb") as file:
            np.save(file, matrix)
        return {
            "matrix": arm.matrix,
            "nats": nats,
            "train_nats": float(np.mean(losses[-len(losses) // 5 :])),
            "nnz": int(np.count_nonzero(matrix)),
            "gate_density": [float(np.mean(gate != 0)) for gate in np.split(matrix, 3)],
        }


def _fingerprint(checkpoint: Path) -> str:
    """A short name of the weights in a checkpoint."""
    digest = hashlib.sha256()
    for tensor in read_training(checkpoint, "delete it")["model"].values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()[:12]


def main() -> None:
    """Run the study, or time its matrices, or print its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="Folder of recordings.")
    parser.add_argument("--out", type=Path, default=Path("runs/voice_pruning"))
    parser.add_argument("--results", type=Path, default=RESULTS / "voice_pruning.jsonl")
    parser.add_argument("--kernels", action="store_true", help="Only time the trained matrices.")
    parser.add_argument("--table", action="store_true", help="Only print the tables.")
    chosen = parser.parse_args()
    if not (chosen.kernels or chosen.table or chosen.data):
        parser.error("--data is missing: give a folder of recordings to train on")
    if chosen.kernels:
        add_kernel_times(chosen.results, chosen.out)
    elif chosen.table:
        print(markdown(read_rows(chosen.results)))
    else:
        torch.set_num_threads(1)
        clips = load_clips(chosen.data, chosen.out)
        for row in VoiceStudy(clips, chosen.out, chosen.results, Sizes()).run(list(arms())):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
