"""Faults of texts and of the cache: what a broken model writes is what a loop of this test's own writes.

The loop has no code of the drill: it reads the prompt, spoils the cache or the logits by hand, and goes on token by
token. Prompts have several lengths, so that the engine pads them.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pytest_lmgate.engines.tokenizers import tokenizer_facts
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.tools.drill.faults import known_faults
from pytest_lmgate.tools.drill.in_transformers import InTransformers
from pytest_lmgate.tools.drill.planting import NotPlanted
from pytest_lmgate.tools.parts.blocks import block_list
from pytest_lmgate.windows.tokens import PromptIds
from tests.models import zoo

FAULTS = known_faults()
NEW = 12
GREEDY = GenerationSettings(max_new_tokens=NEW)
DRAWN = GenerationSettings(max_new_tokens=NEW, seed=0, temperature=1.0)
LENGTHS = (30, 23, 22, 9)
Spoil = Callable[[torch.Tensor, int, int, str], torch.Tensor]


def prompts() -> list[PromptIds]:
    """Return prompts of several lengths, the longest first."""
    drawn = np.random.default_rng(3)
    return [
        PromptIds(row, "", tuple(map(int, drawn.integers(4, zoo.VOCABULARY, length))))
        for row, length in enumerate(LENGTHS)
    ]


@functools.cache
def model(architecture: str = "llama") -> Any:
    return zoo.build(architecture, num_hidden_layers=2, bos_token_id=1, eos_token_id=2).requires_grad_(False)


def runner(name: str, strength: int, architecture: str = "llama") -> Any:
    tokenizer = zoo.word_tokenizer()
    blocks = block_list(zoo.loaded(model(architecture), tokenizer), "model")
    return FAULTS[name].planted(InTransformers(blocks, tokenizer_facts(tokenizer)), strength).open()


def written(made: Any, settings: GenerationSettings = GREEDY) -> list[str]:
    with made.measuring():
        made.prepare_writing(prompts(), settings)
        return [text for text, _, _ in made.generate(prompts(), settings)]


def drawn(made: Any) -> list[Any]:
    with made.measuring():
        made.prepare_writing(prompts(), DRAWN)
        found: list[Any] = made.sample(prompts(), DRAWN)
        return found


def coarse(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    step = (numbers.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)).clamp(min=1e-30)  # a token may have zeros
    return torch.round(numbers / step) * step


def bits(numbers: torch.Tensor, level: int, new: int, place: str) -> torch.Tensor:
    """Round what is new in the cache."""
    return torch.cat([numbers[:, :, :-new], coarse(numbers[:, :, -new:], level)], 2)


def lost(numbers: torch.Tensor, level: int, new: int, place: str) -> torch.Tensor:
    if new > 1:
        numbers[:, :, -level:] = 0
    return numbers


def stale(numbers: torch.Tensor, level: int, new: int, place: str) -> torch.Tensor:
    count = min(level, numbers.shape[2] // 2)
    if new > 1:
        numbers[:, :, numbers.shape[2] - count :] = numbers[:, :, -2 * count : numbers.shape[2] - count].clone()
    return numbers


def other(numbers: torch.Tensor, level: int, new: int, place: str) -> torch.Tensor:
    number, what = place.split()
    if new > 1:
        read = model()(input_ids=torch.tensor([prompts()[0].ids]), use_cache=True).past_key_values
        count = min(level, numbers.shape[2])
        numbers[:, :, :count] = getattr(read.layers[int(number)], what)[:, :, :count]
    return numbers


BY_HAND: dict[str, Spoil] = {"kv-bits": bits, "kv-lost": lost, "kv-stale": stale, "kv-other": other}


class ByHand:
    """Reads on in a cache that is spoilt before each token behind the prompt."""

    def __init__(self, spoil: Spoil, level: int, prompt: tuple[int, ...]) -> None:
        self.spoil, self.level, self.new = spoil, level, len(prompt)
        with torch.inference_mode():
            found = model()(input_ids=torch.tensor([prompt]), use_cache=True)
        self.cache, self.logits = found.past_key_values, found.logits[0, -1].double()

    def read(self, token: int) -> None:
        for number, layer in enumerate(self.cache.layers):
            for what in ("keys", "values"):
                numbers = getattr(layer, what).clone()
                setattr(layer, what, self.spoil(numbers, self.level, self.new, f"{number} {what}"))
        with torch.inference_mode():
            found = model()(input_ids=torch.tensor([[token]]), past_key_values=self.cache, use_cache=True)
        self.new, self.cache, self.logits = 1, found.past_key_values, found.logits[0, -1].double()


def middle(name: str) -> tuple[int, float]:
    levels = FAULTS[name].levels
    return (strength := (len(levels) + 1) // 2), levels[strength - 1]


@pytest.mark.parametrize("name", BY_HAND)
def test_texts_behind_a_spoilt_cache_and_their_probabilities_are_those_of_a_loop_made_by_hand(name: str) -> None:
    strength, level = middle(name)
    tokenizer, texts = zoo.word_tokenizer(), []
    for prompt in prompts():
        hand, ids = ByHand(BY_HAND[name], int(level), prompt.ids), list[int]()
        while len(ids) < NEW and (token := int(hand.logits.argmax())) != 2:
            ids.append(token)
            hand.read(token)
        texts.append(tokenizer.decode(ids, skip_special_tokens=True))
    assert written(runner(name, strength)) == texts
    found, healthy = drawn(runner(name, strength)), drawn(runner(name, 0))
    moved = []
    for prompt, (ids, nll) in zip(prompts(), found, strict=True):
        hand, expected = ByHand(BY_HAND[name], int(level), prompt.ids), []
        plain, unspoilt = ByHand(lambda numbers, *_: numbers, 0, prompt.ids), []
        for token in ids:
            expected.append(-float(hand.logits.log_softmax(-1)[token]))
            unspoilt.append(-float(plain.logits.log_softmax(-1)[token]))
            hand.read(token)
            plain.read(token)
        assert nll == pytest.approx(expected, rel=1e-5, abs=1e-5)
        assert nll[0] == pytest.approx(unspoilt[0], abs=1e-5)  # the prompt is read as it should be
        moved.append(float(np.abs(np.subtract(expected, unspoilt)).max()))
    assert max(moved) > 1e-3, "the fault made by hand does nothing"
    assert found != healthy


@functools.cache
def unbroken() -> tuple[Any, Any]:
    """Return what the model draws and writes without the drill."""
    from pytest_lmgate.engines.transformers.runner import TransformersRunner

    plain = TransformersRunner(zoo.loaded(model(), zoo.word_tokenizer()), None)
    return drawn(plain), written(plain)


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.kind in ("cache", "texts")])
def test_a_fault_of_strength_0_writes_the_same_bits(name: str) -> None:
    assert (drawn(runner(name, 0)), written(runner(name, 0))) == unbroken()


def test_a_window_of_attention_moves_the_places_in_a_cache() -> None:
    """A prefix of another row is lost with the window, and the whole window is the last tokens of the prompt."""
    texts = {strength: written(runner("kv-other", strength, "gemma2")) for strength in (0, 1, 5)}
    assert texts[1] != texts[0]
    assert texts[5] != texts[0]


@pytest.mark.parametrize("architecture", ["mamba", "rwkv"])
def test_a_model_without_keys_and_values_of_all_tokens_is_not_tried(architecture: str) -> None:
    with pytest.raises(NotPlanted, match="its cache is not keys and values of all tokens"):
        runner("kv-bits", 1, architecture)


def test_repetitions_are_penalized_as_the_paper_on_ctrl_says() -> None:
    """Logits of tokens that were there before are divided by the penalty if positive, else multiplied (2019, 4.1)."""
    strength, level = middle("penalty")
    tokenizer, texts = zoo.word_tokenizer(), []
    for prompt in prompts():
        ids = list(prompt.ids)
        with torch.inference_mode():
            for _ in range(NEW):
                logits = model()(input_ids=torch.tensor([ids])).logits[0, -1]
                for token in set(ids):
                    logits[token] *= 1 / level if logits[token] > 0 else level
                ids.append(int(logits.argmax()))
                if ids[-1] == 2:
                    break
        texts.append(tokenizer.decode(ids[len(prompt.ids) :], skip_special_tokens=True))
    assert written(runner("penalty", strength)) == texts
    assert texts != written(runner("penalty", 0))
