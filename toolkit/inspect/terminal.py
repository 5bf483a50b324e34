"""The report in a terminal, a pipe or a log: coloured where there is colour, marked with [[ ]] where there is none."""

from __future__ import annotations

from typing import TextIO

from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from toolkit.inspect.figures import FEW_SUPERVISED, Figures, Lengths, RowFigures, total_account
from toolkit.inspect.repeats import Repeated
from toolkit.inspect.report import Report
from toolkit.inspect.rows import TEMPLATE, Block, ShownRow, Token
from toolkit.inspect.wording import counted, percent, rows_of, sentence, short_number, short_place, visible_controls

_SHOWN_TOKENS = 400
_BAR_LINES = 14
_ROLE_STYLES = {"user": "bold blue", "assistant": "bold green", "completion": "bold green", "system": "bold magenta"}


def terminal(stream: TextIO) -> Console:
    """A console on `stream` that can print any text: what its encoding lacks comes as escapes such as \\u4f60."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    return Console(file=stream, highlight=False, emoji=False)


def print_report(report: Report, console: Console) -> None:
    """Headline, findings, rows token by token, and the figures as tables."""
    _headline(report, console)
    marked = console.color_system is None or console.no_color
    if report.rows:
        _heading("Rows", console)
        console.print(_legend(marked))
    for row in report.rows:
        _row(row, console, marked)
    _heading(f"Row lengths (tokens, data.max_length {report.train.lengths.max_length:,})", console)
    _histogram(report.train.lengths, console)
    _sources(report, console)
    _micro_batches(report, console)
    _repeats(report, console)
    _ends(report.train, console)


def _headline(report: Report, console: Console) -> None:
    train, head = report.train, report.head
    share = percent(train.supervised_share)
    title = f"[bold green]{train.supervised:,}[/] of [bold]{train.tokens:,}[/] tokens teach your model ({share})"
    lengths, layout = train.lengths, report.layout
    held_out = f", {report.eval.rows:,} for evaluation" if report.eval else ""
    steps = counted(layout.total_steps, "optimizer step", "optimizer steps")
    said = f"{rows_of(train.rows)}{held_out}; median {lengths.p50:,} tokens, longest {lengths.longest:,}\n"
    said += f"{steps} of {rows_of(layout.global_batch_size)}"
    about = Table.grid(padding=(0, 2))
    about.add_column(style="dim", no_wrap=True)
    about.add_column(overflow="fold")
    entries = (("model", head.model), ("template", head.template), ("train", head.train), ("eval", head.eval or "none"))
    for name, value in entries:
        about.add_row(name, _data(value))
    bar = _share_bar(train.supervised_share, max(10, min(60, console.width - 6)), console)
    console.print(
        Panel(Group(title, "", bar, "", said, "", about), box=_box(console), padding=(1, 2), border_style="dim")
    )
    signs = {"look": "[bold yellow]![/]", "note": "[blue]i[/]", "good": f"[green]{'ok' if _ascii(console) else '✓'}[/]"}
    table = Table.grid(padding=(0, 1))
    for finding in report.findings:
        table.add_row(f" {signs[finding.level]}", escape(sentence(finding.text)))
    console.print(table)


def _legend(marked: bool) -> Text:
    if marked:
        return Text("[[ ]] supervised: learnt. All else is masked: only read.\n")
    legend = Text()
    for text, style in (
        ("supervised: learnt", "green"),
        ("masked: only read", "bright_black"),
        ("control token", "reverse"),
    ):
        legend.append(f" {text} ", style).append("  ")
    return legend.append("\n")


def _row(row: ShownRow, console: Console, marked: bool) -> None:
    share = percent(row.supervised / row.tokens) if row.tokens else "0 %"
    place = escape(visible_controls(short_place(row.place)))
    console.rule(f"[bold]{place}[/]  [dim]{row.tokens:,} tokens, {row.supervised:,} supervised ({share})[/]", align="left",
                 characters="-" if _ascii(console) else "─", style="dim")  # fmt: skip
    left = _SHOWN_TOKENS
    for block in row.blocks:
        if left <= 0:
            break
        if block.role != TEMPLATE:
            console.print(Text(visible_controls(block.role), _ROLE_STYLES.get(block.role, "bold")))
        console.print(block_text(block, block.tokens[:left], marked, _ascii(console)), soft_wrap=False)
        left -= len(block.tokens)
    if row.tokens > _SHOWN_TOKENS:
        rest = [token for block in row.blocks for token in block.tokens][_SHOWN_TOKENS:]
        learnt = sum(token.supervised for token in rest)
        console.print(Text(f"... {len(rest):,} more tokens are not shown ({learnt:,} of them supervised)", "dim"))
    console.print()


def block_text(block: Block, tokens: list[Token], marked: bool, ascii_only: bool) -> Text:
    """The tokens of one block. marked: [[ ]] around what is supervised instead of colour. Line ends that the template
    writes are shown as signs, so that its frame stays on one line."""
    line_end = ("\\n" if ascii_only else "↵") if block.role == TEMPLATE else "\n"
    text, learnt = Text(), False
    for token in tokens:
        if marked and token.supervised != learnt:
            text.append("[[" if token.supervised else "]]")
        learnt = token.supervised
        style = "green" if token.supervised else "bright_black"
        shown = visible_controls(token.text).replace("\n", line_end)
        text.append(shown, f"{style} reverse" if token.special else style)
    return text.append("]]") if marked and learnt else text


def _histogram(lengths: Lengths, console: Console) -> None:
    """Bars from left to right; few enough bins for the lines there are, neighbours joined."""
    bins = lengths.bins
    if not bins:
        return
    step = -(-len(bins) // _BAR_LINES)
    joined = [
        (part[0].start, part[-1].end, sum(b.rows for b in part))
        for part in (bins[i : i + step] for i in range(0, len(bins), step))
    ]
    tallest = max(rows for *_, rows in joined)
    marks = [("p50", lengths.p50), ("p90", lengths.p90), ("p99", lengths.p99), ("longest", lengths.longest)]
    marks.append(("max_length", lengths.max_length))
    width = max(8, console.width - 62)
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True, style="dim")
    table.add_column(no_wrap=True, style="green")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="yellow")
    for start, end, rows in joined:
        here = [f"{name} {value:,}" for name, value in marks if start <= value and (end is None or value < end)]
        label = f"{start:,}-{end - 1:,}" if end is not None else f"{start:,}+"
        bar = _bar(rows / tallest if tallest else 0, width, console)
        table.add_row(label, bar, f"{rows:,}", (("<- " if _ascii(console) else "◂ ") + ", ".join(here)) if here else "")
    console.print(table)
    beyond = "" if lengths.max_length <= lengths.longest else f"; max_length {lengths.max_length:,} leaves room"
    near, full = rows_of(lengths.near_limit), lengths.at_limit
    console.print(Text(f"{near} within 10 % of the limit, {full:,} exactly at it{beyond}", "dim"))


def _sources(report: Report, console: Console) -> None:
    table = _table(console, "Source", ("Rows", "r"), ("Tokens", "r"), ("Supervised", "r"), ("Of all tokens", "r"))
    for source in report.sources:
        shares = percent(source.supervised_share), percent(source.mixture)
        table.add_row(Text(visible_controls(source.name)), f"{source.rows:,}", short_number(source.tokens), *shares)
    _heading("Sources", console)
    console.print(table)
    accounts = [source.account for source in report.sources if source.account is not None]
    if accounts:
        total = total_account(accounts)
        dropped = sum(total.dropped.values())
        said = f"{rows_of(total.read)} read = {total.whole:,} whole + {total.truncated:,} truncated + {total.split:,} split"
        console.print(Text(f"{said} + {dropped:,} dropped"))
        for reason, count in total.dropped.items():
            console.print(Text(f"  dropped: {reason}: {count:,}", "yellow"))
        if total.answers_cut:
            console.print(Text(f"  {counted(total.answers_cut, 'answer', 'answers')} lost the end", "yellow"))


def _micro_batches(report: Report, console: Console) -> None:
    layout = report.layout
    _heading("First micro-batches", console)
    if layout.problem:
        console.print(Text(layout.problem, "yellow"))
        return
    console.print(Text(f"one device takes {layout.capacity_said}", "dim"))
    table = _table(
        console,
        ("Step", "r"),
        ("Device", "r"),
        ("Micro-batch", "r"),
        ("Rows", "r"),
        ("Tokens", "r"),
        ("Learnt", "r"),
        "",
    )
    widest = max((b.tokens for b in layout.micro_batches), default=1)
    for batch in layout.micro_batches:
        numbers = (batch.step, batch.device, batch.micro_batch, len(batch.rows), batch.tokens, batch.supervised)
        filled = _bar(batch.tokens / max(layout.capacity or widest, 1), max(6, min(30, console.width - 60)), console)
        table.add_row(*(f"{n:,}" for n in numbers), Text(filled, "green"))
    console.print(table)


def _repeats(report: Report, console: Console) -> None:
    found = report.repeats
    lists = [
        (counted(found.duplicate_rows, "row repeats an earlier one", "rows repeat an earlier one"), found.duplicates),
        (f"{rows_of(found.overlap_rows, 'evaluation')} whole in the training rows", found.overlaps),
        (
            f"{rows_of(found.overlap_prompts, 'evaluation')} with their prompt in the training rows",
            found.prompt_overlaps,
        ),
        (f"{counted(found.rival_groups, 'prompt', 'prompts')} with different answers", found.rivals),
    ]
    _heading("Repeats", console)
    for title, examples in lists:
        if examples:
            console.print(Text(f"{title}, such as", "bold"))
            for example in examples[:3]:
                console.print(_repeated(example))
    if not any(examples for _, examples in lists):
        console.print("None: every training row is unlike every other, and unlike every evaluation row.")


def _repeated(example: Repeated) -> Text:
    places = [short_place(p) for p in example.places] + [f"eval {short_place(p)}" for p in example.eval_places]
    text = Text("  " + visible_controls(", ".join(places)) + ": ", "dim")
    text.append(visible_controls(example.prompt[:80]) + " ", "bright_black")
    return text.append(visible_controls(example.answer[:80]), "green")


def _ends(train: Figures, console: Console) -> None:
    few = f"{rows_of(train.few_supervised)} with {FEW_SUPERVISED} supervised tokens or fewer"
    for title, rows in (("Longest rows", train.longest), ("Shortest rows", train.shortest), (few, train.fewest)):
        if rows:
            _heading(title, console)
            console.print(_row_table(rows, console))
    words = [f"{visible_controls(w.word)} {w.rows:,}" for w in train.first_words if w.rows > 1]
    if words:
        _heading("How answers begin", console)
        console.print(Text(", ".join(words)))


def _row_table(rows: list[RowFigures], console: Console) -> Table:
    table = _table(console, "Row", ("Tokens", "r"), ("Learnt", "r"), "Text")
    for row in rows:
        excerpt = Text(visible_controls(row.prompt[:70]) + " ", "bright_black")
        excerpt.append(visible_controls(row.answer[:70]), "green")
        table.add_row(Text(visible_controls(short_place(row.place))), f"{row.tokens:,}", f"{row.supervised:,}", excerpt)
    return table


def _table(console: Console, *columns: str | tuple[str, str]) -> Table:
    table = Table(box=box.ASCII2 if _ascii(console) else box.SIMPLE_HEAD, header_style="dim", pad_edge=False)
    for column in columns:
        name, right = (column, False) if isinstance(column, str) else (column[0], True)
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    return table


def _heading(title: str, console: Console) -> None:
    console.print()
    console.print(Text(title, "bold"))


def _share_bar(share: float, width: int, console: Console) -> str:
    full, empty = ("#", ".") if _ascii(console) else ("█", "░")
    count = round(share * width)
    return f"[green]{full * count}[/][bright_black]{empty * (width - count)}[/]"


def _bar(share: float, width: int, console: Console) -> str:
    """A bar of `share` of `width` characters, to an eighth of a character; never nothing for something."""
    if _ascii(console):
        return "#" * max(round(min(share, 1) * width), 1 if share > 0 else 0)
    eighths = max(round(min(share, 1) * width * 8), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]


def _ascii(console: Console) -> bool:
    return not console.encoding.lower().startswith("utf")


def _box(console: Console) -> box.Box:
    return box.ASCII if _ascii(console) else box.ROUNDED


def _data(text: str) -> str:
    return escape(visible_controls(text))
