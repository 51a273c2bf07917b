"""Files that change between their digest and the loading are measured again, and kept under their own address."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.backends.hf.models import loading
from pytest_lmgate.errors import ModelError
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.spec.markers import parse_fixture_call

from .conftest import make_model


def _measure(session: Any) -> Score:
    what = parse_fixture_call("ppl_of", ("float", "text"), {"max_length": 16, "stride": 8})
    return session.evaluator.evaluate(what)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Weights of another model of the same size."""
    make_model(seed=1).save_pretrained(tmp_path / "other")
    return tmp_path / "other" / "model.safetensors"


def _before_loading(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> list[str]:
    load: Callable[..., Any] = loading.load_checkpoint
    names: list[str] = []

    def watched(checkpoint: Any, **settings: Any) -> Any:
        names.append(checkpoint.name)
        act(len(names))
        return load(checkpoint, **settings)

    monkeypatch.setattr(loading, "load_checkpoint", watched)
    return names


def _replace(target: Path, source: Path) -> None:
    shutil.copyfile(source, target.with_suffix(".new"))
    target.with_suffix(".new").replace(target)


def test_weights_that_are_replaced_before_they_are_loaded_are_kept_under_their_own_address(
    workplace: Any, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = workplace.folder / "models" / "float" / "model.safetensors"
    shutil.copyfile(weights, workplace.folder / "first")
    with monkeypatch.context() as patch:
        loads = _before_loading(patch, lambda count: _replace(weights, other) if count == 1 else None)
        replaced = _measure(workplace.session())
        assert loads == ["float", "float"]
    assert _measure(workplace.session()) == replaced
    assert _measure(workplace.session()).cached
    _replace(weights, workplace.folder / "first")
    first = _measure(workplace.session())
    assert not first.cached
    assert abs(first - replaced) > 0.01


def test_weights_that_are_replaced_and_put_back_are_measured_again(
    workplace: Any, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _measure(workplace.session(cache=workplace.folder / "elsewhere"))
    weights = workplace.folder / "models" / "float" / "model.safetensors"
    load: Callable[..., Any] = loading.load_checkpoint
    counted: list[None] = []

    def watched(checkpoint: Any, **settings: Any) -> Any:
        counted.append(None)
        if len(counted) > 1:
            return load(checkpoint, **settings)
        weights.rename(weights.with_suffix(".aside"))
        shutil.copyfile(other, weights)
        loaded = load(checkpoint, **settings)
        weights.with_suffix(".aside").replace(weights)
        return loaded

    monkeypatch.setattr(loading, "load_checkpoint", watched)
    assert _measure(workplace.session()) == expected
    assert len(counted) == 2


def test_a_file_that_is_added_before_the_loading_is_noticed(workplace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = workplace.folder / "models" / "float"
    loads = _before_loading(monkeypatch, lambda count: count > 1 or ((folder / "added.json").write_text("{}") and None))
    _measure(workplace.session())
    assert loads == ["float", "float"]
    (folder / "notes.md").write_text("no loader reads this")
    assert _measure(workplace.session()).cached


def test_files_that_keep_changing_are_an_error(workplace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = workplace.folder / "models" / "float" / "config.json"

    def touch(_: int) -> None:
        time.sleep(0.02)
        config.write_bytes(config.read_bytes())

    loads = _before_loading(monkeypatch, touch)
    with pytest.raises(ModelError, match=r"^model 'float': .*config\.json changed while the model was loaded, three t"):
        _measure(workplace.session())
    assert loads == ["float"] * 3
    assert list((workplace.folder / ".lmgate_cache").rglob("*.lmgate")) == []


def test_weights_that_change_within_a_session_are_another_model(workplace: Any, other: Path) -> None:
    session = workplace.session()
    first = _measure(session)
    weights = workplace.folder / "models" / "float" / "model.safetensors"
    _replace(weights, other)
    second = _measure(session)
    assert (first.cached, second.cached) == (False, False)
    assert first.fingerprint != second.fingerprint


def test_a_library_that_is_patched_while_it_is_loaded_is_seen(workplace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    def patch(_: int) -> None:
        monkeypatch.setattr(modeling_llama, "rotate_half", lambda x: x)

    _before_loading(monkeypatch, patch)
    session = workplace.session()
    assert not _measure(session).cached
    assert list((workplace.folder / ".lmgate_cache").rglob("*.lmgate")) == []
    assert "rotate_half" in session.evaluator.not_kept["float"]
    monkeypatch.undo()
    session.evaluator.forget()
    assert not _measure(session).cached


def test_versions_and_files_are_looked_up_once_in_a_session(workplace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_lmgate.backends.hf.models import contents

    now = time.time
    monkeypatch.setattr("pytest_lmgate.identity.files.time.time", lambda: now() + 60)
    listed: list[Path] = []
    plain = contents.checkpoint_files
    monkeypatch.setattr(
        contents, "checkpoint_files", lambda folder, **how: listed.append(folder) or plain(folder, **how)
    )
    resolver = workplace.session().evaluator.resolver
    first = resolver.model("float")
    count = len(listed)
    assert count
    assert resolver.model("float").ingredients == first.ingredients
    assert len(listed) == count
