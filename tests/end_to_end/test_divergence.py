"""Two models in a gate or a fixture: KL divergence, the same most likely token, and all of llama.cpp's statistics."""

from __future__ import annotations

import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project

GATES = """
    import pytest

    @pytest.mark.kl_max("noisy", "float", "words", 10.0)
    def test_kl(): pass

    @pytest.mark.kl_max("noisy", "float", "words", 10.0, statistic="p99")
    @pytest.mark.top1_min("noisy", "float", "words", 0.001)
    def test_more(): pass
"""


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Path:
    """Folder of ``float``, a model that prefers something, and ``noisy``, the same with noise on its weights."""
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("pair")
    model = transformers.AutoModelForCausalLM.from_pretrained(models / "sure")
    with torch.no_grad():
        model.lm_head.weight.mul_(0.1)
        for name in ("float", "noisy"):
            shutil.copytree(models / "sure", folder / name)
            model.save_pretrained(folder / name)
            torch.manual_seed(1)
            for weight in model.parameters():
                weight += 0.1 * weight.std() * torch.randn_like(weight)
    return folder


@pytest.fixture
def two(project: Project, pair: Path) -> Project:
    """A project that names both, too."""
    yaml = project.folder / "lmgate.yaml"
    lines = "".join(f"  {name}: {{path: {pair}/{name}}}\n" for name in ("float", "noisy"))
    yaml.write_text(yaml.read_text().replace("models:\n", f"models:\n{lines}"))
    return project


def gates(project: Project) -> dict[str, dict[str, Any]]:
    return {gate["id"].partition("::")[2].partition("::")[2]: gate for gate in project.report()["gates"]}


def test_gates_on_two_models_are_judged_and_reported(two: Project) -> None:
    two.write(test_gates=GATES)
    two.run("--lmgate-report=json:report.json").expect(0, passed=2).says("3 gates: 3 pass", "kl_max[noisy-float-words]")
    found = gates(two)

    assert sorted(found) == [
        "kl_max:p99[noisy-float-words]",
        "kl_max[noisy-float-words]",
        "top1_min[noisy-float-words]",
    ]
    mean, p99 = found["kl_max[noisy-float-words]"], found["kl_max:p99[noisy-float-words]"]
    assert 0 < mean["value"] < p99["value"]
    assert mean["interval"][0] < mean["value"] < mean["interval"][1]
    assert p99["interval"] is None
    spread = mean["spread"]
    assert (spread["what"], spread["of"], spread["better"]) == ("distance", "blocks", 0)
    assert spread["worse"] == sum(spread["bins"]) == mean["details"]["clusters"]
    assert spread["lowest"] < spread["median"] <= spread["p90"] <= spread["p99"] <= spread["highest"]
    assert spread["lowest"] < mean["value"] < spread["highest"]
    assert found["top1_min[noisy-float-words]"]["spread"]["unit"] == "share of tokens with a different top prediction"
    assert "spread" not in p99
    details = mean["details"]
    assert details["reference"] == "float"
    assert details["Mean KLD"] == mean["value"]
    assert details["99.0% KLD"] == p99["value"]
    assert details["Same top p"] == found["top1_min[noisy-float-words]"]["value"]
    assert details["Mean PPL(Q)/PPL(base)"] == pytest.approx(details["Mean PPL(Q)"] / details["Mean PPL(base)"])


def test_the_figures_are_those_of_whole_logits(two: Project, pair: Path) -> None:
    two.write(
        test_figures=f"""
            import torch
            import transformers

            def test_figures(kl_of, top1_of, compare_of, ppl_of):
                load = transformers.AutoModelForCausalLM.from_pretrained
                p, q = load("{pair}/float"), load("{pair}/noisy")
                tokenizer = transformers.AutoTokenizer.from_pretrained("{pair}/float")
                text = open("{two.folder}/words.txt").read()
                ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
                kl, same = [], []
                for chunk in ids.split(16):
                    with torch.no_grad():
                        a, b = (m(chunk[None]).logits[0, :-1].double().log_softmax(-1) for m in (p, q))
                    kl += (a.exp() * (a - b)).sum(-1).tolist()
                    same += (a.argmax(-1) == b.argmax(-1)).tolist()
                kl = torch.tensor(kl, dtype=torch.float64)
                score = kl_of("noisy", "float", "words", protocol="disjoint", max_length=16)
                assert abs(score - kl.mean()) < 1e-6
                assert score.n == len(kl) and score.direction == "lower"
                assert abs(kl_of("noisy", "float", "words", statistic="max", protocol="disjoint", max_length=16)
                           - kl.max()) < 1e-6
                top = top1_of("noisy", "float", "words", protocol="disjoint", max_length=16)
                assert abs(top - sum(same) / len(same)) < 1e-12 and top.direction == "higher" and top.cached
                whole = compare_of("noisy", "float", "words", protocol="disjoint", max_length=16)
                assert whole.kl.value == score and whole.top1.value == top and whole.cached
                assert (whole.model, whole.reference, whole.dataset) == ("noisy", "float", "words")
                own = [ppl_of(name, "words", protocol="disjoint", max_length=16) for name in ("noisy", "float")]
                assert abs(whole.ratio.value / (own[0] / own[1]) - 1) < 1e-6
                assert "Mean PPL(Q)-PPL(base)" in str(whole)
        """
    )
    shutil.copy(_text(two), two.folder / "words.txt")
    two.run().expect(0, passed=1)


def test_a_model_does_not_diverge_from_itself(two: Project, pair: Path) -> None:
    two.model("copy", pair / "float")
    two.write(
        test_same="""
            import pytest

            @pytest.mark.kl_max("float", "float", "words", 0)
            @pytest.mark.kl_max("./copy", "float", "words", 0, statistic="max")
            @pytest.mark.top1_min("./copy", "float", "words", 1)
            def test_same(compare_of):
                found = compare_of("float", "./copy", "words")
                assert found.kl.value == 0 and found.top1.value == 1
                assert found.ln_ratio.value == 0 and found.ratio.value == 1
                assert found.figures["RMS Δp"].value == 0
        """
    )
    two.run().expect(0, passed=1)


def test_a_failure_tells_the_figures(two: Project) -> None:
    two.write(
        test_gates="""
            import pytest

            @pytest.mark.kl_max("noisy", "float", "words", 0)
            def test_mean(): pass

            @pytest.mark.kl_max("noisy", "float", "words", 0, statistic="p99.9", protocol="llama.cpp", max_length=32)
            def test_percentile(): pass

            @pytest.mark.top1_min("noisy", "float", "words", 1)
            def test_top(): pass
        """
    )
    two.run().expect(1, failed=3).says(
        "kl_max: KL divergence 0.",
        "of 'noisy' against 'float' on 'words' is above the limit 0",
        "top1_min: share of tokens with the same top prediction 0.",
        "is below the limit 1",
        "Mean PPL(Q) ",
        "Mean KLD ",
        "RMS Δp ",
        "no interval: p99.9 is no mean",
    )


def test_a_second_run_needs_no_torch_and_any_statistic_no_model(two: Project) -> None:
    two.write(test_gates=GATES)
    two.run().expect(0, passed=2)
    two.write(
        conftest="""
            import sys

            def pytest_sessionfinish():
                assert not {"torch", "transformers"} & set(sys.modules)
        """,
        test_gates="""
            import pytest

            @pytest.mark.parametrize("statistic", ["mean", "median", "p90", "p95", "p99", "p99.9", "max"])
            def test_statistic(statistic, kl_of, compare_of):
                assert kl_of("noisy", "float", "words", statistic=statistic).cached
                assert compare_of("noisy", "float", "words").cached

            @pytest.mark.kl_max("noisy", "float", "words", 10.0)
            def test_gate(): pass
        """,
    )
    two.run(fresh=True).expect(0, passed=8)


def test_workers_measure_a_pair_once(two: Project) -> None:
    gate = '@pytest.mark.kl_max("noisy", "float", "words", 10.0)\ndef test_{}(): pass\n'
    (two.folder / "test_gates.py").write_text("import pytest\n" + "\n".join(gate.format(each) for each in range(4)))
    two.run("-n", "2", "--lmgate-report=json:report.json").expect(0, passed=4).says("4 gates: 4 pass")
    assert sum(not gate["cached"] for gate in two.report()["gates"]) == 1
    assert len({gate["value"] for gate in two.report()["gates"]}) == 1


def test_another_reference_is_another_measurement(two: Project) -> None:
    two.write(
        conftest=COUNT_MEASUREMENTS,
        test_gates="""
            def test_order(kl_of):
                there, back = kl_of("noisy", "float", "words"), kl_of("float", "noisy", "words")
                assert not back.cached and there != back and there.fingerprint != back.fingerprint
        """,
    )
    two.run().expect(0, passed=1)
    assert {"float", "noisy"} == set(two.measured)


def test_models_in_memory_and_fixtures_serve_as_either(two: Project, pair: Path) -> None:
    two.write(
        test_gates=f"""
            import pytest
            import transformers
            from pytest_lmgate import fixture

            def load(name):
                return (transformers.AutoModelForCausalLM.from_pretrained(f"{pair}/{{name}}"),
                        transformers.AutoTokenizer.from_pretrained(f"{pair}/{{name}}"))

            @pytest.fixture(scope="session")
            def reference():
                return load("float")

            @pytest.fixture(scope="session")
            def candidate():
                return load("noisy")

            @pytest.mark.kl_max(fixture("candidate"), fixture("reference"), "words", 10.0)
            @pytest.mark.top1_min("noisy", fixture("reference"), "words", 0.001)
            def test_gate(kl_of, candidate):
                assert kl_of(candidate, "float", "words") == kl_of("noisy", "float", "words")

            @pytest.mark.kl_max("noisy", fixture("nothing"), "words", 10.0)
            def test_unknown(): pass
        """,
    )
    two.run("-k", "not unknown").expect(0, passed=1)
    two.run().expect(4).says("lmgate.fixture: no fixture 'nothing' for this test")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ('"noisy", "float", "words", -0.1', "limit: expected a finite number from 0, got -0.1"),
        ('"noisy", "float", "words"', "missing a required argument: 'limit'"),
        ('"noisy", "float", "words", 1, statistic="p98"', "statistic: expected one of mean, median, p90, p95, p99"),
        ('"noisy", "float", "words", 1, statistic="medain"', "(did you mean 'median'?)"),
        ('"noisy", "flaot", "words", 1', "model 'flaot' is not known (did you mean 'float'?)"),
        ('"noisy", None, "words", 1', "reference: expected a name of lmgate.yaml"),
        ('"noisy", "float", "words", 1, unit="word"', "unit: unknown argument"),
        ('"noisy", "float", "words", 1, refrence="x"', "refrence: unknown argument"),
    ],
)
def test_a_wrong_argument_is_a_usage_error(two: Project, arguments: str, message: str) -> None:
    two.write(test_gates=f"import pytest\n\n@pytest.mark.kl_max({arguments})\ndef test_gate(): pass\n")
    two.run().expect(4).says("@pytest.mark.kl_max: ", message)


def test_gates_on_two_models_need_no_python(two: Project) -> None:
    yaml = two.folder / "lmgate.yaml"
    gates = """gates:
  - kl_max: {model: noisy, reference: float, dataset: words, limit: 10, statistic: p95}
  - top1_min: {model: noisy, reference: float, dataset: words, limit: 1}
"""
    yaml.write_text(yaml.read_text() + gates)
    two.run("lmgate.yaml").expect(1, passed=1, failed=1).says("top1_min[noisy-float-words]")


REGRESSION = """
    import pytest

    @pytest.mark.no_regression("kl", "noisy", "words", "10%", reference="float")
    def test_kl(): pass

    @pytest.mark.no_regression("top1", "noisy", "words", 0.01, reference="float")
    def test_top1(): pass
"""


def test_a_divergence_may_not_grow_over_its_baseline(two: Project) -> None:
    two.write(test_gates=REGRESSION).run("--lmgate-update", "-n", "2").expect(0, passed=2).says("2 new")
    two.run("--lmgate-strict").expect(0, passed=2).says(
        "no_regression:kl[noisy-float-words]", "no_regression:top1[noisy-float-words]", "+0% [+0, +0]"
    )
    yaml = two.folder / "lmgate.yaml"
    before = yaml.read_text()
    yaml.write_text(before.replace("/noisy", "/float"))
    two.run().expect(0, passed=2).says("-100%")
    # Another reference is another measure.
    yaml.write_text(before.replace("/float", "/noisy"))
    two.run().expect(1, error=2).says(
        "the reference of the divergence differs: another model, or loaded with other options"
    )


def test_the_divergence_of_two_models_from_a_third_is_compared(two: Project) -> None:
    same = REGRESSION.replace('reference="float"', 'reference="float", against="noisy"')
    two.write(test_gates=same).run().expect(0, passed=2).says("no_regression:kl[noisy-float-words-vs-noisy]")
    better = REGRESSION.replace('"noisy"', '"float"').replace('reference="float"', 'reference="float", against="noisy"')
    two.write(test_gates=better).run().expect(0, passed=2)
    worse = REGRESSION.replace('reference="float"', 'reference="float", against="float"').replace('"10%"', "0.001")
    two.write(test_gates=worse).run().expect(1, failed=2).says("KL divergence", "of the model 'float': FAIL")


def test_a_share_above_one_is_no_limit(two: Project) -> None:
    two.write(test_gates="import pytest\n\n@pytest.mark.top1_min('noisy', 'float', 'words', 90)\ndef test_gate(): pass")
    two.run().expect(4).says("top1_min is on a scale from 0 to 1, got 90")


def test_a_damaged_model_on_either_side_is_an_error(two: Project) -> None:
    two.write(
        test_gates="""
            import pytest

            @pytest.mark.kl_max("nan", "float", "words", 1e9)
            def test_candidate(): pass

            @pytest.mark.top1_min("float", "nan", "words", 0.001)
            def test_reference(): pass
        """
    )
    two.run().expect(1, error=2).says("model 'nan': NaN log-likelihood of token", "could not be measured")


def test_tokenizers_that_differ_are_refused_and_offered_bits_per_byte(two: Project, pair: Path) -> None:
    folder = two.model("renamed", pair / "noisy")
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"w5"', '"W5"'))
    two.write(
        test_gates="import pytest\n\n@pytest.mark.kl_max('./renamed', 'float', 'words', 1)\ndef test_gate(): pass"
    )
    two.run().expect(1, error=1).says(
        "have tokenizers that differ (token 8 is 'W5' in one and 'w5' in the other)", "bits per byte (bpb_max"
    )


def test_no_file_is_left_where_the_models_take_turns_also_when_killed(two: Project) -> None:
    """The reference's states are on disk while the candidate waits: the process is killed there."""
    temporary = two.folder / "tmp"
    temporary.mkdir()
    two.write(
        conftest="""
            import os
            import time
            from pathlib import Path

            from pytest_lmgate.engine import comparing
            from pytest_lmgate.evaluate.lookup import Measurements

            Measurements.fit_together = lambda *_: False
            plain = comparing._compare

            def compare(*args, **options):
                if os.environ.get("WAIT"):
                    held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                            if os.path.exists(f"/proc/self/fd/{fd}")
                            and os.stat(f"/proc/self/fd/{fd}").st_nlink == 0
                            and os.stat(f"/proc/self/fd/{fd}").st_size > 10000]
                    Path("spooled.txt").write_text("\\n".join(held))
                    time.sleep(60)
                return plain(*args, **options)

            comparing._compare = compare
        """,
        test_gates="""
            import pytest

            @pytest.mark.kl_max("noisy", "float", "words", 10.0)
            def test_gate(): pass
        """,
    )
    env = {"TMPDIR": str(temporary)}
    process = two.start(env={**env, "WAIT": "1"})
    deadline = time.monotonic() + 60
    spooled = two.folder / "spooled.txt"
    while not (spooled.exists() and spooled.read_text()):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    before = _bytes_in(two.folder)
    os.killpg(process.pid, 9)
    process.communicate()
    assert _bytes_in(two.folder) <= before < 10_000, "the states are in a file that has a name"
    assert list(temporary.iterdir()) == []

    two.run("--lmgate-report=json:report.json", env=env).expect(0, passed=1)
    turns = two.report()["gates"][0]["value"]
    assert list(temporary.iterdir()) == []
    (two.folder / "conftest.py").unlink()
    two.run("--lmgate-report=json:report.json", "--lmgate-refresh").expect(0, passed=1)
    assert math.isclose(turns, two.report()["gates"][0]["value"], rel_tol=1e-6)


def _bytes_in(folder: Path) -> int:
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".py", ".yaml", ".ini"))
    return max((path.stat().st_size for path in files), default=0)


def _text(project: Project) -> Path:
    line = next(line for line in (project.folder / "lmgate.yaml").read_text().splitlines() if "words:" in line)
    return Path(line.partition("path: ")[2].rstrip("}"))
