"""The page: nothing of the data is markup, nothing is loaded, and a browser runs it."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.inspect.data import ACCOUNT, collected, part, report_of, row
from toolkit.data.examples import Chat
from toolkit.inspect.charts import axis_end, length_chart, placed_marks, strip
from toolkit.inspect.collect import Source
from toolkit.inspect.figures import Bin, Lengths
from toolkit.inspect.page import page_of
from toolkit.inspect.report import Report

EVIL = "<script>alert('x')</script>"
VOID = {"meta", "input", "br"}


class Reader(HTMLParser):
    """Elements of a page, checked to be closed in order, and the text of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.titles: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        names = dict(attrs)
        assert not any(name.startswith("on") for name in names)
        assert not {"src", "href", "srcset"} & set(names)
        if tag == "i" and names.get("title"):
            self.titles.append(str(names["title"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def evil_report() -> Report:
    chat = Chat([{"role": "user", "content": EVIL}, {"role": "assistant", "content": "a&b\"'<i>"}], None, (False, True))
    train = part([row(EVIL, "a&b\"'<i>"), row(EVIL, "a&b\"'<i>"), row(EVIL, EVIL)], f"{EVIL}", examples=[chat] * 3)
    sources = [Source(EVIL, 0, 3, replace(ACCOUNT, dropped={EVIL: 2}))]
    report = report_of(collected(train, part([row(EVIL, "b")], EVIL), sources=sources))
    return replace(report, head=replace(report.head, model=EVIL, train=EVIL, template=EVIL, notes=[EVIL], config=EVIL))


def test_text_of_the_data_is_never_markup() -> None:
    page = page_of(evil_report())
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert reader.counts["script"] == 1
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page
    assert reader.titles[0] == "\u201c<\u201d\ntoken 0, id 60\nmasked"
    assert sum("control token" in title for title in reader.titles) == 3  # the end token of each row


def test_nothing_is_loaded_from_elsewhere() -> None:
    page = page_of(evil_report())
    assert not re.search(r"https?://|@import|url\(", page)


def test_the_rest_of_a_long_row_is_counted_not_shown() -> None:
    page = page_of(report_of(collected(part([row("p" * 1000, "a" * 1200)]), max_length=4096), rows=1))
    assert page.count("<i ") == 1500 + page.count('<i style="width')
    assert "701 more tokens are not shown here (701 of them supervised)" in page


def test_control_characters_of_the_data_are_shown_not_obeyed() -> None:
    page = page_of(report_of(collected(part([row("a\x1b[2J\u202eb\x00", "c")]))))
    assert not set("\x1b\u202e\x00") & set(page)


def test_labels_of_marks_never_meet() -> None:
    lengths = Lengths(10.0, 100, 105, 110, 112, 113, 1, 1, [Bin(i * 10, i * 10 + 10, 1) for i in range(12)])
    marks = placed_marks(lengths, axis_end(lengths))
    assert len({tier for *_, tier in marks}) == 5
    assert [value for value, *_ in marks] == [100, 105, 110, 112, 113]
    assert "max_length 113" in length_chart(lengths)
    far = replace(lengths, max_length=4096)
    assert "max_length 4,096 →" in length_chart(far)


def test_a_strip_is_as_wide_as_its_tokens() -> None:
    report = report_of(collected(part([row("a" * 20, "b" * 43), row("a" * 10, "b" * 53)]), max_length=64))
    drawn = strip(report.layout.micro_batches[0], report.layout)
    learnt = re.findall(r'class="learnt" x="([\d.]+)%" y="4" width="([\d.]+)%"', drawn)
    # Two rows of 64 tokens in a capacity of 256: learnt are 44 and 54 tokens, in the order of the plan.
    assert sorted(float(width) for _, width in learnt) == [pytest.approx(100 * n / 256, abs=1e-3) for n in (44, 54)]
    assert "50 % full" in drawn


def test_a_browser_runs_it(tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("needs a chromium binary")
    report = evil_report()
    page = tmp_path / "page.html"
    # A click on the switch, after the page's own script: the test of what it does.
    probe = "<script>document.getElementById('as-text').click()</script>"
    page.write_text(page_of(report).replace("</body>", probe + "</body>"), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*command, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        encoding="utf-8",
    )
    tokens = sum(shown.tokens for shown in report.rows)
    assert f'data-ready="{tokens}"' in done.stdout
    assert 'id="rows" class="texts"' in done.stdout
    assert "token 0, id 60" in done.stdout
    assert 'role="tooltip"' in done.stdout
