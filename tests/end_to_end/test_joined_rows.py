"""Rows that are read as one text by default are told once, with the protocol that reads them one by one."""

from tests.end_to_end.projects import Project

GATES = """
    import pytest

    @pytest.mark.ppl_max("die", "rows", 1e6)
    def test_joined(): pass

    @pytest.mark.bpb_max("die", "rows", 1e6)
    def test_joined_again(): pass

    @pytest.mark.ppl_max("die", "rows", 1e6, protocol="document")
    def test_by_document(): pass

    @pytest.mark.ppl_max("die", "rows", 1e6, stride=8)
    def test_running_text(): pass

    @pytest.mark.ppl_max("die", "words", 1e6)
    def test_text_file(): pass
"""
NOTE = 'rows: 12 rows were read as one text; protocol="document"'


def test_joined_rows_are_told_once(project: Project) -> None:
    path = project.folder / "lmgate.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "  rows: {path: rows.jsonl}\n", encoding="utf-8")
    project.write(test_it=GATES, rows_jsonl="".join(f'{{"text": "w1 w2 w{number}"}}\n' for number in range(12)))
    outcome = project.run("-n", "2").expect(0, passed=5)
    assert outcome.text.count(NOTE) == 1, outcome.text
    outcome = project.run("-k", "document or running or file", torch_free=True).expect(0, passed=3)
    outcome.is_silent_on("rows were read as one text")
    path.write_text(
        path.read_text(encoding="utf-8").replace("rows.jsonl}", r'rows.jsonl, join: "\n\n"}'), encoding="utf-8"
    )
    outcome = project.run("--lmgate-report=json:report.json", torch_free=True).expect(0, passed=5)
    outcome.is_silent_on("rows were read as one text")
    assert all(gate["cached"] for gate in project.report()["gates"])
