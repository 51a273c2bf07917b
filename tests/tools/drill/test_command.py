"""``lmgate drill`` as a user runs it: what it finds, that it leaves everything as it was, and what it refuses."""

import json
import math
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import html5lib
import pytest
import torch
from typer.testing import CliRunner

from pytest_lmgate.cli.app import app
from pytest_lmgate.errors import LmgateError
from pytest_lmgate.tools.drill.faults import FAULTS
from pytest_lmgate.tools.drill.planting import Broken, Fault
from tests.end_to_end.projects import Project, environment, wait_for
from tests.tools.drill.conftest import EXACT, KL, LIMIT, PPL, make_model, make_tokenizer, round_layers
from tests.warm import warm_python

# The tokens of the project's models are words, so that no regular expression cuts texts.
SEEN_BY_TEXTS = [fault.name for fault in FAULTS if fault.kind in ("cache", "texts") and fault.name != "words"]

WINDOWS = ", protocol: document, max_length: 32"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["drill", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def findings(*arguments: str) -> dict[tuple[str, str], dict[str, Any]]:
    data = json.loads(run("--json", *arguments))
    return {(found["fault"], found["gate"]): found for found in data["findings"]}


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def perplexity(folder: Path, model: Any) -> float:
    """Return the perplexity of the rows by a loop of this test's own."""
    tokenizer, losses = make_tokenizer(), []
    for line in (folder / "rows.jsonl").read_text().splitlines():
        ids = torch.tensor([tokenizer(json.loads(line)["text"], add_special_tokens=False)["input_ids"]])
        with torch.inference_mode():
            said = model(input_ids=ids).logits[0].double().log_softmax(-1)
        losses += (-said[:-1].gather(-1, ids[0, 1:, None])).flatten().tolist()
    return math.exp(sum(losses) / len(losses))


def test_the_weakest_caught_fault_is_where_the_gate_would_turn_red_and_its_value_is_that_of_a_model_broken_by_hand(
    project: Path,
) -> None:
    found = findings("--faults", "round-last", "--gate", PPL)["round-last", PPL]
    healthy = make_model()
    reference = perplexity(project, healthy)
    values = {}
    for trial in found["trials"]:
        broken = make_model()
        round_layers(broken.model.layers, 8)
        round_layers(broken.model.layers[-1], int(trial["level"]))
        values[trial["level"]] = perplexity(project, broken)
        assert trial["value"] == pytest.approx(values[trial["level"]], rel=1e-5)
        assert trial["damage"] == pytest.approx(values[trial["level"]] / reference - 1, rel=1e-3, abs=1e-6)
    assert found["sight"] == "caught"
    assert min(trial["level"] for trial in found["trials"] if not trial["failed"]) == found["level"] + 1
    assert values[found["level"]] > 1.02 * reference


def test_gates_that_share_measurements_see_the_same_broken_models_and_the_table_names_what_none_catches(
    project: Path,
) -> None:
    printed = run("--faults", "skip,bfloat16,temperature")
    lines = {line.split()[0]: line.split("  ") for line in printed.splitlines() if line.strip()}
    assert lines["bfloat16"][-1].strip() == "never"
    assert [cell.strip() for cell in lines["temperature"] if cell.strip()][1:] == ["no effect"] * 3
    assert "1 of 3 faults caught; no gate catches bfloat16, temperature." in printed
    assert "These catch the same in" in printed
    assert f"{LIMIT} adds nothing: it catches no fault." not in printed  # a skipped block is beyond any limit
    trials = findings("--faults", "skip")
    values = [trials["skip", gate]["trials"][0]["value"] for gate in (PPL, LIMIT)]
    assert values[0] == values[1]


def test_the_project_is_byte_for_byte_as_before_with_its_cache_and_baseline(project: Path) -> None:
    with (project / "lmgate.yaml").open("a") as file:
        file.write("  - no_regression: {metric: ppl, model: float, dataset: rows, tolerance: 2%}\n")
    Project(project).run("--lmgate-update").expect(0)
    before = content(project)
    assert any(name.startswith(".lmgate_cache") for name in before)
    drilled = subprocess.run(
        [warm_python(environment()), "-m", "pytest_lmgate.cli", "drill", "--faults", "round-last"],
        cwd=project, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert drilled.returncode == 0, drilled.stderr
    assert "4 gates, 1 fault: at most" in drilled.stderr
    assert "no_regression:ppl[float-rows]" in drilled.stdout
    assert content(project) == before


def test_an_interrupted_drill_says_how_it_goes_on_and_keeps_what_it_measured(project: Path) -> None:
    command = [sys.executable, "-m", "pytest_lmgate.cli", "drill", "--faults", "round-last,skip,noise,position"]
    folder = project / ".lmgate_cache" / "drill"
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=project, env=environment(), text=True
    ) as process:
        wait_for(lambda: sum(1 for _ in folder.rglob("*.lmgate")) > 6, "broken models are measured")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    if process.returncode:  # on a quick machine it had ended
        assert "the same command goes on from there" in said
        assert sum(1 for _ in folder.rglob("*.lmgate")) > 6


def test_a_drill_that_is_interrupted_while_a_broken_model_closes_keeps_what_it_measured(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        monkeypatch.undo()
        monkeypatch.chdir(project)
        raise KeyboardInterrupt

    monkeypatch.setattr("pytest_lmgate.engines.transformers.runner.release", interrupted)
    result = CliRunner().invoke(app, ["drill", "--faults", "skip", "--gate", KL])
    assert result.exit_code
    assert "the same command goes on from there" in result.stderr
    assert list((project / ".lmgate_cache" / "drill").rglob("*.lmgate"))


@pytest.mark.parametrize("fault", [*SEEN_BY_TEXTS, "answers"])
def test_a_gate_that_reads_what_a_fault_of_texts_breaks_turns_red(project: Path, fault: str) -> None:
    text = (project / "lmgate.yaml").read_text()
    if fault == "template":  # the template writes a prompt as the tokenizer does
        text = text.replace("references: answer}", "references: answer, chat: true}")
    (project / "lmgate.yaml").write_text(text.partition("gates:\n")[0] + "gates:\n" + EXACT)
    found = findings("--faults", fault)[fault, "exact_min[float-written-max_new_tokens:6]"]
    assert found["sight"] == "caught", found


def test_faults_that_a_model_cannot_have_are_named_with_the_reason_and_not_counted(project: Path) -> None:
    printed = run("--faults", "skip,window,base", "--gate", KL)
    assert "1 of 1 fault caught." in printed
    assert "Not tried: window, because it has no window of attention." in printed
    assert "Not tried: base, because it has no LoRA adapter." in printed


def test_a_fault_that_the_data_of_no_gate_can_have_is_not_counted_either(project: Path) -> None:
    with (project / "lmgate.yaml").open("a") as file:
        file.write(EXACT)
    printed = run("--faults", "skip,answers,subject")
    assert "2 of 2 faults caught." in printed
    assert "Not tried: subject, because its dataset has no subjects: no average_by, tags or cluster." in printed


def test_only_gates_that_write_see_a_spoilt_cache(project: Path) -> None:
    text = (project / "lmgate.yaml").read_text().partition("gates:\n")[0]
    gates = f"  - ppl_max: {{model: float, dataset: rows, limit: 1000{WINDOWS}}}\n"
    gates += "  - self_kl_max: {model: float, dataset: written, limit: 0.001, max_new_tokens: 6}\n"
    (project / "lmgate.yaml").write_text(f"{text}gates:\n{gates}{EXACT}")
    sights: dict[str, list[str]] = {}
    for (fault, gate), found in findings("--faults", "cache").items():
        sights.setdefault(f"{fault} {gate.partition('[')[0]}", []).append(found["sight"])
    for fault in ("kv-bits", "kv-lost", "kv-stale", "kv-other"):
        assert sights[f"{fault} ppl_max"] == ["no effect"]
        assert sights[f"{fault} self_kl_max"] == sights[f"{fault} exact_min"] == ["caught"]


def test_a_drill_inside_a_session_of_pytest_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_VERSION", "9")
    with pytest.raises(LmgateError, match="does not run inside a session of pytest"):
        run()


@pytest.mark.parametrize(
    ("old", "new", "arguments", "message"),
    [
        (
            "limit: 1000",
            "limit: 2",
            (),
            r"ppl_max\[.*\] is FAIL already at \d+.*mend them, or name the others by --gate",
        ),
        ("reference: float", "reference: int8", (), "'int8' is its own reference, so a fault would be in both"),
        ("gates:", "x-gates:", (), "expected gates|unknown key"),
        ("", "", ("--faults", "skp"), r"no fault is called 'skp'.*skip"),
        ("", "", ("--gate", "ppl_max[none]"), r"no gate is called 'ppl_max\[none\]'"),
        (
            "",
            "",
            ("--faults", "base,bias"),
            "no fault can be planted .*: base: it has no LoRA",
        ),
    ],
    ids=["a red gate", "its own reference", "no gates", "an unknown fault", "an unknown gate", "no fault applies"],
)
def test_bad_input_is_refused_with_what_to_do(
    project: Path, old: str, new: str, arguments: tuple[str, ...], message: str
) -> None:
    text = (project / "lmgate.yaml").read_text()
    (project / "lmgate.yaml").write_text(text.replace(old, new))
    with pytest.raises(LmgateError, match=message):
        run(*arguments)
    assert not (project / ".lmgate_cache").exists()


def test_a_second_drill_waits_for_none_and_says_so(project: Path) -> None:
    import filelock

    folder = project / ".lmgate_cache" / "drill"
    folder.mkdir(parents=True)
    with filelock.FileLock(folder / "lock"), pytest.raises(LmgateError, match="another lmgate drill uses"):
        run()


def test_gates_are_offered_that_catch_what_passes_and_do_so_when_they_are_added(project: Path) -> None:
    text = (project / "lmgate.yaml").read_text()
    start = text.partition("gates:\n")[0] + "gates:\n"
    blind = f"  - no_regression: {{metric: ppl, model: int8, dataset: rows, against: float, tolerance: 90%{WINDOWS}}}\n"
    (project / "lmgate.yaml").write_text(start + blind)
    data = json.loads(run("--json", "--faults", "heads-repeated,fp8-e5m2,skip"))
    line, caught = next((line, caught) for line, caught in data["suggestions"].items() if line.startswith("- kl_max"))
    assert caught
    assert not {"skip", *data["gates"].popitem()[1]["caught"]}.intersection(caught)
    (project / "lmgate.yaml").write_text(f"{start}{blind}  {line}\n")
    again = json.loads(run("--json", "--faults", ",".join(caught)))
    (name,) = (name for name in again["gates"] if name.startswith("kl_max"))
    assert again["gates"][name]["caught"] == caught
    assert name in again["smallest"]["gates"]


def test_the_page_has_each_word_of_the_terminal_and_loads_nothing(project: Path) -> None:
    printed = run("--faults", "round-last,bfloat16,window,temperature", "--html", "drill.html")
    page = (project / "drill.html").read_text(encoding="utf-8")
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    tree = parser.parse(page)
    assert parser.errors == []
    words = re.sub(r"\s", "", "".join(tree.itertext()))
    for line in printed.splitlines():
        assert re.sub(r"\s|[.:]$", "", line) in words, line
    shades = [cell.get("class") for cell in tree.iter("td") if cell.get("class")]
    assert {"early", "late", "missed", "sentence"} >= set(shades) >= {"missed", "sentence"}
    assert not re.search(r"(src|href)=", page)


def test_an_installed_package_adds_a_fault_and_a_name_that_is_taken_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
