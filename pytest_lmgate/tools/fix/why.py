"""``lmgate why``: which layers cost what."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_lmgate.cli.console import AsJson, CacheOption, ConfigOption, DeviceOption, OfflineOption, show
from pytest_lmgate.cli.measure import (
    MaxLengthOption,
    OtherOption,
    ProtocolOption,
    StrideOption,
    chosen_protocol,
    measuring,
)
from pytest_lmgate.report.text import bar, counted

if TYPE_CHECKING:
    from pytest_lmgate.tools.fix.costs import Why


def why(
    candidate: Annotated[str, typer.Argument(help="Model that got worse: a name of lmgate.yaml or a path.")],
    dataset: Annotated[str, typer.Argument(help="Dataset, named as in a gate.")],
    against: Annotated[str, typer.Option(help="Model to compare with: the original.")],
    tokens: Annotated[int, typer.Option(min=2, help="Maximum number of tokens to read.")] = 20_000,
    seconds: Annotated[float, typer.Option(min=1, help="Time limit in seconds; shorter means less text.")] = 600,
    protocol: ProtocolOption = None,
    stride: StrideOption = None,
    max_length: MaxLengthOption = None,
    option: OtherOption = None,
    by: Annotated[str, typer.Option(help="What to put in: block, or group for the linear layers of each.")] = "block",
    config: ConfigOption = None,
    cache: CacheOption = None,
    device: DeviceOption = None,
    offline: OfflineOption = False,
    as_json: AsJson = False,
) -> None:
    """Show which layers cost what, by putting each in turn into the original model.

    Measures by the protocol of the gates of lmgate.yaml on these models and this dataset, if no other is given.
    Both models must be causal, of one shape, and run by transformers: a quantization or a fine-tune and its original.
    """
    if by not in ("block", "group"):
        raise typer.BadParameter(f"--by: expected block or group, got {by!r}")
    from pytest_lmgate.tools.fix.costs import bind_pair
    from pytest_lmgate.tools.fix.costs import why as measured

    given = {"protocol": protocol, "stride": stride, "max_length": max_length}
    with measuring(config=config, cache=cache, device=device, offline=offline) as session:
        names = [session.named(each) for each in (candidate, against, dataset)]
        found = measured(
            session.evaluator,
            bind_pair(session.evaluator, names, chosen_protocol(session.project, names, given, option)),
            tokens=tokens,
            seconds=seconds,
            by=by,  # type: ignore[arg-type]
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
        "missing": found.missing,
        "parts": [
            {
                "part": each.part,
                "kl": {"mean": each.cost.mean, "stderr": each.cost.stderr},
                "relief": each.relief and {"mean": each.relief.mean, "stderr": each.relief.stderr},
                "perplexity_ratio": each.ratio,
                "stands_out": each.stands_out,
            }
            for each in found.parts
        ],
    }


def _text(found: Why) -> str:
    whole, largest = found.whole, max((each.cost.mean for each in found.parts), default=0.0)
    width = max((len(each.part) for each in found.parts), default=0)
    lines = [
        f"{whole.model} against {whole.reference} on {whole.dataset}: {whole.n:,} tokens, {found.seconds:.0f} s",
        str(whole.signature),
        f"KL {_number(whole.kl.value, whole.kl.stderr)} nats per token, perplexity {_change(whole.ratio.value)}",
        "",
        f"{'part':{width}}  {'KL, put in':>19}  {'perplexity':>10}  {'KL, put back':>19}",
    ]
    for each in found.parts:
        cost = _number(each.cost.mean, each.cost.stderr)
        relief = "-" if each.relief is None else _number(-each.relief.mean, each.relief.stderr)
        line = (
            f"{each.part:{width}}  {cost:>19}  {_change(each.ratio):>10}  {relief:>19}  {bar(each.cost.mean, largest)}"
        )
        lines.append(line.rstrip())
    named = sorted((each for each in found.parts if each.stands_out), key=lambda each: -each.cost.mean)
    sentences = []
    if found.missing:
        missing = f"{counted(found.missing, 'measurement')} missing"
        sentences.append(f"Time is up, with {missing}: --seconds {math.ceil(found.needed)} would do.")
    sentences += [
        f"{each.part} stands out: put into {whole.reference}, it alone costs {each.cost.mean:.3g} nats per token."
        for each in named
    ]
    if not named:
        sentences.append(f"No part stands out from the others{' that were measured' * bool(found.missing)}.")
    return "\n".join([*lines, "", *sentences])


def _number(value: float, stderr: float | None) -> str:
    return f"{value:.3g}" + ("" if stderr is None else f" ± {stderr:.2g}")


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.2f}%"
