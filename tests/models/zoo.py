"""Tiny randomly initialised models of many architectures, the same at every run, and tokenizers for them.

Every model reads the token ids ``0..VOCABULARY-1``. Its weights are louder than the usual initialisation, so that its
numbers depend on the context, and its head is scaled so that the spread of its logits is chosen.
"""

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from pytest_lmgate.engines.tokenizers import quiet
from pytest_lmgate.engines.transformers.loading import LoadedModel
from pytest_lmgate.settings.gate_options import Windowing
from pytest_lmgate.windows.protocols import WindowPlan, plan_windows
from pytest_lmgate.windows.tokens import Streams
from tests.models.tiny import word_level

VOCABULARY = 97
CONTEXT = 64

_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
}
_GROUPED = _SIZES | {"num_key_value_heads": 2}
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "codegen": _GPT | {"rotary_dim": 4},
    "cohere": _GROUPED | {"logit_scale": 0.25},
    "cohere2": _GROUPED | {"head_dim": 8, "sliding_window": 16, "logit_scale": 0.5},
    "deepseek_v3": _SIZES | _LATENT | {
        "num_key_value_heads": 4, "moe_intermediate_size": 16, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
        "num_experts_per_tok": 2, "first_k_dense_replace": 1,
    },
    "falcon": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": True},
    "falcon_h1": _GROUPED | {
        "head_dim": 8, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1,
        "mamba_d_state": 8, "mamba_chunk_size": 16, "lm_head_multiplier": 0.7,
    },
    "gemma2": _GROUPED | {
        "head_dim": 8, "sliding_window": 16, "final_logit_softcapping": 3.0, "attn_logit_softcapping": 5.0,
    },
    "gemma3": {
        "text_config": _GROUPED | {"head_dim": 8, "sliding_window": 16, "vocab_size": VOCABULARY},
        "vision_config": {
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 8, "patch_size": 4,
        },
        "image_token_index": VOCABULARY - 1, "boi_token_index": VOCABULARY - 2, "eoi_token_index": VOCABULARY - 3,
        "mm_tokens_per_image": 1,
    },
    "gemma3_text": _GROUPED | {"head_dim": 8, "sliding_window": 16},
    "gpt2": _GPT,
    "gpt_neo": {
        "hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
        "window_size": 8, "max_position_embeddings": CONTEXT,
    },
    "gpt_neox": _SIZES,
    "gptj": _GPT | {"rotary_dim": 4},
    "granite": _GROUPED | {"logits_scaling": 8.0, "embedding_multiplier": 12.0},
    "jamba": _GROUPED | {
        "num_hidden_layers": 4, "num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
        "expert_layer_period": 2, "expert_layer_offset": 1, "mamba_dt_rank": 4,
    },
    "llama": _GROUPED,
    "mamba": {"hidden_size": 32, "state_size": 8, "num_hidden_layers": 2},
    "mamba2": {
        "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8, "n_groups": 1,
        "chunk_size": 16,
    },
    "minicpm3": _SIZES | _LATENT | {"num_key_value_heads": 4, "dim_model_base": 8, "scale_emb": 12, "scale_depth": 1.4},
    "mixtral": _GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": CONTEXT, "logit_scale": 0.5},
    "nemotron": _GROUPED | {"head_dim": 8},
    "olmo2": _SIZES,
    "opt": {
        "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "word_embed_proj_dim": 16,
        "do_layer_norm_before": False, "max_position_embeddings": CONTEXT,
    },
    "phi": _SIZES,
    "qwen3": _GROUPED | {"head_dim": 8},
    "recurrent_gemma": _SIZES | {
        "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 16, "logits_soft_cap": 4.0,
    },
    "rwkv": {"hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2, "context_length": CONTEXT},
    "stablelm": _GROUPED,
}  # fmt: skip


def build(name: str, *, dtype: torch.dtype = torch.float32, spread: float = 4.0, **config: Any) -> Any:
    """Return a causal model of an architecture.

    Args:
        name: Its ``model_type``.
        dtype: Of its weights.
        spread: Standard deviation of what its head puts out, before any soft-cap or scale.
        config: Over the architecture's own.
    """
    known = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    # Scaling a tied head would scale the embeddings, which then drown the context.
    known["tie_word_embeddings"] = False
    torch.manual_seed(20)
    with quiet(), torch.no_grad():
        settings = transformers.AutoConfig.for_model(name, **(known | ARCHITECTURES.get(name, {}) | config))
        model = transformers.AutoModelForCausalLM.from_config(settings).eval()
        head = model.get_output_embeddings()
        for parameter in model.parameters():
            if parameter.ndim == 2 and parameter is not head.weight:
                parameter.mul_(10)
        if head.bias is not None:
            head.bias.zero_()
        head.weight.mul_(spread / _output_of(head, model).std())
        if head.bias is not None:
            head.bias.normal_(0, spread / 2)
    if dtype == torch.float64 and hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the fused kernels of a mixture of experts know no float64
    return model.to(dtype)


def dynamic_int8(model: Any) -> Any:
    """Return a model whose linear layers have int8 weights, and one scale for the activations of a whole batch."""
    with quiet():  # torch says that its own quantizer is old
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


def lora(model: Any, *targets: str) -> Any:
    """Return a model with a random adapter on these layers."""
    import peft

    torch.manual_seed(8)
    settings: dict[str, Any] = {"task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 16, "init_lora_weights": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.get_peft_model(model, peft.LoraConfig(**settings, target_modules=list(targets))).eval()


class Int8Weight(Tensor):
    """A weight in 8 bits with a scale for each row that poses as floats, as torchao's do; none can be compared."""

    codes: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, codes: Tensor, scale: Tensor) -> Any:
        return Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype, requires_grad=False)

    def __init__(self, codes: Tensor, scale: Tensor) -> None:
        self.codes, self.scale = codes, scale

    @classmethod
    def of(cls, weight: Tensor) -> Any:
        """Return a weight rounded to such codes."""
        scale = weight.detach().abs().amax(1, keepdim=True) / 127
        return cls((weight.detach() / scale).round().to(torch.int8), scale)

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scale)
        if func is torch.ops.aten.equal.default:
            raise NotImplementedError("unimplemented operator aten.equal")
        plain = [each.codes * each.scale if isinstance(each, cls) else each for each in args]
        return func(*plain, **(kwargs or {}))


def _output_of(head: nn.Module, model: Any) -> Tensor:
    seen: list[Tensor] = []
    handle = head.register_forward_hook(lambda _, __, output: seen.append(output))
    try:
        model(input_ids=torch.arange(VOCABULARY - 4)[None, :32])
    finally:
        handle.remove()
    return seen[0]


def loaded(model: Any, tokenizer: Any = None) -> LoadedModel:
    """Return a model as the engine takes it."""
    return LoadedModel(type(model).__name__, model, tokenizer, torch.device("cpu"))


def documents(*lengths: int, seed: int = 0) -> Streams:
    """Return random token streams; no special token among them."""
    generator = np.random.default_rng(seed)
    ids = tuple(generator.integers(3, VOCABULARY - 4, size=length) for length in lengths)
    return Streams(ids, None)


def sliding(streams: Streams, max_length: int, stride: int) -> WindowPlan:
    """Return the windows of each document."""
    return plan_windows(Windowing("document", max_length, stride), streams.lengths)


def naive_nll(model: Any, streams: Streams, plan: WindowPlan) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Score one window at a time, without padding, by ``log_softmax(model(...).logits.double())``."""
    nll: list[float] = []
    with torch.no_grad(), quiet():
        for window in range(len(plan)):
            document = torch.from_numpy(streams.ids[plan.document[window]])
            begin, end, first = (int(edge[window]) for edge in (plan.begin, plan.end, plan.first))
            read = document[begin : end - 1]
            if plan.prefix[window]:
                read = torch.cat([torch.tensor([streams.prefix]), read])
            logits = model(input_ids=read[None], use_cache=False).logits[0, -(end - first) :]
            log_p = torch.log_softmax(logits.double(), -1)
            nll += (-log_p.gather(-1, document[first:end, None])[:, 0]).tolist()
    return np.array(nll)


@functools.cache
def words(count: int = VOCABULARY - 4) -> tuple[str, ...]:
    """Return `count` words, one token each to `word_tokenizer`."""
    return tuple(f"w{number}" for number in range(count))


def word_tokenizer(known: Sequence[str] | None = None, *, adds_bos: bool = False) -> Any:
    """Return a fast tokenizer that splits at spaces; ids 0 to 3 are <pad>, <s>, </s> and <unk>."""
    specials = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    vocabulary = [*specials.values(), *(words() if known is None else known)]
    return word_level(vocabulary, template="<s> $A" if adds_bos else None, framed_by={"<s>": 1}, **specials)
