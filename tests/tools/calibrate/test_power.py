"""What a gate is worth, against simulations of engines with known noise: few or skewed rows, rare flips, clusters."""

import numpy as np
import pytest

from pytest_lmgate.settings.gates import Tolerance
from pytest_lmgate.stats.sample import ByRow, Sample, Scale
from pytest_lmgate.tools.calibrate.power import calibrate_limit, calibrate_tolerance

SHARE = Scale("higher", lowest=0, highest=1, of_rows=True)
PPL = Scale("lower", exponential=True)


class Rows:
    """An engine whose rows are right with known chances, all rows of a cluster together in a share of the runs."""

    def __init__(self, chances: np.ndarray, cluster: int = 1) -> None:
        self.chances, self.clusters = chances, np.arange(len(chances)) // cluster

    def run(self, generator: np.random.Generator) -> np.ndarray:
        of_cluster = generator.random(self.clusters.max() + 1)[self.clusters]
        together = (generator.random(self.clusters.max() + 1) < 0.5)[self.clusters]
        alone = generator.random(len(self.chances))
        return (np.where(together, of_cluster, alone) < self.chances).astype(float)

    def sample(self, run: np.ndarray) -> Sample:
        rows = ByRow(run[:, None], np.ones(len(run), dtype=np.int64), self.clusters)
        return Sample.of_means(rows, SHARE, right_or_wrong=True)

    def value(self, run: np.ndarray) -> float:
        return float(run.mean())


class Documents(Rows):
    """Negative log-likelihoods of uneven documents, some of which change much from run to run."""

    def __init__(self, count: int) -> None:
        fixed = np.random.default_rng(7)
        self.tokens = fixed.lognormal(4, 1, count).astype(np.int64) + 1
        self.nll, self.spread = fixed.normal(2, 0.3, count), fixed.lognormal(-4, 1, count)

    def run(self, generator: np.random.Generator) -> np.ndarray:
        noise: np.ndarray = self.spread * (generator.exponential(1, len(self.tokens)) - 1)
        return (self.nll + noise) * self.tokens

    def sample(self, run: np.ndarray) -> Sample:
        return Sample(run[:, None], self.tokens, PPL)

    def value(self, run: np.ndarray) -> float:
        return float(np.exp(run.sum() / self.tokens.sum()))


def _some(share: float, chance: float, rows: int) -> np.ndarray:
    """Rows of which a share is right with this chance, and of the others three in four always."""
    chances = np.where(np.arange(rows) < 0.75 * rows, 1.0, 0.0)
    chances[: round(share * rows)] = chance
    return chances


ENGINES = {
    "few rows": Rows(_some(0.3, 0.7, 30)),
    "half of the flips are lost": Rows(_some(0.1, 0.5, 200)),
    "rare flips": Rows(np.full(200, 0.99)),
    "different rates": Rows(np.random.default_rng(3).beta(3, 1, 200)),
    "clusters of five": Rows(np.random.default_rng(3).beta(3, 1, 200), cluster=5),
    "documents": Documents(100),
}


@pytest.mark.parametrize("name", ENGINES)
def test_a_tolerance_fails_an_unchanged_model_as_often_as_simulated(name: str) -> None:
    runs = 3
    engine, generator = ENGINES[name], np.random.default_rng(11)
    sign = 1 if isinstance(engine, Documents) else -1
    values = np.array([engine.value(engine.run(generator)) for _ in range(8_000)])
    changes = sign * (values[:4000] - values[4000:])
    tolerance = float(np.quantile(changes, 0.95)) + 1e-6
    fails = float((changes > tolerance).mean())
    found = [
        calibrate_tolerance([engine.sample(engine.run(generator)) for _ in range(runs)], Tolerance(tolerance, False))
        for _ in range(50)
    ]
    assert np.mean([each.fails for each in found]) == pytest.approx(fails, abs=0.02)
    assert np.mean([each.between_runs for each in found]) == pytest.approx(values.std(), rel=0.15)
    assert sum(each.as_a_whole for each in found) <= 4
    assert np.mean([(changes > each.holding()).mean() for each in found]) <= 0.025


@pytest.mark.parametrize("name", ["few rows", "different rates", "documents"])
def test_a_limit_fails_on_other_rows_as_often_as_new_rows_do(name: str) -> None:
    engine, generator = ENGINES[name], np.random.default_rng(5)
    runs = [engine.run(generator) for _ in range(4)]
    sample = engine.sample(runs[0])
    stderr = float(sample.noise().stderr or 0) * (sample.value() if sample.scale == PPL else 1)
    drawn = generator.integers(len(runs[0]), size=(20_000, len(runs[0])))
    if isinstance(engine, Documents):
        values, at, sign = np.exp(runs[0][drawn].sum(1) / engine.tokens[drawn].sum(1)), 0.9, 1
    else:
        values, at, sign = runs[0][drawn].mean(1), 0.1, -1
    limit = float(np.quantile(values, at))
    fails = (sign * (values - limit) > 1e-9).mean()
    worth = calibrate_limit([sample, sample], limit, stderr)
    assert worth.other_rows.fails(worth.threshold) == pytest.approx(fails, abs=0.02)
