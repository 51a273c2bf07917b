"""Porter's stemmer (Porter 1980, "An algorithm for suffix stripping", Program 14(3)) in the two dialects ROUGE has met.

- `nltk_stem`: with the extensions of NLTK's ``PorterStemmer``, which rouge-score uses.
- `program_stem`: with Porter's own later changes and ROUGE-1.5.5's step 4, which may strip several suffixes in turn.
  The program looks irregular forms up in a WordNet table first; that table is not part of this package.

They are written here because the dialects must be exact, and NLTK takes longer to import than this package to score
ten thousand sentences.
"""

from __future__ import annotations

__all__ = ["nltk_stem", "program_stem"]

_IRREGULAR = {
    **{"skies": "sky", "sky": "sky", "dying": "die", "lying": "lie", "tying": "tie", "news": "news", "howe": "howe"},
    **{"innings": "inning", "inning": "inning", "outings": "outing", "outing": "outing"},
    **{"cannings": "canning", "canning": "canning"},
    **{"proceed": "proceed", "exceed": "exceed", "succeed": "succeed"},
}
_STEP_2 = {
    **{"ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al"},
    **{"entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al"},
    **{"iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble"},
    "logi": "log",
}
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_STEP_4 = dict.fromkeys(
    ["al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ou", "ism", "ate", "iti", "ous", "ive", "ize"],
    "",
)


class _Suffixes:
    """Suffixes and what stands in their place, found by their last two letters: most words have none."""

    def __init__(self, replacements: dict[str, str]) -> None:
        self._replacements = replacements
        self._by_ending: dict[str, list[str]] = {}
        for suffix in sorted(replacements, key=len, reverse=True):
            self._by_ending.setdefault(suffix[-2:], []).append(suffix)

    def longest(self, word: str) -> str:
        """Return the longest suffix that `word` has, or an empty string."""
        for suffix in self._by_ending.get(word[-2:], ()):
            if word.endswith(suffix):
                return suffix
        return ""

    def replaced(self, word: str) -> str:
        """Replace the longest suffix, if what stands before it has a measure above 0."""
        suffix = self.longest(word)
        if not suffix or _measure(word[: -len(suffix)]) == 0:
            return word
        return word[: -len(suffix)] + self._replacements[suffix]


_STEP_2_PROGRAM, _STEP_2_NLTK = _Suffixes(_STEP_2), _Suffixes({**_STEP_2, "fulli": "ful"})
_STEP_3_BOTH = _Suffixes(_STEP_3)
_STEP_4_PROGRAM, _STEP_4_NLTK = _Suffixes(_STEP_4), _Suffixes({**_STEP_4, "ment": "", "ent": "", "ion": ""})

# What a word ends in that some step may change, besides s, y and e.
_ENDINGS = {suffix[-2:] for suffix in ("ed", "ing", "ll", *_STEP_2, "fulli", *_STEP_3, *_STEP_4, "ment", "ion")}

_SHAPES = bytes(ord("v") if chr(byte) in "aeiou" else ord("y") if chr(byte) == "y" else ord("c") for byte in range(256))


def _is_stem(word: str) -> bool:
    """Whether no step can change `word`: a quick look that spares most words the rest."""
    return word[-1] not in "sye" and word[-2:] not in _ENDINGS


def _shape(word: str) -> bytes:
    """Return ``c`` or ``v`` for each letter; a y is a vowel after a consonant."""
    shape = word.encode("ascii", "replace").translate(_SHAPES)
    if b"y" not in shape:
        return shape
    shape = b"c" + shape[1:] if shape[0] == ord("y") else shape
    while b"y" in shape:
        shape = shape.replace(b"cy", b"cv").replace(b"vy", b"vc")
    return shape


def _measure(word: str) -> int:
    """Porter's m: how many times a vowel is followed by a consonant."""
    return _shape(word).count(b"vc")


def _ends_short(shape: bytes, word: str) -> bool:
    """Porter's ``*o``: ends consonant, vowel, consonant, the last not w, x or y."""
    return shape.endswith(b"cvc") and word[-1] not in "wxy"


def _ends_short_nltk(shape: bytes, word: str) -> bool:
    return _ends_short(shape, word) or shape == b"vc"


def _without_plural(word: str) -> str:
    """Step 1a."""
    if not word.endswith("s") or word.endswith("ss"):
        return word
    return word[:-2] if word.endswith(("sses", "ies")) else word[:-1]


def _without_participle(word: str, *, nltk: bool) -> str:
    """Step 1b."""
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    stem = word[:-2] if word.endswith("ed") else word[:-3]
    shape = _shape(stem)
    if b"v" not in shape:
        return word
    if stem.endswith(("at", "bl", "iz")):
        return stem + "e"
    if (
        stem[-1] == stem[-2:-1]
        and stem[-1] not in "lsz"
        and (shape.endswith(b"c") if nltk else stem[-1] not in "aeiouy")
    ):
        return stem[:-1]
    short = _ends_short_nltk(shape, stem) if nltk else _ends_short(shape, stem)
    return stem + "e" if short and shape.count(b"vc") == 1 else stem


def _without_e_and_double_l(word: str, *, nltk: bool) -> str:
    """Steps 5a and 5b."""
    if word.endswith("e"):
        stem = word[:-1]
        shape = _shape(stem)
        measure = shape.count(b"vc")
        if measure > 1 or (measure == 1 and not (_ends_short_nltk(shape, stem) if nltk else _ends_short(shape, stem))):
            word = stem
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word


def nltk_stem(word: str) -> str:
    """Return the stem of a lower-case `word` as NLTK's ``PorterStemmer().stem`` does."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) <= 2 or _is_stem(word):
        return word
    word = word[:-1] if len(word) == 4 and word.endswith("ies") else _without_plural(word)
    if word.endswith("ied"):
        word = word[:-1] if len(word) == 4 else word[:-2]
    elif word.endswith(("ed", "ing")):
        word = _without_participle(word, nltk=True)
    if word.endswith("y") and len(word) > 2 and _shape(word[:-1]).endswith(b"c"):
        word = word[:-1] + "i"
    if _is_stem(word):
        return word
    while word.endswith("alli") and _measure(word[:-4]) > 0:
        word = word[:-2]
    if word.endswith("logi") and _measure(word[:-3]) > 0:
        word = word[:-1]
    word = _STEP_3_BOTH.replaced(_STEP_2_NLTK.replaced(word))
    if suffix := _STEP_4_NLTK.longest(word):
        stem = word[: -len(suffix)]
        if _measure(stem) > 1 and (suffix != "ion" or stem[-1] in "st"):
            word = stem
    return _without_e_and_double_l(word, nltk=True)


def program_stem(word: str) -> str:
    """Return the stem of a lower-case `word` as ROUGE-1.5.5 does for words that its exception table lacks."""
    if len(word) <= 2 or _is_stem(word):
        return word
    word = _without_plural(word)
    if word.endswith(("ed", "ing")):
        word = _without_participle(word, nltk=False)
    if word.endswith("y") and b"v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    word = _STEP_3_BOTH.replaced(_STEP_2_PROGRAM.replaced(word))
    suffix = _STEP_4_PROGRAM.longest(word)
    if suffix and _measure(word[: -len(suffix)]) > 1:
        word = word[: -len(suffix)]
    if word.endswith("ment") and _measure(word[:-4]) > 1:
        word = word[:-4]
    if word.endswith("ent"):
        word = word[:-3] if _measure(word[:-3]) > 1 else word
    elif word.endswith(("sion", "tion")) and _measure(word[:-3]) > 1:
        word = word[:-3]
    return _without_e_and_double_l(word, nltk=False)
