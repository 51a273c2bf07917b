"""``lmgate drill``: would my gates catch it?

The model of each gate is broken in known ways, and the gates judge the broken models as they stand. Nothing of it is
kept: measurements of broken models are in a folder of their own below the cache, which is removed at the end. After an
interruption it stays, so that the same command goes on.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import filelock
import typer

from pytest_lmgate.cli import console
from pytest_lmgate.cli.console import AsJson, BaselineOption, CacheOption, ConfigOption, DeviceOption, OfflineOption
from pytest_lmgate.cli.measure import Measuring, measuring
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.report.formats import write_file
from pytest_lmgate.settings.file import YamlGate
from pytest_lmgate.tools.parts.gates import find_gate, gates_by_label, require_writable

if TYPE_CHECKING:
    from pytest_lmgate.tools.drill.outcome import Report
    from pytest_lmgate.tools.drill.planting import Fault


def drill(
    gate: Annotated[list[str] | None, typer.Option(metavar="ID", help="Only this gate of lmgate.yaml.")] = None,
    faults: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Only these faults, by name or kind. Default: all.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Time limit in seconds; shorter means fewer faults.")] = 1800,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a self-contained HTML page.")] = None,
    config: ConfigOption = None,
    cache: CacheOption = None,
    baseline: BaselineOption = None,
    device: DeviceOption = None,
    offline: OfflineOption = False,
    as_json: AsJson = False,
) -> None:
    """Break the models of gates in known ways, and show which gate turns red for which fault.

    The gates judge broken models as they stand in lmgate.yaml. No baseline, history or report is written, and the
    cache stays as it is.
    """
    if "PYTEST_VERSION" in os.environ:
        raise ConfigError("lmgate drill breaks models, so it does not run inside a session of pytest")
    require_writable({} if html is None else {"--html": html})
    begun = time.monotonic()
    from pytest_lmgate.tools.drill.faults import chosen_faults

    chosen = chosen_faults(faults)
    with measuring(config=config, cache=cache, device=device, offline=offline) as session:
        gates = _gates(session, gate)
        with _folder(session.evaluator.options.cache) as folder:
            report = _run(session, gates, chosen, folder, console.root().baseline(baseline), begun + seconds)
    console.show(report.data(), "\n".join(report.lines()), as_json=as_json)
    if html is not None:
        write_file(html, report.html().encode())


def _gates(session: Measuring, names: list[str] | None) -> dict[str, YamlGate]:
    """Return the gates with these ids by their labels; all gates of lmgate.yaml without any."""
    file = session.project.file
    if file is None:
        raise ConfigError(f"{session.project.origin}; lmgate drill needs the gates of an lmgate.yaml")
    if names:
        return {label: entry for entry, label in (find_gate(file, name) for name in names)}
    gates = gates_by_label(file)
    if not gates:
        raise ConfigError(f"{file}: expected gates, which lmgate drill tries out, got none: write them under gates:")
    return gates


@contextlib.contextmanager
def _folder(cache: Path) -> Iterator[Path]:
    """Yield the drill's own folder below the cache, which is removed unless the process is interrupted."""
    folder = cache / "drill"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / "lock")
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise ConfigError(f"another lmgate drill uses {folder}: wait until it ends") from None
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}; name a folder by --cache") from error
    is_over = True
    try:
        yield folder
    except KeyboardInterrupt:
        is_over = False
        console.note(f"stopped; what was measured is kept in {folder}, and the same command goes on from there")
        raise
    finally:
        lock.release()
        if is_over:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # others use the cache
                cache.rmdir()


def _run(
    session: Measuring, gates: dict[str, YamlGate], faults: list[Fault], folder: Path, baseline: Path, deadline: float
) -> Report:
    from pytest_lmgate.judge.baseline import Baselines
    from pytest_lmgate.tools.drill.evaluator import DrillJudge, FaultyEvaluator
    from pytest_lmgate.tools.drill.outcome import Report
    from pytest_lmgate.tools.drill.plan import Drill, guards_of, seconds_of, suggested

    spec, options = session.project.spec, replace(session.evaluator.options, cache=folder, remote_cache=None)
    options = replace(options, strict=console.root().is_on("strict"))
    log = replace(session.evaluator.log, remark=lambda _: None)  # of a broken model these would mislead
    with contextlib.closing(FaultyEvaluator(session.project, options, log)) as evaluator:
        baselines = Baselines(baseline, label=spec.label, alike=spec.devices)
        judge = DrillJudge(evaluator, options, baselines)
        folder_of_ids = console.root().folder
        bound = {
            name: (baselines.id_of(gate.file, name, folder_of_ids), evaluator.bind_gate(gate.gate))
            for name, gate in gates.items()
        }
        guards = guards_of(evaluator, judge, bound)
        seconds = seconds_of(evaluator)
        made = Drill(evaluator, judge, guards, faults, seconds, deadline)
        made.prepare()
        console.note(made.plan())
        gc.freeze()  # else all that is loaded is searched again when a broken model goes
        report = Report(guards, made.run(), seconds, made.left_out)
        return replace(report, suggestions=suggested(made, report.missed)) if report.missed else report
