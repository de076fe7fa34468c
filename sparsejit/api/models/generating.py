"""Tokens from a decoder: its steps and the draws between them as one native function."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.api.models.stepped import SteppedModel
from sparsejit.asm_templates.pointwise.token_draw import FACTOR, TOP_K, TOP_P
from sparsejit.errors import InvalidInput, called, suggest
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.selection import PlacedRows
from sparsejit.ir.ops.views import Expand, Permute, Reshape
from sparsejit.ir.values import Array, Value
from sparsejit.lowering.token_loop import NO_TOKEN, NUMBER, SEED, STOP_COUNT, STOPS, TokenLoop
from sparsejit.runtime.native_call import address_table, new_workspace, require_success
from sparsejit.whole_numbers import whole_number

# Names of the input that counts positions: transformers', gpt-fast's, llama's.
_POSITIONS = (
    "position",
    "positions",
    "pos",
    "position_ids",
    "cache_position",
    "input_pos",
    "start_pos",
)
_INT64 = 8
_LEAST, _MOST = 1e-30, 1e30  # of float32 parameters, far from denormals and infinity


@called("generate")
def generate(
    fast: CompiledModel,
    tokens: Any,
    n: int,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    stop: int | Iterable[int] = (),
    position: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    blocks: CompiledModel | None = None,
) -> Array:
    """Return the tokens that a decoder says after a prompt, in one native loop.

    The model takes one token, keeps its caches as states (`state=` of `compile`, or buffers that a
    torch module changes), and returns logits first. An input that counts positions, from 0, is
    found by its name. The loop begins with the initial states, whatever streams of the model hold,
    and releases the interpreter lock. The same seed gives the same tokens.

    Args:
        fast: a model compiled for one token: int64, one element, such as (1, 1)
        tokens: the prompt: whole numbers, (k,) or (1, k), at least one
        n: the most tokens to draw
        temperature: 0 for the token of the largest logit, the first one of equals; else the divisor
            of the logits
        top_k: draw among the k likeliest tokens, and equals of the last; 0 for all
        top_p: draw among the likeliest tokens, by `top_k`, that together have this probability
        seed: seed of the draws, from 0 to 2^64 - 1
        stop: tokens at which to stop; the one that was drawn is the last of the result
        position: the name of the input that counts positions, where it has an unusual name
        inputs: the model's other inputs by name, the same in all steps, such as the states of an
            encoder
        blocks: the same model compiled for several tokens a call, such as (1, 16), which reads the
            weights once for all of them: it runs the prompt, as far as its blocks are whole, and
            sums may differ in the last bits from those that a token alone gives

    Returns:
        The tokens after the prompt, int64, at most n.

    Raises:
        InvalidInput: a model without states or logits, or for more than one token; arguments out of
            their range; a prompt and n that are longer than the caches; logits that are NaN
    """
    if not isinstance(fast, CompiledModel):
        raise InvalidInput(f"fast is {type(fast).__name__}; give what sparsejit.compile returns")
    decoder = _decoder_of(fast, position, inputs or {})
    reader = None if blocks is None else _reader_of(blocks, decoder, inputs or {})
    prompt = _prompt(tokens, decoder.loop.classes)
    steps = len(prompt) + whole_number("n", n, 0) - 1
    stops = _stops(stop, decoder.loop.classes)
    draw = _new_draw(decoder.loop, temperature, top_k, top_p, seed, stops)
    if decoder.positions is not None and steps > decoder.positions:
        raise InvalidInput(
            f"{len(prompt)} tokens and n={n} need {steps} positions, and the model's caches have "
            f"{decoder.positions}; give n={max(decoder.positions + 1 - len(prompt), 0)} or less"
        )
    if n == 0:
        return np.zeros(0, np.int64)
    return _run(decoder, reader, prompt, n, draw)


class _Decoder(NamedTuple):
    """A model as a decoder.

    Attributes:
        shared: its steps
        loop: the input and output between which tokens pass
        token: the number of the input for tokens, among those that are no states
        position: the number of the input that counts, among those that are no states; or None
        constants: the arrays of all inputs; empty where each step has its own
        positions: the length of the caches, where the graph says it
    """

    shared: SteppedModel
    loop: TokenLoop
    token: int
    position: int | None
    constants: list[Array]
    positions: int | None


class _BlockDecoder(NamedTuple):
    """A decoder of several tokens a call, whose states are another's.

    Attributes:
        shared: its steps
        constants: the arrays of all inputs; zeros where each step has its own
        tokens: the tokens of a call
    """

    shared: SteppedModel
    constants: list[Array]
    tokens: int


def _decoder_of(fast: CompiledModel, position: str | None, given: Mapping[str, Any]) -> _Decoder:
    """Return the parts of a model. Raises InvalidInput for one that is no decoder of one token."""
    shared = fast.stepped(1)
    names = [each.kind.name for each in shared.inputs]
    for name in (*given, *([] if position is None else [position])):
        if name not in names:
            raise InvalidInput(f"there is no input {name!r}; {suggest(name, names)}")
    counted = [position] if position is not None else [n for n in names if n in _POSITIONS]
    counted = [name for name in counted if name not in given]
    left = [name for name in names if name not in (*given, *counted)]
    if len(left) != 1 or len(counted) > 1:
        raise InvalidInput(
            f"inputs {', '.join(counted + left)} are neither states nor given; one of them is the "
            "token, one may count positions: give the others by inputs={name: array}, and "
            "position=name"
        )
    for name in (*left, *counted):
        kind = shared.inputs[names.index(name)].kind
        if kind.dtype != "int64" or kind.bytes != _INT64:
            raise InvalidInput(
                f"input {name} is {kind.dtype}{kind.shape}; compile the model for one token and "
                "one position, int64 of one element"
            )
    token, counter = names.index(left[0]), names.index(counted[0]) if counted else None
    loop = TokenLoop(_operand(shared, 0, token), _operand(shared, 1, 0), _classes(shared))
    counts = None if counter is None else shared.inputs[counter].value
    length = _cache_length(fast.graph, shared, counts)
    return _Decoder(shared, loop, token, counter, _constants(shared, names, given), length)


def _reader_of(
    blocks: CompiledModel, decoder: _Decoder, given: Mapping[str, Any]
) -> _BlockDecoder:
    """Return the parts of the model of blocks. Raises InvalidInput for another decoder's."""
    if not isinstance(blocks, CompiledModel):
        found = type(blocks).__name__
        raise InvalidInput(f"blocks is {found}; give what sparsejit.compile returns")
    shared = blocks.stepped(1)
    own, others = (_interface(each) for each in (shared, decoder.shared))
    if own != others:
        odd = sorted({*own} ^ {*others}) or ["another order of inputs"]
        raise InvalidInput(
            f"blocks and fast differ in {odd[0]}; compile one model twice, for one token and for "
            "several"
        )
    tokens = _elements(shared, decoder.token)
    counts = tokens if decoder.position is None else _elements(shared, decoder.position)
    if tokens < 2 or counts not in (1, tokens):
        raise InvalidInput(
            f"blocks takes {tokens} tokens and {counts} positions a call; compile it for at least "
            "two tokens, with the position of each or of the first"
        )
    names = [each.kind.name for each in shared.inputs]
    return _BlockDecoder(shared, _constants(shared, names, given), tokens)


def _interface(shared: SteppedModel) -> list[str]:
    """Return the names of inputs, and the types of states, a line each."""
    states = (f"state {name}: {each.kind}" for name, each in shared.states.items())
    return [*(f"input {each.kind.name}" for each in shared.inputs), *states]


def _elements(shared: SteppedModel, number: int) -> int:
    """Return the elements of an input; 0 where they are no int64."""
    kind = shared.inputs[number].kind
    return kind.bytes // _INT64 if kind.dtype == "int64" else 0


def _operand(shared: SteppedModel, side: int, number: int) -> int:
    """Return the number of an operand among all of its side, from the one among no states."""
    places = (shared.layout.inputs, shared.layout.outputs)[side]
    return [place for place, state in enumerate(places) if state is None][number]


def _classes(shared: SteppedModel) -> int:
    """Return the number of logits. Raises InvalidInput where the first output has none."""
    kind = shared.outputs[0].kind if shared.outputs else None
    if kind is None or kind.dtype != "float32" or not kind.shape:
        found = "no output that is no state" if kind is None else f"{kind.dtype}{kind.shape}"
        raise InvalidInput(f"the model has {found}; return the logits first, floats (1, tokens)")
    classes = kind.shape[-1] or 0
    if kind.bytes != 4 * classes or not classes:
        raise InvalidInput(
            f"output {kind.name} has shape {kind.shape}; return the logits of one token first, "
            "(1, tokens) or (1, 1, tokens)"
        )
    return classes


def _constants(
    shared: SteppedModel, names: Sequence[str], given: Mapping[str, Any]
) -> list[Array]:
    """Return an array for each input, of one element for tokens and positions."""
    leaves = []
    for name, operand in zip(names, shared.inputs, strict=True):
        shape = [length or 0 for length in operand.given.shape]
        leaves.append(given[name] if name in given else np.zeros(shape, np.int64))
    arrays = shared.dtypes.arrays(leaves)
    for array, operand in zip(arrays, shared.inputs, strict=True):
        kind = operand.given
        if array.dtype != kind.dtype or array.shape != kind.shape:
            raise InvalidInput(
                f"{kind.name} is {array.dtype}{array.shape}; give {kind.dtype}{kind.shape}"
            )
    pairs = zip(shared.inputs, arrays, strict=True)
    return [np.ascontiguousarray(operand.native(array)) for operand, array in pairs]


def _cache_length(graph: Graph, shared: SteppedModel, position: Value | None) -> int | None:
    """Return the positions that all caches have; None unless they are written at the position."""
    if position is None:
        return None
    makers = {value: node for node in graph.nodes for value in node.outputs}

    def origin(value: Value) -> Value:
        while value in makers and isinstance(makers[value].op, (Reshape, Permute, Expand)):
            value = makers[value].inputs[0]
        return value

    lengths = []
    number = next(n for n, value in enumerate(shared.variant.inputs) if value is position)
    for state in shared.streamed.states:
        made = origin(graph.outputs[state.output])
        node = makers.get(made)
        if node is None or not isinstance(node.op, PlacedRows):
            continue
        if origin(node.inputs[0]) is graph.inputs[number]:
            lengths.append(made.shape[1])
    return min(lengths, default=None)


def _prompt(tokens: Any, classes: int) -> Array:
    found = np.asarray(tokens)
    if found.ndim == 2 and len(found) == 1:
        found = found[0]
    if found.ndim != 1 or not found.size or found.dtype.kind not in "iu":
        raise InvalidInput(
            f"tokens are {found.dtype}{found.shape}; give whole numbers, (k,) or (1, k), at least "
            "one"
        )
    wrong = found[(found < 0) | (found >= classes)]
    if wrong.size:
        raise InvalidInput(f"token {wrong[0]} is not in 0 .. {classes - 1}, the model's tokens")
    return found.astype(np.int64)


def _stops(stop: int | Iterable[int], classes: int) -> list[int]:
    """Return the tokens at which to stop. Raises InvalidInput for numbers that are no tokens."""
    given = list(stop) if isinstance(stop, Iterable) else [stop]
    return [whole_number("stop", each, 0, classes - 1) for each in given]


def _new_draw(
    loop: TokenLoop, temperature: Any, top_k: Any, top_p: Any, seed: Any, stops: Sequence[int]
) -> Array:
    """Return the memory of a draw. Raises InvalidInput for numbers out of range."""
    for name, value in (("temperature", temperature), ("top_p", top_p)):
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            raise InvalidInput(f"{name}={value!r}; give a number")
    if not 0 <= temperature < math.inf:
        raise InvalidInput(f"temperature={temperature!r}; give a finite number from 0 on")
    if not 0 < top_p <= 1:
        raise InvalidInput(f"top_p={top_p!r}; give a number above 0, at most 1")
    k = whole_number("top_k", top_k, 0)
    number = whole_number("seed", seed, 0, (1 << 64) - 1)
    made = new_workspace(loop.draw_bytes(len(stops)))
    made[:] = 0
    factor = math.log2(math.e) / max(temperature, _LEAST) if temperature else 0.0
    made[FACTOR:][:4].view(np.float32)[0] = min(max(factor, _LEAST), _MOST) if factor else 0
    made[TOP_P:][:4].view(np.float32)[0] = max(top_p, _LEAST)
    made[TOP_K:][:4].view(np.int32)[0] = k if k < loop.classes else 0
    made[SEED:][:8].view(np.uint64)[0] = number
    made[STOP_COUNT:][:8].view(np.int64)[0] = len(stops)
    made[STOPS:][: 8 * len(stops)].view(np.int64)[:] = stops
    return made


def _run(
    decoder: _Decoder, reader: _BlockDecoder | None, prompt: Array, n: int, draw: Array
) -> Array:
    """Run the prompt, then n steps at most, each with a draw."""
    shared, loop = decoder.shared, decoder.loop
    said = np.zeros(len(prompt) + n, np.int64)
    said[: len(prompt)] = prompt
    block, first = shared.new_block(), len(prompt) - 1
    done = 0 if reader is None else _read_blocks(decoder, reader, said[:first], block)
    arrays = list(decoder.constants)
    advances = [0] * (len(arrays) + len(shared.outputs))
    moving = _moving(decoder, said, 1)
    for number, values in moving:
        arrays[number], advances[number] = values[done:], _INT64
    outputs = [np.empty(each.shape, each.kind.dtype) for each in shared.outputs]
    made = address_table(outputs)
    if first > done:
        run = shared.steps(tuple(advances))
        require_success(run(address_table(arrays), made, block.ctypes.data, first - done))
    for number, values in moving:
        arrays[number] = values[first:]
    run = shared.token_steps(tuple(advances), loop)
    status = run(address_table(arrays), made, block.ctypes.data, n, draw.ctypes.data)
    drawn = int(draw[NUMBER:][:8].view(np.int64)[0])
    if status == NO_TOKEN:
        raise InvalidInput(
            f"the logits after {drawn} tokens are NaN, or none is finite; look at the model's "
            "weights and inputs"
        )
    require_success(status)
    return said[len(prompt) : len(prompt) + drawn]


def _moving(decoder: _Decoder, said: Array, each: int) -> list[tuple[int, Array]]:
    """Return the inputs of which steps have their own values: tokens, and every `each` position."""
    moving = [(decoder.token, said)]
    if decoder.position is not None:
        moving.append((decoder.position, np.arange(0, len(said), each)))
    return moving


def _read_blocks(decoder: _Decoder, reader: _BlockDecoder, prompt: Array, block: Array) -> int:
    """Run the whole blocks of a prompt, and write the states to `block`; return their tokens."""
    shared, count = reader.shared, len(prompt) // reader.tokens
    if not count:
        return 0
    positions = reader.tokens if decoder.position is None else _elements(shared, decoder.position)
    arrays = list(reader.constants)
    advances = [0] * (len(arrays) + len(shared.outputs))
    for number, values in _moving(decoder, prompt, reader.tokens // positions):
        arrays[number], advances[number] = values, shared.inputs[number].kind.bytes
    outputs = [np.empty(each.shape, each.kind.dtype) for each in shared.outputs]
    own, run = shared.new_block(), shared.steps(tuple(advances))
    tables = address_table(arrays), address_table(outputs)
    require_success(run(*tables, own.ctypes.data, count))
    decoder.shared.fill(block, shared.views(own))
    return count * reader.tokens
