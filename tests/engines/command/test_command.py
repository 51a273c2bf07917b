"""Programs of the user's own: their faults, their end, the cache, workers. tests/engines/contract has their numbers."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines.projects import Project, ppl, trained_tokenizer, warm
from tests.engines.server.kills import FORKS, WAYS, command_of, end_fork, killed, started, write_project
from tests.models.tiny import made_once

PROGRAM = f"{sys.executable} -S {Path(__file__).with_name('bigrams.py')}"  # -S starts sooner
SHORT = "protocol: sliding, max_length: 96, stride: 96"
SECRET = "hidden-secret-4711"


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        trained_tokenizer().save_pretrained(folder / "tokenizer")

    return made_once(tmp_path_factory.getbasetemp(), "programs", make)


@pytest.fixture
def project(tmp_path: Path, files: Path) -> Project:
    environment = {"MY_KEY": SECRET, "TMPDIR": str(tmp_path)}
    return Project(tmp_path, files, python=warm(), environment=environment, patience=120).fill()


def entry_of(options: str = "", *, load: dict[str, Any] | None = None, **entry: Any) -> str:
    """Return the entry of a model that `bigrams.py` runs with some options."""
    load = {"context": 256, "timeout": 20, **(load or {})}
    return json.dumps({"command": f"{PROGRAM} {options}", "tokenizer": "{files}/tokenizer", "load": load, **entry})


def starts(project: Project) -> list[int]:
    """Return the programs that were started, of which none may be left, nor any file of theirs."""
    processes, _ = started(project.folder)
    assert [command_of(each) for each in processes if command_of(each)] == []
    assert [path.name for path in project.folder.glob("lmgate-*/") if not path.name.startswith("lmgate-logs")] == []
    return processes


FAULTS: dict[str, tuple[str, str]] = {
    "silent": (entry_of("--fault silent", load={"wait": 1}), "printed no line within 1 s: flush its output after each"),
    "banner": (entry_of("--fault banner"), "its program printed 'loading the model' (Expecting value"),
    "protocol": (entry_of("--protocol 2"), "its program speaks version 2 of the protocol: expected 1"),
    "vocabulary": (entry_of("--vocabulary 0"), "Expected `int` >= 1 - at `$.vocabulary`"),
    "smaller": (entry_of("--vocabulary 99"), "its vocabulary has 99 entries"),
    "larger": (entry_of("--vocabulary 321"), "IndexError: list index out of range"),
    "hang": (entry_of("--fault hang", load={"timeout": 1}), "printed no line within 1 s"),
    "exit": (entry_of("--fault exit --at 30"), "its program ended with status 7; the end of its log"),
    "killed": (entry_of("--fault killed --at 30"), "its program was killed by SIGKILL (probably the OOM killer)"),
    "closed": (entry_of("--fault closed --at 30"), "its program closed its standard output"),
    "endless": (entry_of("--fault endless --at 30"), "its program printed '11111111"),
    "count": (entry_of("--fault count --at 30"), "logprobs for request 3"),
    "twice": (entry_of("--fault twice --at 5"), "a second time"),
    "unknown": (entry_of("--fault unknown"), "answered request 99999 which it was not sent"),
    "text": (entry_of("--fault text --at 30"), "its program printed '50% done'"),
    "none": (entry_of("--fault null --at 30"), "Expected `float`, got `null` - at `$.logprobs[0]`"),
    "deep": (entry_of("--fault deep --at 30"), "its program printed '[[[[["),
    "both wrong": (entry_of("--fault 'both wrong' --at 30"), "expected JSON with id, logprobs, error"),
    "error": (entry_of("--fault error --at 30"), "its program reports an error: no such token, and my key is ***"),
    "nan": (entry_of("--fault nan"), "its program gives NaN"),
    "later nan": (entry_of("--fault nan --at 60"), "NaN log-likelihood of token"),
    "infinite": (entry_of("--fault infinite --at 60"), "infinite log-likelihood of token"),
    "positive": (entry_of("--fault positive --at 60"), "a negative log-likelihood of -0.5 nats"),
    "base 2": (entry_of("--fault 'base 2'"), "expected 1; its program has to give natural logarithms"),
    "logits": (entry_of("--fault logits"), "expected 1; its program has to give natural logarithms"),
    "padding": (entry_of("--fault padding"), "mask the padding in its program, or set models.padding.batch_size: 1"),
    "random": (entry_of("--fault random --at 1"), "it has to give the same numbers each time"),
    "random alone": (entry_of("--fault random --at 1", batch_size=1), "'random-alone' is not deterministic"),
    "memory": (entry_of("--most 0"), "out of memory with"),
}


def test_each_fault_is_an_error_that_says_what_came_and_never_a_number(project: Project) -> None:
    models = {name.replace(" ", "-"): entry for name, (entry, _) in FAULTS.items()}
    said = project.run([ppl(name, SHORT) for name in models], models)
    assert project.status == 1
    assert [message for _, message in FAULTS.values() if message not in said] == [], said
    assert [gate["id"] for gate in project.judged if gate["verdict"] != "error"] == []
    assert "the phone is gone" in said
    assert "loaded with key ***" in said
    assert SECRET not in said
    assert SECRET not in (project.folder / "report.json").read_text()
    assert said.count("Traceback") == said.count("IndexError: ")  # those of the program
    starts(project)


def test_a_program_that_ended_is_started_again_for_the_next_gate(project: Project) -> None:
    gates = [ppl("dies", SHORT), ppl("dies", "max_length: 128, stride: 128")]
    said = project.run(gates, {"dies": entry_of("--fault exit --at 30")})
    assert said.count("its program ended with status 7") >= 2
    assert len(starts(project)) == 2


def test_a_second_run_starts_a_program_only_if_its_content_changes(project: Project) -> None:
    weights = project.folder / "weights"
    weights.write_text("good")

    def run(**entry: Any) -> list[Any]:
        own = {"content": ["weights"], "versions": ["numpy"]}
        said = project.run([ppl("mine", SHORT)], {"mine": entry_of("--weights weights", **{**own, **entry})})
        assert project.status == 0, said
        return [*project.values.values(), len(starts(project)), "its entry has no content:, the files" in said]

    value, *_ = run()
    assert run(load={"timeout": 9, "wait": 9}, batch_size=2) == [value, 1, False]
    assert run(env={"A_TOKEN": SECRET}) == [value, 2, False]
    weights.write_text("damaged")
    other, count, _ = run()
    assert (other != value, count) == (True, 3)
    files = [path for path in (project.folder / ".lmgate_cache").rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in path.read_bytes() for path in files)
    for count in (4, 5):
        assert run(content=[], versions=[]) == [other, count, True], "measured in each session"


def test_another_version_of_a_program_is_an_error_with_the_same_entry(project: Project) -> None:
    command = f"/bin/sh -c 'read version < version; exec {PROGRAM} --version $version'"
    gates = [ppl("mine", SHORT), ppl("mine", "max_length: 64, stride: 64")]
    for version, revision, status in (("1", "1", 0), ("2", "1", 1), ("2", "2", 0)):
        (project.folder / "version").write_text(f"{version}\n")
        said = project.run(gates[: int(version)], {"mine": entry_of(command=command, revision=revision)})
        assert project.status == status, said
        if status:
            assert "its program is bigrams 2 with 320 tokens, but bigrams 1 with 320 tokens measured" in said
    starts(project)


def test_a_batch_that_does_not_fit_is_halved_or_is_one_request(project: Project) -> None:
    models = {
        "good": entry_of(),
        "small": entry_of("--most 1000"),
        "alone": entry_of("--fault padding", batch_size=1),
        "one": entry_of("--most 300", batch_size=1),
    }
    said = project.run([ppl(name, "protocol: document") for name in models], models)
    assert project.status == 0, said
    assert len(set(project.values.values())) == 1
    assert len(starts(project)) == 4


def test_each_worker_starts_a_program_of_its_own(project: Project) -> None:
    gates = [ppl("mine", f"max_length: {length}, stride: {length}") for length in (40, 48, 56, 64)]
    said = project.run(gates, {"mine": entry_of()}, PYTEST_ADDOPTS="-n 2")
    assert project.status == 0, said
    assert len(starts(project)) in (1, 2)


def test_a_program_gives_way_to_that_of_another_model_and_comes_back(project: Project) -> None:
    for name in ("one", "two"):
        (project.folder / name).write_text(name)
    (project.folder / "test_values.py").write_text(
        "def test_values(ppl_of):\n"
        "    first = [float(ppl_of(name, 'text', max_length=64)) for name in ('one', 'two', 'one', 'two')]\n"
        "    again = [float(ppl_of(name, 'text', max_length=64, stride=64)) for name in ('one', 'two')]\n"
        "    assert first[:2] == first[2:] and first[0] != first[1] and again[0] != again[1]\n"
    )
    said = project.run([], {name: entry_of(f"--weights {name}") for name in ("one", "two")})
    assert project.status == 0, said
    assert len(starts(project)) == 6


def test_a_plan_a_check_and_a_machine_that_lacks_what_the_program_requires_start_nothing(project: Project) -> None:
    gates = ["accuracy_min: {model: mine, dataset: quiz, limit: 0.01}", ppl("mine", SHORT)]
    said = project.run(gates, {"mine": entry_of(requires={"command": "no-such-program"})}, PYTEST_ADDOPTS="-rs")
    assert project.status == 0, said
    assert "models.mine.requires: expected the program 'no-such-program' in PATH, found none" in said
    models = {"mine": entry_of(content=["text.jsonl"])}
    project.run(gates, models, PYTEST_ADDOPTS="--lmgate-plan")
    subprocess.run([warm(), "-m", "pytest_lmgate.cli", "check"], cwd=project.folder, capture_output=True, check=True)
    assert starts(project) == []
    said = project.run(gates, models)
    assert (project.status, len(starts(project))) == (0, 1), said


@pytest.mark.parametrize("way", [WAYS[0], WAYS[2], WAYS[3]], ids=str)
def test_nothing_is_left_of_a_session_with_a_part_that_is_killed(project: Project, way: Any) -> None:
    entry = json.loads(entry_of("--children --slow 0.01").replace("{files}", str(project.files)))
    write_project(project.folder, project.files / "tokenizer", entry)
    happened, problem = killed(project.python, project.folder, way, random.uniform(0.5, 2))
    assert not problem
    assert happened or (project.folder / "report.json").exists()


def test_a_fork_of_the_session_does_not_keep_the_program(project: Project) -> None:
    (project.folder / "conftest.py").write_text(FORKS)
    project.run([ppl("mine", SHORT)], {"mine": entry_of()}, PYTEST_ADDOPTS="-s")
    assert len(starts(project)) == 1
    end_fork(project.folder)
