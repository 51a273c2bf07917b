"""Tiny randomly initialised encoder-decoder and masked models, the same at every run, and tokenizers for them.

As in `zoo`, every model reads the token ids ``0..VOCABULARY-1`` and its weights are louder than usual, so that its
numbers depend on what it reads.
"""

from typing import Any

import torch
import transformers

from pytest_lmgate.engines.tokenizers import quiet
from tests.models.tiny import word_level
from tests.models.zoo import CONTEXT, VOCABULARY, words

MASK = 4

_BART = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": CONTEXT, "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}  # fmt: skip
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
_T5GEMMA = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": CONTEXT, "sliding_window": 16,
    "vocab_size": VOCABULARY, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0,
}  # fmt: skip
_BERT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT, "vocab_size": VOCABULARY,
}  # fmt: skip

ENCODER_DECODERS: dict[str, dict[str, Any]] = {
    "t5": _T5,
    "t5-tied": _T5 | {"tie_word_embeddings": True},
    "umt5": _T5,
    "t5gemma": {"encoder": _T5GEMMA, "decoder": _T5GEMMA | {"is_decoder": True}, "decoder_start_token_id": 1},
    "bart": _BART,
    "mbart": _BART,
    "marian": _BART | {"decoder_start_token_id": 0},
    "pegasus": _BART | {"decoder_start_token_id": 0},
    "m2m_100": _BART,
    "blenderbot": _BART | {"decoder_start_token_id": 1},
    "led": _BART | {
        "max_encoder_position_embeddings": CONTEXT, "max_decoder_position_embeddings": CONTEXT, "attention_window": 8,
    },
    "prophetnet": {
        "hidden_size": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_encoder_layers": 2,
        "num_decoder_layers": 2, "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4,
        "max_position_embeddings": CONTEXT, "decoder_start_token_id": 1,
    },
    "encoder-decoder": {"encoder": _BERT | {"model_type": "bert"}, "decoder": _BERT | {
        "model_type": "bert", "is_decoder": True, "add_cross_attention": True,
    }, "decoder_start_token_id": 1},
}  # fmt: skip

_ENCODER = _BERT | {"pad_token_id": 0}
# These count positions from behind the padding's id; the two more make the context the same.
_OFFSET = _BERT | {"pad_token_id": 1, "bos_token_id": 0, "max_position_embeddings": CONTEXT + 2}
MASKED: dict[str, dict[str, Any]] = {
    "albert": _ENCODER | {"embedding_size": 16},
    "bert": _ENCODER,
    "camembert": _OFFSET,
    "deberta-v2": _ENCODER | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "distilbert": {
        "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "max_position_embeddings": CONTEXT, "pad_token_id": 0,
    },
    "electra": _ENCODER | {"embedding_size": 16},
    "eurobert": _ENCODER | {"bos_token_id": 1, "eos_token_id": 2},
    "modernbert": _ENCODER | {"local_attention": 8},
    "mpnet": _OFFSET,
    "roberta": _OFFSET,
    "xlm-roberta": _OFFSET,
}  # fmt: skip


def encoder_decoder(name: str, *, dtype: torch.dtype = torch.float32, **config: Any) -> Any:
    """Return an encoder-decoder model of an architecture; ``t5-tied`` is one whose head is the embedding, scaled."""
    known = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    known["tie_word_embeddings"] = False
    settings = known | ENCODER_DECODERS[name] | config
    return _louder(transformers.AutoModelForSeq2SeqLM, name.removesuffix("-tied"), settings, dtype)


def masked(name: str, *, dtype: torch.dtype = torch.float32, **config: Any) -> Any:
    """Return a masked model of an architecture."""
    settings = {"vocab_size": VOCABULARY} | MASKED[name] | config
    return _louder(transformers.AutoModelForMaskedLM, name, settings, dtype)


def _louder(kind: Any, name: str, settings: dict[str, Any], dtype: torch.dtype) -> Any:
    torch.manual_seed(20)
    with quiet(), torch.no_grad():
        model = kind.from_config(transformers.AutoConfig.for_model(name, **settings)).eval()
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.3)
    return model.to(dtype)


def framed_tokenizer(template: str = "$A </s>", *, mask: bool = False) -> Any:
    """Return a fast tokenizer that splits at spaces and puts special tokens around a text as the template says.

    Ids 0 to 4 are <pad>, <s>, </s>, <unk> and <mask>.
    """
    specials = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    vocabulary = [*specials.values(), "<mask>", *words(VOCABULARY - len(specials) - 1)]
    if mask:
        specials |= {"mask_token": "<mask>", "cls_token": "<s>", "sep_token": "</s>"}
    return word_level(vocabulary, template=template, framed_by={"<s>": 1, "</s>": 2}, **specials)
