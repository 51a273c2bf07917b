"""The command ``lmgate init``: finds models and a text or asks for them, measures once, and writes gates that run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import msgspec
import typer

from pytest_lmgate.cli.console import AsJson, DeviceOption, Root, flow, note, root, show
from pytest_lmgate.cli.measure import Measuring, measuring
from pytest_lmgate.errors import ComparisonError, ConfigError, DataError, EngineError, LmgateError
from pytest_lmgate.report.text import counted
from pytest_lmgate.settings.decoding import parse_fixture_call, parse_marker
from pytest_lmgate.settings.entries import TEXT_SUFFIXES, Project, ProjectSpec
from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.settings.options import BASELINE_NAME, FILE_NAME
from pytest_lmgate.tools.init.ci import write_ci_file
from pytest_lmgate.tools.parts.gates import gate_line, insert

if TYPE_CHECKING:
    from pytest_lmgate.engines.base import Model
    from pytest_lmgate.metrics.score import Score
    from pytest_lmgate.windows.tokens import TokenizerFacts

_INI = """\
[pytest]
# A run of single files leaves the gates out and is refused; -o lmgate_require_all=false allows it.
lmgate_require_all = true
"""
# The search for models and texts is bounded: some folders hold millions of files.
_DEPTH, _MOST_ENTRIES, _SHOWN = 5, 20_000, 9
_SKIPPED = frozenset({"__pycache__", "build", "dist", "env", "node_modules", "site-packages", "venv"})
_WEIGHTS = re.compile(r".*\.safetensors|pytorch_model.*\.bin")
_NO_TEXTS = re.compile(
    r"requirements|constraints|licen[cs]e|notice|readme|changelog|cmakelists|robots|top_level|(merges|vocab)\.", re.I
)
_NO_MODELS = re.compile(r".*(mmproj|imatrix|-vocab-|-(?!00001)\d{5}-of-)", re.I)  # parts of GGUF models
_ID = re.compile(r"[!-~]*")  # a name, number, hash or address
_SUFFIXES = (*(suffix for suffix in TEXT_SUFFIXES if suffix != ".md"), ".jsonl")
_SHAPE = ("model_type", "hidden_size", "n_embd", "d_model", "num_hidden_layers", "n_layer", "num_layers")
# Tokens that are enough, and windows from which to choose. With 20,000 a comparison of similar models shows a change of
# about 1%; a masked model reads a whole window for each.
_ENOUGH = {"causal": 20_000, "masked": 2_000}
_WINDOWS = {"causal": (2048, 1024, 512), "masked": (512, 256, 128)}
_BYTES_PER_TOKEN, _MOST_CHARACTERS = 4, 30  # of a token
_FEW_CHARACTERS = 400  # of a text by which a model is tried out
_ROWS = 64  # of a matrix
_ROWS_READ = 1000  # of a file of JSON lines whose size is estimated
_ROWS_SEEN = 20  # of a table whose text column is searched
_ALIKE = 1.1  # sizes whose quotient is less may differ by their headers
_LEAST, _MOST = 0.01, 0.1  # tolerances


def init(
    model: Annotated[list[Path] | None, typer.Option(exists=True, help="Checkpoint to gate; repeatable.")] = None,
    dataset: Annotated[Path | None, typer.Option(exists=True, help="Text to measure it on.")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Use only the first rows of a table.")] = None,
    margin: Annotated[float, typer.Option(min=0.1, max=1000, help="Percent from the value to the limit.")] = 5.0,
    against: Annotated[
        Path | None, typer.Option(exists=True, help="Original of the models (default: one of the same shape).")
    ] = None,
    device: DeviceOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask: take the defaults.")] = False,
    ci: Annotated[
        str, typer.Option("--ci", metavar="SYSTEM", help="Write only the file of github, gitlab, azure or buildkite.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Write an lmgate.yaml with gates.

    Measures each model once, and explains each limit. Never overwrites a file.
    """
    if ci:
        if model or dataset or rows or against or device:
            raise typer.BadParameter("--ci writes the file of a CI system alone: leave the other options out")
        write_ci_file(ci, as_json=as_json)
        return
    from pytest_lmgate.data.corpus import READERS
    from pytest_lmgate.measure.loop import about

    here = root()
    if (named := here.project_file(None)) is not None:
        raise ConfigError(f"pytest's settings here name {named}: a new lmgate.yaml would not be read; edit that file")
    if rows is not None and dataset is not None and dataset.suffix not in READERS:
        raise typer.BadParameter(f"--rows counts rows of a table, and {dataset} is one text: shorten the file")
    folder = here.start
    chosen, text, pairs = _chosen(folder, model or [], dataset, rows, against, yes=yes)
    names = _names([*chosen, *pairs.values()])
    models = {name: {"path": _relative(path, folder)} for path, name in names.items()}
    column = text_column(text) if text.suffix in READERS else None
    entry = {"path": _relative(text, folder), "text": None if column == "text" else column, "limit": rows}
    data = text.resolve().stem
    datasets = {data: {key: value for key, value in entry.items() if value is not None}}
    sections = {"models": models, "datasets": datasets}
    baseline = here.baseline(None) if here.text("baseline") else folder / BASELINE_NAME
    files = [folder / FILE_NAME, baseline, *([folder / "pytest.ini"] if here.ini is None else [])]
    shared = {baseline} if here.text("baseline") else set()  # by several projects, and entries are added
    if taken := [file for file in files if os.path.lexists(file) and file not in shared]:
        raise ConfigError(f"{taken[0]} exists; lmgate init overwrites nothing: move it away, or edit it")

    if rows is None:
        with measuring(device=device, project=_project(folder, sections)) as session:
            datasets[data] |= _shortened(session, names[chosen[0]], data)
    with measuring(device=device, project=_project(folder, sections)) as session:
        window = choose_window(session, list(names.values()), data)
        seconds = _estimate(session, list(names.values()), data, window)
        proposals = {path: propose(session, names[path], data, margin / 100, window) for path in chosen}
        for proposal in proposals.values():
            _note_guessing(session, proposal, data)
        for path, larger in pairs.items():
            if not _added(session, proposals[path], names, larger, must=against is not None) and larger not in chosen:
                models.pop(names[larger], None)
    try:
        _write(here, files, sections, list(proposals.values()))
    except OSError as error:
        raise ConfigError(f"a file cannot be written: {error}") from error
    written, gates, lines = [_relative(file, folder) for file in files], [], []
    for path, (_, score, proposed, reasons) in proposals.items():
        facts = {"value": float(score), "reasons": reasons}
        gates += [{"marker": marker, "arguments": arguments, **facts} for marker, arguments in proposed]
        lines += [f"{names[path]} on {data}: {score.metric} {float(score):.6g}", *map("  {}".format, reasons)]
    lines += [
        f"written: {', '.join(written)}",
        f"Run pytest, and commit these files. A changed model takes about {about(seconds)}.",
    ]
    if here.ini is not None and not here.is_on("require_all"):
        lines.append(
            f"Set lmgate_require_all = true in {_relative(here.ini, folder)}: a run without gates is then red."
        )
    show({"files": written, "gates": gates}, "\n".join(lines), as_json=as_json)


def _chosen(
    folder: Path, model: list[Path], dataset: Path | None, rows: int | None, against: Path | None, *, yes: bool
) -> tuple[list[Path], Path, dict[Path, Path]]:
    """Return the checkpoints to gate, the text, and the originals of checkpoints; what is not given is asked for."""
    paths, texts = ([], []) if model and dataset is not None else find_places(folder)
    if not model:
        pairs = originals(paths[:_SHOWN])
        paths = [*pairs, *(path for path in paths if path not in pairs)]  # a model with an original comes first
        against_words = {path: f", against {_relative(original, folder)}" for path, original in pairs.items()}
        shown = {path: f"{_relative(path, folder)}{against_words.get(path, '')}" for path in paths}
        model = _ask("model", "a folder with config.json and *.safetensors, or a .gguf file", shown, yes=yes)
    if dataset is None:
        looked_for = f"a {'.txt or .raw file, or a ' * (rows is None)}.jsonl file with a column of texts"
        tokens = {path: count_tokens(path, rows) for path in texts if rows is None or path.suffix == ".jsonl"}
        # The smallest that is long enough comes first.
        enough = _ENOUGH["causal"]
        texts = sorted(tokens, key=lambda path: (tokens[path] < enough, abs(tokens[path] - enough)))
        shown = {path: f"{_relative(path, folder)}  about {tokens[path]:,} tokens" for path in texts}
        (dataset,) = _ask("dataset", looked_for, shown, yes=yes)
    chosen = [path.absolute() for path in model]
    return chosen, dataset.absolute(), _pairs(chosen, against, paths)


def _names(paths: list[Path]) -> dict[Path, str]:
    """Return a name of lmgate.yaml for each checkpoint."""
    names: dict[Path, str] = {}
    for path in paths:
        name = path.resolve().name if path.is_dir() else path.resolve().stem
        is_taken = name in ("baseline", *names.values())  # against: baseline is the committed one
        names.setdefault(path, f"{name}-{len(names) + 1}" if is_taken else name)
    return names


def _note_guessing(session: Measuring, proposal: Proposal, data: str) -> None:
    """Note a text of which a model knows less than one that gives all tokens the same probability."""
    score, vocabulary = proposal.score, _tokenizer(session, session.evaluator.resolver.model(proposal.model)).vocabulary
    if vocabulary is not None and score > (size := len(vocabulary())):
        said = f"{score.metric} {float(score):.6g} is worse than guessing among its {size:,} tokens"
        note(f"{proposal.model} on {data}: {said}: is this a text of its language and form?")


def _added(session: Measuring, proposal: Proposal, names: dict[Path, str], larger: Path, *, must: bool) -> bool:
    """Add the comparison with an original to a checkpoint's proposal; say why, if it cannot be compared."""
    try:
        add_pair(session, proposal, names[larger])
    except LmgateError as error:
        if must:
            raise
        note(f"no gate of {proposal.model} against {names[larger]}: {error}")
        return False
    return True


def find_places(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return checkpoints (folders or GGUF files) and texts in a folder and below; links are not followed."""
    models, texts, seen = [], [], 0
    for path, folders, names in os.walk(folder):
        place, seen = Path(path), seen + len(folders) + len(names)
        if seen > _MOST_ENTRIES:
            break
        deeper = len(place.relative_to(folder).parts) < _DEPTH
        folders[:] = sorted(name for name in folders if deeper and name not in _SKIPPED and name[0] != ".")
        models += [place / name for name in names if name.endswith(".gguf") and not _NO_MODELS.match(name)]
        if "config.json" in names and any(map(_WEIGHTS.fullmatch, names)):
            models.append(place)
            if place != folder:
                continue  # what is beside a checkpoint comes with it
        for file in (place / name for name in names if name.endswith(_SUFFIXES) and not _NO_TEXTS.match(name)):
            if file.is_file() and file.stat().st_size and (file.suffix != ".jsonl" or text_column(file) is not None):
                texts.append(file)
    return sorted(models), sorted(texts)


def text_column(file: Path) -> str | None:
    """Return the text column of a table: ``text``, else the one with the longest texts, of which no id is one."""
    from pytest_lmgate.data.corpus import READERS

    try:
        rows = [row for row in islice(READERS[file.suffix](file, file.stem), _ROWS_SEEN) if isinstance(row, dict)]
    except DataError:
        return None
    if any(isinstance(row.get("text"), str) for row in rows):
        return "text"
    lengths: Counter[str] = Counter()
    for key, value in (cell for row in rows for cell in row.items()):
        if isinstance(value, str) and not _ID.fullmatch(value):
            lengths[key] += len(value)
    return max(lengths, key=lengths.__getitem__, default=None)


def count_tokens(file: Path, rows: int | None) -> int:
    """Estimate the tokens of a text, or of the text column in the first rows of a file of JSON lines, or in all."""
    size, column = file.stat().st_size, text_column(file) if file.suffix == ".jsonl" else None
    if column is None:
        return size // _BYTES_PER_TOKEN
    with file.open("rb") as lines:
        read = list(islice(lines, _ROWS_READ if rows is None else rows))
    try:
        texts = sum(len(str(json.loads(line).get(column) or "").encode()) for line in read if line.strip())
    except (ValueError, AttributeError, RecursionError):  # reading the dataset names the line
        return size // _BYTES_PER_TOKEN
    if rows is None:
        texts = int(texts / max(1, sum(map(len, read))) * size)
    return texts // _BYTES_PER_TOKEN


def _ask(option: str, looked_for: str, shown: dict[Path, str], *, yes: bool) -> list[Path]:
    """Return the paths that the user chooses, by number or path; only one text."""
    if not shown:
        where = f"{Path.cwd()}, {_DEPTH} folders deep"
        raise ConfigError(f"no {option} was found in {where} ({looked_for}); name it: --{option} PATH")
    choices = list(shown)[:_SHOWN]
    if yes:
        note(f"{option}: {shown[choices[0]]}; --{option} names another")
        return choices[:1]
    for number, path in enumerate(choices, 1):
        note(f"{number}  {shown[path]}")
    several = " (several: 1,2)" if option == "model" and len(choices) > 1 else ""
    try:
        answer = typer.prompt(f"Which {option}? Number or path{several}", default="1", err=True)
    except typer.Abort:
        raise typer.BadParameter(f"no answer: give --{option} PATH, or --yes to take the first {option}") from None
    numbers = re.split(r"[ ,]+", answer.strip()) if several else [answer]
    if all(number.isdecimal() and 1 <= int(number) <= len(choices) for number in numbers):
        return [choices[int(number) - 1] for number in dict.fromkeys(numbers)]
    if (path := Path(answer).expanduser()).exists():
        return [path]
    raise typer.BadParameter(f"expected a number from the list or a path, got {answer!r}")


def _pairs(chosen: list[Path], against: Path | None, checkpoints: Sequence[Path]) -> dict[Path, Path]:
    """Return the original of each model that has one: the given one, or one of the same shape."""
    if against is not None:
        if against.resolve() in [path.resolve() for path in chosen]:
            raise typer.BadParameter(f"--against: expected another model than --model, got {against}")
        return dict.fromkeys(chosen, against.absolute())
    siblings = checkpoints or (sorted(chosen[0].parent.iterdir()) if len(chosen) == 1 else [])
    pairs = originals(dict.fromkeys([*chosen, *(path.absolute() for path in siblings)]))
    return {path: pairs[path] for path in chosen if path in pairs}


def originals(models: Iterable[Path]) -> dict[Path, Path]:
    """Return the original of each model that has one, the smallest model first.

    It is the largest of the models with one vocabulary and shape. Of two that are as large, a copy whose weights were
    rounded has fewer different ones; else the first by name is the original.
    """
    shapes: dict[str, dict[Path, int]] = {}
    for path in models:
        shape, size = _facts(path)
        if shape is not None:
            shapes.setdefault(repr(shape), {})[path] = size
    pairs: dict[Path, Path] = {}
    for sizes in shapes.values():
        largest = [path for path, size in sizes.items() if _ALIKE * size >= max(sizes.values())]
        original = max(largest, key=_levels) if len(largest) > 1 else largest[0]
        pairs |= {path: original for path in sorted(sizes, key=sizes.__getitem__) if path != original}
    return pairs


@functools.cache
def _facts(folder: Path) -> tuple[object, int]:
    """Return what a checkpoint shares only with its original, vocabulary and shape (None if unknown), and its bytes."""
    from pytest_lmgate.engines.checkpoints import open_checkpoint

    try:
        checkpoint = open_checkpoint(folder, name=folder.name)
        # Another program may have written the same tokens with other settings of padding.
        vocabulary = json.loads((folder / "tokenizer.json").read_bytes())["model"]["vocab"]
        return [vocabulary, *map(checkpoint.config.get, _SHAPE)], checkpoint.weight_bytes
    except Exception:  # no checkpoint, or none that shares a shape with another
        return None, 0


def _levels(folder: Path) -> int:
    """Count the different weights in each row of a matrix of the first block: a copy that was rounded has fewer."""
    from safetensors import safe_open

    try:
        with safe_open(min(folder.glob("*.safetensors")), framework="pt") as tensors:
            matrices = [name for name in tensors.keys() if len(tensors.get_slice(name).get_shape()) == 2]  # noqa: SIM118
            name = next((name for name in matrices if ".0." in name), matrices[0])
            return sum(len(row.unique()) for row in tensors.get_slice(name)[:_ROWS])
    except Exception:  # weights in another format
        return 0


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _write(here: Root, files: list[Path], sections: dict[str, Any], proposals: list[Proposal]) -> None:
    from pytest_lmgate.cache.files import write_kept
    from pytest_lmgate.judge.baseline import entry_of, rewrite
    from pytest_lmgate.judge.provenance import provenance

    project, baseline, *ini = files
    lines = {
        section: [f"{flow(name)}: {flow(entry)}" for name, entry in entries.items()]
        for section, entries in sections.items()
    }
    lines["gates"] = [
        line
        for proposal in proposals
        for gate, reason in zip(proposal.gates, proposal.reasons, strict=True)
        for line in (f"# {reason}", gate_line(gate))
    ]
    written = insert("# Written by `lmgate init`. Paths are relative to this file.\n", lines, project)
    # Ids of gates are relative to lmgate.yaml; in a baseline that the settings name, to rootdir.
    carrier = _relative(project, here.folder if here.text("baseline") else here.start)
    accepted = {}
    for proposal in proposals:
        gate = parse_marker(proposal.gates[1][0], (), proposal.gates[1][1])
        accepted[f"{carrier}::{gate.label}"] = entry_of(
            proposal.score, provenance(baseline.parent, proposal.score.device, proposal.score.hardware)
        )
    ours: list[Path] = []
    try:
        for file, text in [(project, written), *((file, _INI) for file in ini)]:
            ours.append(file)
            write_kept(file, text)
        rewrite(baseline, lambda before: {**before, **accepted})
    except BaseException:  # a file that was left would stop the next `lmgate init`
        for file in ours:
            with contextlib.suppress(OSError):
                file.unlink()
        raise


def _project(folder: Path, sections: dict[str, Any]) -> Project:
    return Project(folder, spec=msgspec.convert(sections, ProjectSpec))


def _shortened(session: Measuring, model: str, dataset: str) -> dict[str, int]:
    """Return the keys by which a long text is cut where it is long enough: ``tokens``, or ``limit`` for rows."""
    from pytest_lmgate.data.corpus import shortened
    from pytest_lmgate.stats.means import BLOCKS

    described, corpus = session.evaluator.resolver.model(model), session.evaluator.resolver.corpus(dataset)
    enough = _ENOUGH.get(described.kind, 0)
    begin, tokenizer = shortened(corpus, _MOST_CHARACTERS * enough), _tokenizer(session, described)
    if corpus.is_one_text:
        return {"tokens": enough} if enough and len(tokenizer.ids(begin.rows[0], special=False)) > enough else {}
    tokens = accumulate(len(tokenizer.ids(row, special=False)) for row in begin.rows)
    needed = next((row for row, sum_ in enumerate(tokens, 1) if sum_ >= enough), len(corpus.rows))
    rows = max(BLOCKS, needed)
    return {"limit": rows} if rows < len(corpus.rows) else {}


def choose_window(session: Measuring, models: Sequence[str], dataset: str) -> dict[str, int]:
    """Return the longest `max_length` that makes 64 blocks of a text, else the shortest; nothing if it is the context.

    ConfigError if gates on the text could never decide.
    """
    from pytest_lmgate.stats.comparison import no_interval
    from pytest_lmgate.stats.means import BLOCKS, MIN_BLOCKS

    described = [session.evaluator.resolver.model(model) for model in models]
    contexts = {model.context or math.inf for model in described}
    lengths = sorted({min(length, *contexts) for length in _WINDOWS.get(described[0].kind, ())}, reverse=True)
    windows = [{} if contexts == {length} else {"max_length": int(length)} for length in lengths] or [{}]
    for window in windows:
        clusters, by = _measurement(session, models[0], dataset, window).clusters(_tokenizer(session, described[0]))
        if clusters >= BLOCKS or by == "rows":
            break
    if reason := no_interval(clusters, by):
        times = math.ceil((2 if by == "rows" else MIN_BLOCKS) / max(1, clusters))
        raise ConfigError(
            f"dataset {dataset!r}: gates on it could never decide: {reason}, or about {times} times as much text"
        )
    return window


def _estimate(session: Measuring, models: Sequence[str], dataset: str, window: Mapping[str, int]) -> float:
    """Say how long it takes to measure the models, from two windows of the largest; return the seconds of one model."""
    from pytest_lmgate.data.corpus import shortened
    from pytest_lmgate.measure.loop import about

    measurements, begun = session.evaluator.measurements, time.monotonic()
    largest = max(models, key=lambda model: session.evaluator.resolver.model(model).weight_bytes)
    measurement = _measurement(session, largest, dataset, window)
    tokenizer = measurements.runner(measurement.model).tokenizer
    loaded, tokens = time.monotonic() - begun, measurement.tokens(tokenizer)
    length = window.get("max_length") or measurement.model.context or 0
    first, probe = (
        dataclasses.replace(measurement, data=dataclasses.replace(shortened(measurement.data, characters), tokens=None))
        for characters in (_FEW_CHARACTERS, max(_FEW_CHARACTERS, 2 * _BYTES_PER_TOKEN * length))
    )
    measurements.again(first)  # which also tries the model out
    begun = time.monotonic()
    measurements.again(probe)
    seconds = float(loaded + (time.monotonic() - begun) / probe.tokens(tokenizer) * tokens)
    reading = f"{counted(tokens, 'token')} to read by {'each of ' * (len(models) > 1)}{counted(len(models), 'model')}"
    note(f"{dataset}: {reading}, about {about(seconds * len(models))}; Ctrl-C stops, and what was measured is kept")
    return seconds


def _measurement(session: Measuring, model: str, dataset: str, window: Mapping[str, int]) -> Any:
    metric = _metric(session, model)
    evaluator = session.evaluator
    return evaluator.open(evaluator.bind(parse_fixture_call(f"{metric}_of", (model, dataset), window)))


def _tokenizer(session: Measuring, model: Model) -> TokenizerFacts:
    return model.tokenizer() if model.tokenizer else session.evaluator.measurements.runner(model).tokenizer


class Proposal(NamedTuple):
    """A model's score, markers with their arguments by name, and a sentence for each that says why."""

    model: str
    score: Score
    gates: list[tuple[str, dict[str, Any]]]
    reasons: list[str]


def propose(
    session: Measuring, model: str, dataset: str, margin: float, window: Mapping[str, int] | None = None
) -> Proposal:
    """Measure a model and propose a limit that is a `margin` above the value, as a fraction, and a tolerance."""
    window = window or {}
    score = _measure(session, model, dataset, window)
    assert score.interval is not None  # or `choose_window` had refused the text
    low, high = score.interval
    measured, noise = f"the {float(score):.6g} of {score.n:,} {score.unit}s", f"95% interval [{low:.6g}, {high:.6g}]"
    limit = float(f"{score * (1 + margin):.4g}")
    why = f"limit {limit:g}: {100 * margin:g}% above {measured}, {noise}"
    if limit < high:  # another text of this kind would fail a limit within the noise
        limit = float(f"{1.001 * high:.4g}")  # four digits round by less than this
        why = f"limit {limit:g}: beyond the noise of {measured}, {noise}, which reaches further than {100 * margin:g}%"
    names, tolerance = {"model": model, "dataset": dataset}, str(Tolerance(_LEAST, relative=True))
    gates: list[tuple[str, dict[str, Any]]] = [
        (f"{score.metric}_max", {**names, "limit": limit, **window}),
        ("no_regression", {"metric": score.metric, **names, "tolerance": tolerance, **window}),
    ]
    paired = f"at most {tolerance} worse than today's baseline, compared part by part, which cancels most of the noise"
    return Proposal(model, score, gates, [why, f"tolerance {tolerance}: {paired}"])


def add_pair(session: Measuring, proposal: Proposal, original: str) -> None:
    """Add a gate that compares a model with its original, or raise LmgateError if the two are too different."""
    from pytest_lmgate.stats.paired import compare

    model, score, arguments = proposal.model, proposal.score, proposal.gates[1][1]
    window = {key: arguments[key] for key in ("max_length",) if key in arguments}
    other = _measure(session, original, arguments["dataset"], window)
    if score.weights and score.weights == other.weights:  # as a gate says too
        raise ComparisonError(f"{model} and {original} have the same weights")
    try:
        comparison = compare(score.require_sample(), other.require_sample(), tolerance=Tolerance(_LEAST, relative=True))
    except ComparisonError as error:
        raise ComparisonError(f"{model} and {original} cannot be compared: {error}") from None
    worst = comparison.degradation if comparison.upper is None else comparison.upper
    word = "better" if comparison.degradation < 0 else "worse"
    today = f"{model} is {100 * abs(comparison.degradation):.2g}% {word} than {original} today"
    if not worst <= _MOST:
        raise ComparisonError(f"{today}: beyond {100 * _MOST:g}% it is no longer the same model")
    tolerance = Tolerance(max(_LEAST, math.ceil(1000 * worst) / 1000), relative=True)
    bound = "with unknown noise" if comparison.upper is None else f"at most {100 * worst:.2g}% at 95%"
    shown = (
        f"; the smallest change that this text shows is {100 * comparison.detectable:.2g}%"
        if comparison.detectable
        else ""
    )
    proposal.gates.append(("no_regression", {**arguments, "tolerance": str(tolerance), "against": original}))
    unlike = ""
    if -comparison.degradation > _MOST:
        unlike = f"; check that {original} is its original: rounding gains no {100 * _MOST:g}%"
    proposal.reasons.append(f"tolerance {tolerance}: {today}, {bound}{shown}{unlike}")


def _measure(session: Measuring, model: str, dataset: str, window: Mapping[str, int]) -> Score:
    score = cast("Score", session.measure(_metric(session, model), model=model, dataset=dataset, **window))
    if not score.is_finite:
        raise EngineError(f"the perplexity of {model!r} on {dataset!r} is {float(score)}: no limit can be proposed")
    return score


def _metric(session: Measuring, model: str) -> str:
    return "pppl" if session.evaluator.resolver.model(model).kind == "masked" else "ppl"
