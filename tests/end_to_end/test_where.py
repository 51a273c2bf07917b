"""Where it got worse: damage to one word and to the rows of one language is named as such.

The model `fair` gives each of 60 tokens the same chance whatever it reads, since its last layer norm passes only a
constant on. Of `deaf` one word is less likely.
"""

import json
import random
import re
import shlex
from pathlib import Path

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project, lmgate, marked
from tests.models.tiny import made_once, word_level

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
