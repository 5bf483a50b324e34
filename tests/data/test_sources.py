"""Rows come out of files value for value, and what is wrong with a file is said with its line."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from toolkit.config import DataConfig, SourceConfig
from toolkit.data.rows import Row, RowError
from toolkit.data.sources import find_sources
from toolkit.data.sources import read_rows as rows_of_source
from toolkit.data.sources.locate import is_hub_id
from toolkit.errors import UserError


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return str(path)


def read_rows(source: str | list[str], on_error=None, **options) -> Iterator[Row]:
    found = find_sources(DataConfig(train=source, **options), "train")
    return (row for one in found for row in rows_of_source(one, on_error))


def values(source: str | list[str], **options) -> list[dict]:
    return [row.values for row in read_rows(source, **options)]


def lines(source: str) -> list[int]:
    return [row.line for row in read_rows(source)]


def error_of(source: str, **options) -> str:
    with pytest.raises(UserError) as info:
        list(read_rows(source, **options))
    assert "\n" not in str(info.value)
    return str(info.value)


def test_byte_order_mark_changes_nothing(tmp_path: Path) -> None:
    row = '{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"r"}]}\n'
    plain, marked = write(tmp_path / "a.jsonl", row * 2), write(tmp_path / "b.jsonl", "\ufeff" + row * 2)
    assert values(plain) == values(marked)
    assert len(values(marked)) == 2
    assert values(write(tmp_path / "b.json", "\ufeff[" + row + "]")) == values(plain)[:1]
    assert values(write(tmp_path / "b.csv", "\ufeffprompt,completion\na,b\n")) == [{"prompt": "a", "completion": "b"}]


def test_windows_lines_blank_lines_and_no_final_newline(tmp_path: Path) -> None:
    text = '{"prompt":"a","completion":"b"}\r\n\r\n{"prompt":"c\\r","completion":"d"}'
    source = write(tmp_path / "a.jsonl", text)
    assert values(source) == [{"prompt": "a", "completion": "b"}, {"prompt": "c\r", "completion": "d"}]
    assert lines(source) == [1, 3]
    source = write(tmp_path / "a.csv", "prompt,completion\r\na,b\r\n\r\nc,d")
    assert values(source) == [{"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": "d"}]
    assert lines(source) == [2, 4]


def test_unicode_line_separators_do_not_end_a_row(tmp_path: Path) -> None:
    assert values(write(tmp_path / "a.jsonl", '{"text":"a\u2028b\u0085c"}\n')) == [{"text": "a\u2028b\u0085c"}]
    assert values(write(tmp_path / "a.csv", "text,n\na\u2028b,1\n")) == [{"text": "a\u2028b", "n": "1"}]


@pytest.mark.parametrize("bad", ['{"prompt":"c","completion":"d",}', '{"prompt":"c"},', '{"prompt":["c",]}'])
def test_trailing_comma(tmp_path: Path, bad: str) -> None:
    good = '{"prompt":"a","completion":"b"}\n'
    source = write(tmp_path / "a.jsonl", good + bad + "\n" + good)
    assert error_of(source).startswith(f"{source}:2: trailing comma")
    skipped: list[RowError] = []
    assert [row.line for row in read_rows(source, on_error=skipped.append)] == [1, 3]
    assert [error.reason for error in skipped] == ["trailing comma"]


def test_comma_after_every_object(tmp_path: Path) -> None:
    assert ":1: trailing comma" in error_of(write(tmp_path / "a.jsonl", '{"prompt":"a"},\n{"prompt":"b"},\n'))
    assert ":1: trailing comma" in error_of(write(tmp_path / "a.json", '{"prompt":"a"},\n{"prompt":"b"}\n'))


def test_trailing_comma_in_an_array_names_the_line(tmp_path: Path) -> None:
    assert ":3: trailing comma" in error_of(write(tmp_path / "a.json", '[\n{"a": "b"},\n]\n'))


def test_other_broken_json_and_long_rows(tmp_path: Path) -> None:
    message = error_of(write(tmp_path / "a.jsonl", '{"a": "' + "x" * 5000 + "\n"))
    assert ":1: not valid JSON" in message
    assert "x" * 190 in message
    assert "x" * 201 not in message


def test_array_in_a_jsonl_file(tmp_path: Path) -> None:
    row = {"prompt": "a", "completion": "b"}
    assert values(write(tmp_path / "x.jsonl", '[{"prompt":"a","completion":"b"}]')) == [row]
    many = write(tmp_path / "y.jsonl", '[\n{"prompt":"a",\n"completion":"b"},\n{"prompt":"a","completion":"b"}]\n')
    assert values(many) == [row, row]
    assert lines(many) == [1, 2]
    assert values(write(tmp_path / "empty.json", "[]")) == []


def test_json_file_of_lines_or_of_one_object(tmp_path: Path) -> None:
    assert values(write(tmp_path / "a.json", '{"a": "1"}\n{"a": "2"}\n')) == [{"a": "1"}, {"a": "2"}]
    assert values(write(tmp_path / "b.json", '{\n"a": "1"\n}\n')) == [{"a": "1"}]


@pytest.mark.parametrize("count", [1, 2])
def test_bare_list_of_messages(tmp_path: Path, count: int) -> None:
    line = '[{"role":"user","content":"q"},{"role":"assistant","content":"r"}]\n'
    message = error_of(write(tmp_path / "y.jsonl", line * count))
    assert ":1: " in message
    assert "object" in message
    assert '"messages"' in message


@pytest.mark.parametrize(("bad", "kind"), [("3", "a int"), ('"x"', "a string"), ("null", "null"), ("[1]", "a list")])
def test_row_that_is_no_object(tmp_path: Path, bad: str, kind: str) -> None:
    assert f":2: the row is {kind}, not an object" in error_of(write(tmp_path / "a.jsonl", f'{{"a":"b"}}\n{bad}\n'))


def test_unpaired_surrogate(tmp_path: Path) -> None:
    good = '{"prompt":"hi","completion":"\\ud83d\\ude00"}'
    source = write(tmp_path / "a.jsonl", '{"prompt":"hi","completion":"x\\ud83d y"}\n' + good)
    assert ":1: unpaired surrogate" in error_of(source)
    assert [row.values["completion"] for row in read_rows(source, on_error=lambda e: None)] == ["\U0001f600"]


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv"])
@pytest.mark.parametrize(("encoding", "where"), [("latin-1", ":3: not valid UTF-8 (byte 0xe9"), ("utf-16", "UTF-16")])
def test_other_encodings(tmp_path: Path, suffix: str, encoding: str, where: str) -> None:
    text = "prompt,completion\na,b\ncafé,c\n" if suffix == "csv" else '{"a":"b"}\n{"a":"c"}\n{"a":"café"}\n'
    message = error_of(write(tmp_path / f"a.{suffix}", text.encode(encoding)))
    assert where in message
    assert "iconv" in message
    if encoding == "latin-1":
        assert f"at offset {text.index('é')}" in message


def test_utf8_under_any_locale(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"a":"café"}\n')
    write(tmp_path / "b.csv", "a,b\ncafé,c\n")
    code = "from toolkit.config import DataConfig\nfrom toolkit.data.sources import find_sources, read_rows\n"
    code += f"[source] = find_sources(DataConfig(train={str(tmp_path)!r}), 'train')\n"
    code += "print(ascii([row.values['a'] for row in read_rows(source)]))"
    environment = {**os.environ, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=root, capture_output=True, check=True)
    assert done.stdout.decode().strip() == r"['caf\xe9', 'caf\xe9']"


WORDS = ["NA", "null", "None", "nan", "00123", "2024-05-01", "1e5", "True", " x "]


def test_words_stay_words(tmp_path: Path) -> None:
    table = "prompt,completion\n" + "".join(f"q,{word}\n" for word in WORDS) + "q,\n"
    source = write(tmp_path / "a.csv", table)
    assert [row["completion"] for row in values(source)] == [*WORDS, ""]
    rows = "".join(f'{{"completion": "{word}"}}\n' for word in WORDS)
    assert [row["completion"] for row in values(write(tmp_path / "a.jsonl", rows))] == WORDS
    pq.write_table(pa.table({"completion": WORDS}), tmp_path / "a.parquet")
    assert [row["completion"] for row in values(str(tmp_path / "a.parquet"))] == WORDS


def test_csv_with_a_field_too_many_or_too_few(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", "prompt,completion\na,b\nc,d,e\nf\ng,h\n")
    assert ":3: 3 fields, header has 2; quote the text" in error_of(source)
    found: list[RowError] = []
    assert [row.line for row in read_rows(source, on_error=found.append)] == [2, 5]
    assert [error.where.rsplit(":")[-1] for error in found] == ["3", "4"]


def test_csv_with_another_delimiter(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", "prompt;completion\na;b\n")
    message = error_of(source)
    assert "'prompt;completion'" in message
    assert "data.delimiter: ';'" in message
    assert values(source, delimiter=";") == [{"prompt": "a", "completion": "b"}]
    assert "one character" in error_of(source, delimiter=";;")


def test_csv_with_duplicate_columns(tmp_path: Path) -> None:
    assert ":1: duplicate column 'text'" in error_of(write(tmp_path / "a.csv", "text,id,text\na,b,c\n"))


def test_csv_quotes_and_physical_lines(tmp_path: Path) -> None:
    text = 'prompt,completion\n"line1\nline2","he said ""hi"", ok"\n"a\rb",c\nd,e,f\n'
    source = write(tmp_path / "a.csv", text)
    rows = list(read_rows(source, on_error=lambda e: None))
    assert [row.values["prompt"] for row in rows] == ["line1\nline2", "a\rb"]
    assert rows[0].values["completion"] == 'he said "hi", ok'
    assert [row.line for row in rows] == [2, 4]
    assert ":5: 3 fields" in error_of(source)


def test_csv_with_a_quote_that_never_closes(tmp_path: Path) -> None:
    assert ":3: not valid CSV" in error_of(write(tmp_path / "a.csv", 'a,b\nc,d\n"e,f\ng,h\n'))


def test_csv_with_a_very_long_field(tmp_path: Path) -> None:
    assert len(values(write(tmp_path / "a.csv", "text,id\n" + "x" * 300_000 + ",1\n"))[0]["text"]) == 300_000


def test_parquet_has_no_invented_keys(tmp_path: Path) -> None:
    call = {"name": "f", "arguments": "{}"}
    rows = [
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r", "tool_calls": [call]}]},
        {"messages": [{"role": "user", "content": "s"}], "note": "n"},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = list(read_rows(str(tmp_path / "a.parquet")))
    assert [row.values for row in found] == [rows[0], {"messages": rows[1]["messages"]}]  # note is no column of row 1
    assert [row.line for row in found] == [1, 2]


def test_parquet_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"text": [str(i) for i in range(5000)]}), tmp_path / "a.parquet")
    taken = []
    original = pq.ParquetFile.iter_batches

    def counted(self, *args, **kwargs):
        for batch in original(self, *args, **kwargs):
            taken.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    rows = read_rows(str(tmp_path / "a.parquet"))
    assert next(rows).values == {"text": "0"}
    assert sum(taken) < 5000
    assert [row.line for row in rows][-1] == 5000


def test_broken_parquet(tmp_path: Path) -> None:
    assert "cannot be read as parquet" in error_of(write(tmp_path / "a.parquet", "not parquet"))


def test_folder_glob_and_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = write(tmp_path / "b.jsonl", '{"a":"2"}'), write(tmp_path / "a.csv", "a,b\n1,x\n")
    write(tmp_path / "notes.txt", "no data")
    write(tmp_path / ".hidden.jsonl", '{"a":"0"}')
    assert [row["a"] for row in values(str(tmp_path))] == ["1", "2"]
    assert [row["a"] for row in values(str(tmp_path / "*"))] == ["1", "2"]
    assert [row["a"] for row in values([first, second])] == ["2", "1"]
    assert [row.path for row in read_rows([first, second])] == [first, second]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert [row["a"] for row in values("~/b.jsonl")] == ["2"]
    odd = tmp_path / "run [1] #x"
    odd.mkdir()
    assert values(write(odd / "a b.jsonl", '{"a":"3"}')) == [{"a": "3"}]


@pytest.mark.parametrize(
    "missing", ["./modles/none", "/data/none/x.jsonl", "data/none.jsonl", "none.jsonl", "a/b/c", "~/no"]
)
def test_missing_path_fails_at_once(missing: str) -> None:
    start = time.monotonic()
    with pytest.raises(UserError) as info:
        read_rows(missing)  # at the call, not at the first row
    assert time.monotonic() - start < 1
    resolved = Path(missing).expanduser().resolve()
    parent = next(p for p in resolved.parents if p.exists())
    assert f"path does not exist (looked for {resolved}; nearest existing parent: {parent})" in str(info.value)


def test_nothing_to_read(tmp_path: Path) -> None:
    write(tmp_path / "notes.md", "x")
    assert "no data file in this folder; supported: .jsonl .ndjson .json .csv" in error_of(str(tmp_path))
    assert "matches no data file" in error_of(str(tmp_path / "*.jsonl"))
    assert "cannot read files of type '.md'" in error_of(str(tmp_path / "notes.md"))
    assert "empty" in error_of([])
    for name in ("a.jsonl", "a.json", "a.csv"):
        assert values(write(tmp_path / name, "")) == []
        assert values(write(tmp_path / name, "\n \n" if name != "a.csv" else "\n\n")) == []


def test_what_is_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "local").mkdir()
    assert is_hub_id("owner/name")
    assert is_hub_id("squad")
    for path in ("./owner/name", "/owner/name", "~/name", "owner/name.jsonl", "a.csv", "a/b/c", "local"):
        assert not is_hub_id(path)


def test_hub_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked = []

    def load(name: str, config: str | None, split: str, revision: str | None):
        asked.append((name, split))
        if name == "owner/gone":
            raise ConnectionError("Couldn't reach the Hub\nat all")
        return [{"text": "a", "extra": None}, {"text": "b", "extra": "c"}]

    monkeypatch.setattr(datasets, "load_dataset", load)
    rows = read_rows("owner/name", train_split="test")
    assert asked == []  # lazily
    assert [(row.values, row.where) for row in rows] == [
        ({"text": "a"}, "owner/name:1"),
        ({"text": "b", "extra": "c"}, "owner/name:2"),
    ]
    assert asked == [("owner/name", "test")]
    assert error_of("owner/gone").startswith("owner/gone: cannot load this hub dataset, split 'train' (ConnectionError")


@pytest.mark.parametrize(("suffix", "codec"), [("gz", "gzip"), ("zst", "zstd")])
@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "txt"])
def test_compressed_files(tmp_path: Path, kind: str, suffix: str, codec: str) -> None:
    text = {"jsonl": '{"text": "a"}\n', "json": '[{"text": "a"}]', "csv": "text\na\n", "txt": "a\n"}[kind]
    packed = pa.compress(text.encode(), codec=codec, asbytes=True)
    assert values(write(tmp_path / f"x.{kind}.{suffix}", packed)) == [{"text": "a"}]
    if kind == "jsonl":
        assert values(write(tmp_path / f"two.{kind}.{suffix}", packed * 2)) == [{"text": "a"}] * 2
        large = pa.compress(text.encode() * 100_000, codec=codec, asbytes=True)
        assert "is damaged or was cut short" in error_of(write(tmp_path / f"cut.{kind}.{suffix}", large[:-20]))


@pytest.mark.parametrize("encoding", ["latin-1", "gbk", "utf-16"])
@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "txt"])
def test_an_encoding_that_is_named_is_used(tmp_path: Path, kind: str, encoding: str) -> None:
    """A13."""
    word = "中文" if encoding == "gbk" else "café"
    texts = {"jsonl": f'{{"text": "{word}"}}\n', "json": f'[\n{{"text": "{word}"}}]', "csv": f"text\n{word}\n"}
    source = write(tmp_path / f"x.{kind}", texts.get(kind, word).encode(encoding))
    assert values(source, encoding=encoding) == [{"text": word}]


def test_text_files(tmp_path: Path) -> None:
    source = write(tmp_path / "a.txt", "one\r\ntwo\n\n\nthree\n")
    assert [row["text"] for row in values(source)] == ["one", "two", "three"]
    assert lines(source) == [1, 2, 5]
    assert [row["text"] for row in values(source, sample_by="paragraph")] == ["one\ntwo", "three"]
    assert [row["text"] for row in values(source, sample_by="document")] == ["one\ntwo\n\n\nthree"]


def test_rows_under_a_key(tmp_path: Path) -> None:
    source = write(tmp_path / "a.json", '{"meta": {}, "faq": [{"text": "a"}, {"text": "b"}]}')
    assert "seem to lie under 'faq'; set field: faq" in error_of(source)
    assert values([SourceConfig(path=source, field="faq")]) == [{"text": "a"}, {"text": "b"}]
    assert "there is no list under field 'x' (keys: meta, faq)" in error_of([SourceConfig(path=source, field="x")])
    assert len(values(write(tmp_path / "b.json", '{"messages": [{"role": "user", "content": "q"}]}'))) == 1


def test_numbers_keep_all_their_digits(tmp_path: Path) -> None:
    long = 123456789012345678901234567890
    source = write(tmp_path / "a.jsonl", f'{{"a": {long}}}\n{{"a": [1, {long}]}}\n{{"a": -9007199254740993}}\n')
    assert [row["a"] for row in values(source)] == [long, [1, long], -9007199254740993]


def test_lines_are_counted_across_blocks(tmp_path: Path) -> None:
    text = "".join(f'{{"text": "{"x" * (i % 700)}"}}\n' + "\n" * (i % 3 == 0) for i in range(6000))
    source = write(tmp_path / "a.jsonl", text + "{bad\n")
    numbers = [n for n, line in enumerate(text.split("\n"), start=1) if line]
    found: list[RowError] = []
    assert [row.line for row in read_rows(source, on_error=found.append)] == numbers
    assert found[0].where == f"{source}:{text.count(chr(10)) + 1}"
