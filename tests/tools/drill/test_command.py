"""``lmgate drill`` as a user runs it: what it finds, that it leaves everything as it was, and what it refuses."""

import contextlib
import itertools
import json
import math
import pydoc
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import filelock
import html5lib
import pytest
import torch
from typer.testing import CliRunner

from pytest_lmgate.cli.app import app
from pytest_lmgate.errors import LmgateError
from pytest_lmgate.measure.lookup import Measurements
from pytest_lmgate.tools.drill import plan
from pytest_lmgate.tools.drill.faults import FAULTS
from pytest_lmgate.tools.drill.planting import Broken, Fault
from tests.end_to_end.projects import Project, environment
from tests.tools.drill.conftest import EXACT, KL, LIMIT, PPL, make_model, make_tokenizer
from tests.tools.fix.test_costs import quantize
from tests.warm import warm_python

# The tokens of the project's models are words, so that no regular expression cuts texts.
SEEN_BY_TEXTS = [fault.name for fault in FAULTS if fault.kind in ("cache", "texts") and fault.name != "words"]

# `lmgate`, killed when it has kept its first measurement.
ENDS_BY_A_KILL = """
import os, signal
from pytest_lmgate.cli.app import main
from pytest_lmgate.measure.lookup import Measurements
keep = Measurements._keep
Measurements._keep = lambda *given: (keep(*given), os.kill(os.getpid(), signal.SIGKILL))
main()
"""
BASELINE = "  - no_regression: {metric: ppl, model: float, dataset: rows, tolerance: 2%}\n"
WINDOWS = ", protocol: document, max_length: 32"


Findings = dict[tuple[str, str], dict[str, Any]]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["drill", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def findings(*arguments: str) -> Findings:
    data = json.loads(run("--json", *arguments))
    return {(found["fault"], found["gate"]): found for found in data["findings"]}


def with_last_block_of(bits: int) -> Any:
    """The project's model of 8 bits, broken by hand as ``round-last`` says."""
    broken = make_model()
    quantize(broken.model.layers, 8)
    quantize(broken.model.layers[-1], bits)
    return broken


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def perplexity(folder: Path, model: Any) -> float:
    """Return the perplexity of the rows, which have as many tokens each, by code of this test's own."""
    tokenizer = make_tokenizer()
    texts = [json.loads(line)["text"] for line in (folder / "rows.jsonl").read_text().splitlines()]
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts])
    with torch.inference_mode():
        said = model(input_ids=ids).logits.double().log_softmax(-1)
    return math.exp(-said[:, :-1].gather(-1, ids[:, 1:, None]).mean())


@pytest.fixture(scope="module")
def on_float(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """The findings of gates of the float model that read, that write, and that read what it wrote.

    Whether a gate catches a fault shows at its strongest level, so that no weaker one is judged.
    """
    gates = f"  - ppl_max: {{model: float, dataset: rows, limit: 1000{WINDOWS}}}\n"
    gates += "  - self_kl_max: {model: float, dataset: written, limit: 0.001, max_new_tokens: 6}\n"
    faults = ",".join((*SEEN_BY_TEXTS, "answers"))
    with in_copy(made, tmp_path_factory.mktemp("float"), gates + EXACT), pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "next_strength", lambda levels, is_caught: 0 if is_caught else levels)
        found = findings("--faults", faults)
    return {(fault, gate.partition("[")[0]): each for (fault, gate), each in found.items()}


@pytest.fixture(scope="module")
def on_int8(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """The findings of the project's gates when the last block is rounded."""
    with in_copy(made, tmp_path_factory.mktemp("int8")):
        return findings("--faults", "round-last")


@pytest.fixture(scope="module")
def printed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What a drill printed, and its page."""
    with in_copy(made, folder := tmp_path_factory.mktemp("printed")):
        said = run("--faults", "round-last,skip,bfloat16,temperature,window,base,subject", "--html", "drill.html")
    return said, (folder / "drill.html").read_text(encoding="utf-8")


@contextlib.contextmanager
def in_copy(made: Path, folder: Path, gates: str = "") -> Iterator[None]:
    """Work in a copy of the project, with other gates."""
    shutil.copytree(made, folder, dirs_exist_ok=True)
    if gates:
        text = (folder / "lmgate.yaml").read_text().partition("gates:\n")[0]
        (folder / "lmgate.yaml").write_text(f"{text}gates:\n{gates}")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("PYTEST_VERSION")
        yield


def test_the_weakest_caught_fault_is_where_the_gate_would_turn_red_at_the_value_of_a_model_broken_by_hand(
    project: Path, on_int8: Findings
):
    found, values = on_int8["round-last", PPL], {}
    reference = perplexity(project, make_model())
    for trial in found["trials"]:
        values[trial["level"]] = perplexity(project, with_last_block_of(int(trial["level"])))
        assert trial["value"] == pytest.approx(values[trial["level"]], rel=1e-5)
        assert trial["damage"] == pytest.approx(values[trial["level"]] / reference - 1, rel=1e-3, abs=1e-6)
    assert found["sight"] == "caught"
    assert min(trial["level"] for trial in found["trials"] if not trial["failed"]) == found["level"] + 1
    assert values[found["level"]] > 1.02 * reference
    # Gates that share a measurement see the same broken models.
    assert on_int8["round-last", LIMIT]["trials"][0]["value"] == found["trials"][0]["value"]


def test_the_table_names_what_none_catches_and_what_a_model_cannot_have_is_not_counted(
    printed: tuple[str, str],
) -> None:
    said, _ = printed
    lines = {line.split()[0]: line.split("  ") for line in said.splitlines() if line.strip()}
    assert lines["bfloat16"][-1].strip() == "never"
    assert [cell.strip() for cell in lines["temperature"] if cell.strip()][1:] == ["no effect"] * 3
    assert "2 of 4 faults caught; no gate catches bfloat16, temperature." in said
    assert "These catch the same in" in said
    assert f"{LIMIT} adds nothing: it catches no fault." not in said  # a skipped block is beyond any limit
    assert "Not tried: window, because it has no window of attention." in said
    assert "Not tried: base, because it has no LoRA adapter." in said
    assert "Not tried: subject, because it reads texts without answers, subjects and examples." in said


def test_the_project_is_as_before_with_its_cache_and_baseline_and_gates_turn_red_as_the_drill_said(
    project: Path,
) -> None:
    with (project / "lmgate.yaml").open("a") as file:
        file.write(BASELINE)
    Project(project).run("--lmgate-update").expect(0)
    before = content(project)
    assert any(name.startswith(".lmgate_cache") for name in before)
    found = findings("--faults", "round-last")
    assert content(project) == before
    level = found["round-last", KL]["level"]
    with_last_block_of(int(level)).save_pretrained(project / "int8")
    Project(project).run("--lmgate-report", "json:report.json").expect(1)
    gates = json.loads((project / "report.json").read_text())["gates"]
    red = {gate["id"].partition("::")[2] for gate in gates if gate["verdict"] == "fail"}
    said = {name for (_, name), each in found.items() if each["sight"] == "caught" and each["level"] >= level}
    assert red == {name for name in said if "[float-" not in name}
    assert KL in red


def test_the_baseline_is_the_one_that_pytests_settings_name_whose_ids_are_relative_to_rootdir(
    made: Path, tmp_path: Path
):
    with in_copy(made, tmp_path / "models", BASELINE):
        (tmp_path / "pytest.ini").write_text("[pytest]\nlmgate_baseline = kept.json\n")
        Project(tmp_path).run("--lmgate-update").expect(0)
        assert findings("--faults", "round-last")


@pytest.mark.parametrize(
    "place", ["pytest_lmgate.engines.transformers.runner.release", "pytest_lmgate.judge.judge.Judge.judge"]
)
def test_an_interrupted_drill_says_how_it_goes_on_keeps_what_it_measured_and_goes_on(
    project: Path, on_int8: Findings, monkeypatch: pytest.MonkeyPatch, place: str
):
    arguments, calls = ["drill", "--faults", "round-last", "--gate", KL, "--json"], itertools.count()
    module, _, name = place.rpartition(".")
    plain = getattr(pydoc.locate(module), name)

    def interrupted(*given: Any) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return plain(*given)

    with monkeypatch.context() as patch:
        patch.setattr(place, interrupted)
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code
    assert "the same command goes on from there" in result.stderr
    kept = {path.name for path in (project / ".lmgate_cache" / "drill").rglob("*.lmgate")}
    assert kept
    again: set[str] = set()
    keep = Measurements._keep

    def kept_now(*given: Any) -> None:
        again.add(f"{given[1].fingerprint.address}.lmgate")
        keep(*given)

    monkeypatch.setattr(Measurements, "_keep", kept_now)
    fault_and_gate = "round-last", KL
    assert findings(*arguments[1:-1]) == {fault_and_gate: on_int8[fault_and_gate]}
    assert again
    assert not again & kept
    assert not (project / ".lmgate_cache").exists()


def test_a_killed_drill_leaves_cache_and_baseline_and_the_next_one_finds_the_same(project: Path):
    with (project / "lmgate.yaml").open("a") as file:
        file.write(BASELINE)
    update = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--lmgate-update"]
    subprocess.run([warm_python(environment()), *update], cwd=project, check=True)

    def outside_the_drill() -> dict[str, bytes]:
        return {name: data for name, data in content(project).items() if "drill" not in Path(name).parts}

    before, faults = outside_the_drill(), ["--faults", "bos-missing", "--gate", "no_regression:ppl[float-rows]"]
    assert "lmgate-baseline.json" in before
    whole = findings(*faults)
    killed = subprocess.run(
        [warm_python(environment()), "-c", ENDS_BY_A_KILL, "drill", *faults], cwd=project, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(list(project.rglob("drill/**/*.lmgate"))) == 1
    assert outside_the_drill() == before
    assert findings(*faults) == whole
    assert content(project) == before


@pytest.mark.parametrize("fault", [*SEEN_BY_TEXTS, "answers"])
def test_a_gate_that_reads_what_a_fault_of_texts_breaks_turns_red_and_no_other_is_measured(
    made: Path, tmp_path: Path, on_float: Findings, fault: str
):
    if fault.startswith(("kv-", "temperature", "penalty", "prompt")):  # only gates that write can see it
        assert on_float[fault, "ppl_max"]["sight"] == "no effect"
        assert on_float[fault, "ppl_max"]["trials"] == []
    if fault.startswith("kv-"):
        assert on_float[fault, "self_kl_max"]["sight"] == "caught"
    if fault != "template":
        assert on_float[fault, "exact_min"]["sight"] == "caught"
        return
    assert on_float[fault, "exact_min"]["trials"] == []  # a gate without chats
    with in_copy(made, tmp_path, EXACT):  # the template writes a prompt as the tokenizer does
        text = (tmp_path / "lmgate.yaml").read_text()
        (tmp_path / "lmgate.yaml").write_text(text.replace("references: answer}", "references: answer, chat: true}"))
        ((_, found),) = findings("--faults", fault).items()
    assert found["sight"] == "caught"


@pytest.mark.parametrize(
    ("old", "new", "arguments", "message"),
    [
        ("limit: 1000", "limit: 2", (), r"ppl_max\[.*\] is FAIL already at \d+.*mend them, or name the others by --ga"),
        ("reference: float", "reference: int8", (), "'int8' is its own reference, so a fault would be in both"),
        ("gates:", "x-gates:", (), "expected gates|unknown key"),
        ("", "", ("--gate", "ppl_max[none]"), r"no gate is called 'ppl_max\[none\]'"),
        ("", "", ("--faults", "base,bias"), "no fault can be planted .*: base: it has no LoRA"),
    ],
)
def test_bad_input_is_refused_with_what_to_do(
    project: Path, old: str, new: str, arguments: tuple[str, ...], message: str
):
    text = (project / "lmgate.yaml").read_text()
    (project / "lmgate.yaml").write_text(text.replace(old, new))
    with pytest.raises(LmgateError, match=message):
        run(*arguments)
    assert not (project / ".lmgate_cache").exists()


def test_a_drill_runs_neither_beside_another_nor_inside_a_session_of_pytest(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = project / ".lmgate_cache" / "drill"
    folder.mkdir(parents=True)
    with filelock.FileLock(folder / "lock"), pytest.raises(LmgateError, match="another lmgate drill uses"):
        run()
    monkeypatch.setenv("PYTEST_VERSION", "9")
    with pytest.raises(LmgateError, match="does not run inside a session of pytest"):
        run()


def test_gates_are_offered_that_catch_what_passes_and_do_so_when_they_are_added(project: Path):
    text = (project / "lmgate.yaml").read_text()
    start = text.partition("gates:\n")[0] + "gates:\n"
    blind = f"  - no_regression: {{metric: ppl, model: int8, dataset: rows, against: float, tolerance: 90%{WINDOWS}}}\n"
    (project / "lmgate.yaml").write_text(start + blind)
    result = CliRunner().invoke(app, ["drill", "--json", "--faults", "heads-repeated,fp8-e5m2,skip"])
    assert re.search(r"[34] gates that may catch more: at most \d+ measurements, about \d+ s", result.stderr)
    data, seen = json.loads(result.stdout), set[str]()
    for caught in data["suggestions"].values():
        assert not seen.issuperset(caught)
        seen.update(caught)
    (line, caught), *_ = data["suggestions"].items()
    assert caught
    assert not {"skip", *next(iter(data["gates"].values()))["caught"]}.intersection(caught)
    (project / "lmgate.yaml").write_text(f"{start}{blind}  {line}\n")
    again = json.loads(run("--json", "--faults", ",".join(caught)))
    (name,) = again["gates"].keys() - data["gates"].keys()
    assert again["gates"][name]["caught"] == caught
    assert name in again["smallest"]["gates"]


def test_the_page_has_each_word_of_the_terminal_and_loads_nothing(printed: tuple[str, str]):
    said, page = printed
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    tree = parser.parse(page)
    assert parser.errors == []
    words = re.sub(r"\s", "", "".join(tree.itertext()))
    for line in said.splitlines():
        assert re.sub(r"\s|[.:]$", "", line) in words, line
    shades = [cell.get("class") for cell in tree.iter("td") if cell.get("class")]
    assert {"early", "late", "missed", "sentence"} >= set(shades) >= {"missed", "sentence"}
    assert not re.search(r"(src|href)=", page)


def test_an_installed_package_adds_a_fault_and_a_name_that_is_taken_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    def lose(broken: Broken, level: float) -> None:
        weight = broken.model.get_input_embeddings().weight
        broken.put(weight, torch.cat([torch.zeros_like(weight[: int(level)]), weight[int(level) :]]))

    def register(name: str) -> None:
        fault = Fault(name, "embeddings are lost", (1, 10, 90), "{:g} tokens", lose)
        entry = SimpleNamespace(name=name, load=lambda: fault)
        monkeypatch.setattr("pytest_lmgate.tools.drill.faults.entry_points", lambda group: [entry])

    register("no-embedding")
    found = findings("--faults", "no-embedding", "--gate", KL)["no-embedding", KL]
    assert (found["sight"], found["level"]) == ("caught", 10)
    register("skip")
    with pytest.raises(LmgateError, match="expected a Fault with a name of its own"):
        run("--faults", "skip")
