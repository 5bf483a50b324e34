"""The page: one file of HTML with everything in it, for a browser, a colleague or a printer."""

from __future__ import annotations

from pathlib import Path

from toolkit.inspect.cards import card
from toolkit.inspect.charts import length_chart, strip
from toolkit.inspect.collect import SourceAccount
from toolkit.inspect.figures import FEW_SUPERVISED, Figures, RowFigures, total_account
from toolkit.inspect.repeats import Repeated, Repeats
from toolkit.inspect.report import Report
from toolkit.inspect.script import SCRIPT
from toolkit.inspect.style import CSS
from toolkit.inspect.wording import counted, markup, percent, rows_of, sentence, short_number, short_place


def page_of(report: Report) -> str:
    """The whole page. All text of the data is escaped; nothing is loaded from anywhere."""
    sections = [
        _rows(report),
        _lengths(report),
        _sources(report),
        _micro_batches(report),
        _repeats(report),
        _ends(report.train),
    ]
    model = Path(report.head.model).name
    title = f"{report.train.rows:,} rows, {report.train.tokens:,} tokens: what {model} will be trained on"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{markup(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{CSS}</style></head>\n<body>{_header(report)}<main>{''.join(sections)}</main>{_footer(report)}"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _header(report: Report) -> str:
    train, head = report.train, report.head
    masked = train.tokens - train.supervised
    tiles = [
        (
            "Training rows",
            f"{train.rows:,}",
            f"{report.eval.rows:,} for evaluation" if report.eval else "none for evaluation",
        ),
        ("Tokens", short_number(train.tokens), f"{train.tokens:,}"),
        ("Supervised", percent(train.supervised_share), f"{train.supervised:,} tokens"),
        ("Median row", f"{train.lengths.p50:,}", f"tokens; mean {train.lengths.mean:,.0f}"),
        ("Longest row", f"{train.lengths.longest:,}", f"of {train.lengths.max_length:,} allowed"),
        ("Optimizer steps", f"{report.layout.total_steps:,}", f"of {rows_of(report.layout.global_batch_size)} each"),
    ]
    about = [
        ("Model", head.model),
        ("Tokenizer", f"{head.tokenizer}, {head.vocabulary:,} tokens"),
        ("Chat template", head.template),
        ("Training data", head.train),
        ("Evaluation data", head.eval or "none"),
    ]
    shown = "".join(f"<div><dt>{a}</dt><dd>{markup(b)}<small>{markup(c)}</small></dd></div>" for a, b, c in tiles)
    listed = "".join(f"<dt>{name}</dt><dd>{markup(value)}</dd>" for name, value in about)
    found = "".join(f'<li class="{f.level}"><span>{markup(sentence(f.text))}</span></li>' for f in report.findings)
    return (
        f'<header><p class="eyebrow">What <b>{markup(Path(head.model).name)}</b> will be trained on</p>'
        f"<h1><em>{train.supervised:,}</em> of {train.tokens:,} tokens teach your model</h1>"
        f'<div class="share" role="img" aria-label="{percent(train.supervised_share)} supervised">'
        f'<b style="width:{100 * train.supervised_share:.2f}%"></b></div>'
        f'<div class="share-legend"><span><strong>{percent(train.supervised_share)} supervised</strong>: '
        f"the model learns to write these</span><span>{masked:,} masked: it only reads them</span></div>"
        f'<dl class="tiles">{shown}</dl><ul class="findings">{found}</ul><dl class="about">{listed}</dl></header>'
    )


def _rows(report: Report) -> str:
    if not report.rows:
        return ""
    legend = (
        '<div class="legend"><span><span class="swatch" style="background:var(--learn-tint);'
        'box-shadow:inset 0 0 0 1px var(--learn)"></span>supervised: learnt</span>'
        '<span><span class="swatch" style="background:var(--mask)"></span>masked: only read</span>'
        '<span><span class="swatch" style="background:var(--special);box-shadow:inset 0 0 0 1px var(--special-edge)">'
        "</span>control token</span></div>"
    )
    toggle = (
        '<div class="toggle"><input type="radio" name="view" id="as-tokens" value="tokens" checked>'
        '<label for="as-tokens">Show tokens</label><input type="radio" name="view" id="as-text" value="texts">'
        '<label for="as-text">Show text</label></div>'
    )
    cards = "".join(card(row) for row in report.rows)
    lead = "Evenly spaced through the training rows, exactly as the model reads them. Point at a token for its id."
    return _section("Rows", lead, f'<div class="bar">{legend}{toggle}</div><div id="rows" class="tokens">{cards}</div>')


def _lengths(report: Report) -> str:
    lengths = report.train.lengths
    if not lengths.bins:
        return ""
    near = rows_of(lengths.near_limit)
    lead = (
        f"Tokens in each training row, against data.max_length ({lengths.max_length:,}). "
        f"{near} within 10 % of it, {lengths.at_limit:,} exactly at it."
    )
    return _section("Row lengths", lead, f'<div class="card">{length_chart(lengths)}</div>')


def _sources(report: Report) -> str:
    lines = "".join(
        f"<tr><td>{markup(source.name)}</td><td class=n>{source.rows:,}</td><td class=n>{source.tokens:,}</td>"
        f"<td class=n>{_meter(source.supervised_share)}</td><td class=n>{_meter(source.mixture, 'plain')}</td></tr>"
        for source in report.sources
    )
    table = (
        '<div class="scroll"><table><tr><th>Source</th><th class=n>Rows</th><th class=n>Tokens</th>'
        f"<th class=n>Supervised</th><th class=n>Share of all tokens</th></tr>{lines}</table></div>"
    )
    accounts = [source.account for source in report.sources if source.account is not None]
    bars = _account(total_account(accounts), "") if accounts else ""
    if len(accounts) > 1:  # where all rows of a source are whole there is nothing to see
        changed = [s for s in report.sources if s.account is not None and s.account.whole < s.account.read]
        bars += "".join(_account(source.account, f" from {source.name}") for source in changed if source.account)
    lead = "Where the tokens come from, and what became of every row that was read."
    return _section("Sources", lead, f'<div class="card">{table}{bars}</div>')


def _account(account: SourceAccount, of: str) -> str:
    """A bar with a part for each thing that became of rows, and the numbers below it."""
    parts = [part for part in _account_parts(account) if part[1]]
    bar = "".join(
        f'<b style="flex:{count};background:var({colour})" title="{markup(f"{count:,} {name}")}"></b>'
        for name, count, colour in parts
    )
    legend = "".join(
        f'<span><span class="swatch" style="background:var({colour})"></span>{count:,} {markup(name)}</span>'
        for name, count, colour in parts
    )
    cut = f"; {counted(account.answers_cut, 'answer', 'answers')} lost the end" if account.answers_cut else ""
    title = f"{rows_of(account.read)} read{markup(of)}{cut}"
    return f'<h3>{title}</h3><div class="stack">{bar}</div><div class="legend">{legend}</div>'


def _account_parts(account: SourceAccount) -> list[tuple[str, int, str]]:
    dropped = [(f"dropped: {reason}", count, "--drop") for reason, count in account.dropped.items()]
    return [
        ("whole", account.whole, "--learn"),
        ("truncated", account.truncated, "--cut"),
        ("split", account.split, "--split"),
        *dropped,
    ]


def _micro_batches(report: Report) -> str:
    layout = report.layout
    devices = "1 device" if layout.devices == 1 else f"{layout.devices} devices"
    how = (
        "Rows are padded to the longest of their micro-batch"
        if layout.padded
        else "Rows lie end to end, without padding"
    )
    lead = (
        f"{how}, and never see each other. A step is "
        f"{rows_of(layout.global_batch_size)}; on {devices}, each takes {layout.capacity_said} at once."
    )
    if layout.problem:
        lead, shown = "", f'<p class="quiet">{markup(layout.problem)}</p>'
    else:
        shown = "".join(strip(batch, layout) for batch in layout.micro_batches)
        shown += f'<p class="quiet">{layout.hidden:,} more are not shown.</p>' if layout.hidden else ""
    return _section("First micro-batches", markup(lead), f'<div class="card">{shown}</div>')


def _repeats(report: Report) -> str:
    found = report.repeats
    lists = [
        (counted(found.duplicate_rows, "row repeats an earlier one", "rows repeat an earlier one"), found.duplicates),
        (f"{rows_of(found.overlap_rows, 'evaluation')} whole in the training rows", found.overlaps),
        (
            f"{rows_of(found.overlap_prompts, 'evaluation')} with their prompt in the training rows",
            _only_prompts(found),
        ),
        (f"{counted(found.rival_groups, 'prompt', 'prompts')} with different answers", found.rivals),
    ]
    shown = "".join(f"<h3>{title}</h3>{_repeated(examples)}" for title, examples in lists if examples)
    shown = (
        shown or '<p class="quiet">None: every training row is unlike every other, and unlike every evaluation row.</p>'
    )
    lead = "Texts count as the same when they differ in case, white space or Unicode form at most."
    return _section("Repeats", lead, f'<div class="card">{shown}</div>')


def _only_prompts(found: Repeats) -> list[Repeated]:
    """Prompt overlaps that are not whole-row overlaps, which are listed before."""
    listed = {tuple(example.eval_places) for example in found.overlaps}
    return [example for example in found.prompt_overlaps if tuple(example.eval_places) not in listed]


def _repeated(examples: list[Repeated]) -> str:
    lines = []
    for example in examples:
        more = example.rows - len(example.places)
        places = [_place(place) for place in example.places] + ([f"and {more:,} more"] if more > 0 else [])
        places += [f"eval: {_place(place)}" for place in example.eval_places]
        lines.append(
            f'<tr><td class="place">{"<br>".join(places)}</td><td class="excerpt">{_excerpt(example)}</td></tr>'
        )
    return f'<div class="scroll"><table class="pairs">{"".join(lines)}</table></div>'


def _ends(train: Figures) -> str:
    few = f"{rows_of(train.few_supervised)} with {FEW_SUPERVISED} supervised tokens or fewer"
    lists = [("Longest", train.longest), ("Shortest", train.shortest), (few, train.fewest)]
    shown = "".join(f"<h3>{title}</h3>{_row_table(rows)}" for title, rows in lists if rows)
    words = "".join(
        f"<span>{markup(word.word)}<small>{word.rows:,}</small></span>" for word in train.first_words if word.rows > 1
    )
    shown += f'<h3>How answers begin</h3><div class="words">{words}</div>' if words else ""
    lead = "What stands out is where mistakes of a data set show first."
    return _section("The rows at the ends", lead, f'<div class="card ends">{shown}</div>')


def _row_table(rows: list[RowFigures]) -> str:
    lines = "".join(
        f'<tr><td class="place">{_place(row.place)}</td><td class=n>{row.tokens:,}</td><td class=n>{row.supervised:,}</td>'
        f'<td class="excerpt">{_excerpt(row)}</td></tr>'
        for row in rows
    )
    head = "<tr><th>Row</th><th class=n>Tokens</th><th class=n>Supervised</th><th>Text</th></tr>"
    return f'<div class="scroll"><table>{head}{lines}</table></div>'


def _place(place: str) -> str:
    return f'<span title="{markup(place)}">{markup(short_place(place))}</span>'


def _excerpt(row: RowFigures | Repeated) -> str:
    prompt = f'<span class="ask">{markup(row.prompt)}</span> ' if row.prompt else ""
    return f'{prompt}<span class="teach">{markup(row.answer)}</span>'


def _footer(report: Report) -> str:
    notes = "".join(f"<div>{markup(note)}</div>" for note in report.head.notes)
    command = f"toolkit inspect --config {report.head.config}" if report.head.config else "toolkit inspect"
    return f"<footer>{notes}<p>Made by <code>{markup(command)}</code></p></footer>"


def _section(title: str, lead: str, body: str) -> str:
    return f'<section><h2>{title}</h2><p class="lead">{lead}</p>{body}</section>'


def _meter(share: float, kind: str = "") -> str:
    return f'<span class="meter {kind}"><i style="width:{100 * share:.1f}%"></i></span>{percent(share)}'
