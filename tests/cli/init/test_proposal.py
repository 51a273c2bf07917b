"""What ``lmgate init`` proposes of scores: of pairs that can be compared, of pairs that cannot, and of no number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pytest_lmgate.cli.init.proposal import proposal_against, proposals
from pytest_lmgate.cli.measurements.measuring import Measuring
from pytest_lmgate.config.signature import Signature
from pytest_lmgate.errors import ComparisonError, EngineError
from pytest_lmgate.metrics.perplexity import LikelihoodStatistics, perplexity

Nll = list[float]


def session(**models: tuple[str, Nll, str]) -> Measuring:
    """Return a session in which each model has a kind, a loss in each window of a text, and a digest of its tokens."""

    def measure(metric: str, *, model: str, dataset: str) -> Any:
        _, nll, targets = models[model]
        ones, texts = np.ones(len(nll), dtype=np.int64), np.array([len(nll)])
        statistics = LikelihoodStatistics(
            nll=np.array(nll),
            window_targets=ones,
            window_document=0 * ones,
            running_text=True,
            targets=targets,
            words=texts,
            chars=texts,
            utf8_bytes=texts,
        )
        return perplexity(statistics, signature=Signature.parse("protocol:sliding"), metric=metric)

    resolver = SimpleNamespace(model=lambda name: SimpleNamespace(kind=models[name][0]))
    return cast(Measuring, SimpleNamespace(evaluator=SimpleNamespace(resolver=resolver), measure=measure))


GOOD, BETTER = [1.0, 1.2, 0.8, 1.1] * 10, [1.0, 1.1, 0.8, 1.1] * 10


def test_a_pair_on_the_same_tokens_has_the_tolerance_that_it_shows() -> None:
    one, other = proposals(session(a=("causal", GOOD, "t"), b=("causal", BETTER, "t")), ["a", "b"], "words", 0.05)
    assert "paired with b" in one.reasons[2]
    assert "paired with a" in other.reasons[2]


def test_models_that_cut_the_text_into_other_tokens_keep_the_least_tolerance() -> None:
    found = proposals(session(a=("causal", GOOD, "t"), b=("causal", BETTER, "others")), ["a", "b"], "words", 0.05)
    assert [str(each.tolerance) for each in found] == ["1%", "1%"]
    assert [each.reasons[2] for each in found] == ["tolerance 1%: at most 1% worse than today's baseline"] * 2


def test_a_pair_on_a_single_window_keeps_the_least_tolerance() -> None:
    found = proposals(session(a=("causal", [1.0], "t"), b=("causal", [1.1], "t")), ["a", "b"], "words", 0.05)
    assert [str(each.tolerance) for each in found] == ["1%", "1%"]
    assert all("it needs at least two rows, or 8 windows" in each.reasons[1] for each in found)


def test_a_model_whose_perplexity_is_infinite_has_no_limit() -> None:
    with pytest.raises(EngineError, match=r"^the perplexity of 'a' on 'words' is inf: no limit can be proposed$"):
        proposals(session(a=("causal", [1e4] * 4, "t")), ["a"], "words", 0.05)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (("masked", BETTER, "t"), "one is causal, the other is masked"),
        (("causal", BETTER, "others"), "tokens"),
    ],
)
def test_what_cannot_be_compared_is_no_pair(other: tuple[str, Nll, str], why: str) -> None:
    with pytest.raises(ComparisonError, match=f"^a and b cannot be compared: .*{why}"):
        proposal_against(session(a=("causal", GOOD, "t"), b=other), "a", "b", "words")


def test_a_model_that_is_close_to_its_original_is_gated_against_it() -> None:
    found = proposal_against(session(a=("causal", BETTER, "t"), b=("causal", GOOD, "t")), "a", "b", "words")
    assert found.against is not None
    assert found.against[0] == "b"
    assert "a is 2.5% better than b today" in found.reasons[0]
