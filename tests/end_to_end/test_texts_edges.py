"""Templates that write the date."""

from pathlib import Path

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project
from tests.end_to_end.writers import write_rows

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
