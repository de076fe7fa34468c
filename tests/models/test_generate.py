"""Tokens from decoders: the native loop against torch's steps, and the draw against float64."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from runnable import ISAS
from small_decoders import (
    STORIES,
    Gpt,
    Listener,
    Llama,
    Moonshine,
    Sizes,
    Tokenizer,
    Whisper,
    said_by_torch,
    stories,
)
from torch import Tensor, nn

import sparsejit
from sparsejit.asm_templates.pointwise.token_draw import (
    FACTOR,
    TOP_K,
    TOP_P,
    emit_token_draw,
    token_scratch_bytes,
)
from sparsejit.errors import InvalidInput
from sparsejit.ir.reference import random_uniform
from sparsejit.ir.state import placed_states
from sparsejit.machine.target import Target
from sparsejit.runtime.program import build
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, rax, rcx, rsi, xmm

SMALL = Sizes(width=32, hidden=48, layers=2, heads=4, pairs=2, tokens=37, length=64)
TOKEN, PLACE = torch.ones(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
PROMPT = [3, 30, 7, 7]
Floats = npt.NDArray[np.float32]


def random(kind: Callable[[Sizes], nn.Module], sizes: Sizes = SMALL) -> nn.Module:
    """A module whose greedy tokens vary: large random weights."""
    torch.manual_seed(0)
    module = kind(sizes).eval()
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.ndim > 1:
                is_table = "embedding" in name or "places" in name
                weight.normal_(0, 1 if is_table else 4 / weight.shape[1] ** 0.5)
    return module


def compiled(kind: Callable[[Sizes], nn.Module], isa: str = "native") -> tuple[nn.Module, Any]:
    module = random(kind)
    examples = {Llama: (TOKEN, PLACE), Gpt: (TOKEN,)}[kind]  # type: ignore[index]
    return module, sparsejit.compile(module, examples, target=isa)


@pytest.fixture(scope="module")
def llama() -> Any:
    return compiled(Llama)[1]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [Llama, Gpt])
def test_greedy_tokens_are_torchs(
    kind: Callable[[Sizes], nn.Module], isa: str, tmp_path: Path
) -> None:
    module, fast = compiled(kind, isa)
    said = sparsejit.generate(fast, PROMPT, 50)
    expected = said_by_torch(module, PROMPT, 50)
    assert said.tolist() == expected and len(set(expected)) > 10
    fast.save(tmp_path / "decoder.sjit")
    again = sparsejit.load(tmp_path / "decoder.sjit")
    assert sparsejit.generate(again, torch.tensor([PROMPT]), 50).tolist() == expected


def test_caches_are_updated_in_place_and_streams_see_them(llama: Any) -> None:
    """A stream says what the loop says, a copy goes on by itself, and no cache lies twice."""
    layout = llama.stepped(1).layout
    cache = 4 * SMALL.pairs * SMALL.length * SMALL.width // SMALL.heads
    assert len(placed_states(llama.graph, llama.states)) == 2 * SMALL.layers
    assert (layout.half_bytes, layout.placed_bytes) == (0, 2 * SMALL.layers * cache)
    stream, said, token = llama.stream(), [], PROMPT[0]
    for place in range(20):
        if place == 10:
            stream.copy()(np.array([[1]]), np.array([3]))  # another stream
            kept, values = stream.copy(), dict(stream.state)
            assert all(np.abs(value[:, :, :10]).min() > 0 for value in values.values())
            assert all(not value[:, :, 10:].any() for value in values.values())
        token = int(stream(np.array([[token]]), np.array([place])).argmax())
        said.append(token)
    assert said == sparsejit.generate(llama, PROMPT[:1], 20).tolist()
    assert int(kept(np.array([[said[9]]]), np.array([10])).argmax()) == said[10]
    stream.state = values
    assert int(stream(np.array([[said[9]]]), np.array([10])).argmax()) == said[10]


def test_a_state_that_is_read_as_it_was_lies_twice() -> None:
    class Late(nn.Module):
        """The rows before the update are an output."""

        rows: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.zeros(1, 8, 4))

        def forward(self, x: Tensor, place: Tensor) -> Tensor:
            before = self.rows * 2
            self.rows.index_copy_(1, place, x)
            return before.sum(1) + self.rows[:, 0]

    fast = sparsejit.compile(Late(), (torch.zeros(1, 1, 4), PLACE))
    assert not placed_states(fast.graph, fast.states)
    stream, x = fast.stream(), np.ones((1, 1, 4), np.float32)
    assert [float(stream(x, np.array([0]))[0, 0]) for _ in range(3)] == [1, 3, 3]


def test_an_index_out_of_range_leaves_a_cache_in_place(llama: Any) -> None:
    stream = llama.stream()
    stream(np.array([[5]]), np.array([0]))
    before = dict(stream.state)
    with pytest.raises(InvalidInput, match="index without a row"):
        stream(np.array([[6]]), np.array([SMALL.length]))
    for name, value in stream.state.items():
        np.testing.assert_array_equal(value, before[name])


def test_stop_is_the_last_token(llama: Any) -> None:
    whole = sparsejit.generate(llama, PROMPT, 30).tolist()
    others = sorted({*range(SMALL.tokens)} - {*whole})
    for stop in (whole[4], [others[0], whole[4]], np.array([whole[4]])):
        said = sparsejit.generate(llama, PROMPT, 30, stop=stop).tolist()
        assert said == whole[: whole.index(whole[4]) + 1]
    assert sparsejit.generate(llama, PROMPT, 30, stop=others).tolist() == whole


def test_the_seed_decides(llama: Any) -> None:
    def said(**options: Any) -> list[int]:
        return sparsejit.generate(llama, PROMPT, 25, temperature=3.0, **options).tolist()

    assert said(seed=1) == said(seed=1) == said(seed=1, stop=()) and said(seed=1) != said(seed=2)
    assert said(seed=(1 << 64) - 1) != said()
    greedy = sparsejit.generate(llama, PROMPT, 25).tolist()
    assert said(top_k=1) == said(top_p=1e-9) == greedy


def test_draws_are_counted_from_the_first_token(llama: Any) -> None:
    """Each step draws by the next uniform number, from logits that a stream gives as well."""
    said = sparsejit.generate(llama, PROMPT, 12, temperature=4.0, top_k=9, top_p=0.8, seed=5)
    stream, tokens = llama.stream(), [*PROMPT, *said.tolist()]
    uniforms = random_uniform(5, np.arange(12))
    for place, token in enumerate(tokens[:-1]):
        logits = stream(np.array([[token]]), np.array([place])).reshape(-1)
        if place >= len(PROMPT) - 1:
            drawn = place - len(PROMPT) + 1
            assert int(said[drawn]) in possible(logits, float(uniforms[drawn]), 4.0, 9, 0.8)


class FromFirst(Llama):
    """A model that takes the position of its first token."""

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        return super().forward(token, position + torch.arange(token.shape[1]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [Llama, Gpt, FromFirst])
def test_a_prompt_is_read_in_blocks(kind: Callable[[Sizes], nn.Module], isa: str) -> None:
    """A prompt that is read token by token gives the same, for any length of it."""
    module, prompt = random(kind), [5, 17, 3, 8, 30, 2, 11, 23, 36, 1, 0, 7, 19]
    several, places = torch.ones(1, 4, dtype=torch.int64), torch.arange(4)
    ones, fours = ((TOKEN,), (several,)) if kind is Gpt else ((TOKEN, PLACE), (several, places))
    if kind is FromFirst:
        fours = several, PLACE
    fast, blocks = (sparsejit.compile(module, args, target=isa) for args in (ones, fours))
    for count in (1, 4, 5, 8, 9, 13):
        given = prompt[:count]
        said = sparsejit.generate(fast, given, 12, blocks=blocks).tolist()
        assert said == sparsejit.generate(fast, given, 12).tolist()
        assert said == said_by_torch(module, given, 12)


def test_blocks_of_another_model_are_refused(llama: Any) -> None:
    several, places = torch.ones(1, 4, dtype=torch.int64), torch.arange(4)
    longer = sparsejit.compile(random(Llama, SMALL._replace(length=80)), (several, places))
    for blocks, message in (
        (longer, "blocks and fast differ in state"),
        (llama, "blocks takes 1 tokens and 1 positions"),
        (random(Llama), "blocks is Llama; give what sparsejit.compile returns"),
    ):
        with pytest.raises(InvalidInput, match=message):
            sparsejit.generate(llama, PROMPT, 4, blocks=blocks)


@pytest.mark.parametrize("n", [0, 1, SMALL.length + 1 - len(PROMPT)])
def test_lengths(llama: Any, n: int) -> None:
    said = sparsejit.generate(llama, PROMPT, n)
    assert said.dtype == np.int64 and said.shape == (n,)
    assert said.tolist() == sparsejit.generate(llama, PROMPT, 50).tolist()[:n] or n > 50


REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "no token": (([], 3), {}, "tokens are"),
    "floats": (([1.0], 3), {}, "tokens are float64(1,); give whole numbers"),
    "two prompts": (([[1], [2]], 3), {}, "tokens are int64(2, 1)"),
    "too large": (([1, 37], 3), {}, "token 37 is not in 0 .. 36"),
    "negative": (([-1], 3), {}, "token -1 is not in 0 .. 36"),
    "n below 0": (([1], -1), {}, "n=-1; give a whole number of at least 0"),
    "n is no number": (([1], 2.0), {}, "n=2.0; give a whole number"),
    "longer than the caches": (([1, 2], 64), {}, "need 65 positions, and the model's caches have"),
    "temperature": (([1], 3), {"temperature": -1.0}, "temperature=-1.0"),
    "temperature is NaN": (([1], 3), {"temperature": float("nan")}, "temperature=nan"),
    "top_p": (([1], 3), {"top_p": 0.0}, "top_p=0.0; give a number above 0"),
    "top_k": (([1], 3), {"top_k": -2}, "top_k=-2"),
    "seed": (([1], 3), {"seed": 1 << 64}, "seed="),
    "stop": (([1], 3), {"stop": [40]}, "stop=40; give a whole number from 0 to 36"),
    "position": (([1], 3), {"position": "positon"}, "did you mean 'position'?"),
    "input": (([1], 3), {"inputs": {"states": 1}}, "there is no input 'states'"),
    "token given": (([1], 3), {"inputs": {"token": TOKEN}}, "give the others by inputs="),
    "position given wrongly": (
        ([1], 3), {"inputs": {"position": np.zeros(2, np.int64)}}, "position is int64(2,)"
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arguments_are_refused_before_work(llama: Any, case: str) -> None:
    given, options, message = REFUSED[case]
    with pytest.raises(InvalidInput, match=re.escape(message)):
        sparsejit.generate(llama, *given, **options)


class Counter(nn.Module):
    """A model whose call is a function of x, its state h, and what h is next."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return self.function(x, h), h + 1


H = torch.zeros(1, 3)
NO_DECODERS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Tensor, Any, str]] = {
    "no states": (lambda x, h: h * x, TOKEN, None, "the model has no states"),
    "a float token": (lambda x, h: h * x, TOKEN.float(), {"h": 1}, "input x is float32"),
    "two tokens": (lambda x, h: h * x.sum(), torch.ones(1, 2).long(), {"h": 1}, "one token"),
    "whole logits": (lambda x, h: x + h.long(), TOKEN, {"h": 1}, "return the logits first"),
    "logits of two": (
        lambda x, h: torch.cat([h, h]) * x, TOKEN, {"h": 1}, "return the logits of one token"
    ),
}


@pytest.mark.parametrize("case", NO_DECODERS)
def test_models_that_are_no_decoders(case: str) -> None:
    function, x, state, message = NO_DECODERS[case]
    fast = sparsejit.compile(Counter(function), (x, H), state=state)
    with pytest.raises(InvalidInput, match=re.escape(message)):
        sparsejit.generate(fast, [1], 3)


def test_only_a_compiled_model_generates() -> None:
    with pytest.raises(InvalidInput, match="fast is Counter"):
        sparsejit.generate(Counter(lambda x, h: x), [1], 3)  # type: ignore[arg-type]


def test_logits_that_are_nan_end_in_an_error() -> None:
    def logits(x: Tensor, h: Tensor) -> Tensor:
        return torch.log(2.0 - h) * (x + 1)  # log 2, 0, -inf, NaN

    fast = sparsejit.compile(Counter(logits), (TOKEN, H), state={"h": 1})
    assert sparsejit.generate(fast, [1], 3).tolist() == [0, 0, 0]
    with pytest.raises(InvalidInput, match="the logits after 3 tokens are NaN"):
        sparsejit.generate(fast, [1], 4)


def test_an_encoders_states_are_inputs() -> None:
    sizes = SMALL._replace(pairs=4)
    module, states = random(Whisper, sizes), torch.randn(1, 11, sizes.width)
    fast = sparsejit.compile(module, (TOKEN, PLACE, states))
    for given in (states, -states):
        said = sparsejit.generate(fast, PROMPT, 40, position="step", inputs={"states": given})
        assert said.tolist() == said_by_torch(module, PROMPT, 40, given)
    with pytest.raises(InvalidInput, match="step, states are neither states nor given"):
        sparsejit.generate(fast, PROMPT, 4)


def test_sound_becomes_tokens() -> None:
    """An encoder's code gives the states that a decoder's loop reads, in Moonshine's form."""
    sizes = SMALL._replace(width=36, heads=4, pairs=4)
    listener, module = random(Listener, sizes), random(Moonshine, sizes)
    sound = torch.sin(torch.arange(8000) / 5)[None] * torch.rand(1, 8000)
    hears = sparsejit.compile(listener, (sound,))
    with torch.no_grad():
        states = listener(sound)
    torch.testing.assert_close(hears(sound), states, rtol=1e-4, atol=1e-4)
    fast = sparsejit.compile(module, (TOKEN, PLACE, states))
    given = {"position": "step", "inputs": {"states": hears(sound)}}
    said = sparsejit.generate(fast, PROMPT, 40, **given).tolist()
    assert said == said_by_torch(module, PROMPT, 40, states) and len(set(said)) > 5


def test_tokens_behind_an_encoder_are_float64s_where_they_are_sure() -> None:
    """Moonshine-tiny's sizes with random weights, whose errors grow from layer to layer.

    Along the tokens that float64 says, logits are as near to float64's as torch's in float32 are
    for the same states, and the likeliest token is the same wherever it is so by more than that.
    """
    sizes = Sizes(width=288, hidden=1152, layers=6, heads=8, pairs=8, tokens=256, length=64)
    listener, module = random(Listener, sizes), random(Moonshine, sizes)
    sound = torch.sin(torch.arange(32000) / 5)[None] * torch.rand(1, 32000)
    wide, exact = deepcopy(module).double(), deepcopy(listener).double()
    with torch.no_grad():
        states, sure = listener(sound), exact(sound.double())
    hears = sparsejit.compile(listener, (sound,))
    found = torch.as_tensor(hears(sound))
    assert off(found, sure) < 4 * off(states, sure)
    stream = sparsejit.compile(module, (TOKEN, PLACE, states)).stream()
    token, told, compared = 3, [], 0
    for place in range(40):
        given = torch.tensor([[token]]), torch.tensor([place])
        with torch.no_grad():
            wanted = wide(*given, sure)[0, 0]
            near = off(module(*given, found)[0, 0], wanted)
        logits = torch.as_tensor(stream(*given, found))[0, 0]
        told.append(off(logits, wanted) / near)
        first, second = wanted.topk(2).values.tolist()
        token = int(wanted.argmax())
        if first - second > 8 * near + 1e-3:
            compared += 1
            assert int(logits.argmax()) == token
    assert np.median(told) < 2 and compared > 25


def off(found: Tensor, wanted: Tensor) -> float:
    """The root of the mean square of the differences."""
    return float((found.double() - wanted).square().mean().sqrt())


@pytest.mark.parametrize(("attention", "pairs"), [("eager", 2), ("eager", 4), ("sdpa", 2)])
def test_static_caches_of_transformers(attention: str, pairs: int) -> None:
    """Its masks are floats of 0 and the least number, or bools; heads share keys and values."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": pairs}
    config = transformers.LlamaConfig(
        vocab_size=37, **sizes, **heads, attn_implementation=attention, initializer_range=0.3
    )

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.LlamaForCausalLM(config)
            self.cache = transformers.StaticCache(config, max_cache_len=64)
            self.cache.early_initialization(1, pairs, 8, torch.float32, "cpu")
            for layer, n, name in self.parts():
                self.register_buffer(f"{name}_{n}", getattr(layer, name))

        def parts(self) -> list[tuple[Any, int, str]]:
            names = "keys", "values", "cumulative_length"
            return [(each, n, name) for n, each in enumerate(self.cache.layers) for name in names]

        def forward(self, token: Tensor, position: Tensor) -> Tensor:
            for layer, n, name in self.parts():
                setattr(layer, name, getattr(self, f"{name}_{n}"))
            given = {"past_key_values": self.cache, "use_cache": True}
            return self.model(input_ids=token, position_ids=position[None], **given).logits

    module = Decoder().eval()
    fast = sparsejit.compile(module, (TOKEN, PLACE))
    kinds = [type(node.op).__name__ for node in fast.graph.nodes]
    assert kinds.count("CachedAttention") == 2 and "Bmm" not in kinds
    said = sparsejit.generate(fast, PROMPT, 40).tolist()
    assert said == said_by_torch(module, PROMPT, 40) and len(set(said)) > 5


@pytest.mark.skipif(not STORIES.exists(), reason="needs ../shared/data/llama")
@pytest.mark.parametrize("isa", ISAS)
def test_a_trained_decoder_tells_its_story(isa: str) -> None:
    readme = " ".join((STORIES / "README.md").read_text().split())
    told = re.search(r"it says: \*(.*)\*", readme)
    assert told is not None
    words = Tokenizer()
    fast = sparsejit.compile(stories(), (TOKEN, PLACE), target=isa)
    said = words.text(sparsejit.generate(fast, words.tokens("Once upon a time"), 200))
    assert " ".join(said.split()).startswith(told[1])


def drawer(isa: str, classes: int) -> Callable[..., int]:
    """draw(logits, uniform, temperature, top_k, top_p) of the native code."""

    def body(asm: Assembler) -> None:
        asm.emit("push", rsi)
        asm.emit("vmovss", xmm(0), Memory(rcx, 12))
        emit_token_draw(asm, classes)
        asm.emit("pop", rsi)
        asm.emit("mov", Memory(rsi), rax)

    function = build("draw", Target.named(isa), body).memory.function(4)
    scratch = np.full(token_scratch_bytes(classes) // 4 + 4, np.float32(7))
    drawn, parameters = np.zeros(1, np.int64), np.zeros(4, np.float32)

    def draw(logits: Floats, uniform: float, temperature: float, top_k: int, top_p: float) -> int:
        factor = np.log2(np.e) / temperature if temperature else 0
        parameters[FACTOR // 4], parameters[TOP_P // 4], parameters[3] = factor, top_p, uniform
        parameters.view(np.int32)[TOP_K // 4] = top_k
        given = np.array(logits, np.float32)
        function(*(each.ctypes.data for each in (given, drawn, scratch, parameters)))
        assert (scratch[-4:] == 7).all()
        return int(drawn[0])

    return draw


def probabilities(
    logits: Floats, temperature: float, top_k: int, top_p: float, slack: float = 0.0
) -> npt.NDArray[np.float64]:
    """Probabilities in float64; `slack` is added to `top_p`'s part of the sum."""
    weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    falling = np.sort(weights)[::-1]
    if 0 < top_k < len(weights):
        weights = np.where(weights >= falling[top_k - 1], weights, 0)
        falling = np.sort(weights)[::-1]
    if top_p < 1:
        sums = np.cumsum(falling) / falling.sum()
        last = min(int(np.searchsorted(sums, top_p + slack)), len(sums) - 1)
        weights = np.where(weights >= falling[last], weights, 0)
    return weights / weights.sum()


def possible(
    logits: Floats, uniform: float, temperature: float, top_k: int, top_p: float
) -> set[int]:
    """The tokens that exact draws give within rounding of float32 weights and sums."""
    found = set()
    for slack in (-3e-6, 3e-6):
        sums = np.cumsum(probabilities(logits, temperature, top_k, top_p, slack))
        for place in (uniform - 3e-6, uniform + 3e-6):
            found.add(min(int(np.searchsorted(sums, max(place, 0), "right")), len(sums) - 1))
    return found


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("classes", [1, 5, 8, 33, 512, 1003])
def test_draws_are_the_references(isa: str, classes: int) -> None:
    draw, generator = drawer(isa, classes), np.random.default_rng(classes)
    uniforms, sure = random_uniform(classes, np.arange(400)).tolist(), 0
    for number, uniform in enumerate(uniforms):
        logits = (generator.normal(size=classes) * (0.0, 1.0, 4.0)[number % 3]).astype(np.float32)
        temperature = (0.3, 1.0, 2.5)[number % 5 % 3]
        top_k, top_p = (0, 1, 3, 40, 2000)[number % 5], (1.0, 0.9, 0.3, 1e-9)[number % 4]
        fits = possible(logits, uniform, temperature, top_k, top_p)
        sure += len(fits) == 1
        assert draw(logits, uniform, temperature, top_k, top_p) in fits
    assert sure > 350


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (7, 1.0), (0, 0.8), (12, 0.9)])
def test_frequencies_are_the_probabilities(isa: str, top_k: int, top_p: float) -> None:
    classes, draws, temperature = 33, 20_000, 1.25
    draw = drawer(isa, classes)
    logits = np.random.default_rng(5).normal(size=classes).astype(np.float32)
    uniforms = random_uniform(9, np.arange(draws)).tolist()
    drawn = [draw(logits, each, temperature, top_k, top_p) for each in uniforms]
    counts = np.bincount(drawn, minlength=classes)
    expected = probabilities(logits, temperature, top_k, top_p) * draws
    assert not counts[expected == 0].any()
    kept = expected > 0
    chi_square = float(np.sum((counts[kept] - expected[kept]) ** 2 / expected[kept]))
    freedom = int(kept.sum()) - 1
    assert chi_square < freedom + 4.5 * (2 * freedom) ** 0.5  # beyond 0.1 % from 6 degrees on


@pytest.mark.parametrize("isa", ISAS)
def test_the_first_of_equals_and_what_is_no_token(isa: str) -> None:
    draw, bad = drawer(isa, 20), float("nan")
    logits = np.zeros(20, np.float32)
    assert draw(logits, 0.5, 0.0, 0, 1.0) == 0
    logits[[7, 19]] = np.inf
    assert draw(logits, 0.5, 0.0, 0, 1.0) == 7 and draw(logits, 0.5, 1.0, 0, 1.0) == -1
    logits[:] = -np.inf
    assert draw(logits, 0.5, 0.0, 0, 1.0) == 0 and draw(logits, 0.5, 1.0, 0, 1.0) == -1
    logits[[4, 17]] = -3e38
    for uniform, token in ((0.0, 4), (0.49, 4), (0.51, 17), (1 - 2.0**-24, 17)):
        assert draw(logits, uniform, 1.0, 0, 1.0) == token
        assert draw(logits, uniform, 1.0, 1, 1.0) == token  # both are the likeliest
    for place in range(20):
        logits = np.zeros(20, np.float32)
        logits[place] = bad
        assert draw(logits, 0.5, 0.0, 0, 1.0) == draw(logits, 0.5, 1.0, 3, 0.5) == -1
