r"""The presets of ``extract:`` that are more than a pattern: the last number, the letter and the last box of a text.

They read as a careful reader does. Where a reader could not say what the answer is there is none, as in ``5-10``,
``3 million``, ``(B) or (C)``, ``\boxed{4`` and a text that stops in the middle. Each returns an empty text for that.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping

_NEAR = 80  # characters around a number or a letter that tell what it is a part of
# What a text that was cut off in the middle ends with.
_CUT = re.compile(
    r"(?:[-=+*/\u00d7÷·^~≈(\[{,:&]|(?:^|\b(?:is|are|was|of|for|costs?|paid)\s|[=:]\s?)\$|\\\w*|\b(?:is|are|was|be|equals?"
    r"|gives?|the|an|of|and|or|by|to|plus|minus|times|than|from|with|answer|option|because|(?<!or )so))\s*\Z"
)
# Not the marks of 2 * 3, 2**3 and x_1.
_EMPHASIS = re.compile(r"(?<![\w)*_`])(?<![\d)] )[*_`]+(?=[^\s*_`])|(?<=[^\s*_`])[*_`]+(?![\w*_`])")
_WRAPPED = re.compile(r"\\(?:text(?:bf|it|rm)?|math(?:bf|rm|it)|mbox|operatorname)\s*\{([^{}]*)\}")
_BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")


def _before(found: re.Match[str], text: str) -> str:
    return text[max(0, found.start() - _NEAR) : found.start()]


def _plain(text: str) -> str:
    """Return a text without the marks of Markdown and LaTeX that change nothing of what it says."""
    text = re.sub(r"\\(?=[$%#&])|\\[()\[\]!;]|\\(?:left|right|quad|displaystyle)\b", "", text)
    text = re.sub(r"(?<=\d)(?=\\[dt]?frac\b)", " ", text)  # as in 2\frac{1}{2}
    text = re.sub(r"\\[dt]?frac\s*\{(\d+)\}\s*\{(\d+)\}", r"\1/\2", text)
    return _EMPHASIS.sub("", _BOXED.sub(r" \1 ", _WRAPPED.sub(r"\1", text))).strip()


# The last number.

_DIGITS = r"(?:(?:\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d{2})+,\d{3}|\d+)(?:\.\d+)?|\.\d+)"  # 12,34,567 as in India
_CURRENCY = r"(?:[A-Z]{0,3}[$€£¥₹₩]+|USD|EUR|GBP|INR|Rs\.?)"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?){_CURRENCY}?(?P<inner>[-+]?)(?P<number>{_DIGITS}(?:[eE][-+]?\d+)?(?:/\d+)?)"
    r"(?:%|[$€£¥₹₩¢]+)?(?:[°µA-Za-z]+(?:\^-?\d)?)?(?:-[A-Za-z]+)*(?:/[A-Za-z]+(?:\^-?\d)?)?"  # its unit, as in 5m/s^2
)
_MORE = re.compile(r"[xyznkKMBT]|bn|mn")  # 2x, 5k and 3M are more than their digits
_NAME = re.compile(r"[A-Za-z]+_?\d[\w.]*|[A-Z][A-Za-z]*-\d[\w.]*|[A-Za-z]{2,}(?:-\w+)+")  # x_1, H2O, COVID-19, top-5
_UNIT = re.compile(r"[A-Za-zµ/°·]+\^-?\d")  # m/s^2
_LABEL = re.compile(r"(?i)\b(?:step|question|problem|example|part|section|chapter|figure|table|equation|page)\s+#?\Z")
_MONTH = r"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_ONE = r"\d[\d,.]*[%$]?"
_PART_AFTER = re.compile(  # a sum, a range, a list, a ratio or a date
    rf"(?:[\w)}}\]%]\s*(?:[+*/\u00d7÷·^±]|\\(?:times|cdot|div|pm))|±|(?:{_ONE}|\b[a-z])\s*(?:plus|minus|times|over"
    rf"|(?:divided|multiplied)\sby)\s|{_ONE}\s*[-:x~]|{_ONE}\s*(?:[A-Za-z°]+\s+)?(?:to|and|or|&|through|of|in)\s"
    rf"(?:\s*\$?\w+\s*=)?|[=:(\[{{](?:\s*-?{_ONE},)+|{_MONTH}(?:\s\d{{1,2}}(?:st|nd|rd|th)?,?)?\s)\s*\Z"
)
_TWO_UNITS = (  # as 2 hours 30 minutes
    re.compile(r"\d\s*[A-Za-z°]+,?\s*\Z"),
    re.compile(r"\s*(?:minutes?|min|seconds?|sec|inch(?:es)?|in|cents?|ounces?|oz|months?|days?)\b"),
)
_FROM = re.compile(rf"(?i)\bfrom\s+\S*{_ONE}\S*\s+to\s+\Z")  # the end of a change
_PART_BEFORE = re.compile(
    r"\s*(?:(?:hundred|thousand|million|billion|trillion|lakh|crore|dozen)\b|[百千万億亿年月日만억])"
    r"|\s*(?:[-+*/\u00d7÷·^±]|\\(?:times|cdot|div))\s*(?:[a-z]\b|\(|\\)"
)
_NOT = re.compile(r"(?i)(?:\bnot|n['\u2019]t|\brather\sthan|\binstead\sof)\s+\Z")  # 12 and not 13
_CJK = "[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # which writes no blanks around numbers


def last_number(text: str) -> str:
    """Return the last number of a text as it is written, with ASCII digits and signs."""
    text = _with_plain_numbers(text)
    if _CUT.search(text) and not _SAYS_ANSWER.search(text):
        return ""
    words = [word for word in re.finditer(r"[^\s=<>≈≤≥~→]+", text) if re.search(r"\d", word[0])]
    for word in reversed(words):
        core = re.sub(r"^[^\w+.\\√±-]+|[^\w%°+*/^\\(-]+$", "", word[0])
        before, after = _before(word, text), text[word.end() : word.end() + _NEAR]
        if _NAME.fullmatch(core) or _LABEL.search(before) or _NOT.search(before):
            continue
        if _UNIT.fullmatch(core) and re.search(r"\d\s*\Z", before):
            continue
        found = _NUMBER.fullmatch(core)
        if found is None or (found["sign"] and found["inner"]) or _is_part(found, before, after):
            return ""
        is_negative = "-" in found["sign"] + found["inner"] or re.search(r"(?i)\b(?:minus|negative)\s*\Z", before)
        whole = re.search(r"(?<!\S)\d+ \Z", before) if "/" in found["number"] else None  # of 2 1/2
        return f"{'-' if is_negative else ''}{whole[0] if whole else ''}{found['number']}"
    return ""


def _with_plain_numbers(text: str) -> str:
    """Return a text with ASCII digits and signs, and its numbers without LaTeX and list markers."""
    if not text.isascii():
        text = "".join(map(_plain_character, text))
    text = re.sub(r"(?<=\d)(?:\{,\}|\\,|[\u00a0\u2009\u202f])(?=\d{3})", ",", text)
    text = _plain(re.sub(r"\^\{?\\circ\}?", "°", re.sub(r"([\^_])\{(-?\w+)\}", r"\1\2", text)))
    text = re.sub(rf"({_DIGITS})\s*(?:\u00d7|\\times|\\cdot|[·*x])\s*10\^(-?\d+)", r"\1e\2", text)
    text = re.sub(r"(?<=\d)\.(?=[A-Z])|(?<=[A-Za-z]):(?=\S)", lambda end: f"{end[0]} ", text)
    text = re.sub(rf"(?<={_CJK})(?=[^\w\s]*\d)|(?<=\d)(?={_CJK})", " ", text)
    expected = 1
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if marker := re.match(rf"\s*{expected}[.)]\s+(?=\S)", line):
            lines[at], expected = line[marker.end() :], expected + 1
    return "\n".join(lines)


def _plain_character(character: str) -> str:
    if unicodedata.category(character) == "Cf":  # such as a mark of writing direction
        return ""
    if character in "\u2212\u2010\u2011\u2013\ufe63\uff0d":
        return "-"
    kind = unicodedata.decomposition(character).partition(" ")[0]
    if kind == "<fraction>":
        return " " + unicodedata.normalize("NFKC", character).replace("\u2044", "/")
    digit = unicodedata.digit(character, None)
    return character if digit is None else f"{'^' if kind == '<super>' else ''}{digit}"


def _is_part(found: re.Match[str], before: str, after: str) -> bool:
    """Return whether a number is a part of something: of 3 + 4, 5 to 10, 3 million, 12 345 or May 5."""
    unit = found[0][found.end("number") :]
    return bool(
        _MORE.fullmatch(unit)
        or (_PART_AFTER.search(before) and not _FROM.search(before))
        or _PART_BEFORE.match(after)
        or (found["sign"] and re.search(r"\d\s*\Z", before))
        or (re.fullmatch(r"\d{3}\b.*", found["number"]) and re.search(r"(?<![\d.,])\d{1,3} \Z", before))
        or (_TWO_UNITS[0].search(before) and _TWO_UNITS[1].match(unit + after))
    )


# The letter.

_TAKEN_BACK = re.compile(r"(?i)[^\w\s]\s*(?:wait|actually|hmm|correction|scratch that|on second thought)\b")
_OPTIONS = re.compile(r"(?m)^\W*[A-J][.):]\s+\S.*$")
_MENTION = re.compile(
    r"[(\[{](?P<bracketed>[A-Ja-j])[)\]}]|(?<![A-Za-z0-9_.\-/+&])(?<!\w['\u2019])\(?(?P<free>[A-J])"
    r"(?=\s*(?:\Z|\.(?!\s+[a-z])|[:;)!?\]}<\"”]|['\u2019](?!\w)|(?<!I),|\s[-\u2013—]\s|\n)"
    r"|(?<!I)\s+(?:is|was|as|because|since|for|due|which|with)\b|(?<=[B-HJ])\s)"
)
"""A letter that may be an answer: in brackets, or alone before an end or a word that does not follow an article."""
_ANSWER = re.compile(
    r"(?i:\b(?:answer|option|choice|response)\b|答案)"
    r"(?:[^.\n:=]{0,40}?(?:\b(?:is|are|be)\b|[:\uff1a=是])|(?=\W{0,4}[A-J]\b))"
)
_IS_ANSWER = re.compile(
    r"\s+(?:is|must be|would be)\s+(?:(?:the|my|our)\s+)?"
    r"(?:correct|right|best|true|only|(?:final\s+)?(?:answer|option|choice))\b"
)
_SAYS_ANSWER = re.compile(rf"{_IS_ANSWER.pattern}(?:\s+answer)?\Z")  # at the end, as in 42 is the answer
_CUE = re.compile(r"(?i)(?:\b(?:choose|pick|select|say|go with|it'?s|it is|so|therefore|thus|hence)\b[,:]?\s*)\Z")
_DENIED_BEFORE = re.compile(
    r"(?i)(?:\b(?:not|nor|neither|rul\w+ out|eliminat\w+|exclud\w+|reject\w+|except|than)|n't)\s+(?:be\s+)?"
    r"(?:(?:the\s+)?(?:option|choice|answer)\s+)?\Z"
)
_DENIED_AFTER = re.compile(
    r"(?i)[\s$]*(?:(?:is|are|was|seems)\s+(?:also\s+)?"
    r"(?:not|wrong|incorrect|false|ruled|eliminated|impossible|unlikely)|isn't)\b"
)
_JOINED_BEFORE = re.compile(r"(?:\b[A-J][)\]]?)\s*(?:,|/|&|\b(?:and|or)\b|,\s*(?:and|or))\s*\Z")
_JOINED_AFTER = re.compile(
    r"\s*(?:,|/|&|,?\s*\b(?:and|or)\b)\s*(?:option\s+)?"
    r"(?:[(\[][A-J][)\]]|[B-HJ]\b(?!['\u2019])|[AI]\b(?!['\u2019]|\s+[a-z]))(?!\s+(?:is|was|has)\b)"
)


def letter(text: str) -> str:
    """Return the letter of the option, A to J, that a text says is the answer."""
    text = _plain(unicodedata.normalize("NFKC", text))
    if len(_OPTIONS.findall(text)) > 1:
        text = _OPTIONS.sub("", text).strip()
    if re.fullmatch(r"[a-j][.)]?", text):
        return text[0].upper()
    chosen = _chosen(text)
    if chosen is None:
        return ""
    if back := _TAKEN_BACK.search(text, chosen.end()):
        return letter(text[back.end() :].lstrip(" ,.!:"))
    return (chosen["bracketed"] or chosen["free"]).upper()


def _chosen(text: str) -> re.Match[str] | None:
    """Return the letter of the last statement about the answer, or else the one that begins the text or stands out."""
    left = [each for each in _MENTION.finditer(text) if not _is_denied(each, text)]
    said = [*_ANSWER.finditer(text)]
    for each in reversed(left):
        if (after := _IS_ANSWER.match(text, each.end())) and not any(one.start() >= after.end() for one in said):
            return each
    if said:
        return next((each for each in left if each.start() >= said[-1].end()), None)
    if left and not re.search(r"\w", text[: left[0].start()]):
        return left[0]
    standing_out = [each for each in left if each["bracketed"] or _CUE.search(_before(each, text))]
    return standing_out[-1] if standing_out and not _CUT.search(text) else None


def _is_denied(mention: re.Match[str], text: str) -> bool:
    """Return whether a letter is denied, as in ``not (B)``, or one of several, as in ``(B) or (C)``."""
    before, end = _before(mention, text), mention.end()
    return bool(
        _DENIED_BEFORE.search(before)
        or _DENIED_AFTER.match(text, end)
        or _JOINED_BEFORE.search(before)
        or _JOINED_AFTER.match(text, end)
    )


# The last box.

_OR = re.compile(r"\}[\s$]*,?\s*or[\s$]*\Z")  # behind another box, as in \boxed{5} or \boxed{6}


def boxed(text: str) -> str:
    r"""Return what is in the last ``\boxed{}`` of a text; braces may be nested and escaped."""
    boxes = [*re.finditer(r"\\boxed\s*(\{)?", text)]
    if not boxes or boxes[-1][1] is None:
        return ""
    begin, depth = boxes[-1].end(), 1
    for brace in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, begin):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if not depth:
            is_open = _DENIED_AFTER.match(text, brace.end()) or _OR.search(text, 0, boxes[-1].start())
            return "" if is_open else text[begin : brace.start()].strip()
    return ""


READINGS: Mapping[str, Callable[[str], str]] = {"last-number": last_number, "letter": letter, "boxed": boxed}
"""The function of each preset."""
