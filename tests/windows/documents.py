"""Windows and requests of documents that tests write as token ids, and tokenizers that are trained for a test."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from pytest_lmgate.settings.gate_options import PROTOCOL_RULES, Windowing
from pytest_lmgate.windows.protocols import plan_windows
from pytest_lmgate.windows.requests import Requests, window_requests
from pytest_lmgate.windows.tokens import Streams


def windowing(protocol: str, length: int = 8, **more: Any) -> Windowing:
    """Return the windows of a protocol, half of which overlaps where it has a stride."""
    return Windowing(protocol, length, length // 2 if PROTOCOL_RULES[protocol].has_stride else length, **more)


def document_requests(*documents: np.ndarray, length: int = 16) -> Requests:
    """Return the requests of the dataset ``d``: windows of at most so many tokens of documents with these token ids."""
    plan = plan_windows(Windowing("document", length, length), [len(ids) for ids in documents])
    return window_requests(Streams(documents, None), plan, "d")


def trained_bpe(texts: Iterable[str], size: int, **named: str) -> Any:
    """Train a byte-level BPE tokenizer, as GPT-2's, with special tokens as they are named."""
    import tokenizers
    import transformers

    inner, alphabet = tokenizers.Tokenizer(tokenizers.models.BPE()), tokenizers.pre_tokenizers.ByteLevel.alphabet()
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    special = list(named.values())
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet)
    inner.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **named)
