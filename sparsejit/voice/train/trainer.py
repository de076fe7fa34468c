"""Training a voice from a folder of recordings: dense, then gradually pruned, resumable."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.files import atomic_path, check_writable
from sparsejit.prune import Pruner
from sparsejit.prune.run import ctrl_c_noted
from sparsejit.voice.train.dataset import (
    Batch,
    Clip,
    Streams,
    audio_files,
    held_out_names,
    load_clips,
)
from sparsejit.voice.train.likelihood import (
    evaluate,
    matrix_product_precision,
    negative_log_likelihood,
)
from sparsejit.voice.train.module import WaveRNNModule, check_wide_enough
from sparsejit.voice.train.training_plan import TrainingPlan
from sparsejit.voice.weights import DENSE_LAYERS, RECURRENT, VoiceWeights, read_training

CHECKPOINT_SECONDS = 300.0
_REMEDY = "delete it to start afresh"
# Frames of each held-out recording that the log scores: a second.
LOGGED_FRAMES = 100


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of a run: `loss` in nats a sample, `density` of the pruned matrices."""

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
        int8 = self.plan.rounds_at(self.step)
        loss, last = negative_log_likelihood(self.model, batch, self.state, int8)
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


def _checkpoint_of(plan: TrainingPlan, path: Path) -> dict[str, Any]:
    """Read a checkpoint.

    Raises InvalidInput where its hidden_size differs from the plan's, and DamagedFile where it
    lacks a part of the training's state.
    """
    content = read_training(path, _REMEDY)
    found = content["plan"]["hidden_size"]
    if found != plan.hidden_size:
        raise InvalidInput(
            f"{path} has hidden_size {found}, the plan {plan.hidden_size}; use the same, or "
            "another output folder"
        )
    missing = {"model", "optimizer", "pruner", "streams", "state", "step"} - content.keys()
    if missing:
        raise DamagedFile(f"{path} lacks {', '.join(sorted(missing))}; {_REMEDY}")
    return content


def train(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    plan: TrainingPlan | None = None,
    device: str | None = None,
    progress: Callable[[TrainingProgress], None] = lambda progress: None,
    start: VoiceWeights | None = None,
) -> Path:
    """Train on the recordings in `folder`; return the path of the finished voice.

    `out` receives the encoded audio, `checkpoint.pt` (written every five minutes and on Ctrl-C,
    which then ends the step that is running; resumed from when present, with the same result as
    without interruption), `log.jsonl`, and `voice.safetensors` at the end. Eight evenly spread
    recordings are held out. CUDA is used where present unless `device` says otherwise. `progress`
    is called after every step. The network begins at random, or with the weights of the voice
    `start`, all of whose zeros may grow again; it may be wider than the voice. The voice's
    held-out recordings, where `folder` has one, are then held out again.

    Raises InvalidInput for fewer than four recordings, an unreadable or empty one, a device that
    is not here, an `out` that cannot be written to, a checkpoint of another network, or a `start`
    wider than the plan's; DamagedFile for a checkpoint that cannot be read.
    """
    plan = plan or TrainingPlan()
    device = _choose_device(device)
    if start is not None:
        check_wide_enough(plan.hidden_size, start)
    audio_files(folder)
    voice = check_writable(Path(out) / "voice.safetensors")
    checkpoint = check_writable(voice.with_name("checkpoint.pt"))
    check_writable(voice.with_name("log.jsonl"))
    if checkpoint.exists():
        _checkpoint_of(plan, checkpoint)
    clips = load_clips(folder, voice.parent)
    names = held_out_names([clip.name for clip in clips])
    if start is not None and set(start.held_out) & {clip.name for clip in clips}:
        names = list(start.held_out)  # a score on recordings that it was trained on tells nothing
    held_out = [clip for clip in clips if clip.name in names]
    if not held_out:
        raise InvalidInput(f"{folder} holds {len(clips)} recordings; give at least 4")
    trainer = Trainer(plan, [clip for clip in clips if clip.name not in names], device)
    if checkpoint.exists():
        trainer.restore(checkpoint)
    elif start is not None:
        trainer.model.start_from(start)
    with matrix_product_precision(plan.product_precision):
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


def _run(
    trainer: Trainer,
    held_out: list[Clip],
    checkpoint: Path,
    progress: Callable[[TrainingProgress], None],
) -> None:
    """Train to the plan's end; checkpoint and log about every five minutes."""
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
                density = row["density"]
                with checkpoint.with_name("log.jsonl").open("a") as log:
                    log.write(json.dumps(row) + "\n")
                losses, since = [], time.perf_counter()
            if due or stop:
                trainer.save(checkpoint)
            if stop:
                raise KeyboardInterrupt


def _describe(
    trainer: Trainer, losses: list[float], seconds: float, held_out: list[Clip]
) -> dict[str, Any]:
    plan, model = trainer.plan, trainer.model
    int8 = plan.rounds_at(trainer.step)
    nats = evaluate(model, held_out, trainer.device, most_frames=LOGGED_FRAMES, int8=int8)
    gates = model.get_parameter(RECURRENT).detach().chunk(3)
    return {
        "samples": trainer.step * plan.samples_a_step,
        "train_nats": float(np.mean(losses)),
        "held_out_nats": nats,
        "int8": int8,
        "density": trainer.pruner.sparsity_report().density,
        "gate_densities": [_density(gate) for gate in gates],
        "dense_densities": [_density(model.get_parameter(name)) for name in DENSE_LAYERS],
        "learning_rate": plan.learning_rate_at(trainer.step),
        "samples_a_second": len(losses) * plan.samples_a_step / seconds,
    }


def _density(weight: Tensor) -> float:
    return int(weight.count_nonzero()) / weight.numel()
