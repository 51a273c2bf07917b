"""`model(..., revision="...")`: gives a model whose code cannot be identified a text that the user changes with it."""

from __future__ import annotations

__all__ = ["RevisedModel", "model"]

from dataclasses import dataclass
from typing import Any

from pytest_lmgate.config.arguments.fixture import FixtureReference


@dataclass(frozen=True)
class RevisedModel:
    """A model and its revision.

    Attributes:
        model: Name, path, hub id, ``(model, tokenizer)`` pair or pipeline.
        revision: The user changes it whenever the model's code may compute another number.
    """

    model: Any
    revision: str


def model(model: Any, tokenizer: Any = None, *, revision: str) -> RevisedModel:
    """Give a model a revision, so that its measurements are kept although its code cannot be identified.

    It goes wherever a model goes: to a fixture, into a marker, or as the value of a pytest fixture that
    ``lmgate.fixture`` names::

        def test_quality(ppl_of):
            assert ppl_of(lmgate.model(my_model, my_tokenizer, revision="2"), "wikitext2") < 16.5

    Args:
        model: A model in memory with its `tokenizer`; or a pair, a pipeline, a name of lmgate.yaml, a path or a hub id.
        tokenizer: The tokenizer of a model in memory.
        revision: Any text. Change it whenever the code of the model, its hooks or the session's patches change: a kept
            measurement is taken for the model's as long as the revision, the weights and the tokenizer are the same.

    Raises:
        TypeError: `revision` is not a text, or `model` is itself a revised model or a reference to a fixture.
    """
    if not isinstance(revision, str) or not revision.strip():
        raise TypeError(f"lmgate.model expects revision to be a text that is not empty, got {revision!r}")
    if isinstance(model, FixtureReference | RevisedModel):
        raise TypeError(
            f"lmgate.model expects a model, got {type(model).__name__}: "
            "return lmgate.model(model, tokenizer, revision=...) from the pytest fixture"
        )
    return RevisedModel(model if tokenizer is None else (model, tokenizer), revision)
