"""Names of ROUGE's variants, as in ``rouge2``, ``rougeLsum``, ``rougeSU4``, and what they mean."""

from __future__ import annotations

__all__ = ["Variant"]

import re
from dataclasses import dataclass
from typing import Literal

from pytest_lmgate.errors import ConfigError, nearest

Family = Literal["N", "L", "Lsum", "W", "S", "SU"]

_NAME = re.compile(r"rouge(?:(?P<order>[1-9]\d*)|(?P<family>Lsum|L|W|SU|S)(?P<number>\d+(?:\.\d+)?)?)", re.ASCII)
_USUAL = ("rouge1", "rouge2", "rouge3", "rougeL", "rougeLsum", "rougeW", "rougeS", "rougeS4", "rougeSU", "rougeSU4")


@dataclass(frozen=True)
class Variant:
    """What is counted.

    Attributes:
        name: As the user wrote it.
        family: ``N`` n-grams, ``L`` longest common subsequence of the whole text, ``Lsum`` union of subsequences over
            newline-separated sentences, ``W`` weighted subsequence, ``S`` skip-bigrams, ``SU`` these and unigrams.
        order: Words in an n-gram; 0 for the other families.
        gap: Most words between the two of a skip-bigram; None for any number.
        exponent: Of the weight ``f(k) = k ** exponent`` that W gives to k consecutive matches.
    """

    name: str
    family: Family
    order: int = 0
    gap: int | None = None
    exponent: float = 1.2

    @classmethod
    def parse(cls, name: str) -> Variant:
        """Return the variant called `name`.

        ``rouge<n>``, ``rougeL``, ``rougeLsum``, ``rougeW`` (exponent 1.2) or ``rougeW<exponent>``, ``rougeS`` (any gap)
        or ``rougeS<gap>``, ``rougeSU`` or ``rougeSU<gap>``.

        Raises:
            ConfigError: There is no such variant.
        """
        match = _NAME.fullmatch(name) if isinstance(name, str) else None
        if match and match["order"]:
            return cls(name, "N", order=int(match["order"]))
        if match:
            family, number = match["family"], match["number"]
            if family == "W" and (number is None or float(number) >= 1):
                return cls(name, "W", exponent=float(number or 1.2))
            if family in ("L", "Lsum") and number is None:
                return cls(name, "L" if family == "L" else "Lsum")
            if family in ("S", "SU") and (number is None or number.isdigit()):
                return cls(name, "S" if family == "S" else "SU", gap=None if number is None else int(number))
        raise ConfigError(
            f"unknown ROUGE variant {name!r}{nearest(str(name), _USUAL)}: expected rouge1, rouge2, ... (n-grams), "
            "rougeL, rougeLsum, rougeW or rougeW<exponent, at least 1>, rougeS or rougeS<gap>, rougeSU or rougeSU<gap>"
        )
