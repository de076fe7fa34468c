"""Inputs that the weights of a layer multiply, one row a product."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsejit.errors import InvalidInput

CELLS: dict[str, Callable[..., Any]] = {
    "GRU": torch.gru_cell,
    "LSTM": torch.lstm_cell,
    "RNN_TANH": torch.rnn_tanh_cell,
    "RNN_RELU": torch.rnn_relu_cell,
}
SUPPORTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.RNNBase, nn.RNNCellBase)


def layer_inputs(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """Yield each weight's name and the matrix (n, in_features) that one call multiplies by it.

    `args` and `kwargs`: the arguments of that call of `forward`. Only recurrent layers are run,
    step by step, because their states are inputs too. A convolution's weight counts as a matrix
    (out, everything else), and its inputs as the patches under the kernel. Raises InvalidInput for
    a packed sequence.
    """
    values = args[0] if args else kwargs["input"]
    state = args[1] if len(args) > 1 else kwargs.get("hx")
    if isinstance(values, nn.utils.rnn.PackedSequence):
        raise InvalidInput("calibration got a PackedSequence: pass padded tensors")
    if isinstance(module, nn.RNNBase):
        yield from _recurrent_inputs(module, values, state)
    elif isinstance(module, nn.RNNCellBase):
        yield "weight_ih", values.reshape(-1, module.input_size)
        if state is not None:
            hidden = state[0] if isinstance(state, tuple) else state
            yield "weight_hh", hidden.reshape(-1, module.hidden_size)
    elif isinstance(module, nn.Conv1d | nn.Conv2d):
        yield "weight", _patches(module, values)
    else:
        yield "weight", values.reshape(-1, values.shape[-1])


def check_supported(name: str, module: nn.Module) -> None:
    """Raise InvalidInput for a module whose inputs `layer_inputs` cannot tell."""
    if not isinstance(module, SUPPORTED):
        raise InvalidInput(
            f"{name} belongs to {type(module).__name__}, whose inputs cannot be captured: "
            "choose weights of Linear, Conv1d, Conv2d, RNN, GRU, LSTM and their cells"
        )
    if isinstance(module, nn.Conv1d | nn.Conv2d) and module.groups > 1:
        raise InvalidInput(
            f"{name} is a convolution of {module.groups} groups, each with inputs of its own: "
            "leave it out of the targets"
        )
    if isinstance(module, nn.RNNBase) and module.proj_size:
        raise InvalidInput(f"{name} is an LSTM with proj_size: leave it out of the targets")


def _patches(module: nn.Conv1d | nn.Conv2d, values: Tensor) -> Tensor:
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    spatial = len(module.kernel_size)
    batch = values if values.ndim == spatial + 2 else values[None]
    padded = functional.pad(batch, module._reversed_padding_repeated_twice, mode=mode)
    if spatial == 2:
        columns = functional.unfold(
            padded, module.kernel_size, dilation=module.dilation, stride=module.stride
        )
    else:
        columns = functional.unfold(
            padded[:, :, None],
            (1, *module.kernel_size),
            dilation=(1, *module.dilation),
            stride=(1, *module.stride),
        )
    return columns.transpose(1, 2).flatten(0, 1)


def _recurrent_inputs(
    module: nn.RNNBase, values: Tensor, state: Any
) -> Iterator[tuple[str, Tensor]]:
    sequence = values[:, None] if values.ndim == 2 else values
    if values.ndim == 3 and module.batch_first:
        sequence = sequence.transpose(0, 1)
    directions = ("", "_reverse") if module.bidirectional else ("",)
    for layer in range(module.num_layers):
        outputs = []
        for index, direction in enumerate(directions):
            suffix = f"l{layer}{direction}"
            start = _start_state(module, state, layer * len(directions) + index, sequence)
            steps = sequence.flip(0) if direction else sequence
            states = _run(module, suffix, steps, start)
            yield f"weight_ih_{suffix}", sequence.flatten(0, 1)
            yield f"weight_hh_{suffix}", states[:-1].flatten(0, 1)
            outputs.append(states[1:].flip(0) if direction else states[1:])
        sequence = torch.cat(outputs, dim=2)


def _start_state(module: nn.RNNBase, state: Any, index: int, sequence: Tensor) -> Any:
    shape = (sequence.shape[1], module.hidden_size)
    if module.mode == "LSTM":
        pair = (None, None) if state is None else state
        return tuple(_one_state(part, index, shape, sequence) for part in pair)
    return _one_state(state, index, shape, sequence)


def _one_state(
    state: Tensor | None, index: int, shape: tuple[int, int], sequence: Tensor
) -> Tensor:
    return sequence.new_zeros(shape) if state is None else state[index].reshape(shape)


def _run(module: nn.RNNBase, suffix: str, steps: Tensor, state: Any) -> Tensor:
    """Run one direction of a recurrent layer: h before, between and after steps of time.

    `steps` is (time, batch, in_features); returns (time + 1, batch, hidden_size).
    """
    names = ["weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if module.bias else ())]
    parameters = [getattr(module, f"{name}_{suffix}") for name in names]
    states = [state]
    for step in steps:
        states.append(CELLS[module.mode](step, states[-1], *parameters))
    return torch.stack([s[0] if isinstance(s, tuple) else s for s in states])
