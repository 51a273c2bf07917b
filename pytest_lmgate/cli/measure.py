"""``lmgate measure``, with the lmgate.yaml and the cache that a session of pytest would use."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
import yaml

from pytest_lmgate.cli.console import AsJson, CacheOption, ConfigOption, DeviceOption, OfflineOption, root, show
from pytest_lmgate.errors import EngineError, nearest
from pytest_lmgate.report.text import ProgressLine, table
from pytest_lmgate.settings.decoding import parse_fixture_call
from pytest_lmgate.settings.entries import Project
from pytest_lmgate.settings.file import load_project
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
        call = parse_fixture_call(METRICS[metric].fixture, (), arguments)
        return self.evaluator.evaluate(call) if call.is_number else self.evaluator.compare(call)

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
    axes = asked({"protocol": protocol, "stride": stride, "max_length": max_length}, option)
    fixed = {"model": model, "dataset": dataset} | ({} if reference is None else {"reference": reference})
    swept = [key for key, values in axes.items() if len(values) > 1]

    from pytest_lmgate.judge.result import FixtureCall

    calls: list[tuple[dict[str, Any], FixtureCall]] = []
    with measuring(config=config, cache=cache, device=device, offline=offline, refresh=refresh) as session:
        for values in itertools.product(*axes.values()):
            chosen = dict(zip(axes, values, strict=True))
            score = session.measure(metric, **fixed, **chosen)
            calls.append((chosen, FixtureCall.of("", METRICS[metric].fixture, score)))
    text = _sweep(metric, swept, calls) if swept else _single(calls[0][1])
    show({"measurements": [_facts(chosen, call) for chosen, call in calls]}, text, as_json=as_json)
    if wrong := [call for _, call in calls if not math.isfinite(call.value)]:
        raise EngineError(
            f"{metric} of {wrong[0].model!r} on {wrong[0].dataset!r} is {wrong[0].value}, not a number to judge"
        )


def asked(named: Mapping[str, str | None], others: Sequence[str] | None) -> dict[str, list[Any]]:
    """Return the values of arguments that have an option of their own, and of others as ``NAME=VALUE``."""
    axes = {key: _values(key, text) for key, text in named.items() if text is not None}
    for argument in others or ():
        key, equals, text = argument.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key or key in axes:
            raise typer.BadParameter(f"--option: expected NAME=VALUE, each name once; got {argument!r}")
        axes[key] = _values(key, text)
    return axes


def _values(key: str, text: str) -> list[Any]:
    """Return the values of an option as YAML reads them: one, or several with commas between."""
    try:
        whole = yaml.safe_load(text)
        several = isinstance(whole, str | int) and "," in text and text[0] not in "'\"[{"
        return [yaml.safe_load(item) for item in text.split(",")] if several else [whole]
    except (yaml.YAMLError, ValueError):  # the library passes on what int() and date() say of 0x_ and 2024-13-45
        raise typer.BadParameter(f"{key}: expected a value as YAML writes it, got {text!r}") from None


def _single(call: FixtureCall) -> str:
    from pytest_lmgate.report.wording import interval, number

    noise = f" {interval(*call.interval)}, at 95%" if call.interval else ""
    lines = [
        f"{call.metric} {number(call.value)}{noise}",
        f"  of {call.model} on {call.dataset}, {call.n:,} {call.unit}s",
        f"  {call.signature}",
        f"  from the cache ({call.fingerprint[:12]})"
        if call.cached
        else f"  measured in {call.seconds:.1f} s ({call.fingerprint[:12]})",
    ]
    width = max((len(name) for name in call.details), default=0)
    for name, value in call.details.items():
        lines.append(f"  {name:<{width}}  {f'{value:.6g}' if isinstance(value, int | float) else value}")
    return "\n".join(lines)


def _sweep(metric: str, swept: Sequence[str], calls: Sequence[tuple[dict[str, Any], FixtureCall]]) -> str:
    from pytest_lmgate.report.wording import interval, number

    header = (*swept, metric, "95% interval", "scored", "seconds", "")
    ends = [call.interval or (call.value, call.value) for _, call in calls]
    low, high = min(min(pair) for pair in ends), max(max(pair) for pair in ends)
    rows = [
        (
            *(str(chosen[key]) for key in swept),
            number(call.value),
            interval(*call.interval) if call.interval else "-",
            f"{call.n:,} {call.unit}s",
            "cached" if call.cached else f"{call.seconds:.1f}",
            _bar(call.value, call.interval or (call.value, call.value), low, high),
        )
        for chosen, call in calls
    ]
    return "\n".join(table(header, rows, names=()))


def _bar(value: float, ends: tuple[float, float], low: float, high: float) -> str:
    """Return the value ``o`` in its interval ``---``, in ASCII."""
    if not all(map(math.isfinite, (value, *ends, low, high))) or low == high:
        return ""
    at, begin, end = (round((_PLOT - 1) * (edge - low) / (high - low)) for edge in (value, *ends))
    marks = ("o" if place == at else "-" if begin <= place <= end else " " for place in range(_PLOT))
    return f"|{''.join(marks)}|"


def _facts(chosen: dict[str, Any], call: FixtureCall) -> dict[str, Any]:
    facts = msgspec.to_builtins(call)
    return {"options": chosen} | {key: value for key, value in facts.items() if key not in ("test", "fixture")}
