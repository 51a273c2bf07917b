"""Divergence by sampling: against whole distributions on the same texts, planted faults, and what is refused."""

import dataclasses
import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.cache.store import find_entries
from pytest_lmgate.engines.transformers.runner import TransformersRunner
from pytest_lmgate.errors import EngineError, ModelError, NonFiniteError
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.decoding import parse_fixture_call
from tests.measure.conftest import ALPHABET, make_model, make_tokenizer
from tests.measure.entries import entry, write_rows

EXAMPLE = Path(__file__).parents[2] / "example_project"
NEW = 12
ROWS = 100


@pytest.fixture
def many(pair: Any) -> Any:
    """The workplace with another model, and 100 rows to begin with."""
    letters = random.Random(0)
    rows = [{"text": "".join(letters.choices(ALPHABET[:26], k=6))} for _ in range(ROWS)]
    entry(pair, "many", path=write_rows(pair, "many", rows))
    return pair


def measured(session: Any, fixture: str, *args: Any, **how: Any) -> tuple[Score, Any]:
    what = parse_fixture_call(fixture, args, {"max_new_tokens": NEW, **how})
    return session.evaluator.evaluate(what), session.evaluator.cached_statistics(what)[1]


def sampled(session: Any, model: Any = "other", reference: Any = "float", data: Any = "many", **how: Any) -> Score:
    return measured(session, "kl_of", model, reference, data, estimator="sampled", **how)[0]


def texts_of(session: Any, model: Any, data: Any = "many") -> tuple[Any, list[np.ndarray]]:
    _, found = measured(session, "self_kl_of", model, data)
    return found, np.split(found.ids, np.cumsum(found.prompt_tokens + found.window_targets)[:-1])


def test_the_estimate_is_that_of_whole_distributions_on_the_same_texts(many: Any) -> None:
    import torch

    session = many.session()
    score, statistics = measured(session, "kl_of", "other", "float", "many", estimator="sampled")
    written, texts = texts_of(session, "float")
    kl, nll = [], []
    models = [make_model(seed=seed) for seed in (0, 1)]
    for ids, begin in zip(texts, written.prompt_tokens.tolist(), strict=True):
        with torch.no_grad():
            p, q = (
                model(torch.tensor(ids)[None]).logits[0, begin - 1 : -1].double().log_softmax(-1) for model in models
            )
        kl += (p.exp() * (p - q)).sum(-1).tolist()
        nll += [[-float(each[at, token]) for each in (p, q)] for at, token in enumerate(ids[begin:])]
    np.testing.assert_allclose(np.stack([statistics.nll_p, statistics.nll_q], 1), nll, atol=1e-5)
    np.testing.assert_allclose(written.nll_p, statistics.nll_p, atol=1e-5)
    assert score.interval[0] < np.mean(kl) < score.interval[1]
    assert (score.n, score.details["clusters"]) == (len(kl), ROWS)
    assert "KL(reference, model)|estimator:sampled|max_new_tokens:12|seed:0|" in score.signature


def test_a_text_ends_with_its_end_token_which_counts(many: Any) -> None:
    written, texts = texts_of(many.session(), "float")
    end = make_model().config.eos_token_id
    ended = [ids[-1] == end for ids in texts]
    assert 0 < sum(ended) < ROWS
    assert all((count == NEW) or is_end for count, is_end in zip(written.window_targets, ended, strict=True))
    assert not any(end in ids[begin:-1] for ids, begin in zip(texts, written.prompt_tokens, strict=True))


def truncation(runner: Any, prompts: Any, write: Callable[[Any], Any]) -> Any:
    """Write after the last eight tokens of a prompt only."""
    return write([dataclasses.replace(prompt, ids=prompt.ids[-8:]) for prompt in prompts])


def colder(runner: Any, prompts: Any, write: Callable[[Any], Any]) -> Any:
    """Write at temperature 0.7."""
    with runner.loaded.model.lm_head.register_forward_hook(lambda _, __, logits: logits / 0.7):
        return write(prompts)


@pytest.mark.parametrize("fault", [truncation, colder])
def test_a_fault_of_the_engine_shows_against_the_model_itself(
    workplace: Any, monkeypatch: pytest.MonkeyPatch, fault: Callable[..., Any]
) -> None:
    import transformers

    plain = TransformersRunner.sample

    def sample(runner: Any, prompts: Any, settings: Any) -> Any:
        return fault(runner, prompts, lambda some: plain(runner, some, settings))

    monkeypatch.setattr(TransformersRunner, "sample", sample)
    lines = (EXAMPLE / "data" / "bulletins.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines[:20]]
    folder = EXAMPLE / "models" / "float"  # of a model that has learned a language
    kinds = transformers.AutoModelForCausalLM, transformers.AutoTokenizer
    model, tokenizer = (kind.from_pretrained(folder) for kind in kinds)
    found, _ = measured(workplace.session(), "self_kl_of", (model.float(), tokenizer), texts, max_new_tokens=24)
    assert found > 0.01


def test_a_token_that_the_candidate_rules_out_is_an_error_that_names_it(many: Any) -> None:
    import torch

    model = make_model(seed=1)
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(len(ALPHABET) + 1).index_fill(0, torch.tensor([5]), -math.inf))
    name = re.escape(repr(make_tokenizer().decode([5])))
    with pytest.raises(NonFiniteError, match=rf"infinite log-likelihood of the token {name} \(id 5\), .* of text \d+"):
        sampled(many.session(), (model, make_tokenizer()))


def test_a_tokenizer_that_makes_other_tokens_of_the_same_vocabulary_is_an_error(many: Any) -> None:
    file = many.folder / "models" / "other" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    swapped = {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}
    file.write_text(json.dumps({**tokenizer, "normalizer": swapped}))
    entry(many, "many", limit=9)
    for estimator in ("sampled", "exact"):
        how = {"estimator": estimator, "max_new_tokens": NEW if estimator == "sampled" else None}
        with pytest.raises(ModelError, match=r"they tokenize the text of 'many' differently.*bpb_max"):
            measured(many.session(), "kl_of", "other", "float", "many", **how)


def test_a_shorter_context_is_an_error(many: Any) -> None:
    config = many.folder / "models" / "other" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 16}))
    entry(many, "many", limit=9)
    with pytest.raises(ModelError, match=r"model 'other' reads 16 tokens.*lower max_new_tokens"):
        sampled(many.session())


@pytest.mark.parametrize(
    "drawn", [([], []), ([1] * (NEW + 1), [1.0] * (NEW + 1)), ([1, 2], [1.0]), ([1], [-1.0]), ([1], [math.nan])]
)
def test_what_an_engine_draws_is_checked(many: Any, monkeypatch: pytest.MonkeyPatch, drawn: Any) -> None:
    monkeypatch.setattr(TransformersRunner, "sample", lambda _, prompts, __: [drawn] * len(prompts))
    with pytest.raises(EngineError, match=r"model 'float': expected .* that it draws"):
        measured(many.session(), "self_kl_of", "float", "many")


def test_each_entry_tells_the_speed_of_its_own_measurement(many: Any) -> None:
    """A plan estimates by it; the candidate reads what the reference has written and read in a measurement before."""
    session = many.session()
    sampled(session)
    facts = {entry.kind.partition("/")[0]: entry.facts for entry in find_entries(many.folder / ".lmgate_cache")}
    _, texts = texts_of(session, "float")
    read = sum(len(ids) - 1 for ids in texts)
    assert [facts[kind]["tokens"] for kind in ("sampled-divergence", "self-divergence")] == [read, read]
    latest = session.progress[-1]
    assert facts["sampled-divergence"]["seconds"] == latest.seconds != facts["self-divergence"]["seconds"]
