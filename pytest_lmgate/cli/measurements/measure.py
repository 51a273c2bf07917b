"""``lmgate measure``: one number, or how it depends on the window and the stride, by the cache that pytest uses."""

from __future__ import annotations

__all__ = ["measure"]

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_lmgate.cli.output import AsJson, show
from pytest_lmgate.cli.places import CacheOption, ConfigOption, DeviceOption, OfflineOption
from pytest_lmgate.cli.tables import table
from pytest_lmgate.errors import EngineError, nearest
from pytest_lmgate.metrics.table import METRICS, metric_called

if TYPE_CHECKING:
    from pytest_lmgate.report.measured import Measured

_PLOT = 24  # characters


def measure(
    metric: Annotated[str, typer.Argument(metavar="METRIC", help=f"One of {', '.join(METRICS)}.")],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of lmgate.yaml, path or hub id.")],
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="Name of lmgate.yaml, path or hub id.")],
    reference: Annotated[str | None, typer.Option(help="For kl, top1 and compare: the other model.")] = None,
    protocol: Annotated[str | None, typer.Option(help="Name as in docs/protocols.md.")] = None,
    stride: Annotated[str | None, typer.Option(help="Tokens; 128,256,512 makes a sweep.")] = None,
    max_length: Annotated[str | None, typer.Option(help="Tokens of a window; 512,1024 makes a sweep.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="K=V", help="Any other argument of the fixture; K=V1,V2 makes a sweep."),
    ] = None,
    config: ConfigOption = None,
    cache: CacheOption = None,
    device: DeviceOption = None,
    offline: OfflineOption = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure again what the cache has.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure a model, or look the number up.

    METRIC and its options are those of the fixture: `lmgate markers ppl_of` lists them. Several values, as in
    --stride 128,256,512, make a table with a row each. Progress goes to stderr.
    """
    if metric not in METRICS:
        meant = metric_called(metric)
        hint = f" (did you mean {meant!r}?)" if meant in METRICS else nearest(metric, METRICS)
        hint = hint or "; a metric that a conftest.py registers is measured by pytest only"
        raise typer.BadParameter(f"expected a metric, one of {', '.join(METRICS)}; got {metric!r}{hint}")
    named = {"protocol": protocol, "stride": stride, "max_length": max_length}
    axes = {key: _values(key, text) for key, text in named.items() if text is not None}
    for each in option or ():
        key, equals, text = each.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key or key in axes:
            raise typer.BadParameter(f"--option: expected NAME=VALUE, each name once; got {each!r}")
        axes[key] = _values(key, text)
    fixed = {"model": model, "dataset": dataset} | ({} if reference is None else {"reference": reference})
    swept = [key for key, values in axes.items() if len(values) > 1]

    from pytest_lmgate.cli.measurements.measuring import measuring
    from pytest_lmgate.report.measured import Measured

    found: list[tuple[dict[str, Any], Measured]] = []
    with measuring(config=config, cache=cache, device=device, offline=offline, refresh=refresh) as session:
        for values in itertools.product(*axes.values()):
            chosen = dict(zip(axes, values, strict=True))
            score = session.measure(metric, **fixed, **chosen)
            found.append((chosen, Measured.of("", METRICS[metric].fixture, score)))
    text = _sweep(metric, swept, found) if swept else _single(found[0][1])
    show({"measurements": [_facts(chosen, each) for chosen, each in found]}, text, as_json=as_json)
    if wrong := [each for _, each in found if not math.isfinite(each.value)]:
        raise EngineError(
            f"{metric} of {wrong[0].model!r} on {wrong[0].dataset!r} is {wrong[0].value}, not a number to judge"
        )


def _values(key: str, text: str) -> list[Any]:
    """Return the values of an option, each a YAML scalar; commas stand between several, unless they are in quotes."""
    import yaml

    try:
        whole = yaml.safe_load(text)
        several = isinstance(whole, str | int) and "," in text and text[0] not in "'\"[{"
        return [yaml.safe_load(each) for each in text.split(",")] if several else [whole]
    except yaml.YAMLError:
        raise typer.BadParameter(f"{key}: expected a value as YAML writes it, got {text!r}") from None


def _single(found: Measured) -> str:
    from pytest_lmgate.report.wording.numbers import interval, number

    noise = f" {interval(*found.interval)}, at 95%" if found.interval else ""
    lines = [
        f"{found.metric} {number(found.value)}{noise}",
        f"  of {found.model} on {found.dataset}, {found.n:,} {found.unit}s",
        f"  {found.signature}",
        f"  from the cache ({found.fingerprint[:12]})"
        if found.cached
        else f"  measured in {found.seconds:.1f} s ({found.fingerprint[:12]})",
    ]
    width = max((len(name) for name, _ in found.details), default=0)
    return "\n".join([*lines, *(f"  {name:<{width}}  {_figure(value)}" for name, value in found.details)])


def _figure(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else str(value)


def _sweep(metric: str, swept: Sequence[str], found: Sequence[tuple[dict[str, Any], Measured]]) -> str:
    from pytest_lmgate.report.wording.numbers import interval, number

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
    return table(header, rows, right=header)


def _bar(value: float, ends: tuple[float, float], low: float, high: float) -> str:
    """Return the value (o) and its interval (-) on an axis from the lowest to the highest end of all rows."""
    if not all(map(math.isfinite, (value, *ends, low, high))) or low == high:
        return ""
    at, begin, end = (round((_PLOT - 1) * (each - low) / (high - low)) for each in (value, *ends))
    marks = ("o" if place == at else "-" if begin <= place <= end else " " for place in range(_PLOT))
    return f"|{''.join(marks)}|"


def _facts(chosen: dict[str, Any], found: Measured) -> dict[str, Any]:
    from pytest_lmgate.report.formats.json_file import measurement_facts

    facts = measurement_facts(found)
    return {"options": chosen} | {key: value for key, value in facts.items() if key not in ("test", "fixture")}
