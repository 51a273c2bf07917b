"""Lists, mappings and defaults of gates, ``marks:``, ``advisory:`` and ``within:``, in real processes."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project, marked
from tests.end_to_end.writers import CHAINS, ROWS, write_rows

SHORT = """
gates:
  - no_regression: {metric: [ppl, bpb], model: [die, warm], dataset: words, tolerance: 1%}
  - ppl_max: {model: [die, warm], dataset: words, limit: {die: 60.5, warm: 70}, stride: [8, 16]}
"""
WRITTEN_OUT = """
gates:
  - no_regression: {metric: ppl, model: die, dataset: words, tolerance: 1%}
  - no_regression: {metric: ppl, model: warm, dataset: words, tolerance: 1%}
  - no_regression: {metric: bpb, model: die, dataset: words, tolerance: 1%}
  - no_regression: {metric: bpb, model: warm, dataset: words, tolerance: 1%}
  - ppl_max: {model: die, dataset: words, limit: 60.5, stride: 8}
  - ppl_max: {model: die, dataset: words, limit: 60.5, stride: 16}
  - ppl_max: {model: warm, dataset: words, limit: 70, stride: 8}
  - ppl_max: {model: warm, dataset: words, limit: 70, stride: 16}
"""


def with_gates(project: Project, text: str) -> Project:
    """Replace the gates of lmgate.yaml."""
    begin = project.settings.partition("gates:")[0]
    (project.folder / "lmgate.yaml").write_text(begin + text.lstrip("\n"), encoding="utf-8")
    return project


def test_a_short_file_and_the_one_that_writes_it_out_share_ids_baseline_and_cache(noisy: Project) -> None:
    noisy.write(conftest=COUNT_MEASUREMENTS)
    with_gates(noisy, SHORT).run("--lmgate-update").expect(0, passed=8)
    entries = (noisy.folder / "lmgate-baseline.json").read_bytes()
    measured = len(noisy.measured)
    assert measured > 0
    ids = {}
    for name, text in {"short": SHORT, "written": WRITTEN_OUT}.items():
        report = f"json:{name}.json"
        with_gates(noisy, text).run("--lmgate-report", report, torch_free=True).expect(0, passed=8).is_silent_on(
            "unused"
        )
        gates = noisy.report(f"{name}.json")["gates"]
        assert all(gate["cached"] for gate in gates)
        ids[name] = [(gate["id"], gate["verdict"], gate["limit"], gate["fingerprint"]) for gate in gates]
    assert sorted(ids["short"]) == sorted(ids["written"])
    assert len(noisy.measured) == measured
    assert (noisy.folder / "lmgate-baseline.json").read_bytes() == entries
    one = noisy.run("lmgate.yaml::ppl_max[warm-words-stride:16]", torch_free=True)
    one.expect(0, passed=1)


def test_a_default_that_no_gate_uses_is_refused_with_its_line(measured: Project) -> None:
    gates = "gates:\n  - ppl_max: {model: die, dataset: words, limit: 60.5}\n"
    text = measured.settings
    for line, facts in {
        "defaults: {tolerance: 1%}": "lmgate.yaml:1: defaults.tolerance: no gate uses it",
        "defaults: {limt: 1}": "lmgate.yaml:1: defaults.limt: unknown key (did you mean 'limit'?)",
    }.items():
        measured.write(lmgate_yaml=f"{line}\n{text}{gates}").run().expect(4).says(facts)
    measured.write(lmgate_yaml=f"defaults: {{stride: 8}}\n{text}", test_gate=marked(gate="ppl_max('die', 'words', 61)"))
    measured.run().expect(4).says("lmgate.yaml:1: defaults.stride: it is for gates, and the file has no gates:")


MARKED = """
defaults: {dataset: words, model: die}
gates:
  - ppl_max: {limit: 60.5, marks: [nightly]}
  - ppl_max: {model: sure, limit: 60.5, marks: [nightly, slow], advisory: true}
  - ppl_max: {limit: 59.5, marks: xfail}
"""


@pytest.mark.parametrize("options", [(), ("-n", "2")])
def test_marks_are_pytests_own(measured: Project, options: tuple[str, ...]) -> None:
    with_gates(measured, MARKED)
    strict = ("--strict-markers", "-W", "error", *options)
    measured.run(*strict).expect(0, passed=2, xfailed=1)
    measured.run("-m", "nightly", *strict).expect(0, passed=2)
    measured.run("-m", "nightly and not slow", *strict).expect(0, passed=1)
    measured.run("-m", "slow", *strict).expect(0, passed=1).says("FAIL (advisory)")


ADVISORY = """
defaults: {dataset: words, advisory: true}
gates:
  - ppl_max: {model: die, limit: 59.5}
  - ppl_max: {model: die, limit: 60.5}
  - ppl_max: {model: die, limit: 60.5, stride: 32, advisory: false}
  - no_regression: {metric: ppl, model: warm, tolerance: 6%, against: die}
  - no_regression: {metric: ppl, model: warm, tolerance: 0.01%, against: die}
"""


@pytest.mark.parametrize("options", [(), ("--lmgate-strict",), ("-n", "2")])
def test_an_advisory_gate_is_shown_in_every_report_and_fails_nothing(noisy: Project, options: tuple[str, ...]) -> None:
    with_gates(noisy, ADVISORY)
    kinds = {"json": "report.json", "markdown": "report.md", "html": "page.html", "openmetrics": "metrics.txt"}
    reports = [each for kind, file in kinds.items() for each in ("--lmgate-report", f"{kind}:{file}")]
    outcome = noisy.run(*options, *reports, "--lmgate-report", "github", "--junitxml", "junit.xml").expect(0, passed=5)
    counts = "5 gates: 2 pass, 1 advisory fail, 2 advisory inconclusive"
    outcome.says(counts, "FAIL (advisory)", "INCONCLUSIVE (advisory)", "because the gate is advisory")
    outcome.says("ppl_max: perplexity 60", "is above the limit 59.5 (advisory)")
    outcome.is_silent_on("INCONCLUSIVE!", "GateFailed", "::error")
    assert outcome.out.count("::warning") == 3
    assert outcome.out.count("title=FAIL (advisory) ppl_max[die-words]::") == 1

    def text(kind: str) -> str:
        return (noisy.folder / kinds[kind]).read_text(encoding="utf-8")

    gates = noisy.report()["gates"]
    assert [gate["verdict"] for gate in gates].count("fail") == 1
    assert [gate.get("advisory", False) for gate in gates].count(True) == 4
    assert not any(gate["blocking"] for gate in gates)
    assert "⚠️ FAIL (advisory)" in text("markdown")
    assert f"**{counts}**" in text("markdown")
    assert "<summary>FAIL (advisory) <code>" in text("markdown")
    assert 'class="gate advisory-fail"' in text("html")
    assert '<input type="checkbox" value="advisory-fail" checked> 1 advisory fail' in text("html")
    assert 'id="counts" class="good"' in text("html")
    assert sum(line.endswith(" 1") and "advisory fail" in line for line in text("openmetrics").splitlines()) == 1
    properties = [
        (each.get("name"), each.get("value")) for each in ElementTree.parse(noisy.folder / "junit.xml").iter("property")
    ]
    assert ("lmgate.ppl_max[die-words].verdict", "fail") in properties
    assert ("lmgate.ppl_max[die-words].advisory", "true") in properties


def test_an_advisory_gate_that_cannot_be_measured_fails_the_build(measured: Project) -> None:
    with_gates(measured, "gates:\n  - ppl_max: {model: nan, dataset: words, limit: 60, advisory: true}\n")
    measured.with_torch.run().expect(1, error=1).says("ERROR ", "1 gate: 1 error").is_silent_on("(advisory)")


def test_an_advisory_marker_in_python_leaves_the_tests_other_gates_and_its_body_to_judge(measured: Project) -> None:
    advised = "ppl_max('die', 'words', 59.5, advisory=True)"
    measured.write(
        test_gate=f"""
        import pytest

        @pytest.mark.{advised}
        def test_passes():
            pass

        @pytest.mark.{advised}
        def test_body():
            assert False

        @pytest.mark.ppl_max('sure', 'words', 60)
        @pytest.mark.{advised}
        def test_other():
            pass

        @pytest.mark.xfail(strict=True)
        @pytest.mark.{advised}
        def test_xfail():
            assert False
        """
    )
    outcome = measured.run().expect(1, failed=2, passed=1, xfailed=1)
    outcome.says("5 gates: 1 fail, 4 advisory fail", "FAILED test_gate.py::test_body - assert False")
    assert outcome.out.count("GateFailed") >= 1


WITHIN = """
gates:
  - no_regression: {{metric: ppl, model: {model}, dataset: words, {size}, against: {against}}}
"""


@pytest.mark.parametrize(
    ("model", "against", "size", "code", "says"),
    [
        ("sure", "die", "within: 10%", 1, ("worse than", "FAIL at a tolerance of ±10%")),
        ("die", "sure", "within: 10%", 1, ("better than", "FAIL at a tolerance of ±10%", "set another within in")),
        ("die", "sure", "tolerance: 10%", 0, ("1 gate: 1 pass",)),
        ("die", "warm", "within: 60%", 0, ("1 gate: 1 pass", "±60%")),
        ("die", "warm", "within: 7%", 0, ("1 gate: 1 inconclusive", "±7%")),
    ],
)
def test_a_gain_beyond_within_fails_as_a_loss_does(
    noisy: Project, model: str, against: str, size: str, code: int, says: tuple[str, ...]
) -> None:
    with_gates(noisy, WITHIN.format(model=model, against=against, size=size))
    done = noisy.run("--lmgate-report", "html:page.html", "--lmgate-report", "json:report.json")
    done.expect(code).says(*says)
    assert ("parts of the text that cost most" in done.out) == (model == "sure")
    comparison = noisy.report()["gates"][0]["comparison"]
    assert comparison["tolerance"]["two_sided"] == size.startswith("within")
    page = (noisy.folder / "page.html").read_text(encoding="utf-8")
    assert ('class="beyond" d="M0 4H' in page) == size.startswith("within")


def test_a_value_pinned_by_the_baseline_fails_if_it_gets_better(noisy: Project) -> None:
    gate = "no_regression: {metric: ppl, model: sure, dataset: words, within: 5%}"
    noisy.add_gates(gate).run("--lmgate-update").expect(0, passed=1)
    noisy.run().expect(0, passed=1).says("±5%")
    noisy.change("/sure}", "/die}").run().expect(1, failed=1).says("better than", "of the baseline of", "FAIL")


# What repositories of quantizers, engines and kernels check by scripts of their own, each in a few lines.

RATED = "prompt: '{start}', references: rest, extract: [{regex: {pattern: '(.+)'}}]"
ASKED = "question: q, choices: options, answer: answer"
PROJECTS = {
    "the accuracy of a served model": """
        defaults: {model: served, dataset: math}
        models: {served: {path: CANDIDATE}}
        datasets: {math: {path: chains.jsonl, RATED}}
        gates:
          - exact_min: {limit: 0.94, confidence: 0.95}
          - no_regression: {metric: exact, tolerance: 0.01}
          - invalid_max: {limit: 0.02}
          - cut_max: {limit: 0, advisory: true}
          - self_kl_max: {limit: 0.01, max_new_tokens: 128}
    """,
    "three formats of a quantizer": """
        defaults: {device: cpu, dtype: float32, against: half}
        models: {half: {path: REFERENCE}, packed: {path: CANDIDATE}, rounded: {path: CANDIDATE, batch_size: 2},
          small: {path: CANDIDATE, batch_size: 3}}
        datasets: {quiz: {path: quiz.jsonl, ASKED}, last: {path: quiz.jsonl, question: q, target: then}}
        gates:
          - no_regression: {metric: accuracy, model: [packed, rounded, small], dataset: quiz, tolerance: 0.06}
          - no_regression: {metric: target_ppl, model: packed, dataset: last, tolerance: 15%}
          - accuracy_min: {model: packed, dataset: quiz, limit: 0.55}
    """,
    "an exported model": """
        defaults: {device: cpu, dtype: float32, model: exported, dataset: text, protocol: lm-eval, unit: word}
        models: {eager: {path: REFERENCE}, exported: {path: CANDIDATE}}
        datasets: {text: {path: text.txt, lines: true}}
        gates: [ppl_max: {limit: 4000}, no_regression: {metric: ppl, against: eager, tolerance: 2%}]
    """,
    "a quantizer on tasks": """
        defaults: {device: cpu, model: packed, against: native, reference: native, tolerance: 5%}
        models: {native: {path: REFERENCE}, packed: {path: CANDIDATE}}
        datasets:
          quiz: {path: quiz.jsonl, ASKED}
          math: {path: chains.jsonl, RATED}
          text: {path: text.txt, lines: true}
        gates:
          - no_regression: {metric: [accuracy, exact], dataset: {accuracy: quiz, exact: math},
              variant: {accuracy: acc_norm, exact: null}}
          - invalid_max: {dataset: math, limit: 0.05}
          - kl_max: {dataset: text, limit: 0.10}
    """,
    "a similarity that is pinned": """
        defaults: {device: cpu, reference: full, dataset: text}
        models: {full: {path: REFERENCE}, int8: {path: CANDIDATE}, int4: {path: CANDIDATE, batch_size: 2}}
        datasets: {asked: {path: chains.jsonl, source: start, references: rest}, text: {path: text.txt, lines: true}}
        gates:
          - no_regression: {metric: similarity, model: int4, dataset: asked, within: 0.001}
          - kl_max: {model: int8, limit: 0.01}
          - top1_min: {model: int4, limit: 0.85}
    """,
    "a published build": """
        defaults: {model: q4, reference: f16, dataset: text, protocol: llama.cpp, max_length: 16}
        models: {f16: {path: REFERENCE}, q4: {path: CANDIDATE}}
        datasets: {text: {path: text.txt, tokens: 64}, prose: {path: chains.jsonl, prompt: '{start}', references: rest}}
        gates: [kl_max: {limit: 0.05}, top1_min: {limit: 0.93},
          no_regression: {metric: ppl, against: f16, tolerance: 2%},
          kl_max: {dataset: prose, limit: 0.1, estimator: sampled, max_new_tokens: 8, protocol: null, max_length: null}]
    """,
    "two tasks of a served model": """
        defaults: {model: served, tolerance: 0.03}
        models: {served: {path: CANDIDATE}}
        datasets: {math: {path: chains.jsonl, RATED}, quiz: {path: quiz.jsonl, ASKED}}
        gates: [no_regression: {metric: [exact, accuracy], dataset: {exact: math, accuracy: quiz}}]
    """,
}
SIMILARITY = """
    from pytest_lmgate import TextMetric

    def similar(predictions, references, rows):
        shared = [len({*text.split()} & {*of[0].split()}) for text, of in zip(predictions, references)]
        return [[count / max(1, len(of[0].split())), 1] for count, of in zip(shared, references)]

    def pytest_lmgate_metrics():
        return [TextMetric("similarity", "higher", "similarity", similar, lowest=0, highest=1)]
"""


@pytest.fixture
def rounded(writers: Path, tmp_path: Path) -> Path:
    """Folder of `counter` with its weights a little off, as a sound quantizer leaves them."""
    import safetensors.torch

    folder = Project(tmp_path).model("rounded", writers / "counter")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights["lm_head.weight"] *= 1.001
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("name", PROJECTS)
def test_what_others_check_is_a_few_lines_green_and_red_for_a_damaged_candidate(
    name: str, tmp_path: Path, writers: Path, rounded: Path
) -> None:
    project = Project(tmp_path).write(pytest_ini="[pytest]\n", conftest=SIMILARITY)
    write_rows(project, "chains", [*ROWS] * 8)
    quiz = [(chain[at], chain[at + 1], chain[at - 1]) for chain in CHAINS for at in range(1, len(chain) - 1)]
    rows = [{"q": q, "options": [right, wrong], "answer": 0, "then": right} for q, right, wrong in quiz]
    write_rows(project, "quiz", rows * 8)
    project.write(text_txt="".join(f"{' '.join(CHAINS[0])}\n" for _ in range(16)))
    text = PROJECTS[name].replace("RATED", RATED).replace("ASKED", ASKED).replace("REFERENCE", f"{writers}/counter")
    project.write(lmgate_yaml=text.replace("CANDIDATE", str(rounded)))
    project.run("--lmgate-update").expect(0)
    green = project.run("--lmgate-report", "json:green.json").expect(0)
    gates = project.report("green.json")["gates"]
    assert green.counts == {"passed": len(gates)}
    project.write(lmgate_yaml=text.replace("CANDIDATE", f"{writers}/backward"))
    red = project.run("--lmgate-report", "json:red.json")
    assert red.code == 1, red.text
    verdicts = {gate["id"]: gate["verdict"] for gate in project.report("red.json")["gates"]}
    assert verdicts.keys() == {gate["id"] for gate in gates}
    assert "error" not in verdicts.values()
    assert list(verdicts.values()).count("fail") >= len(gates) / 2
