"""Writes models/float for onnxruntime: models/float-onnx, a folder as optimum exports one.

    pip install onnx
    python to_onnx.py

For a model of your own, `optimum-cli export onnx --task text-generation` writes such a folder. optimum wants an older
transformers than the one that has made this model, so this script calls torch's exporter, as optimum does.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import torch
import transformers

MODELS = Path(__file__).parent / "models"
BESIDE = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
"""Files that an export has in common with its checkpoint."""

BATCH, LENGTH = 2, 5


class Logits(torch.nn.Module):
    """A causal model that returns its logits and nothing else."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Take a causal model of transformers."""
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits after each token, shape ``[batch, tokens, vocabulary]``."""
        read = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False
        )
        return read.logits


def write(source: Path, folder: Path) -> None:
    """Write a causal model as an ONNX file, with its config and tokenizer beside it.

    Args:
        source: Folder of the model and its tokenizer.
        folder: The folder to write.
    """
    folder.mkdir(exist_ok=True)
    for name in BESIDE:
        shutil.copy(source / name, folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    inputs = {
        "input_ids": torch.ones(BATCH, LENGTH, dtype=torch.long),
        "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long),
        "position_ids": torch.arange(LENGTH).repeat(BATCH, 1),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Logits(model),
            tuple(inputs.values()),
            str(folder / "model.onnx"),
            input_names=list(inputs),
            output_names=["logits"],
            dynamic_axes={name: {0: "batch_size", 1: "sequence_length"} for name in (*inputs, "logits")},
            opset_version=18,
            dynamo=False,
        )


def main() -> None:
    """Write the folder."""
    write(MODELS / "float", MODELS / "float-onnx")
    print("wrote models/float-onnx")


if __name__ == "__main__":
    main()
