"""GGUF files of a tiny float32 Llama."""

from pathlib import Path

import pytest

from tests.engines.projects import trained_tokenizer, with_ids_swapped, write_float_model
from tests.models.tiny import made_once

# Rows of up to 512 tokens have the short factors, longer ones the long ones.
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 512,
    "short_factor": [1.0 + pair / 16 for pair in range(16)],
    "long_factor": [1.0 + pair for pair in range(16)],
    "factor": 1.25,
    "attention_factor": 1.0,
}


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the model, GGUF files of it, and tokenizers; copy a file before changing it."""

    def make(folder: Path) -> None:
        from tests.engines.gguf.converting import write_gguf

        model, tokenizer = write_float_model(folder / "float")
        trained_tokenizer(1).save_pretrained(folder / "other-words")
        trained_tokenizer(bos=False).save_pretrained(folder / "no-bos")
        for dtype in ("f32", "f16", "q8_0"):
            write_gguf(folder / f"{dtype}.gguf", model, tokenizer, dtype=dtype)
        write_gguf(folder / "longrope.gguf", *write_float_model(folder / "longrope", rope_parameters=LONGROPE))
        write_gguf(folder / "parts.gguf", model, tokenizer, parts_of=8)
        write_gguf(folder / "encoder.gguf", model, tokenizer, attention__causal=False)
        write_gguf(folder / "swapped.gguf", model, with_ids_swapped(tokenizer, "a", "e"))
        renamed = (folder / "f32.gguf").read_bytes().replace(b"<pad>", b"[PAD]")
        (folder / "renamed.gguf").write_bytes(renamed)

    return made_once(tmp_path_factory.getbasetemp(), "gguf", make)
