"""What every engine has to say of a Llama, by loops over its logits in float64 that share nothing with the package."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.engines.projects import CONTEXT

Window = tuple[list[int], int]  # the tokens, and the first of them that is scored


class Oracle:
    """A model of transformers, read whole, one text at a time."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model.double().eval(), tokenizer
        self._known: dict[tuple[int, ...], NDArray[np.float64]] = {}

    def tokens(self, text: str, *, special: bool = False) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=special)["input_ids"]
        return ids

    def logprobs(self, ids: Sequence[int]) -> NDArray[np.float64]:
        """Return what follows each token, shape ``[tokens, vocabulary]``."""
        if (key := tuple(ids)) not in self._known:
            with torch.no_grad():
                logits = self.model(torch.tensor([key]), use_cache=False).logits[0]
            self._known[key] = logits.log_softmax(-1).numpy()
        return self._known[key]

    def nll(self, ids: Sequence[int], first: int) -> list[float]:
        logprobs = self.logprobs(ids[:-1])
        return [-float(logprobs[at - 1, ids[at]]) for at in range(first, len(ids))]

    def windows(self, protocol: str, rows: Sequence[str], size: int, stride: int) -> Iterator[Window]:
        """Cut rows as a protocol says; see docs/protocols.md."""
        bos, text = self.tokenizer.bos_token_id, "\n\n".join(rows)
        if protocol in ("sliding", "disjoint"):
            yield from _slide(self.tokens(text), size, stride)
        elif protocol == "document":
            for row in rows:
                yield from _slide(self.tokens(row), size, stride)
        elif protocol == "bos-chunks":
            for chunk in _chunks(self.tokens("".join(f"{row}\n" for row in rows)), size):
                yield [bos, *chunk], 1
        elif protocol == "gptq":
            for chunk in _chunks(self.tokens(text, special=True), size):
                yield chunk, 1
        elif protocol == "llama.cpp":
            for chunk in _chunks(self.tokens(text, special=True), size):
                yield [bos, *chunk[1:]], size // 2 + 1
        else:
            assert protocol == "lm-eval"
            for row in rows:
                ids = [bos, *self.tokens(row)]
                assert len(ids) <= size + 1, "one window is all that is written here"
                yield ids, 1

    def nlls(self, protocol: str, rows: Sequence[str], size: int = CONTEXT, stride: int = 0) -> NDArray[np.float64]:
        windows = self.windows(protocol, rows, size, stride or size)
        return np.array([nll for ids, first in windows for nll in self.nll(ids, first)])

    def kl(self, other: Any, ids: Sequence[int]) -> NDArray[np.float64]:
        """Return the divergence of another oracle's model from this one after each token."""
        p, q = self.logprobs(ids), other.logprobs(ids)
        found: NDArray[np.float64] = (np.exp(p) * (p - q)).sum(1)
        return found

    def choice(self, question: str, choice: str) -> float:
        """Return the NLL of a choice after a question; white space at the question's end is the choice's."""
        asked = self.tokens(question.rstrip(), special=True)
        return sum(self.nll(self.tokens(f"{question} {choice}", special=True), len(asked)))

    def writes(self, prompt: str, most: int, *, ends: Sequence[int], stops: Sequence[str] = ()) -> str:
        """Write what goes on from a text, whose BOS is the only one."""
        return self.goes_on(self.tokens(prompt, special=not prompt.startswith("<s>")), most, ends=ends, stops=stops)

    def goes_on(self, ids: Sequence[int], most: int, *, ends: Sequence[int], stops: Sequence[str] = ()) -> str:
        """Write the likeliest tokens, until an end, the first stop string in what is written, or as many as allowed."""
        written: list[int] = []
        while len(written) < most:
            written.append(int(self.logprobs([*ids, *written])[-1].argmax()))
            if written[-1] in ends:
                written.pop()
                break
            whole = self.tokenizer.decode(written)
            if found := [whole.index(stop) for stop in stops if stop in whole]:
                return self.without_special(whole[: min(found)])
        return self.without_special(self.tokenizer.decode(written))

    def without_special(self, text: str) -> str:
        for token in self.tokenizer.all_special_tokens:
            text = text.replace(token, "")
        return text


def _slide(ids: list[int], size: int, stride: int) -> Iterator[Window]:
    begin, done = 0, 1
    while True:
        end = min(begin + size, len(ids))
        yield ids[begin:end], max(done - begin, 1)
        if end == len(ids):
            return
        begin, done = begin + stride, end


def _chunks(ids: list[int], size: int) -> Iterator[list[int]]:
    return (ids[begin : begin + size] for begin in range(0, len(ids) - size + 1, size))
