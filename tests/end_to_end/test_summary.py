"""The summary in a narrow terminal, without colours, and where the stream takes ASCII only."""

import re

from tests.end_to_end.projects import Project

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
