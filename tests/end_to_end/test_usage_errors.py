"""Wrong arguments of markers, options and lmgate.yaml: said at collection, with exit code 4, before any measurement."""

from __future__ import annotations

import pytest

from tests.end_to_end.projects import GATE, Outcome, Project

WRONG_MARKS = """
    import pytest
    import pytest_lmgate as lmgate

    @pytest.mark.ppl_max("dye", "words", 60)
    def test_model(): pass

    @pytest.mark.ppl_max("words", "die", 60)
    def test_swapped(): pass

    @pytest.mark.ppl_max("die", "sure", 60)
    def test_model_for_dataset(): pass

    @pytest.mark.rouge_min("die", "words", 0.5, variant="rougel")
    def test_variant(): pass

    @pytest.mark.ppl_max("die", "wards", 60)
    def test_dataset(): pass

    @pytest.mark.ppl_max("die", "words", 60, strid=8)
    def test_unknown_argument(): pass

    @pytest.mark.ppl_max("die", "words")
    def test_missing_limit(): pass

    @pytest.mark.ppl_max
    def test_missing_everything(): pass

    @pytest.mark.ppl_max("die", "words", float("nan"))
    def test_nan(): pass

    @pytest.mark.ppl_max("die", "words", 0)
    def test_zero(): pass

    @pytest.mark.ppl_max("die", "words", float("inf"))
    def test_infinite(): pass

    @pytest.mark.bpb_max("die", "words", -1)
    def test_negative(): pass

    @pytest.mark.ppl_max("die", "words", "60")
    def test_text(): pass

    @pytest.mark.ppl_max("die", "words", 60, protocol="slidng")
    def test_protocol(): pass

    @pytest.mark.ppl_max("die", "words", 60, unit="wrd")
    def test_unit(): pass

    @pytest.mark.bpb_max("die", "words", 60, unit="word")
    def test_unit_of_bits(): pass

    @pytest.mark.ppl_max("die", "words", 60, stride=0)
    def test_stride_zero(): pass

    @pytest.mark.ppl_max("die", "words", 60, stride=9, max_length=8)
    def test_stride_above_window(): pass

    @pytest.mark.ppl_max(lmgate.fixture("no_such_fixture"), "words", 60)
    def test_fixture(): pass

    @pytest.fixture
    def pair(): return "die"

    @pytest.mark.ppl_max("pair", "words", 60)
    def test_name_of_a_fixture(): pass

    @pytest.mark.no_regression("ppl", "die", "words", "1%", against="pair")
    def test_name_of_a_fixture_as_reference(): pass

    @pytest.mark.no_regression("rouge2", "die", "words", "1%")
    def test_variant_as_metric(): pass

    @pytest.mark.ppl_max("die", "words", "10,5")
    def test_comma(): pass

    @pytest.mark.ppl_max("die", "words", threshold=60)
    def test_threshold(): pass
"""
SENTENCES = {
    "test_model": "model 'dye' is not known (did you mean 'die'?)",
    "test_swapped": "model 'words' is a dataset, but a model is expected here; ",
    "test_model_for_dataset": "dataset 'sure' is a model, but a dataset is expected here; ",
    "test_variant": "'rougel' (did you mean 'rougeL'?)",
    "test_dataset": "dataset 'wards' is not known (did you mean 'words'?)",
    "test_unknown_argument": "strid: unknown argument (did you mean 'stride'?)",
    "test_missing_limit": "missing a required argument: 'limit'",
    "test_missing_everything": "missing a required argument: 'model'",
    "test_nan": "limit: expected a positive finite number, got nan",
    "test_zero": "limit: expected a positive finite number, got 0",
    "test_infinite": "limit: expected a positive finite number, got inf",
    "test_negative": "limit: expected a positive finite number, got -1",
    "test_text": "limit: expected a number, got '60'",
    "test_protocol": "got 'slidng' (did you mean 'sliding'?)",
    "test_unit": "got 'wrd' (did you mean 'word'?)",
    "test_unit_of_bits": "unit: unknown argument",
    "test_stride_zero": "stride: expected a whole number of tokens, 1 or more; got 0",
    "test_stride_above_window": "stride: at most max_length=8",
    "test_fixture": "no fixture 'no_such_fixture'",
    "test_name_of_a_fixture": "; 'pair' is a fixture: lmgate.fixture('pair') stands for its value",
    "test_name_of_a_fixture_as_reference": "; 'pair' is a fixture: lmgate.fixture('pair') stands for its value",
    "test_variant_as_metric": "expected a registered metric, got 'rouge2' (say metric: rouge, variant: rouge2); ",
    "test_comma": "limit: expected a number, got '10,5'; a decimal has a dot: 10.5",
    "test_threshold": "threshold: unknown argument (did you mean 'limit'?)",
}


@pytest.mark.parametrize(
    "options",
    [(), ("-n", "2"), ("-n", "2", "--dist", "each"), ("--collect-only",), ("-p", "no:terminal"), ("--no-lmgate",)],
)
def test_every_wrong_argument_is_named_at_collection_with_the_nearest_right_one(
    project: Project, options: tuple[str, ...]
) -> None:
    project.write(test_wrong=WRONG_MARKS, test_right=GATE)
    outcome = project.run(*options).expect(4)
    for test, sentence in SENTENCES.items():
        line = next((line for line in outcome.err.splitlines() if f"test_wrong.py::{test}: @pytest.mark." in line), "")
        assert sentence in line, f"{test}: expected {sentence!r} in {line!r}\n{outcome.text}"
    outcome.is_silent_on("Traceback", "INTERNALERROR", "test_right.py::test_gate: ")
    assert not project.cache.exists()


def test_a_wrong_mark_on_a_deselected_test_stops_nobody(measured: Project) -> None:
    measured.write(test_wrong=WRONG_MARKS, test_right=GATE)
    measured.run("-k", "test_gate").expect(0, passed=1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("models: [", "lmgate.yaml:1: not valid YAML"),
        ("model: {die: {path: x}}", "lmgate.yaml:1: model: unknown key (did you mean 'models'?)"),
        ("models: {die: {pth: x}}", "lmgate.yaml:1: models.die.pth: unknown key (did you mean 'path'?)"),
        ("models: {die: {path: x, dtype: float33}}", "lmgate.yaml:1: models.die.dtype: expected one of"),
        ("models: {die: {path: x, load: {subfolder: y}}}", "lmgate.yaml:1: models.die.load.subfolder: say path:"),
        ("datasets: {words: {path: x, limit: many}}", "lmgate.yaml:1: datasets.words.limit: expected"),
        ("models: {die: {path: x}, die: {path: y}}", "key 'die' is written twice"),
        ("models:\n  die:\n    path: x\n    dtype: fp16", "lmgate.yaml:4: models.die.dtype: expected one of auto, "),
        ("models: {die: {path: x, dtype: fp16}}", "got 'fp16' (did you mean 'float16'?)"),
        ("datasets: {words: {path: x, prompt: {begin}}}", "put it in quotes: prompt: '{begin}'"),
        (
            "gates:\n  - ppl_max:\n      limit: 1:30",
            "lmgate.yaml:3: not valid YAML: 1:30 would be the number 90; write a number in plain digits",
        ),
    ],
)
def test_a_wrong_lmgate_yaml_is_named_with_file_and_key(project: Project, text: str, sentence: str) -> None:
    project.write(lmgate_yaml=text, test_gate=GATE)
    project.run().expect(4).says(sentence).is_silent_on("Traceback")


def test_a_wrong_lmgate_yaml_is_one_error_under_xdist_and_in_a_fixture_too(project: Project) -> None:
    project.write(lmgate_yaml="models: [", test_gate=GATE)
    project.run("-n", "2").expect(4).says("not valid YAML").is_silent_on("Traceback", "INTERNALERROR")
    project.write(test_gate="def test_score(ppl_of): ppl_of('die', 'words')")
    project.run().expect(1, failed=1).says("not valid YAML").is_silent_on("/pytest_lmgate/", "The above exception")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--lmgate-report", "xml:report.xml"), "expected TYPE:DEST with TYPE one of json"),
        (("--lmgate-report", "json:"), "expected TYPE:DEST with TYPE one of json"),
        (("--lmgate-config", "no_such.yaml"), "no_such.yaml: cannot be read"),
        (("-o", "lmgate_refresh=perhaps"), "lmgate_refresh: expected one of 1, true, yes, on"),
        (("--lmgate-device", "gpu"), "device: expected one of auto, cuda"),
        (("--lmgate-device", "gpu"), "got 'gpu' (did you mean 'cuda'?)"),
    ],
)
def test_a_wrong_option_is_a_usage_error(project: Project, options: tuple[str, ...], sentence: str) -> None:
    project.write(test_gate=GATE)
    project.run(*options).expect(4).says(sentence).is_silent_on("Traceback", "INTERNALERROR")


def test_a_wrong_option_is_one_usage_error_under_xdist_too(project: Project) -> None:
    project.write(test_gate=GATE)
    outcome = project.run("--lmgate-config", "no_such.yaml", "-n", "2").expect(4).says("no_such.yaml: cannot be read")
    outcome.is_silent_on("Traceback", "INTERNALERROR")


MISTYPED = """
    import pytest

    @pytest.mark.ppl_mx("sure", "words", 60.5)
    def test_letters(): pass

    @pytest.mark.ppl_min("sure", "words", 60.5)
    def test_wrong_end(): pass

    @pytest.mark.bleu_max("sure", "words", 60.5)
    def test_other_wrong_end(): pass

    @pytest.mark.slow_max(3)
    def test_no_gate(): pass

    @pytest.mark.ter_min
    def test_no_arguments(): pass
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_mistyped_marker_is_refused_unless_the_project_registers_it(
    project: Project, workers: tuple[str, ...]
) -> None:
    project.write(test_gate=MISTYPED, test_right=GATE)
    outcome = project.run(*workers).expect(4).is_silent_on("Traceback", "INTERNALERROR", "slow_max: ", "ter_min: ")
    outcome.is_silent_on("never arrived")
    outcome.says(
        "test_gate.py::test_letters: @pytest.mark.ppl_mx: no such gate, did you mean 'ppl_max'?",
        "@pytest.mark.ppl_min: no such gate, did you mean 'ppl_max'?",
        "@pytest.mark.bleu_max: no such gate, did you mean 'bleu_min'?",
    )
    project.run("-k", "no_gate", *workers).expect(0, passed=1)
    markers = "\n    ".join(["ppl_mx(all): mine", "ppl_min: mine", "bleu_max"])
    project.write(pytest_ini=f"[pytest]\nmarkers =\n    {markers}\n")
    project.run("--no-lmgate", *workers).expect(0, passed=5, skipped=1)


# What people wrote, and the marker that they meant.
RENAMED = {
    "perplexity_max": "ppl_max",
    "max_ppl": "ppl_max",
    "maxPPL": "ppl_max",
    "max_perplexity_score": "ppl_max",
    "pseudo_perplexity_max": "pppl_max",
    "bits_per_byte_max": "bpb_max",
    "min_bleu": "bleu_min",
    "bleu_score_min": "bleu_min",
    "maximum_ter": "ter_max",
    "rougeL_min": "rouge_min",
    "min_rouge_2": "rouge_min",
    "acc_min": "accuracy_min",
    "min_exact_match": "exact_min",
    "kl_divergence_max": "kl_max",
    "max_kld": "kl_max",
    "min_top1": "top1_min",
    "max_top1": "top1_min",
    "max_metric": "metric_max",
}


def test_a_metric_and_a_bound_in_other_words_are_refused_as_a_mistyped_marker(project: Project) -> None:
    others = ("max_retries", "min_version", "score_max", "max", "memory_limit_max", "int8_min", "bertscore_min")
    tests = [f"@pytest.mark.{name}('die', 'words', 1)\ndef test_{name}(): pass" for name in (*RENAMED, *others)]
    project.write(test_gate="\n\n".join(["import pytest", *tests]))
    outcome = project.run().expect(4)
    for name, marker in RENAMED.items():
        outcome.says(f"test_gate.py::test_{name}: @pytest.mark.{name}: no such gate, did you mean {marker!r}?")
    outcome.is_silent_on(*(f"@pytest.mark.{name}: no such gate" for name in others))


def test_a_fixture_with_params_is_refused_unless_the_test_asks_for_it(measured: Project) -> None:
    conftest = """
        import pytest

        @pytest.fixture(params=["die", "sure"])
        def either(request): return request.param

        @pytest.fixture
        def of_either(either): return either

        @pytest.fixture
        def value(request): return request.param
    """
    test = """
        import pytest
        import pytest_lmgate as lmgate

        @pytest.mark.ppl_max(lmgate.fixture("either"), "words", 60.5)
        def test_params(ARGUMENT): pass

        @pytest.mark.ppl_max(lmgate.fixture("of_either"), "words", 60.5)
        def test_params_of_another(ARGUMENT): pass

        @pytest.mark.parametrize("value", ["die", "sure"], indirect=["value"])
        @pytest.mark.ppl_max(lmgate.fixture("value"), "words", 60.5)
        def test_indirect(value): pass
    """
    measured.write(conftest=conftest, test_gate=test.replace("ARGUMENT", ""))
    outcome = measured.run().expect(4).is_silent_on("Traceback", "test_indirect")
    outcome.says("fixture 'either' has params", "add 'of_either' to the test's arguments")
    measured.write(test_gate=test.replace("params(ARGUMENT", "params(either").replace("ARGUMENT", "of_either"))
    measured.run().expect(1, passed=3, failed=3)


def test_an_argument_of_parametrize_is_no_fixture_and_the_message_says_what_to_do(project: Project) -> None:
    project.write(
        test_gate="""
            import pytest
            import pytest_lmgate as lmgate

            @pytest.mark.parametrize("model", ["die", "sure"])
            @pytest.mark.ppl_max(lmgate.fixture("model"), "words", 60.5)
            def test_gate(model): pass
        """
    )
    project.run().expect(4).says("'model' is an argument of parametrize", "indirect=['model']", "marks=")


def test_a_broken_baseline_is_one_error_that_blames_the_file(project: Project) -> None:
    project.write(
        test_gate="""
            import pytest

            @pytest.mark.parametrize("n", range(3))
            @pytest.mark.no_regression("ppl", "die", "words", "1%")
            def test_gate(n): pass
        """
    )
    (project.folder / "lmgate-baseline.json").write_text("{")
    outcome = project.run().expect(4).is_silent_on("@pytest.mark", "Traceback")
    assert outcome.text.count("lmgate-baseline.json") == 1


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("raise ZeroDivisionError('mine')", "conftest.py:4: pytest_lmgate_metrics: ZeroDivisionError: mine"),
        ("return [lmgate.TextMetric(nam='x')]", "conftest.py:4: pytest_lmgate_metrics: TypeError: "),
        ("yield lmgate.TextMetric(nam='x')", "conftest.py:4: pytest_lmgate_metrics: TypeError: "),
        ("return 3", "pytest_lmgate_metrics: expected a list of TextMetric objects, got int"),
    ],
)
def test_a_metric_that_cannot_be_made_is_named_with_the_line_that_makes_it(
    project: Project, body: str, sentence: str
) -> None:
    conftest = f"import pytest_lmgate as lmgate\n\ndef pytest_lmgate_metrics(config):\n    {body}\n"
    project.write(conftest=conftest, test_gate=GATE)
    project.run().expect(4).says(sentence).is_silent_on("Traceback", "INTERNALERROR")


def test_a_cluster_and_workers_of_xdist_are_not_asked_for_together(project: Project) -> None:
    project.write(test_gate=GATE)
    done = project.run("-n", "2", "--lmgate-executor=ray").expect(4)
    done.says("--lmgate-executor: its workers share the reading already: leave out -n")


def test_a_key_of_a_dataset_that_no_gate_uses_is_an_error(project: Project) -> None:
    plain = (project.folder / "lmgate.yaml").read_text()
    project.write(rows_jsonl='{"text": "w1 w2 w3", "own": "w2", "kind": "a"}\n' * 2)

    def ending(dataset: str) -> Outcome:
        project.write(test_gate=GATE.replace("'words'", "'rows'"))
        (project.folder / "lmgate.yaml").write_text(f"{plain}  rows: {{path: rows.jsonl, {dataset}}}\n")
        return project.run().is_silent_on("Traceback", "INTERNALERROR")

    ending("text: text").expect(0, passed=1)
    for key in ("chat: true", "examples: rows.jsonl", "system: Say.", "cluster: kind"):
        ending(key).expect(4).says(f"datasets.rows.{key.partition(':')[0]}: only texts (prompt: or source:, and ")
    ending("source: text, references: own, chat: true").expect(0, passed=1)
    ending("source: text, references: own, cluster: kind").expect(4).says(
        "test_gate: @pytest.mark.ppl_max: dataset 'rows': cluster: texts and multiple choice use it, but ppl "
    )
    ending("tags: knid").expect(1, error=1).says("row 0: tags: no column 'knid' (did you mean 'kind'?)")
