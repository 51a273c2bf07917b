"""What the session makes of an engine of the user's: whose measurement is whose, and models that cannot be loaded."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.engines.base import Backend, Model, ModelEntry, Runner
from pytest_lmgate.errors import ModelError
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.settings.file import load_project
from pytest_lmgate.settings.gate_options import WindowProtocol
from pytest_lmgate.settings.session import Options
from tests.engines.fair_die import Dice, Die
from tests.measure.entries import perplexity

PROTOCOL = WindowProtocol(max_length=8)


class _Engine(Dice):
    """A fair die under another name, with something else in its description, that notes which entries it loads."""

    def __init__(self, name: str = "die", **changes: Any) -> None:
        self.name, self._changes = name, changes
        self.loaded: list[str] = []

    def describe(self, entry: ModelEntry) -> Model:
        model = super().describe(entry)

        def open_() -> Runner:
            self.loaded.append(entry.name)
            return model.open()

        return dataclasses.replace(model, **{"open": open_, **self._changes})


@pytest.fixture
def session(tmp_path: Path) -> Callable[..., Evaluator]:
    (tmp_path / "text.txt").write_text("a" * 160)
    for sides in (2, 4):
        (tmp_path / f"{sides}.json").write_text(f'{{"sides": {sides}}}')
    (tmp_path / "lmgate.yaml").write_text(
        """
        models:
          two: {path: 2.json, backend: die}
          other: {path: 2.json, backend: other}
          two-revised: {path: 2.json, backend: die, revision: "1"}
          four-revised: {path: 4.json, backend: die, revision: "1"}
        datasets: {text: {path: text.txt}}
        """
    )

    def start(*engines: Backend) -> Evaluator:
        options = Options(cache=tmp_path / "cache")
        return Evaluator(load_project(tmp_path), options, users_backends={each.name: each for each in engines})

    return start


def test_two_engines_that_describe_a_file_alike_do_not_share_measurements(session: Callable[..., Evaluator]) -> None:
    evaluator = session(_Engine(), _Engine("other", open=lambda: Die(4)))
    assert perplexity(evaluator, "two", "text", PROTOCOL) == pytest.approx(2)
    other = perplexity(evaluator, "other", "text", PROTOCOL)
    assert (float(other), other.cached) == (pytest.approx(4), False)


def test_models_without_content_that_have_the_same_revision_do_not_share_measurements(
    session: Callable[..., Evaluator],
) -> None:
    for cached in (False, True):
        evaluator = session(_Engine(content=None))
        two, four = (perplexity(evaluator, name, "text", PROTOCOL) for name in ("two-revised", "four-revised"))
        assert (two, four) == (pytest.approx(2), pytest.approx(4))
        assert (two.cached, four.cached) == (cached, cached)
        assert two.content != four.content


def test_a_model_that_cannot_be_loaded_is_loaded_once_in_a_session_until_its_file_changes(
    session: Callable[..., Evaluator], tmp_path: Path
) -> None:
    (tmp_path / "2.json").write_text("{}")
    evaluator = session(engine := _Engine())
    for name in ("two", "two-revised"):
        for window in (8, 4, 2):
            expected = rf"^model '{name}': its engine cannot load it: KeyError: 'sides' \(.*\.py:\d+\)$"
            with pytest.raises(ModelError, match=expected):
                perplexity(evaluator, name, "text", WindowProtocol(max_length=window))
    assert engine.loaded == ["two", "two-revised"]
    (tmp_path / "2.json").write_text('{"sides": 2}')
    assert perplexity(evaluator, "two", "text", PROTOCOL) == pytest.approx(2)
    assert engine.loaded == ["two", "two-revised", "two"]
