"""The noise of a text without rows: hidden documents that begin anywhere, and a single row, are judged no more surely.

The engine knows the loss of each token by heart: the words of the text are numbers, and a model's file has a loss for
each. So a change can be planted whose true size is known.
"""

import json
import math

import numpy as np
import pytest

from tests.end_to_end.dice import DiceProject
from tests.end_to_end.projects import marked

TOKENS, STRIDE = 20_000, 256
LIMIT = math.log1p(0.01)
ENGINE = """
    import re
    import numpy as np
    from pytest_lmgate.engines.base import Backend, Model, Runner
    from pytest_lmgate.windows.tokens import Placed, TokenizerFacts

    def placed(text, special):
        words = list(re.finditer(r"\\d+", text))
        return Placed([int(word[0]) for word in words], *zip(*(word.span() for word in words)))

    class ByHeart(Runner):
        def __init__(self, file):
            self.losses = np.load(file)
            self.tokenizer = TokenizerFacts(lambda *given: placed(*given).ids, placed=placed)

        def score(self, requests):
            return [self.losses[np.asarray(each.targets)] for each in requests]

    class Hearts(Backend):
        name, suffixes = "by-heart", (".npy",)

        def describe(self, entry):
            file = entry.path(entry.spec.path)
            return Model(entry.name, lambda: ByHeart(file), context=512, content={"losses": entry.digest(file)},
                runtime={}, offers=frozenset({"score"}))

    def pytest_lmgate_backends():
        return [Hearts()]
"""


def planted() -> np.ndarray:
    """A rise of the loss of each token: exactly the tolerance, and the chance of documents of about 1,000 tokens."""
    rng = np.random.default_rng(2)
    lengths = np.maximum(1, np.round(1_000 * np.exp(0.5 * rng.standard_normal(100)))).astype(np.int64)
    begin = rng.integers(5_000)
    documents = np.repeat(0.05 * rng.standard_normal(100), lengths)[begin : begin + TOKENS]
    return LIMIT + documents + 0.05 * rng.standard_normal(TOKENS)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> DiceProject:
    """A text of 20,000 tokens, a reference, and a model whose true change is just the tolerance of 1%."""
    folder = tmp_path_factory.mktemp("hearts")
    made = DiceProject(folder, "pytest").write(conftest=ENGINE, pytest_ini="[pytest]\n")
    # Of so many words none is likely: the chances of all of them add up to less than 1.
    reference = 10 + np.random.default_rng(0).exponential(1, TOKENS)
    np.save(folder / "float.npy", reference)
    (folder / "text.txt").write_text(" ".join(map(str, range(TOKENS))))
    rows = [" ".join(map(str, range(first, first + size))) for first, size in ((0, 700), (700, 40))]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    np.save(folder / "worse.npy", reference + planted())
    made.write(
        lmgate_yaml="""
            models: {float: {path: float.npy}, worse: {path: worse.npy}}
            datasets:
              text: {path: text.txt}
              one: {path: rows.jsonl, text: text, limit: 1}
              two: {path: rows.jsonl, text: text}
        """
    )
    return made


def run(project: DiceProject, gates: list[str], *arguments: str) -> list[dict]:
    """Run gates, each the arguments of a marker; return them as the JSON report has them."""
    project.write(test_gates=marked(**{f"_{index}": gate for index, gate in enumerate(gates)}))
    done = project.run("--lmgate-report", "json:report.json", *arguments)
    assert done.code in (0, 1), done.text
    assert "error" not in done.counts, done.text
    return project.report()["gates"]


def test_a_single_row_is_judged_no_more_surely_than_two(project: DiceProject) -> None:
    gates = [
        f"no_regression('ppl', 'worse', {data!r}, {tolerance!r}, against='float', max_length=256)"
        for data in ("one", "two")
        for tolerance in ("5%", "0.01%")
    ]
    gates.append("ppl_max('float', 'one', 60_000, max_length=256, confidence=0.95)")

    *compared, limited = run(project, gates)

    assert [gate["verdict"] for gate in compared] == ["inconclusive"] * 4
    assert [gate["comparison"]["clusters"] for gate in compared] == [5, 5, 2, 2]
    says = "5 blocks of windows: a text without rows needs at least 8"
    for gate in compared[:2]:
        assert gate["comparison"]["reason"].startswith(says)
        assert {gate["comparison"][key] for key in ("lower", "upper", "p_pass", "p_fail", "needed")} == {None}
    assert (limited["verdict"], limited["interval"]) == ("inconclusive", None)


def test_all_units_limits_and_baselines_of_a_text_have_the_same_noise(project: DiceProject) -> None:
    def gates(model: str) -> list[str]:
        return [
            f"no_regression('ppl', {model!r}, 'text', '3%', stride={STRIDE})",
            f"no_regression('bpb', {model!r}, 'text', 0.002, stride={STRIDE})",
            f"no_regression('ppl', {model!r}, 'text', '3%', stride={STRIDE}, average='window')",
            f"ppl_max({model!r}, 'text', 60_000, stride={STRIDE}, unit='word', confidence=0.95)",
            f"ppl_max({model!r}, 'text', 60_000, stride={STRIDE}, confidence=0.95)",
        ]

    run(project, gates("float"), "--lmgate-update")
    entries = json.loads((project.folder / "lmgate-baseline.json").read_text())["gates"]
    assert sorted(len(entry["clusters"]) for entry in entries.values()) == [63, 63, 64]
    # Other models in the place of the one that the baselines are of.
    project.change("float: {path: float.npy}", "float: {path: worse.npy }")
    percent, bits, windows, word, token = run(project, gates("float"))
    project.change("worse.npy }", "float.npy}")
    (other,) = run(project, [f"no_regression('ppl', 'worse', 'text', '3%', stride={STRIDE}, against='float')"])

    for key in ("lower", "upper", "p_pass", "p_fail", "detectable"):
        assert percent["comparison"][key] == pytest.approx(other["comparison"][key], rel=1e-6), key
    # Bits per byte of a text are its nats in another unit: the p-value of the same loss is the same.
    # The first word, "0", is not scored.
    factor = (TOKENS - 1) / math.log(2) / (len(" ".join(map(str, range(TOKENS)))) - 1)
    ends = [math.log1p(percent["comparison"][key]) * factor for key in ("lower", "upper")]
    assert [bits["comparison"][key] for key in ("lower", "upper")] == pytest.approx(ends, rel=1e-6)
    assert windows["comparison"]["clusters"] == 64
    assert word["bounded"]["clusters"] == token["bounded"]["clusters"] == 63
    assert word["interval"] == pytest.approx(token["interval"], rel=1e-6)
