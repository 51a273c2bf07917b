"""Commands that look at a project before anything is measured: ``check``, ``doctor``, ``markers`` and ``schema``."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from pytest_lmgate.cli.console import AsJson, CacheOption, ConfigOption, Root, root, show
from pytest_lmgate.cli.measure import measuring
from pytest_lmgate.errors import ConfigError, LmgateError, OfflineError, RequirementError, nearest
from pytest_lmgate.identity import QUANTIZERS, versions
from pytest_lmgate.report.text import byte_size, counted
from pytest_lmgate.settings.entries import Project
from pytest_lmgate.settings.file import load_project, read_gates
from pytest_lmgate.settings.gates import Gate, NoRegression
from pytest_lmgate.settings.help import arguments_help, fixtures_help, json_schema, markers_help
from pytest_lmgate.settings.metrics import METRICS
from pytest_lmgate.settings.options import find_project_file
from pytest_lmgate.settings.session import CacheKey
from pytest_lmgate.version import __version__

if TYPE_CHECKING:
    from pytest_lmgate.measure.binding import BoundGate
    from pytest_lmgate.measure.evaluator import Evaluator

_NEEDED = ("torch", "transformers", "tokenizers", "datasets")
_PLUGINS = ("pytest", "pytest-xdist", "peft")
# The module of each other engine's library, and the extra that installs it.
_ENGINES = {
    "llama.cpp": ("llama_cpp", "gguf"),
    "onnx": ("onnxruntime", "onnx"),
    "server": ("httpx2", "server"),
    "vllm": ("vllm", "vllm"),
}
_COLLECTED = "collected"
_MOST_CONTEXT = 10**6  # tokens


class Diagnosis(NamedTuple):
    """A finding and its remedy; `wrong` if a session would fail or mislead."""

    topic: str
    fact: str
    advice: str = ""
    wrong: bool = False


def check(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Files to check (default: the nearest lmgate.yaml)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check lmgate.yaml, and report each error with its line; exit code 1 if there is one.

    Looks at models and data, runs no model, and fetches nothing.
    """
    facts, lines = {}, []
    for file in files or [_nearest()]:
        try:
            project, gates, problems, warnings = _read(file, looks=True)
            counts = f"{file}: {_counts(project, gates)}"
        except LmgateError as error:
            counts, problems, warnings = "", [str(error)], []
        facts[str(file)] = {"ok": not problems, "problems": problems, "warnings": warnings}
        lines += [*(problems or [counts]), *(f"warning: {warning}" for warning in warnings)]
    ok = all(fact["ok"] for fact in facts.values())
    show({"ok": ok, "files": facts}, "\n".join(lines), as_json=as_json)
    if not ok:
        raise typer.Exit(1)


def doctor(cache: CacheOption = None, config: ConfigOption = None, as_json: AsJson = False) -> None:
    """Report problems here, and how to fix them.

    Checks versions, device, memory, cache, lmgate.yaml and baseline. The exit code is 1 if something is wrong.
    """
    here = root()
    checks: list[tuple[str, Callable[[], Iterator[Diagnosis]], str]] = [
        ("package", _versions, ""),
        ("device", _device, "Repair the installation of torch."),
        ("cache", lambda: _cache(here, cache), "Measurements cannot be kept until this is fixed."),
        ("lmgate.yaml", lambda: _project(here, config), "No gate runs until this is fixed."),
        ("baseline", lambda: _baseline(here), "Restore it from version control."),
    ]
    findings = []
    for topic, look, advice in checks:
        try:
            findings += list(look())
        except (LmgateError, ImportError, OSError) as error:
            findings.append(Diagnosis(topic, str(error), advice, wrong=True))
    lines = []
    for finding in findings:
        lines.append(f"{'WRONG' if finding.wrong else 'ok':<5}  {finding.topic:<11}  {finding.fact}")
        if finding.advice:
            lines.append(f"{'':20}{finding.advice}")
    wrong = sum(finding.wrong for finding in findings)
    lines.append(f"{counted(wrong, 'thing')} wrong" if wrong else "nothing is wrong")
    show({"ok": not wrong, "findings": [finding._asdict() for finding in findings]}, "\n".join(lines), as_json=as_json)
    if wrong:
        raise typer.Exit(1)


def markers(
    name: Annotated[str, typer.Argument(help="A marker or fixture, such as ppl_max (default: all).")] = "",
    as_json: AsJson = False,
) -> None:
    """List markers and fixtures with their arguments."""
    help_texts, width = {**markers_help(), **fixtures_help()}, shutil.get_terminal_size().columns
    if name and name not in help_texts:
        raise typer.BadParameter(f"no marker or fixture is called {name!r}{nearest(name, help_texts)}")
    arguments = [
        textwrap.fill(f"{argument}{f'={default}' if default else ''}: {words}", width, subsequent_indent="    ")
        for argument, (default, words) in (arguments_help(name).items() if name else ())
    ]
    shown = {name: help_texts[name]} if name else help_texts
    last = (
        "\n".join(arguments).replace("``", "")
        if name
        else "lmgate markers NAME explains each argument and its default."
    )
    show(shown, "\n\n".join([*shown.values(), last]), as_json=as_json)


def schema(as_json: AsJson = False) -> None:
    """Print the JSON Schema of lmgate.yaml, for editors."""
    del as_json  # it is JSON either way
    show(json_schema(), "", as_json=True)


def _nearest() -> Path:
    here = root()
    file = here.project_file(None) or find_project_file(here.start)
    if file is None:
        raise ConfigError(f"{Project(here.start).origin}; name the file")
    return file


def _read(file: Path, *, looks: bool = False) -> tuple[Project, int, list[str], list[str]]:
    """Return a file's project, the number of its gates, errors and warnings.

    With `looks`, models and data are looked at too, as far as that takes neither a model nor the network.
    """
    project = load_project(file.parent, file)
    gates, problems = read_gates(file)
    warnings, reason = [], ""
    with measuring(project=project, looks=True) as session:
        for entry in gates:
            try:
                bound = session.evaluator.bind_gate(entry.gate)
            except LmgateError as error:
                reason = reason or (_said_by_pytest(file) if _may_be_users(entry.gate, project) else "")
                if not _may_be_users(entry.gate, project) or entry.key in reason:
                    problems.append(entry.problem(error))
                elif reason != _COLLECTED:
                    warnings.append(f"{entry.problem(error)}; pytest cannot collect here, which may know it:\n{reason}")
                continue
            try:
                warnings += map(entry.problem, _opened(session.evaluator, bound) if looks else [])
            except (OfflineError, RequirementError):
                continue  # on the hub, or for another machine
            except LmgateError as error:
                problems.append(entry.problem(error))
    return project, len(gates), problems, warnings


def _opened(evaluator: Evaluator, bound: BoundGate) -> list[ConfigError]:
    """Open a gate's models and data, as a session does before a model runs; say why it can never decide, if so."""
    from pytest_lmgate.stats.comparison import no_interval

    gate = bound.gate
    measurement, *_ = [evaluator.open(side) for side in bound.sides]
    tokenizer = next((model.tokenizer for model in measurement.models if model.tokenizer), None)
    goes_by_noise = isinstance(gate, NoRegression) or gate.confidence is not None
    # A server that is not asked may have any context.
    has_context = all((model.context or 0) < _MOST_CONTEXT for model in measurement.models)
    if tokenizer is None or not goes_by_noise or not has_context:
        return []
    reason = no_interval(*measurement.clusters(tokenizer()))
    return [ConfigError(f"this gate can never decide: {reason}")] if reason else []


def _may_be_users(gate: Gate, project: Project) -> bool:
    """Whether a gate names a metric or an engine that only a conftest.py or a plugin of pytest may register."""
    from pytest_lmgate.engines.registry import BACKENDS

    names = [name for evaluation in gate.evaluations for name in (evaluation.model, evaluation.reference)]
    engines = {model.backend for name in names if (model := project.spec.models.get(name)) is not None}
    return gate.evaluation.metric not in METRICS or not engines <= {None, *BACKENDS}


def _said_by_pytest(file: Path) -> str:
    """Return pytest's error from collecting a file's gates; `_COLLECTED` if there is none."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", f"--lmgate-config={file.absolute()}"]
    done = subprocess.run(
        [*command, str(file.absolute())], cwd=file.absolute().parent, capture_output=True, text=True, check=False
    )
    return _COLLECTED if done.returncode == 0 else (done.stdout + done.stderr).strip()


def _counts(project: Project, gates: int) -> str:
    counts = {"model": len(project.spec.models), "dataset": len(project.spec.datasets), "gate": gates}
    return ", ".join(counted(number, noun) for noun, number in counts.items())


def _versions() -> Iterator[Diagnosis]:
    from pytest_lmgate.engines.registry import BACKENDS

    yield Diagnosis(
        "package", f"pytest-lmgate {__version__}, Python {platform.python_version()}, {platform.platform()}"
    )
    if not any(each.value.startswith("pytest_lmgate") for each in entry_points(group="pytest11")):
        yield Diagnosis("plugin", "not known to pytest", "Install the package with pip, so that pytest loads it.", True)
    libraries = versions((*_NEEDED, *_PLUGINS, *QUANTIZERS))
    absent = [name for name in _NEEDED if libraries[name] == "absent"]
    advice = f"Install {', '.join(absent)} with pip." if absent else ""
    shown = ", ".join(
        f"{name} {version}" for name, version in libraries.items() if version != "absent" or name in absent
    )
    yield Diagnosis("libraries", shown, advice, wrong=bool(absent))
    lacking = {engine for engine, (module, _) in _ENGINES.items() if find_spec(module) is None}
    lacking |= {"transformers"} if {"torch", "transformers"} & {*absent} else set()
    yield Diagnosis("engines", ", ".join(f"{engine} {'no' if engine in lacking else 'yes'}" for engine in BACKENDS))


def _device() -> Iterator[Diagnosis]:
    from pytest_lmgate.engines.devices import available_bytes, resolve_device

    device = resolve_device("auto")
    free = f"{byte_size(available_bytes(device))} free"
    yield Diagnosis("device", f"auto is {device}, {free}, {counted(os.cpu_count() or 1, 'processor')}")


def _cache(here: Root, given: str | None) -> Iterator[Diagnosis]:
    from pytest_lmgate.cache.store import check, find_entries

    folder, key = here.cache(given), CacheKey.from_environment()
    entries = find_entries(folder)
    broken = [entry for entry in entries if entry.state not in ("set aside", "newer") and check(entry, key)]
    place = next(path for path in (folder, *folder.parents) if path.exists())
    fact = f"{folder}: {counted(len(entries), 'entry')}, {byte_size(sum(entry.size for entry in entries))}"
    advice = f"{len(broken)} of them cannot be trusted: `lmgate cache verify` names them." if broken else ""
    if not place.is_dir() or not os.access(place, os.W_OK):
        advice = f"{place} cannot be written: new measurements are not kept."
    yield Diagnosis("cache", fact if key is None else f"{fact}, signed", advice, wrong=bool(advice))


def _project(here: Root, given: str | None) -> Iterator[Diagnosis]:
    from pytest_lmgate.engines.registry import BACKENDS, backend_name

    yield Diagnosis("rootdir", f"{here.folder}{f', by {here.ini.name}' if here.ini else ''}")
    project = load_project(here.start, here.project_file(given))
    if project.file is None:
        yield Diagnosis("lmgate.yaml", f"none in {project.folder} or above", "`lmgate init` makes one.")
        return
    project, gates, problems, _ = _read(project.file)
    yield Diagnosis("lmgate.yaml", f"{project.file}: {_counts(project, gates)}")
    for problem in problems:
        yield Diagnosis("gate", problem, "No gate runs until this is fixed.", wrong=True)
    for key, entries in (("models", project.spec.models), ("datasets", project.spec.datasets)):
        for name, entry in entries.items():
            results = getattr(entry, "results_spec", None)
            written = entry.path if results is None else results.path
            if written is not None and not (path := project.path(written)).exists():
                advice = f"Correct {key}.{name}.{'path' if results is None else 'results'}, or add the files."
                yield Diagnosis(key.removesuffix("s"), f"{name}: {path} does not exist", advice, wrong=True)
    for name, model in project.spec.models.items():
        if model.backend is not None and model.backend not in BACKENDS:
            unknown = f"{name}: pytest-lmgate has no engine {model.backend!r}{nearest(model.backend, BACKENDS)}"
            yield Diagnosis("model", unknown, "Only pytest knows whether a conftest registers it.")
            continue
        try:
            module, extra = _ENGINES.get(backend_name(name, model, {}), ("", ""))
        except LmgateError as error:
            yield Diagnosis("model", str(error), "Correct the entry.", wrong=True)
            continue
        if module and find_spec(module) is None:
            advice = f"pip install 'pytest-lmgate[{extra}]'"
            yield Diagnosis("model", f"{name}: its engine is not installed", advice, wrong=True)


def _baseline(here: Root) -> Iterator[Diagnosis]:
    from pytest_lmgate.judge.baseline import read_baseline

    path = here.baseline(None)
    entries = read_baseline(path)
    yield Diagnosis("baseline", f"{path}: {counted(len(entries), 'entry')}" if path.exists() else f"{path}: none yet")
