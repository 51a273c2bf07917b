"""Rows that are drawn, rows of which several texts are drawn, and chats with the date."""

import json
from pathlib import Path

import pytest

from tests.end_to_end.dice import DiceProject
from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project, marked
from tests.end_to_end.writers import CHAINS, write_rows


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
    dice.run().expect(0, passed=4).says("4 measurements (4 cached)")
    changed = dice.change("ppl_max: {model: die, dataset: start", "bpb_max: {model: die, dataset: start")
    changed.run().expect(4).says("dataset 'start': tokens: ", "these would read different texts")


WORDS = [word for chain in CHAINS for word in chain]


@pytest.fixture
def project(writing: Project) -> Project:
    rows, draws = 'path: drawn.jsonl, prompt: "{start}", references: half', "temperature: 1, seed: 3, max_new_tokens: 1"
    write_rows(writing, "drawn", [{"start": word, "half": WORDS[::2]} for word in WORDS])
    writing.add("datasets", drawn=f"{rows}, repeats: 4, {draws}", plain=rows)
    return writing.write(conftest=COUNT_MEASUREMENTS)


def test_rows_are_written_several_times_and_one_generation_serves_all_variants(project: Project) -> None:
    project.write(
        test_repeats="""
            import itertools
            import pytest

            @pytest.mark.exact_min("even", "drawn", 0.01, variant="pass@4")
            @pytest.mark.no_regression("exact", "even", "drawn", 0.0, against="even", same=True)
            def test_gates(): pass

            def test_values(exact_of):
                mean = exact_of("even", "drawn")
                once = exact_of("even", "plain", temperature=1, seed=3, max_new_tokens=1)
                passed = [exact_of("even", "drawn", variant=f"pass@{k}").value for k in (1, 2, 3, 4)]
                assert 0 < mean.value == pytest.approx(passed[0])
                assert all(less < more for less, more in itertools.pairwise(passed))
                assert mean.n == once.n == mean.details["clusters"]
                assert "repeats:4" in mean.signature and "repeats" not in once.signature
                assert mean.details["matches"] == round(4 * mean.n * mean.value)
                assert 0 < exact_of("even", "drawn", variant="majority").value < passed[3]
        """
    )
    project.run().expect(0, passed=2)
    assert project.measured.count("even") == 2


WRONG = {
    "'plain', 0.1, repeats=4": "repeats: without sampling all texts are the same",
    "'plain', 0.1, repeats=0": "repeats: expected a whole number from 1",
    "'plain', 0.1, variant='pass@2'": "expected repeats=2 or more",
    "'drawn', 0.1, variant='pass@5'": "expected repeats=5 or more",
    "'drawn', 0.1, variant='pass@0'": "variant: expected an extraction of the dataset",
}


def test_repeats_that_mean_nothing_are_an_error(project: Project) -> None:
    project.write(test_bad=marked(**{f"_{at}": f"exact_min('even', {each})" for at, each in enumerate(WRONG)}))
    project.run(torch_free=True).expect(4).says(*WRONG.values())
    assert not project.measured


# Moves the clock of chat templates by DAYS.
MOVED_CLOCK = """
    import datetime, os, types
    import transformers.utils.chat_template_utils as templates

    def now():
        return datetime.datetime(2026, 1, 1) + datetime.timedelta(days=int(os.environ["DAYS"]))

    templates.datetime = types.SimpleNamespace(now=now)  # a class would be a patch of the library, and nothing is kept
"""
ROWS = [{"q": "one", "a": "two three four five six seven", "c": ["two", "six"], "r": 0}]


@pytest.fixture
def dated(writing: Project, writers: Path) -> Project:
    """A project whose model `dated` has a template that writes the date, unless its variable `day` is given."""
    folder = writing.model("dated", writers / "counter")
    template = "{{ day if day is defined else strftime_now('%Y %j') }} {{ messages[-1].content }} "
    (folder / "chat_template.jinja").write_text(template)
    write_rows(writing, "chats", ROWS)
    texts = "path: chats.jsonl, chat: true, source: q, references: a"
    asked = "path: chats.jsonl, chat: true, question: q, choices: c, answer: r"
    writing.add("models", dated="path: dated")
    writing.add("datasets", texts=texts, asked=asked, pinned=f"{texts}, chat_template_kwargs: {{day: Monday}}")
    return writing.write(conftest=MOVED_CLOCK + COUNT_MEASUREMENTS)


def test_chats_with_the_date_are_measured_again_on_another_day_unless_it_is_pinned(dated: Project) -> None:
    dated.add_gates(
        "exact_min: {model: dated, dataset: texts, limit: 1}",
        "accuracy_min: {model: dated, dataset: asked, limit: 1}",
        "exact_min: {model: dated, dataset: pinned, limit: 1}",
    )

    def run(days: int) -> list[tuple[str, bool]]:
        done = dated.run("--lmgate-report", "json:report.json", env={"DAYS": str(days)}).expect(0, passed=3)
        for data in ("texts", "asked"):
            done.says(f"writes the date (strftime_now) into {data}, ")
        done.is_silent_on("into pinned")
        return [(gate["fingerprint"], gate["cached"]) for gate in dated.report()["gates"]]

    first = run(0)
    assert [cached for _, cached in first] == [False] * 3
    assert run(0) == [(address, True) for address, _ in first]
    later = run(40)
    assert [cached for _, cached in later] == [False, False, True]
    assert [one == other for (one, _), (other, _) in zip(first, later, strict=True)] == [False, False, True]
    assert len(dated.measured) == 5
