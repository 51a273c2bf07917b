"""An evaluator for commands that measure, with the lmgate.yaml and the cache that a session of pytest would use."""

from __future__ import annotations

__all__ = ["Measuring", "measuring"]

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pytest_lmgate.cli.places import root
from pytest_lmgate.report.terminal.progress import ProgressLine

if TYPE_CHECKING:
    from pytest_lmgate.config.file import Project
    from pytest_lmgate.evaluate.evaluator import Evaluator
    from pytest_lmgate.metrics.divergence import Divergence
    from pytest_lmgate.metrics.score import Score


@dataclass
class Measuring:
    """What a command measures with."""

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
    """Make an evaluator by options of a command; progress and everything else that there is to say go to stderr.

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
        remote_cache=here.text("remote_cache", None),
        remote_cache_readonly=here.is_on("remote_cache_readonly"),
        refresh=refresh,
        offline=offline or here.is_on("offline"),
        device=here.text("device", device),
        cache_key=CacheKey.from_environment(),
    )
    progress, remarks = ProgressLine(_echo, sys.stderr.isatty), dict[str, None]()
    evaluator = Evaluator(
        project,
        options,
        report=progress.show,
        note=progress.say,
        warn=progress.say,
        remark=lambda sentence: remarks.setdefault(sentence),
    )
    with progress:
        yield Measuring(project, evaluator)
    for sentence in remarks:
        progress.say(sentence)
    for model, reason in evaluator.not_kept.items():
        progress.say(f"{model}: its measurement is not kept: {reason}")


def _echo(text: str) -> None:
    typer.echo(text, err=True, nl=False)
