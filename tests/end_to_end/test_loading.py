"""What libraries warn of while a model is loaded is shown."""

import json
from pathlib import Path

from tests.end_to_end.projects import Project, marked

WARNING = "model './warned' was loaded with a warning of transformers: Unrecognized keys in `rope_"


def test_a_warning_of_a_library_is_shown_once_also_from_workers_and_from_the_cache(
    project: Project, models: Path
) -> None:
    file = project.model("warned", models / "die") / "config.json"
    scaling = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16, "finetuned": True}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rope_scaling": scaling}))
    gates = {"one": "ppl_max('./warned', 'words', 60.5)", "two": "bpb_max('./warned', 'words', 60.5)"}
    fixture = "def test_three(ppl_of): assert ppl_of('./warned', 'words', stride=32) < 60.5\n"
    project.write(test_warned=marked(**gates) + fixture)
    for _ in ("measured", "from the cache"):
        outcome = project.run("-n", "2", "-W", "error", "--lmgate-report=json:report.json").expect(0, passed=3)
        assert outcome.text.count(WARNING) == 1, outcome.text
        assert [remark for remark in project.report()["remarks"] if remark.startswith(WARNING)]
