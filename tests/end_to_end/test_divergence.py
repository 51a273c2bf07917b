"""Two models in a gate or a fixture: KL divergence, the same most likely token, and all of llama.cpp's statistics."""

import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.projects import Project, marked, wait_for

MEAN = 'kl_max("noisy", "float", "words", 10.0)'


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
    return project.add("models", **{name: f"path: {pair}/{name}" for name in ("float", "noisy")})


def gates(project: Project) -> dict[str, dict[str, Any]]:
    return {gate["id"].partition("::")[2].partition("::")[2]: gate for gate in project.report()["gates"]}


def test_gates_on_two_models_are_judged_and_reported(two: Project) -> None:
    more = 'top1_min("noisy", "float", "words", 0.001)'
    two.write(test_gates=marked(kl=MEAN, p99=f'{MEAN[:-1]}, statistic="p99")', top1=more))
    two.run("--lmgate-report=json:report.json").expect(0, passed=3).says("3 gates: 3 pass", "kl_max[noisy-float-words]")
    found = gates(two)

    mean, p99 = found["kl_max[noisy-float-words]"], found["kl_max:p99[noisy-float-words]"]
    assert 0 < mean["value"] < p99["value"]
    assert mean["interval"][0] < mean["value"] < mean["interval"][1]
    assert p99["interval"] is None
    spread = mean["spread"]
    assert (spread["what"], spread["of"], spread["better"]) == ("distance", "blocks", 0)
    assert spread["worse"] == sum(spread["bins"]) == mean["details"]["clusters"]
    assert spread["lowest"] < mean["value"] < spread["highest"]
    assert "spread" not in p99
    details = mean["details"]
    assert details["reference"] == "float"
    assert details["Mean KLD"] == mean["value"]
    assert details["99.0% KLD"] == p99["value"]
    assert details["Same top p"] == found["top1_min[noisy-float-words]"]["value"]

    # A second run needs no torch, and any statistic no model.
    two.write(
        conftest="""
            import sys

            def pytest_sessionfinish():
                assert not {"torch", "transformers"} & set(sys.modules)
        """,
        test_gates="""
            import pytest

            @pytest.mark.kl_max("noisy", "float", "words", 10.0)
            def test_gate(kl_of, compare_of):
                for statistic in ("mean", "median", "p90", "p95", "p99", "p99.9", "max"):
                    assert kl_of("noisy", "float", "words", statistic=statistic).cached
                whole, mean = compare_of("noisy", "float", "words"), kl_of("noisy", "float", "words")
                assert whole.cached and whole.kl.value == mean and mean.direction == "lower" and mean.n == 399
                assert (whole.model, whole.reference, whole.dataset) == ("noisy", "float", "words")
                assert "Mean PPL(Q)-PPL(base)" in str(whole)
        """,
    )
    two.run(torch_free=True).expect(0, passed=1)


def test_a_gate_between_two_copies_of_the_same_weights_is_reported_since_it_can_never_fail(
    two: Project, pair: Path
) -> None:
    shutil.copytree(pair / "float", two.folder / "copy")
    two.add("models", copy="path: copy", half="path: copy, dtype: bfloat16")
    two.write(test_gates=marked(copy=MEAN.replace("noisy", "copy"), half=MEAN.replace("noisy", "half")))
    done = two.run().expect(0, passed=2)
    done.says("'copy' and its reference 'float' have the same weights and run in the same way: a gate")
    done.is_silent_on("'half' and its reference")


def test_a_damaged_model_on_either_side_and_tokenizers_that_differ_are_errors(two: Project, pair: Path) -> None:
    file = two.model("renamed", pair / "noisy") / "tokenizer.json"
    file.write_text(file.read_text().replace('"w5"', '"W5"'))
    two.write(
        test_gates=marked(
            candidate='kl_max("nan", "float", "words", 1e9)',
            reference='top1_min("float", "nan", "words", 0.001)',
            tokenizers='kl_max("./renamed", "float", "words", 1)',
        )
    )
    two.run().expect(1, error=3).says("model 'nan': NaN", "token 8 is 'W5' in one and 'w5' in the other", "bpb_max")


def test_no_file_is_left_where_the_models_take_turns_also_when_killed(two: Project) -> None:
    """The reference's states are on disk while the candidate waits: the process is killed there."""
    temporary = two.folder / "tmp"
    temporary.mkdir()
    two.write(
        conftest="""
            import os
            import time
            from pathlib import Path

            from pytest_lmgate.measure import divergence
            from pytest_lmgate.measure.lookup import Measurements

            Measurements.fit_together = lambda *_: False
            plain = divergence._compare

            def compare(*args, **options):
                if os.environ.get("WAIT"):
                    files = [path.stat() for path in Path("/proc/self/fd").iterdir() if path.exists()]
                    held = [file.st_size for file in files if file.st_nlink == 0 and file.st_size > 10000]
                    Path("spooled.txt").write_text(str(held or ""))
                    time.sleep(60)
                return plain(*args, **options)

            divergence._compare = compare
        """,
        test_gates=marked(gate=MEAN),
    )
    env = {"TMPDIR": str(temporary)}
    process = two.start(env={**env, "WAIT": "1"}, fresh=False)
    spooled = two.folder / "spooled.txt"
    wait_for(lambda: spooled.exists() and spooled.read_text(), "the candidate waits for the reference's states")
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


def test_prompts_without_references_are_enough_for_divergences_of_texts_that_a_model_writes(two: Project) -> None:
    turns = '[{"role": "user", "content": "w1"}]'
    two.write(asked_jsonl="".join(f'{{"q": "w{n} w{n + 1}", "turns": {turns}}}\n' for n in range(4)))
    two.add("datasets", asked='path: asked.jsonl, prompt: "{q} w2"', bare="path: asked.jsonl, source: q")
    gates = {name: f'self_kl_max("noisy", {name!r}, 1e-6, max_new_tokens=8)' for name in ("asked", "bare")}
    kl = 'kl_max("noisy", "float", "asked", 10.0, estimator="sampled", max_new_tokens=8)'
    two.write(test_gates=marked(**gates, kl=kl)).run().expect(0, passed=3)


def test_a_sampled_divergence_is_judged_kept_and_compared(two: Project) -> None:
    sampled = 'estimator="sampled", max_new_tokens=8)'
    two.write(
        test_gates=marked(
            kl=f'kl_max("noisy", "float", "words", 10.0, {sampled}',
            self_kl='self_kl_max("noisy", "words", 1e-6, max_new_tokens=8)',
            fail=f'kl_max("noisy", "float", "words", 0, {sampled}',
            baseline=f'no_regression("kl", "noisy", "words", "10%", reference="float", {sampled}',
            exact='kl_max("noisy", "float", "words", 10.0, max_new_tokens=8)',
        )
    )
    arguments = ("-k", "not exact", "--lmgate-update", "--lmgate-report=json:report.json", "-n", "2")
    two.run(*arguments).expect(1, passed=3, failed=1).says("estimator:sampled", "is above the limit 0", "1 new")
    found = gates(two)
    limit = found["kl_max[noisy-float-words-estimator:sampled-max_new_tokens:8]"]
    assert limit["interval"][0] < limit["value"] < limit["interval"][1]
    assert limit["details"]["estimator"] == "sampled"
    assert limit["details"]["reference"] == "float"
    own = found["self_kl_max[noisy-words-max_new_tokens:8]"]
    assert abs(own["value"]) < 1e-9

    # A second run needs no torch.
    two.run("-k", "not exact", torch_free=True).expect(1, passed=3, failed=1).says("+0% [+0, +0]")
    file = two.folder / "test_gates.py"
    file.write_text(file.read_text().replace("max_new_tokens=8)\n", "max_new_tokens=9)\n"))
    two.run("-k", "baseline").expect(1, error=1)
    two.run("-k", "exact").expect(4).says("max_new_tokens: only estimator='sampled' writes texts")


def _bytes_in(folder: Path) -> int:
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".py", ".yaml", ".ini"))
    return max((path.stat().st_size for path in files), default=0)
