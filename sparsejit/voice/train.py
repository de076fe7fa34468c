"""Training a voice from a folder of recordings: dense, then gradually pruned, resumable."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsejit.prune import CubicSchedule, Pruner
from sparsejit.prune.run import ctrl_c_noted

from ..errors import DamagedFile, InvalidInput
from ..files import atomic_path, check_writable
from .conditioning import CONTEXT_FRAMES
from .dataset import Batch, Clip, Streams, audio_files, held_out_names, load_clips
from .features import HOP_LENGTH
from .module import WaveRNNModule
from .prediction import CLASSES
from .weights import check_temperature

PRUNED = ("rnn.weight_hh_l0", "fc*.weight")
# The pruner keeps blocks of eight units of one gate.
UNITS_A_BLOCK = 8
MOST_UNITS = 4096
CHECKPOINT_SECONDS = 60.0


@dataclass(frozen=True)
class TrainingPlan:
    """What to train and for how long; the unit of time is a sample of audio.

    Pruning runs between the fractions `prune_start` and `prune_end` of `samples`; the
    learning rate falls over all of it on a cosine.

    Raises InvalidInput for what cannot be trained, pruned or spoken.
    """

    hidden_size: int = 384
    samples: int = 190_000_000
    streams: int = 16
    frames: int = 2
    learning_rate: float = 1.5e-3
    final_learning_rate: float = 5e-5
    warm_up_steps: int = 200
    # A little over 0.9, so that rounding to whole blocks leaves no matrix under 90 %.
    amount: float = 0.901
    pattern: str = "1x8"
    prune_start: float = 0.25
    prune_end: float = 0.7
    temperature: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        if self.hidden_size % UNITS_A_BLOCK or not 0 < self.hidden_size <= MOST_UNITS:
            raise InvalidInput(
                f"hidden_size is {self.hidden_size}; give a multiple of {UNITS_A_BLOCK} "
                f"from {UNITS_A_BLOCK} to {MOST_UNITS}: what is pruned are blocks of "
                f"{UNITS_A_BLOCK} units"
            )
        if self.streams < 1 or self.frames < 1:
            raise InvalidInput(
                f"{self.streams} streams of {self.frames} frames a step train nothing; give 1 or "
                "more of both"
            )
        check_temperature(self.temperature)
        if not 0 < self.prune_start < self.prune_end <= 1:
            raise InvalidInput(
                f"pruning from {self.prune_start} to {self.prune_end} of the training is "
                "not an interval in (0, 1]; give prune_start < prune_end"
            )
        if self.samples < self.samples_a_step:
            raise InvalidInput(
                f"{self.samples} samples are less than one step; give {self.samples_a_step} or more"
            )
        self.pruner()  # checks the amount and the pattern

    @property
    def samples_a_step(self) -> int:
        return self.streams * self.frames * HOP_LENGTH

    @property
    def steps(self) -> int:
        return self.samples // self.samples_a_step

    def learning_rate_at(self, step: int) -> float:
        warm_up = min(1.0, (step + 1) / self.warm_up_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        span = self.learning_rate - self.final_learning_rate
        return warm_up * (self.final_learning_rate + span * cosine)

    def pruner(self) -> Pruner:
        start, end = (int(part * self.steps) for part in (self.prune_start, self.prune_end))
        schedule = CubicSchedule(start=start, end=max(end, start + 1), every=100)
        return Pruner(self.amount, self.pattern, targets=PRUNED, schedule=schedule)


@dataclass(frozen=True)
class TrainingProgress:
    """Where a run is: `loss` in nats a sample, `density` of what is pruned."""

    step: int
    steps: int
    loss: float
    density: float
    samples_a_second: float


class Trainer:
    """The state of a training run: model, optimizer, pruner (the plan's), position in the data."""

    def __init__(
        self, plan: TrainingPlan, clips: list[Clip], device: str, pruner: Pruner | None = None
    ) -> None:
        torch.manual_seed(plan.seed)
        self.plan = plan
        self.device = device
        self.model = WaveRNNModule(plan.hidden_size)
        mel = np.concatenate([clip.mel for clip in clips], axis=1)
        self.model.mel_mean.copy_(torch.from_numpy(mel.mean(axis=1)))
        self.model.mel_scale.copy_(torch.from_numpy(1 / np.maximum(mel.std(axis=1), 0.1)))
        self.model.to(device)
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=plan.learning_rate, betas=(0.9, 0.99), fused=True
        )
        self.pruner = plan.pruner() if pruner is None else pruner
        self.pruner.prepare(self.model, self.optimizer)
        self.streams = Streams(clips, plan.streams, plan.frames, plan.seed)
        self.state = torch.zeros(plan.streams, plan.hidden_size, device=device)
        self.step = 0

    def run_step(self, batch: Batch) -> float:
        """Train on one batch and return its loss in nats a sample."""
        self.state[torch.from_numpy(batch.starts)] = 0
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.learning_rate_at(self.step)
        loss, last = negative_log_likelihood(self.model, batch, self.state)
        self.optimizer.zero_grad()
        loss.backward()
        self.pruner.mask_gradients()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.pruner.step()
        self.state = last.detach()
        self.step += 1
        return loss.item()

    def save(self, path: Path) -> None:
        content = {
            "plan": asdict(self.plan),
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "pruner": self.pruner.state_dict(),
            "streams": self.streams.position(),
            "state": self.state,
        }
        with atomic_path(path) as temporary:
            torch.save(content, temporary)

    def restore(self, path: Path) -> None:
        content = _checkpoint_of(self.plan, path)
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.pruner.load_state_dict(content["pruner"])
        self.streams.restore(content["streams"])
        self.state = content["state"].to(self.device)
        self.step = content["step"]


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return a checkpoint's content without unpickling code; DamagedFile if it is not one."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise DamagedFile(
            f"{path} is not a readable checkpoint ({error}); delete it to start afresh"
        ) from error
    plan = content.get("plan") if isinstance(content, dict) else None
    if not isinstance(plan, dict) or "hidden_size" not in plan:
        raise DamagedFile(f"{path} is not sparsejit's checkpoint; delete it to start afresh")
    return content


def _checkpoint_of(plan: TrainingPlan, path: Path) -> dict[str, Any]:
    """A checkpoint's content; InvalidInput if it is of another network than the plan's."""
    content = read_checkpoint(path)
    found = content["plan"]["hidden_size"]
    if found != plan.hidden_size:
        raise InvalidInput(
            f"{path} has hidden_size {found}, the plan {plan.hidden_size}; use the same, or "
            "another output folder"
        )
    missing = {"model", "optimizer", "pruner", "streams", "state", "step"} - content.keys()
    if missing:
        raise DamagedFile(f"{path} lacks {', '.join(sorted(missing))}; delete it to start afresh")
    return content


def negative_log_likelihood(
    model: WaveRNNModule, batch: Batch, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the mean loss in nats a sample and the state after the batch."""
    device = state.device
    inputs, mel, targets = (
        torch.from_numpy(array).to(device) for array in (batch.inputs, batch.mel, batch.targets)
    )
    logits, last = model(inputs, mel, state)
    return nn.functional.cross_entropy(logits.view(-1, CLASSES), targets.view(-1)), last


@torch.no_grad()
def evaluate(model: WaveRNNModule, clips: list[Clip], device: str, frames: int = 20) -> float:
    """Return the teacher-forced nats a sample over `clips`, all in parallel.

    Clips are cut to the shortest one's length, so that they weigh the same.
    """
    shortest = min(clip.frames for clip in clips)
    frames = min(frames, shortest)
    pieces = shortest // frames
    state = torch.zeros(len(clips), model.hidden_size, device=device)
    total = 0.0
    for batch in _whole_clips(clips, frames, pieces):
        loss, state = negative_log_likelihood(model, batch, state)
        total += loss.item()
    return total / pieces


def _whole_clips(clips: list[Clip], frames: int, pieces: int) -> Iterator[Batch]:
    """Yield `pieces` batches of `frames` frames with one clip a stream, from their start."""
    inputs = [clip.inputs() for clip in clips]
    mels = [clip.padded_mel() for clip in clips]
    for piece in range(pieces):
        span = slice(piece * frames * HOP_LENGTH, (piece + 1) * frames * HOP_LENGTH)
        context = slice(piece * frames, (piece + 1) * frames + 2 * CONTEXT_FRAMES)
        yield Batch(
            np.stack([rows[span] for rows in inputs], axis=1).astype(np.int64),
            np.stack([clip.classes[span] for clip in clips], axis=1).astype(np.int64),
            np.stack([mel[:, context] for mel in mels]),
            np.full(len(clips), piece == 0),
        )


def train(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    plan: TrainingPlan | None = None,
    device: str | None = None,
    progress: Callable[[TrainingProgress], None] = lambda progress: None,
) -> Path:
    """Train on the recordings in `folder`; return the path of the finished voice.

    `out` receives the encoded audio, `checkpoint.pt` (written every minute or so and on Ctrl-C,
    which then ends the step that is running; resumed from when present, with the same result as
    without interruption), `log.jsonl`, and `voice.safetensors` at the end. Eight evenly spread
    recordings are held out. CUDA is used where present unless `device` says otherwise. `progress`
    is called after every step.

    Raises InvalidInput for fewer than four recordings, an unreadable or empty one, a device that
    is not here, an `out` that cannot be written to, or a checkpoint of another network; DamagedFile
    for one that cannot be read.
    """
    plan = plan or TrainingPlan()
    device = _choose_device(device)
    audio_files(folder)
    voice = check_writable(Path(out) / "voice.safetensors")
    checkpoint = check_writable(voice.with_name("checkpoint.pt"))
    check_writable(voice.with_name("log.jsonl"))
    if checkpoint.exists():
        _checkpoint_of(plan, checkpoint)
    clips = load_clips(folder, voice.parent)
    names = held_out_names([clip.name for clip in clips])
    held_out = [clip for clip in clips if clip.name in names]
    if not held_out:
        raise InvalidInput(f"{folder} holds {len(clips)} recordings; give at least 4")
    trainer = Trainer(plan, [clip for clip in clips if clip.name not in names], device)
    if checkpoint.exists():
        trainer.restore(checkpoint)
    with bfloat16_products():
        _run(trainer, held_out, checkpoint, progress)
    trainer.pruner.finalize()
    trainer.model.weights(plan.temperature, names).save(voice)
    return voice


def _choose_device(device: str | None) -> str:
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise InvalidInput(f"the device {device!r} is not here; give 'cpu', or leave it out")
    return device


@contextmanager
def bfloat16_products() -> Iterator[None]:
    """Let float32 matrix products round their inputs: 1.7 times faster with AVX512-BF16."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _run(
    trainer: Trainer,
    held_out: list[Clip],
    checkpoint: Path,
    progress: Callable[[TrainingProgress], None],
) -> None:
    """Train to the plan's end; checkpoint and log about every minute."""
    plan = trainer.plan
    density = trainer.pruner.sparsity_report().density
    losses: list[float] = []
    since = time.perf_counter()
    with ctrl_c_noted(True) as pressed:
        for batch in trainer.streams:
            if trainer.step >= plan.steps:
                break
            losses.append(trainer.run_step(batch))
            if trainer.pruner.schedule.due(trainer.step):
                density = trainer.pruner.sparsity_report().density
            seconds = time.perf_counter() - since
            rate = len(losses) * plan.samples_a_step / seconds
            progress(TrainingProgress(trainer.step, plan.steps, losses[-1], density, rate))
            stop = pressed()
            due = seconds > CHECKPOINT_SECONDS or trainer.step == plan.steps
            if due and not stop:
                row = _describe(trainer, losses, seconds, held_out)
                with checkpoint.with_name("log.jsonl").open("a") as log:
                    log.write(json.dumps(row) + "\n")
                losses, since = [], time.perf_counter()
            if due or stop:
                trainer.save(checkpoint)
            if stop:
                raise KeyboardInterrupt


def _describe(
    trainer: Trainer, losses: list[float], seconds: float, held_out: list[Clip]
) -> dict[str, float]:
    plan = trainer.plan
    return {
        "samples": trainer.step * plan.samples_a_step,
        "train_nats": float(np.mean(losses)),
        "held_out_nats": evaluate(trainer.model, held_out, trainer.device),
        "density": trainer.pruner.sparsity_report().density,
        "learning_rate": plan.learning_rate_at(trainer.step),
        "samples_a_second": len(losses) * plan.samples_a_step / seconds,
    }
