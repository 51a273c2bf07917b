"""The ways in which a server may give the likelihoods of a prompt's tokens, and the experiment that proves one.

Many servers accept the question, but answer for generated tokens or for other tokens. So we use a way only after an
experiment: texts that differ in one word must have the same distributions before that word and different ones after
it, for the tokenizer's own tokens. Then the server draws tokens at temperature 1, which must be as likely as its
numbers say: logarithms to another base and distributions of another temperature fail. A part of the experiment is
repeated while the server is used.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_lmgate.arrays import Floats
from pytest_lmgate.engines.checkpoints import TokenizerFolder
from pytest_lmgate.engines.server.client import BadAnswer, Client, WrongNumbers
from pytest_lmgate.engines.writing import Decode, cut, row_seed, sampling
from pytest_lmgate.errors import ModelError
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.windows.tokens import TokenizerFacts

# Texts that differ from the first one in one word.
_TEXT = "The {} sat on the {} and the {} ran to the {} house near the {} in the morning of a day."
_WORDS = ("cat", "mat", "dog", "old", "lake")
_OTHERS = ("man", "log", "boy", "new", "wood")
# What a word may change before itself, relative to what it changes after itself: in float32 a millionth; in bfloat16
# more, since other rows of a batch change the rounding; with numbers that are off by one token, the same.
_ROUNDING = 0.1
_TOP = 5  # likeliest tokens that the experiment asks for
_ABOVE_ZERO = 1e-3  # rounding may put the logarithm of a probability above 0
_ABOVE_ONE = 1e-2  # and the sum of several probabilities above 1
# Texts that the server continues at temperature 1, tokens of each, and how many of the likeliest are distinguished.
_DRAWN_TEXTS, _DRAWN_TOKENS, _TOLD_APART = 4, 64, 3
# What a probability was raised to if the numbers are logarithms to base 2, and if they are of temperature 2. Base 10
# shows in the sum of the likeliest.
_EXPONENTS = (math.log(2), 2.0)
_FALSE_ALARM = 1e-6
_MOST = 0.9  # the largest share of such a bet for the likeliest tokens
_NO_CHANCE = -9999.0  # how vLLM writes minus infinity
_HALF = 0x1FFF  # the bits of a float32 that a float16 does not have
_BROKEN = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class ServedTokens:
    """The tokens of a tokenizer's folder, to compare with the server's."""

    model: str  # the model's name, for messages
    facts: TokenizerFacts  # what the planning needs to know
    text: Decode  # returns the text of token ids
    special: Sequence[str] = ()  # texts of the special tokens

    def prompt_text(self, ids: Sequence[int]) -> str:
        """Return the text that a server without token ids cuts into these.

        There may be none: the tokens begin or end within a character, or without the special tokens of every text.
        """
        begin = 1 if self.facts.adds_bos and ids[0] == self.facts.bos else 0
        text = self.text(ids[begin:], False)
        if list(self.facts.encode(text, True)) != list(ids):
            raise ModelError(
                f"model {self.model!r}: its server takes text, not token ids, and no text is cut into the "
                f"{len(ids):,} tokens that begin with {self.text(ids[:8], False)!r}; most windows within a text "
                "are like this: serve the model with a server that takes token ids, such as vLLM, or give windows that "
                "begin with the text: a document per row, and a max_length that holds it"
            )
        return text

    def as_decoded(self, text: str) -> str:
        """Return a server's text as the tokenizer writes it: some leave out the first word's space."""
        return text.removeprefix(" ") if self._drops_space else text

    def until_stop(self, text: str, stops: Sequence[str]) -> tuple[str, bool]:
        """Return a text up to the first stop string, without special tokens, and whether there is such a string.

        A server writes special tokens where it is asked to, as `decoding` does if there are stop strings. Half of a
        surrogate pair is a character that was cut.
        """
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        shown = cut(text, stops)
        without = functools.reduce(lambda kept, token: kept.replace(token, ""), self.special if stops else (), shown)
        return without, shown != text

    def is_named(self, token: int, name: object) -> bool:
        """Return whether a server's name of a token, a text or ``token_id:17``, fits an id.

        In a name, parts of a character and the space before a word may be lost.
        """
        if not isinstance(name, str):
            return False
        if name.startswith("token_id:"):
            return name == f"token_id:{token}"
        if token in self.facts.special and not name:
            return True
        token_name = self._name(token)
        return name.replace(_BROKEN, "") in (token_name, f" {token_name}") or name.replace(
            _BROKEN, ""
        ) == token_name.removeprefix(" ")

    @functools.cached_property
    def _drops_space(self) -> bool:
        one, two = (list(self.facts.encode(text, False)) for text in ("a", "a the"))
        return not self.text(two[len(one) :], True).startswith(" ")

    @functools.cached_property
    def _name(self) -> Callable[[int], str]:
        return functools.cache(lambda token: self.text([token], False).replace(_BROKEN, ""))


def tokens_of_folder(folder: TokenizerFolder) -> ServedTokens:
    from pytest_lmgate.engines.tokenizers import decoded, load_tokenizer, tokenizer_facts

    tokenizer = load_tokenizer(folder)

    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    special = [token.content for token in added if token.special]
    return ServedTokens(folder.name, tokenizer_facts(tokenizer), functools.partial(decoded, tokenizer), special)


@dataclass(frozen=True)
class Reading:
    """A server's numbers for a prompt."""

    # Log-probability of each token in nats, given those before it, shape ``[tokens]``; NaN if the server gives none: at
    # the first token, and at the second after a BOS that it hides
    logprobs: Floats
    # Log-probabilities of the likeliest tokens in the place of each token, the highest first; may be empty
    tops: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Way:
    """A way to ask a server for likelihoods."""

    client: Client  # the server
    tokens: ServedTokens  # the tokens that it should have
    words: str  # the way's name, for messages
    takes_ids: bool  # whether the prompt is token ids; else it is text
    # whether the answer repeats the prompt with its ``logprobs``; else it has ``prompt_logprobs``, as vLLM's
    echoes: bool

    def ask(self, ids: Sequence[int], *, tries: bool = False, draws: Mapping[str, Any] | None = None) -> Reading:
        """Ask for the likelihoods of a prompt and, by echo, of the text that the server draws after it.

        With `tries`, the server may be unable to answer; an answer that is not about these tokens is a `BadAnswer`.
        """
        top = _TOP if tries else 1
        wanted: dict[str, Any] = {"prompt_logprobs": top}
        if self.echoes:  # vLLM names tokens by their ids on request; the bytes of a character have no other names
            wanted = {"echo": True, "logprobs": top, "return_tokens_as_token_ids": True}
        # Some servers take 0 tokens to write for no limit.
        wanted |= draws or {"max_tokens": 1, "temperature": 1.0}
        prompt = list(ids) if self.takes_ids else self.tokens.prompt_text(ids)
        answer = self.client.completion({"prompt": prompt, **wanted}, tries=tries)
        try:
            if self.echoes:
                return _echoed(answer, ids, self.tokens, behind=draws is not None)
            return _prompt_logprobs(answer, ids)
        except _Unfit as error:
            problem = str(error)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"expected an answer as OpenAI or vLLM gives it, got another: {type(error).__name__}: {error}"
        raise self.client.wrong(problem, WrongNumbers)

    def draw(self, ids: Sequence[int], row: int) -> Reading | None:
        """Have the server draw tokens at temperature 1, and return its numbers for them; None if it cannot."""
        settings = GenerationSettings(seed=0, temperature=1.0)
        draws = {"max_tokens": _DRAWN_TOKENS, "return_token_ids": True, **decoding(settings, row)}
        if self.echoes:
            drawn = self.ask(ids, tries=True, draws=draws)
        else:
            answer = self.client.completion({"prompt": list(ids), **draws}, tries=True)
            if not isinstance(written := answer["choices"][0].get("token_ids"), list):
                return None
            drawn = self.ask([*ids, *written], tries=True)
        return Reading(drawn.logprobs[len(ids) :], drawn.tops[len(ids) :])


@dataclass(frozen=True)
class Proven:
    """A way that passed the experiment, a prompt of the experiment, and the server's numbers for it."""

    way: Way
    ids: Sequence[int]
    reading: Reading

    def try_again(self) -> None:
        """Ask for the prompt's likelihoods again: `WrongNumbers` if the server has changed its model or its answers."""
        is_known = ~np.isnan(self.reading.logprobs)
        before = self.reading.logprobs[is_known]
        now = self.way.ask(self.ids, tries=True).logprobs[is_known]
        with np.errstate(invalid="ignore"):  # of two infinite ones
            moved, size = float(np.abs(now - before).mean()), float(np.abs(before).mean())
        if not moved <= _ROUNDING * size:
            raise self.way.client.wrong(
                f"the likelihoods of one text changed by {moved:.3g} nats per token while it was used (they were "
                f"{size:.3g}): it has another model now, or answers differently; the measurement is discarded: run "
                "again when the server does not change",
                WrongNumbers,
            )


# Names, and whether they take ids and echo.
_WAYS = (
    ("prompt_logprobs with token ids", True, False),
    ("echo with token ids", True, True),
    ("echo with text", False, True),
)


def proven_way(client: Client, tokens: ServedTokens) -> Proven:
    """Return the first way in which the server gives the likelihoods of a prompt's tokens; `ModelError` if none."""
    texts = [_TEXT.format(*_WORDS)]
    texts += [_TEXT.format(*_WORDS[:at], other, *_WORDS[at + 1 :]) for at, other in enumerate(_OTHERS)]
    prompts = [list(tokens.facts.encode(text, True)) for text in texts]
    problems: dict[str, list[str]] = {}
    for way in (Way(client, tokens, *way) for way in _WAYS):
        try:
            readings = [way.ask(ids, tries=True) for ids in prompts]
        except (BadAnswer, ModelError) as error:
            problems.setdefault(client.reason(error), []).append(way.words)
            continue
        if problem := _disproof(prompts, readings, tokens):
            problems.setdefault(problem, []).append(way.words)
            continue
        if not (problem := _misreport(way, prompts)):
            return Proven(way, prompts[0], readings[0])
        problems = {problem: [way.words]}
        break  # another way gives the same numbers, and may not let them be tried
    listed = "; ".join(f"by {' and '.join(ways)}: {problem}" for problem, ways in problems.items())
    raise ModelError(
        f"model {client.name!r}: the server {client.settings.url} does not give the likelihoods of a prompt's tokens, "
        f"which perplexity and accuracy need: {listed}; use another server, such as vLLM, or gate its texts only"
    )


class _Unfit(Exception):
    """An answer is malformed, or not about these tokens."""


def _prompt_logprobs(answer: Mapping[str, Any], ids: Sequence[int]) -> Reading:
    """Read vLLM's ``prompt_logprobs``: for each token a mapping from ids to log-probabilities, for the first null."""
    given = answer["choices"][0].get("prompt_logprobs")
    if not isinstance(given, list):
        raise _Unfit(f"expected a list under prompt_logprobs, got {given!r:.40}")
    _require_count(len(given), ids)
    values: list[object] = [None]
    tops: list[list[object]] = [[]]
    for at, (token, candidates) in enumerate(zip(ids[1:], given[1:], strict=True), 1):
        if not isinstance(candidates, dict):
            raise _Unfit(f"token {at} has no likelihood: {candidates!r:.40}")
        if str(token) not in candidates:
            raise _Unfit(
                f"token {at}: expected the likelihood of token id {token}, got those of {', '.join(candidates)}"
            )
        values.append(candidates[str(token)]["logprob"])
        tops.append([one["logprob"] for one in candidates.values()])
    return _checked(values, tops, unknown=1)


def _echoed(answer: Mapping[str, Any], ids: Sequence[int], tokens: ServedTokens, *, behind: bool) -> Reading:
    """Read OpenAI's ``logprobs`` of the prompt, and of the text `behind` it; some servers leave out each BOS."""
    given = answer["choices"][0].get("logprobs")
    if not isinstance(given, dict) or "token_logprobs" not in given:
        raise _Unfit(f"expected a mapping with token_logprobs under logprobs, got {given!r:.40}")
    names, values, tops = given["tokens"], given["token_logprobs"], given["top_logprobs"]
    count = len(names) - answer["usage"]["completion_tokens"]
    hidden = max(0, len(ids) - count)
    hidden = hidden if all(token == tokens.facts.bos for token in ids[:hidden]) else 0
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
        listed = [
            likeliest if _tells_apart(top, name) else []
            for likeliest, top, name in zip(listed, tops, names, strict=True)
        ]
    return _checked([None] * hidden + values[:end], [[]] * hidden + listed[:end], unknown=1 + hidden)


def _tells_apart(top: Mapping[str, float] | None, name: str) -> bool:
    """Return whether a list has all the likeliest tokens; parts of characters share a name, and then one is lost."""
    others = [other for other in top or {} if other != name or len(top or {}) == _TOP]
    return len(others) == _TOP and all(other and _BROKEN not in other for other in others)


def _require_count(count: int, ids: Sequence[int]) -> None:
    if count != len(ids):
        only = "; it gives them for generated tokens only" if count == 0 else ""
        raise _Unfit(f"expected {len(ids):,} tokens of the prompt, got {count:,}{only}")


def _checked(values: Sequence[Any], tops: Sequence[Sequence[Any]], *, unknown: int) -> Reading:
    """Refuse numbers that are not log-probabilities; the first `unknown` tokens may have none."""
    for at, entry in enumerate(zip(values, tops, strict=True)):
        for value in (entry[0], *entry[1]):
            if value is None and at < unknown:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise _Unfit(f"token {at} of {len(values):,} has no likelihood: expected a number, got {value!r:.40}")
            if math.isnan(value) or value > _ABOVE_ZERO:
                raise _Unfit(
                    f"token {at} of {len(values):,}: {value} is not a log-likelihood: expected 0 or less; does the "
                    "server give logits instead?"
                )
        if (total := sum(math.exp(value) for value in entry[1] if value is not None)) > 1 + _ABOVE_ONE:
            raise _Unfit(
                f"token {at} of {len(values):,}: the probabilities of {len(entry[1])} tokens in its place sum to "
                f"{total:.4g}: expected 1 or less; does the server give logarithms to base 10?"
            )
    numbers = [math.nan if value is None else value for value in values]
    logprobs = np.array([-math.inf if value <= _NO_CHANCE else value for value in numbers])
    return Reading(logprobs, [sorted((value for value in top if value is not None), reverse=True) for top in tops])


def _disproof(prompts: Sequence[Sequence[int]], readings: Sequence[Reading], tokens: ServedTokens) -> str:
    """Return the fault in the experiment's answers, if any."""
    if not all(any(reading.tops) for reading in readings):
        return "it does not say which tokens are the likeliest (top_logprobs), without which its numbers are not proven"
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
            return "the likelihood of a token does not depend on the tokens before it"
    return _imprecision(readings) or _improbability(readings, tokens)


def _moves(base: Reading, other: Reading, here: range, there: range) -> Iterator[float]:
    """Yield the differences of the numbers of equal tokens in two texts, in nats."""
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
    """Return why the numbers are too coarse, if they are."""
    logprobs = np.concatenate([reading.logprobs[np.isfinite(reading.logprobs)] for reading in readings])
    if np.all(np.abs(logprobs * 1e4 - np.round(logprobs * 1e4)) < 1e-6):
        return f"the likelihoods are rounded to 4 decimals or fewer, as {logprobs[-1]}"
    if not np.any(logprobs.astype(np.float32).view(np.uint32) & _HALF):
        return f"the likelihoods are in half precision, as {logprobs[-1]}"
    return ""


def _improbability(readings: Sequence[Reading], tokens: ServedTokens) -> str:
    """Return why the numbers are not log-probabilities; empty if they are."""
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
            "does the server give logits instead of log-likelihoods?"
        )
    return ""


def _misreport(way: Way, prompts: Sequence[Sequence[int]]) -> str:
    """Return why the numbers are not of the distribution that the server draws from, if they are not.

    A bet that pays `change(x) / q(x)` for each drawn token x, where q is what the server says and `change` any other
    distribution, has the mean 1 if the server is right, for any model. So its product over all tokens, and the
    mean of two such products, reach 1 / p with a probability of p at most (Ville 1939).
    """
    gains = np.zeros(len(_EXPONENTS))
    for row, ids in enumerate(prompts[:_DRAWN_TEXTS]):
        try:
            drawn = way.draw(ids, row)
        except BadAnswer as error:
            return way.client.reason(error) if isinstance(error, WrongNumbers) else ""  # it cannot draw
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
    """Return the logarithm of what a bet on probabilities with another exponent pays for a drawn token.

    `value` is the token's log-probability by the server, `top` those of the likeliest; all others share the rest.
    """
    claimed = np.exp(top)
    bet = claimed**exponent
    bet *= min(1.0, _MOST / bet.sum()) if exponent < 1 else _MOST / bet.sum()
    if value >= top[-1]:
        at = int(np.abs(top - value).argmin())
        return float(np.log(bet[at] / claimed[at]))
    return math.log((1 - bet.sum()) / max(1 - claimed.sum(), 1e-6))


def decoding(settings: GenerationSettings, row: int) -> dict[str, Any]:
    """Return sampling parameters that leave nothing to a server's defaults, such as repetition penalties."""
    fields: dict[str, Any] = {
        **sampling(settings),
        **dict.fromkeys(("repetition_penalty", "repeat_penalty"), 1.0),
        **dict.fromkeys(("min_p", "presence_penalty", "frequency_penalty"), 0.0),
    }
    if settings.stop:
        fields |= {"stop": list(settings.stop), "skip_special_tokens": False}  # a stop string may name one
    if settings.seed is not None:
        fields["seed"] = row_seed(settings.seed, row) >> 1  # some servers take 31 bits
    return fields
