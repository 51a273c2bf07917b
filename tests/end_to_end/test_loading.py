"""How a model is loaded: what libraries warn of is shown, and options of its tokenizer count."""

import json
from pathlib import Path

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project, marked

WARNING = "model './warned' was loaded with a warning of transformers: Unrecognized keys in `rope_"
REPORTS = ("json:report.json", "markdown:report.md", "html:report.html")


@pytest.fixture
def warned(project: Project, models: Path) -> Project:
    """A project with a model of which transformers warns, since nothing uses a key of its config.json."""
    file = project.model("warned", models / "die") / "config.json"
    scaling = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16, "finetuned": True}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rope_scaling": scaling}))
    gates = {"one": "ppl_max('./warned', 'words', 60.5)", "two": "bpb_max('./warned', 'words', 60.5)"}
    fixture = "def test_three(ppl_of): assert ppl_of('./warned', 'words', stride=32) < 60.5\n"
    return project.write(test_warned=marked(**gates) + fixture, conftest=COUNT_MEASUREMENTS)


def test_what_a_library_warns_of_is_shown_once_a_model_also_from_workers_and_from_the_cache(warned: Project) -> None:
    options = [part for report in REPORTS for part in ("--lmgate-report", report)]
    for workers, measured in (("0", 2), ("2", 2), ("2", 4)):
        refresh = ["--lmgate-refresh"] if measured == 4 else []
        outcome = warned.run("-n", workers, "-W", "error", *options, *refresh).expect(0, passed=3)
        assert len(warned.measured) == measured
        assert outcome.text.count(WARNING) == 1, outcome.text
        assert [remark for remark in warned.report()["remarks"] if remark.startswith(WARNING)]
        assert WARNING.replace("`", "") in (warned.folder / "report.md").read_text().replace("`", "")
        assert "was loaded with a warning of transformers" in (warned.folder / "report.html").read_text()
