"""How texts are generated, as a gate's arguments say it: greedy unless sampling is asked for, and then with a seed."""

from __future__ import annotations

__all__ = ["GenerationSettings"]

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_lmgate.config.signature import Signature
from pytest_lmgate.errors import ConfigError


@dataclass(frozen=True)
class GenerationSettings:
    """Everything about decoding that can change a text.

    Attributes:
        max_new_tokens: Tokens a text may have at most.
        num_beams: 1 is greedy (or sampling), more is beam search.
        stop: A text ends before the first of these strings.
        seed: Makes sampling repeatable; sampling needs it, and nothing else may have it.
        temperature: Sampling temperature; with `seed` only.
        top_p: Draw from the most likely tokens that have this share of the probability; with `seed` only.
        top_k: Draw from so many of the most likely tokens; with `seed` only.
        truncate: ``left`` cuts the beginning of a prompt that does not fit; None makes that an error.

    Raises:
        ConfigError: A number out of range, or sampling without a seed.
    """

    max_new_tokens: int = 128
    num_beams: int = 1
    stop: tuple[str, ...] = ()
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    truncate: str | None = None

    def __post_init__(self) -> None:
        for key, least in {"max_new_tokens": 1, "num_beams": 1, "top_k": 1, "seed": 0}.items():
            value = getattr(self, key)
            if value is None and key in ("top_k", "seed"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError.of(key, f"expected a whole number from {least}, got {value!r}")
        for key, most in {"temperature": sys.float_info.max, "top_p": 1}.items():
            value = getattr(self, key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
                bound = " up to 1" if most == 1 else ""
                raise ConfigError.of(key, f"expected a positive number{bound}, got {value!r}")
        sampling = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        if given := [key for key, value in sampling.items() if value is not None]:
            if self.seed is None:
                raise ConfigError.of(", ".join(given), "sampling needs a seed, or no two runs agree; say seed=1234")
            if self.num_beams > 1:
                raise ConfigError.of("num_beams", f"beam search does not sample; leave out {', '.join(given)} and seed")
        elif self.seed is not None:
            raise ConfigError.of(
                "seed", "only sampling needs one; say temperature, top_p or top_k beside it, or leave it out"
            )
        if any(not isinstance(text, str) or not text for text in self.stop):
            raise ConfigError.of("stop", f"expected strings that are not empty, got {list(self.stop)!r}")
        if self.truncate not in (None, "left"):
            raise ConfigError.of("truncate", f"expected 'left' or nothing, got {self.truncate!r}")

    @classmethod
    def of(cls, stop: str | Sequence[str] | None = None, **others: object) -> GenerationSettings:
        """Make settings of a marker's arguments, where `stop` may be one string.

        Raises:
            ConfigError: See the class.
        """
        if isinstance(stop, str):
            stop = (stop,)
        if stop is not None and not isinstance(stop, list | tuple):
            raise ConfigError.of("stop", f"expected a string or a list of strings, got {stop!r}")
        return cls(stop=tuple(stop or ()), **others)  # type: ignore[arg-type]

    @property
    def is_sampling(self) -> bool:
        """Whether texts are drawn rather than decoded by the highest probability."""
        return self.seed is not None

    @property
    def signature(self) -> Signature:
        """The settings in one line, those that are not set left out."""
        names = ("max_new_tokens", "num_beams", "seed", "temperature", "top_p", "top_k", "truncate")
        said = {name: str(getattr(self, name)) for name in names if getattr(self, name) is not None}
        return Signature([*said.items(), *([("stop", repr(list(self.stop)))] if self.stop else [])])
