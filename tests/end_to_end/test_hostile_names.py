"""Names from files of others: shown, never obeyed by a terminal or a CI's log, and without passwords."""

import json
from pathlib import Path

from tests.end_to_end.projects import Project, marked

RED, RIGHT_TO_LEFT = "\x1b[31m", "\u202e"


def _says_nothing_that_is_obeyed(text: str) -> None:
    assert "\x1b" not in text
    assert RIGHT_TO_LEFT not in text
    assert not [line for line in text.splitlines() if line.strip().startswith("::")]


def test_names_of_a_config_and_of_lmgate_yaml_are_shown_as_escapes(measured: Project, models: Path) -> None:
    folder = measured.model("masked", models / "die")
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = [f"X\n::error::from the config{RED}{RIGHT_TO_LEFT}ForMaskedLM"]
    (folder / "config.json").write_text(json.dumps(config))
    evil = f"a\n::error::from the yaml{RED}{RIGHT_TO_LEFT}"
    measured.add("models", **{json.dumps(evil): f"path: {models}/die"})
    measured.add_gates(json.dumps({"ppl_max": {"model": evil, "dataset": "words", "limit": 1}}))
    measured.write(
        test_gate=marked(config="ppl_max('./masked', 'words', 60)", yaml=f"ppl_max({evil!r}, 'words', 60.5)"),
        test_score=f"""
            def test_score(ppl_of): assert ppl_of({evil!r}, "words") < 1

            def test_error(ppl_of): ppl_of("./masked", "words")
        """,
    )
    outcome = measured.run("-v", "--lmgate-explain-cache", "--color=no").expect(1)
    outcome.says("from the config", "from the yaml", r"\x1b[31m\u202e", "3 gates: 1 pass, 1 fail, 1 error")
    _says_nothing_that_is_obeyed(outcome.text)
    measured.write(test_gate=marked(x=f"ppl_max({evil + '.'!r}, 'words', 60)"))
    outcome = measured.run().expect(4).says(r"\x1b[31m\u202e")
    _says_nothing_that_is_obeyed(outcome.text)


def test_a_password_in_a_url_is_masked_wherever_it_would_be_shown(measured: Project) -> None:
    url = "https://user:secret@example.org/org/model"
    measured.add("models", far=f"path: '{url}'")
    measured.add_gates(f"ppl_max: {{model: '{url}', dataset: words, limit: 60}}")
    measured.write(
        test_gate=marked(named="ppl_max('far', 'words', 60)", url=f"ppl_max({url!r}, 'words', 60)"),
        test_fixture="def test_fixture(ppl_of): ppl_of('far', 'words')\n",
    )
    options = ("--lmgate-report", "json:report.json", "--junitxml", "junit.xml", "--tb=line", "-v")
    outcome = measured.run(*options).expect(1, failed=1, error=3).says("https://***@example.org/org/model")
    written = [(measured.folder / name).read_text(encoding="utf-8") for name in ("report.json", "junit.xml")]
    assert not [text for text in (outcome.text, *written) if "secret" in text]
