"""The command ``lmgate init``: asks or takes flags, measures once, shows what it proposes and why, and writes."""

from __future__ import annotations

__all__ = ["init"]

import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_lmgate.cli.init.discovery import count_tokens, find_places, find_relative, text_column
from pytest_lmgate.cli.output import AsJson, show
from pytest_lmgate.cli.places import DeviceOption, root
from pytest_lmgate.config import BASELINE_NAME, CACHE_NAME, FILE_NAME
from pytest_lmgate.config.rootdir import Root
from pytest_lmgate.errors import ConfigError, LmgateError, harmless_line

if TYPE_CHECKING:
    from pytest_lmgate.cli.init.proposal import Proposal
    from pytest_lmgate.cli.measurements.measuring import Measuring

_INI = """\
[pytest]
# A run of single files leaves the gates out and is refused; -o lmgate_require_all=false allows it.
lmgate_require_all = true
"""
_SHOWN = 9  # to choose from
_ENOUGH = 20_000  # tokens: a comparison of similar models then shows a change of about 1%
_SLOWEST = 5_000  # tokens a second, which even a tiny model hardly exceeds on a processor


def init(
    model: Annotated[
        list[Path] | None, typer.Option("--model", help="Checkpoint to gate; may be given several times.")
    ] = None,
    dataset: Annotated[Path | None, typer.Option("--dataset", help="Text to measure it on.")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Take the first so many rows of a .jsonl file only.")] = None,
    margin: Annotated[float, typer.Option(min=0.1, max=1000, help="Percent from the value to the limit.")] = 5.0,
    tests: Annotated[bool, typer.Option("--tests", help="Write the gates as a test file, not in lmgate.yaml.")] = False,
    against: Annotated[
        str | None,
        typer.Option(
            help="Original that they are made of, or none (default: one with the same vocabulary in the same folder)."
        ),
    ] = None,
    ci: Annotated[str, typer.Option("--ci", help="github or gitlab: write its file of jobs too.")] = "",
    device: DeviceOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask: take the defaults.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write an lmgate.yaml whose gates run.

    From a model and a text: measures once, and says why it proposes which limits. It overwrites nothing.
    """
    from pytest_lmgate.cli.init.files import CI_FILES, ci_text, project_text, require_absent, test_text, write_new

    if against not in (None, "none") and not Path(against).exists():
        raise typer.BadParameter(f"--against: {against} does not exist")
    if ci and ci not in CI_FILES:
        raise typer.BadParameter(f"--ci: expected {' or '.join(CI_FILES)}, got {ci!r}")
    here = root()
    if (named := here.project_file(None)) is not None:
        raise ConfigError(f"pytest's settings here name {named}, so a new lmgate.yaml is not read: edit that file")
    chosen, text = _chosen(here.start, model or [], dataset, rows, device, yes=yes)

    from pytest_lmgate.cli.init.proposal import proposals
    from pytest_lmgate.cli.measurements.measuring import measuring
    from pytest_lmgate.config.file import Project
    from pytest_lmgate.config.specs import DatasetSpec, ModelSpec, ProjectSpec

    pairs = _pairs(chosen, against)
    paths = list(dict.fromkeys([*chosen, *(path for pair in pairs for path in pair)]))
    models, datasets = _entries(paths, text, rows, here.start)
    name_of = dict(zip(paths, models, strict=True))
    files = _files(here, tests=tests, ci=CI_FILES.get(ci, ""))
    require_absent(files.values())
    spec = ProjectSpec(
        models={name: ModelSpec(**entry) for name, entry in models.items()},
        datasets={name: DatasetSpec(**entry) for name, entry in datasets.items()},
    )
    with measuring(device=device, project=Project(here.start, spec=spec)) as session:
        found = proposals(session, [name_of[path] for path in chosen], next(iter(datasets)), margin / 100)
        for pair in pairs:
            found = _with_pair(session, found, *(name_of[path] for path in pair), asked=against is not None)
    told = {name for each in found for name in (each.model, *(each.against or ())[:1])}
    models = {name: entry for name, entry in models.items() if name in told}

    # Two names may have the same letters, so that numbers tell the functions apart.
    functions = {
        name: f"test_{re.sub(r'[^0-9a-zA-Z]+', '_', name).lower()}_{number}" for number, name in enumerate(models)
    }
    extras = ["gguf" for path in paths if path.suffix == ".gguf"]
    written = {
        "project": project_text(models, datasets, found, gates=not tests),
        "ini": _INI,
        "tests": test_text(found, functions),
        "ci": ci_text(ci, extras, *_in_repository(here)),
    }
    for kind, file in files.items():
        if kind != "baseline":
            write_new(file, written[kind])
    # Ids of gates are relative to lmgate.yaml; in a baseline that the settings name, to rootdir.
    above = here.folder if here.text("baseline", None) else here.start
    carrier = _relative(files["tests" if tests else "project"], above)
    carriers = {name: f"{carrier}::{function}" if tests else carrier for name, function in functions.items()}
    _write_baseline(files["baseline"], found, carriers)
    _tell(found, list(files.values()), here.start, as_json=as_json)


def _entries(
    models: list[Path], text: Path, rows: int | None, folder: Path
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the entries of lmgate.yaml for models and for the dataset, by name."""
    named = {name: {"path": _relative(path, folder)} for name, path in zip(_names(models), models, strict=True)}
    entry: dict[str, Any] = {"path": _relative(text, folder)}
    if text.suffix == ".jsonl" and (column := text_column(text)) not in ("text", None):
        entry["text"] = str(column)
    if rows is not None:
        entry["limit"] = rows
    return named, {text.resolve().stem: entry}


def _pairs(chosen: list[Path], against: str | None) -> list[tuple[Path, Path]]:
    """Return models with the one that each is to be no worse than."""
    if against == "none":
        return []
    if against is not None:
        path = Path(against).absolute()
        if path.resolve() in [each.resolve() for each in chosen]:
            raise typer.BadParameter(f"--against: expected another model than --model, got {against}")
        return [(each, path) for each in chosen]
    pairs = []
    for each in chosen:
        try:
            found = find_relative(each, chosen if len(chosen) > 1 else each.parent.iterdir()) if each.is_dir() else None
        except OSError:  # a folder that may not be listed
            found = None
        if found is not None and (found[1] or len(chosen) == 1):
            pairs.append((each, found[0]) if found[1] else (found[0], each))
    return pairs


def _with_pair(session: Measuring, found: list[Proposal], model: str, reference: str, *, asked: bool) -> list[Proposal]:
    """Add the gate of a pair; a model that was only seen beside the chosen one may be none that can be measured."""
    from pytest_lmgate.cli.init.proposal import proposal_against

    try:
        made = proposal_against(session, model, reference, found[0].dataset)
    except LmgateError as error:
        if asked:
            raise
        typer.echo(harmless_line(f"no gate of {model} against {reference}: {error}"), err=True)
        return found
    if model not in [each.model for each in found]:
        return [*found, made]
    return [
        replace(each, against=made.against, reasons=(*each.reasons, *made.reasons)) if each.model == model else each
        for each in found
    ]


def _files(here: Root, *, tests: bool, ci: str) -> dict[str, Path]:
    """Return the files to write, by what they are."""
    folder = here.start
    baseline = here.baseline(None) if here.text("baseline", None) else folder / BASELINE_NAME
    files = {"project": folder / FILE_NAME, "baseline": baseline}
    if here.ini is None:
        files["ini"] = folder / "pytest.ini"
    if tests:
        testpaths = here.settings.get("testpaths") if here.folder == folder else None
        files["tests"] = _folder_of_tests(testpaths, folder) / "test_models.py"
    if ci:
        files["ci"] = _repository(folder) / ci
    return files


def _repository(folder: Path) -> Path:
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)


def _in_repository(here: Root) -> tuple[str, str]:
    """Return the folder where CI calls pytest and the cache's, each relative to the repository."""
    repository = _repository(here.start)
    rootdir = here.start if here.ini is None or not here.folder.is_relative_to(repository) else here.folder
    cache = rootdir / CACHE_NAME if here.ini is None else here.cache(None)
    return _relative(rootdir, repository), _relative(cache, repository)


def _chosen(
    folder: Path, models: list[Path], dataset: Path | None, rows: int | None, device: str | None, *, yes: bool
) -> tuple[list[Path], Path]:
    """Return the models and the text that were named, and let the user choose those that were not."""
    for path in (*models, *([] if dataset is None else [dataset])):
        if not path.exists():
            raise typer.BadParameter(f"{path} does not exist")
    if rows is not None and dataset is not None and dataset.suffix != ".jsonl":
        raise typer.BadParameter(f"--rows counts rows of a .jsonl file, and {dataset} is one text: shorten the file")
    if models and dataset is not None:
        return [path.absolute() for path in models], dataset.absolute()
    found = find_places(folder)
    cut = "; only a part of the folder was looked at" * found.is_cut
    if not models:
        looked_for = "a folder with config.json and *.safetensors, or a .gguf file"
        shown = {path: _relative(path, folder) for path in found.models}
        models = _choice("model", "--model", looked_for, shown, folder, cut, yes=yes)
    models = [path.absolute() for path in models]
    if dataset is None:
        texts = [path for path in found.texts if rows is None or path.suffix == ".jsonl"]
        looked_for = "a .txt, .raw or .jsonl file" if rows is None else "a .jsonl file"
        is_open = len(texts) > 1 or not yes
        shown = _sized(texts, rows, models, folder, device) if is_open else dict.fromkeys(texts, "")
        dataset = _choice("text", "--dataset", looked_for, shown, folder, cut, yes=yes)[0]
    return models, dataset.absolute()


def _choice(
    what: str, flag: str, looked_for: str, shown: dict[Path, str], folder: Path, cut: str, *, yes: bool
) -> list[Path]:
    """Return the paths that the user chooses by their numbers, or by a path; a text is only one."""
    if not shown:
        raise ConfigError(f"no {what} was found in {folder} ({looked_for}){cut}; name it: {flag} PATH")
    found = list(shown)
    if yes:
        if len(found) > 1:
            typer.echo(harmless_line(f"{what}: {shown[found[0]]}; {flag} names another"), err=True)
        return found[:1]
    for number, path in enumerate(found[:_SHOWN], 1):
        typer.echo(harmless_line(f"{number}  {shown[path]}"), err=True)
    several = " (several: 1,2)" * (what == "model" and len(found) > 1)
    try:
        answer = typer.prompt(f"Which {what}? Number or path{several}", default="1", err=True)
    except typer.Abort:
        raise typer.BadParameter(f"no answer: give {flag} PATH, or --yes to take the first {what}") from None
    numbers = re.split(r"[ ,]+", answer.strip()) if several else [answer]
    if all(each.isdecimal() and 1 <= int(each) <= len(found) for each in numbers):
        return [found[int(each) - 1] for each in dict.fromkeys(numbers)]
    if not (path := Path(answer).expanduser()).exists():
        raise typer.BadParameter(f"expected a number from the list or a path, got {answer!r}")
    return [path]


def _sized(
    texts: list[Path], rows: int | None, models: list[Path], folder: Path, device: str | None
) -> dict[Path, str]:
    """Describe texts by their size and cost for these models; the smallest that is long enough comes first.

    Tokens are those of the first model's tokenizer. The time is that of the models' matrix products at half the speed
    of a product of this device, which is right within a factor of two or three.
    """
    from pytest_lmgate.cli.measurements.measuring import measuring
    from pytest_lmgate.cli.tables import age
    from pytest_lmgate.config.file import Project
    from pytest_lmgate.config.specs import ModelSpec, ProjectSpec
    from pytest_lmgate.report.wording.counted import byte_size

    spec = ProjectSpec(
        models={name: ModelSpec(path=str(path)) for name, path in zip(_names(models), models, strict=True)}
    )
    with measuring(device=device, project=Project(folder, spec=spec)) as session:
        described = [session.evaluator.resolver.model(name) for name in spec.models]
    tokenizer = described[0].tokenizer
    facts = None if tokenizer is None else tokenizer()

    def count(text: str) -> int:  # a token has about four bytes
        return len(text.encode("utf-8", "replace")) // 4 if facts is None else len(facts.ids(text, special=False))

    speed = _products(described[0].device) / 2

    def cost(tokens: int) -> float:
        seconds = 0.0
        for model in described:
            length = min(model.context or tokens, tokens)
            read = tokens * length if model.kind == "masked" else tokens * (2 if length < tokens else 1)
            numbers = model.weight_bytes / (4 if model.dtype == "float32" else 2)
            seconds += 5 + max(2 * numbers * read / speed, tokens / _SLOWEST)
        return seconds

    sizes = {path: path.stat().st_size for path in texts}
    likely = sorted(texts, key=lambda path: (sizes[path] < 4 * _ENOUGH, abs(sizes[path] - 4 * _ENOUGH)))[:_SHOWN]
    tokens = {path: count_tokens(path, rows, count) for path in likely}
    ordered = sorted(likely, key=lambda path: (tokens[path] < _ENOUGH, abs(tokens[path] - _ENOUGH)))
    return {
        path: f"{_relative(path, folder)}  {byte_size(sizes[path])}, about {tokens[path]:,} tokens, "
        f"about {age(cost(tokens[path]))}"
        for path in ordered
    }


def _products(device: str) -> float:
    """Return the floating-point operations a second of a matrix product in float32 on a device."""
    import torch

    matrix = torch.rand(1024, 1024, device=device)
    float((matrix @ matrix)[0, 0])  # starts threads, or the device's library
    started = time.perf_counter()
    for _ in range(4):
        product = matrix @ matrix
    float(product[0, 0])
    return 4 * 2 * 1024**3 / (time.perf_counter() - started)


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
    from pytest_lmgate.gates.baseline import entry_of
    from pytest_lmgate.judge.provenance import provenance
    from pytest_lmgate.judge.upkeep import rewrite
    from pytest_lmgate.spec.markers import parse_marker

    entries = {}
    for each in found:
        if each.by_baseline is None:
            continue
        gate = parse_marker("no_regression", (), each.by_baseline)
        entry = entry_of(each.score, provenance(file.parent, each.score.device))
        entries[f"{carriers[each.model]}::{gate.label}"] = entry
    try:
        rewrite(file, lambda before: {**before, **entries})
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
