"""Reading datasets of every kind, unchanged; and what is said of those that cannot be read."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_lmgate.data.corpus import Corpus, corpus_from_rows, drawn, looks_like_documents, read_corpus
from pytest_lmgate.errors import DataError
from pytest_lmgate.settings.entries import DatasetSpec, RowSample

ROWS = ["first row", "zweite – 第二行\n한 줄", "", ' "quoted", \\ and\ttabbed ', "last\r\n"]


def read(path: Path, **spec: Any) -> Corpus:
    return read_corpus(DatasetSpec(path=str(path), **spec), path, name="d")


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_bytes("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    delimiter = "\t" if path.suffix == ".tsv" else ","
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL)
        writer.writerows([rows[0], *(row.values() for row in rows)])


def write_by_datasets(path: Path, rows: list[dict[str, Any]]) -> None:
    import datasets

    made = datasets.Dataset.from_list(rows)
    _ = made.to_parquet(path) if path.suffix else made.save_to_disk(path)


WRITERS: dict[str, Callable[[Path, list[dict[str, Any]]], None]] = {
    **{"rows.jsonl": write_jsonl, "rows.csv": write_csv, "rows.tsv": write_csv},
    **{"rows.parquet": write_by_datasets, "rows": write_by_datasets},
}


def test_a_text_file_is_one_text_whole_and_unchanged(tmp_path: Path):
    texts = ("one\r\ntwo\rthree\n\n", "\ufeffwith a mark", " \x00 \x0c \u2028 ", "no newline")
    for text, suffix in zip(texts, ("txt", "raw", "text", "md"), strict=True):
        path = tmp_path / f"a.{suffix}"
        path.write_bytes(text.encode())
        assert read(path) == Corpus("d", (text,), is_one_text=True)


def test_lines_are_rows_where_asked_and_end_with_lf_or_crlf_only(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\n\ntwo \u2028 still two\x0c\r three\n".encode())
    assert read(path, lines=True) == Corpus("d", ("one", "", "two \u2028 still two\x0c\r three"))
    assert read(path, lines=True, limit=2).rows == ("one", "")


@pytest.mark.parametrize("file", WRITERS)
def test_the_text_column_of_a_table_is_read_unchanged(tmp_path: Path, file: str):
    WRITERS[file](tmp_path / file, [{"id": index, "text": row} for index, row in enumerate(ROWS)])
    assert read(tmp_path / file) == Corpus("d", tuple(ROWS))


def test_a_comma_of_a_number_in_quotes_cuts_nothing(tmp_path: Path):
    texts = ("1,000 apples are red", "of 2,050 people", "at 7,1,000 came")
    (tmp_path / "a.csv").write_text("id,text\n" + "".join(f'7,"{text}"\n' for text in texts))
    assert read(tmp_path / "a.csv").rows == texts


@pytest.mark.parametrize("file", ["rows.jsonl", "rows.parquet", "rows"])
@pytest.mark.parametrize(("value", "kind"), [(None, "NoneType"), (3, "int"), (["x"], "list")])
def test_a_cell_that_is_no_text_is_an_error_that_names_its_row(tmp_path: Path, file: str, value: object, kind: str):
    rows = [{"text": "x"}, {"text": value}] if value is None or file == "rows.jsonl" else [{"text": value}]
    WRITERS[file](tmp_path / file, rows)
    with pytest.raises(DataError, match=f"row {len(rows) - 1}: column 'text': expected text, got {kind}$"):
        read(tmp_path / file)


def test_two_columns_of_parquet_with_one_name_are_an_error(tmp_path: Path):
    import pyarrow
    import pyarrow.parquet

    columns = [pyarrow.array(["x"]), pyarrow.array(["y"])]
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, names=["text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="2 columns are called 'text'"):
        read(tmp_path / "a.parquet")


NOT_UTF8 = b"x" * 750 + b"\n" + b"x" * 749 + b"\xe9y"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"


@pytest.mark.parametrize(
    ("file", "content", "lines", "message"),
    [
        ("gone.txt", None, False, r"no such file or folder: .*gone\.txt; check datasets\.d\.path$"),
        (".", None, False, ".*: not a folder saved by datasets: "),
        ("a.xml", b"", False, r"expected a file ending in \.txt, .*; got .*a\.xml$"),
        *[("a.txt", NOT_UTF8, lines, r".*a\.txt: not UTF-8 at byte 1,500 \(0xe9\)") for lines in (False, True)],
        *[(f"a.{kind}", b'text\n"caf\xe9"\n', False, r".*: not UTF-8 at byte 9") for kind in ("jsonl", "csv", "tsv")],
        *[("a.txt", text, lines, "expected text, got none") for text in (b"", b" \n\t") for lines in (False, True)],
        ("a.csv", "text,b\n".encode("utf-16"), False, r".*: not UTF-8 at byte 0 \(0xff\); .* iconv -f UTF-16"),
        ("a.csv", b"text;b\n1,5;c\n", False, r".*a\.csv:1: expected ',' between cells, got ';': 'text;b'; write"),
        ("a.csv", b"sep=;\ntext;b\n", False, r".*a\.csv:1: expected ',' between cells, got ';'"),
        ("a.csv", b"text\n", False, r"expected text, got none \(0 rows, all blank\)"),
        ("a.csv", b'text\n"open\n\n', False, r".*a\.csv:3: not CSV: .* in the row that begins in line 2$"),
        ("a.csv", b'text,b\na,"b\n"\n"e" f,g\n', False, r".*a\.csv:4: not CSV: [^.]*$"),
        ("a.csv", b"text,b\n\na,b\n1,000,c\n", False, r".*a\.csv:4: expected 2 cells, .* got 3: '1,000,c'"),
        (
            "a.csv",
            b"id,b,text\n1,4,2 + 2\n2,1,000 apples\n",
            False,
            r".*a\.csv:3: .* one number .* '1,000 apples'; put",
        ),
        ("a.tsv", b"text\tb\tc\na\tb\n", False, r".*a\.tsv:2: expected 3 cells, .* got 2"),
        ("a.csv", b"text,,,text \na,,,b\n", False, r".*a\.csv:1: 2 columns are called 'text'"),
        ("a.csv", b"id,b,text\n1,$2,000 is\n", False, r".*a\.csv:2: .* one number .* '\$2,000 is'; put"),
        ("a.csv", b"text,b\na,b\ntext,b\nc,d\n", False, r".*a\.csv:3: expected a row, got the header again"),
        ("a.csv", "\ufefftext,b\na,b\n\ufeffText, b\nc,d\n".encode(), False, r".*a\.csv:3: .* the header again"),
        ("a.jsonl", b'[{"text": "x"}]', False, r".*expected one row a line, got a JSON array; .* jq -c"),
        ("a.jsonl", b'\n[\n  {"text": "x"}\n]\n', False, ".*expected one row a line, got a JSON array"),
        ("a.jsonl", b'{"text": "x"}\n{"text": "x", "text": "y"}', False, r".*a\.jsonl:2: 2 columns are called"),
        ("a.jsonl", LFS, False, r".*a\.jsonl.*git lfs pull"),
        ("a.jsonl", b'{"text": "x"}\n{"text": "a \\ud83d"}', False, r".*a\.jsonl:2: not JSON: \\ud83d is half of a"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_that_says_why(
    tmp_path: Path, file: str, content: bytes | None, lines: bool, message: str
):
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=f"^dataset 'd': {message}"):
        read(tmp_path / file, **({"lines": True} if lines else {}))


def test_a_sample_is_what_sha256sum_puts_first_in_the_order_of_the_file():
    # for i in 0 1 2 3 4 5 6 7 8 9; do echo "$(printf "0 $i" | sha256sum) $i"; done | sort
    drawings = [drawn(range(10), RowSample(count, 0), "d") for count in (1, 4, 10)]
    assert drawings == [[6], [1, 2, 4, 6], list(range(10))]
    assert drawn(range(10), RowSample(4, 1), "d") == [1, 3, 5, 6]


@pytest.mark.parametrize(
    ("sizes", "rows", "shares"),
    [
        # 10 of 100: 5.1, 2.6, 1.4 and 0.9, of which the last gets 1; of the other 9, 5.04, 2.57 and 1.38.
        ((51, 26, 14, 9), 10, (5, 3, 1, 1)),
        # 7 of 70 are 4.7, 1.6 and 0.7: the last gets 1, and of the other 6, 4.48 and 1.52 are shared out.
        ((47, 16, 7), 7, (4, 2, 1)),
        ((97, 1, 1, 1), 4, (1, 1, 1, 1)),
        ((97, 1, 1, 1), 5, (2, 1, 1, 1)),
        ((5, 5, 5), 4, (2, 1, 1)),
        ((3, 2), 5, (3, 2)),
    ],
)
def test_strata_get_their_shares_by_largest_remainder_and_at_least_a_row(sizes: Any, rows: int, shares: Any):
    table = [{"text": "x", "kind": kind, "row": row} for kind, size in enumerate(sizes) for row in range(size)]
    found = drawn(table, RowSample(rows, 3, "kind"), "d")
    assert tuple(sum(row["kind"] == kind for row in found) for kind in range(len(sizes))) == shares
    assert found == [row for row in table if row in found]


@pytest.mark.parametrize("file", WRITERS)
def test_a_sample_of_any_kind_of_file_has_its_rows_tags_and_digest(tmp_path: Path, file: str):
    WRITERS[file](tmp_path / file, [{"text": f"row {index}", "kind": "ab"[index % 2]} for index in range(10)])
    found = read(tmp_path / file, sample=RowSample(4), tags="kind")
    assert (found.rows, found.tags) == (("row 1", "row 2", "row 4", "row 6"), {"kind": ("b", "a", "a", "a")})
    assert found.digest == corpus_from_rows(found.rows, name="d").digest
    assert read(tmp_path / file, sample=RowSample(4, 0, "kind")).rows == ("row 1", "row 4", "row 6", "row 7")


@pytest.mark.parametrize(
    ("sample", "facts"),
    [
        (RowSample(4), "at most 3 rows, as there are, got 4"),
        (RowSample(2, 0, "kind"), "'kind', which is different in each of the 3 rows"),
        (RowSample(2, 0, "knd"), "row 0: sample: by: no column 'knd' (did you mean 'kind'?)"),
        (RowSample(2, 0, "none"), "row 0: sample: by: column 'none' is null"),
        (RowSample(1, 0, "half"), "expected rows=2 or more, one for each value of 'half', got 1"),
    ],
)
def test_a_sample_that_cannot_be_drawn_is_an_error(tmp_path: Path, sample: RowSample, facts: str):
    rows = [{"text": "x", "kind": kind, "none": None, "half": kind > 1} for kind in range(3)]
    write_jsonl(tmp_path / "a.jsonl", rows)
    with pytest.raises(DataError, match=r"^dataset 'd': ") as caught:
        read(tmp_path / "a.jsonl", sample=sample)
    assert facts in str(caught.value)


def test_texts_and_mappings_in_memory_are_rows():
    import datasets

    for rows in (ROWS, iter(ROWS), [{"text": row} for row in ROWS], datasets.Dataset.from_dict({"text": ROWS})):
        assert corpus_from_rows(rows, name="m") == Corpus("m", tuple(ROWS))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"expected text, got none \(0 rows"),
        (["", ""], r"expected text, got none \(2 rows"),
        (["x", 3], "row 1: expected text or a mapping, got int"),
        ([{"a": "x"}], "row 0: no column 'text'; it has a"),
        ([{}], "row 0: no column 'text'; it has none"),
        (["fine", "half \ud83d"], r"row 1: '\\ud83d' at character 5 is half of a surrogate pair"),
    ],
)
def test_bad_rows_in_memory_are_an_error(rows: list[Any], message: str):
    with pytest.raises(DataError, match=f"^dataset 'm': {message}"):
        corpus_from_rows(rows, name="m")


def test_the_digest_tells_rows_joins_and_running_text_apart():
    rows = [("ab", "c"), ("a", "bc"), ("ab", "c", ""), ("c", "ab"), ("abc",), ("ab\n1\nc",)]
    corpora = [
        *(Corpus("d", each) for each in rows),
        *(Corpus("d", ("ab", "c"), **more) for more in ({"join": "\n"}, {"counted": ("ab", "c")})),
        *(Corpus("d", ("abc",), is_one_text=True, tokens=tokens) for tokens in (None, 2, 3)),
    ]
    assert len({corpus.digest for corpus in corpora}) == len(corpora)


SHORT = tuple(f"document number {number}" for number in range(10))
NO_DOCUMENTS = ("", "a line of wikitext \n", " = = Heading = = ", "## Heading", "a long document " * 2000)


@pytest.mark.parametrize(
    "corpus",
    [
        Corpus("data", SHORT[1:]),
        Corpus("data", SHORT, is_one_text=True),
        Corpus("data", SHORT, says_join=True),
        *(Corpus("data", (*SHORT, row)) for row in NO_DOCUMENTS),
    ],
)
def test_few_rows_one_text_and_lines_of_one_text_do_not_look_like_documents(corpus: Corpus):
    assert not looks_like_documents(corpus)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], Callable[..., Corpus]]:
    """Let the hub return some splits, or fail; the answer reads a dataset of it."""
    import datasets

    def answers(answer: object) -> Callable[..., Corpus]:
        def load_dataset(*_: object, **__: object) -> object:
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return lambda name, **spec: read_corpus(DatasetSpec(hub="org/texts", **spec), None, name=name, offline=False)

    return answers


def test_a_hub_dataset_of_one_split_is_read_and_of_several_one_has_to_be_named(hub: Any):
    import datasets

    rows = datasets.Dataset.from_dict({"text": ROWS})
    expected = Corpus("d", tuple(ROWS))
    assert hub({"train": rows})("d") == hub(rows)("d", split="test") == expected
    with pytest.raises(DataError, match=r"^dataset 'd': set split: to one of train, test; got None$"):
        hub({"train": rows, "test": rows})("d")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("d", ""), ("org/texts", "; there is no file or folder org/texts either (write ./org/texts, or name it in ")],
)
def test_a_hub_dataset_that_cannot_be_loaded_is_an_error_that_says_why(hub: Any, name: str, hint: str):
    with pytest.raises(DataError) as caught:
        hub(ConnectionError("the hub is down."))(name)
    said = f"dataset {name!r}: hub:org/texts: cannot be loaded from the hub: the hub is down{hint}"
    assert str(caught.value).startswith(said)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="a system without files that cannot be read")
@pytest.mark.parametrize("file", ["t.jsonl", "t.csv"])
def test_a_file_that_the_disk_cannot_give_is_an_error_that_says_why(tmp_path: Path, file: str):
    (tmp_path / file).symlink_to("/proc/self/mem")
    with pytest.raises(DataError, match=rf"^dataset 'd': {tmp_path / file}: cannot be read: Input/output error$"):
        read(tmp_path / file)


@pytest.mark.parametrize(("file", "more"), [("t.txt", {}), ("t.txt", {"lines": True}), ("t.jsonl", {})])
def test_more_than_1_gb_of_text_is_an_error_that_says_to_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, more: dict[str, Any]
):
    monkeypatch.setattr("pytest_lmgate.data.corpus.MOST_BYTES", 8)
    path = tmp_path / file
    path.write_text('{"text": "four"}\n{"text": "five."}\n' if file.endswith("l") else "four\nfive.", encoding="utf-8")
    with pytest.raises(DataError, match=r"^dataset 'd': expected at most 8 bytes of text, .* sample:"):
        read(path, **more)
    if more or path.suffix == ".jsonl":
        assert read(path, limit=1, **more).rows == ("four",)
