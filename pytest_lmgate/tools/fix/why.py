"""``lmgate why``: the cost of each layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import structs

from pytest_lmgate.cli.console import AsJson, CacheOption, ConfigOption, DeviceOption, OfflineOption, show
from pytest_lmgate.cli.measure import MaxLengthOption, OtherOption, ProtocolOption, StrideOption, asked, measuring
from pytest_lmgate.errors import ConfigError
from pytest_lmgate.report.text import bar, counted
from pytest_lmgate.settings.decoding import convert
from pytest_lmgate.settings.entries import Project
from pytest_lmgate.settings.gate_options import DivergenceRequest, WindowProtocol
from pytest_lmgate.tools.parts.gates import gates_in

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
        names = [session.named(name) for name in (candidate, against, dataset)]
        result = measured(
            session.evaluator,
            bind_pair(session.evaluator, names, chosen_protocol(session.project, names, given, option)),
            tokens=tokens,
            seconds=seconds,
            by=by,  # type: ignore[arg-type]
        )
    show(_data(result), _text(result), as_json=as_json)


def chosen_protocol(
    project: Project, names: Sequence[str], given: Mapping[str, str | None], others: Sequence[str] | None
) -> WindowProtocol:
    """Return the protocol that is given, else that of the gates of lmgate.yaml on a candidate, its reference and data.

    Gates that name the reference go before those with a limit or a baseline.
    """
    options = asked(given, others)
    if options:
        if several := next((key for key, values in options.items() if len(values) > 1), None):
            raise typer.BadParameter(f"{several}: expected one value, got {len(options[several])}")
        return convert({key: value for key, (value,) in options.items()}, WindowProtocol)
    candidate, reference, dataset = names
    with_reference: dict[WindowProtocol, str] = {}
    without: dict[WindowProtocol, str] = {}
    for entry in gates_in(project.file):
        gate, evaluation = entry.gate, entry.gate.evaluation
        named = evaluation.reference or getattr(gate, "against", None)
        if (evaluation.model, evaluation.dataset) == (candidate, dataset) and named in (None, reference):
            request = evaluation.how
            protocol = request.protocol if isinstance(request, DivergenceRequest) else request
            if isinstance(protocol, WindowProtocol):
                windows = structs.replace(protocol, unit="token", average=None)
                (without if named is None else with_reference).setdefault(windows, gate.label)
    protocols = with_reference or without or {WindowProtocol(): ""}
    if len(protocols) > 1:
        raise ConfigError(
            f"{project.file}: its gates on {candidate!r} and {dataset!r} measure by several protocols "
            f"({', '.join(protocols.values())}): choose one by --protocol, --stride and --max-length"
        )
    return next(iter(protocols))


def _data(result: Why) -> dict[str, Any]:
    whole = result.whole
    return {
        "candidate": whole.model,
        "reference": whole.reference,
        "dataset": whole.dataset,
        "tokens": whole.n,
        "seconds": result.seconds,
        "signature": str(whole.signature),
        "kl": {"mean": whole.kl.value, "stderr": whole.kl.stderr},
        "perplexity_ratio": whole.ratio.value,
        "missing": result.missing,
        "parts": [
            {
                "part": part.part,
                "kl": {"mean": part.cost.mean, "stderr": part.cost.stderr},
                "relief": part.relief and {"mean": part.relief.mean, "stderr": part.relief.stderr},
                "perplexity_ratio": part.ratio,
                "stands_out": part.stands_out,
            }
            for part in result.parts
        ],
    }


def _text(result: Why) -> str:
    whole, largest = result.whole, max((part.cost.mean for part in result.parts), default=0.0)
    width = max((len(part.part) for part in result.parts), default=0)
    lines = [
        f"{whole.model} against {whole.reference} on {whole.dataset}: {whole.n:,} tokens, {result.seconds:.0f} s",
        str(whole.signature),
        f"KL {_number(whole.kl.value, whole.kl.stderr)} nats per token, perplexity {_change(whole.ratio.value)}",
        "",
        f"{'part':{width}}  {'KL, put in':>19}  {'perplexity':>10}  {'KL, put back':>19}",
    ]
    for part in result.parts:
        cost = _number(part.cost.mean, part.cost.stderr)
        relief = "-" if part.relief is None else _number(-part.relief.mean, part.relief.stderr)
        line = (
            f"{part.part:{width}}  {cost:>19}  {_change(part.ratio):>10}  {relief:>19}  {bar(part.cost.mean, largest)}"
        )
        lines.append(line.rstrip())
    named = sorted((part for part in result.parts if part.stands_out), key=lambda part: -part.cost.mean)
    sentences = []
    if result.missing:
        missing = f"{counted(result.missing, 'measurement')} missing"
        sentences.append(f"Time is up, with {missing}: --seconds {math.ceil(result.needed)} would do.")
    sentences += [
        f"{part.part} stands out: replacing only this part of {whole.reference} costs {part.cost.mean:.3g} nats "
        "per token."
        for part in named
    ]
    if not named:
        sentences.append(f"No part stands out from the others{' that were measured' * bool(result.missing)}.")
    return "\n".join([*lines, "", *sentences])


def _number(value: float, stderr: float | None) -> str:
    return f"{value:.3g}" + ("" if stderr is None else f" ± {stderr:.2g}")


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.2f}%"
