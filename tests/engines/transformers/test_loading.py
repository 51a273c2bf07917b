"""From a folder to a model and its tokenizer, whole and in silence, and all that a folder or lmgate.yaml says is used.

What cannot be loaded or is not used is an error that says so.
"""

import contextlib
import json
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.utils import quantization_config as quantizers

from pytest_lmgate.engines.checkpoints import TokenizerFolder, open_checkpoint
from pytest_lmgate.engines.registry import library_warnings
from pytest_lmgate.engines.tokenizers import (
    facts_of,
    load_tokenizer,
    names_in,
    near_misses,
    options_of,
    quiet,
    tokenizer_facts,
)
from pytest_lmgate.engines.transformers.loading import quantization_config, require_all_used, wrap_pair
from pytest_lmgate.errors import ConfigError, ModelError
from tests.engines.gguf.converting import write_gguf
from tests.engines.transformers.measuring import load
from tests.models.tiny import made_once
from tests.models.zoo import ARCHITECTURES, VOCABULARY, build, lora, word_tokenizer, words
from tests.windows.documents import trained_bpe

Weights = dict[str, torch.Tensor]
PROJECTION, WEIGHT = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj.weight"
FREQUENCIES = "model.layers.0.self_attn.rotary_emb.inv_freq"
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a word tokenizer; not to be changed."""
    return made_once(tmp_path_factory.getbasetemp(), "saved-llama", lambda folder: save(build("llama"), folder))


def save(model: Any, folder: Path) -> None:
    model.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)


def changed(saved: Path, folder: Path, weights: Mapping[str, torch.Tensor | None] = {}, **config: Any) -> Path:
    """Return a copy of a checkpoint with other weights, of which None is absent, and keys."""
    shutil.copytree(saved, folder)
    merged = load_file(folder / "model.safetensors") | dict(weights)
    kept = {name: value for name, value in merged.items() if value is not None}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    known = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(known | config))
    return folder


def test_a_checkpoint_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    original = build("llama", dtype=torch.bfloat16)
    save(original, tmp_path / "llama")
    found, weights = load(tmp_path / "llama"), original.state_dict()
    assert (found.name, found.device, found.vocabulary_size) == ("llama", torch.device("cpu"), VOCABULARY)
    assert (found.model.training, found.model.dtype) == (False, torch.bfloat16)
    assert found.model.state_dict().keys() == weights.keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in found.model.state_dict().items())
    assert found.tokenizer(words()[5])["input_ids"] == [9]


def test_the_dtype_and_load_options_reach_the_library(saved: Path) -> None:
    assert load(saved, dtype="float64").model.dtype == torch.float64
    assert load(saved, load={"attn_implementation": "eager"}).model.config._attn_implementation == "eager"
    assert load(saved, load={"device_map": "cpu"}).device == torch.device("cpu")


LACKS = f"lacks weights that LlamaForCausalLM needs: {WEIGHT}; save the whole"
SHAPES = rf"do not have the shapes of its config\.json: {WEIGHT} \[\d+, \d+\] instead of \[\d+, \d+\]; put config"
OWN = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.OwnModel"}}


@pytest.mark.parametrize(
    ("weights", "config", "options", "says"),
    [
        ({WEIGHT: None}, {}, {}, LACKS),
        ({WEIGHT: torch.zeros(3, 3)}, {}, {}, SHAPES),
        ({WEIGHT: torch.zeros(3, 3)}, {}, {"ignore_mismatched_sizes": True}, LACKS),
        ({}, OWN, {}, "contains custom code|trust_remote_code"),
    ],
    ids=["a weight is absent", "another shape", "another shape, ignored", "code of its own"],
)
def test_a_damaged_checkpoint_is_an_error_nothing_is_drawn_at_random_and_no_code_is_run(
    saved: Path, tmp_path: Path, weights: Weights, config: dict[str, Any], options: dict[str, Any], says: str
) -> None:
    folder = changed(saved, tmp_path / "m", weights, **config)
    (folder / "own.py").write_text("raise SystemExit('code of a stranger was run')")
    with pytest.raises(ModelError, match=rf"(?s)^model 'm': .*{says}"):
        load(folder, load=options)


def test_a_damaged_tokenizer_is_an_error(saved: Path, tmp_path: Path) -> None:
    (changed(saved, tmp_path / "m") / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"^model 'm': no usable tokenizer in .*; save one there"):
        load(tmp_path / "m")


def test_pickled_weights_are_read_only_where_allowed(saved: Path, tmp_path: Path) -> None:
    folder, weights = pickled(changed(saved, tmp_path / "m")), load_file(saved / "model.safetensors")
    assert torch.equal(load(folder, pickle_weights=True).model.lm_head.weight, weights["lm_head.weight"])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(folder)


def test_an_adapter_is_put_on_the_model_or_it_is_an_error(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = torch.arange(10)[None]
    lora(build("llama"), "q_proj").save_pretrained(tmp_path)
    plain, adapted = load(saved), load(saved, adapter_folder=tmp_path)
    assert (plain.model(input_ids=ids).logits - adapted.model(input_ids=ids).logits).abs().max() > 0.1
    assert (adapted.model.training, adapted.vocabulary_size) == (False, VOCABULARY)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match=r"^model 'saved-llama': an adapter needs PEFT: pip install "):
        load(saved, adapter_folder=tmp_path)


UNUSED: dict[str, tuple[Weights, dict[str, Any]]] = {
    f"{PROJECTION}.bias": ({f"{PROJECTION}.bias": torch.ones(32)}, {}),
    "score.weight": ({"score.weight": torch.ones(1, 32)}, {"architectures": ["LlamaForSequenceClassification"]}),
    # Scales of a cache of keys and values, which transformers does not apply by itself.
    "model.layers.0.self_attn.k_scale": ({"model.layers.0.self_attn.k_scale": torch.ones(1)}, {}),
    FREQUENCIES: ({FREQUENCIES: 1e6 ** -torch.arange(0, 1, 0.25)}, {}),  # an old config.json may lack rope_theta
    "model.layers.1.mlp.up_proj.weight": ({}, {"num_hidden_layers": 1}),
    "model.layers.2.mlp.up_proj.weight": (
        {"model.layers.2.mlp.up_proj.weight": torch.ones(3, 3)}, {"num_nextn_predict_layers": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("key", UNUSED)
def test_weights_that_the_model_does_not_take_are_an_error(saved: Path, tmp_path: Path, key: str) -> None:
    weights, config = UNUSED[key]
    folder = changed(saved, tmp_path / "m", weights, **config)
    with pytest.raises(ModelError, match=r"LlamaForCausalLM does not use, \d+ in all: .*") as refused:
        load(folder)
    assert key in str(refused.value) or len(weights) == 0


HARMLESS: dict[str, Weights] = {
    "frequencies": {FREQUENCIES: 1e4 ** -torch.arange(0, 1, 0.25)},
    "frequencies that are scaled later": {FREQUENCIES: 4 * (1e4 ** -torch.arange(0, 1, 0.25)).bfloat16()},
    "mask": {"model.layers.0.attn.bias": torch.ones(1, 1, 8, 8)},
    "masked bias": {"model.layers.0.attn.masked_bias": torch.tensor(-1e4)},
    "bias of zeros": {f"{PROJECTION}.bias": torch.zeros(32)},
    "head for tokens ahead": {"mtp.layers.0.fc.weight": torch.ones(3, 3)},
    "layer for tokens ahead": {
        f"model.layers.2.{name}.weight": torch.ones(3, 3) for name in ("eh_proj", "mlp.up_proj")
    },
}


@pytest.mark.parametrize("case", HARMLESS)
def test_weights_that_change_no_probability_are_silent(saved: Path, tmp_path: Path, case: str) -> None:
    folder = changed(saved, tmp_path / "m", HARMLESS[case])
    with library_warnings() as warned:
        load(folder)
    assert not warned


def pickled(folder: Path, shards: int = 1) -> Path:
    """Turn a checkpoint's weights into pickles, with an index where there are several."""
    weights, names = load_file(folder / "model.safetensors"), [f"pytorch_model-{part}.bin" for part in range(shards)]
    (folder / "model.safetensors").unlink()
    index = {name: names[at % shards] for at, name in enumerate(sorted(weights))}
    for file in names:
        held = {name: weights[name] for name, where in index.items() if where == file}
        torch.save(held, folder / (file if shards > 1 else "pytorch_model.bin"))
    if shards > 1:
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def test_what_a_model_does_not_take_of_pickles_is_an_error_too(saved: Path, tmp_path: Path) -> None:
    weights, config = UNUSED[FREQUENCIES]
    with pytest.raises(ModelError, match=r"does not use, 1 in all: .*inv_freq"):
        load(pickled(changed(saved, tmp_path / "other", weights, **config)), pickle_weights=True)
    zeros = HARMLESS["bias of zeros"] | HARMLESS["frequencies"]
    load(pickled(changed(saved, tmp_path / "zeros", zeros)), pickle_weights=True)
    sharded = pickled(changed(saved, tmp_path / "sharded"), shards=2)
    load(sharded, pickle_weights=True)
    other = torch.load(sharded / "pytorch_model-1.bin") | {WEIGHT: torch.ones(32, 32)}
    torch.save(other | torch.load(sharded / "pytorch_model-0.bin"), sharded / "pytorch_model-1.bin")
    with pytest.raises(ModelError, match=r"pytorch_model-1\.bin and pytorch_model\.bin\.index\.json disagree about"):
        load(sharded, pickle_weights=True)


def test_parts_of_a_multimodal_model_that_read_no_text_are_silent(saved: Path, tmp_path: Path) -> None:
    weights = {name: torch.ones(2, 2) for name in ("vision_model.norm.weight", "multi_modal_projector.linear_1.weight")}
    load(changed(saved, tmp_path / "m", weights, vision_config={}))
    with pytest.raises(ModelError, match="does not use, 2 in all"):
        load(changed(saved, tmp_path / "plain", weights))


def test_heads_of_a_masked_model_for_other_tasks_are_silent(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    save(transformers.BertForPreTraining(transformers.BertConfig(vocab_size=97, **sizes)), tmp_path)
    assert type(load(tmp_path).model).__name__ == "BertForMaskedLM"
    assert any("seq_relationship" in name for name in load_file(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("name", ["gemma3", "gpt_neo", "opt", "deepseek_v3", "mixtral", "mamba"])
def test_an_honest_checkpoint_loads_without_a_word(tmp_path: Path, name: str) -> None:
    save(build(name), tmp_path)
    with library_warnings() as warned:
        load(tmp_path)
    assert not warned


def test_weights_that_config_json_ties_are_equal_or_not_tied(saved: Path, tmp_path: Path) -> None:
    head = load_file(saved / "model.safetensors")["lm_head.weight"]
    folder = changed(saved, tmp_path / "m", {"lm_head.weight": head + 1}, tie_word_embeddings=True)
    with contextlib.suppress(ModelError):  # an older transformers, which ties them anyway
        assert torch.equal(load(folder).model.lm_head.weight, head + 1)


@pytest.mark.parametrize(
    ("name", "change", "key", "meant"),
    [
        ("llama", {"rope_scaling": YARN | {"beta_fst": 32.0}}, "rope_scaling.beta_fst", "beta_fast"),
        ("llama", {"rope_scaling": YARN | {"mscal": 1.0}}, "rope_scaling.mscal", "mscale"),
        ("llama", {"rope_scalling": YARN}, "rope_scalling", "rope_scaling"),
        ("llama", {"rms_norm_epsilon": 1e-3}, "rms_norm_epsilon", "rms_norm_eps"),
        ("llama", {"headDim": 8}, "headDim", "head_dim"),
        ("gemma3", {"text_config": {"sliding_windw": 16}}, "text_config.sliding_windw", "sliding_window"),
    ],
)
def test_a_misspelt_key_of_config_json_is_an_error(
    tmp_path: Path, name: str, change: dict[str, Any], key: str, meant: str
) -> None:
    save(build(name), tmp_path)
    known = json.loads((tmp_path / "config.json").read_text())
    for part, value in change.items():
        known[part] = {**known.get(part, {}), **value} if isinstance(value, dict) else value
    for part in (known, known.get("text_config", {})):
        part.pop(meant, None)
    (tmp_path / "config.json").write_text(json.dumps(known))
    with pytest.raises(ModelError, match=rf"does not use the key '{key}' .*'{meant}'"):
        load(tmp_path)


FOREIGN = {
    "_name_or_path": "org/model", "auto_map": {"AutoModel": "x.Y"}, "model_max_length": 64, "neftune_noise_alpha": 5,
    "pretraining_tp": 1, "torch_dtype": "float32", "unsloth_version": "1", "use_flash_attn": True, "use_cache": True,
    "bos_token_ids": [1], "rope_scaling": YARN | {"finetuned": True},
}  # fmt: skip


def test_keys_of_other_programs_and_of_older_versions_are_left_alone(saved: Path, tmp_path: Path) -> None:
    load(changed(saved, tmp_path / "m", **FOREIGN))


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_no_key_that_a_librarys_own_config_has_is_taken_for_a_misspelling(name: str) -> None:
    config = transformers.AutoConfig.for_model(name, **ARCHITECTURES[name])
    given = json.loads(config.to_json_string(use_diff=False))
    assert not list(near_misses(given, names_in(type(config)), options_of(type(config)), ""))


STORED = {
    "GPTQConfig": {
        "bits": 4, "group_size": 128, "damp_percent": 0.01, "desc_act": True, "static_groups": False, "sym": True,
        "true_sequential": True, "model_name_or_path": None, "model_file_base_name": "model", "quant_method": "gptq",
        "checkpoint_format": "gptq", "lm_head": False, "meta": {}, "pack_dtype": "int32", "groupsize": 128,
    },
    "AwqConfig": {
        "bits": 4, "group_size": 128, "modules_to_not_convert": None, "quant_method": "awq", "version": "gemm",
        "zero_point": True, "do_fuse": False, "exllama_config": None, "fuse_max_seq_len": None, "w_bit": 4,
    },
    "FineGrainedFP8Config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
    },
    "CompressedTensorsConfig": {
        "config_groups": {}, "format": "pack-quantized", "global_compression_ratio": 1.2, "ignore": ["lm_head"],
        "kv_cache_scheme": None, "quant_method": "compressed-tensors", "quantization_status": "compressed",
        "sparsity_config": {}, "transform_config": {}, "version": "0.10",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", STORED)
def test_keys_that_quantizers_store_are_left_alone_and_misspelt_ones_are_found(name: str) -> None:
    kind = getattr(quantizers, name)
    names, options = names_in(kind), options_of(kind)
    assert not list(near_misses(STORED[name], names, options, ""))
    known = next(key for key in STORED[name] if key in options and len(key) > 4)
    misspelt = {key: value for key, value in STORED[name].items() if key != known} | {known[:-1]: 1}
    assert (known[:-1], known) in near_misses(misspelt, names, options, "")


@pytest.mark.parametrize(
    ("given", "unknown"),
    [
        ({"load_in_4bit": True, "bnb_4bit_quant_typ": "nf4"}, "bnb_4bit_quant_typ"),
        ({"load_in_8bit": True, "group_size": 64}, "group_size"),
        ({"quant_method": "gptq", "bits": 4, "groupsize": 64}, "groupsize"),
        ({"quant_method": "auto-round", "backen": "triton"}, "backen"),
    ],
)
def test_an_option_that_a_quantizer_does_not_have_is_an_error(given: dict[str, Any], unknown: str) -> None:
    with pytest.raises(ConfigError, match=rf"^models\.m\.load\.quantization_config: \w+ has no option '{unknown}'"):
        quantization_config("m", given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs FP8")
def test_a_checkpoint_in_fp8_is_measured_as_a_float_model_only_on_request(saved: Path, tmp_path: Path) -> None:
    weights = {name: value for name, value in load_file(saved / "model.safetensors").items() if "proj" in name}
    scales = {f"{name}_scale_inv": torch.full([n // 4 for n in value.shape], 0.5) for name, value in weights.items()}
    small = {name: value.to(torch.float8_e4m3fn) for name, value in weights.items()}
    fp8 = {"quant_method": "fp8", "weight_block_size": [4, 4], "modules_to_not_convert": ["lm_head"]}
    folder = changed(saved, tmp_path / "m", {**small, **scales}, quantization_config=fp8)
    with pytest.raises(ModelError, match=r"float model, but its config\.json has a quantization_config \(fp8\)"):
        load(folder)
    for asked in ({"dequantize": True}, {"quantization_config": {"quant_method": "fp8", "dequantize": True}}):
        state = load(folder, load=asked, dtype="float32").model.state_dict()
        assert all(torch.allclose(state[name], value.float() / 2) for name, value in small.items())


@pytest.mark.parametrize(("dtype", "refused"), [("q8_0", True), ("f16", False)])
def test_a_gguf_that_transformers_makes_floats_of_is_measured_on_request(
    tmp_path: Path, dtype: str, refused: bool
) -> None:
    model = build("llama", intermediate_size=64)
    save(model, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    write_gguf(tmp_path / "m.gguf", model, trained_bpe(["ab ab"], 97), dtype=dtype)
    with pytest.raises(ModelError, match=r"m\.gguf is quantized \(Q8_0\)") if refused else contextlib.nullcontext():
        load(tmp_path, load={"gguf_file": "m.gguf"})
    assert (
        load(tmp_path, load={"gguf_file": "m.gguf", "dequantize": True}, dtype="float32").model.dtype == torch.float32
    )


@pytest.mark.parametrize(
    ("held", "says"),
    [
        ({"tensors": {"blk.0.attn_q.bias": np.ones(32, np.float32)}}, r"1 in all: blk\.0\.attn_q\.bias"),
        ({"tensors": {"rope_freqs.weight": np.array([1, 1, 1, 8], np.float32)}}, r"rope_freqs\.weight"),
        ({"tensors": {"rope_freqs.weight": np.array([1, 1, 1e30, 1e30], np.float32)}}, ""),
        ({"rope__scaling__type": "yarn"}, "type: yarn"),
        ({"rope__scaling__type": "none"}, ""),
        ({"attention__sliding_window": 16}, "window: 16"),
    ],
)
def test_what_transformers_does_not_read_of_a_gguf_is_an_error(tmp_path: Path, held: dict[str, Any], says: str) -> None:
    model = build("llama")
    save(model, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    write_gguf(tmp_path / "m.gguf", model, trained_bpe(["ab ab"], 97), **held)
    with pytest.raises(ModelError, match=rf"m\.gguf holds .*{says}") if says else contextlib.nullcontext():
        load(tmp_path, load={"gguf_file": "m.gguf"})


def test_an_option_that_a_quantized_checkpoint_overrides_is_an_error(tmp_path: Path) -> None:
    stored = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    with quiet():
        build("llama").save_pretrained(tmp_path / "float")
        load_quantized = transformers.AutoModelForCausalLM.from_pretrained
        config = transformers.BitsAndBytesConfig(**stored)
        load_quantized(tmp_path / "float", quantization_config=config).save_pretrained(tmp_path / "m")
    word_tokenizer().save_pretrained(tmp_path / "m")
    load(tmp_path / "m", load={"quantization_config": stored})
    with pytest.raises(ModelError, match=r"bnb_4bit_quant_type: 'fp4' is not used, .* with 'nf4'"):
        load(tmp_path / "m", load={"quantization_config": stored | {"bnb_4bit_quant_type": "fp4"}})


def test_a_quantization_that_the_library_does_not_know_is_an_error(saved: Path, tmp_path: Path) -> None:
    folder = changed(saved, tmp_path / "m", quantization_config={"quant_method": "modelopt"})
    with pytest.raises(ModelError, match=r"has a quantization_config \(modelopt\)"):
        load(folder)


def _renamed(rename: Callable[[str], str]) -> Callable[[Weights], Weights]:
    return lambda weights: {rename(name): value for name, value in weights.items()}


def _without(part: str) -> Callable[[Weights], Weights]:
    return lambda weights: {name: value for name, value in weights.items() if part not in name}


OUTER = "base_model.model."
ORPHANS, DRAWN = "holds weights that PEFT does not apply, ", "lacks weights, which PEFT draws at random, "


@pytest.mark.parametrize(
    ("weights", "config", "says"),
    [
        (_renamed(lambda name: name.replace(OUTER, f"{OUTER}_orig_mod.")), {}, f"{ORPHANS}4 in all"),
        (_renamed(lambda name: name.removeprefix(OUTER)), {}, f"{ORPHANS}4 in all"),
        (_renamed(lambda name: name.replace("layers.1.", "layers.7.")), {}, f"{ORPHANS}2 in all"),
        (dict, {"target_modules": ["v_proj"]}, f"{ORPHANS}4 in all"),
        (_without("lora_B"), {}, f"{DRAWN}2 in all"),
        (_without("layers.1."), {}, f"{DRAWN}2 in all"),
        (dict, {"target_modules": ["q_proj", "v_proj"]}, f"{DRAWN}4 in all"),
        (dict, {"use_dora": True}, f"{DRAWN}2 in all"),
        (dict, {"modules_to_save": ["norm"]}, "cannot be loaded: KeyError"),
        (dict, {"r": 64}, "cannot be loaded: RuntimeError: .*size mismatch"),
        (dict, {"lora_alhpa": 8, "lora_alpha": None}, r"LoraConfig does not use the key 'lora_alhpa'"),
    ],
)
def test_an_adapter_is_applied_whole_or_it_is_an_error(
    saved: Path, tmp_path: Path, weights: Callable[[Weights], Weights], config: dict[str, Any], says: str
) -> None:
    lora(build("llama"), "q_proj").save_pretrained(tmp_path)
    file, settings = tmp_path / "adapter_model.safetensors", tmp_path / "adapter_config.json"
    save_file(weights(load_file(file)), file)
    known = json.loads(settings.read_text()) | config
    settings.write_text(json.dumps({key: value for key, value in known.items() if value is not None}))
    with pytest.raises(ModelError, match=f"(?s)^model 'saved-llama': .*{says}"):
        load(saved, adapter_folder=tmp_path)


@pytest.mark.parametrize(
    "kind",
    [
        {"target_modules": ["q_proj"], "use_dora": True},
        {"target_modules": ["q_proj"], "modules_to_save": ["norm"]},
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"target_modules": ["q_proj"], "trainable_token_indices": [1, 2]},
    ],
)
def test_an_adapter_of_any_form_is_applied(saved: Path, tmp_path: Path, kind: dict[str, Any]) -> None:
    import peft

    with quiet():
        peft.get_peft_model(build("llama"), peft.LoraConfig(r=2, **kind)).save_pretrained(tmp_path / "adapter")
    load(saved, adapter_folder=tmp_path / "adapter")


def test_options_reach_the_tokenizer_and_unknown_ones_are_errors(saved: Path) -> None:
    assert load_tokenizer(TokenizerFolder("m", saved)).padding_side == "right"
    assert load_tokenizer(TokenizerFolder("m", saved, {"padding_side": "left"})).padding_side == "left"
    with pytest.raises(ConfigError, match=r"^models\.m\.tokenizer\.fix_mistral_regx: \w+ has no such option"):
        load_tokenizer(TokenizerFolder("m", saved, {"fix_mistral_regx": True}))
    with contextlib.suppress(ConfigError):  # a transformers that has no slow tokenizers
        assert not load_tokenizer(TokenizerFolder("m", saved, {"use_fast": False})).is_fast


@pytest.mark.parametrize("option", ["src_lang", "tgt_lang"])
def test_a_language_that_the_tokenizer_does_not_know_is_an_error(tmp_path: Path, option: str) -> None:
    pieces = [(piece, 0.0) for piece in ("<s>", "<pad>", "</s>", "<unk>", "\u2581", "a")]
    try:
        tokenizer = transformers.MBartTokenizer(vocab=pieces)
    except TypeError:
        pytest.skip("a transformers that reads it from a file of sentencepiece")
    tokenizer.save_pretrained(tmp_path)
    load_tokenizer(TokenizerFolder("m", tmp_path, {option: "de_DE"}))
    with pytest.raises(
        ConfigError, match=rf"^models\.m\.tokenizer: with {option}: de, MBart\w+ puts <unk> at every text"
    ):
        load_tokenizer(TokenizerFolder("m", tmp_path, {option: "de"}))


def test_two_chat_templates_in_a_folder_are_an_error_for_chats(tmp_path: Path) -> None:
    tokenizer, turns = word_tokenizer(), [{"role": "user", "content": "w1"}]
    tokenizer.chat_template = "{{ messages[0].content }} w2"
    tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    known = json.loads(file.read_text())
    for stored, options in ((tokenizer.chat_template, {}), ("w3", {"chat_template": "w4"}), ("w3", {})):
        file.write_text(json.dumps(known | {"chat_template": stored}))
        chat = facts_of(TokenizerFolder("m", tmp_path, options)).chat
        assert chat is not None
        if stored == "w3" and not options:
            with pytest.raises(ValueError, match=r"chat_template\.jinja and tokenizer_config\.json .* two templates"):
                chat(turns)
        else:
            assert chat(turns) == options.get("chat_template", "w1 w2")


def test_what_another_engine_passes_over_is_refused_before_it_runs(saved: Path, tmp_path: Path) -> None:
    bias = {f"{PROJECTION}.bias": torch.ones(32)}
    for name, folder, refused in (
        ("plain", saved, ""),
        ("bias", changed(saved, tmp_path / "bias", bias), "does not use, 1 in all"),
        ("key", changed(saved, tmp_path / "key", rope_scaling=YARN | {"mscal": 1.0}), "'rope_scaling.mscal'"),
        ("foreign", changed(saved, tmp_path / "foreign", bias, model_type="no_such"), ""),
    ):
        checkpoint = open_checkpoint(folder, name=name)
        if refused:
            with pytest.raises(ModelError, match=refused):
                require_all_used(checkpoint, trust_remote_code=False)
        else:
            require_all_used(checkpoint, trust_remote_code=False)


def test_a_pair_is_taken_as_it_is() -> None:
    model, tokenizer = torch.nn.Identity(), word_tokenizer()
    pair = wrap_pair((model, tokenizer), name="pair")
    assert (pair.name, pair.model, pair.tokenizer, model.training) == ("pair", model, tokenizer, True)
    assert (pair.device, pair.vocabulary_size) == (torch.device("cpu"), None)


@pytest.mark.parametrize(
    ("pair", "came"),
    [(("model", word_tokenizer()), r"\(str, ...\)"), ((torch.nn.Identity(), "tokenizer"), r"\(..., str\)")],
)
def test_anything_else_is_no_pair(pair: tuple[Any, Any], came: str) -> None:
    with pytest.raises(ModelError, match=rf"^model 'pair': expected \(model, tokenizer\), got {came}$"):
        wrap_pair(pair, name="pair")


@pytest.mark.parametrize("tokenizer", [lambda text: {"input_ids": [1]}, lambda text, add_special_tokens: [1]])
def test_a_tokenizer_that_is_called_otherwise_is_an_error_that_says_how_it_should_be(tokenizer: Any) -> None:
    with pytest.raises(ModelError, match=r"^the tokenizer function failed: TypeError: "):
        tokenizer_facts(tokenizer).encode("text", False)
    with pytest.raises(ModelError, match=r"expected one that returns a token's text by tokenizer\.decode\(id\)$"):
        tokenizer_facts(tokenizer).decode(1)


def test_a_tokenizer_that_does_not_place_all_its_tokens_places_none() -> None:
    class Partly(Encoded):
        starts = 1

    whole = tokenizer_facts(Encoded()).placed("a b", False)
    assert (list(whole.ids), list(whole.begins), list(whole.ends)) == ([97, 98], [0, 2], [1, 3])
    assert tokenizer_facts(Partly()).placed("a b", False) is None


class Encoded:
    """A fast tokenizer of the user's own: each letter is a token."""

    is_fast, starts = True, 2

    def __call__(self, text: str, **_: Any) -> Any:
        letters = [at for at, letter in enumerate(text) if letter != " "]
        return {
            "input_ids": [ord(text[at]) for at in letters],
            "offset_mapping": [(at, at + 1) for at in letters[: self.starts]],
        }


def test_loading_says_nothing_and_leaves_the_library_as_talkative_as_it_was(
    saved: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_info()
    logging.enable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = load(saved)
            tokenizer_facts(found.tokenizer).encode("w1 " * 5000, True)
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity(verbosity)
        if not bars:
            logging.disable_progress_bar()

    assert capfd.readouterr() == ("", "")
