"""Samples of rows and beginnings of texts, through lmgate.yaml."""

import json
from pathlib import Path

import pytest

from tests.end_to_end.dice import DiceProject


@pytest.fixture
def dice(tmp_path: Path) -> DiceProject:
    project = DiceProject.at(tmp_path).models(die={})
    rows = [{"text": "ab " * (index + 1), "kind": "ab"[index % 2], "row": index} for index in range(10)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return project


def _gates(project: DiceProject, **datasets: str) -> DiceProject:
    """Add datasets, and a gate on each."""
    gate = "ppl_max: {{model: die, dataset: {}, limit: 6.01, protocol: document}}"
    project.add("datasets", **datasets).add_gates(*map(gate.format, datasets))
    return project


def test_gates_measure_the_rows_that_were_drawn_and_the_beginning_of_a_text(dice: DiceProject) -> None:
    rows = "path: rows.jsonl, sample: "
    _gates(
        dice,
        first=f"{rows}{{rows: 4}}",
        second=f"{rows}{{rows: 4, seed: 1}}",
        by_kind=f"{rows}{{rows: 4, by: kind}}",
        start="path: one.txt, tokens: 100",
    )
    dice.run("--lmgate-report", "json:report.json").expect(0, passed=4)

    # A row of number i has 3 * (i + 1) characters, which are tokens, the first of which is no target.
    of_rows = [sum(3 * (row + 1) - 1 for row in drawn) for drawn in ((1, 2, 4, 6), (1, 3, 5, 6), (1, 4, 6, 7))]
    assert [gate["n"] for gate in dice.report()["gates"]] == [*of_rows, 99]
    dice.run().expect(0, passed=4)
    assert len(dice.loaded) == 1, "the second session should find all in the cache"


def test_a_measure_per_byte_refuses_a_text_cut_by_tokens(dice: DiceProject) -> None:
    _gates(dice, few="path: one.txt, tokens: 100")
    dice.change("ppl_max", "bpb_max").run().expect(1, error=1).says(
        "dataset 'few': tokens: ", "these would read different texts"
    )
