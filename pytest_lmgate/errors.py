"""The error tree: everything this package raises on purpose.

    LmgateError
    ├── ConfigError            lmgate.yaml or a marker's arguments ask for something that does not exist
    │   └── ProtocolError      a protocol, window, stride or unit that cannot be
    ├── DataError              a dataset that cannot be read, or holds nothing to score
    ├── ModelError             a checkpoint or tokenizer that cannot be loaded, or of the wrong kind
    │   └── OfflineError       something must come from the network and --lmgate-offline forbids it
    ├── EngineError            running the model failed
    │   └── NonFiniteError     NaN or infinite logits
    ├── MetricInputError       texts or statistics that a metric cannot be computed from
    ├── ComparisonError        two measurements that cannot be compared: other data, targets or protocol
    │   └── BaselineError      the baseline file: missing entries, or not what it should be
    └── CacheError             a cache entry that cannot be trusted (never leaves the store: the entry is set aside)

    UserWarning
    └── LmgateWarning
        └── CacheWarning       the cache could not be read or written; the gate was judged all the same

Every message says what was expected, what came, where, and what to do next. Every error has one argument, its
message, so that it survives pickling between processes.
"""

__all__ = [
    "BaselineError",
    "CacheError",
    "CacheWarning",
    "ComparisonError",
    "ConfigError",
    "DataError",
    "EngineError",
    "LmgateError",
    "LmgateWarning",
    "MetricInputError",
    "ModelError",
    "NonFiniteError",
    "OfflineError",
    "ProtocolError",
    "nearest",
]

from collections.abc import Iterable, Mapping


class LmgateError(Exception):
    """Base of every error raised by this package on purpose."""

    def __init__(self, message: str) -> None:
        super().__init__(message)

    def __str__(self) -> str:
        return str(self.args[0])


class ConfigError(LmgateError):
    """lmgate.yaml or a marker asks for something that does not exist or cannot be."""


class ProtocolError(ConfigError):
    """A protocol, window, stride or unit that cannot be."""


class DataError(LmgateError):
    """A dataset that cannot be read, or holds nothing to score."""


class ModelError(LmgateError):
    """A checkpoint or tokenizer that cannot be loaded, or is of the wrong kind."""


class OfflineError(ModelError):
    """Something must come from the network and ``--lmgate-offline`` forbids it."""


class EngineError(LmgateError):
    """Running the model failed."""


class NonFiniteError(EngineError):
    """The model produced NaN or infinite log-likelihoods."""


class MetricInputError(LmgateError):
    """Texts or statistics that a metric cannot be computed from."""


class ComparisonError(LmgateError):
    """Two measurements that cannot be compared."""


class BaselineError(ComparisonError):
    """A baseline that is missing, or is not what it should be."""


class CacheError(LmgateError):
    """A cache entry that cannot be trusted."""


class LmgateWarning(UserWarning):
    """Base of the warnings of this package."""


class CacheWarning(LmgateWarning):
    """The cache could not be read or written; the gate was judged all the same."""


def nearest(name: str, valid: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str:
    """Return ``" (did you mean 'x'?)"`` for the valid name closest to `name`, or an empty string if none is close.

    Args:
        name: What was written. A valid name in other capitals comes first, then a synonym, then the closest spelling.
        valid: The valid names.
        synonyms: Other words for valid names, in small letters.
    """
    import difflib  # not at import: sessions without gates need it not

    folded = {each.casefold(): each for each in valid}
    name = name.casefold()
    close = folded.get(name) or (synonyms or {}).get(name)
    if close is None:
        close = next((folded[each] for each in difflib.get_close_matches(name, folded, n=1)), None)
    return f" (did you mean {close!r}?)" if close else ""
