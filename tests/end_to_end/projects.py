"""Small projects on disk, and a real pytest process run in each.

The models are tiny Llamas with a word tokenizer, made once per session. `die` is uniform over its vocabulary, so its
perplexity is the vocabulary's size exactly, as a fair die's is its number of faces; `sure` is sure of itself and wrong;
`hopeless` is so wrong that its perplexity is beyond the range of a float; the weights of `nan` are damaged.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tests.models.tiny import tiny_llama, word_level
from tests.warm import READ_BY_PYTHON, READ_BY_TRANSFORMERS, Imported, run_warm, warm_python

FACES = 60
CONTEXT = 32
WORDS = 400

# Plugins that take longer to import than all of pytest, or run tests again; a test of one takes it back in by -p.
LEFT_OUT = " ".join(f"-pno:{name}" for name in ("hypothesispytest", "anyio", "rerunfailures", "pytest-retry"))


def marked(**gates: str) -> str:
    """Return a file with a test for each gate, called as the gate is: a marker as it stands behind ``pytest.mark.``."""
    return "import pytest\n" + "".join(
        f"\n@pytest.mark.{gate}\ndef test_{name}(): pass\n" for name, gate in gates.items()
    )


GATE = marked(gate="ppl_max('die', 'words', 60.5)")
BROKEN_GATE = marked(gate="ppl_max('die', 'words', 59.5)")

# For a project's conftest: one line in measured.txt whenever a model is taken to be run, in whichever process.
COUNT_MEASUREMENTS = """
    import pathlib
    from pytest_lmgate.measure.lookup import Measurements

    plain_runner = Measurements.runner

    def counted(self, model):
        with pathlib.Path(__file__).with_name("measured.txt").open("a") as file:
            file.write(f"{model.name}\\n")
        return plain_runner(self, model)

    Measurements.runner = counted
"""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a pytest process left: its exit code and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    @property
    def counts(self) -> dict[str, int]:
        """Counts of the last line, as in ``{"passed": 2, "failed": 1}``."""
        last = next((line for line in reversed(self.out.splitlines()) if re.search(r" in \d+\.\d\ds", line)), "")
        return {word.rstrip("s"): int(count) for count, word in re.findall(r"(\d+) ([a-z]+)", last)}

    def expect(self, code: int, **counts: int) -> Outcome:
        """Check the exit code and, where any is given, all counts of outcomes."""
        assert self.code == code, f"expected exit code {code}, got {self.code}\n{self.text}"
        got = {word: count for word, count in self.counts.items() if word not in ("deselected", "warning")}
        assert not counts or got == counts, f"expected {counts}, got {got}\n{self.text}"
        return self

    def says(self, *texts: str) -> Outcome:
        """Check that every one of `texts` was written, in any stream."""
        for text in texts:
            assert text in self.text, f"expected to read {text!r} in\n{self.text}"
        return self

    def is_silent_on(self, *texts: str) -> Outcome:
        for text in texts:
            assert text not in self.text, f"expected not to read {text!r} in\n{self.text}"
        return self


@dataclasses.dataclass(frozen=True)
class Project:
    """A folder with a pytest project in it."""

    folder: Path
    imported: Imported = "transformers"

    @property
    def with_torch(self) -> Project:
        """The same project, whose sessions find torch and transformers imported."""
        return Project(self.folder)

    def write(self, **files: str) -> Project:
        """Write files: ``test_x`` and ``conftest`` are Python, ``pytest_ini`` and ``lmgate_yaml`` what they say."""
        for name, text in files.items():
            stem, _, suffix = name.rpartition("_")
            file = f"{stem}.{suffix}" if suffix in ("ini", "yaml", "txt", "jsonl", "csv") else f"{name}.py"
            (self.folder / file).write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return self

    @property
    def settings(self) -> str:
        return (self.folder / "lmgate.yaml").read_text(encoding="utf-8")

    def change(self, old: str, new: str) -> Project:
        assert old in self.settings, self.settings
        (self.folder / "lmgate.yaml").write_text(self.settings.replace(old, new), encoding="utf-8")
        return self

    def add(self, section: Literal["models", "datasets"], **entries: str) -> Project:
        """Add entries to lmgate.yaml, each written as what stands within its braces."""
        lines = "".join(f"  {name}: {{{entry}}}\n" for name, entry in entries.items())
        return self.change(f"{section}:\n", f"{section}:\n{lines}")

    def add_gates(self, *gates: str) -> Project:
        """Add the list of gates to lmgate.yaml, each as ``marker: {arguments}``."""
        lines = "".join(f"  - {gate}\n" for gate in gates)
        (self.folder / "lmgate.yaml").write_text(f"{self.settings}gates:\n{lines}", encoding="utf-8")
        return self

    def start(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdout: int = subprocess.PIPE,
        fresh: bool = True,
    ) -> Any:
        """Start pytest, in a new interpreter or in a warm one (see `tests.warm`), and return the process."""
        return subprocess.Popen(
            [self._python(env, fresh), "-m", "pytest", *arguments],
            cwd=cwd or self.folder,
            env=environment() | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        fresh: bool = False,
        early: bool = False,
        torch_free: bool = False,
    ) -> Outcome:
        """Run pytest to its end: in a warm Python, or in another one where `tests.warm` says that it is needed."""
        python = self._python(env, fresh, early, torch_free)
        if python == sys.executable:
            return finished(self.start(*arguments, env=env, cwd=cwd))
        variables = environment() | dict(env or {})
        done = run_warm(python, "-m", "pytest", *arguments, folder=cwd or self.folder, environment=variables)
        return Outcome(done.returncode, done.stdout, done.stderr)

    def _python(self, env: Mapping[str, str] | None, fresh: bool, early: bool = False, torch_free: bool = False) -> str:
        if fresh or any(name.startswith(READ_BY_PYTHON) and name != "PYTHONPATH" for name in env or ()):
            return sys.executable
        early = early or any(name.startswith(READ_BY_TRANSFORMERS) for name in env or ())
        return warm_python(environment(), "pytest" if torch_free else "torch" if early else self.imported)

    def report(self, name: str = "report.json") -> dict[str, Any]:
        """Read a JSON report; NaN and infinity, which JSON does not have, are refused."""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} in {name}")

        data: dict[str, Any] = json.loads((self.folder / name).read_text(encoding="utf-8"), parse_constant=refuse)
        return data

    @property
    def cache(self) -> Path:
        return self.folder / ".lmgate_cache"

    @property
    def entries(self) -> list[Path]:
        """Whole measurements in the cache."""
        return sorted(self.cache.glob("token-nll/*/*.lmgate"))

    @property
    def partials(self) -> list[Path]:
        """What interrupted measurements left."""
        return sorted(self.cache.glob("token-nll/*/*.partial"))

    @property
    def measured(self) -> list[str]:
        """Names of the models that were measured, with COUNT_MEASUREMENTS in the conftest."""
        file = self.folder / "measured.txt"
        return file.read_text().split() if file.exists() else []

    def model(self, name: str, source: Path) -> Path:
        """Copy a model into the project, to be changed."""
        target = self.folder / name
        shutil.copytree(source, target)
        return target


def finished(process: Any, timeout: float = 120) -> Outcome:
    """Wait for a process; it and all it started are killed when it takes too long."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"pytest did not end in {timeout} s\n{out}{err}") from None
    return Outcome(process.returncode, out or "", err)


def wait_for(condition: Any, what: str, timeout: float = 60) -> None:
    """Wait until `condition()` holds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.02)


def environment() -> dict[str, str]:
    """The environment without what this test session put there for itself.

    One thread, since the models are tiny, and pytest without LEFT_OUT, also where a test starts it by another way.
    """
    ours = ("PYTEST_", "LMGATE_", "PYTHONWARNINGS", "COV_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    kept |= {"OMP_NUM_THREADS": "1", "COLUMNS": "160", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**kept, "PYTEST_ADDOPTS": LEFT_OUT}


def scale_head(folder: Path, factor: float) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    weights = load_file(file)
    save_file(weights | {"lm_head.weight": weights["lm_head.weight"] * factor}, file, metadata={"format": "pt"})


def make_models(folder: Path) -> None:
    """Save the models that the projects name, and the text that they are measured on."""
    import torch

    vocabulary = ["<unk>", "<s>", "</s>", *(f"w{index}" for index in range(FACES - 3))]
    tokenizer = word_level(vocabulary, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    torch.manual_seed(7)
    model = tiny_llama(FACES, hidden_size=16, intermediate_size=32, max_position_embeddings=CONTEXT)
    head = model.lm_head.weight
    with torch.no_grad():
        drawn = head.clone()
        for name, factor in {"die": 0.0, "sure": 1e2, "hopeless": 1e5, "nan": float("nan")}.items():
            head.copy_(drawn * factor)
            model.save_pretrained(folder / name)
            tokenizer.save_pretrained(folder / name)
    draw = torch.randint(3, FACES, (WORDS,)).tolist()
    (folder / "words.txt").write_text(" ".join(vocabulary[index] for index in draw), encoding="utf-8")


def lmgate(
    folder: Path, *arguments: str, code: int = 0, env: Mapping[str, str] | None = None, typed: str = ""
) -> Outcome:
    """Run a command to its end and check its exit code."""
    python = warm_python(environment(), "transformers" if arguments[0] in ("init", "measure", "why") else "pytest")
    variables = environment() | dict(env or {})
    done = run_warm(python, "-m", "pytest_lmgate.cli", *arguments, folder=folder, environment=variables, typed=typed)
    return Outcome(done.returncode, done.stdout, done.stderr).expect(code)


def lmgate_json(folder: Path, *arguments: str, code: int = 0) -> Any:
    """Run a command with ``--json``, and return what it printed."""
    return json.loads(lmgate(folder, *arguments, "--json", code=code).out)


def git(folder: Path, *arguments: str) -> str:
    """Run git as Ada; return what it printed."""
    who = ["-c", "user.name=Ada", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()
