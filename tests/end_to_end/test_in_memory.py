"""A pair in memory of the libraries' classes is found again, by another interpreter too."""

from __future__ import annotations

from pathlib import Path

from tests.end_to_end.projects import Project

TEST = """
    import pathlib

    import transformers
    from where import MODELS

    TEXTS = [" ".join(f"w{(i * 7 + j) % 50}" for i in range(60)) for j in range(2)]

    def test_pair(ppl_of):
        model = transformers.AutoModelForCausalLM.from_pretrained(f"{MODELS}/sure")
        model.config.words = {"some", "words", "in", "no", "order"}
        tokenizer = transformers.AutoTokenizer.from_pretrained(f"{MODELS}/sure")
        score = ppl_of((model, tokenizer), TEXTS, protocol="document", max_length=32, stride=16)
        pathlib.Path(__file__).with_name("said.txt").write_text(f"{float(score)!r} {score.cached}")
"""


def test_a_pair_of_the_libraries_classes_is_found_again_by_another_interpreter(project: Project, models: Path) -> None:
    project.write(where=f"MODELS = {str(models)!r}", test_pairs=TEST)
    said = []
    for early in (False, True):  # the hashes of its texts begin with other random numbers
        project.run(early=early).expect(0).is_silent_on("not kept")
        said.append((project.folder / "said.txt").read_text().split())
    assert said == [[said[0][0], "False"], [said[0][0], "True"]]
