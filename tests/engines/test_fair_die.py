"""An engine of a third party, registered by the hook: it gets metrics, the cache, progress and reports."""

import json
import math
import os
import random
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_lmgate.engines import base
from pytest_lmgate.engines.registry import BACKENDS
from tests.end_to_end.projects import Outcome, Project

HERE = Path(__file__).parent
# Every batch is noted and reported at once, and torch is not imported.
WATCHED = """
    import pathlib
    import fair_die
    import pytest_lmgate.report.text as progress

    progress._LOG_SECONDS = 0.0
    plain = fair_die.Die.begin

    def begin(self, requests):
        with (pathlib.Path(__file__).parent / "scored.txt").open("a") as file:
            file.write(f"{len(requests)}\\n")
        return plain(self, requests)

    fair_die.Die.begin = begin

    def pytest_sessionfinish():
        import sys
        assert not {"torch", "transformers", "datasets"} & sys.modules.keys()
"""


class _Project(Project):
    def add(self, **entries: str) -> None:
        lines = "".join(f"  {name}: {entry}\n" for name, entry in entries.items())
        self.change("models:\n", f"models:\n{lines}")

    def judge(self, *gates: str, plugin: str = "fair_die") -> Outcome:
        lines = "".join(f"  - {gate}\n" for gate in gates)
        self.write(lmgate_yaml=f"{self.settings.partition('gates:')[0]}gates:\n{lines}")
        paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        options = ("-p", plugin, "--lmgate-report", "json:report.json")
        done = self.run(*options, env={"PYTHONPATH": paths}, torch_free=True)
        return Outcome(done.code, " ".join(done.out.split()), " ".join(done.err.split()))

    @property
    def judged(self) -> dict[str, dict[str, Any]]:
        return {gate["metric"]: gate for gate in self.report()["gates"]}


@pytest.fixture
def dice(tmp_path: Path) -> _Project:
    for name, sides in (("six.die", 6), ("eight.json", 8), ("other.die", 6)):
        (tmp_path / name).write_text(json.dumps({"sides": sides}))
    (tmp_path / "text.txt").write_text("".join(random.Random(0).choices("abcd ", k=640)))
    all_of = [(f"number {row}", f"number {row} of all") for row in range(40)]
    news = [{"article": whole, "summary": whole, "begin": begin} for begin, whole in all_of]
    quiz = [{"q": f"ask {row}", "options": ["long one", "no"], "label": 1} for row in range(40)]
    for name, rows in (("news", news), ("quiz", quiz)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    project = _Project(tmp_path)
    project.write(
        pytest_ini="[pytest]\n",  # a setup.py above would name another rootdir
        lmgate_yaml="""
            models:
              six: {path: six.die, batch_size: 4}
              eight: {backend: fair-die, path: eight.json}
              other: {path: other.die}
            datasets:
              text: {path: text.txt}
              news: {path: news.jsonl, source: article, references: [summary]}
              numbers: {path: news.jsonl, source: article, references: [begin]}
              quiz: {path: quiz.jsonl, question: q, choices: options, answer: label}
        """,
    )
    return project


def test_it_gets_every_metric_that_it_offers_and_the_cache(dice: _Project) -> None:
    dice.write(conftest=WATCHED)
    gates = (
        "ppl_max: {model: six, dataset: text, limit: 6.01}",
        "bpb_max: {model: six, dataset: text, limit: 2.6}",
        "accuracy_min: {model: six, dataset: quiz, limit: 0.9}",
        "bleu_min: {model: six, dataset: news, limit: 99, max_new_tokens: 32}",
    )
    dice.judge(*gates).expect(0).says("six on text: ")
    assert dice.judged["ppl"]["value"] == pytest.approx(6, rel=1e-6)
    assert dice.judged["bpb"]["value"] == pytest.approx(math.log2(6), rel=1e-6)
    assert dice.judged["accuracy"]["value"] == 1.0  # the shorter choice is likelier under a die
    assert dice.judged["bleu"]["value"] == pytest.approx(100)
    scored = (dice.folder / "scored.txt").read_text()

    dice.judge(*gates).expect(0)
    assert {gate["cached"] for gate in dice.judged.values()} == {True}
    assert (dice.folder / "scored.txt").read_text() == scored

    (dice.folder / "six.die").write_text('{"sides": 7}')
    dice.judge(*gates).expect(1)
    assert dice.judged["ppl"]["value"] == pytest.approx(7, rel=1e-6)


TWIN = """
    from dataclasses import replace
    from fair_die import Dice, Die

    class Twin(Dice):
        name, suffixes = "twin", ()

        def describe(self, entry):
            return replace(super().describe(entry), open=lambda: Die(7))

    def pytest_lmgate_backends(config):
        return [Twin()]
"""


def test_a_worse_model_fails_no_regression_and_an_equal_one_is_an_error(dice: _Project) -> None:
    def against_six(model: str) -> Outcome:
        return dice.judge(f"no_regression: {{metric: ppl, model: {model}, dataset: text, tolerance: 1%, against: six}}")

    against_six("eight").expect(1).says("FAIL")
    against_six("other").expect(1).says("'other' has the same weights as 'six'")
    # Another engine on the same file computes something else.
    dice.write(conftest=TWIN)
    dice.add(twin="{backend: twin, path: six.die}")
    against_six("twin").expect(1).says("FAIL")


def test_a_model_is_not_its_own_reference_even_if_its_engine_gives_no_digest(dice: _Project) -> None:
    dice.write(conftest=TWIN.replace("open=lambda: Die(7)", "content=None"))
    dice.add(twin="{backend: twin, path: six.die}")
    gate = "no_regression: {metric: ppl, model: twin, dataset: text, tolerance: 1%, against: twin"
    dice.judge(f"{gate}}}").expect(4).says("against: 'twin' is the gate's own model")
    dice.judge(f"{gate}, same: true}}").expect(0)


BROKEN = """
    from pytest_lmgate.engines.base import SAMPLING, Backend, Model, Runner
    from pytest_lmgate.windows.tokens import TokenizerFacts

    class Writer(Runner):
        def generate(self, prompts, settings):
            return [(each.prompt[:settings.max_new_tokens], settings.max_new_tokens) for each in prompts]

    class Broken(Backend):
        name = "broken"

        def describe(self, entry):
            if entry.name == "raises":
                return 1 / 0
            offers, honours = frozenset({"score", "generate"}), SAMPLING - {"top_k"}
            how = {"context": -4 if entry.name == "negative" else 64, "offers": offers, "honours": honours}
            return None if entry.name == "nothing" else Model(entry.name, lambda: opened(entry.name), **how)

    def opened(name):
        if name == "refuses":
            raise RuntimeError("no chip")
        writer = Writer()
        if name == "writes":
            writer.tokenizer = TokenizerFacts(lambda text, special: [ord(letter) % 64 for letter in text])
        return None if name == "closed" else writer

    def pytest_lmgate_backends(config):
        return [Broken()]
"""
NO_RUNNER = "expected its engine to open a Runner whose tokenizer is a TokenizerFacts, got"
FAILS = {
    "raises": "model 'raises': the engine broken cannot describe it: ZeroDivisionError: division by zero",
    "nothing": "model 'nothing': expected the engine broken to describe a Model, got NoneType",
    "negative": "model 'negative': expected the engine broken to give a context of 1 token or more, or None for no",
    "refuses": "model 'refuses': its engine cannot load it: RuntimeError: no chip (",
    "mute": f"model 'mute': {NO_RUNNER} Writer",
    "closed": f"model 'closed': {NO_RUNNER} NoneType",
    "bare": "model 'bare': expected path: of a file with its sides",
}


def test_an_engine_that_fails_and_what_it_does_not_offer_is_one_sentence(dice: _Project) -> None:
    dice.write(conftest=BROKEN)
    dice.add(**dict.fromkeys(["writes", *FAILS], "{backend: broken}") | {"bare": "{backend: fair-die}"})
    gates = [f"ppl_max: {{model: {name}, dataset: text, limit: 7}}" for name in FAILS]
    gates += ["kl_max: {model: eight, reference: six, dataset: text, limit: 1}"]
    write = "model: writes, dataset: numbers, limit: 0.99"
    gates += [f"exact_min: {{{write}, {how}}}" for how in ("seed: 1, top_k: 4", "num_beams: 2")]
    # The loop cuts at a stop string, whatever the engine does.
    done = dice.judge(*gates, f"exact_min: {{{write}, max_new_tokens: 32, stop: ' of', seed: 1, top_p: 0.9}}")
    done.expect(1).is_silent_on("Traceback").says(
        *FAILS.values(),
        "kl is not possible with the model 'eight'",
        "top_k: the engine of the model 'writes' does not support it (it supports seed, te",
        "num_beams: the engine of the model 'writes' does not support it",
        f"1 passed, {len(gates)} errors",
    )


def test_the_engine_that_the_documentation_shows_works(dice: _Project) -> None:
    shown = [line[4:] for line in str(base.__doc__).splitlines() if line.startswith("    ") or not line]
    dice.write(conftest="\n".join(shown))
    dice.add(die="{backend: fair-die}")
    dice.judge("ppl_max: {model: die, dataset: text, limit: 64.01, max_length: 64}", plugin="no:fair_die").expect(0)
    assert dice.judged["ppl"]["value"] == pytest.approx(64, rel=1e-6)


COMPARED = """
    import numpy as np
    from pytest_lmgate.engines.base import Backend, Model, Runner
    from pytest_lmgate.windows.tokens import TokenizerFacts

    class Own(Runner):
        tokenizer = TokenizerFacts(lambda text, special: [ord(letter) % 64 for letter in text])

        def __init__(self, name):
            self.scale = {"one": 1.0, "two": 0.9}[name]

        def logits(self, ids):
            return self.scale * np.sin(np.outer(ids, np.arange(64)))

    DISTRIBUTIONS
    class Engine(Backend):
        name = "own"

        def describe(self, entry):
            offers = frozenset({"compare"})
            return Model(entry.name, lambda: Own(entry.name), content={"name": entry.name}, offers=offers)

    def pytest_lmgate_backends(config):
        return [Engine()]
"""


def test_a_divergence_as_the_documentation_shows_it_is_that_of_the_distributions(dice: _Project) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "own_engine.md").read_text(encoding="utf-8")
    shown = next(block for block in page.split("```python\n")[1:] if "def distributions" in block).partition("```")[0]
    dice.write(conftest=COMPARED.replace("    DISTRIBUTIONS\n", textwrap.indent(shown, "    ")))
    dice.add(one="{backend: own}", two="{backend: own}")
    dice.judge("kl_max: {model: two, reference: one, dataset: text, limit: 1, max_length: 640}").expect(0)
    ids = [ord(letter) % 64 for letter in (dice.folder / "text.txt").read_text()][:-1]
    p, q = (np.exp(scale * np.sin(np.outer(ids, np.arange(64)))) for scale in (1.0, 0.9))
    p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
    assert dice.judged["kl"]["value"] == pytest.approx((p * np.log(p / q)).sum(1).mean(), rel=1e-6)


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        ("return []", f"{[*BACKENDS][-1]}, fair-die; got 'fair-dye'"),
        ("return 5", "pytest_lmgate_backends: expected a list of Backend objects, got int 5"),
        ("return [5]", "expected a Backend with a name and describe(entry), got int"),
        ("import fair_die; return [fair_die.Dice()]", "there are two backends with the name 'fair-die'"),
        ("raise RuntimeError('no')", "conftest.py:2: pytest_lmgate_backends: RuntimeError: no"),
    ],
)
def test_a_wrong_registration_is_a_usage_error(dice: _Project, hook: str, message: str) -> None:
    dice.write(conftest=f"def pytest_lmgate_backends(config):\n    {hook}")
    dice.add(dye="{backend: fair-dye, path: six.die}")
    dice.judge("ppl_max: {model: dye, dataset: text, limit: 6.01}").expect(4).says(message)
