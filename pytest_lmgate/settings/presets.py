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
    r"(?:[-=+*/\u00d7÷·^~≈(\[{,:&]\s*(?:\.{2,}|…|\?)?|(?:^|\b(?:is|are|was|of|for|costs?|paid)\s|[=:]\s?)\$|\\\w*"
    r"|\b(?:is|are|was|be|equals?|gives?|the|an|of|and|or|by|to|plus|minus|times|than|from|with"
    r"|answer|option|because|but|ha[sd]|have|s?he|they|we"
    r"|which|if|when|since|will|would|(?<!or )so))\s*\Z"
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
_SYMBOL = "[$€£¥₹₩]"
_CODE = r"(?:USD|EUR|GBP|INR|Rs\.?)"
_CURRENCY = rf"(?:[A-Z]{{0,3}}{_SYMBOL}+|{_CODE})"
# A sign with a blank behind it, where no number can be before it: = - 5, is -$ 5.
_SIGN = re.compile(
    rf"((?:[=:<>≈~(\[{{]|\b(?:is|are|was|be|equals?|by|to|of))[^\S\n]*[$*]*|(?<![\w)\]}}])(?=-{_SYMBOL}))"
    rf"-[^\S\n]*({_SYMBOL}?)[^\S\n]*(?=[.\d])"
)
_WHOLE = re.compile(rf"(?<![\w.,/^)}}-])(-?){_SYMBOL}*(\d+)\s+\Z")  # of 2 1/2
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?){_CURRENCY}?(?P<inner>[-+]?)(?P<number>{_DIGITS}(?:[eE][-+]?\d+)?(?:/\d+)?)"
    r"(?:%|[$€£¥₹₩¢]+)?(?:[°µA-Za-z]+(?:\^-?\d)?)?(?:-[A-Za-z]+)*(?:/[A-Za-z]+(?:\^-?\d)?)?"  # its unit, as in 5m/s^2
)
_MORE = re.compile(r"[xyzinkKMBT]|bn|mn")  # 2x, 5k and 3M are more than their digits
_NAME = re.compile(r"[A-Za-z]+_?\d[\w.]*|[A-Z][A-Za-z]*-\d[\w.]*|[A-Za-z]{2,}(?:-\w+)+")  # x_1, H2O, COVID-19, top-5
_UNIT = re.compile(r"[A-Za-zµ/°·]+\^-?\d")  # m/s^2
_LABEL = re.compile(r"(?i)\b(?:step|question|problem|example|part|section|chapter|figure|table|equation|page)\s+#?\Z")
_MONTH = (
    r"\b(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    r"|(?:Nov|Dec)(?:ember)?)\b\.?"
)
_ONE = r"\d[\d,.]*[%$]?"
_PART_AFTER = re.compile(  # a sum, a range, a list, a ratio, a root or a date
    rf"(?:[\w)}}\]%]\s*(?:[+*/\u00d7÷·^±]|\\(?:times|cdot|div|pm))|[±√]|(?:{_ONE}|\b[a-z])\s*(?:plus|minus|times|over"
    rf"|(?:divided|multiplied)\sby)\s|(?:{_ONE}|\b[a-z]\s)\s*[-:x~—]|{_ONE}\s*(?:[A-Za-z°]+\s+)?"
    rf"(?:to|and|or|&|through|of|in|per|vs\.?|versus|until|mod|choose)\s(?:\s*\$?\w+\s*=)?"
    rf"|(?:[=:(\[{{]|\bare)(?:\s*-?{_ONE},)+|\\(?:sqrt|log|ln|sin|cos|tan)|\b(?:(?:half|third|quarter|root)\sof|twice)\s"
    rf"|(?i:{_MONTH})(?:\s\d{{1,2}}(?:st|nd|rd|th)?,?)?\s(?:the\s)?)\s*\Z"
)
_TWO_UNITS = (  # as 2 hours 30 minutes
    re.compile(r"\d\s*[A-Za-z°]+,?\s*\Z"),
    re.compile(r"\s*(?:minutes?|min|seconds?|sec|inch(?:es)?|in|cents?|ounces?|oz|months?|days?)\b"),
)
_FROM = re.compile(rf"(?i)(?<!takes )(?<!ranges )(?<!anywhere )\bfrom\s+\S*{_ONE}\S*\s+to\s+\Z")  # the end of a change
_PART_BEFORE = re.compile(
    r"\s*(?:(?i:(?:hundred|thousand|million|billion|trillion|lakh|crore|dozen)s?|bn|mn|mil|squared|cubed|factorial"
    r"|(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand)ths|thirds|halves|\\?pi)\b|\\sqrt|[πφ√]|[xyzkKMBT]\b"
    rf"|i\b(?!\s+\w)|(?:of\s+)?{_MONTH}\b|[百千万萬億亿兆年月日백천만억조년월일])"
    r"|\s*(?:[-+*/\u00d7÷·^±]|\\(?:times|cdot|div))\s*(?:[a-z]\b|\(|\\)"
)
_NOT = re.compile(  # 12 and not 13
    r"(?i)(?:\b(?:can)?not|\bnever|n['\u2019]t|\brather\sthan|\binstead\sof|\bas\sopposed\sto)"
    r"(?:\s+(?:be|equal\sto|the|usual))*\s+\Z"
)
_CJK = "[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # which writes no blanks around numbers


def last_number(text: str) -> str:
    """Return the last number of a text as it is written, with ASCII digits and signs."""
    text = _with_plain_numbers(text)
    if _CUT.search(text) and not _SAYS_ANSWER.search(text):
        return ""
    words = [word for word in re.finditer(r"[^\s=<>≈≤≥~→]+", text) if re.search(r"\d", word[0])]
    for word in reversed(words):
        core = re.sub(r"^[^\w+.\\√±—-]+|[^\w%°+*/^\\(-]+$", "", word[0])
        before, after = _before(word, text), text[word.end() : word.end() + _NEAR]
        if _NAME.fullmatch(core) or _LABEL.search(before) or _NOT.search(before):
            continue
        if _UNIT.fullmatch(core) and re.search(r"\d\s*\Z", before):
            continue
        found = _NUMBER.fullmatch(core)
        if found is None or (found["sign"] and found["inner"]) or _is_part(found, before, after):
            return ""
        whole = _WHOLE.search(before) if "/" in found["number"] else None
        if whole and _PART_AFTER.search(before[: whole.start()]):
            return ""
        signs = f"{whole[1] if whole else ''}{found['sign']}{found['inner']}"
        is_negative = "-" in signs or re.search(rf"(?i)(?:\b(?:minus|negative)|(?<![\w)])-\s*{_CODE})\s*\Z", before)
        return f"{'-' if is_negative else ''}{f'{whole[2]} ' if whole else ''}{found['number']}"
    return ""


def _with_plain_numbers(text: str) -> str:
    """Return a text with ASCII digits and signs, and its numbers without LaTeX and list markers."""
    if not text.isascii():
        text = "".join(map(_plain_character, text))
    text = re.sub(r"(?<=\d)(?:\{,\}|\\[, ]|[\u00a0\u2009\u202f])(?=\d{3})", ",", text)
    text = re.sub(r"\^\{?\\circ\}?", "°", re.sub(r"([\^_])\{(-?\w+)\}", r"\1\2", text))
    text = _plain(_SIGN.sub(r"\1-\2", text))
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
    if character in "\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d":
        return "-"
    if character in "⋅∙":
        return "·"
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
        or (re.search(r"(?:\A|\n)[ \t]*-\s+\Z", before) and not re.match(r".*\w", after))  # a list, or a sign
        or (re.fullmatch(r"\d{3}\b.*", found["number"]) and re.search(r"(?<![\d.,])\d{1,3} \Z", before))
        or (_TWO_UNITS[0].search(before) and _TWO_UNITS[1].match(unit + after))
    )


# The letter.

_TAKEN_BACK = re.compile(
    r"(?i)[^\w\s?]\s*(?:(?:no,?\s+)?wait|actually|hmm|correction|scratch that|on second thought|no(?=\s*[,.;:!]))\b"
)
_OPTIONS = re.compile(r"(?m)^\W*[A-J][.):]\s+\S.*$")
_MENTION = re.compile(
    r"[(\[{](?P<bracketed>[A-Ja-j])[)\]}]|(?<![A-Za-z0-9_.\-/+&])(?<!\w['\u2019])\(?(?P<free>[A-J])"
    r"(?=\s*(?:\Z|\.(?!\s+[a-z]|[A-Za-z]\.)|\$(?!\d)|[:;)!?\]}<\"”]|['\u2019](?!\w)|(?<!I),|\s[-\u2013—]\s|\n)"
    r"|(?<!I)\s+(?:is|was|as|because|since|for|due|which|with)\b|(?<=[B-HJ])\s)"
)
"""A letter that may be an answer: in brackets, or alone before an end or a word that does not follow an article."""
_ANSWER = re.compile(
    r"(?i:(?<!incorrect )(?<!wrong )\b(?:answer|option|choice|response)\b|答案)"
    r"(?:(?=\W{0,4}[A-J]\b)|[^.\n:=]{0,40}?(?:\b(?:is|are|be)\b|[:\uff1a=是]))"
)
_IS_ANSWER = re.compile(
    r"\s+(?:is|must be|would be)\s+(?:(?:the|my|our)\s+)?"
    r"(?:correct|right|best|true|only|(?:final\s+)?(?:answer|option|choice))\b"
)
_SAYS_ANSWER = re.compile(rf"{_IS_ANSWER.pattern}(?:\s+answer)?\Z")  # at the end, as in 42 is the answer
_CUE = re.compile(r"(?i)(?:\b(?:choose|pick|select|say|go with|it'?s|it is|so|therefore|thus|hence)\b[,:]?\s*)\Z")
_DENIED_BEFORE = re.compile(
    r"(?i)(?:\b(?:(?:can)?not|never|nor|neither|rul\w+ out|eliminat\w+|exclud\w+|reject\w+|except|than|unlikely to"
    r"|(?:any\w*|every\w*|all|them) but|(?:incorrect|wrong) (?:answer|option|choice) is)|n['\u2019]t)\s+(?:be\s+)?"
    r"(?:(?:the\s+)?(?:option|choice|answer)\s+)?\Z"
)
_DENIED_AFTER = re.compile(
    r"(?i)[\s$\\)\]*]*(?:(?:is|are|was|seems|would\s+be)\s+(?:(?:also|both|all|the|\w+ly)\s+)*"
    r"(?:not|never|too|out|wrong|incorrect|false|ruled|eliminated|impossible|unlikely)\b"
    r"|(?:is|does|did|ca|could|wo|would)n?['\u2019]t\b|cannot\b|(?:does|can|could|would)\s+not\b|\?\s*no\b)"
)
# Not that it is: if the answer is B, I don't think the answer is B, Is the answer B?
_SUPPOSED = re.compile(
    r"(?i)(?:(?:n['\u2019]t|\bnot)\s+(?:think|believe|say)|\bdoubt|\bif|\bwhether|\bsuppos\w+|\bassum\w+|(?:\A|[.?!\n]\s*)"
    r"(?:is|could|would|can))\s+(?:that\s+)?(?:it(?:['\u2019]s|\s+is)\s+(?:option\s+)?|(?:the\s+)?(?:\w+\s+)?"
    r"(?:(?:answer|option|choice)\s+(?:is|was|were|be)\s+)?)\Z"
)
# A letter behind another word than these is a part of a name, as in vitamin C and John F. Kennedy.
_NAMED = re.compile(
    r"(?i)(?<![\w'\u2019])(?!(?:is|are|was|be|answer|option|choice|response|letter|statement|cho+se|pick|select|say|with|so"
    r"|thus|therefore|hence|it|it['\u2019]s|to|that|of|for|and|or|but|not|than|as|both|only|just|either|neither|nor|my|would"
    r"|think|believe|guess|means|suggests|conclude|makes|because|since|although|then|now|indeed|also|again|still|correct"
    r"|right|best|type|says?|leaves|leaving|\w+ly)\s)[a-z]+\s+\Z"
)
_JOINED_BEFORE = re.compile(
    r"\b[A-J][)\]]?\s*(?:,|/|&|,?\s*\b(?:and|or)\b)\s*(?:(?:maybe|perhaps|possibly)\s+)?\Z|[(\[][A-J][)\]] *\Z"
    r"|(?:\A|[:=]\s*)[A-J] +\Z"
)
_JOINED_AFTER = re.compile(
    r"(?:\s*(?:,|/|&|,?\s*\b(?:and|or)\b)\s*(?:(?:maybe|perhaps|possibly|option)\s+)*|(?<=[)\]]) *(?=[(\[]))"
    r"(?:[(\[][A-J][)\]]|[B-HJ]\b(?!['\u2019])|[AI]\b(?!['\u2019]|\s+[a-z]))(?!\s+(?:is|was|has)\b)"
)
_SENTENCE = re.compile(r"\w[^\w\s]*(?:[.!?][^\w\s]*\s|\n)")  # up to its end


def letter(text: str) -> str:
    """Return the letter of the option, A to J, that a text says is the answer."""
    text = re.sub(r"\AA:\s*(?=[(\[]?[B-J]\b)", "", _plain(unicodedata.normalize("NFKC", text)))
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
    mentions = [*_MENTION.finditer(text)]
    left = [each for each in mentions if not _is_denied(each, text)]
    said = [each for each in _ANSWER.finditer(text) if not _SUPPOSED.search(_before(each, text))]
    for each in reversed(left):
        if (after := _IS_ANSWER.match(text, each.end())) and not any(one.start() >= after.end() for one in said):
            return each
    is_first = bool(left) and not re.search(r"\w", text[: left[0].start()])
    if said:
        end = said[-1].end()
        about = next((each for each in mentions if each.start() >= end), None)
        found = next((each for each in left if each.start() >= end), None)
        if about and found and (not _SENTENCE.search(text, end, about.start()) or _CUE.search(_before(found, text))):
            return found
        is_first = is_first and not re.match(r"\s*[:?]", text[left[0].end() :])
        return left[0] if is_first and found is None and not _CUT.search(text) else None
    if is_first:
        return left[0]
    standing_out = [each for each in left if each["bracketed"] or _CUE.search(_before(each, text))]
    return standing_out[-1] if standing_out and not _CUT.search(text) else None


def _is_denied(mention: re.Match[str], text: str) -> bool:
    """Return whether a letter is denied, as in ``not (B)``, or one of several, as in ``(B) or (C)``."""
    before, end = _before(mention, text), mention.end()
    return bool(
        _DENIED_BEFORE.search(before)
        or _SUPPOSED.search(before)
        or (mention["free"] and _NAMED.search(before))
        or _DENIED_AFTER.match(text, end)
        or _JOINED_BEFORE.search(before)
        or _JOINED_AFTER.match(text, end)
    )


# The last box.

_CLOSED = r"[\s$.,;:!?\\()\[\]*]*"
_OR = re.compile(  # behind another box, as in \boxed{5} or \boxed{6}
    rf"(?i)\}}{_CLOSED}(?:\\text\s*\{{\s*)?\bor\b[\s}}]*(?:maybe|perhaps|possibly)?{_CLOSED}\Z"
)
_IS_WRONG = re.compile(
    rf"(?i){_CLOSED}(?:wait\W+)?(?:no(?:\Z|[,.])|that(?:['\u2019]s|\s+is)\s+(?:not|wrong|incorrect)\b)"
)
_NOTHING = re.compile(r"(?:\\(?:text\w*|math\w+|mbox|[lc]?dots|q?quad)\b|\\[,;:! ]|[\s{}~.?…_$])*")


def boxed(text: str) -> str:
    r"""Return what is in the last ``\boxed{}`` of a text; braces may be nested and escaped."""
    boxes = [*re.finditer(r"\\boxed\s*(\{)?", text)]
    while boxes and _NOT.search(f"{_before(boxes[-1], text).rstrip('$([ ').removesuffix(chr(92))} "):
        boxes.pop()
    if not boxes or boxes[-1][1] is None:
        return ""
    begin, depth = boxes[-1].end(), 1
    for brace in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, begin):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if not depth:
            end, content = brace.end(), text[begin : brace.start()].strip()
            is_open = any(each.match(text, end) for each in (_DENIED_AFTER, _IS_WRONG))
            return "" if is_open or _OR.search(text, 0, boxes[-1].start()) or _NOTHING.fullmatch(content) else content
    return ""


READINGS: Mapping[str, Callable[[str], str]] = {"last-number": last_number, "letter": letter, "boxed": boxed}
"""The function of each preset."""
