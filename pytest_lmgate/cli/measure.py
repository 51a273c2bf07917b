"""``lmgate measure``, with the lmgate.yaml and the cache that a session of pytest would use."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
import yaml
from msgspec import structs

from pytest_lmgate.cli.console import AsJson, CacheOption, ConfigOption, DeviceOption, OfflineOption, root, show
from pytest_lmgate.errors import ConfigError, EngineError, nearest
from pytest_lmgate.report.text import ProgressLine, table
from pytest_lmgate.settings.decoding import convert, parse_fixture_call
from pytest_lmgate.settings.file import Project, YamlGate, load_project, read_gates
from pytest_lmgate.settings.gate_options import DivergenceRequest, WindowProtocol
from pytest_lmgate.settings.gates import untaken
from pytest_lmgate.settings.metrics import METRICS, metric_called
from pytest_lmgate.settings.session import CacheKey, Options

if TYPE_CHECKING:
    from pytest_lmgate.judge.result import FixtureCall
    from pytest_lmgate.measure.evaluator import Evaluator
    from pytest_lmgate.metrics.divergence import Divergence
    from pytest_lmgate.metrics.score import Score


_PLOT = 24  # characters
ProtocolOption = Annotated[str | None, typer.Option(help="Name as in docs/protocols.md.")]
StrideOption = Annotated[str | None, typer.Option(help="Tokens between two windows.")]
MaxLengthOption = Annotated[str | None, typer.Option(help="Tokens per window.")]
OtherOption = Annotated[
    list[str] | None, typer.Option("--option", "-o", metavar="K=V", help="Any other argument of the protocol.")
]


@dataclass
class Measuring:
    project: Project
    evaluator: Evaluator

    def measure(self, metric: str, **arguments: Any) -> Score | Divergence:
        """Measure as the metric's fixture does, with the same arguments."""
        for name in ("model", "reference", "dataset"):
            if isinstance(given := arguments.get(name), str):
                arguments[name] = self.named(given)
        what = parse_fixture_call(METRICS[metric].fixture, (), arguments)
        return self.evaluator.evaluate(what) if what.is_number else self.evaluator.compare(what)

    def named(self, given: str) -> str:
        """Return a name, or a path as lmgate.yaml would write it."""
        if given in {*self.project.spec.models, *self.project.spec.datasets}:
            return given
        typed = Path.cwd() / Path(given).expanduser()
        if given.startswith("hub:") or not typed.exists():
            return given
        relative = Path(os.path.relpath(typed, self.project.folder)).as_posix()
        return relative if relative.startswith(".") else f"./{relative}"


@contextlib.contextmanager
def measuring(
    *,
    config: str | None = None,
    cache: str | None = None,
    device: str | None = None,
    offline: bool = False,
    refresh: bool = False,
    looks: bool = False,
    project: Project | None = None,
) -> Iterator[Measuring]:
    """Make an evaluator from a command's options; progress and notes go to stderr.

    With `looks`, models are only looked at: no file is hashed, no server asked, and nothing fetched.
    """
    from pytest_lmgate.measure.evaluator import Evaluator
    from pytest_lmgate.measure.loop import Log

    here = root()
    if project is None:
        project = load_project(here.start, here.project_file(config))
    options = Options(
        cache=here.cache(cache),
        remote_cache=here.text("remote-cache"),
        remote_cache_readonly=here.is_on("remote-cache-readonly"),
        refresh=refresh,
        offline=offline or looks or here.is_on("offline"),
        looks=looks,
        device=here.text("device", device),
        cache_key=CacheKey.from_environment(),
    )
    progress, remarks = ProgressLine(partial(typer.echo, err=True, nl=False), sys.stderr.isatty), dict[str, None]()
    log = Log(progress.show, progress.say, remark=lambda sentence: remarks.setdefault(sentence), warn=progress.say)
    evaluator = Evaluator(project, options, log)
    with progress, contextlib.closing(evaluator):
        yield Measuring(project, evaluator)
    for sentence in remarks:
        progress.say(sentence)
    for model, reason in evaluator.measurements.uncacheable_reasons.items():
        progress.say(f"{model}: its measurement is not kept: {reason}")


def measure(
    metric: Annotated[str, typer.Argument(metavar="METRIC", help=f"One of {', '.join(METRICS)}.")],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of lmgate.yaml, path or hub id.")],
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="Name of lmgate.yaml, path or hub id.")],
    reference: Annotated[str | None, typer.Option(help="For kl, top1 and compare: the other model.")] = None,
    protocol: ProtocolOption = None,
    stride: Annotated[str | None, typer.Option(help="Tokens; 128,256,512 makes a table.")] = None,
    max_length: Annotated[str | None, typer.Option(help="Tokens per window; 512,1024 makes a table.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="K=V", help="Any other argument of the fixture; K=V1,V2 makes a table."),
    ] = None,
    config: ConfigOption = None,
    cache: CacheOption = None,
    device: DeviceOption = None,
    offline: OfflineOption = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Ignore the cache and measure again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure a model, or take the number from the cache.

    METRIC and its options are those of the fixture: `lmgate markers ppl_of` lists them. Several values, as in
    --stride 128,256,512, make a table with a row each. Progress goes to stderr.
    """
    if metric not in METRICS:
        meant = metric_called(metric)
        hint = f" (did you mean {meant!r}?)" if meant in METRICS else nearest(metric, METRICS)
        hint = hint or "; only pytest knows metrics that a conftest.py registers"
        raise typer.BadParameter(f"expected a metric, one of {', '.join(METRICS)}; got {metric!r}{hint}")
    axes = _asked({"protocol": protocol, "stride": stride, "max_length": max_length}, option)
    fixed = {"model": model, "dataset": dataset} | ({} if reference is None else {"reference": reference})
    swept = [key for key, values in axes.items() if len(values) > 1]

    from pytest_lmgate.judge.result import FixtureCall

    found: list[tuple[dict[str, Any], FixtureCall]] = []
    with measuring(config=config, cache=cache, device=device, offline=offline, refresh=refresh) as session:
        for values in itertools.product(*axes.values()):
            chosen = dict(zip(axes, values, strict=True))
            score = session.measure(metric, **fixed, **chosen)
            found.append((chosen, FixtureCall.of("", METRICS[metric].fixture, score)))
    text = _sweep(metric, swept, found) if swept else _single(found[0][1])
    show({"measurements": [_facts(chosen, each) for chosen, each in found]}, text, as_json=as_json)
    if wrong := [each for _, each in found if not math.isfinite(each.value)]:
        raise EngineError(
            f"{metric} of {wrong[0].model!r} on {wrong[0].dataset!r} is {wrong[0].value}, not a number to judge"
        )


def _asked(named: Mapping[str, str | None], others: Sequence[str] | None) -> dict[str, list[Any]]:
    """Return the values of arguments that have an option of their own, and of others as ``NAME=VALUE``."""
    axes = {key: _values(key, text) for key, text in named.items() if text is not None}
    for each in others or ():
        key, equals, text = each.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key or key in axes:
            raise typer.BadParameter(f"--option: expected NAME=VALUE, each name once; got {each!r}")
        axes[key] = _values(key, text)
    return axes


def _values(key: str, text: str) -> list[Any]:
    """Return the values of an option as YAML reads them: one, or several with commas between."""
    try:
        whole = yaml.safe_load(text)
        several = isinstance(whole, str | int) and "," in text and text[0] not in "'\"[{"
        return [yaml.safe_load(each) for each in text.split(",")] if several else [whole]
    except yaml.YAMLError:
        raise typer.BadParameter(f"{key}: expected a value as YAML writes it, got {text!r}") from None


def _single(found: FixtureCall) -> str:
    from pytest_lmgate.report.wording import interval, number

    noise = f" {interval(*found.interval)}, at 95%" if found.interval else ""
    lines = [
        f"{found.metric} {number(found.value)}{noise}",
        f"  of {found.model} on {found.dataset}, {found.n:,} {found.unit}s",
        f"  {found.signature}",
        f"  from the cache ({found.fingerprint[:12]})"
        if found.cached
        else f"  measured in {found.seconds:.1f} s ({found.fingerprint[:12]})",
    ]
    width = max((len(name) for name in found.details), default=0)
    for name, value in found.details.items():
        lines.append(f"  {name:<{width}}  {f'{value:.6g}' if isinstance(value, int | float) else value}")
    return "\n".join(lines)


def _sweep(metric: str, swept: Sequence[str], found: Sequence[tuple[dict[str, Any], FixtureCall]]) -> str:
    from pytest_lmgate.report.wording import interval, number

    header = (*swept, metric, "95% interval", "scored", "seconds", "")
    ends = [each.interval or (each.value, each.value) for _, each in found]
    low, high = min(min(pair) for pair in ends), max(max(pair) for pair in ends)
    rows = [
        (
            *(str(chosen[key]) for key in swept),
            number(each.value),
            interval(*each.interval) if each.interval else "-",
            f"{each.n:,} {each.unit}s",
            "cached" if each.cached else f"{each.seconds:.1f}",
            _bar(each.value, each.interval or (each.value, each.value), low, high),
        )
        for chosen, each in found
    ]
    return "\n".join(table(header, rows, names=()))


def _bar(value: float, ends: tuple[float, float], low: float, high: float) -> str:
    """Return the value ``o`` in its interval ``---``, in ASCII."""
    if not all(map(math.isfinite, (value, *ends, low, high))) or low == high:
        return ""
    at, begin, end = (round((_PLOT - 1) * (each - low) / (high - low)) for each in (value, *ends))
    marks = ("o" if place == at else "-" if begin <= place <= end else " " for place in range(_PLOT))
    return f"|{''.join(marks)}|"


def _facts(chosen: dict[str, Any], found: FixtureCall) -> dict[str, Any]:
    facts = msgspec.to_builtins(found)
    return {"options": chosen} | {key: value for key, value in facts.items() if key not in ("test", "fixture")}


def find_gate(file: Path, name: str) -> tuple[YamlGate, str]:
    """Return a gate of an lmgate.yaml by its id or label, and its label."""
    gates, problems = read_gates(file)
    if problems:
        raise ConfigError(problems[0])
    known: dict[str, YamlGate] = {}
    for each in gates:
        known[untaken(each.gate.label, known)] = each
    label = re.sub(r"^[^\[]*\.ya?ml::", "", name)
    if re.match(r"[^\[]*\.py(::|$)", name):
        raise ConfigError(
            f"{name}: this command runs no Python tests, whose markers and fixtures pytest alone knows: write the "
            f"gate into {file}, with the same names and arguments, and name that one"
        )
    if label not in known:
        listed = ", ".join(known) or "none"
        raise ConfigError(f"{file}: no gate is called {label!r}{nearest(label, known)}; it has {listed}")
    return known[label], label


def chosen_protocol(
    project: Project, names: Sequence[str], given: Mapping[str, str | None], others: Sequence[str] | None
) -> WindowProtocol:
    """Return the protocol that is given, else that of the gates of lmgate.yaml on a candidate, its reference and data.

    Gates that name the reference go before those with a limit or a baseline.
    """
    asked = _asked(given, others)
    if asked:
        if several := next((key for key, values in asked.items() if len(values) > 1), None):
            raise typer.BadParameter(f"{several}: expected one value, got {len(asked[several])}")
        return convert({key: value for key, (value,) in asked.items()}, WindowProtocol)
    candidate, reference, dataset = names
    gates, problems = read_gates(project.file) if project.file else ([], [])
    if problems:
        raise ConfigError(problems[0])
    with_reference: dict[WindowProtocol, str] = {}
    without: dict[WindowProtocol, str] = {}
    for entry in gates:
        gate, evaluation = entry.gate, entry.gate.evaluation
        named = evaluation.reference or getattr(gate, "against", None)
        if (evaluation.model, evaluation.dataset) == (candidate, dataset) and named in (None, reference):
            request = evaluation.how
            protocol = request.protocol if isinstance(request, DivergenceRequest) else request
            if isinstance(protocol, WindowProtocol):
                windows = structs.replace(protocol, unit="token", average=None)
                (without if named is None else with_reference).setdefault(windows, gate.label)
    protocols = with_reference or without or {WindowProtocol(): ""}
    if len(protocols) > 1:
        raise ConfigError(
            f"{project.file}: its gates on {candidate!r} and {dataset!r} measure by several protocols "
            f"({', '.join(protocols.values())}): choose one by --protocol, --stride and --max-length"
        )
    return next(iter(protocols))
