"""Small models in a workplace, and one thread of torch, as in tests/measure and tests/engines/transformers."""

from tests.engines.transformers.conftest import _one_thread
from tests.measure.conftest import checkpoint, loads, pair, workplace

__all__ = ["_one_thread", "checkpoint", "loads", "pair", "workplace"]
