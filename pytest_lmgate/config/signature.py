"""`Signature`: how a number was made, in one line that is rendered from its fields."""

from __future__ import annotations

__all__ = ["Field", "Signature"]

from collections.abc import Iterable

Field = tuple[str, str | None]
_VERSIONS = ("version", "lmgate")


class Signature(str):
    """Everything needed to reproduce a number: ``label|key:value|...``.

    It is a real ``str``, so that it is printed and compared as one. Code that needs to know something of it looks at
    the fields, never at the text.

    Attributes:
        fields: Key and value of each field in order; a label has the value None.
    """

    fields: tuple[Field, ...]

    def __new__(cls, fields: Iterable[Field]) -> Signature:
        """Render the fields."""
        kept = tuple(fields)
        self = super().__new__(cls, "|".join(key if value is None else f"{key}:{value}" for key, value in kept))
        self.fields = kept
        return self

    def __getnewargs__(self) -> tuple[tuple[Field, ...]]:  # type: ignore[override]  # str's are its text
        return (self.fields,)

    @classmethod
    def parse(cls, text: str) -> Signature:
        """Read a signature that comes as text, from sacrebleu or from a user's metric."""
        parts = (each.partition(":") for each in text.split("|"))
        return cls((key, value if colon else None) for key, colon, value in parts)

    def plus(self, *fields: Field) -> Signature:
        """Return the signature with more fields at its end."""
        return Signature((*self.fields, *fields))

    @property
    def compared(self) -> str:
        """What two numbers must share to be comparable: all fields but the versions of programs."""
        return str(Signature((key, value) for key, value in self.fields if value is None or key not in _VERSIONS))
