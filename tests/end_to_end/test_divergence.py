"""Two models in a gate or a fixture: KL divergence, llama.cpp's statistics, and where a model got worse."""

import json
import random
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.engines.tokenizers import quiet
from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project, lmgate, marked
from tests.models.tiny import made_once, word_level

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
    return project.add("models", **{name: f"path: {pair}/{name}" for name in ("float", "noisy")})


def gates(project: Project) -> dict[str, dict[str, Any]]:
    return {gate["id"].rpartition("::")[2]: gate for gate in project.report()["gates"]}


def test_gates_on_two_models_are_judged_and_any_statistic_of_a_second_run_needs_no_torch(two: Project) -> None:
    more = 'top1_min("noisy", "float", "words", 0.001)'
    two.write(test_gates=marked(kl=MEAN, p99=f'{MEAN[:-1]}, statistic="p99")', top1=more))
    two.run("--lmgate-report=json:report.json").expect(0, passed=3).says("3 gates: 3 pass", "kl_max[noisy-float-words]")
    found = gates(two)
    mean, p99 = found["kl_max[noisy-float-words]"], found["kl_max:p99[noisy-float-words]"]
    assert 0 < mean["interval"][0] < mean["value"] < mean["interval"][1]
    assert mean["value"] < p99["value"]
    assert p99["interval"] is None
    spread, details = mean["spread"], mean["details"]
    assert (spread["what"], spread["of"], spread["better"]) == ("distance", "blocks", 0)
    assert spread["worse"] == sum(spread["bins"]) == details["clusters"]
    assert (details["reference"], details["Mean KLD"], details["99.0% KLD"]) == ("float", mean["value"], p99["value"])
    assert details["Same top p"] == found["top1_min[noisy-float-words]"]["value"]
    two.write(
        test_gates="""
            def test_fixtures(kl_of, compare_of):
                assert kl_of("noisy", "float", "words", statistic="max").cached
                whole, mean = compare_of("noisy", "float", "words"), kl_of("noisy", "float", "words")
                assert whole.cached and whole.kl.value == mean and mean.direction == "lower" and mean.n == 399
                assert "Mean PPL(Q)-PPL(base)" in str(whole)
        """
    )
    two.run(torch_free=True).expect(0, passed=1)


def test_two_models_of_the_same_weights_or_likelihoods_are_named_since_a_gate_between_them_can_never_fail(
    two: Project, pair: Path
) -> None:
    import peft
    import transformers

    with quiet():
        model = transformers.AutoModelForCausalLM.from_pretrained(pair / "float")
        untrained = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
        untrained.save_pretrained(str(two.folder / "untrained"))
    shutil.copytree(pair / "float", two.folder / "copy")
    two.add("models", copy="path: copy", half="path: copy, dtype: bfloat16")
    two.add("models", tuned=f"path: {pair}/float, adapter: untrained")
    kl = {name: MEAN.replace("noisy", name) for name in ("copy", "half", "tuned", "noisy")}
    better = 'no_regression("ppl", "{}", "words", "99%", against="float")'.format
    done = two.write(test_gates=marked(**kl, ppl=better("tuned"), worse=better("noisy"))).run()
    same = "gave every token exactly the same likelihood: either the adapter or quantization of one"
    done.says(f"'tuned' and its reference 'float' {same}", f"'tuned' and 'float' {same}").is_silent_on("'noisy' and")
    done.says("'copy' and its reference 'float' have the same weights and run in the same way: a gate")
    done.is_silent_on("'half' and its reference")


def test_a_sampled_divergence_is_judged_kept_and_compared(two: Project) -> None:
    sampled = 'estimator="sampled", max_new_tokens=8)'
    two.write(asked_jsonl="".join(f'{{"q": "w{n} w{n + 1}"}}\n' for n in range(4)))
    two.add("datasets", asked='path: asked.jsonl, prompt: "{q} w2"')  # without references
    two.write(
        test_gates=marked(
            kl=f'kl_max("noisy", "float", "words", 10.0, {sampled}',
            self_kl='self_kl_max("noisy", "asked", 1e-6, max_new_tokens=8)',
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
    assert (limit["details"]["estimator"], limit["details"]["reference"]) == ("sampled", "float")
    assert abs(found["self_kl_max[noisy-asked-max_new_tokens:8]"]["value"]) < 1e-9
    two.run("-k", "not exact", torch_free=True).expect(1, passed=3, failed=1).says("+0% [+0, +0]")
    two.run("-k", "exact").expect(4).says("max_new_tokens: only estimator='sampled' writes texts")


WORDS = [f"w{index}" for index in range(57)]
RARE, LENGTH = "w55", 30


def make_models(folder: Path) -> None:
    import torch
    import transformers

    vocabulary = ["<unk>", "<s>", "</s>", *WORDS]
    tokenizer = word_level(vocabulary, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    size = {"vocab_size": 60, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 32}
    config = transformers.GPT2Config(**size, tie_word_embeddings=False, bos_token_id=1)
    model = transformers.GPT2LMHeadModel(config).eval()
    norm, head = model.transformer.ln_f, model.lm_head.weight
    with torch.no_grad():
        for weights in model.parameters():
            weights.zero_()
        norm.bias[0] = 1

        def save(name: str) -> None:
            model.save_pretrained(folder / name)
            tokenizer.save_pretrained(folder / name)

        save("fair")
        head[vocabulary.index(RARE), 0] = -4
        save("deaf")


@pytest.fixture
def tagged(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    damaged = made_once(tmp_path_factory.getbasetemp(), "damaged", make_models)
    draw = random.Random(3)
    rows = []
    for row in range(40):
        language = "ko" if row % 4 == 0 else "en"
        words = draw.choices(WORDS[1:55], k=LENGTH)
        for at in (3, 11, 3 + row % 20) if language == "ko" else ():
            words[at] = RARE
        rows.append({"text": " ".join(words), "language": language, "source": "web"})
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Project(tmp_path).write(
        pytest_ini="[pytest]\n",
        conftest=COUNT_MEASUREMENTS,
        lmgate_yaml=f"""
            models:
              fair: {{path: {damaged}/fair}}
              deaf: {{path: {damaged}/deaf}}
            datasets:
              rows: {{path: rows.jsonl, tags: [language, source]}}
        """,
    )


def test_a_damaged_word_is_named_in_its_context_and_so_is_the_language_that_has_it(tagged: Project) -> None:
    gate = "no_regression('ppl', 'deaf', 'rows', '1%', protocol='document', against='fair')"
    tagged.write(test_gate=marked(gate=gate))
    done = tagged.run("--lmgate-report", "json:report.json").expect(1, failed=1)
    (judged,) = tagged.report()["gates"]
    where, spread = judged["where"], judged["spread"]
    # Ten rows have the damaged word, which is less likely; in the 30 others all words are the more likely.
    assert (spread["of"], spread["unit"], sum(spread["bins"])) == ("rows", "nats per token", 40)
    assert (spread["worse"], spread["same"], spread["better"]) == (10, 0, 30)
    assert (where["notes"], len(where["passages"])) == ([], 5)
    texts = [json.loads(line)["text"] for line in (tagged.folder / "rows.jsonl").read_text().splitlines()]
    for passage in where["passages"]:
        row = int(passage["place"].removeprefix("row "))
        assert passage["begins"] == texts[row][:120]
        assert passage["rise"] == pytest.approx(3 * 4 - passage["count"] * 0.0165, rel=1e-2)
        assert [token["token"] for token in passage["tokens"]] == [RARE] * 3
        for token in passage["tokens"]:
            assert token["loss"] - token["reference"] == pytest.approx(4 - 0.0165, abs=1e-3)
            assert f"{token['before']}{RARE}{token['after']}" in texts[row]
    worse, better = where["tags"]
    assert [(tag["value"], tag["rows"]) for tag in (worse, better)] == [("ko", 10), ("en", 30)]
    assert worse["lower"] > 0.2 > 0 > better["upper"]
    done.says("row ", f"[{RARE}]", "language=ko +", "10 rows", "not worse beyond noise: language=en -1.6")
    again = tagged.run("-n", "2", "--lmgate-report", "json:report.json").expect(1, failed=1)
    assert tagged.report()["gates"][0]["where"] == where
    again.says("cached", f"[{RARE}]", "language=ko +", "row 4: +11.5 nats over 29 tokens (+0.4 each)")
    for pattern in ("reproduce  pytest (.*)", "layers     lmgate (.*)"):
        words = shlex.split(re.findall(pattern, again.text)[0])
        if pattern.startswith("layers"):
            lmgate(tagged.folder, *words).says("deaf against fair on rows", "outside of the blocks")
        else:
            tagged.run(*words).expect(1, failed=1).says(f"[{RARE}]", "--lmgate-refresh measures again")
    assert sorted(tagged.measured) == ["deaf", "fair"]
