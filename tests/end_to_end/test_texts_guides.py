"""The guides on texts and choices: every file that they show is put on disk and run, with tiny models of its names."""

import re
import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from tests.docs.pages import missing
from tests.end_to_end.projects import Project
from tests.end_to_end.writers import make_writer

DOCS = Path(__file__).parents[2] / "docs"
CHAINS = (
    "옵니다 Rain is expected today.",
    "맑겠습니다 Tomorrow will be clear.",
    "붑니다 It blows at night.",
    "내리겠습니다 Snow falls the day after tomorrow.",
    "Korea? Seoul",
    "China? Beijing",
)
"""What the model of the guide to texts goes on with."""
CHOICES = (*CHAINS[-2:], "cup was too big.", "bag", "Eve had helped.", "Ann", "her cow", "to read")
"""What the model of the guide to choices goes on with."""
BLOCK = re.compile(r"(?:^`(?P<file>\S+)`:\n\n)?^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(guide: str) -> Iterator[tuple[str, str, str]]:
    """Yield kind, name of the file (where one is said) and text of each block of code."""
    for match in BLOCK.finditer((DOCS / guide).read_text("utf-8")):
        file, body = match["file"] or "", match["body"]
        if match["kind"] == "python":
            file = body.partition("\n")[0].removeprefix("# ")
        yield match["kind"], file, body


def put_on_disk(guide: str, folder: Path) -> Project:
    """Write all files of a guide; what it shows of one file in several places is put together."""
    config: dict[str, dict[str, Any]] = {}
    written: dict[str, str] = {"pytest.ini": "[pytest]\naddopts = --strict-markers\n"}
    for kind, file, body in blocks(guide):
        if kind == "yaml":
            for key, entries in yaml.safe_load(body).items():
                config.setdefault(key, {}).update(entries)
        elif kind:
            assert re.fullmatch(r"data/\w+\.jsonl|test_\w+\.py|conftest\.py", file), f"a block of no file: {body}"
            written[file] = written.get(file, "") + body + "\n"
    written["lmgate.yaml"] = yaml.safe_dump(config, allow_unicode=True)
    for file, text in written.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    return Project(folder)


def make_chains(folder: Path, chains: Sequence[str]) -> None:
    words = dict.fromkeys(["<unk>", "<s>", "</s>", "Busan", "Shanghai", *" ".join(chains).split()])
    successors = dict.fromkeys(words, "</s>") | {a: b for chain in chains for a, b in pairwise(chain.split())}
    make_writer(folder, list(words), successors)
    (folder / "chat_template.jinja").write_text("{% for turn in messages %}{{ turn.content }} {% endfor %}")


def count_tests(guide: str) -> int:
    return sum(body.count("\ndef test_") for kind, _, body in blocks(guide) if kind == "python")


def test_the_guide_to_texts(tmp_path: Path) -> None:
    make_chains(tmp_path / "models" / "translator", CHAINS)
    outcome = put_on_disk("texts.md", tmp_path).run("-W", "error", env={"COLUMNS": "110"})
    outcome.expect(1, passed=count_tests("texts.md") - 1, failed=1)
    (shown,) = [body for kind, _, body in blocks("texts.md") if not kind]
    assert missing(shown, outcome.out) == ""


def test_the_guide_to_choices(tmp_path: Path, writers: Path) -> None:
    for name, source in {"bert": "masked", "t5": "translator"}.items():
        shutil.copytree(writers / source, tmp_path / "models" / name)
    make_chains(tmp_path / "models" / "candidate", CHOICES)
    put_on_disk("choices.md", tmp_path).run("-W", "error").expect(0, passed=count_tests("choices.md"))
