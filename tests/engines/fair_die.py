"""A whole engine for tests, as a third party would write one: a die takes each of its sides for equally likely."""

import json
import math
from collections.abc import Sequence

import numpy as np

from pytest_lmgate.engines.base import Backend, Model, ModelEntry, Runner
from pytest_lmgate.errors import ModelError
from pytest_lmgate.settings.gate_options import GenerationSettings
from pytest_lmgate.windows.requests import Request
from pytest_lmgate.windows.tokens import Placed, PromptIds, TokenizerFacts


def placed(text: str, _: bool) -> Placed:
    """A token for each letter."""
    return Placed([ord(letter) % 4 for letter in text], range(len(text)), range(1, len(text) + 1))


class Die(Runner):
    """Scores characters; writes its prompt again."""

    def __init__(self, sides: int) -> None:
        self._sides = sides
        self.tokenizer = TokenizerFacts(lambda text, special: placed(text, special).ids, placed=placed)

    def score(self, requests: Sequence[Request]) -> list[np.ndarray]:
        return [np.full(len(each.targets), math.log(self._sides)) for each in requests]

    def generate(self, prompts: Sequence[PromptIds], settings: GenerationSettings) -> list[tuple[str, int]]:
        most = settings.max_new_tokens
        return [(str(each.prompt)[:most], min(most, len(each.ids))) for each in prompts]


class Dice(Backend):
    """A file of JSON that says how many sides."""

    name = "fair-die"
    suffixes = (".die",)

    def describe(self, entry: ModelEntry) -> Model:
        if entry.spec.path is None:
            raise ModelError(f"model {entry.name!r}: expected path: of a file with its sides")
        file = entry.path(entry.spec.path)
        return Model(
            entry.name,
            lambda: Die(json.loads(file.read_bytes())["sides"]),
            context=64,
            content={"die": entry.digest(file)},
            runtime={"numpy": np.__version__},
            offers=frozenset({"score", "generate"}),
        )


def pytest_lmgate_backends() -> list[Backend]:
    return [Dice()]
