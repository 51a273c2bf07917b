"""BLEU of texts without spaces between words says once which tokenizer to use."""

from pathlib import Path

from tests.end_to_end.projects import Project

TEST = """
    TEXTS = ["今天天气很好。", "我们明天去北京。"]

    def test_by_default(bleu_of, chrf_of):
        for _ in range(2):
            bleu_of(predictions=TEXTS, references=[[text] for text in TEXTS])
        chrf_of(predictions=TEXTS, references=[[text] for text in TEXTS])

    def test_again(bleu_of):
        bleu_of(predictions=TEXTS, references=[[text] for text in TEXTS])

    def test_zh(bleu_of):
        assert bleu_of(predictions=TEXTS, references=[[text] for text in TEXTS], tokenize="zh") > 99
"""
HINT = "the given texts: BLEU's tokenizer 13a splits at spaces"


def test_the_tokenizer_is_named_once(tmp_path: Path) -> None:
    project = Project(tmp_path, "pytest").write(test_it=TEST, pytest_ini="[pytest]\n")
    outcome = project.run("-n", "2").expect(0, passed=3)
    assert outcome.text.count(HINT) == 1, outcome.text
    project.run("-k", "zh").expect(0, passed=1).is_silent_on("splits at spaces")
