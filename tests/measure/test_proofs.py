"""What proved a model is not proved again, by its content; a damaged, foreign or forged proof proves nothing."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.cache.files import read_sealed, write_sealed
from pytest_lmgate.engines.transformers import runner
from pytest_lmgate.errors import ModelError
from pytest_lmgate.measure import trials
from pytest_lmgate.settings.gate_options import WindowProtocol
from pytest_lmgate.settings.gates import EvaluationSpec
from pytest_lmgate.settings.session import CacheKey
from tests.models.looking_ahead import LookingAhead

WHOLE = {"try_out": 1, "prove_head": 1, "_is_invariant": 1}


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each whole trial was made."""
    counts: Counter[str] = Counter()

    def watch(owner: Any, name: str) -> None:
        plain: Callable[..., Any] = getattr(owner, name)

        def counted(*given: Any, **how: Any) -> Any:
            counts[name] += 1
            return plain(*given, **how)

        monkeypatch.setattr(owner, name, counted)

    watch(trials, "try_out")
    watch(runner, "prove_head")
    watch(runner.TransformersRunner, "_is_invariant")
    return counts


def measure(session: Any, dataset: str = "text", model: str = "float", **how: Any) -> Any:
    return session.evaluator.evaluate(EvaluationSpec("ppl", model, dataset, WindowProtocol(max_length=30, **how)))


def proof(workplace: Any) -> Path:
    (found,) = (path for path in (workplace.folder / ".lmgate_cache" / "proofs").rglob("*") if path.is_file())
    return found


def test_a_model_is_tried_once_in_a_session_and_not_at_all_in_the_next(workplace: Any, tried: Counter[str]) -> None:
    session = workplace.session()
    measure(session)
    assert tried == WHOLE
    one = measure(session, stride=7)
    assert tried == WHOLE
    later = workplace.session()
    rows = measure(later, "rows", name="document", stride=3)
    # The rows have more than two lengths, which no trial has seen so far.
    assert tried == {**WHOLE, "_is_invariant": 2}
    measure(later, "rows", name="lm-eval")
    again = measure(workplace.session(), stride=7)
    assert again.cached
    tried.clear()
    fresh = workplace.session(cache=workplace.folder / "other")
    assert [measure(fresh, stride=7), measure(fresh, "rows", name="document", stride=3)] == [one, rows]
    assert tried == {**WHOLE, "_is_invariant": 2}


def test_another_model_refresh_and_verify_rest_on_no_proof(pair: Any, tried: Counter[str]) -> None:
    measure(pair.session())
    for options, model in (({}, "other"), ({"refresh": True}, "float")):
        tried.clear()
        measure(pair.session(**options), model=model)
        assert tried == WHOLE
    tried.clear()
    session = pair.session(verify=9)
    measure(session)
    measure(session, stride=7)  # by the proof
    assert tried == {}
    assert session.evaluator.measurements.verify().verified == 1
    assert tried == WHOLE


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda kept: {**kept, "model": kept["model"].replace("trials", "tried")}, WHOLE),
        (lambda kept: {**kept, "proofs": dict.fromkeys(kept["proofs"], "yes")}, WHOLE),
        (lambda kept: {**kept, "proofs": {**kept["proofs"], "head": 99}}, {"prove_head": 1}),
        (lambda kept: b"[" * 100_000, WHOLE),
        ("damaged", WHOLE),
    ],
)
def test_a_proof_that_is_damaged_or_of_another_model_proves_nothing(
    workplace: Any, tried: Counter[str], change: Any, expected: dict[str, int]
) -> None:
    first, path = measure(workplace.session()), proof(workplace)
    if change == "damaged":
        path.write_bytes(path.read_bytes()[:-2] + b"!}")
    else:
        changed = change(json.loads(read_sealed(path)))
        write_sealed(path, changed if isinstance(changed, bytes) else json.dumps(changed).encode())
    tried.clear()
    session = workplace.session()
    assert measure(session, stride=7) != first
    assert tried == expected
    assert session.warnings == []


def test_a_proof_without_a_signature_is_not_believed_where_there_is_a_key(workplace: Any, tried: Counter[str]) -> None:
    measure(workplace.session())
    tried.clear()
    measure(workplace.session(cache_key=CacheKey(b"a key of the team")), stride=7)
    assert tried == WHOLE


def test_a_forged_proof_lets_no_model_pass_that_looks_ahead(workplace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(workplace.session())
    forged = json.loads(read_sealed(proof(workplace)))["proofs"]
    assert forged["causal"] is True
    load: Callable[..., Any] = runner.TransformersRunner.__init__

    def peeking(self: Any, loaded: Any, context: int | None) -> None:
        load(self, replace(loaded, model=LookingAhead(loaded.model, 1)), context)

    monkeypatch.setattr(runner.TransformersRunner, "__init__", peeking)
    with pytest.raises(ModelError, match="perplexity is undefined for the model 'float'"):
        measure(workplace.session(), stride=7)
