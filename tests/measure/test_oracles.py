"""Real pretrained models on real texts, against tables that an independent program made in float64."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_lmgate.data.corpus import Corpus, read_corpus
from pytest_lmgate.engines.tokenizers import tokenizer_facts
from pytest_lmgate.engines.transformers.loading import LoadedModel
from pytest_lmgate.measure.measurement import arrays_of_sizes
from pytest_lmgate.metrics.likelihoods import LikelihoodStatistics, perplexity
from pytest_lmgate.metrics.score import Score
from pytest_lmgate.settings.entries import DatasetSpec
from pytest_lmgate.settings.gate_options import Windowing, WindowProtocol
from pytest_lmgate.windows.protocols import plan_windows, tokenize
from tests.engines.transformers.measuring import load, measure_nll

pytestmark = pytest.mark.shared

CONTEXTS = {"stories260K-hf": 512, "llama2xs-279K-hf": 256}
QUICK = "llama2xs-279K-hf"
ENTRIES = ("sliding 1", "sliding 2", "bos-chunks", "gptq", "llama.cpp", "lm-eval")


@pytest.fixture(scope="module", params=CONTEXTS)
def model(request: pytest.FixtureRequest, shared_data: Path) -> LoadedModel:
    return load(shared_data / "models" / request.param, dtype="float32")


@pytest.fixture(scope="module")
def corpus(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    text = (shared_data / "text" / "wiki.test.raw").read_bytes().decode()
    path = tmp_path_factory.mktemp("texts") / "wiki.txt"
    path.write_bytes(text[:40000].encode())
    return read_corpus(DatasetSpec(path=str(path)), path, name="wiki_40000_chars")


def measure(
    model: LoadedModel, corpus: Corpus, windowing: Windowing, *, special_tokens: bool = True
) -> LikelihoodStatistics:
    """Measure as the evaluator does; the oracle's stream of gptq lacks the BOS that the tokenizer adds."""
    facts = tokenizer_facts(model.tokenizer)
    if not special_tokens:
        encode = facts.encode
        facts = replace(facts, encode=lambda text, _: encode(text, False), placed=lambda *_: None)
    streams = tokenize(corpus, windowing, facts, model=model.name)
    plan = plan_windows(windowing, streams.lengths, adds_bos=facts.adds_bos)
    nll = measure_nll(model, streams, plan, dataset=corpus.name)
    return LikelihoodStatistics(
        nll=nll,
        window_targets=plan.targets,
        window_document=plan.document,
        **arrays_of_sizes(streams.sizes),
        # The oracle divides by the whole text.
        scored=np.array([(each.words, each.chars, each.utf8_bytes) for each in streams.sizes], dtype=np.float64),
        running_text=not windowing.rules.by_document,
    )


def expected_entry(entry: str, context: int) -> tuple[str, WindowProtocol]:
    """The entry's name in the table, and the protocol that it is the figure of."""
    name, _, overlap = entry.partition(" ")
    if name == "sliding":
        stride = context // int(overlap)
        return f"sliding max_length={context} stride={stride}", WindowProtocol(stride=stride)
    if name == "lm-eval":
        return name, WindowProtocol(name)
    if name == "llama.cpp":
        return f"llama.cpp n_ctx={context}", WindowProtocol(name, max_length=context)
    return f"{name} max_length={context // 2}", WindowProtocol(name, max_length=context // 2)


# The quickest model shows all protocols. That any overlap is the published loop's is in tests/windows.
@pytest.mark.parametrize(
    ("model", "entry"), [*((QUICK, entry) for entry in ENTRIES), ("stories260K-hf", "gptq")], indirect=["model"]
)
def test_every_figure_of_the_oracle_is_reproduced(
    model: LoadedModel, corpus: Corpus, shared_data: Path, entry: str
) -> None:
    table = json.loads((shared_data / "oracles" / "ppl" / f"{model.name}.{corpus.name}.json").read_text())
    key, protocol = expected_entry(entry, CONTEXTS[model.name])
    windowing = protocol.windowing(CONTEXTS[model.name], model=model.name)
    statistics = measure(model, corpus, windowing, special_tokens=protocol.name != "gptq")

    def score(unit: str = "token", average: str = windowing.average) -> Score:
        return perplexity(statistics, signature="", unit=unit, average=average, iid=protocol.name == "llama.cpp")

    token = score()
    figures: dict[str, float] = {
        "ppl": token,
        "nll_sum": token.details["nll_sum"],
        "targets": token.details["targets"],
        "chunks": len(statistics.window_targets),
        "documents": len(statistics.words),
    }
    if protocol.name in ("sliding", "lm-eval"):
        word, bits = score("word"), score("bits_per_byte")
        figures |= {"word_ppl": word, "word_perplexity": word, "bits_per_byte": bits, "byte_perplexity": score("byte")}
    if protocol.name == "sliding":
        figures["ppl_average_window"] = score(average="window")
    if protocol.name == "llama.cpp":
        figures["stderr_ppl_iid"] = token.details["stderr_iid"]
    assert {name: figures[name] for name in table[key]} == pytest.approx(table[key], rel=1e-6)
