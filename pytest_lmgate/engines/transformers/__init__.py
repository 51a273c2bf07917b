"""The engine transformers: describes checkpoints and models in memory."""

from __future__ import annotations

import json
import platform
from functools import partial
from typing import Any

from pytest_lmgate.engines.base import SAMPLING, Backend, Model, ModelEntry, Offer, Runner, Setting
from pytest_lmgate.engines.checkpoints import (
    Architecture,
    TokenizerFolder,
    checkpoint_folder,
    contents_of,
    open_checkpoint,
    require_safe_adapter,
)
from pytest_lmgate.engines.devices import device_class, require_device, resolve_device, share_processors
from pytest_lmgate.engines.tokenizers import facts_of
from pytest_lmgate.identity import LIBRARIES, QUANTIZERS, replaced_in_model, summarize, versions

# The address of every model from files holds these versions.
_LIBRARIES = ("torch", "transformers", "tokenizers")
_HONOURS: frozenset[Setting] = SAMPLING | {"num_beams"}


class Transformers(Backend):
    """Folders made by ``save_pretrained`` and models of the hub, with or without an adapter."""

    name = "transformers"
    kinds = frozenset({"causal", "masked", "encoder-decoder"})
    offers = frozenset({"score", "generate", "compare", "greedy", "sample"})

    def describe(self, entry: ModelEntry) -> Model:
        spec, name = entry.spec, entry.name
        folder = checkpoint_folder(entry, self.name)
        checkpoint = open_checkpoint(folder, name=name)
        checkpoint.require_safe_weights(pickle_weights=spec.pickle_weights)
        tokenizer = TokenizerFolder.of(entry, folder)
        adapter = entry.path(spec.adapter) if spec.adapter else None
        if adapter is not None:
            require_safe_adapter(adapter, name=name, pickle_weights=spec.pickle_weights)
        load = dict(spec.load)
        contents = contents_of(entry, model=folder, tokenizer=tokenizer, adapter=adapter)
        device = resolve_device(entry.device, None if "device_map" in load else entry.worker)
        libraries = list(_LIBRARIES) + (["peft"] if adapter else [])
        if checkpoint.is_quantized or spec.load:
            libraries += QUANTIZERS

        def open_() -> Runner:
            require_device(device, model=name)
            share_processors(entry.workers)
            from pytest_lmgate.engines.transformers.loading import load_checkpoint
            from pytest_lmgate.engines.transformers.runner import TransformersRunner

            loaded = load_checkpoint(
                checkpoint,
                tokenizer_folder=tokenizer,
                adapter_folder=adapter,
                load=load,
                dtype=entry.dtype,
                device=device,
                trust_remote_code=spec.trust_remote_code,
                pickle_weights=spec.pickle_weights,
            )
            runner = TransformersRunner(loaded, checkpoint.context)
            runner.replaced = replaced_in_model(loaded.model)
            return runner

        return contents.model(
            checkpoint,
            open_,
            kind=checkpoint.kind,
            context=checkpoint.context,
            runtime={"device": device_class(device), **versions(libraries)},
            offers=_offers(checkpoint),
            honours=_HONOURS,
            device=device,
            tokenizer=partial(facts_of, tokenizer),
            dtype=_dtype(checkpoint, entry),
        )


def describe_in_memory(pair: tuple[Any, Any], *, batch_size: int | str, workers: int) -> Model:
    """Describe a ``(model, tokenizer)`` pair of the user's, or a pipeline's; it stays on its device."""
    from pytest_lmgate.engines.tokenizers import tokenizer_facts
    from pytest_lmgate.engines.transformers.decoding import decoding_ids
    from pytest_lmgate.engines.transformers.loading import describe_pair, wrap_pair
    from pytest_lmgate.engines.transformers.runner import TransformersRunner

    kind = type(pair[0]).__name__
    loaded = wrap_pair(pair, name=f"in-memory {kind}")
    config: Any = getattr(pair[0], "config", None)
    facts = config.to_dict() if hasattr(config, "to_dict") else {}
    facts["architectures"] = facts.get("architectures") or [kind]
    architecture = Architecture(loaded.name, facts)
    content, unknown = describe_pair(loaded)
    libraries = {name: version for name, version in versions(sorted(LIBRARIES)).items() if version != "absent"}
    here = {"python": platform.python_version(), "device": loaded.device.type}

    def open_() -> Runner:
        share_processors(workers)
        return TransformersRunner(loaded, architecture.context)

    def writing() -> dict[str, str]:
        return {"decoding_ids": json.dumps(decoding_ids(loaded), sort_keys=True, default=str)}

    return Model(
        loaded.name,
        open_,
        kind=architecture.kind,
        context=architecture.context,
        content=content,
        runtime={**versions(_LIBRARIES), **libraries, **here},
        offers=_offers(architecture),
        honours=_HONOURS,
        device=str(loaded.device),
        batch_size=batch_size,
        architecture=architecture.architecture,
        in_memory=True,
        not_kept=summarize(unknown),
        writing=writing,
        tokenizer=lambda: tokenizer_facts(loaded.tokenizer),
    )


def _offers(architecture: Architecture) -> frozenset[Offer]:
    if architecture.kind == "masked":
        return frozenset({"score"})
    return Transformers.offers


def _dtype(checkpoint: Architecture, entry: ModelEntry) -> str:
    config = checkpoint.config
    if "quantization_config" in config or "quantization_config" in entry.spec.load:
        return "bfloat16"  # or coarser than the weights' own, as int8 with scales is
    return str(config.get("dtype") or config.get("torch_dtype")) if entry.dtype == "auto" else entry.dtype
