"""What the engine's texts are compared with: ``model.generate``, one row at a time, told everything."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers

from pytest_lmgate.engines.tokenizers import quiet
from pytest_lmgate.settings.gate_options import GenerationSettings
from tests.engines.transformers.measuring import generate_texts
from tests.models.encoders import ENCODER_DECODERS, encoder_decoder, framed_tokenizer
from tests.models.zoo import CONTEXT, build, loaded, word_tokenizer, words


def prompts(*lengths: int, seed: int = 0) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(words()[index] for index in generator.integers(0, 90, size=length)) for length in lengths]


NEW = 8
"""How many tokens are written, if a test says nothing else."""
TOKENIZER = word_tokenizer()
PROMPTS = prompts(3, 9, 1, 5, 9, 17, 4)


def subject(name: str) -> tuple[Any, Any]:
    return (encoder_decoder(name), framed_tokenizer()) if name in ENCODER_DECODERS else (build(name), TOKENIZER)


def alone(model: Any, tokenizer: Any, rows: Sequence[str], **how: Any) -> list[str]:
    """Generate row by row, without padding."""
    config = transformers.GenerationConfig(
        **{"max_new_tokens": NEW, "do_sample": False, "eos_token_id": 2, "pad_token_id": 0,
           "decoder_start_token_id": getattr(model.config, "decoder_start_token_id", None), **how},
    )  # fmt: skip
    texts = []
    before = model.generation_config
    model.generation_config = config
    try:
        for row in rows:
            ids = tokenizer(row, return_tensors="pt")["input_ids"]
            with torch.no_grad(), quiet():
                out = model.generate(
                    input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config, tokenizer=tokenizer
                )
            begin = 1 if model.config.is_encoder_decoder else ids.shape[1]
            texts.append(tokenizer.decode(out[0, begin:], skip_special_tokens=True))
    finally:
        model.generation_config = before
    return texts


def written(model: Any, tokenizer: Any, rows: Sequence[Any], *, context: int | None = CONTEXT, **how: Any) -> list[str]:
    """Generate by the engine; settings and arguments of `generate_texts` by name."""
    beside = {key: how.pop(key) for key in ("batch_size", "known", "save", "progress") if key in how}
    stop = how.pop("stop", ())
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    settings = GenerationSettings(**{"max_new_tokens": NEW, "stop": stops, **how})
    return generate_texts(loaded(model, tokenizer), rows, settings, dataset="rows", context=context, **beside)
