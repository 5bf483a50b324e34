"""Charts of the page as inline SVG.

Horizontal places are percentages, so a chart fits any width while its text keeps its size.
"""

from __future__ import annotations

from toolkit.inspect.batches import LaidRow, Layout, MicroBatchFigures
from toolkit.inspect.figures import Lengths
from toolkit.inspect.wording import markup

_PLOT = 150
_FLAG = 19
_TURN = 0.6  # share of the width from which on labels stand to the left of their marks
_LETTER = 0.021  # share of the width that a letter of a label needs on a phone


def length_chart(lengths: Lengths) -> str:
    """Histogram of row lengths with the percentiles and data.max_length."""
    bins, end = lengths.bins, axis_end(lengths)
    tallest = max((b.rows for b in bins), default=0) or 1
    marks = placed_marks(lengths, end)
    top = _FLAG * (max((tier for *_, tier in marks), default=0) + 1) + 6
    width = bins[0].end or 1
    parts = []
    for item in bins:
        height = max(1.5, _PLOT * item.rows / tallest) if item.rows else 0
        last = f" to {item.end - 1:,}" if item.end is not None else " and more"
        title = markup(f"{item.start:,}{last} tokens\n{item.rows:,} {'row' if item.rows == 1 else 'rows'}")
        parts.append(
            f'<rect class="hist" x="{_at(item.start, end)}" width="{_at(width * 0.94, end)}" y="{top + _PLOT - height:.1f}" '
            f'height="{height:.1f}" rx="1.5" data-tip="{title}"/>'
        )
    parts.append(f'<line class="axis" x1="0" x2="100%" y1="{top + _PLOT}.5" y2="{top + _PLOT}.5"/>')
    for tick in _ticks(end):
        anchor = "start" if tick == 0 else "middle"
        parts.append(
            f'<text class="tick" x="{_at(tick, end)}" y="{top + _PLOT + 17}" text-anchor="{anchor}">{tick:,}</text>'
        )
    for value, label, kind, tier in marks:
        parts.append(_mark(min(value, end) / end, label, kind, tier, top, beyond=value > end))
    title = f"Histogram of row lengths: median {lengths.p50:,} tokens, longest {lengths.longest:,}"
    return f'<svg height="{top + _PLOT + 24}" role="img" aria-label="{markup(title)}">{"".join(parts)}</svg>'


def axis_end(lengths: Lengths) -> int:
    """Where the axis ends: behind the last bin, or at data.max_length when that is not much farther."""
    last = lengths.bins[-1]
    width = lengths.bins[0].end or 1
    end = last.end if last.end is not None else last.start + width
    return max(end, lengths.max_length + 1) if lengths.max_length < 1.8 * end else end


def placed_marks(lengths: Lengths, end: int) -> list[tuple[int, str, str, int]]:
    """(value, label, kind, tier) of each mark; two whose labels could meet stand on different tiers."""
    named = [(lengths.p50, "p50"), (lengths.p90, "p90"), (lengths.p99, "p99"), (lengths.longest, "longest")]
    marks = [(value, f"{name} {value:,}", "mark") for value, name in named]
    marks.append((lengths.max_length, f"max_length {lengths.max_length:,}", "limit"))
    ends: list[float] = []  # how far to the right each tier is taken
    placed = []
    for value, label, kind in sorted(marks, key=lambda mark: mark[0]):
        at = min(value / end, 1.0)
        needed = _LETTER * (len(label) + 3)
        left = at - needed if at > _TURN else at
        tier = next((t for t, taken in enumerate(ends) if taken <= left), len(ends))
        if tier == len(ends):
            ends.append(0.0)
        ends[tier] = left + needed
        placed.append((value, label, kind, tier))
    return placed


def _mark(at: float, label: str, kind: str, tier: int, top: int, *, beyond: bool) -> str:
    y = _FLAG * tier + 13
    anchor, shift = ("end", -5) if at > _TURN else ("start", 5)
    text = f"{label} →" if beyond else label
    style = "limit-text" if kind == "limit" else "strong"
    x = f"{100 * at:.2f}%"
    line = "" if beyond else f'<line class="{kind}" x1="{x}" x2="{x}" y1="{y - 10}" y2="{top + _PLOT}"/>'
    return f'{line}<text class="{style}" x="{x}" dx="{shift}" y="{y}" text-anchor="{anchor}">{text}</text>'


def strip(batch: MicroBatchFigures, layout: Layout) -> str:
    """One micro-batch: its rows end to end, what is learnt saturated, and how much room is left."""
    widest = max((b.tokens + sum(r.padding for r in b.rows) for b in layout.micro_batches), default=1)
    scale = max(widest, layout.capacity or 0, 1)
    parts, position = [], 0
    if layout.capacity:
        parts.append(f'<rect class="room" x="0" y="3.5" width="{_at(layout.capacity, scale)}" height="23" rx="4"/>')
    for index, row in enumerate(batch.rows):
        parts.append(_laid(row, index, position, scale))
        position += row.tokens + row.padding
    for edge in _edges(batch)[1:-1]:
        parts.append(f'<line class="border" x1="{_at(edge, scale)}" x2="{_at(edge, scale)}" y1="3" y2="27"/>')
    if layout.capacity:
        x = _at(layout.capacity, scale)
        parts.append(f'<line class="limit" x1="{x}" x2="{x}" y1="0" y2="30"/>')
    name = f"<b>Step {batch.step}, device {batch.device}, micro-batch {batch.micro_batch}</b>"
    rows = "no rows (a filler)" if not batch.rows else f"{len(batch.rows)} {'row' if len(batch.rows) == 1 else 'rows'}"
    full = f", {100 * position / layout.capacity:.0f} % full" if layout.capacity and batch.rows else ""
    said = f"{rows}, {batch.tokens:,} tokens, {batch.supervised:,} supervised{full}"
    return f'<div class="strip"><p>{name}<span>{said}</span></p><svg height="30">{"".join(parts)}</svg></div>'


def _laid(row: LaidRow, index: int, position: int, scale: int) -> str:
    title = markup(f"{row.place}\n{row.tokens:,} tokens, {row.supervised:,} supervised")
    odd = " odd" if index % 2 else ""
    parts = [f'<rect class="pale{odd}" x="{_at(position, scale)}" y="4" width="{_at(row.tokens, scale)}" height="22"/>']
    for start, end in row.learnt:
        x, width = _at(position + start, scale), _at(end - start, scale)
        parts.append(f'<rect class="learnt" x="{x}" y="4" width="{width}" height="22"/>')
    if row.padding:
        x, width = _at(position + row.tokens, scale), _at(row.padding, scale)
        parts.append(f'<rect class="padding" x="{x}" y="4" width="{width}" height="22"/>')
    return f'<g class="laid" data-tip="{title}">{"".join(parts)}</g>'


def _edges(batch: MicroBatchFigures) -> list[int]:
    edges = [0]
    for row in batch.rows:
        edges.append(edges[-1] + row.tokens + row.padding)
    return edges


def _ticks(end: int) -> list[int]:
    step = next(s * 10**p for p in range(12) for s in (1, 2, 5) if end / (s * 10**p) <= 7)
    return [tick for tick in range(0, end + 1, step) if tick <= 0.97 * end]


def _at(value: float, end: float) -> str:
    return f"{100 * value / end:.3f}%"
