"""``lmgate doctor``: what a session here would find, and what to do about what is wrong."""

from __future__ import annotations

__all__ = ["doctor"]

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING

import typer

from pytest_lmgate.cli.output import AsJson, show
from pytest_lmgate.cli.places import CacheOption, ConfigOption, root
from pytest_lmgate.config.rootdir import Root
from pytest_lmgate.errors import LmgateError, nearest
from pytest_lmgate.report.wording.counted import byte_size, counted

if TYPE_CHECKING:
    from pytest_lmgate.config.specs import ModelSpec

_NEEDED = ("torch", "transformers", "tokenizers", "datasets")
_PLUGINS = ("pytest", "pytest-xdist", "pytest-testmon")
# Engines beside transformers: the module of the library that each needs, and the extra that installs it.
_ENGINES = {
    "llama.cpp": ("llama_cpp", "gguf"),
    "onnx": ("onnxruntime", "onnx"),
    "server": ("httpx2", "server"),
    "vllm": ("vllm", "vllm"),
}


@dataclass(frozen=True)
class Finding:
    """What was found about a topic, and what to do; `wrong` if a session would fail, or not be what it seems, by it."""

    topic: str
    fact: str
    advice: str = ""
    wrong: bool = False


def doctor(cache: CacheOption = None, config: ConfigOption = None, as_json: AsJson = False) -> None:
    """Say what is wrong here, and what to do about it.

    Looks at versions, device, memory, cache, lmgate.yaml and baseline. The exit code is 1 if something is wrong.
    """
    here = root()
    checks: list[Callable[[], Iterator[Finding]]] = [
        _versions,
        _device,
        lambda: _cache(here, cache),
        lambda: _project(here, config),
        lambda: _baseline(here),
    ]
    found = [finding for check in checks for finding in check()]
    wrong = [finding for finding in found if finding.wrong]
    lines = []
    for each in found:
        lines.append(f"{'WRONG' if each.wrong else 'ok':<5}  {each.topic:<11}  {each.fact}")
        lines += [f"{'':20}{each.advice}"] * bool(each.advice)
    lines.append(f"{counted(len(wrong), 'thing')} wrong" if wrong else "nothing is wrong")
    show({"ok": not wrong, "findings": [asdict(each) for each in found]}, "\n".join(lines), as_json=as_json)
    if wrong:
        raise typer.Exit(1)


def _versions() -> Iterator[Finding]:
    from pytest_lmgate import __version__
    from pytest_lmgate.identity.libraries import QUANTIZERS, versions

    yield Finding("package", f"pytest-lmgate {__version__}, Python {platform.python_version()}, {platform.platform()}")
    is_plugin = any(each.value.startswith("pytest_lmgate") for each in entry_points(group="pytest11"))
    advice = "" if is_plugin else "Install the package with pip, so that pytest loads it."
    yield Finding("plugin", "known to pytest" if is_plugin else "not known to pytest", advice, wrong=not is_plugin)
    needed = versions(_NEEDED)
    absent = [name for name, version in needed.items() if version == "absent"]
    advice = f"Install {', '.join(absent)} with pip." if absent else ""
    yield Finding("libraries", ", ".join(map(" ".join, needed.items())), advice, wrong=bool(absent))
    others = versions((*_PLUGINS, "peft", *QUANTIZERS)).items()
    yield Finding("beside", ", ".join(f"{name} {version}" for name, version in others if version != "absent"))
    there = [f"{engine} {'yes' if find_spec(module) else 'no'}" for engine, (module, _) in _ENGINES.items()]
    yield Finding("engines", f"transformers yes, {', '.join(there)}")


def _device() -> Iterator[Finding]:
    from pytest_lmgate.backends.hf.models.device import resolve_device
    from pytest_lmgate.backends.memory import available_bytes

    try:
        device = resolve_device("auto")
        free = f"{byte_size(available_bytes(device))} free"
    except (LmgateError, ImportError, OSError) as error:
        yield Finding("device", str(error), "Repair the installation of torch.", wrong=True)
        return
    yield Finding("device", f"auto is {device}, {free}, {counted(os.cpu_count() or 1, 'processor')}")


def _cache(here: Root, given: str | None) -> Iterator[Finding]:
    from pytest_lmgate.cache.inventory import check, find_entries
    from pytest_lmgate.config.cache_key import CacheKey

    folder = here.cache(given)
    try:
        key = CacheKey.from_environment()
        entries = find_entries(folder)
    except (LmgateError, OSError) as error:
        yield Finding("cache", str(error), "Measurements cannot be kept until this is mended.", wrong=True)
        return
    broken = [entry for entry in entries if entry.state not in ("set aside", "newer") and check(entry, key)]
    place = next(each for each in (folder, *folder.parents) if each.exists())
    writable = place.is_dir() and os.access(place, os.W_OK)
    fact = f"{folder}: {counted(len(entries), 'entry')}, {byte_size(sum(entry.size for entry in entries))}"
    fact += ", signed" * (key is not None)
    advice = []
    if broken:
        advice.append(f"{len(broken)} of them cannot be trusted: `lmgate cache verify` names them.")
    if not writable:
        advice.append(f"{place} cannot be written: every session measures anew.")
    yield Finding("cache", fact, " ".join(advice), wrong=bool(advice))


def _project(here: Root, given: str | None) -> Iterator[Finding]:
    from pytest_lmgate.config.file import load_project
    from pytest_lmgate.spec.yaml_gates import read_gates

    yield Finding("rootdir", f"{here.folder}{f', by {here.ini.name}' if here.ini else ''}")
    try:
        project = load_project(here.start, here.project_file(given))
        gates, problems = ([], []) if project.file is None else read_gates(project.file)
    except LmgateError as error:
        yield Finding("lmgate.yaml", str(error), "No gate runs until this is mended.", wrong=True)
        return
    if project.file is None:
        yield Finding("lmgate.yaml", f"none from {project.folder} upward", "`lmgate init` makes one.")
        return
    models, datasets = project.spec.models, project.spec.datasets
    counts = [counted(len(each), word) for each, word in ((models, "model"), (datasets, "dataset"), (gates, "gate"))]
    yield Finding("lmgate.yaml", f"{project.file}: {', '.join(counts)}")
    for problem in problems:
        yield Finding("gate", problem, "No gate runs until this is mended.", wrong=True)
    for key, specs in (("models", models), ("datasets", datasets)):
        for name, spec in specs.items():
            if spec.path is not None and not (path := project.path(spec.path)).exists():
                advice = f"Mend {key}.{name}.path, or bring the files."
                yield Finding(key.removesuffix("s"), f"{name}: {path} does not exist", advice, wrong=True)
    yield from _engines(models)


def _engines(models: Mapping[str, ModelSpec]) -> Iterator[Finding]:
    """Name the models whose engine is not installed."""
    from pytest_lmgate.backends.table import BACKENDS, backend_of

    for name, spec in models.items():
        try:
            engine = backend_of(spec, name, {}).name
        except LmgateError as error:
            if spec.backend is None or spec.backend in BACKENDS:
                yield Finding("model", str(error), "Mend the entry.", wrong=True)
            else:
                known = f"pytest-lmgate has no engine {spec.backend!r}{nearest(spec.backend, BACKENDS)}"
                yield Finding("model", f"{name}: {known}", "Only pytest sees whether a conftest registers it.")
            continue
        module, extra = _ENGINES.get(engine, ("", ""))
        if module and find_spec(module) is None:
            advice = f"pip install 'pytest-lmgate[{extra}]'"
            yield Finding("model", f"{name}: its engine {engine} is not installed", advice, wrong=True)


def _baseline(here: Root) -> Iterator[Finding]:
    from pytest_lmgate.judge.baselines import read_baseline

    path = here.baseline(None)
    try:
        entries = read_baseline(path)
    except LmgateError as error:
        yield Finding("baseline", str(error), "Restore it from version control.", wrong=True)
        return
    yield Finding("baseline", f"{path}: {counted(len(entries), 'entry')}" if path.exists() else f"{path}: none yet")
