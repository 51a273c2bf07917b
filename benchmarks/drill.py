"""`lmgate drill`: its cost and memory, against those of measuring the same gates.

    python benchmarks/drill.py cost          # processor seconds of a drill of the example, in those of one measurement
    python benchmarks/drill.py memory        # peak memory of a drill, in that of measuring the same gates

Exits with 1 if a requirement is broken, unless --no-check is given.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from comparison import Row, arguments, exit_status, print_rows
from subject import word_tokenizer

from pytest_lmgate.plugin.options import CI_VARIABLES

ROOT = Path(__file__).resolve().parents[1]
VOCABULARY = 97
LEFT_OUT = {"PYTHONDONTWRITEBYTECODE", "PYTEST_VERSION", "PYTEST_CURRENT_TEST", *CI_VARIABLES}


def round_blocks(blocks: Any, bits: int) -> None:
    """Round all linear layers of blocks, row by row."""
    import torch

    for layer in blocks.modules():
        if isinstance(layer, torch.nn.Linear):
            step = layer.weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
            layer.weight.copy_((layer.weight / step).round() * step)


def begin(command: Sequence[str], folder: Path, output: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Begin to run this Python in a project."""
    env = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    return subprocess.Popen([sys.executable, *command], cwd=folder, env=env, stdout=output, stderr=output, text=True)


EXAMPLE = {
    "kl int8 few-bulletins --reference float": "limit: 0.01",
    "ppl int8 few-bulletins": "limit: 2.2",
    "accuracy writer quiz": "limit: 0.95",
    "bleu writer records": "limit: 80",
}
"""What gates measure, as arguments of `lmgate measure`."""
ALL_BLOCKS = ("noise", "fp8-e5m2", "skip")
# Runs commands of lmgate one after the other, and prints the processor seconds of each but what the first one loads.
_TIMED = """
import contextlib, io, json, shutil, sys, time
from pytest_lmgate.cli.app import app
seconds = []
for command in json.loads(sys.argv[1]):
    shutil.rmtree(".lmgate_cache", ignore_errors=True)
    begun = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        app(command)
    seconds.append(time.process_time() - begun)
print(json.dumps([seconds, said.getvalue()]))
"""


def run_cost(folder: Path, gates: Mapping[str, str] = EXAMPLE, *more: str) -> list[Row]:
    """Print what a drill of each gate of the example costs, by one measurement of the gate."""
    shutil.copytree(ROOT / "example_project", folder, ignore=shutil.ignore_patterns(".lmgate_cache"))
    file, rows, once, drill = folder / "lmgate.yaml", list[Row](), 0.0, 0.0
    head = file.read_text()
    for measured, limit in gates.items():
        metric, model, dataset, *reference = measured.split()
        marker = f"{metric}_{'max' if metric in ('kl', 'ppl') else 'min'}"
        given = f"model: {model}, dataset: {dataset}, {limit}" + (f", reference: {reference[1]}" if reference else "")
        file.write_text(f"{head}gates:\n  - {marker}: {{{given}}}\n")
        measure = ["measure", *measured.split()]
        commands = json.dumps([measure, measure, ["drill", "--json", "--seconds", "36000", *more]])
        with begin(["-c", _TIMED, commands], folder) as process:
            output, error = process.communicate()
        if process.returncode:
            raise SystemExit(f"{marker}: {error}")
        (_, one, whole), said = json.loads(output)
        trials = [len(each["trials"]) for each in json.loads(said)["findings"]]
        once, drill = once + one, drill + whole
        note = f"{one:.1f} s once; {sum(map(bool, trials))} faults reach it, {sum(trials)} broken models"
        rows.append(Row(marker, f"{whole / one:.1f} times", note=note))
    return [*rows, Row("all gates", f"{drill / once:.1f} times", "12", drill <= 12 * once, f"{drill:.0f} s")]


def run_memory(folder: Path, width: int = 1024) -> list[Row]:
    """Print the peak memory of a drill with faults of all blocks, against that of measuring its two gates."""
    import torch
    import transformers

    folder.mkdir()
    tokenizer = word_tokenizer([f"w{at}" for at in range(VOCABULARY - 1)])
    sizes = {"vocab_size": VOCABULARY, "hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": 8}
    sizes |= {"num_attention_heads": 8, "num_key_value_heads": 4}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes, tie_word_embeddings=False)
    model = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    size = sum(each.nbytes for each in model.parameters())
    for name in ("float", "int8"):
        if name == "int8":
            round_blocks(model.model.layers, 8)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    (folder / "pytest.ini").write_text("[pytest]\n")
    drawn = torch.randint(VOCABULARY - 1, (6, 80)).tolist()
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": tokenizer.decode(ids)}) + "\n" for ids in drawn))
    gates = ("{kl_max: {model: int8, reference: float, limit: 0.001, ", "{ppl_max: {model: int8, limit: 1000, ")
    text = "models: {float: {path: float}, int8: {path: int8}}\ndatasets: {rows: {path: rows.jsonl, text: text}}\n"
    lines = "".join(f"  - {gate}dataset: rows, protocol: document}}}}\n" for gate in gates)
    (folder / "lmgate.yaml").write_text(f"defaults: {{device: cpu, dtype: float32}}\n{text}gates:\n{lines}")
    once = peak(["-m", "pytest", "-q", "-p", "no:cacheprovider"], folder)
    drill = peak(["-m", "pytest_lmgate.cli", "drill", "--json", "--faults", ",".join(ALL_BLOCKS)], folder)
    note = f"{drill / 1e6:.0f} MB of {once / 1e6:.0f} MB; a model has {size / 1e6:.0f} MB"
    return [
        Row("a drill, by measuring its gates", f"{drill / once:.2f} times", "1.3", drill <= 1.3 * once, note),
        Row("what it has more, by the model", f"{(drill - once) / size:.2f}"),
    ]


def peak(command: Sequence[str], folder: Path) -> int:
    """Return the most memory that a command of this Python had, in bytes."""
    process = begin(command, folder, output=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: ended with {process.returncode}")
    return used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> int:
    """Run what was asked for."""
    parser = arguments(__doc__)
    parser.add_argument("part", choices=["cost", "memory"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "project"
        parts: dict[str, tuple[str, Callable[[], list[Row]]]] = {
            "cost": ("Processor seconds of a drill, by those of one measurement", lambda: run_cost(folder)),
            "memory": ("Peak memory", lambda: run_memory(folder)),
        }
        title, rows = parts[given.part]
        return exit_status(given, lambda: print_rows(title, rows()))


if __name__ == "__main__":
    sys.exit(main())
