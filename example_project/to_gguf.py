"""Writes models/float for llama.cpp: models/float-f16.gguf and models/float-q8_0.gguf.

    pip install gguf
    python to_gguf.py

llama.cpp's own converter does this for models whose tokenizer it knows. This one's tokens are whole words, which no
vocabulary of a GGUF is made for. That of RWKV takes the longest token that fits, which cuts a bulletin into the same.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

MODELS = Path(__file__).parent / "models"
FILES = {
    "float-f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "float-q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}
"""Of each file the type of its matrices, and what llama.cpp calls such a file."""

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
"""llama.cpp's names of the layers."""


def write(source: Path, path: Path, kind: gguf.GGMLQuantizationType, file_type: gguf.LlamaFileType) -> None:
    """Write a Llama as a GGUF file.

    Args:
        source: Folder of the model and its tokenizer.
        path: The file.
        kind: Type of its matrices; norms stay float32.
        file_type: What llama.cpp calls such a file.
    """
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(file_type)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    add_tokens(writer, json.loads((source / "tokenizer.json").read_text(encoding="utf-8")), config)
    for name, weights in load_file(source / "model.safetensors").items():
        if ".q_proj." in name or ".k_proj." in name:
            weights = interleaved(weights, config["head_dim"])
        its = kind if weights.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(llama_cpp_name(name), gguf.quants.quantize(weights, its), raw_dtype=its)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokens(writer: gguf.GGUFWriter, tokenizer: dict, config: dict) -> None:
    """Add the vocabulary; no special token is put before a text."""
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list([token.replace("\n", "\\n") for token in tokens])
    writer.add_token_types([gguf.TokenType.CONTROL if each in special else gguf.TokenType.NORMAL for each in tokens])
    writer.add_unk_token_id(tokens.index("<unk>"))
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)


def llama_cpp_name(name: str) -> str:
    """Return llama.cpp's name of a tensor."""
    stem = name.removesuffix(".weight")
    if stem in NAMES:
        return f"{NAMES[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def interleaved(weights: np.ndarray, head: int) -> np.ndarray:
    """Put the two numbers of a head that are rotated together side by side; transformers has them half a head apart."""
    return weights.reshape(-1, 2, head // 2, weights.shape[1]).swapaxes(1, 2).reshape(weights.shape)


def main() -> None:
    """Write the files."""
    for name, (kind, file_type) in FILES.items():
        write(MODELS / "float", MODELS / f"{name}.gguf", kind, file_type)
        print(f"wrote models/{name}.gguf")


if __name__ == "__main__":
    main()
