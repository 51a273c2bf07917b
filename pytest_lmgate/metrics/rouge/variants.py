"""Names of ROUGE's variants, as in ``rouge2``, ``rougeLsum``, ``rougeSU4``, and what they mean."""

from __future__ import annotations

__all__ = ["Variant"]

import re
from dataclasses import dataclass

from pytest_lmgate.errors import ConfigError, nearest

_NAME = re.compile(
    r"rouge(?:(?P<order>[1-9]\d*)|(?P<whole>Lsum|L)|W(?P<exponent>\d+(\.\d+)?)?|(?P<skip>SU|S)(?P<gap>\d+)?)", re.ASCII
)
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
    family: str
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
        if match and (match["exponent"] is None or float(match["exponent"]) >= 1):
            if match["order"]:
                return cls(name, "N", order=int(match["order"]))
            if match["skip"]:
                return cls(name, match["skip"], gap=int(match["gap"]) if match["gap"] else None)
            return cls(name, match["whole"] or "W", exponent=float(match["exponent"] or 1.2))
        raise ConfigError(
            f"unknown ROUGE variant {name!r}{nearest(str(name), _USUAL)}: expected rouge1, rouge2, ... (n-grams), "
            "rougeL, rougeLsum, rougeW or rougeW<exponent, at least 1>, rougeS or rougeS<gap>, rougeSU or rougeSU<gap>"
        )
