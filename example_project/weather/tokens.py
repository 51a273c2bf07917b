r"""The tokens of a bulletin: a word or number with the space before it, a punctuation mark, or a run of newlines.

The pieces join to the very text they were cut from, so a text and its tokens tell the same and have the same entropy.
"""

from __future__ import annotations

__all__ = ["PATTERN", "split"]

import re

PATTERN = r" ?[A-Za-z]+| ?[0-9]+|[.,:]|\n+"


def split(text: str) -> list[str]:
    """Cut a text into tokens.

    Raises:
        ValueError: Something in the text is no token, such as a space with nothing behind it.
    """
    pieces = re.findall(PATTERN, text)
    if "".join(pieces) != text:
        raise ValueError(f"expected words, numbers, marks and newlines with single spaces; got {text!r}")
    return pieces
