"""Where it got worse: damage to one word, to late positions and to the rows of one language is named as such.

The model `fair` gives each of 60 tokens the same chance whatever it reads, since its last layer norm passes only a
constant on. Of `deaf` one word is less likely. Of `late` the layer norm passes the position on from the 20th on, and
there one word seems certain.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.projects import COUNT_MEASUREMENTS, Project
from tests.models.tiny import made_once, word_level

WORDS = [f"w{index}" for index in range(57)]
RARE, LATE, LENGTH = "w55", 20, 30


def make_models(folder: Path) -> None:
    import torch
    import transformers

    vocabulary = ["<unk>", "<s>", "</s>", *WORDS]
    tokenizer = word_level(vocabulary, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    config = transformers.GPT2Config(
        vocab_size=60, n_embd=8, n_layer=1, n_head=2, n_positions=32, tie_word_embeddings=False, bos_token_id=1
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    norm, head, positions = model.transformer.ln_f, model.lm_head.weight, model.transformer.wpe.weight
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
        head.zero_()
        norm.weight[1], positions[LATE - 1 :, 1] = 1, 5
        head[vocabulary.index("w0"), 1] = 2
        save("late")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory.getbasetemp(), "damaged", make_models)


@pytest.fixture
def tagged(tmp_path: Path, damaged: Path) -> Project:
    draw = random.Random(3)
    rows = []
    for row in range(40):
        language = "ko" if row % 4 == 0 else "en"
        words = draw.choices(WORDS[1:55], k=LENGTH)
        if language == "ko":
            for at in (3, 11, 3 + row % 20):
                words[at] = RARE
        rows.append({"text": " ".join(words), "language": language, "source": "web"})
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "words.txt").write_text(" ".join(row["text"] for row in rows))
    return Project(tmp_path).write(
        pytest_ini="[pytest]\n",
        conftest=COUNT_MEASUREMENTS,
        lmgate_yaml=f"""
            models:
              fair: {{path: {damaged}/fair}}
              deaf: {{path: {damaged}/deaf}}
              late: {{path: {damaged}/late}}
            datasets:
              rows: {{path: rows.jsonl, tags: [language, source]}}
              words: {{path: words.txt}}
        """,
    )


def gate(model: str, dataset: str = "rows", *, metric: str = "ppl", protocol: str = "document", more: str = "") -> str:
    given = f'"{metric}", "{model}", "{dataset}", "1%", protocol="{protocol}"'
    return f"import pytest\n\n@pytest.mark.no_regression({given}{more})\ndef test_gate(): pass\n"


def where_of(project: Project) -> dict[str, Any]:
    where: dict[str, Any] = project.report()["gates"][0]["where"]
    return where


REPORT = ("--lmgate-report", "json:report.json")


def test_a_word_that_got_worse_is_named_in_its_context_and_so_is_the_language_that_has_it(tagged: Project) -> None:
    tagged.write(test_gate=gate("deaf", more=', against="fair"'))
    out = tagged.run(*REPORT).expect(1, failed=1)
    print(out.text)
    where = where_of(tagged)
    print(json.dumps(where, indent=1)[:3000])
    assert False
