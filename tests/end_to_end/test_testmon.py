"""pytest-testmon, which leaves out tests whose code did not change: gates run, since a model is no code."""

import pytest

from tests.end_to_end.projects import Project

pytest.importorskip("testmon", reason="pytest-testmon is absent: that it leaves out no gate is NOT checked")

MIXED = """
    import pytest

    def test_plain(): assert True

    @pytest.mark.ppl_max("die", "words", 60.5)
    def test_gate(): pass
"""


def test_gates_run_although_no_code_changed(measured: Project) -> None:
    measured.add_gates("ppl_max: {model: die, dataset: words, limit: 60.75}").write(
        test_mixed=MIXED,
        test_fixture="def test_score(ppl_of):\n    assert ppl_of('die', 'words') < 60.5\n",
        test_plain="def test_plain(): assert True\n",
    )
    measured.run("-p", "pytest-testmon", "--testmon").expect(0, passed=5)
    measured.run("-p", "pytest-testmon", "--testmon").expect(0, passed=3).says("2 gates: 2 pass")
    measured.run("-p", "pytest-testmon", "--testmon", "-n", "2").expect(0, passed=3).says("2 gates: 2 pass")
    # The model got worse; no Python file changed.
    measured.change("/die}", "/sure}").run("-p", "pytest-testmon", "--testmon").expect(1, failed=3).says(
        "2 gates: 2 fail"
    )
