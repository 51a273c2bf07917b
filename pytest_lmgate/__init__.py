"""pytest-lmgate: measure a language model once, keep the measurement, fail the build when the model got worse.

    import pytest_lmgate as lmgate

    @pytest.mark.ppl_max("int8", "wikitext2", 16.5, stride=512)
    def test_quality(): ...

The names below are all there is to import; markers and fixtures come with the plugin. Nothing heavy is imported here.
"""

__all__ = [
    "CacheWarning",
    "Divergence",
    "FixtureReference",
    "LmgateError",
    "LmgateWarning",
    "Score",
    "TextMetric",
    "__version__",
    "fixture",
    "model",
]

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_lmgate.errors import CacheWarning, LmgateError, LmgateWarning
    from pytest_lmgate.metrics.divergence import Divergence
    from pytest_lmgate.metrics.score import Score
    from pytest_lmgate.metrics.texts import TextMetric
    from pytest_lmgate.settings.gates import FixtureReference, fixture, model
    from pytest_lmgate.version import __version__

_HOMES = {
    "CacheWarning": "errors",
    "Divergence": "metrics.divergence",
    "FixtureReference": "settings.gates",
    "LmgateError": "errors",
    "LmgateWarning": "errors",
    "Score": "metrics.score",
    "TextMetric": "metrics.texts",
    "__version__": "version",
    "fixture": "settings.gates",
    "model": "settings.gates",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for (PEP 562): pytest imports this package in every session."""
    if name not in _HOMES:
        raise AttributeError(f"module 'pytest_lmgate' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"pytest_lmgate.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
