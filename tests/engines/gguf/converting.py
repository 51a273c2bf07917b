"""From a Llama of transformers and its tokenizer to a GGUF, as llama.cpp's own converter writes one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
_FILE_TYPES = {
    "f32": gguf.LlamaFileType.ALL_F32,
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}
_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_BLOCK = 32  # weights of a row that q8_0 scales together


def write_gguf(
    path: Path,
    model: Any,
    tokenizer: Any,
    *,
    dtype: str = "f32",
    parts_of: int = 0,
    tensors: Mapping[str, NDArray[Any]] = {},
    **metadata: bool | int | str,
) -> Path:
    """Write a ``LlamaForCausalLM`` and more `tensors`; return the file, or the first of several of `parts_of` tensors.

    The tokenizer is a fast one of byte-level BPE, or of the SentencePiece kind with ``▁`` and byte tokens. Metadata are
    named by what follows the architecture, as in ``attention__causal``.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=parts_of)
    writer.add_file_type(_FILE_TYPES[dtype])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if config.rope_parameters["rope_type"] == "longrope":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        writer.add_rope_scaling_orig_ctx_len(config.rope_parameters["original_max_position_embeddings"])
        for which in ("long", "short"):
            factors = np.array(config.rope_parameters[f"{which}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{which}.weight", factors)
    writer.add_vocab_size(config.vocab_size)
    for key, value in metadata.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}[type(value)]
        add(f"llama.{key.replace('__', '.')}", value)
    _add_tokens(writer, tokenizer, config.vocab_size)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        weights = tensor.float().numpy()
        if "q_proj" in name:
            weights = _permuted(weights, config.num_attention_heads)
        if "k_proj" in name:
            weights = _permuted(weights, config.num_key_value_heads)
        kind = TYPES[dtype]
        if weights.ndim == 1 or (dtype == "q8_0" and weights.shape[1] % _BLOCK):
            kind = TYPES["f32"]
        writer.add_tensor(_tensor_name(name), gguf.quants.quantize(weights, kind), raw_dtype=kind)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return next(iter(sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))), path) if parts_of else path


def _tensor_name(name: str) -> str:
    known = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in known:
        return f"{known[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_NAMES[part]}.weight"


def _permuted(weights: NDArray[Any], heads: int) -> NDArray[Any]:
    """Put the halves that transformers rotates beside each other, where llama.cpp expects them."""
    shape = weights.shape
    return weights.reshape(heads, 2, shape[0] // heads // 2, shape[1]).swapaxes(1, 2).reshape(shape)


def _add_tokens(writer: gguf.GGUFWriter, tokenizer: Any, size: int) -> None:
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    ids = tokenizer.get_vocab()
    special = {token["id"] for token in backend["added_tokens"] if token["special"]}
    texts = {number: text for text, number in ids.items()}
    is_byte_level = "<0x0A>" not in ids
    types, scores = [], []
    for number in range(size):
        text = texts.get(number)
        kind = gguf.TokenType.NORMAL
        if text is None:
            kind = gguf.TokenType.UNUSED
        elif text == tokenizer.unk_token:
            kind = gguf.TokenType.UNKNOWN
        elif number in special:
            kind = gguf.TokenType.CONTROL
        elif not is_byte_level and text.startswith("<0x") and len(text) == len("<0x0A>"):
            kind = gguf.TokenType.BYTE
        types.append(kind)
        scores.append(-float(number))
    tokens = [texts.get(number, f"[PAD{number}]") for number in range(size)]
    writer.add_tokenizer_model("gpt2" if is_byte_level else "llama")
    writer.add_tokenizer_pre("gpt-2" if is_byte_level else "default")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if is_byte_level:
        merges = backend["model"]["merges"]
        writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    else:
        writer.add_token_scores(scores)
        writer.add_add_space_prefix(True)
    for which in ("bos", "eos"):
        if (token := getattr(tokenizer, f"{which}_token_id")) is not None:
            getattr(writer, f"add_{which}_token_id")(token)
    framed = tokenizer("a")["input_ids"]
    writer.add_add_bos_token(framed[0] == tokenizer.bos_token_id)
    writer.add_add_eos_token(framed[-1] == tokenizer.eos_token_id)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def write_real_model(folder: Path, shared_data: Path) -> None:
    """Write a real Llama of 260,000 weights in three dtypes, and a link ``float`` to its checkpoint."""
    import transformers

    from pytest_lmgate.engines.tokenizers import quiet

    checkpoint = shared_data / "models" / "stories260K-hf"
    with quiet():
        model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
        tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    for dtype in ("f32", "f16", "q8_0"):
        write_gguf(folder / f"{dtype}.gguf", model, tokenizer, dtype=dtype)
    (folder / "float").symlink_to(checkpoint)
