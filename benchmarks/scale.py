"""What a measurement costs without its model: by tokens, and by workers of a Ray cluster.

python benchmarks/scale.py                 both tables; the second needs the extra `ray`
python benchmarks/scale.py --only tokens --most 10000000

The model is a fair die, which answers at once for the first table, and sleeps for the second, so that what is left is
the package's own. The first table has two processes for each number of tokens, one that measures and one that finds it
measured: seconds, and the peak memory over that of 1,000 tokens. The second has the time of one
measurement on 1, 2 and 4 workers, whose batches take equally long, or from a tenth to twice as long; then the same with
`ray.util.ActorPool` and Ray Data (which needs pandas and pyarrow), with as many actors.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pytest_lmgate.engines.base import Backend, Entry, Model, Runner
from pytest_lmgate.measure.evaluator import Evaluator
from pytest_lmgate.settings.file import load_project
from pytest_lmgate.settings.gates import EvaluationSpec
from pytest_lmgate.settings.requests import Protocol
from pytest_lmgate.settings.session import Executor, Options
from pytest_lmgate.windows.requests import Request
from pytest_lmgate.windows.tokens import Placed, TokenizerFacts

_CONTEXT = 256
WIDTHS = (12, 8, 10, 6, 13, 9, 6, 13)  # of the columns of the first table
_REQUIRED = 3.6  # times as fast on four workers as on one


def _ids(text: str, _: bool) -> Any:
    return np.frombuffer(text.encode(), np.uint8) % 64


class Sleeper(Runner):
    """A fair die of 6 sides that sleeps over each batch, as long as its first token says."""

    is_tried = True

    tokenizer = TokenizerFacts(_ids, placed=lambda text, special: Placed(_ids(text, special), range(len(text))))

    def __init__(self, seconds: Sequence[float]) -> None:
        self._seconds = seconds

    def score(self, requests: Sequence[Request]) -> list[np.ndarray]:
        """Sleep, and take each side for equally likely."""
        time.sleep(self._seconds[int(requests[0].ids[0]) % len(self._seconds)])
        return [np.full(len(each.targets), math.log(6)) for each in requests]


class Sleepers(Backend):
    """Sleepers by name: how long they sleep, in milliseconds with dashes between."""

    name, suffixes = "sleeper", (".sleeper",)

    def describe(self, entry: Entry) -> Model:
        """Describe a sleeper of this name."""
        seconds = [int(each) / 1000 for each in entry.name.split("-")]
        return Model(entry.name, lambda: Sleeper(seconds), context=_CONTEXT, content={"sleeps": entry.name})


def session(folder: Path, model: str, executor: Executor | None = None, cache: Path | None = None) -> Evaluator:
    """Begin a session with a model, with a cache of its own unless one is given."""
    (folder / "lmgate.yaml").write_text(f"models: {{'{model}': {{backend: sleeper, batch_size: 1}}}}")
    options = Options(cache=cache or Path(tempfile.mkdtemp(dir=folder)), executor=executor)
    return Evaluator(load_project(folder), options, users_backends={"sleeper": Sleepers()})


def measured(evaluator: Evaluator, model: str, text: Path) -> float:
    """Measure a perplexity, and return how many seconds it took."""
    started = time.perf_counter()
    score = evaluator.evaluate(EvaluationSpec("ppl", model, text, Protocol("disjoint", max_length=_CONTEXT)))
    assert math.isclose(score, 6, rel_tol=1e-6), score
    return time.perf_counter() - started


def letters(folder: Path, tokens: int) -> Path:
    """Write a text of so many letters, each a token."""
    path = folder / f"{tokens}.txt"
    path.write_bytes(np.random.default_rng(tokens).integers(97, 123, tokens, np.uint8).tobytes())
    return path


def one_size(tokens: int, folder: Path) -> None:
    """Measure one text, or find it measured, and print seconds and peak memory in MiB."""
    text = folder / f"{tokens}.txt"
    seconds = measured(session(folder, "0", cache=folder), "0", text if text.exists() else letters(folder, tokens))
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def by_tokens(most: int) -> None:
    """Print what texts of 10,000 tokens and more cost, and what it costs to find them measured."""

    def run(tokens: int) -> list[float]:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--one", str(tokens), "--folder", folder]
            said = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(2)]
        return [float(each) for each in " ".join(said).split()]

    _, base, _, base_cached = run(1000)
    heads = ("tokens", "seconds", "ns a token", "MiB", "bytes a token", "cached: s", "MiB", "bytes a token")
    print("  ".join(f"{head:>{width}}" for head, width in zip(heads, WIDTHS, strict=True)))
    tokens = 10_000
    while tokens <= most:
        seconds, peak, cached, cached_peak = run(tokens)
        cells = (
            f"{tokens:,}",
            *(f"{seconds:.2f}", f"{seconds / tokens * 1e9:,.0f}"),
            *(f"{peak - base:,.0f}", f"{(peak - base) * 2**20 / tokens:,.0f}", f"{cached:.2f}"),
            *(f"{cached_peak - base_cached:,.0f}", f"{(cached_peak - base_cached) * 2**20 / tokens:,.0f}"),
        )
        print("  ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True)))
        tokens *= 10


def by_workers(batches: int) -> bool:
    """Print how the time of a measurement falls with the workers; return whether it falls as required."""
    import ray

    ray.init(num_cpus=4, log_to_driver=False, include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    kinds = {"equal": "100", "uneven": "-".join(str(random.Random(5).randint(10, 200)) for _ in range(17))}
    print(f"{'batches':>8}  {'workers':>7}  {'seconds':>8}  {'times one':>9}  {'ActorPool':>9}  {'Ray Data':>8}")
    is_good = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text, first = letters(folder, batches * _CONTEXT), letters(folder, 8 * _CONTEXT)
        for kind, model in kinds.items():
            alone = math.nan
            draw, seconds_of = random.Random(6), [int(each) / 1000 for each in model.split("-")]
            drawn = [draw.choice(seconds_of) for _ in range(batches)]
            for workers in (1, 2, 4):
                evaluator = session(folder, model, Executor(workers=workers, num_cpus=1))
                measured(evaluator, model, first)  # workers start, and make their models
                seconds = measured(evaluator, model, text)
                evaluator.resolver.close()
                alone = seconds if workers == 1 else alone
                others = (pooled(ray, workers, drawn), by_ray_data(ray, workers, drawn))
                print(
                    f"{kind:>8}  {workers:7}  {seconds:8.2f}  {alone / seconds:8.2f}x", *(f"{s:8.2f}s" for s in others)
                )
                is_good &= workers < 4 or alone / seconds >= _REQUIRED
    ray.shutdown()
    return is_good


def pooled(ray: Any, workers: int, drawn: Sequence[float]) -> float:
    """Have an ActorPool sleep over batches, and return how many seconds that took."""

    @ray.remote(num_cpus=1)
    class Actor:
        def sleep(self, seconds: float) -> float:
            time.sleep(seconds)
            return seconds

    actors = [Actor.remote() for _ in range(workers)]
    ray.get([actor.sleep.remote(0.0) for actor in actors])
    started = time.perf_counter()
    found = list(ray.util.ActorPool(actors).map_unordered(lambda actor, each: actor.sleep.remote(each), drawn))
    took = time.perf_counter() - started
    assert math.isclose(statistics.fsum(found), statistics.fsum(drawn))
    for actor in actors:
        ray.kill(actor)
    return took


def by_ray_data(ray: Any, workers: int, drawn: Sequence[float]) -> float:
    """Have actors of Ray Data sleep over batches, and return how many seconds passed from the first result on.

    The first batch is left out, during which the actors start.
    """

    class Actor:
        def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            time.sleep(float(batch["seconds"][0]))
            return {**batch, "ended": np.array([time.time()])}

    items = [{"seconds": each} for each in (0.0, *drawn)]
    data = ray.data.from_items(items, override_num_blocks=len(items))
    done = data.map_batches(Actor, batch_size=1, concurrency=workers, num_cpus=1).take_all()
    assert math.isclose(sum(each["seconds"] for each in done), statistics.fsum(drawn))
    ended = sorted(each["ended"] for each in done)
    return float(ended[-1] - ended[0])


def main() -> int:
    """Print the tables that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["tokens", "workers"])
    parser.add_argument("--most", type=int, default=10_000_000, help="tokens of the longest text")
    parser.add_argument("--batches", type=int, default=300, help="batches of the measurement on a cluster")
    parser.add_argument("--no-check", action="store_true", help="only print")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one_size(arguments.one, arguments.folder)
        return 0
    if arguments.only in (None, "tokens"):
        by_tokens(arguments.most)
    if arguments.only in (None, "workers") and not by_workers(arguments.batches) and not arguments.no_check:
        print(f"required: four workers at least {_REQUIRED} times as fast as one")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
