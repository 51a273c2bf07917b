"""The command ``lmgate init``: asks or takes flags, measures once, shows what it proposes and why, and writes."""

from __future__ import annotations

__all__ = ["init"]

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_lmgate.cli.init.discovery import find_places, text_column
from pytest_lmgate.cli.output import AsJson, show
from pytest_lmgate.cli.places import root
from pytest_lmgate.config import FILE_NAME
from pytest_lmgate.errors import ConfigError, harmless_line

if TYPE_CHECKING:
    from pytest_lmgate.cli.init.proposal import Proposal

_SHOWN = 9  # to choose from


def init(
    model: Annotated[
        list[Path] | None, typer.Option("--model", help="Checkpoint to gate; may be given several times.")
    ] = None,
    dataset: Annotated[Path | None, typer.Option("--dataset", help="Text to measure it on.")] = None,
    margin: Annotated[float, typer.Option(min=0.1, max=1000, help="Limit above what is measured, in percent.")] = 5.0,
    tests: Annotated[bool, typer.Option("--tests", help="Write the gates as a test file, not in lmgate.yaml.")] = False,
    ci: Annotated[str, typer.Option("--ci", help="github writes a workflow of GitHub Actions.")] = "",
    device: Annotated[str | None, typer.Option(help="auto, cuda, mps, cpu.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask: take the first that is found.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write lmgate.yaml with gates that run, from a model and a text: measured once, with limits and reasons.

    It overwrites nothing.
    """
    if ci not in ("", "github"):
        raise typer.BadParameter(f"--ci: expected github, got {ci!r}")
    here, folder = root(), Path.cwd()
    if here.folder != folder:
        raise ConfigError(
            f"{FILE_NAME} belongs into pytest's rootdir, which is {here.folder}: run lmgate init there, or make "
            f"{folder} a rootdir of its own by an empty pytest.ini"
        )
    from pytest_lmgate.config import find_project_file

    if (there := find_project_file(folder)) is not None:
        raise ConfigError(f"{there} is there already; lmgate init overwrites nothing: move it away, or edit it")
    chosen, text = _chosen(folder, model or [], dataset, yes=yes)

    from pytest_lmgate.cli.init.files import project_text, require_absent, test_text, workflow_text, write_new
    from pytest_lmgate.cli.init.proposal import proposals
    from pytest_lmgate.cli.measuring import measuring
    from pytest_lmgate.config.file import Project
    from pytest_lmgate.config.specs import DatasetSpec, ModelSpec, ProjectSpec

    names = _names(chosen)
    models: dict[str, dict[str, Any]] = {
        name: {"path": _relative(path, folder)} for name, path in zip(names, chosen, strict=True)
    }
    data = text.resolve().stem
    datasets: dict[str, dict[str, Any]] = {data: {"path": _relative(text, folder)}}
    if text.suffix == ".jsonl" and (column := text_column(text)) not in ("text", None):
        datasets[data]["text"] = column
    files = {"project": folder / FILE_NAME, "baseline": here.baseline(None)}
    if here.ini is None:
        files["ini"] = folder / "pytest.ini"
    if tests:  # two names may have the same letters, so the numbers tell the functions apart
        files["tests"] = _folder_of_tests(here.settings.get("testpaths"), folder) / "test_models.py"
    repository = next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)
    if ci:
        files["ci"] = repository / ".github" / "workflows" / "model-quality.yml"
    require_absent(files.values())

    spec = ProjectSpec(
        models={name: ModelSpec(**entry) for name, entry in models.items()},
        datasets={name: DatasetSpec(**entry) for name, entry in datasets.items()},
    )
    with measuring(device=device, project=Project(folder, spec=spec)) as session:
        found = proposals(session, names, data, margin / 100)

    functions = {
        name: f"test_{re.sub(r'[^0-9a-zA-Z]+', '_', name).lower()}_{number}" for number, name in enumerate(names)
    }
    written = {"project": project_text(models, datasets, found, gates=not tests), "ini": "[pytest]\n"}
    written |= {"tests": test_text(found, functions)}
    if ci:
        extras = ["gguf" for path in chosen if path.suffix == ".gguf"]
        inner = folder.relative_to(repository).as_posix()
        written["ci"] = workflow_text(extras, "" if inner == "." else f"{inner}/")
    for kind, file in files.items():
        if kind != "baseline":
            write_new(file, written[kind])
    carriers = {each.model: FILE_NAME for each in found}
    if tests:
        test_file = files["tests"].relative_to(folder).as_posix()
        carriers = {name: f"{test_file}::{function}" for name, function in functions.items()}
    _write_baseline(files["baseline"], found, carriers)
    _tell(found, list(files.values()), folder, as_json=as_json)


def _chosen(folder: Path, models: list[Path], dataset: Path | None, *, yes: bool) -> tuple[list[Path], Path]:
    for path in (*models, *([] if dataset is None else [dataset])):
        if not path.exists():
            raise typer.BadParameter(f"{path} does not exist")
    if not models or dataset is None:
        found = find_places(folder)
        cut = "; only a part of the folder was looked at" * found.is_cut
        models = models or [_choice("model", "--model", found.models, folder, cut, yes=yes)]
        dataset = dataset or _choice("text", "--dataset", found.texts, folder, cut, yes=yes)
    return [path.absolute() for path in models], dataset.absolute()


def _choice(what: str, flag: str, found: list[Path], folder: Path, cut: str, *, yes: bool) -> Path:
    """Return the path that the user chooses, by its number or by itself."""
    if not found:
        looked_for = "a folder with config.json and *.safetensors, or a .gguf file"
        looked_for = looked_for if what == "model" else "a .txt, .raw or .jsonl file"
        raise ConfigError(f"no {what} was found in {folder} ({looked_for}){cut}; name it: {flag} PATH")
    if yes:
        return found[0]
    for number, path in enumerate(found[:_SHOWN], 1):
        typer.echo(harmless_line(f"{number}  {_relative(path, folder)}"), err=True)
    try:
        answer = typer.prompt(f"Which {what}? Number or path", default="1", err=True)
    except typer.Abort:
        raise typer.BadParameter(f"no answer: give {flag} PATH, or --yes to take the first {what}") from None
    if answer.isdecimal() and 1 <= int(answer) <= len(found):
        return found[int(answer) - 1]
    if not (path := Path(answer).expanduser()).exists():
        raise typer.BadParameter(f"expected a number from the list or a path, got {answer!r}")
    return path


def _names(paths: list[Path]) -> list[str]:
    """Return a name for each model: its folder's, with a number where two have the same."""
    given: list[str] = []
    for path in paths:
        real, count = path.resolve(), 1
        name = base = real.name if real.is_dir() else real.stem
        while name in given:
            count += 1
            name = f"{base}-{count}"
        given.append(name)
    return given


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _folder_of_tests(testpaths: object, folder: Path) -> Path:
    """Return where pytest looks for tests when it is called without arguments."""
    listed = testpaths.split() if isinstance(testpaths, str) else testpaths if isinstance(testpaths, list) else []
    named = [folder / str(each) for each in (*listed, "tests")]
    return next((each for each in named if each.is_dir()), folder)


def _write_baseline(file: Path, found: list[Proposal], carriers: dict[str, str]) -> None:
    """Write what was measured as the baseline of the no_regression gates, by their ids."""
    import msgspec

    from pytest_lmgate.gates.baseline import entry_of
    from pytest_lmgate.judge.provenance import provenance
    from pytest_lmgate.judge.upkeep import update_file
    from pytest_lmgate.spec.markers import parse_marker

    entries = {}
    for each in found:
        gate = parse_marker("no_regression", (), dict(each.gates)["no_regression"])
        entry = entry_of(each.score, provenance(file.parent, each.score.device))
        entries[f"{carriers[each.model]}::{gate.label}"] = msgspec.json.encode(entry).decode()
    try:
        update_file(file, entries, used=None)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error}") from error


def _tell(found: list[Proposal], files: list[Path], folder: Path, *, as_json: bool) -> None:
    lines = []
    for each in found:
        lines += [f"{each.model} on {each.dataset}: {each.score.metric} {float(each.score):.6g}"]
        lines += [f"  {reason}" for reason in each.reasons]
    written = [_relative(file, folder) for file in files]
    lines += [f"written: {', '.join(written)}", "Run pytest, and commit these files."]
    data = {
        "files": written,
        "gates": [
            {"marker": marker, "arguments": arguments, "value": float(each.score), "reasons": each.reasons}
            for each in found
            for marker, arguments in each.gates
        ],
    }
    show(data, "\n".join(lines), as_json=as_json)
