"""Porter's stemmer (Porter 1980, "An algorithm for suffix stripping", Program 14(3)) in the two dialects ROUGE has met.

- `nltk_stem`: with the extensions of NLTK's ``PorterStemmer``, which rouge-score uses.
- `program_stem`: with Porter's own later changes and ROUGE-1.5.5's step 4, which may strip several suffixes in turn.
  The program looks irregular forms up in a WordNet table first; that table is not part of this package.

They are written here because the dialects must be exact, and NLTK takes longer to import than this package to score
ten thousand sentences.
"""

from __future__ import annotations

from functools import lru_cache

_IRREGULAR = {
    **{"skies": "sky", "dying": "die", "lying": "lie", "tying": "tie"},
    **{"innings": "inning", "outings": "outing", "cannings": "canning"},
    **{word: word for word in ("sky", "news", "howe", "inning", "outing", "canning", "proceed", "exceed", "succeed")},
}
_STEP_2 = {
    **{"ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al"},
    **{"entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al"},
    **{"iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble"},
    "logi": "log",
}
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_STEP_4 = {
    **{"al": "", "ance": "", "ence": "", "er": "", "ic": "", "able": "", "ible": "", "ant": "", "ement": "", "ou": ""},
    **{"ism": "", "ate": "", "iti": "", "ous": "", "ive": "", "ize": ""},
}
_STEP_2_NLTK = {**_STEP_2, "fulli": "ful"}
_STEP_4_NLTK = {**_STEP_4, "ment": "", "ent": "", "ion": ""}
# What a word ends in that some step may change, besides s, y and e.
_ENDINGS = {suffix[-2:] for suffix in ("ed", "ing", "ll", *_STEP_2_NLTK, *_STEP_3, *_STEP_4_NLTK)}
_SHAPES = bytes(ord("v") if chr(byte) in "aeiou" else ord("y") if chr(byte) == "y" else ord("c") for byte in range(256))


def _is_stem(word: str) -> bool:
    """Return whether no step can change a word: a quick look that spares most words the rest."""
    return len(word) <= 2 or (word[-1] not in "sye" and word[-2:] not in _ENDINGS)


def _longest(word: str, suffixes: dict[str, str]) -> str:
    if not word.endswith((*suffixes,)):  # most words have none
        return ""
    return max((suffix for suffix in suffixes if word.endswith(suffix)), key=len, default="")


def _replaced(word: str, suffixes: dict[str, str]) -> str:
    """Replace the longest suffix, if the stem before it has a measure above 0."""
    suffix = _longest(word, suffixes)
    if not suffix or _measure(word[: -len(suffix)]) == 0:
        return word
    return word[: -len(suffix)] + suffixes[suffix]


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
    """Porter's m: the number of vowel-consonant sequences."""
    return _shape(word).count(b"vc")


def _ends_short(shape: bytes, word: str, *, nltk: bool) -> bool:
    """Porter's ``*o``: ends consonant, vowel, consonant, the last not w, x or y."""
    return (shape.endswith(b"cvc") and word[-1] not in "wxy") or (nltk and shape == b"vc")


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
    ends_in_consonant = shape.endswith(b"c") if nltk else stem[-1] not in "aeiouy"
    if stem[-1] == stem[-2:-1] and stem[-1] not in "lsz" and ends_in_consonant:
        return stem[:-1]
    return stem + "e" if _ends_short(shape, stem, nltk=nltk) and shape.count(b"vc") == 1 else stem


def _without_e_and_double_l(word: str, *, nltk: bool) -> str:
    """Steps 5a and 5b."""
    if word.endswith("e"):
        stem = word[:-1]
        shape = _shape(stem)
        measure = shape.count(b"vc")
        if measure > 1 or (measure == 1 and not _ends_short(shape, stem, nltk=nltk)):
            word = stem
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word


@lru_cache(1 << 17)
def nltk_stem(word: str) -> str:
    """Return the stem of a lower-case `word` as NLTK's ``PorterStemmer().stem`` does."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if _is_stem(word):
        return word
    word = word[:-1] if len(word) == 4 and word.endswith("ies") else _without_plural(word)
    if word.endswith("ied"):
        word = word[:-1] if len(word) == 4 else word[:-2]
    elif word.endswith(("ed", "ing")):
        word = _without_participle(word, nltk=True)
    if word.endswith("y") and len(word) > 2 and _shape(word[:-1]).endswith(b"c"):
        word = word[:-1] + "i"
    while word.endswith("alli") and _measure(word[:-4]) > 0:
        word = word[:-2]
    if word.endswith("logi") and _measure(word[:-3]) > 0:
        word = word[:-1]
    word = _replaced(_replaced(word, _STEP_2_NLTK), _STEP_3)
    if suffix := _longest(word, _STEP_4_NLTK):
        stem = word[: -len(suffix)]
        if _measure(stem) > 1 and (suffix != "ion" or stem[-1] in "st"):
            word = stem
    return _without_e_and_double_l(word, nltk=True)


@lru_cache(1 << 17)
def program_stem(word: str) -> str:
    """Return the stem of a lower-case `word` as ROUGE-1.5.5 does for words that its exception table lacks."""
    if _is_stem(word):
        return word
    word = _without_plural(word)
    if word.endswith(("ed", "ing")):
        word = _without_participle(word, nltk=False)
    if word.endswith("y") and b"v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    word = _replaced(_replaced(word, _STEP_2), _STEP_3)
    suffix = _longest(word, _STEP_4)
    if suffix and _measure(word[: -len(suffix)]) > 1:
        word = word[: -len(suffix)]
    if word.endswith("ment") and _measure(word[:-4]) > 1:
        word = word[:-4]
    if word.endswith("ent"):
        word = word[:-3] if _measure(word[:-3]) > 1 else word
    elif word.endswith(("sion", "tion")) and _measure(word[:-3]) > 1:
        word = word[:-3]
    return _without_e_and_double_l(word, nltk=False)
