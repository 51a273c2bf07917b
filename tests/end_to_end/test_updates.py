"""An update of the baseline says of each entry what it was, what it is, and what the old one would have decided."""

import pytest

from tests.end_to_end.projects import Project

GATES = """
    import pytest

    @pytest.mark.no_regression("ppl", "die", "words", "1%")
    def test_worse(): pass

    @pytest.mark.no_regression("ppl", "sure", "words", "1%")
    def test_better(): pass

    @pytest.mark.no_regression("bpb", "hopeless", "words", "1%")
    def test_unchanged(): pass
"""
NEW = """
    @pytest.mark.no_regression("bpb", "die", "words", "1%")
    def test_new(): pass
"""
RED, GREEN = "\x1b[31m", "\x1b[32m"


def test_an_update_says_what_the_old_baseline_would_have_decided(measured: Project) -> None:
    done = measured.write(test_gate=GATES).run("--lmgate-update").expect(0)
    done.says("baseline of test_gate.py::test_worse::no_regression:ppl[die-words]: new, 60\n")
    path = measured.folder / "lmgate.yaml"
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace("/die}", "/SURE}").replace("/sure}", "/die}").replace("/SURE}", "/sure}"))
    measured.write(test_gate=GATES + NEW)
    done = measured.run("--lmgate-update", "--color=yes", "--lmgate-report", "json:report.json", "-n", "2").expect(0)
    own = [line for line in done.out.splitlines() if "baseline of test_gate" in line]
    lines = {line.rpartition("::")[0].rpartition("::")[2]: line for line in own}
    assert set(lines) == {"test_worse", "test_better", "test_unchanged", "test_new"}
    assert lines["test_worse"].startswith(RED)
    assert "% WORSE: by the old baseline FAIL at a tolerance of 1%" in lines["test_worse"]
    assert ": 60 -> " in lines["test_worse"]
    assert lines["test_better"].startswith(GREEN)
    assert "% better: by the old baseline PASS at a tolerance of 1%" in lines["test_better"]
    assert lines["test_unchanged"].endswith(", unchanged")
    assert ": new, " in lines["test_new"]
    previous = {gate["test"].rpartition("::")[2]: gate["previous"] for gate in measured.report()["gates"]}
    assert previous["test_worse"]["value"] == pytest.approx(60)
    assert previous["test_worse"]["comparison"]["decision"] == "fail"
    assert previous["test_worse"]["comparison"]["degradation"] > 0.01
    assert previous["test_new"] == {}
