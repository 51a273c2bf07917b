"""benchmarks/decisions.py: vectorized it says what the package says."""

import numpy as np
import pytest
from decision_tables import CONFIDENCE, NOISES, TRUTHS
from decisions import clustered, degrees_of_freedom, require_same_verdicts, simulate

from pytest_lmgate.stats.means import clustered_mean


@pytest.mark.parametrize("noise", list(NOISES))
@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize(("documents", "spread"), [(2, 0.0), (10, 1.5), (40, 0.5)])
def test_the_closed_form_for_many_is_that_of_one(noise: str, truth: str, documents: int, spread: float) -> None:
    pairs = simulate(np.random.default_rng(0), NOISES[noise], documents, spread, truth, 20)

    judged, df = clustered(pairs), degrees_of_freedom(pairs.counts)

    for each in range(20):
        one = clustered_mean(pairs.sums[each], pairs.counts[each].astype(np.int64))
        bounds, interval = one.bounds(CONFIDENCE), one.bounds(0.5 + CONFIDENCE / 2)
        assert bounds is not None
        assert interval is not None
        assert judged.change[each] == pytest.approx(one.mean, abs=1e-15)
        assert (judged.lower[each], judged.upper[each]) == pytest.approx(bounds[:2], rel=1e-9)
        assert (judged.low[each], judged.high[each]) == pytest.approx(interval[:2], rel=1e-9)
        assert df[each] == pytest.approx(one.df, rel=1e-9)
    require_same_verdicts(pairs, judged, 20)
