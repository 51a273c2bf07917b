"""The error tree: everything this package raises on purpose, and what makes a message fit to be printed.

Every message says what was expected, what came, where, and what to do next. Every error is made of its message
alone, so that it survives pickling between processes. A message may hold names from any file:
`escape_controls` removes everything that terminals or CI logs would interpret.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping


class LmgateError(Exception):
    """Base of every error raised by this package on purpose."""

    def __init__(self, message: str) -> None:
        super().__init__(escape_controls(message))

    def __str__(self) -> str:
        return str(self.args[0])


class ConfigError(LmgateError):
    """lmgate.yaml, a marker's arguments or an option ask for something that does not exist."""

    argument: str
    """The argument or the key that is wrong, as in ``limit`` or ``load.subfolder``; empty where it is none."""
    detail: str
    """What is wrong, for those who name the argument in their own way."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.argument, self.detail = "", str(self)

    @classmethod
    def of(cls, argument: str, message: str) -> ConfigError:
        """Make an error about one argument; the text begins with its name."""
        error = cls(f"{argument}: {message}")
        error.argument, error.detail = argument, escape_controls(message)
        return error


class ProtocolError(ConfigError):
    """A protocol, window, stride or unit that cannot be."""


class DataError(LmgateError):
    """A dataset that cannot be read, or holds nothing to score."""


class ModelError(LmgateError):
    """A checkpoint or tokenizer that cannot be loaded, or is of the wrong kind."""


class OfflineError(ModelError):
    """Something must come from the network and ``--lmgate-offline`` forbids it."""


class RequirementError(ModelError):
    """The machine lacks what a model requires, such as GPUs; its test is skipped."""


class EngineError(LmgateError):
    """Running the model failed."""


class NonFiniteError(EngineError):
    """The model produced NaN or infinite log-likelihoods."""


class UnreliableError(EngineError):
    """The numbers of a model contradict each other: those measured before may be wrong too, and are not kept."""


class MetricInputError(LmgateError):
    """Texts or statistics that a metric cannot be computed from."""


class ComparisonError(LmgateError):
    """Two measurements that cannot be compared: other data, targets or protocol."""


class BaselineError(ComparisonError):
    """The baseline file lacks entries, or is not what it should be."""


class RecordError(LmgateError):
    """A JSON report, or a record of the history, that cannot be read; or a commit without a record."""


class CacheError(LmgateError):
    """A cache entry that cannot be trusted; it never leaves the store, which sets the entry aside."""


class NewerError(CacheError):
    """A cache entry of a later version's format, which is left alone and measured again."""


class UnsignedError(CacheError):
    """A cache entry without a signature, in a session that has a key: it is measured again."""


class LmgateWarning(UserWarning):
    """Base of the warnings of this package."""


class CacheWarning(LmgateWarning):
    """The cache could not be read or written; the gate was judged anyway."""


@contextlib.contextmanager
def naming_argument(argument: str) -> Iterator[None]:
    """Have a `ConfigError` from within name the argument; its text stays the same."""
    try:
        yield
    except ConfigError as error:
        error.argument = argument
        raise


def encodable(text: str) -> str:
    """Return a text that can be encoded as UTF-8: half surrogate pairs become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def escape_controls(text: str, *, line: bool = False) -> str:
    r"""Escape everything in a text that terminals or CI logs would interpret.

    Control characters and marks of writing direction become escapes such as ``\x1b``; commands of GitHub Actions
    (``::error::`` at the beginning of a line) and Azure Pipelines (``##vso[...]``) get a backslash; of a URL the user
    name and the password become ``***``. Half surrogate pairs become escapes
    too. With `line`, line breaks become ``\n``.
    """
    import re  # imported lazily: sessions without gates never need it

    if line:
        text = text.replace("\n", r"\n")
    # Two characters of the scheme are enough: to look for its beginning takes minutes in a word of a million letters.
    text = re.sub(r"(?<=[\w+.-]{2}:/)(/?)[^/\s@]+@", r"\1***@", text)
    text = re.sub(r"(?m)^([^\S\n]*)::", r"\1\\::", text)
    text = re.sub(r"#(?=#\w*\[)", r"#\\", text)
    return re.sub(r"[^ -~\n\t]", lambda found: _escape_control(found[0]), text)


def _escape_control(character: str) -> str:
    import unicodedata

    # Joiners are unprintable by their class, but part of how words of some scripts are written.
    if character.isprintable() or character in "\u200c\u200d":
        return character
    escaped = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return character.encode("unicode_escape").decode("ascii") if escaped else character


def nearest(name: str, valid: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str:
    """Return ``" (did you mean 'x'?)"`` for the valid name closest to `name`, or an empty string if none is close.

    Args:
        name: What was written. A valid name in other capitals comes first, then a synonym, then the closest spelling.
        valid: Valid names.
        synonyms: Other words for valid names, in small letters.
    """
    import difflib  # imported lazily: sessions without gates never need it

    folded = {each.casefold(): each for each in valid}
    name = name.casefold()
    close = folded.get(name) or (synonyms or {}).get(name)
    if close is None:
        close = next((folded[each] for each in difflib.get_close_matches(name, folded, n=1)), None)
    return f" (did you mean {close!r}?)" if close else ""
