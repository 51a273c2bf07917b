"""Whole processes: peak memory of one measurement, `pytest` with a gate, `lm_eval` on the same document."""

from __future__ import annotations

__all__ = ["HEAVY", "GateProject", "LmEval", "environment", "extra_peak_bytes"]

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from subject import CONTEXT, Subject, load_model

HEAVY = ("torch", "transformers", "datasets", "pyarrow", "pandas", "scipy", "numpy")

_PROJECT = """\
models: {subject: {path: model, device: cpu, dtype: float32}}
datasets: {text: {path: text.txt}}
"""

_TEST = """\
import pytest


@pytest.mark.ppl_max("subject", "text", 1e15, protocol="lm-eval", unit="word")
def test_perplexity():
    pass
"""

# Written as the process ends, so that it says what the whole session imported.
_CONFTEST = """\
import sys
from pathlib import Path


def pytest_unconfigure():
    Path(__file__).with_name("imported.txt").write_text("\\n".join(sys.modules))
"""

_TASK = """\
task: document
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - metric: word_perplexity
"""


class GateProject:
    """A project with one gate on the subject, in the subject's folder."""

    def __init__(self, subject: Subject, env: Mapping[str, str]) -> None:
        self._folder, self._env = subject.folder, env
        (self._folder / "lmgate.yaml").write_text(_PROJECT)
        (self._folder / "test_gate.py").write_text(_TEST)
        (self._folder / "conftest.py").write_text(_CONFTEST)
        (self._folder / "pytest.ini").write_text("[pytest]\n")

    def cold(self) -> float:
        """Run pytest with an empty cache; return the perplexity."""
        shutil.rmtree(self._folder / ".lmgate_cache", ignore_errors=True)
        return self.cached()

    def cached(self) -> float:
        """Run pytest with what is in the cache; return the perplexity."""
        report = self._folder / "report.json"
        # Other plugins that happen to be installed are not what is measured.
        command = [sys.executable, "-m", "pytest", "-p", "pytest_lmgate.plugin", f"--lmgate-report=json:{report}"]
        _run(command, self._folder, {**self._env, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
        return float(json.loads(report.read_bytes())["gates"][0]["value"])

    def imported(self) -> set[str]:
        """Modules that the last run had imported when it ended."""
        return set((self._folder / "imported.txt").read_text().split())


class LmEval:
    """The harness on the same document, by a task of our own."""

    def __init__(self, subject: Subject, batch_size: str, env: Mapping[str, str]) -> None:
        self._out = subject.folder / f"lm_eval_{batch_size}"
        tasks = subject.folder / "tasks"
        tasks.mkdir(exist_ok=True)
        (tasks / "document.yaml").write_text(_TASK.format(rows=subject.rows))
        self._folder = subject.folder
        self._env = {**env, "HF_DATASETS_CACHE": str(subject.folder / "datasets_cache")}
        self._command = [
            *(sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--device", "cpu", "--batch_size", batch_size),
            *("--model_args", f"pretrained={subject.model},dtype=float32,max_length={CONTEXT}"),
            *("--tasks", "document", "--include_path", str(tasks), "--output_path", str(self._out)),
        ]
        self.word_perplexity = float("nan")

    def run(self) -> float:
        """Run it; return the word perplexity."""
        shutil.rmtree(self._out, ignore_errors=True)
        _run(self._command, self._folder, self._env)
        (results,) = self._out.rglob("results_*.json")
        self.word_perplexity = float(json.loads(results.read_bytes())["results"]["document"]["word_perplexity,none"])
        return self.word_perplexity


def environment(subject: Subject, threads: int) -> dict[str, str]:
    """The environment of every process: so many threads, no network, and compiled modules kept as usual.

    Where bytecode is not written, modules of an editable installation would be compiled again in every process.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **env,
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPYCACHEPREFIX": str(subject.folder / "bytecode"),
    }


def extra_peak_bytes(which: str, subject: Subject, stride: int, threads: int) -> int:
    """Run one measurement in a fresh process; return by how much memory rose above the loaded model at the highest.

    Args:
        which: ``ours`` or ``loop``.
        subject: What to measure.
        stride: Stride of the windows.
        threads: Threads of torch.
    """
    arguments = [which, str(subject.folder), str(subject.tokens), str(stride), str(threads)]
    command = [sys.executable, __file__, *arguments]
    return int(_run(command, subject.folder, environment(subject, threads)).splitlines()[-1])


def _measure_peak(which: str, subject: Subject, stride: int, threads: int) -> int:
    """The same, in this process. Linux: the high-water mark of the resident set is reset after loading."""
    from contestants import job, ours, published_loop

    what = job(
        load_model(subject, threads), subject.text.read_text(encoding="utf-8"), max_length=CONTEXT, stride=stride
    )
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_bytes("VmHWM")
    {"ours": ours, "loop": published_loop}[which](what)
    return _status_bytes("VmHWM") - before


def _status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"{key}:"))
    return int(value) * 1024


def _run(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> str:
    done: Any = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return str(done.stdout)


if __name__ == "__main__":
    which, folder, tokens, stride, threads = sys.argv[1:]
    print(_measure_peak(which, Subject(Path(folder), int(tokens)), int(stride), int(threads)))
