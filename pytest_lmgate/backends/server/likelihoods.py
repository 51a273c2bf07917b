"""How a server tells the likelihoods of a prompt's tokens, and the experiment that shows whether it does.

Many servers accept the question and answer for the tokens that they generate, or for other tokens than they say. So a
way of asking is used only after an experiment: texts that differ in one word must have the same distributions up to
that word and others behind it, for tokens that are those of the tokenizer. Then the server draws tokens at temperature
1, which must be as likely as its numbers say: logarithms to another base and distributions of another temperature are
not. A part of the experiment is made again while the server is used.
"""

from __future__ import annotations

__all__ = ["Proven", "Reading", "Way", "decoding", "proven_way"]

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.backends.server.client import BadAnswer, Client, WrongNumbers
from pytest_lmgate.backends.server.tokens import BROKEN, ServedTokens
from pytest_lmgate.backends.writing import row_seed, sampling
from pytest_lmgate.config.arguments.generation import GenerationSettings
from pytest_lmgate.errors import ModelError

# Texts that differ from the first of them in one word.
_TEXT = "The {} sat on the {} and the {} ran to the {} house near the {} in the morning of a day."
_WORDS = ("cat", "mat", "dog", "old", "lake")
_OTHERS = ("man", "log", "boy", "new", "wood")
# What a word may change before itself, as a part of what it changes behind itself. In float32 it is a millionth; in
# bfloat16 other rows of a batch change the rounding; with numbers that are off by a token, it is of the same size.
_ROUNDING = 0.1
_TOP = 5  # likeliest tokens that the experiment asks for
_ABOVE_ZERO = 1e-3  # rounding may put the logarithm of a probability above 0
_ABOVE_ONE = 1e-2  # and the sum of several probabilities above 1
# Texts of the experiment that the server writes on at temperature 1, each by so many tokens, and how many of the
# likeliest tokens are told apart there.
_DRAWN_TEXTS, _DRAWN_TOKENS, _TOLD_APART = 4, 64, 3
# What a probability was raised to where the server's numbers are logarithms to base 2, and of temperature 2. The sum of
# the likeliest ones shows base 10.
_EXPONENTS = (math.log(2), 2.0)
_FALSE_ALARM = 1e-6
_MOST = 0.9  # what the likeliest tokens have of such a bet at most
_NO_CHANCE = -9999.0  # how vLLM writes minus infinity
_HALF = 0x1FFF  # the bits of a float32 that a float16 does not have


@dataclass(frozen=True)
class Reading:
    """What a server says of a prompt.

    Attributes:
        logprobs: Of each token in nats, given those before it, shape ``[tokens]``; NaN where the server gives none, at
            the first token, and at the second behind a BOS that it does not show.
        tops: Log-probabilities of the likeliest tokens in the place of each token, the highest first; empty likewise.
    """

    logprobs: Floats
    tops: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Way:
    """A way to ask for likelihoods.

    Attributes:
        words: What it is, for messages.
        takes_ids: Whether the prompt is token ids; else it is text.
        echoes: Whether the answer repeats the prompt with its ``logprobs``; else it has ``prompt_logprobs``, as vLLM's.
    """

    words: str
    takes_ids: bool
    echoes: bool

    def ask(self, client: Client, tokens: ServedTokens, ids: Sequence[int], *, tries: bool = False) -> Reading:
        """Ask for the likelihoods of a prompt, shape ``[tokens]``; `tries` where the server may be unable to answer.

        Raises:
            BadAnswer: The answer has no likelihoods, or not those of these tokens.
            EngineError: The server cannot be reached.
            ModelError: The prompt cannot be sent as text.
        """
        # Some servers take 0 tokens to write for no limit.
        body = {"max_tokens": 1, "temperature": 1.0}
        return self._asked(client, tokens, ids, body, tries=tries)

    def draw(self, client: Client, tokens: ServedTokens, ids: Sequence[int], row: int) -> Reading | None:
        """Have the server draw tokens at temperature 1, and return what it says of them; None where it does not do it.

        Raises:
            EngineError: The server cannot be reached, or its answer is not what it should be.
        """
        settings = GenerationSettings(seed=0, temperature=1.0)
        body = {"max_tokens": _DRAWN_TOKENS, "return_token_ids": True, **decoding(settings, row)}
        if self.echoes:
            found = self._asked(client, tokens, ids, body, tries=True, behind=True)
        else:
            answer = client.completion({"prompt": list(ids), **body}, tries=True)
            if not isinstance(written := answer["choices"][0].get("token_ids"), list):
                return None
            found = self.ask(client, tokens, [*ids, *written], tries=True)
        return Reading(found.logprobs[len(ids) :], found.tops[len(ids) :])

    def _asked(
        self,
        client: Client,
        tokens: ServedTokens,
        ids: Sequence[int],
        body: Mapping[str, Any],
        *,
        tries: bool,
        behind: bool = False,
    ) -> Reading:
        top = _TOP if tries else 1
        wanted = {"prompt_logprobs": top}
        if self.echoes:  # vLLM names tokens by their ids where asked; the bytes of a character have no other names
            wanted = {"echo": True, "logprobs": top, "return_tokens_as_token_ids": True}
        prompt = list(ids) if self.takes_ids else tokens.prompt_text(ids)
        answer = client.completion({"prompt": prompt, **body, **wanted}, tries=tries)
        try:
            return _echoed(answer, ids, tokens, behind=behind) if self.echoes else _prompt_logprobs(answer, ids)
        except _Unfit as error:
            problem = str(error)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"expected an answer as OpenAI or vLLM gives it, got another: {type(error).__name__}: {error}"
        raise client.wrong(problem, WrongNumbers)


@dataclass(frozen=True)
class Proven:
    """A way that passed the experiment, with a part of it to make again.

    Attributes:
        way: The way.
        ids: A prompt of the experiment.
        reading: What the server said of it.
    """

    way: Way
    ids: Sequence[int]
    reading: Reading

    def try_again(self, client: Client, tokens: ServedTokens) -> None:
        """Ask for the likelihoods of the prompt again.

        Raises:
            WrongNumbers: They are others: the server has another model, or answers in another way.
            EngineError: The server cannot be reached.
        """
        known = ~np.isnan(self.reading.logprobs)
        before = self.reading.logprobs[known]
        now = self.way.ask(client, tokens, self.ids, tries=True).logprobs[known]
        with np.errstate(invalid="ignore"):  # of two infinite ones
            moved, size = float(np.abs(now - before).mean()), float(np.abs(before).mean())
        if not moved <= _ROUNDING * size:
            raise client.wrong(
                f"the likelihoods of one text changed by {moved:.3g} nats per token while it was used (they were "
                f"{size:.3g}): it has another model now, or answers in another way; what was measured is not kept: run "
                "again when nobody changes the server",
                WrongNumbers,
            )


_WAYS = (
    Way("prompt_logprobs with token ids", True, False),
    Way("echo with token ids", True, True),
    Way("echo with text", False, True),
)


def proven_way(client: Client, tokens: ServedTokens) -> Proven:
    """Return the first way in which the server gives the likelihoods of a prompt's tokens.

    Raises:
        ModelError: There is none.
        EngineError: The server cannot be reached.
    """
    texts = [_TEXT.format(*_WORDS)]
    texts += [_TEXT.format(*_WORDS[:at], other, *_WORDS[at + 1 :]) for at, other in enumerate(_OTHERS)]
    prompts = [list(tokens.facts.encode(text, True)) for text in texts]
    problems: dict[str, list[str]] = {}
    for way in _WAYS:
        try:
            readings = [way.ask(client, tokens, ids, tries=True) for ids in prompts]
        except (BadAnswer, ModelError) as error:
            problems.setdefault(client.reason(error), []).append(way.words)
            continue
        if problem := _disproof(prompts, readings, tokens):
            problems.setdefault(problem, []).append(way.words)
            continue
        if not (problem := _misreport(client, tokens, way, prompts)):
            return Proven(way, prompts[0], readings[0])
        problems = {problem: [way.words]}
        break  # another way gives the same numbers, and may not let them be tried
    found = "; ".join(f"by {' and '.join(ways)}: {problem}" for problem, ways in problems.items())
    raise ModelError(
        f"model {client.name!r}: the server {client.settings.url} does not give the likelihoods of a prompt's tokens, "
        f"which perplexity and accuracy need: {found}; use another server, such as vLLM, or gate its texts only"
    )


class _Unfit(Exception):
    """An answer is not what it should be."""


def _prompt_logprobs(answer: Mapping[str, Any], ids: Sequence[int]) -> Reading:
    """Read vLLM's ``prompt_logprobs``: of each token a mapping from ids to log-probabilities, null of the first."""
    given = answer["choices"][0].get("prompt_logprobs")
    if not isinstance(given, list):
        raise _Unfit(f"expected a list under prompt_logprobs, got {given!r:.40}")
    _require_count(len(given), ids)
    values: list[object] = [None]
    tops: list[list[object]] = [[]]
    for at, (token, each) in enumerate(zip(ids[1:], given[1:], strict=True), 1):
        if not isinstance(each, dict):
            raise _Unfit(f"token {at} has no likelihood: {each!r:.40}")
        if str(token) not in each:
            raise _Unfit(f"token {at}: expected the likelihood of token id {token}, got those of {', '.join(each)}")
        values.append(each[str(token)]["logprob"])
        tops.append([one["logprob"] for one in each.values()])
    return _checked(values, tops, unknown=1)


def _echoed(answer: Mapping[str, Any], ids: Sequence[int], tokens: ServedTokens, *, behind: bool) -> Reading:
    """Read OpenAI's ``logprobs`` of the prompt, and of the text `behind` it; some servers leave out the BOS."""
    given = answer["choices"][0].get("logprobs")
    if not isinstance(given, dict) or "token_logprobs" not in given:
        raise _Unfit(f"expected a mapping with token_logprobs under logprobs, got {given!r:.40}")
    names, values, tops = given["tokens"], given["token_logprobs"], given["top_logprobs"]
    count = len(names) - answer["usage"]["completion_tokens"]
    hidden = 1 if count == len(ids) - 1 and ids[0] == tokens.facts.bos else 0
    _require_count(count + hidden, ids)
    for at, (name, token) in enumerate(zip(names, ids[hidden:], strict=False), hidden):
        if not tokens.is_named(token, name):
            raise _Unfit(
                f"token {at}: expected {tokens.text([token], False)!r}, got {name!r}: the server's tokenizer is not "
                "that of tokenizer:"
            )
    listed = [list((top or {}).values()) for top in tops or [{}] * len(names)]
    if not len(names) == len(values) == len(listed):
        raise _Unfit(
            f"expected equal counts, got {len(names)} tokens, {len(values)} log-probabilities, {len(listed)} tops"
        )
    end = len(names) if behind else count
    if behind:
        listed = [own if _tells_apart(top, name) else [] for own, top, name in zip(listed, tops, names, strict=True)]
    return _checked([None] * hidden + values[:end], [[]] * hidden + listed[:end], unknown=1 + hidden)


def _tells_apart(top: Mapping[str, float] | None, name: str) -> bool:
    """Return whether a list has all the likeliest tokens: parts of characters share a name, and one of them is lost."""
    others = [each for each in top or {} if each != name or len(top or {}) == _TOP]
    return len(others) == _TOP and all(each and BROKEN not in each for each in others)


def _require_count(count: int, ids: Sequence[int]) -> None:
    if count != len(ids):
        only = "; it answers for generated tokens only" if count == 0 else ""
        raise _Unfit(f"expected {len(ids):,} tokens of the prompt, got {count:,}{only}")


def _checked(values: Sequence[Any], tops: Sequence[Sequence[Any]], *, unknown: int) -> Reading:
    """Refuse what is no logarithm of a probability; so many of the first tokens as are `unknown` may have none."""
    for at, found in enumerate(zip(values, tops, strict=True)):
        for value in (found[0], *found[1]):
            if value is None and at < unknown:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise _Unfit(f"token {at} of {len(values):,} has no likelihood: expected a number, got {value!r:.40}")
            if math.isnan(value) or value > _ABOVE_ZERO:
                raise _Unfit(
                    f"token {at} of {len(values):,}: {value} is no log-likelihood: expected 0 or less; does the server "
                    "give logits in their place?"
                )
        if (total := sum(math.exp(value) for value in found[1] if value is not None)) > 1 + _ABOVE_ONE:
            raise _Unfit(
                f"token {at} of {len(values):,}: the probabilities of {len(found[1])} tokens in its place sum to "
                f"{total:.4g}: expected 1 or less; does the server give logarithms to base 10?"
            )
    known = [math.nan if value is None else value for value in values]
    logprobs = np.array([-math.inf if value <= _NO_CHANCE else value for value in known])
    return Reading(logprobs, [sorted((value for value in top if value is not None), reverse=True) for top in tops])


def _disproof(prompts: Sequence[Sequence[int]], readings: Sequence[Reading], tokens: ServedTokens) -> str:
    """Return what is wrong with the answers of the experiment; empty if nothing is."""
    whole, base = prompts[0], readings[0]
    for ids, reading in zip(prompts[1:], readings[1:], strict=True):
        pairs = list(zip(whole, ids, strict=False))
        first = next((at for at, (one, other) in enumerate(pairs) if one != other), len(pairs))
        behind = next((at for at, (a, b) in enumerate(zip(whole[::-1], ids[::-1], strict=False)) if a != b), 0)
        if first < 2 or behind < 2:
            return f"the tokenizer of tokenizer: cuts the texts of the experiment into tokens such as {whole[:5]}"
        before = max(_moves(base, reading, range(1, first), range(1, first)), default=0.0)
        before = max(before, _top_moves(base.tops[first], reading.tops[first]))
        here, there = range(len(whole) - behind, len(whole)), range(len(ids) - behind, len(ids))
        after = max(_moves(base, reading, here, there), default=0.0)
        if not before <= _ROUNDING * after:
            return (
                f"a changed word moves distributions before it by {before:.2g} nats, those after it by {after:.2g}: "
                "expected no change before it; the likelihoods may be off by one token"
            )
        if not after:
            return "the likelihood of a token does not depend on what stands before it"
    return _imprecision(readings) or _improbability(readings, tokens)


def _moves(base: Reading, other: Reading, here: range, there: range) -> Iterator[float]:
    """Yield how far the numbers of equal tokens in two texts are apart, in nats."""
    for one, two in zip(here, there, strict=True):
        if not math.isnan(difference := abs(base.logprobs[one] - other.logprobs[two])):
            yield float(difference)
            yield _top_moves(base.tops[one], other.tops[two])


def _top_moves(one: Sequence[float], two: Sequence[float]) -> float:
    # The last may be the token's own, which need not be among the likeliest.
    count = max(1, min(len(one), len(two)) - 1)
    pairs = zip(one[:count], two[:count], strict=True)
    return max((abs(a - b) for a, b in pairs), default=math.inf)


def _imprecision(readings: Sequence[Reading]) -> str:
    """Return why the numbers are too coarse; empty if they are not."""
    found = np.concatenate([reading.logprobs[np.isfinite(reading.logprobs)] for reading in readings])
    if np.all(np.abs(found * 1e4 - np.round(found * 1e4)) < 1e-6):
        return f"the likelihoods are rounded to 4 decimals or fewer, as {found[-1]}"
    if not np.any(found.astype(np.float32).view(np.uint32) & _HALF):
        return f"the likelihoods are in half precision, as {found[-1]}"
    return ""


def _improbability(readings: Sequence[Reading], tokens: ServedTokens) -> str:
    """Return why the numbers are of no probabilities; empty if they are."""
    highest: list[float] = []
    for reading in readings:
        for at, (value, top) in enumerate(zip(reading.logprobs, reading.tops, strict=True)):
            if top and value > top[0] + _ABOVE_ZERO:
                return f"token {at} has {value:.4g}, more than the likeliest token in its place, {top[0]:.4g}"
            highest += top[:1]
    # The likeliest of n tokens has 1 / n at least. Two of them may share a name, and one of the two is lost.
    size = len(tokens.facts.vocabulary()) if tokens.facts.vocabulary is not None else math.inf
    if (middle := float(np.median(highest))) < -math.log(size) - _ABOVE_ZERO:
        return (
            f"the most likely of {size:,} tokens has a median of {middle:.4g}: expected {-math.log(size):.4g} or more; "
            "does the server give logits in place of log-likelihoods?"
        )
    return ""


def _misreport(client: Client, tokens: ServedTokens, way: Way, prompts: Sequence[Sequence[int]]) -> str:
    """Return why the numbers are not those of the distribution that the server draws from; empty if they may be.

    A bet that pays `change(x) / q(x)` for each drawn token x, where q is what the server says and `change` any other
    distribution, has the mean 1 if the server is right, whatever its model. So its product over all tokens, and the
    mean of two such products, reach 1 / p with a probability of p at most (Ville 1939).
    """
    gains = np.zeros(len(_EXPONENTS))
    for row, ids in enumerate(prompts[:_DRAWN_TEXTS]):
        try:
            drawn = way.draw(client, tokens, ids, row)
        except BadAnswer as error:
            return client.reason(error) if isinstance(error, WrongNumbers) else ""  # it cannot draw
        for value, top in zip(*((drawn.logprobs, drawn.tops) if drawn else ((), ())), strict=True):
            if top:
                gains += [_gain(float(value), np.array(top[:_TOLD_APART]), exponent) for exponent in _EXPONENTS]
            if np.logaddexp.reduce(gains) - math.log(len(gains)) >= -math.log(_FALSE_ALARM):
                return (
                    "the tokens that it draws at temperature 1 are not those that its log-probabilities make likely: "
                    "expected natural logarithms at temperature 1; does it give them to base 2, or of another "
                    "temperature?"
                )
    return ""


def _gain(value: float, top: Floats, exponent: float) -> float:
    """Return the logarithm of what a bet on a distribution with other exponents pays for a drawn token.

    Args:
        value: Log-probability of the token, as the server has it.
        top: Of the likeliest tokens, the highest first.
        exponent: What their probabilities are raised to; all other tokens have the rest.
    """
    said = np.exp(top)
    bet = said**exponent
    bet *= min(1.0, _MOST / bet.sum()) if exponent < 1 else _MOST / bet.sum()
    if value >= top[-1]:
        at = int(np.abs(top - value).argmin())
        return float(np.log(bet[at] / said[at]))
    return math.log((1 - bet.sum()) / max(1 - said.sum(), 1e-6))


def decoding(settings: GenerationSettings, row: int) -> dict[str, Any]:
    """Return how to choose tokens, with nothing left to a server's defaults, such as penalties for repetition."""
    found: dict[str, Any] = {
        **sampling(settings),
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    if settings.stop:
        found["stop"] = list(settings.stop)
    if settings.seed is not None:
        found["seed"] = row_seed(settings.seed, row) >> 1  # some servers take 31 bits
    return found
