"""What terminals and CI logs show: within 80 columns, on its lines, and obeyed by none of them."""

import json
import re
from pathlib import Path

from tests.end_to_end.projects import Project, marked

GATES = """
    import pytest

    @pytest.mark.ppl_max("die", "words", 60.5)
    @pytest.mark.ppl_max("a-model-whose-name-is-rather-long", "w\xf6rter", 60.5)
    def test_limits(): pass

    @pytest.mark.no_regression("ppl", "die", "words", "1%", against="a-model-whose-name-is-rather-long", same=True)
    @pytest.mark.no_regression("bpb", "sure", "words", "1%", against="die")
    def test_compared(ppl_of): ppl_of("die", "words")
"""


def test_the_summary_fits_80_columns_in_ascii_without_colours(measured: Project) -> None:
    die, words = re.findall(r"(?:die|words): {(path: .*)}", measured.settings)
    measured.add("models", **{"a-model-whose-name-is-rather-long": die}).add("datasets", **{"w\xf6rter": words})
    measured.write(test_gates=GATES)
    measured.write(narrow="import sys\nsys.stdout = open(1, 'w', encoding='ascii', closefd=False)")
    outcome = measured.with_torch.run("-p", "narrow", "--color=no", env={"COLUMNS": "80"}).expect(1, passed=1, failed=1)
    assert "\x1b" not in outcome.text
    assert outcome.out.isascii()
    own = outcome.out[outcome.out.index(" lmgate: ") :].splitlines()
    tables = [line for line in own if line.startswith(("verdict", "PASS", "FAIL  "))]
    assert len(tables) == 6
    # An escape is written by pytest, when the table is made.
    assert max(len(line.replace("\\xf6", "o")) for line in tables) <= 80, tables
    assert "w\\xf6rter" in "".join(tables)


ANNOTATED = '''
    import pytest

    pytestmark = pytest.mark.bpb_max("sure", "words", 0.1)

    @pytest.mark.parametrize("x", [1])
    @pytest.mark.ppl_max("die", "words", 59.5)
    @pytest.mark.ppl_max(
        "sure",
        "words",
        59.5,
    )
    def test_gate(x): pass

    @pytest.mark.ppl_max("die", "words", 56.5)
    class TestClass:
        @pytest.mark.skipif(False, reason="""slow: ppl_max
        class of models""")
        @pytest.mark.ppl_max("die", "words", 60.5)
        @pytest.mark.ppl_max("die", "words", 58.5)
        async def test_method(self): pass

    @pytest.mark.xfail
    @pytest.mark.ppl_max("die", "words", 57.5)
    def test_known(): pass
'''  # fmt: skip


def test_annotations_stand_on_the_lines_of_markers_and_of_gates_in_yaml(measured: Project) -> None:
    file = measured.folder / "lmgate.yaml"
    text = file.read_text(encoding="utf-8")
    gates = "gates:\n  - ppl_max: {model: die, dataset: words, limit: 59.5}\n"
    prompt = "  unused:\n    path: words.txt\n    references: text\n    prompt: |\n      @ppl_max is no marker here\n"
    file.write_text(f"{gates}{text}{prompt}", encoding="utf-8")
    measured.write(test_gate=ANNOTATED)
    workspace = {"GITHUB_WORKSPACE": str(measured.folder.parent)}
    done = measured.run("--lmgate-report=github", "-n", "2", env=workspace).expect(1)
    commands = [line for line in done.out.splitlines() if line.startswith("::")]
    places = ["lmgate.yaml,line=2", *(f"test_gate.py,line={line}" for line in (5, 6, 7, 16, 16, 19))]
    said = sorted(command.partition(",title=")[0] for command in commands)
    assert said == sorted(f"::error file={measured.folder.name}/{place}" for place in places)
    assert done.out.rstrip().endswith(commands[-1])


RED, RIGHT_TO_LEFT = "\x1b[31m", "\u202e"


def _says_nothing_that_is_obeyed(text: str) -> None:
    assert not {"\x1b", RIGHT_TO_LEFT} & set(text)
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
    outcome = measured.run("--lmgate-report=json:report.json", "--junitxml=junit.xml", "--tb=line", "-v")
    outcome.expect(1, failed=1, error=3).says("https://***@example.org/org/model").is_silent_on("secret")
    assert not [name for name in ("report.json", "junit.xml") if "secret" in (measured.folder / name).read_text()]
