"""Samples of rows and beginnings of texts, through lmgate.yaml."""

import json

from tests.end_to_end.dice import DiceProject


def test_gates_measure_the_rows_that_were_drawn_and_the_beginning_of_a_text(dice: DiceProject) -> None:
    rows = [{"text": "ab " * (index + 1), "kind": "ab"[index % 2], "row": index} for index in range(10)]
    (dice.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawn = {"first": "{rows: 4}", "second": "{rows: 4, seed: 1}", "by_kind": "{rows: 4, by: kind}"}
    datasets = {name: f"path: rows.jsonl, sample: {sample}" for name, sample in drawn.items()}
    dice.models(die={}).add("datasets", **datasets, start="path: one.txt, tokens: 100")
    gate = "ppl_max: {{model: die, dataset: {}, limit: 6.01, protocol: document}}".format
    dice.add_gates(*map(gate, [*drawn, "start"])).run("--lmgate-report", "json:report.json").expect(0, passed=4)
    # A row of number i has 3 * (i + 1) characters, which are tokens, the first of which is no target.
    of_rows = [sum(3 * (row + 1) - 1 for row in drawn) for drawn in ((1, 2, 4, 6), (1, 3, 5, 6), (1, 4, 6, 7))]
    assert [gate["n"] for gate in dice.report()["gates"]] == [*of_rows, 99]
    dice.run().expect(0, passed=4)
    assert len(dice.loaded) == 1, "the second session should find all in the cache"
    dice.change("ppl_max: {model: die, dataset: start", "bpb_max: {model: die, dataset: start").run().expect(4).says(
        "dataset 'start': tokens: ", "these would read different texts"
    )
