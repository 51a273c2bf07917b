"""Workers of xdist: the same outcomes as without, a model in one worker alone, and a GPU for each."""

import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
import torch

from tests.end_to_end.dice import TOO_LARGE_FOR_TWO, DiceProject
from tests.end_to_end.projects import Outcome, Project, marked

EVERY_OUTCOME = """
    import pytest

    @pytest.mark.ppl_max("die", "words", 60.5)
    @pytest.mark.bpb_max("sure", "words", 0.5)
    @pytest.mark.ppl_max("die", "words", 59.5)
    def test_pass_and_fail_twice(): pass

    @pytest.mark.skip(reason="not today")
    @pytest.mark.ppl_max("die", "words", 60.5)
    def test_skip(): pass

    @pytest.mark.xfail(reason="known")
    @pytest.mark.ppl_max("die", "words", 59.5)
    def test_xfail(): pass

    @pytest.mark.xfail(reason="known", strict=False)
    @pytest.mark.ppl_max("die", "words", 60.5)
    def test_xpass(): pass

    @pytest.mark.ppl_max("die", "words", 60.5)
    def test_body_fails(): assert False, "by its body"

    def test_fixture(ppl_of): assert ppl_of("die", "words") < 59.5

    def test_late(request): request.node.add_marker(pytest.mark.ppl_max("die", "words", 60.5))

    @pytest.mark.parametrize("limit", [59.5, 60.5])
    def test_parametrized(limit, request, ppl_of): assert ppl_of("die", "words") < limit
"""
CONFTEST = """
    import pytest

    @pytest.fixture(scope="session")
    def rows():
        return [" ".join(f"w{(7 * i * j) % 57}" for j in range(1, 12)) for i in range(1, 9)]
"""
ROWS = 'no_regression("ppl", "warm", lmgate.fixture("rows"), "15%", against="die", protocol="document")'
PLAIN = "import pytest_lmgate as lmgate\n" + marked(
    **{"pass": 'ppl_max("die", "words", 60.5)'},
    error='ppl_max("nan", "words", 60.5)',
    error_before_measuring='ppl_max("./no_such_folder", "words", 60.5)',
    inconclusive=ROWS,
    no_baseline='no_regression("ppl", "die", "words", "1%")',
)
COUNTS = {"failed": 6, "passed": 4, "skipped": 1, "xfailed": 1, "xpassed": 1, "error": 3}
VARIES = ("cached", "seconds")  # by which gate is measured first


def run(project: Project, *workers: str) -> Outcome:
    return project.run("--lmgate-report", "json:report.json", "--junitxml", "junit.xml", *workers).expect(1)


def verdicts(project: Project) -> list[dict[str, Any]]:
    """Return the report's gates, in its order."""
    return [{key: gate[key] for key in gate if key not in VARIES} for gate in project.report()["gates"]]


def properties(project: Project) -> dict[str, list[tuple[str, str]]]:
    """Return each test's properties in JUnit's XML, without those that vary."""
    root = ElementTree.parse(project.folder / "junit.xml").getroot()
    return {
        f"{case.get('classname')}.{case.get('name')}": [
            (str(each.get("name")), re.sub(r'\\*"(cached|seconds)\\*": [^,}]*', "", str(each.get("value"))))
            for each in case.iter("property")
            if not str(each.get("name")).endswith(VARIES)
        ]
        for case in root.iter("testcase")
    }


def summary(outcome: Outcome) -> list[str]:
    """Return what the terminal's summary says of the gates, without times, and what pytest says of each test."""
    lines = outcome.out.splitlines()
    own = lines[next(number for number, line in enumerate(lines) if re.match("=+ lmgate: ", line)) :]
    return [re.sub(r"\s+(cached|\d+\.\d)\s*$| in \d+\.\d\ds.*", "", line).strip("= ") for line in own]


def test_every_outcome_is_the_same_with_workers(noisy: Project) -> None:
    gate = "ppl_max: {{model: die, dataset: words, limit: {}}}"
    noisy.add_gates(gate.format(60.5), gate.format(59.5))
    noisy.write(test_all=EVERY_OUTCOME, test_plain=PLAIN, conftest=CONFTEST)
    run(noisy)  # measures: from now on every number is cached, and only the workers differ
    alone = run(noisy).expect(1, **COUNTS)
    expected = verdicts(noisy), properties(noisy), summary(alone)
    assert {gate["verdict"] for gate in verdicts(noisy)} == {"pass", "fail", "error", "inconclusive"}

    shared = run(noisy, "-n", "2").expect(1, **COUNTS)
    assert (verdicts(noisy), properties(noisy)) == expected[:2]
    assert sorted(summary(shared)) == sorted(expected[2])
    noisy.run("-k", "inconclusive", "--lmgate-strict", "-n", "2").expect(1, failed=1)


DATA = ("one", "two", "three")
REPORT = ("--lmgate-report", "json:report.json")


def gates_of(*models: str) -> str:
    """Return a test file with a gate of each model on each dataset, the models in turn."""
    gates = [f"ppl_max('{model}', '{data}', 6.01)" for data in DATA for model in models]
    return marked(**{str(number): gate for number, gate in enumerate(gates)})


def test_no_model_is_loaded_by_two_workers_and_verdicts_are_those_of_one_process(dice: DiceProject) -> None:
    dice.models(red={}, blue={"sides": 7}).gates([("red", "one"), ("blue", "two")])
    dice.write(test_gates=gates_of("red", "blue"), test_plain="def test_plain(): pass\n")
    outcome = dice.run("-n", "2", "-v", *REPORT).expect(1, passed=5, failed=4)
    outcome.says("scheduling tests via ModelScheduling")
    assert sorted(dice.loaded) == ["blue", "red"]
    assert {worker for worker, _, _ in dice.loads} == {"gw0", "gw1"}
    shared = sorted(verdicts(dice), key=lambda gate: str(gate["id"]))
    dice.run(*REPORT, "--lmgate-refresh").expect(1, passed=5, failed=4)
    assert sorted(verdicts(dice), key=lambda gate: str(gate["id"])) == shared


def test_a_worker_that_is_killed_fails_its_gate_and_the_other_gates_of_its_model_are_judged(dice: DiceProject) -> None:
    dice.models(red={"kills_after": 2}, blue={}).write(test_gates=gates_of("red", "blue"))
    outcome = dice.run("-n", "2", *REPORT).expect(1, passed=5, failed=1)
    outcome.says("crashed while running 'test_gates.py::test_0'")
    assert len(dice.report()["gates"]) == 5
    assert len(dice.partials) == 1, "what the worker had measured is kept"
    workers = [worker for worker, model, _ in dice.loads if model == "red"]
    assert len(workers) == len(set(workers)) == 2, "the killed one, and one that took its gates over"
    dice.run("-n", "2", *REPORT).expect(0, passed=6).says("red on one: resumed at")
    assert len(dice.report()["gates"]) == 6


def test_a_worker_that_is_killed_and_not_replaced_leaves_a_red_session(dice: DiceProject) -> None:
    dice.models(red={"kills_after": 0}, blue={}).write(test_gates=gates_of("red", "blue"))
    outcome = dice.run("-n", "2", "--max-worker-restart", "0")
    assert outcome.says("the verdict of test_gates.py::test_2 never arrived").code != 0


def test_gates_of_a_file_run_model_by_model_so_that_each_is_loaded_once(dice: DiceProject) -> None:
    heavy = {"bytes": TOO_LARGE_FOR_TWO}
    dice.models(red=heavy, blue=heavy).gates([(model, data) for data in DATA for model in ("red", "blue")])
    outcome = dice.run("-v").expect(0, passed=6)
    assert dice.loaded == ["red", "blue"]
    ran = [line.split("[")[1].split("]")[0] for line in outcome.out.splitlines() if " PASSED " in line]
    assert ran == ["red-one", "red-two", "red-three", "blue-one", "blue-two", "blue-three"]


COUNT_READS = """
    import pathlib
    from pytest_lmgate import identity
    from pytest_lmgate.measure import evaluator

    identity._RACY_SECONDS = -1.0  # a file written a moment ago may change unseen, and is read again
    read = evaluator.read_corpus

    def read_corpus(spec, path, **options):
        with pathlib.Path(__file__).with_name("reads.txt").open("a") as file:
            file.write(f"{path.name}\\n")
        return read(spec, path, **options)

    evaluator.read_corpus = read_corpus
"""


def test_a_dataset_is_read_once_in_a_session_and_again_if_its_file_changes(dice: DiceProject) -> None:
    change = "\ndef test_changes():\n    with open('one.txt', 'a') as text: text.write('one more line')\n"
    dice.models(red={"sides": 7}, blue={}).write(
        counting=COUNT_READS,
        test_a=marked(
            worse="no_regression('ppl', 'red', 'one', '1%', against='blue')", bits="bpb_max('blue', 'one', 9)"
        )
        + change,
        test_b=marked(of_the_new_text="bpb_max('blue', 'one', 9)"),
    )
    dice.run("-p", "counting").expect(1, passed=3, failed=1)
    assert (dice.folder / "reads.txt").read_text().split() == ["one.txt"] * 2


TWO_GPUS = """
    from pytest_lmgate.engines import devices

    devices._torch_build = lambda: ("cuda", "13.0")
    devices.cards = lambda: (devices.Card("NVIDIA H200", "9.0"),) * 2
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="the models would be measured")
def test_each_worker_takes_a_gpu_of_its_own_by_turns(project: Project) -> None:
    # The GPUs are made up, so that each model ends with an error that names the GPU that it was to run on.
    gates = {name: f"ppl_max({name!r}, 'words', 9)" for name in ("die", "sure", "hopeless")}
    project.write(conftest=TWO_GPUS, test_gates=marked(**gates))
    outcome = project.run("-n", "3").expect(1, error=3)
    found = re.findall(r"\[(gw\d)\] \w+ --.*?the device '(cuda:?\d?)' cannot be used", outcome.text, re.DOTALL)
    assert sorted(found) == [("gw0", "cuda:0"), ("gw1", "cuda:1"), ("gw2", "cuda:0")]
