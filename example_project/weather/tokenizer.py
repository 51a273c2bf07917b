"""The tokenizer of the example's models: whole words, each with the space before it; see `weather.tokens`."""

from __future__ import annotations

__all__ = ["BOS", "EOS", "PAD", "save_tokenizer", "vocabulary", "word_tokenizer"]

import json
from itertools import product
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from .chance import Chance, Phrase
from .climate import DIRECTIONS, PLACE, SEASON, SKIES, WARNINGS, WINDS
from .tokens import PATTERN, split
from .wording import END, NEW_LINE, header, sky_sentence, temperature_sentence, warning_sentence, wind_sentence

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
SPECIAL = ("<unk>", BOS, EOS, PAD)
_CELSIUS = range(-30, 41)


def vocabulary() -> list[str]:
    """Return every token that any bulletin can hold, sorted, after the special ones."""
    phrases: list[Phrase] = [NEW_LINE, END]
    phrases += [header(season, place) for (season, _), (place, _) in product(SEASON, PLACE)]
    phrases += [sky_sentence(index, before, sky) for index in range(4) for before in (None, *SKIES) for sky in SKIES]
    phrases += [temperature_sentence(celsius, night) for celsius in _CELSIUS for night in (False, True)]
    phrases += [wind_sentence(wind, way) for wind in WINDS for way in (DIRECTIONS if wind != "calm" else (None,))]
    phrases += [warning_sentence(warning) for warning in WARNINGS]
    return [*SPECIAL, *sorted(set().union(*map(_tokens, phrases)))]


def word_tokenizer() -> Tokenizer:
    """Return the tokenizer; it adds no special tokens of its own accord."""
    ids = {token: index for index, token in enumerate(vocabulary())}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def save_tokenizer(folder: Path, context: int) -> None:
    """Write the files that ``AutoTokenizer`` reads, for a model that reads `context` tokens at once."""
    word_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "unk_token": "<unk>",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _tokens(phrase: Phrase) -> set[str]:
    if isinstance(phrase, str):
        return set(split(phrase))
    parts = [part for part, _ in phrase] if isinstance(phrase, Chance) else phrase
    return set().union(*map(_tokens, parts))
