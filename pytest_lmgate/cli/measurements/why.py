"""``lmgate why``: which layers of a quantized or fine-tuned model cost what."""

from __future__ import annotations

__all__ = ["why"]

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_lmgate.cli.output import AsJson, show
from pytest_lmgate.cli.places import CacheOption, ConfigOption, DeviceOption, OfflineOption

if TYPE_CHECKING:
    from pytest_lmgate.evaluate.why import Why

_BAR = 30


def why(
    candidate: Annotated[str, typer.Argument(help="The model that got worse: a name of lmgate.yaml or a path.")],
    dataset: Annotated[str, typer.Argument(help="A text, named as in a gate.")],
    against: Annotated[str, typer.Option(help="The model to compare with: its original.")],
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of the text to read at most.")] = 20_000,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds to take; with fewer, less text is read.")] = 600,
    max_length: Annotated[int | None, typer.Option(min=2, help="Tokens of a window (default: context).")] = None,
    config: ConfigOption = None,
    cache: CacheOption = None,
    device: DeviceOption = None,
    offline: OfflineOption = False,
    as_json: AsJson = False,
) -> None:
    """Say which layers of a model cost what, by putting each in turn into the model that it was made of.

    Both models are causal, of one shape, and run by transformers: a quantization or a fine-tune and its original.
    """
    from pytest_lmgate.cli.measurements.measuring import measuring
    from pytest_lmgate.evaluate.why import why as measured
    from pytest_lmgate.spec.protocol import Protocol

    with measuring(config=config, cache=cache, device=device, offline=offline) as session:
        found = measured(
            session.evaluator,
            *map(session.named, (candidate, against, dataset)),
            protocol=Protocol("disjoint", max_length=max_length),
            tokens=tokens,
            seconds=seconds,
        )
    show(_data(found), _text(found), as_json=as_json)


def _data(found: Why) -> dict[str, Any]:
    whole = found.whole
    return {
        "candidate": whole.model,
        "reference": whole.reference,
        "dataset": whole.dataset,
        "tokens": whole.n,
        "seconds": found.seconds,
        "signature": str(whole.signature),
        "kl": {"mean": whole.kl.value, "stderr": whole.kl.stderr},
        "perplexity_ratio": whole.ratio.value,
        "parts": [
            {
                "part": each.part,
                "kl": {"mean": each.cost.mean, "stderr": each.cost.stderr},
                "relief": {"mean": each.relief.mean, "stderr": each.relief.stderr},
                "perplexity_ratio": each.ratio,
                "stands_out": each.stands_out,
            }
            for each in found.parts
        ],
    }


def _text(found: Why) -> str:
    whole, largest = found.whole, max(each.cost.mean for each in found.parts)
    width = max(len(each.part) for each in found.parts)
    lines = [
        f"{whole.model} against {whole.reference} on {whole.dataset}: {whole.n:,} tokens, {found.seconds:.0f} s",
        f"KL {_number(whole.kl.value, whole.kl.stderr)} nats per token, perplexity {_change(whole.ratio.value)}",
        "",
        f"{'part':{width}}  {'KL, put in':>19}  {'perplexity':>10}  {'KL, put back':>19}",
    ]
    for each in found.parts:
        cost, relief = _number(each.cost.mean, each.cost.stderr), _number(-each.relief.mean, each.relief.stderr)
        bar = "█" * round(_BAR * each.cost.mean / largest) if largest > 0 else ""
        line = f"{each.part:{width}}  {cost:>19}  {_change(each.ratio):>10}  {relief:>19}  {bar}"
        lines.append(line.rstrip())
    named = sorted((each for each in found.parts if each.stands_out), key=lambda each: -each.cost.mean)
    said = [
        f"{each.part} stands out: put into {whole.reference}, it alone costs {each.cost.mean:.3g} nats per token."
        for each in named
    ]
    return "\n".join([*lines, "", *(said or ["No part stands out from the others."])])


def _number(value: float, stderr: float | None) -> str:
    return f"{value:.3g}" + ("" if stderr is None else f" ± {stderr:.2g}")


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.2f}%"
