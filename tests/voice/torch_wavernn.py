"""WaveRNNs of other projects in torch, as their papers of record have them, for comparison."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn


class ResidualBlockModule(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(size, size, 1, bias=False)
        self.conv2 = nn.Conv1d(size, size, 1, bias=False)
        self.batch_norm1 = nn.BatchNorm1d(size)
        self.batch_norm2 = nn.BatchNorm1d(size)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.batch_norm1(self.conv1(x)))
        return x + self.batch_norm2(self.conv2(y))


class MelResNet(nn.Module):
    def __init__(self, bands: int, size: int, out: int, blocks: int) -> None:
        super().__init__()
        self.conv_in = nn.Conv1d(bands, size, 5, bias=False)
        self.batch_norm = nn.BatchNorm1d(size)
        self.layers = nn.ModuleList(ResidualBlockModule(size) for _ in range(blocks))
        self.conv_out = nn.Conv1d(size, out, 1)

    def forward(self, mel: Tensor) -> Tensor:
        x = torch.relu(self.batch_norm(self.conv_in(mel)))
        for block in self.layers:
            x = block(x)
        return self.conv_out(x)


class UpsampleModule(nn.Module):
    """fatchord's: up_layers[1], [3] ... are the smoothing convolutions."""

    def __init__(self, bands: int, size: int, out: int, blocks: int, scales: Sequence[int]) -> None:
        super().__init__()
        self.scales = scales
        self.resnet = MelResNet(bands, size, out, blocks)
        self.up_layers = nn.ModuleList()
        for scale in scales:
            conv = nn.Conv2d(1, 1, (1, 2 * scale + 1), padding=(0, scale), bias=False)
            self.up_layers.extend([nn.Identity(), conv])

    def forward(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        """mel (1, bands, F + 4); mel and features of every sample, (samples, n)."""
        hop = int(np.prod(self.scales))
        features = self.resnet(mel).repeat_interleave(hop, dim=2)
        up = mel[:, None]
        for scale, conv in zip(self.scales, list(self.up_layers)[1::2], strict=True):
            up = conv(up.repeat_interleave(scale, dim=3))
        return up[0, 0, :, 2 * hop : -2 * hop].T, features[0].T


class FatchordModule(nn.Module):
    """github.com/fatchord/WaveRNN, models/fatchord_version.py, with the names of its tensors."""

    def __init__(
        self,
        hidden: int = 48,
        fc: int = 32,
        classes: int = 512,
        bands: int = 20,
        scales: Sequence[int] = (3, 4, 2),
    ) -> None:
        super().__init__()
        part = 6
        self.part = part
        self.upsample = UpsampleModule(bands, 16, 4 * part, 2, scales)
        self.I = nn.Linear(bands + part + 1, hidden)
        self.rnn1 = nn.GRU(hidden, hidden, batch_first=True)
        self.rnn2 = nn.GRU(hidden + part, hidden, batch_first=True)
        self.fc1 = nn.Linear(hidden + part, fc)
        self.fc2 = nn.Linear(fc + part, fc)
        self.fc3 = nn.Linear(fc, classes)
        self.register_buffer("step", torch.zeros(1, dtype=torch.long))

    def forward(self, samples: Tensor, mel: Tensor) -> Tensor:
        """The last layer for each sample before, (samples,), and mel (bands, F)."""
        up, features = self.upsample(nn.functional.pad(mel, (2, 2))[None])
        a1, a2, a3, a4 = features.split(self.part, dim=1)
        x = self.I(torch.cat([samples[:, None], up, a1], dim=1))
        x = x + self.rnn1(x[None])[0][0]
        x = x + self.rnn2(torch.cat([x, a2], dim=1)[None])[0][0]
        x = torch.relu(self.fc1(torch.cat([x, a3], dim=1)))
        x = torch.relu(self.fc2(torch.cat([x, a4], dim=1)))
        return self.fc3(x)


class OneGruModule(nn.Module):
    """The network of wavernn-16k's README, read from its tensors."""

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        size, bands, _ = tensors["cond.conv_in.weight"].shape
        self.half = len(tensors["cond.conv_out.weight"]) // 2
        self.upsample = UpsampleModule(bands, size, 2 * self.half, 3, (4, 5, 10))
        hidden = len(tensors["I.weight"])
        self.I = nn.Linear(tensors["I.weight"].shape[1], hidden)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True)
        self.fc1 = nn.Linear(tensors["fc1.weight"].shape[1], len(tensors["fc1.weight"]))
        self.fc2 = nn.Linear(len(tensors["fc1.weight"]), len(tensors["fc2.weight"]))
        state = {_fatchord_name(name): torch.tensor(array) for name, array in tensors.items()}
        for name in ("upsample.up_layers.1", "upsample.up_layers.3", "upsample.up_layers.5"):
            state[f"{name}.weight"] = state[f"{name}.weight"][None, None, None]
        missing, unknown = self.load_state_dict(state, strict=False)
        assert not unknown and all("num_batches" in name for name in missing)
        self.eval()

    def conditioning(self, mel: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        up, features = self.upsample(nn.functional.pad(mel, (2, 2))[None])
        return up, features[:, : self.half - 1], features[:, self.half :]

    def forward(self, samples: Tensor, mel: Tensor) -> Tensor:
        """Logits for each sample before, (samples,), and mel (bands, F)."""
        up, a1, a2 = self.conditioning(mel)
        y = self.I(torch.cat([samples[:, None], up, a1], dim=1))
        y = y + self.rnn(y[None])[0][0]
        return self.fc2(torch.relu(self.fc1(torch.cat([y, a2], dim=1))))


def _fatchord_name(name: str) -> str:
    """wavernn-16k's name of a tensor in fatchord's words."""
    for old, new in (
        *(("cond.", "upsample.resnet."), (".res.", ".layers."), (".bn", ".batch_norm")),
        *((f"upsample.{n}.kernel", f"upsample.up_layers.{2 * n + 1}.weight") for n in range(3)),
    ):
        name = name.replace(old, new)
    return f"{name}_l0" if name.startswith("rnn.") else name
