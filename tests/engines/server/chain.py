"""The model of the servers and programs in plain Python: each token depends on the one before it."""

import heapq
import itertools
import math
import random
from typing import Any

SIZE = 320  # tokens of the vocabulary


class Model:
    def __init__(self, seed: str, block: int | None = None) -> None:
        drawn = random.Random(seed)
        scores = [drawn.gauss(0, 3) for _ in range(SIZE)]
        total = math.log(sum(map(math.exp, scores)))
        self._row = [score - total for score in scores]
        self._block, self._read = block, set[tuple[int, ...]]()

    def row(self, before: int) -> list[float]:
        """Return the log-probabilities of all tokens after one: the same numbers, moved on by it."""
        at = 7 * before % SIZE
        return [*self._row[at:], *self._row[:at]]

    def known(self, before: int, token: int, top: int) -> dict[str, Any]:
        row = self.row(before)
        best = heapq.nlargest(top, range(SIZE), key=row.__getitem__)
        return {str(each): {"logprob": row[each]} for each in {*best, token}}

    def recalled(self, ids: list[int]) -> int:
        """Return how many tokens are in whole blocks that an earlier request had too."""
        ends = range(self._block, len(ids), self._block) if self._block else ()
        found = max((end for end in ends if tuple(ids[:end]) in self._read), default=0)
        self._read |= {tuple(ids[:end]) for end in ends}
        return found

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = [token if isinstance(token, int) else ord(token) % SIZE for token in body["prompt"]]  # letters, of a text
        read, drawn = len(ids), random.Random(body.get("seed"))
        for _ in range(body["max_tokens"]):
            row = self.row(ids[-1])
            temperature = body["temperature"]
            weights = [math.exp(score / temperature) for score in row] if temperature else []
            ids.append(drawn.choices(range(SIZE), weights)[0] if weights else row.index(max(row)))
        choice: dict[str, Any] = {"text": "", "finish_reason": "length", "token_ids": ids[read:]}
        if (top := body.get("prompt_logprobs")) is not None:
            choice["prompt_logprobs"] = [None, *(self.known(*pair, top) for pair in itertools.pairwise(ids[:read]))]
            for at in range(1, self.recalled(ids[:read])):
                choice["prompt_logprobs"][at] = {str(ids[at]): {"logprob": 0.0}}
        return {"choices": [choice], "usage": {"prompt_tokens": read, "completion_tokens": len(ids) - read}}
