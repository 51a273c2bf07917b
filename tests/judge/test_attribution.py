"""Where, and by which tags, a model got worse than its baseline, by an engine whose losses are those of letters."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.engines.base import Backend, Model, ModelEntry, Runner
from pytest_lmgate.errors import EngineError
from pytest_lmgate.judge.attribution import Attribution, tag_changes, with_rows
from pytest_lmgate.judge.baseline import Baselines, write_baseline
from pytest_lmgate.judge.judge import Judge
from pytest_lmgate.judge.result import Verdict
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.metrics.likelihoods import ChoiceStatistics, LikelihoodStatistics, accuracy, perplexity
from pytest_lmgate.settings.decoding import parse_marker
from pytest_lmgate.settings.file import load_project
from pytest_lmgate.settings.gate_options import Signature
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.settings.session import Options
from pytest_lmgate.stats.paired import compare
from pytest_lmgate.stats.sample import Sample
from pytest_lmgate.windows.requests import Request
from pytest_lmgate.windows.tokens import TokenizerFacts

LETTERS = TokenizerFacts(lambda text, _: [ord(letter) for letter in text], decode=chr)


class Reader(Runner):
    """Reads letters; those of a file cost more than the others."""

    is_tried = True  # what letters cost is no distribution

    tokenizer = LETTERS

    def __init__(self, costs: dict[str, float]) -> None:
        self._costs = costs

    def score(self, requests: Sequence[Request]) -> list[np.ndarray]:
        return [np.array([self._costs.get(chr(token), 1.0) for token in each.targets]) for each in requests]


class Readers(Backend):
    """A file of JSON that says what letters cost, in nats; `tells` returns the tokenizer without loading the model."""

    name, suffixes = "reader", (".costs",)

    def __init__(self, tells: Callable[[], TokenizerFacts] | None = lambda: LETTERS) -> None:
        self._tells = tells

    def describe(self, entry: ModelEntry) -> Model:
        file, offers = entry.path(entry.spec.path), frozenset({"score"})
        facts: dict[str, Any] = {"context": 64, "content": {"costs": entry.digest(file)}, "runtime": {}}
        return Model(
            entry.name, lambda: Reader(json.loads(file.read_bytes())), offers=offers, tokenizer=self._tells, **facts
        )


class Found:
    """Rows, and a model that gets worse than its baseline at the letter z."""

    def __init__(self, folder: Path, rows: Sequence[str], engine: Backend) -> None:
        self.folder, self.engine = folder, engine
        lines = [json.dumps({"text": row, "half": "ab"[2 * at // len(rows)]}) for at, row in enumerate(rows)]
        (folder / "rows.jsonl").write_text("".join(f"{line}\n" for line in lines))
        (folder / "text.txt").write_text("\n".join(rows))
        (folder / "lmgate.yaml").write_text(
            "models:\n  model: {path: model.costs, batch_size: 4096}\n  good: {path: good.costs, batch_size: 4096}\n"
            "datasets:\n  rows: {path: rows.jsonl, tags: half}\n  text: {path: text.txt}\n"
        )
        (folder / "good.costs").write_text("{}")

    def verdict(self, costs: dict[str, float], metric: str, dataset: str, update: str = "", **how: Any) -> Verdict:
        (self.folder / "model.costs").write_text(json.dumps(costs))
        options = Options(cache=self.folder / ".lmgate_cache")
        evaluator = Evaluator(load_project(self.folder), options, users_backends={self.engine.name: self.engine})
        judge = Judge(evaluator, options, Baselines(self.folder / "lmgate-baseline.json", update))
        gate = parse_marker("no_regression", (metric, "model", dataset, "1%"), how)
        verdict, unexpected = judge.judge(judge.evaluator.bind_gate(gate), "gate", "gate")
        assert unexpected is None
        if update:
            write_baseline(self.folder / "lmgate-baseline.json", update, judge.entries, used=None)
        return verdict

    def against_baseline(self, metric: str, dataset: str = "rows", **how: Any) -> Verdict:
        self.verdict({}, metric, dataset, update="all", **how)
        return self.verdict({"z": 5.0}, metric, dataset, **how)

    def against_good(self, metric: str, **how: Any) -> Verdict:
        return self.verdict({"z": 5.0}, metric, "rows", against="good", **how)


Finds = Callable[..., Found]


@pytest.fixture
def found(tmp_path: Path) -> Finds:
    return lambda rows, engine=None: Found(tmp_path, rows, engine or Readers())


def where(verdict: Verdict) -> Attribution:
    assert verdict.verdict in ("fail", "inconclusive"), verdict.message
    return verdict.where


def rows_of(place: str) -> range:
    """The rows that a place names."""
    first, _, last = place.removeprefix("rows ").removeprefix("row ").partition(" to ")
    return range(int(first), int(last or first) + 1)


# More rows than a baseline keeps one by one. A letter of the first half has two bytes, of the second half one.
MANY = ["é" * (6 + at % 5) if at < 300 else "a" * (6 + at % 5) for at in range(600)]
BAD = 450
MANY[BAD] = "zzzzz" + MANY[BAD]


@pytest.mark.parametrize(
    ("metric", "how", "size"),
    [
        ("ppl", {"protocol": "document"}, lambda row: len(row) - 1),
        ("bpb", {"protocol": "document"}, lambda row: len(row[1:].encode())),
        ("bpb", {"max_length": 8}, None),
        ("ppl", {"protocol": "gptq", "max_length": 4}, None),
    ],
)
def test_of_more_rows_than_a_baseline_keeps_the_neighbours_of_the_worst_are_named(
    found: Finds, metric: str, how: dict[str, Any], size: Callable[[str], int] | None
):
    told = where(found(MANY).against_baseline(metric, **how))
    worst, *others = told.passages
    assert others == []
    assert BAD in rows_of(worst.place)
    assert len(rows_of(worst.place)) <= 4
    named = [MANY[row] for row in rows_of(worst.place)]
    assert worst.begins == named[0]
    assert size is None or worst.count == sum(map(size, named))


def test_averaged_windows_that_all_begin_in_one_row_are_named_by_their_tokens(found: Finds):
    # 51 windows of 4 tokens, of which the last one alone reaches into the second row.
    rows = ["a" * 100 + "z" * 8 + "a" * 92, "bb"]
    verdict = found(rows).against_baseline("ppl", protocol="gptq", max_length=4)
    assert [passage.place for passage in where(verdict).passages] == ["tokens 101 to 103", "tokens 105 to 107"]
    assert (verdict.comparison.clusters, verdict.comparison.clustered_by) == (51, "blocks")


@pytest.mark.parametrize(
    ("engine", "places"),
    [
        (Readers(), ["tokens 100 to 103", "tokens 104 to 107"]),
        (Readers(tells=None), ["block 24 of 49", "block 25 of 49"]),
    ],
)
def test_a_running_text_is_named_by_blocks_where_no_tokenizer_tells_tokens(found: Finds, engine: Backend, places: Any):
    told = where(found(["a" * 100 + "z" * 8 + "a" * 92], engine).against_baseline("ppl", "text", max_length=8))
    assert [passage.place for passage in told.passages] == places


def lost() -> TokenizerFacts:
    raise OSError("the letters are gone")


def refused() -> TokenizerFacts:
    raise EngineError("the letters are of another model")


@pytest.mark.parametrize(
    ("tokenizer", "passages", "note"),
    [
        (lost, [], "it is unknown where the model got worse: OSError: the letters are gone"),
        (refused, [], "the letters are of another model"),
        (None, [("row 1", 12.0, "azzz"), ("row 2", 8.0, "azza")], "loading the model, so its tokens are unknown"),
    ],
)
def test_without_a_tokenizer_the_verdict_its_tags_and_a_note_stay(
    found: Finds, tokenizer: Any, passages: Any, note: str
):
    rows = ["aaaa", "azzz", "azza"] + ["aaaa"] * 17
    told = where(found(rows, Readers(tells=tokenizer)).against_good("ppl", protocol="document"))
    assert [(passage.place, passage.rise, passage.begins) for passage in told.passages] == passages
    assert told.tags[0].value == "a"
    assert told.notes[0].endswith(note)


LENGTHS = np.array([3, 0, 5, 4, 2, 6])
TAGS = {"language": ("ko", "ko", "en", "ko", "en", "en")}
PERCENT = Tolerance(0.01, relative=True)
SIGNATURE = Signature.parse("protocol:document")


def likelihoods(seed: int, shift: np.ndarray | float = 0.0) -> LikelihoodStatistics:
    rows = np.repeat(np.arange(6), LENGTHS)
    drawn = np.random.default_rng(seed).exponential(size=20)
    return LikelihoodStatistics(
        nll=drawn + np.asarray(shift) * (np.array([1, 1, 0, 1, 0, 0])[rows]),
        window_targets=LENGTHS[LENGTHS > 0],
        window_document=np.flatnonzero(LENGTHS),
        running_text=False,
        row_targets=LENGTHS,
        words=LENGTHS + 1,
        chars=5 * LENGTHS + 1,
        utf8_bytes=6 * LENGTHS + 1,
        scored=np.stack([LENGTHS + 1, 5 * LENGTHS + 1, 6 * LENGTHS + 1], axis=1).astype(np.float64),
    )


def sample(statistics: LikelihoodStatistics, **how: str) -> Sample:
    return perplexity(statistics, signature=SIGNATURE, **how).sample


@pytest.mark.parametrize("unit", ["token", "word", "byte", "bits_per_byte"])
def test_a_tag_is_compared_as_its_rows_alone_would_be(unit: str) -> None:
    here, there = sample(likelihoods(1, 1.0), unit=unit), sample(likelihoods(1), unit=unit)
    (worse, same), more = tag_changes(here, there, TAGS, tolerance=PERCENT, confidence=0.95)
    assert (worse.value, worse.rows, same.value, same.rows, more) == ("ko", 3, "en", 3, 0)
    kept = np.array([True, True, False, True, False, False])
    alone = []
    for statistics in (likelihoods(1, 1.0), likelihoods(1)):
        part = replace(
            statistics,
            nll=statistics.nll[kept[np.repeat(np.arange(6), LENGTHS)]],
            window_targets=np.array([3, 4]),
            window_document=np.array([0, 2]),
            row_targets=LENGTHS[kept],
            words=statistics.words[kept],
            chars=statistics.chars[kept],
            utf8_bytes=statistics.utf8_bytes[kept],
            scored=None if statistics.scored is None else statistics.scored[kept],
        )
        alone.append(sample(part, unit=unit))
    found = compare(*alone, tolerance=PERCENT, confidence=0.975)  # two tags, so that both hold together at 95%
    assert (worse.degradation, worse.lower, worse.upper) == pytest.approx((found.degradation, found.lower, found.upper))
    assert (worse.candidate, worse.reference) == pytest.approx((found.candidate, found.reference))
    assert worse.is_worse == (unit in ("token", "byte"))
    assert (same.degradation, same.is_worse) == (0, False)


def test_a_tag_of_every_row_is_no_tag_and_one_of_unscored_rows_says_so() -> None:
    here, there = sample(likelihoods(1, 1.0)), sample(likelihoods(1))
    tags = {"all": ("x",) * 6, "some": ("a", "b", "a", "a", "a", "a")}
    found, _ = tag_changes(here, there, tags, tolerance=PERCENT, confidence=0.95)
    assert [(each.value, each.problem) for each in found] == [("a", ""), ("b", "no target of these rows was scored")]


def test_rows_that_are_right_or_wrong_are_compared_by_tango_tag_by_tag() -> None:
    def of(right: list[int]) -> Sample:
        values = np.array([[0.0, -1.0] if each else [-1.0, 0.0] for each in right]).reshape(-1)
        sizes, is_right = np.ones(2 * len(right), dtype=np.int64), np.array([True, False] * len(right))
        found = ChoiceStatistics(values, sizes, sizes, np.full(len(right), 2), is_right)
        return accuracy(found, signature=SIGNATURE).sample

    tags = {"kind": ("a",) * 20 + ("b",) * 20}
    here, there = of([0] * 15 + [1] * 25), of([1] * 40)
    tolerance = Tolerance(0.05, relative=False)
    (worse, same), _ = tag_changes(here, there, tags, tolerance=tolerance, confidence=0.95)
    alone = compare(of([0] * 15 + [1] * 5), of([1] * 20), tolerance=tolerance, confidence=0.975)
    assert (worse.value, worse.degradation, worse.lower) == ("a", 0.75, pytest.approx(alone.lower))
    assert alone.bounds == "tango"
    assert (same.degradation, same.is_worse) == (0, False)
    kept = with_rows(replace(there, by_row=None), here)
    assert tag_changes(here, kept, tags, tolerance=tolerance, confidence=0.95)[0][0] == worse
