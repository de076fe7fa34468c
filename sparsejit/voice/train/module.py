"""The WaveRNN network in torch, for training and for export to the compiled sampler."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsejit.errors import InvalidInput
from sparsejit.voice.features import HOP_LENGTH, N_MELS
from sparsejit.voice.prediction import CLASSES
from sparsejit.voice.train.fused_gru import FusedGRU, Int8Linear
from sparsejit.voice.weights import (
    CONDITION_SIZE,
    DENSE_SIZE,
    EMBEDDING_SIZE,
    INPUTS,
    RECURRENT,
    VoiceWeights,
)

# Prefixes of the tensors whose rows are units of the gates r, z, n.
BY_GATE = ("rnn.", "condition_gates.")


def check_wide_enough(hidden_size: int, weights: VoiceWeights) -> None:
    """Raise InvalidInput where a network of that size cannot start from the voice."""
    given = weights.hidden_size
    if given > hidden_size:
        raise InvalidInput(
            f"the voice to start from has {given} units, the network {hidden_size}; give {given} "
            "or more"
        )


class WaveRNNModule(nn.Module):
    """Next-class network: three 8-bit inputs and a mel in, 256 logits out, each sample.

    `rnn` holds torch's own GRU parameters (gate order r, z, n), so that pruning, export and
    comparison with `torch.nn.GRU` need no special case.
    """

    mel_mean: Tensor
    mel_scale: Tensor

    def __init__(self, hidden_size: int = 384) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.register_buffer("mel_mean", torch.zeros(N_MELS))
        self.register_buffer("mel_scale", torch.ones(N_MELS))
        self.embedding = nn.EmbeddingBag(INPUTS * CLASSES, EMBEDDING_SIZE, mode="sum")
        self.conv1 = nn.Conv1d(N_MELS, CONDITION_SIZE, 3)
        self.conv2 = nn.Conv1d(CONDITION_SIZE, CONDITION_SIZE, 3)
        self.condition_gates = nn.Linear(CONDITION_SIZE, 3 * hidden_size, bias=False)
        self.condition_dense = nn.Linear(CONDITION_SIZE, DENSE_SIZE, bias=False)
        self.rnn = nn.GRU(EMBEDDING_SIZE, hidden_size)
        self.fc1 = nn.Linear(hidden_size, DENSE_SIZE)
        self.fc2 = nn.Linear(DENSE_SIZE, CLASSES)
        self._initialise_embedding()

    def _initialise_embedding(self) -> None:
        # Neighbouring classes are neighbouring amplitudes: start the tables smooth.
        position = torch.linspace(-1, 1, CLASSES).repeat(INPUTS)[:, None]
        direction = torch.randn(INPUTS, EMBEDDING_SIZE).repeat_interleave(CLASSES, 0)
        noise = torch.randn(INPUTS * CLASSES, EMBEDDING_SIZE)
        with torch.no_grad():
            self.embedding.weight.copy_(position * direction + 0.1 * noise)

    @classmethod
    def from_weights(cls, weights: VoiceWeights) -> "WaveRNNModule":
        """Make a module with the weights of a voice."""
        model = cls(weights.hidden_size)
        model.load_state_dict(
            {name: torch.from_numpy(value) for name, value in weights.tensors.items()}
        )
        return model

    def start_from(self, weights: VoiceWeights) -> None:
        """Copy a voice's weights; a wider network then gives the same outputs as the voice.

        Units that the voice lacks keep their random inputs, but no layer and no unit of the voice
        reads them yet.

        Raises InvalidInput for a voice with more units than this network.
        """
        size, given = self.hidden_size, weights.hidden_size
        check_wide_enough(size, weights)
        with torch.no_grad():
            self.get_parameter(RECURRENT).view(3, size, size)[:, :given, given:] = 0
            self.fc1.weight[:, given:] = 0
            for name, value in self.state_dict().items():
                found = torch.from_numpy(weights.tensors[name])
                if name.startswith(BY_GATE):
                    value, found = value.view(3, size, -1), found.view(3, given, -1)
                value[tuple(slice(length) for length in found.shape)] = found

    def condition(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        """Return gate terms (F, B, 3H) and dense biases (F, B, 256) of mel (B, 80, F + 4).

        The two frames before and after are context; at the ends of a clip repeat its first
        and last frame.
        """
        scaled = (mel - self.mel_mean[:, None]) * self.mel_scale[:, None]
        summary = torch.tanh(self.conv2(torch.tanh(self.conv1(scaled)))).permute(2, 0, 1)
        return self.condition_gates(summary), self.condition_dense(summary)

    def forward(
        self, inputs: Tensor, mel: Tensor, state: Tensor, int8: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return logits (T, B, 256) and the state (B, H) after T = 220 F steps.

        inputs: int64 (T, B, 3): s[t-1], class[t-1], prediction, each 0..255.
        mel: (B, 80, F + 4). state: (B, H). int8: round the products as int8 kernels do.
        """
        steps, batch, _ = inputs.shape
        offsets = CLASSES * torch.arange(INPUTS, device=inputs.device)
        embedded = self.embedding((inputs + offsets).view(-1, INPUTS))
        gate_terms, dense_biases = self.condition(mel)
        weight_ih, weight_hh, bias_ih, bias_hh = self.rnn.all_weights[0]
        gates = nn.functional.linear(embedded, weight_ih, bias_ih)
        gates = gates.view(-1, HOP_LENGTH, batch, 3 * self.hidden_size) + gate_terms[:, None]
        gates = gates.view(steps, batch, -1)
        states, last = FusedGRU.apply(gates, state, weight_hh, bias_hh, int8)
        dense = self._linear(self.fc1, states, int8, state=True)
        dense = dense.view(-1, HOP_LENGTH, batch, DENSE_SIZE) + dense_biases[:, None]
        logits = self._linear(self.fc2, torch.relu(dense), int8, state=False)
        return logits.view(steps, batch, CLASSES), last

    @staticmethod
    def _linear(layer: nn.Linear, x: Tensor, int8: bool, state: bool) -> Tensor:
        """A linear layer's result for x with all axes but the last flattened; rounded if `int8`.

        `state`: as in Int8Linear.
        """
        if not int8:
            return layer(x.flatten(0, -2))
        return Int8Linear.apply(x.flatten(0, -2), layer.weight, state) + layer.bias

    def weights(self, temperature: float = 1.0, held_out: Sequence[str] = ()) -> VoiceWeights:
        """Return the network's weights for the sampler, to be run at `temperature`.

        `held_out` names the recordings kept from training, for later scoring.
        """
        tensors = {
            name: value.detach().float().cpu().numpy().copy()
            for name, value in self.state_dict().items()
        }
        return VoiceWeights(tensors, temperature, tuple(held_out))
