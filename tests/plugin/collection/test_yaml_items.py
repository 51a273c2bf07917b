"""Gates of lmgate.yaml as tests."""

from __future__ import annotations

from typing import Any

import pytest

import pytest_lmgate.plugin.session.gate_session  # noqa: F401 - see conftest.py
from pytest_lmgate.spec import markers


def test_a_gate_is_parsed_once(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makefile(
        ".yaml",
        lmgate="""
        models: {die: {path: die}}
        datasets: {words: {path: words.txt}}
        gates:
          - ppl_max: {model: die, dataset: words, limit: 3}
          - no_regression: {metric: bpb, model: die, dataset: words, tolerance: 1%, against: die}
        """,
    )
    parsed: list[str] = []
    original: Any = markers._evaluation
    monkeypatch.setattr(markers, "_evaluation", lambda row, given: parsed.append(row.name) or original(row, given))
    session = pytester.inline_run("--collect-only", "lmgate.yaml")
    assert session.ret == pytest.ExitCode.OK
    assert parsed == ["ppl", "bpb"]
