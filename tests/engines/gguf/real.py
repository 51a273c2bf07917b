"""A real Llama of 260,000 weights as GGUF files."""

from pathlib import Path

NAME = "stories260K-hf"


def write_real_model(folder: Path, shared_data: Path) -> None:
    """Write it in three dtypes, and a link ``float`` to its checkpoint."""
    import transformers

    from pytest_lmgate.engines.tokenizers import quiet
    from tests.engines.gguf.converting import write_gguf

    checkpoint = shared_data / "models" / NAME
    with quiet():
        model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
        tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    for dtype in ("f32", "f16", "q8_0"):
        write_gguf(folder / f"{dtype}.gguf", model, tokenizer, dtype=dtype)
    (folder / "float").symlink_to(checkpoint)
