"""An evaluator for commands that measure, with the lmgate.yaml and the cache that a session of pytest would use."""

from __future__ import annotations

__all__ = ["Measuring", "measuring"]

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pytest_lmgate.cli.places import root
from pytest_lmgate.errors import harmless_line

if TYPE_CHECKING:
    from pytest_lmgate.config.file import Project
    from pytest_lmgate.engine.loop import Progress
    from pytest_lmgate.evaluate.evaluator import Evaluator
    from pytest_lmgate.metrics.divergence import Divergence
    from pytest_lmgate.metrics.score import Score

_TERMINAL_SECONDS, _LOG_SECONDS = 0.2, 30.0


@dataclass
class Measuring:
    """What a command measures with.

    Attributes:
        project: The lmgate.yaml, and the folder that its paths are relative to.
        evaluator: Measures, or finds in the cache.
    """

    project: Project
    evaluator: Evaluator

    def measure(self, metric: str, **arguments: Any) -> Score | Divergence:
        """Measure as the metric's fixture does, which has the same arguments.

        Raises:
            LmgateError: It cannot be measured.
        """
        from pytest_lmgate.metrics.table import METRICS
        from pytest_lmgate.spec.markers import parse_fixture_call

        for name in ("model", "reference", "dataset"):
            if isinstance(given := arguments.get(name), str):
                arguments[name] = self.named(given)
        what = parse_fixture_call(METRICS[metric].fixture, (), arguments)
        return self.evaluator.evaluate(what) if what.is_number else self.evaluator.compare(what)

    def named(self, given: str) -> str:
        """Return a name as it is, and a path, which is relative to where it is typed, as lmgate.yaml would write it."""
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
    project: Project | None = None,
) -> Iterator[Measuring]:
    """Make an evaluator; progress and everything else that there is to say go to stderr.

    Args:
        config: The lmgate.yaml that is named.
        cache: The folder of measurements that is named.
        device: As in `Options`, like the next two.
        offline: See `device`.
        refresh: See `device`.
        project: In the place of an lmgate.yaml.

    Raises:
        LmgateError: lmgate.yaml or an option is not what it should be.
    """
    from pytest_lmgate.config.cache_key import CacheKey
    from pytest_lmgate.config.file import load_project
    from pytest_lmgate.config.options import Options
    from pytest_lmgate.evaluate.evaluator import Evaluator

    here = root()
    if project is None:
        project = load_project(here.start, here.project_file(config))
    options = Options(
        cache=here.cache(cache),
        refresh=refresh,
        offline=offline or here.is_on("offline"),
        device=here.text("device", device),
        cache_key=CacheKey.from_environment(),
    )
    progress, remarks = _Progress(), dict[str, None]()
    evaluator = Evaluator(
        project,
        options,
        report=progress.show,
        note=progress.say,
        warn=progress.say,
        remark=lambda sentence: remarks.setdefault(sentence),
    )
    try:
        yield Measuring(project, evaluator)
    finally:
        progress.clear()
    for sentence in remarks:
        progress.say(sentence)
    for model, reason in evaluator.not_kept.items():
        progress.say(f"{model}: its measurement is not kept: {reason}")


class _Progress:
    """One line kept up to date on a terminal, a line every 30 seconds elsewhere; always on stderr."""

    def __init__(self) -> None:
        self._drawn, self._last = 0, time.monotonic()

    def show(self, progress: Progress) -> None:
        terminal, now = sys.stderr.isatty(), time.monotonic()
        if now - self._last < (_TERMINAL_SECONDS if terminal else _LOG_SECONDS):
            return
        self._last = now
        line = f"lmgate: {harmless_line(progress.line)}"
        if not terminal:
            typer.echo(line, err=True)
            return
        line = line[: shutil.get_terminal_size().columns - 1]
        typer.echo("\r" + line.ljust(self._drawn), err=True, nl=False)
        self._drawn = max(self._drawn, len(line))

    def say(self, sentence: str) -> None:
        self.clear()
        typer.echo(f"lmgate: {harmless_line(sentence)}", err=True)

    def clear(self) -> None:
        if self._drawn:
            typer.echo("\r" + " " * self._drawn + "\r", err=True, nl=False)
            self._drawn = 0
