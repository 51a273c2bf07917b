"""``lmgate fix``: the layers of a quantized model to keep as they were so that its gate passes, and their recipe."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from pytest_lmgate.cli.console import AsJson, CacheOption, ConfigOption, DeviceOption, OfflineOption, show
from pytest_lmgate.cli.measure import MaxLengthOption, OtherOption, ProtocolOption, StrideOption, measuring
from pytest_lmgate.errors import ConfigError, LmgateError, escape_controls
from pytest_lmgate.report.formats import write_file
from pytest_lmgate.settings.entries import Project
from pytest_lmgate.settings.gate_options import WindowProtocol
from pytest_lmgate.tools.fix.why import chosen_protocol
from pytest_lmgate.tools.parts.gates import find_gate, gates_in, require_writable

if TYPE_CHECKING:
    from pytest_lmgate.tools.fix.search import Fix, Limit, Trial

_GGUF_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def fix(
    candidate: Annotated[str, typer.Argument(help="Model whose gate fails: a name of lmgate.yaml or a path.")],
    dataset: Annotated[str, typer.Argument(help="Dataset, named as in the gate.")],
    against: Annotated[str, typer.Option(help="The original of the model.")],
    gate: Annotated[str | None, typer.Option(help="Gate of lmgate.yaml, by its id (default: the only one).")] = None,
    kl: Annotated[float | None, typer.Option(help="Without a gate: the highest mean KL, nats per token.")] = None,
    protocol: ProtocolOption = None,
    stride: StrideOption = None,
    max_length: MaxLengthOption = None,
    option: OtherOption = None,
    budget: Annotated[str | None, typer.Option(help="Most extra bytes, as in +5%.")] = None,
    bits: Annotated[
        float | None, typer.Option(help="Bits per weight of the candidate, if it stores quantized weights as floats.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Keep groups as in this model instead of the original.")
    ] = None,
    keep_bits: Annotated[float | None, typer.Option(help="Bits per weight of that model, with --bits.")] = None,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens that the search reads at most.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the split into rows to search and rows to prove.")] = 0,
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the recipe as YAML.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a self-contained HTML page.")] = None,
    write_gguf: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of two GGUF files: write the mixed one.")
    ] = None,
    config: ConfigOption = None,
    cache: CacheOption = None,
    device: DeviceOption = None,
    offline: OfflineOption = False,
    as_json: AsJson = False,
) -> None:
    """Find the layers to keep in higher precision so that a gate passes, and prove it on other rows.

    One half of the rows is searched. The other half judges the composed model by the gate's rule and protocol; with
    --kl, by that of the gates of lmgate.yaml on these models, if no other is given. Exit code 1 if it does not pass, or
    if no set within the budget does.
    """
    most = _share(budget)
    if bits is not None and not 0 < bits < 32:
        raise typer.BadParameter(f"--bits: expected a number above 0 and below 32, got {bits:g}")
    if keep_bits is not None and (keep is None or bits is None or not bits < keep_bits < 32):
        raise typer.BadParameter(
            f"--keep-bits: expected --keep and --bits, and a number above --bits and below 32; got {keep_bits:g}"
        )
    if keep is not None and bits is not None and keep_bits is None:
        raise typer.BadParameter("--bits: expected --keep-bits too, the bits of a number of the model of --keep")
    outputs = {"--write": write, "--html": html, "--write-gguf": write_gguf}
    from pytest_lmgate.tools.fix.costs import bind_pair
    from pytest_lmgate.tools.fix.page import FixReport
    from pytest_lmgate.tools.fix.search import fix as found_by

    with measuring(config=config, cache=cache, device=device, offline=offline) as session:
        names = [session.named(name) for name in (candidate, against, dataset)]
        given = {"protocol": protocol, "stride": stride, "max_length": max_length}
        if kl is None and (any(given.values()) or option):
            raise typer.BadParameter(
                "--protocol, --stride, --max-length and --option: only with --kl; a gate has its own"
            )
        chosen = WindowProtocol() if kl is None else chosen_protocol(session.project, names, given, option)
        bound = bind_pair(session.evaluator, names, chosen)  # first, or a misspelt name would be one without a gate
        limit, label = _limit(session.project, names, gate, kl, chosen)
        kept = None if keep is None else session.evaluator.resolver.names.model(session.named(keep))
        inputs = [
            session.project.path(ref.spec.path or ref.name)
            for ref in (bound.model, bound.reference, bound.data, kept)
            if ref is not None and ref.spec is not None
        ]
        require_writable({option: path for option, path in outputs.items() if path is not None}, inputs)
        bound = bind_pair(session.evaluator, names, limit.protocol)
        result = found_by(
            session.evaluator, bound, limit=limit, budget=most, tokens=tokens, keep=kept, bits=bits,
            keep_bits=keep_bits, seed=seed, write_gguf=write_gguf,
        )  # fmt: skip
        dtype = session.evaluator.resolver.model(bound.reference).dtype
    keep = None if kept is None else kept.name
    made = recipe(result, _GGUF_TYPES.get(dtype, "f16"), keep) if result.proof is not None else None
    title = escape_controls(f"{names[0]} against {names[1]} on {names[2]}: {label}", line=True)
    kept_as = escape_controls(keep or names[1], line=True)
    report = FixReport(result, title, kept_as=kept_as, recipe="" if made is None else _yaml(made, keep))
    lines = report.lines()
    if made is not None:
        lines += ["", *(report.recipe.splitlines() if write is None else [])]
        if write is not None:
            write_file(write, report.recipe.encode())
    if html is not None:
        write_file(html, report.html().encode("utf-8", "backslashreplace"))
    lines += [
        f"written to {path}" if made is not None or option == "--html" else f"{path} was not written"
        for option, path in outputs.items()
        if path is not None
    ]
    show(_data(result, names, label, keep, made), "\n".join(lines), as_json=as_json)
    if result.chosen is not None and (result.proof is None or result.proof.outcome != "pass"):
        raise typer.Exit(1)


def _share(budget: str | None) -> float | None:
    if budget is None:
        return None
    match = re.fullmatch(r"\+?(\d+(?:\.\d+)?)%", budget.strip())
    if match is None or float(match[1]) == 0:
        raise typer.BadParameter(f"--budget: expected a percentage above 0 such as +5%, got {budget!r}")
    return float(match[1]) / 100


def _limit(
    project: Project, names: list[str], gate: str | None, kl: float | None, protocol: WindowProtocol
) -> tuple[Limit, str]:
    """Return the limit to reach, and its name: the gate given by --gate, the only one that fits, or a KL."""
    from pytest_lmgate.tools.fix.search import CONFIDENCE, Limit

    candidate, reference, dataset = names
    if kl is not None:
        if gate is not None or not 0 < kl < math.inf:
            raise typer.BadParameter(f"--kl: expected a finite number above 0, and no --gate; got {kl:g}")
        return Limit("kl", kl, CONFIDENCE, protocol), f"KL of at most {kl:g}"
    if gate is not None:
        if project.file is None:
            raise ConfigError(f"{project.origin}; --gate needs a gate of an lmgate.yaml: or give --kl")
        entry, label = find_gate(project.file, gate)
        return Limit.of(entry.gate, candidate, dataset, reference), label
    limits = []
    for yaml_gate in gates_in(project.file):
        try:
            limits.append((Limit.of(yaml_gate.gate, candidate, dataset, reference), yaml_gate.gate.label))
        except LmgateError:
            continue
    if len(limits) != 1:
        listed = ", ".join(label for _, label in limits) or "none"
        raise ConfigError(
            f"expected one gate of lmgate.yaml (kl_max, ppl_max or no_regression of ppl) on {candidate!r}, {dataset!r} "
            f"and {reference!r}, got {listed}: name it by --gate, or give the highest KL by --kl"
        )
    return limits[0]


def recipe(fix: Fix, gguf_type: str, keep: str | None) -> dict[str, Any]:
    """Return options for each quantizer by which it skips the chosen layers, and those that it had skipped before.

    Layers that are kept as in the model `keep` get that model's config, from the tools that take several.
    """
    from pytest_lmgate.tools.parts.tensors import KINDS

    assert fix.chosen is not None
    if fix.tensor_types:
        return {"llama.cpp": {"llama-quantize": " ".join(fix.tensor_types)}}
    linear, second = list(fix.linear), list(fix.second)
    if keep is not None:
        entries = [{"quantizer_name": f"{name}.weight_quantizer", "cfg": keep} for name in second]
        return {
            "llm-compressor": {"config_groups": {keep: {"targets": second}}, "ignore": linear},
            "torchao": {"fqn_to_config": dict.fromkeys(second, keep) | dict.fromkeys(linear)},
            "modelopt": {"quant_cfg": [*entries, *_disabled(linear)]},
        }
    parts = [fix.groups[index].part for index in fix.chosen.kept]
    kinds = {**KINDS, "block": ""}
    patterns = [rf"blk\.{part.block}\.{kinds[part.kind]}={gguf_type}" for part in parts if part.kind in kinds]
    tensors = [f"--tensor-type {shlex.quote(pattern)}" for pattern in patterns]
    if any(part.kind == "head" or part.name == "embeddings and head" for part in parts):
        tensors.append(f"--output-tensor-type {gguf_type}")
    if any(part.kind == "embeddings" for part in parts):
        tensors.append(f"--token-embedding-type {gguf_type}")
    return {
        "bitsandbytes": {"llm_int8_skip_modules": linear},
        "llm-compressor": {"ignore": linear},
        "torchao": {"fqn_to_config": dict.fromkeys(linear)},
        "modelopt": {"quant_cfg": _disabled(linear)},
        "llama.cpp": {"llama-quantize": " ".join(tensors)},
    }


def _disabled(names: Sequence[str]) -> list[dict[str, Any]]:
    return [{"quantizer_name": f"{name}.*", "enable": False} for name in names]


_HINTS = {
    "bitsandbytes": "BitsAndBytesConfig of transformers",
    "llm-compressor": "QuantizationModifier, GPTQModifier",
    "torchao": "FqnToConfig; add _default: with your config",
    "modelopt": "put these entries last in the list of your config",
    "llama.cpp": "options of llama-quantize",
}


def _yaml(made: dict[str, Any], keep: str | None) -> str:
    text = "".join(
        f"# {_HINTS[tool]}\n{yaml.safe_dump({tool: section}, sort_keys=False, width=10**6)}"
        for tool, section in made.items()
    )
    if keep is None or "llama.cpp" in made:
        return text
    return (
        f"# Put the config of {keep} where its name is, into config_groups with the key weights:.\n"
        "# bitsandbytes has one config for all layers; llama-quantize needs its own files: give --keep a GGUF.\n"
        f"{text}"
    )


def _data(fix: Fix, names: Sequence[str], label: str, keep: str | None, made: dict[str, Any] | None) -> dict[str, Any]:
    def judged(trial: Trial | None) -> dict[str, Any] | None:
        if trial is None:
            return None
        value = {"mean": trial.value.mean, "stderr": trial.value.stderr, "upper": trial.upper, "limit": trial.limit}
        return {"verdict": trial.outcome, "nats": value, "tokens": trial.value.n, "needed": trial.needed}

    def tried(attempt: Any) -> dict[str, Any]:
        kept = [fix.groups[index].part.name for index in attempt.kept]
        return {"kept": kept, "extra_bytes": attempt.extra, "kl": attempt.kl, "search": judged(attempt.judged)}

    return {
        "candidate": names[0],
        "reference": names[1],
        "dataset": names[2],
        "gate": label,
        "metric": fix.limit.metric,
        "signature": fix.signature,
        "rows": {"search": fix.rows[0], "proof": fix.rows[1], "unit": fix.unit},
        "bytes": fix.size,
        "budget": fix.budget,
        "groups": [{"group": group.part.name, "kl": group.cost, "extra_bytes": group.extra} for group in fix.groups],
        "sets": [tried(attempt) for attempt in fix.tried],
        "passes_already": fix.chosen is None,
        "chosen": None if fix.chosen is None else tried(fix.chosen),
        "within_budget": fix.is_within_budget,
        "floor": judged(fix.floor),
        "proof": judged(fix.proof),
        "recipe": made,
        "keep": keep,
    }
