"""``lmgate fix`` as a user runs it: planted damage, the proof, the recipe, an interruption, and what it refuses."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import html5lib
import pytest
import yaml

from tests.end_to_end.projects import environment
from tests.measure.conftest import make_tokenizer
from tests.measure.test_why import make_reference, quantize, text
from tests.warm import warm_python

LAYERS = 5
PLANTED = ["model.layers.1 o", "model.layers.3 down"]
MODULES = ["model.layers.1.self_attn.o_proj", "model.layers.3.mlp.down_proj"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its rounding to 8 bits with two groups in 2 bits, and gates."""
    folder = tmp_path_factory.mktemp("fix")
    model = make_reference(layers=LAYERS)
    model.save_pretrained(folder / "float")
    layers = model.model.layers
    originals = [{name: tensor.clone() for name, tensor in layer.state_dict().items()} for layer in layers]
    quantize(model, bits=8)
    model.save_pretrained(folder / "int8")
    for path in MODULES:
        _, _, number, *names = path.split(".")
        module = layers[int(number)].get_submodule(".".join(names))
        module.weight.data.copy_(originals[int(number)][".".join([*names, "weight"])])
        quantize(module, bits=2)
    model.save_pretrained(folder / "damaged")
    make_reference(layers=3).save_pretrained(folder / "short")
    for name in ("float", "int8", "damaged", "short"):
        make_tokenizer().save_pretrained(folder / name)
    rows = [{"text": text(12, seed)} for seed in range(160)]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "few.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows[:12]))
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "lmgate.yaml").write_text(
        """
        models: {float: {path: float}, int8: {path: int8}, damaged: {path: damaged}, short: {path: short}}
        datasets: {rows: {path: rows.jsonl}, few: {path: few.jsonl}}
        gates:
          - kl_max: {model: damaged, reference: float, dataset: rows, limit: 0.002, protocol: document}
          - no_regression:
              {metric: ppl, model: damaged, dataset: rows, tolerance: 1%, against: float, protocol: document}
          - kl_max: {model: int8, reference: float, dataset: rows, limit: 0.002, protocol: document}
          - kl_max: {model: damaged, reference: float, dataset: few, limit: 0.002, protocol: document}
          - kl_max: {model: damaged, reference: short, dataset: rows, limit: 0.002, protocol: document}
        """
    )
    return folder


def command(*arguments: str) -> list[str]:
    return [warm_python(environment()), "-m", "pytest_lmgate.cli", "fix", *arguments]


def run(folder: Path, *arguments: str, rc: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(*arguments), cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == rc, done.stdout + done.stderr
    return done


KL = ("damaged", "rows", "--against", "float", "--gate", "kl_max[damaged-float-rows-protocol:document]", "--bits", "8")


def found(folder: Path, *arguments: str, rc: int = 0) -> Any:
    return json.loads(run(folder, *arguments, "--json", rc=rc).stdout)


def test_the_damaged_groups_are_kept_and_the_rows_that_were_not_searched_prove_it(folder: Path) -> None:
    facts = found(folder, *KL)
    assert facts["chosen"]["kept"] == PLANTED
    assert facts["proof"]["verdict"] == "pass"
    assert facts["rows"]["search"] + facts["rows"]["proof"] == 160
    assert facts["chosen"]["search"]["nats"]["upper"] <= 0.002 < facts["sets"][0]["search"]["nats"]["upper"]
    assert facts["recipe"]["bitsandbytes"] == {"llm_int8_skip_modules": MODULES}
    # 8 bits in place of 32: each number of the two groups takes 3 bytes more.
    assert facts["chosen"]["extra_bytes"] == 3 * (16 * 16 + 16 * 32)


def test_a_gate_on_the_perplexity_is_judged_by_the_ratio_of_both_perplexities(folder: Path) -> None:
    gate = "no_regression:ppl[damaged-rows-vs-float-protocol:document]"
    done = run(folder, "damaged", "rows", "--against", "float", "--gate", gate, "--bits", "8")
    assert "the limit is perplexity +1%" in done.stdout
    # Of a text at random, a model with random weights does not get worse by damage.
    assert "It passes already: perplexity -" in done.stdout


def test_the_recipe_is_written_and_the_page_says_what_was_kept(folder: Path, tmp_path: Path) -> None:
    done = run(folder, *KL, "--write", str(tmp_path / "recipe.yaml"))
    for group in PLANTED:
        assert any(line.startswith(group) for line in done.stdout.splitlines())
    assert f"written to {tmp_path / 'recipe.yaml'}" in done.stdout
    recipe = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    assert recipe["llm-compressor"]["ignore"] == MODULES
    assert recipe["torchao"]["fqn_to_config"] == dict.fromkeys(MODULES)
    assert recipe["modelopt"]["quant_cfg"][0] == {"quantizer_name": f"{MODULES[0]}.*", "enable": False}
    assert recipe["llama.cpp"]["llama-quantize"] == (
        r"--tensor-type 'blk\.1\.attn_output=f32' --tensor-type 'blk\.3\.ffn_down(_shexp)?\.weight=f32'"
    )


@pytest.mark.parametrize(
    ("arguments", "rc", "says"),
    [
        (KL, 0, "PASS on"),
        ((*KL, "--budget", "+2%"), 1, "No set within +2% passes."),
        (("int8", "rows", "--against", "float"), 0, "It passes already: KL "),
    ],
)
def test_the_html_page_says_what_the_terminal_says(
    folder: Path, tmp_path: Path, arguments: tuple[str, ...], rc: int, says: str
) -> None:
    file = tmp_path / "fix.html"
    said = run(folder, *arguments, "--html", str(file), rc=rc).stdout
    assert said.endswith(f"written to {file}\n")
    page = "".join(html5lib.parse(file.read_text(), namespaceHTMLElements=False).itertext())
    assert says in said
    for line in said.splitlines()[:-1]:
        assert re.sub(r"[\s█<]", "", line) in re.sub(r"\s", "", page)
    before = file.read_text()
    facts = found(folder, *arguments, "--html", str(file), rc=rc)
    assert file.read_text() == before
    assert before.count("<title>+") == len(facts["sets"])  # a dot for each


def test_no_set_within_the_budget_is_an_answer_with_the_smallest_that_passes(folder: Path) -> None:
    done = run(folder, *KL, "--budget", "+2%", rc=1)
    assert "No set within +2% passes. The smallest that does costs +" in done.stdout
    assert "PASS on" not in done.stdout


def test_a_gate_that_passes_already_needs_no_fix(folder: Path) -> None:
    done = run(folder, "int8", "rows", "--against", "float")  # its only gate
    assert "It passes already: KL " in done.stdout
    assert len(done.stdout.splitlines()) == 4


def test_a_limit_that_the_reference_itself_is_too_near_to_is_said(folder: Path, tmp_path: Path) -> None:
    measure = [*command()[:-1], "measure", "ppl", "float", "rows", "--protocol", "document", "--json"]
    measured = subprocess.run(measure, cwd=folder, env=environment(), capture_output=True, text=True, check=True)
    gate = {"model": "int8", "dataset": "rows", "protocol": "document", "confidence": 0.95}
    gate["limit"] = 1.001 * json.loads(measured.stdout)["measurements"][0]["value"]
    settings = {**yaml.safe_load((folder / "lmgate.yaml").read_text()), "gates": [{"ppl_max": gate}]}
    (folder / "near.yaml").write_text(yaml.safe_dump(settings))
    done = run(folder, "int8", "rows", "--against", "float", "--bits", "8", "--config", "near.yaml", rc=3)
    assert "no set of groups passes, not even all of the reference 'float'" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "rc", "says"),
    [
        ((*KL[:-2],), 3, "takes? as many bytes as the reference's"),
        (("damaged", "rows", "--against", "float"), 3, "expected one gate of lmgate.yaml"),
        (("damaged", "few", "--against", "float"), 3, "expected at least 40 rows to search"),
        (("damaged", "rows", "--against", "short"), 3, "have different blocks: 5 in model.layers and 3"),
        ((*KL, "--budget", "0%"), 2, "expected a percentage above 0 such as +5%, got '0%'"),
        ((*KL, "--budget", "none"), 2, "expected a percentage above 0 such as +5%, got 'none'"),
        ((*KL, "--gate", "kl_max[x]"), 3, "no gate is called 'kl_max[x]'"),
        (("damaged", "rows", "--against", "float", "--kl", "nan"), 2, "--kl: expected a finite number above 0"),
        (("float", "rows", "--against", "float", "--kl", "0.1"), 3, "have the same weights"),
    ],
)
def test_what_cannot_be_fixed_is_said(folder: Path, arguments: tuple[str, ...], rc: int, says: str) -> None:
    done = run(folder, *arguments, rc=rc)
    assert says.replace("takes?", "take") in " ".join(done.stderr.replace("│", " ").split())


def test_after_a_kill_it_goes_on_where_it_was(folder: Path, tmp_path: Path) -> None:
    arguments = [*KL, "--cache", str(tmp_path / "cache")]
    process = subprocess.Popen(
        command(*arguments), cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def entries() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (tmp_path / "cache").rglob("*.lmgate")}

    deadline = time.monotonic() + 120
    while len(entries()) < 8 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = entries()
    first = found(folder, *arguments)
    after = entries()
    assert 8 <= len(before) < len(after)
    assert all(after[path] == content for path, content in before.items()), "measured again"
    assert found(folder, *arguments) == first
    assert entries() == after
