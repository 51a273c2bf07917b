"""``lmgate fix`` as a user runs it: planted damage, the proof, the recipe, an interruption, and what it refuses."""

import contextlib
import itertools
import json
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import html5lib
import pytest
import yaml
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from pytest_lmgate.cli.app import app
from pytest_lmgate.errors import LmgateError
from pytest_lmgate.measure.divergence import Divergences
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.settings.file import load_project
from pytest_lmgate.settings.gate_options import DivergenceRequest, WindowProtocol
from pytest_lmgate.settings.session import Options
from pytest_lmgate.tools.fix.search import split
from tests.end_to_end.projects import environment, wait_for
from tests.measure.conftest import make_tokenizer
from tests.tools.fix.test_costs import make_reference, quantize, text
from tests.warm import warm_python

LAYERS = 3
PLANTED = ["model.layers.0 o", "model.layers.1 down"]
MODULES = ["model.layers.0.self_attn.o_proj", "model.layers.1.mlp.down_proj"]

FLOAT = ("--against", "float")
KL = ("damaged", "rows", *FLOAT, "--gate", "kl_max[damaged-float-rows-protocol:document]", "--bits", "8")
KEEP = ("rough", "rows", *FLOAT, "--keep", "int8", "--bits", "3", "--keep-bits", "8")
PROJECT = """
models: {float: {path: float}, int8: {path: int8}, damaged: {path: damaged}, rough: {path: rough}, short: {path: short}}
datasets: {rows: {path: rows.jsonl}, few: {path: few.jsonl}, one: {path: one.txt}}
gates:
  - kl_max: {model: damaged, reference: float, dataset: rows, limit: 0.002, protocol: document}
  - no_regression: {metric: ppl, model: damaged, dataset: rows, tolerance: 1%, against: float, protocol: document}
  - kl_max: {model: int8, reference: float, dataset: rows, limit: 0.002, protocol: document}
  - kl_max: {model: damaged, reference: float, dataset: few, limit: 0.002, protocol: document}
  - kl_max: {model: rough, reference: float, dataset: rows, limit: 0.26, protocol: document}
  - kl_max: {model: damaged, reference: short, dataset: rows, limit: 0.002, protocol: document}
"""
WRONG = """
models: {float: {path: float}, damaged: {path: damaged}}
datasets: {rows: {path: rows.jsonl}}
gates: [{kl_max: {model: damaged, reference: float, dataset: rows, limit: 1, sigma: 2}}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its rounding to 8 bits with two groups in 2 bits, to 3 bits with two groups negated, and gates."""
    folder = tmp_path_factory.mktemp("fix")
    original, int8, damaged, rough = (make_reference(layers=LAYERS) for _ in range(4))
    quantize(int8, bits=8)
    damaged.load_state_dict(int8.state_dict())
    quantize(rough, bits=3)
    for path in MODULES:
        module = damaged.get_submodule(path)
        module.load_state_dict(original.get_submodule(path).state_dict())
        quantize(module, bits=2)
        rough.get_submodule(path).weight.data.neg_()
    models = {"float": original, "int8": int8, "damaged": damaged, "rough": rough, "short": make_reference(layers=2)}
    for name, model in models.items():
        model.save_pretrained(folder / name)
        make_tokenizer().save_pretrained(folder / name)
    rows = [text(12, seed) for seed in range(160)]
    lines = [json.dumps({"text": row}) + "\n" for row in rows]
    for name, content in {
        "rows.jsonl": "".join(lines), "few.jsonl": "".join(lines[:12]), "one.txt": " ".join(rows),
        "pytest.ini": "[pytest]\n", "lmgate.yaml": PROJECT, "wrong.yaml": WRONG,
    }.items():  # fmt: skip
        (folder / name).write_text(content)
    return folder


def start(folder: Path, *arguments: str, code: Sequence[str] = ("-m", "pytest_lmgate.cli")) -> subprocess.Popen[str]:
    command = [warm_python(environment()), *code, "fix", *arguments]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, env=environment(), text=True, **pipes)


def run(folder: Path, *arguments: str, rc: int = 0) -> str:
    process = start(folder, *arguments)
    out, err = process.communicate(timeout=300)
    assert process.returncode == rc, out + err
    return out


def found(folder: Path, *arguments: str) -> Any:
    return json.loads(run(folder, *arguments, "--json"))


def test_the_damaged_groups_are_kept_and_the_rows_that_were_not_searched_prove_it(folder: Path, tmp_path: Path) -> None:
    facts = found(folder, *KL, "--write", str(tmp_path / "recipe.yaml"))
    assert (facts["chosen"]["kept"], facts["proof"]["verdict"]) == (PLANTED, "pass")
    assert facts["rows"]["search"] + facts["rows"]["proof"] == 160
    assert facts["chosen"]["search"]["nats"]["upper"] <= 0.002 < facts["sets"][0]["search"]["nats"]["upper"]
    # 8 bits in place of 32: each number of the two groups takes 3 bytes more.
    assert facts["chosen"]["extra_bytes"] == 3 * (16 * 16 + 16 * 32)
    recipe = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    assert recipe["bitsandbytes"] == facts["recipe"]["bitsandbytes"] == {"llm_int8_skip_modules": MODULES}
    assert recipe["llm-compressor"]["ignore"] == MODULES
    assert recipe["torchao"]["fqn_to_config"] == dict.fromkeys(MODULES)
    assert recipe["modelopt"]["quant_cfg"][0] == {"quantizer_name": f"{MODULES[0]}.*", "enable": False}
    assert recipe["llama.cpp"]["llama-quantize"] == (
        r"--tensor-type 'blk\.0\.attn_output\.=f32' --tensor-type 'blk\.1\.ffn_down(_shexp)?\.=f32'"
    )


def test_a_gate_on_the_perplexity_is_judged_by_the_ratio_of_both_perplexities(folder: Path) -> None:
    gate = "no_regression:ppl[damaged-rows-vs-float-protocol:document]"
    said = run(folder, "damaged", "rows", *FLOAT, "--gate", gate, "--bits", "8")
    for part in ("the limit is perplexity +1%", "Keep 1 group as in float", "PASS on 80 other rows: perplexity "):
        assert part in said


@pytest.mark.parametrize(
    ("arguments", "rc", "says"),
    [
        ((*KL, "--budget", "+2%", "--write", "keep.yaml"), 1, "No set within +2% passes. The smallest that does "),
        (("int8", "rows", "--against", "float"), 0, "It passes already: KL "),  # its only gate
    ],
)
def test_the_html_page_says_what_the_terminal_says(folder: Path, tmp_path: Path, arguments: Any, rc: int, says: str):
    file = tmp_path / "fix.html"
    said = run(folder, *arguments, "--html", str(file), rc=rc)
    assert said.endswith(f"written to {file}\n")
    page = "".join(html5lib.parse(file.read_text(), namespaceHTMLElements=False).itertext())
    assert says in said
    for line in (line for line in said.splitlines() if "written" not in line):
        assert re.sub(r"[\s█<]", "", line) in re.sub(r"\s", "", page)
    assert not (folder / "keep.yaml").exists()


def test_damaged_groups_of_3_bits_are_kept_in_8_and_cost_what_they_add_to_the_kl_of_the_rest_in_8(folder: Path) -> None:
    facts = found(folder, *KEEP)
    assert (facts["keep"], facts["chosen"]["kept"], facts["proof"]["verdict"]) == ("int8", PLANTED, "pass")
    assert facts["chosen"]["extra_bytes"] == (8 - 3) / 8 * (16 * 16 + 16 * 32)
    evaluator = Evaluator(load_project(folder), Options(folder / "own_cache"))
    (search, _) = split(evaluator.resolver.corpus("rows"), by_document=True, seed=0)

    def kl(model: Any) -> float:
        p, q = evaluator.resolver.model("float"), evaluator.resolver.model((model, make_tokenizer()))
        request = DivergenceRequest("float", WindowProtocol("document"))
        return float(evaluator.measurements.again(Divergences("compare", q, search, request, p)).kl.mean())

    int8, rough = (AutoModelForCausalLM.from_pretrained(folder / name) for name in ("int8", "rough"))
    floor = kl(int8)
    int8.get_submodule(MODULES[0]).load_state_dict(rough.get_submodule(MODULES[0]).state_dict())
    (cost,) = (each["kl"] for each in facts["groups"] if each["group"] == PLANTED[0])
    assert cost == pytest.approx(kl(int8) - floor, rel=1e-3)
    assert facts["floor"]["nats"]["mean"] == pytest.approx(floor, rel=1e-3)


def test_what_was_read_is_counted_in_rows_or_in_the_windows_of_a_text(folder: Path) -> None:
    facts = found(folder, *KL, "--tokens", "200")
    assert 1 < facts["rows"]["search"] < 20 <= facts["rows"]["proof"]
    said = run(folder, "damaged", "one", "--against", "float", "--kl", "0.002", "--bits", "8")
    assert re.search(r"^searched \d+ windows \((?s:.*)^PASS on \d+ other windows: ", said, re.M)


@pytest.mark.parametrize(
    ("arguments", "rc", "says"),
    [
        ((*KL[:-2],), 3, "take as many bytes as those of 'float'"),
        (("damaged", "rows", *FLOAT), 3, "expected one gate of lmgate.yaml"),
        (("damagd", "rows", *FLOAT), 3, "model 'damagd' is not known (did you mean 'damaged'?)"),
        (("damaged", "few", *FLOAT), 3, "expected at least 80 rows to search"),
        ((*KL, "--stride", "8"), 2, "only with --kl; a gate has its own"),
        (("damaged", "rows", *FLOAT, "--kl", "0.1", "--stride", "8,9"), 2, "stride: expected one value"),
        (("damaged", "rows", "--against", "short"), 3, "have different blocks: 3 in model.layers and 2"),
        ((*KL, "--budget", "0%"), 2, "expected a percentage above 0 such as +5%, got '0%'"),
        ((*KL, "--budget", "none"), 2, "expected a percentage above 0 such as +5%, got 'none'"),
        ((*KL, "--tokens", "2"), 3, "--tokens 2 reads too few rows"),
        ((*KL, "--gate", "kl_max[x]"), 3, "no gate is called 'kl_max[x]'"),
        (("damaged", "rows", *FLOAT, "--kl", "nan"), 2, "--kl: expected a finite number above 0"),
        (("float", "rows", *FLOAT, "--kl", "0.1"), 3, "have the same weights"),
        ((*KEEP[:-2],), 2, "--bits: expected --keep-bits too"),
        ((*KL, "--keep-bits", "9"), 2, "--keep-bits: expected --keep and --bits"),
        ((*KEEP, "--keep-bits", "3"), 2, "a number above --bits and below 32; got 3"),
        ((*KEEP, "--keep", "float16"), 3, "'float16'"),
        ((*KEEP, "--keep", "short"), 3, "models 'rough' and 'short' have different blocks"),
        ((*KEEP, "--keep", "rough"), 3, "'rough' and 'rough' have the same weights"),
        (("rough", "rows", *FLOAT, "--kl", "1e-5", "--keep", "int8"), 3, "even 'int8' does not pass: "),
        (("rough", "rows", *FLOAT, "--kl", "0.3", "--keep", "int8"), 3, "many bytes as those of 'int8'"),
        ((*KL, "--write", "nowhere/keep.yaml"), 3, "--write nowhere/keep.yaml: cannot be written: "),
        ((*KL, "--html", "."), 3, "--html .: cannot be written: Is a directory"),
        ((*KL, "--html", "./rows.jsonl"), 3, "--html rows.jsonl: expected another file than those of the models"),
        ((*KL, "--gate", "test_a.py::test_x"), 3, "write the gate into "),
        ((*KL, "--write-gguf", "/proc/mixed.gguf"), 3, "--write-gguf /proc/mixed.gguf: cannot be written: "),
        ((*KL, "--write", "same", "--html", "./same"), 3, "expected a file for each of --write and --html"),
        (("damaged", "rows", *FLOAT, "--config", "wrong.yaml"), 3, "kl_max.sigma: unknown argument"),
        (("why", "float", "rows", *FLOAT), 3, "have the same weights"),
    ],
)
def test_what_cannot_be_fixed_or_explained_is_said(folder: Path, arguments: tuple[str, ...], rc: int, says: str):
    words = [*arguments] if arguments[0] == "why" else ["fix", *arguments]
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
    assert (3 if isinstance(done.exception, LmgateError) else done.exit_code) == rc
    assert says in (done.stderr if rc == 2 else str(done.exception))


def test_ctrl_c_says_what_is_kept_and_after_a_kill_too_the_command_goes_on_where_it_was(folder: Path, tmp_path: Path):
    arguments = [*KL, "--cache", str(tmp_path / "cache")]

    def entries() -> dict[Path, int]:
        # An entry that is written again is another file, even with the same content.
        return {path: path.stat().st_ino for path in (tmp_path / "cache").rglob("*.lmgate")}

    # A shell that runs the tests in the background has their processes ignore SIGINT.
    talkative = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    talkative += "; from pytest_lmgate.report import text; text._LOG_SECONDS = 0.0"
    talkative += "; from pytest_lmgate.cli.app import main; main()"
    process = start(folder, *arguments, code=("-c", talkative))
    counted = r"lmgate: damaged against float: [1-9]\d* of at most \d+ measurements, about \d+ s left"
    assert process.stderr is not None
    # A line of progress comes in the middle of a measurement.
    said = "".join(itertools.takewhile(lambda line: not re.search(counted, line), process.stderr))
    process.send_signal(signal.SIGINT)
    said += process.communicate(timeout=60)[1]
    stopped = re.search(r"stopped after (\d+) measurements; these are kept, and the same command goes on", said)
    assert stopped, said
    assert int(stopped[1]) <= len(entries())
    process = start(folder, *arguments)
    wait_for(lambda: len(entries()) >= 8, "eight measurements are kept", timeout=120)
    process.kill()
    process.communicate()
    before = entries()
    first = found(folder, *arguments)
    after = entries()
    assert 8 <= len(before) < len(after)
    assert before.items() <= after.items(), "measured again"
    assert len(after) > len(first["groups"]) + len(first["sets"])
    assert found(folder, *arguments) == first
    assert entries() == after
