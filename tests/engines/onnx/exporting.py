"""From a model of transformers to the folder that `optimum-cli export onnx` makes of it.

optimum 2.1 exports with torch's exporter by TorchScript, and wants an older transformers than this package is tested
with. The names, axes and types of the inputs and outputs here are optimum's own; `by_optimum` beside this file is a
folder that optimum-onnx 0.1.0 made itself.
"""

import shutil
import warnings
from pathlib import Path
from typing import Any

import onnx
import torch
import transformers
from torch import Tensor, nn

_BATCH, _PAST, _NEW = 2, 7, 5


class _Flat(nn.Module):
    """A causal model with keys and values as plain tensors; `ahead` lets each token see so many later ones."""

    def __init__(self, model: Any, with_past: bool, ahead: int) -> None:
        super().__init__()
        self.model, self.with_past, self.ahead = model, with_past, ahead

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor) -> Any:
        cache = None
        if self.with_past:
            cache = transformers.DynamicCache(config=self.model.config)
            for layer in range(len(past) // 2):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
        mask = attention_mask
        if self.ahead:
            seen = torch.ones(input_ids.shape[1], input_ids.shape[1]).tril(self.ahead)
            mask = ((1 - seen) * torch.finfo(torch.float32).min)[None, None]
        out = self.model(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=self.with_past,
        )
        if not self.with_past:
            return out.logits
        return (out.logits, *(each for layer in out.past_key_values.layers for each in (layer.keys, layer.values)))


def write_onnx(
    folder: Path, source: Path, model: Any, *, with_past: bool = True, file: str = "model.onnx", ahead: int = 0
) -> Path:
    """Write a folder as optimum does, with the config and tokenizer of `source`; return the .onnx file.

    Keys and values are inputs and outputs, as with ``--task text-generation-with-past``, unless told otherwise. Each
    token sees so many tokens `ahead`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for each in source.iterdir():
        if each.suffix != ".safetensors":
            shutil.copy(each, folder)
    config = model.config
    heads, width = config.num_key_value_heads, config.head_dim
    kept = [f"{layer}.{part}" for layer in range(config.num_hidden_layers) for part in ("key", "value")]
    begin = _PAST if with_past else 0
    past = [f"past_key_values.{each}" for each in kept] if with_past else []
    present = [f"present.{each}" for each in kept] if with_past else []
    before, after = "past_sequence_length", "past_sequence_length + sequence_length"
    axes = {name: {0: "batch_size", 1: "sequence_length"} for name in ("input_ids", "position_ids", "logits")}
    axes["attention_mask"] = {0: "batch_size", 1: after if with_past else "sequence_length"}
    axes |= {name: {0: "batch_size", 2: before} for name in past}
    axes |= {name: {0: "batch_size", 2: after} for name in present}
    inputs = (
        torch.randint(3, config.vocab_size, (_BATCH, _NEW)),
        torch.ones(_BATCH, begin + _NEW, dtype=torch.long),
        torch.arange(begin, begin + _NEW)[None].repeat(_BATCH, 1),
        *(torch.randn(_BATCH, heads, _PAST, width, dtype=model.dtype) for _ in past),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Flat(model.eval(), with_past, ahead),
            inputs,
            str(folder / file),
            input_names=["input_ids", "attention_mask", "position_ids", *past],
            output_names=["logits", *present],
            dynamic_axes=axes,
            opset_version=18,
            dynamo=False,
        )
    return folder / file


def quantize(file: Path, to: Path) -> None:
    """Write a model with int8 matrices, whose activations get a scale when they are computed, as ORTQuantizer does."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(file, to, weight_type=QuantType.QInt8)


def move_weights_out(file: Path) -> Path:
    """Put the weights of a model into a file beside it, as optimum does above 2 GB; return that file."""
    data = file.with_name(f"{file.name}_data")
    onnx.save_model(
        onnx.load(file),
        file,
        save_as_external_data=True,
        location=data.name,
        size_threshold=1024,
        convert_attribute=True,
    )
    return data
