"""Whether a tokenizer and a model speak of one vocabulary."""

from __future__ import annotations

__all__ = ["check_ids"]

from pytest_lmgate.errors import ModelError


def check_ids(highest: int, size: int, model: str) -> None:
    """Refuse token ids that the model has no entry for.

    Raises:
        ModelError: The highest is not below `size`.
    """
    if highest >= size:
        raise ModelError(
            f"model {model!r}: its tokenizer gives token id {highest}, but its vocabulary has {size} entries; the "
            "tokenizer belongs to another model, or tokens were added without resizing the embeddings"
        )
