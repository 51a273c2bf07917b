"""What engines.py measures: a Llama with random weights as a GGUF file, and a text of its words, made from one seed."""

from __future__ import annotations

__all__ = ["make_gguf", "make_text"]

from pathlib import Path

import gguf
import numpy as np

VOCABULARY, CONTEXT, WIDTH, INNER, HEADS = 32_000, 1024, 768, 2048, 12
_TYPES = {
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}
# Small enough that the states stay in the range of float16.
_SPREAD = 0.02


def make_gguf(path: Path, *, dtype: str, layers: int, seed: int = 0) -> Path:
    """Write the model; its vocabulary is RWKV's kind, which takes the longest token that fits: a word.

    Args:
        path: The file.
        dtype: ``f16`` or ``q8_0``.
        layers: How many layers; each has 7 million weights.
        seed: Decides the weights.
    """
    kind, file_type = _TYPES[dtype]
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(file_type)
    writer.add_vocab_size(VOCABULARY)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list(["<unk>", *_words()])
    writer.add_token_types([gguf.TokenType.UNKNOWN] + [gguf.TokenType.NORMAL] * (VOCABULARY - 1))
    writer.add_add_bos_token(False)

    def add(name: str, *shape: int) -> None:
        weights = rng.standard_normal(shape, dtype=np.float32) * np.float32(_SPREAD)
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(weights, kind), raw_dtype=kind)

    add("token_embd", VOCABULARY, WIDTH)
    for layer in range(layers):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{part}", WIDTH, WIDTH)
        add(f"blk.{layer}.ffn_gate", INNER, WIDTH)
        add(f"blk.{layer}.ffn_up", INNER, WIDTH)
        add(f"blk.{layer}.ffn_down", WIDTH, INNER)
        for part in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{part}.weight", np.ones(WIDTH, dtype=np.float32))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def make_text(path: Path, tokens: int, *, seed: int = 0) -> Path:
    """Write a text of so many tokens, each as likely as another."""
    words = _words()
    drawn = np.random.default_rng(seed).integers(len(words), size=tokens)
    path.write_text("".join(words[number] for number in drawn), encoding="utf-8")
    return path


def _words() -> list[str]:
    return [f" w{number:x}" for number in range(VOCABULARY - 1)]
