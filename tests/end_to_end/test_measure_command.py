"""``lmgate measure``: the number that a gate would judge, from the same cache."""

import re

import pytest

from tests.end_to_end.commands import lmgate, lmgate_json
from tests.end_to_end.projects import FACES, GATE, Project


def test_it_finds_what_a_session_measured_and_the_other_way_round(measured: Project) -> None:
    done = lmgate(measured.folder, "measure", "ppl", "die", "words")
    assert done.out.startswith("ppl 60 [60, 60], at 95%\n  of die on words, 399 tokens\n  protocol:sliding|")
    assert "from the cache (" in done.out
    (found,) = lmgate_json(measured.folder, "measure", "ppl", "die", "words", "--stride", "8")["measurements"]
    assert (found["value"], found["cached"], found["options"]) == (pytest.approx(FACES), False, {"stride": 8})
    measured.write(test_gate=GATE.replace("60.5", "60.5, stride=8"))
    measured.run("--lmgate-report=json:report.json").expect(0, passed=1)
    gate = measured.report()["gates"][0]
    assert (gate["cached"], gate["fingerprint"]) == (True, found["fingerprint"])


def test_a_list_is_a_sweep_with_a_row_each(measured: Project) -> None:
    done = lmgate(measured.folder, "measure", "bpb", "sure", "words", "--stride=8,16", "-o", "max_length=16,32")
    header, *rows = done.out.splitlines()
    assert header.split() == ["stride", "max_length", "bpb", "95%", "interval", "scored", "seconds"]
    assert [row.split()[:2] for row in rows] == [["8", "16"], ["8", "32"], ["16", "16"], ["16", "32"]]
    assert all(re.search(r"  \|[ -]*o[ -]*\|$", row) for row in rows), done.out
    values = [float(row.split()[2]) for row in rows]
    assert len(set(values)) == 4


def test_two_models_are_compared_with_all_their_figures(measured: Project) -> None:
    done = lmgate(measured.folder, "measure", "compare", "sure", "words", "--reference", "die")
    done.says("Mean KLD", "Same top p", "of sure on words")
    (found,) = lmgate_json(measured.folder, "measure", "kl", "sure", "words", "--reference", "die")["measurements"]
    assert found["value"] > 0
