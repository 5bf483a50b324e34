"""A row of the page: a conversation as a card, every token an element that says its place, id and text."""

from __future__ import annotations

from toolkit.inspect.rows import TEMPLATE, ShownRow, Token
from toolkit.inspect.wording import markup, percent, short_place

_SHOWN_TOKENS = 1500


def card(row: ShownRow) -> str:
    """One row as HTML. Of a long row the beginning is shown, and said how much is not."""
    position, frame = 0, ""
    turns: list[list[str]] = []  # role and HTML of each
    for block in row.blocks:
        tokens = block.tokens[: max(0, _SHOWN_TOKENS - position)]
        shown = "".join(
            token_html(token, position + i, inline=block.role == TEMPLATE) for i, token in enumerate(tokens)
        )
        position += len(block.tokens)
        if block.role == TEMPLATE:
            frame += f'<div class="frame">{shown}</div>' if shown else ""
        elif shown:
            turns.append([block.role, f'{frame}<div class="text">{shown}</div>'])
            frame = ""
    if frame:  # what the template writes last belongs to the last turn
        turns = turns or [[TEMPLATE, ""]]
        turns[-1][1] += frame
    share = percent(row.supervised / row.tokens) if row.tokens else "0 %"
    head = (
        f'<div class="row-head"><b title="{markup(row.place)}">{markup(short_place(row.place))}</b>'
        f"<span>{row.tokens:,} tokens, {row.supervised:,} supervised ({share})</span></div>"
    )
    return f'<article class="card row">{head}{"".join(_turn(role, shown) for role, shown in turns)}{_hidden(row)}</article>'


def token_html(token: Token, position: int, *, inline: bool) -> str:
    """One token. inline: line ends are shown as signs only, so that what the template writes stays on one line."""
    kinds = " ".join(name for name, is_so in (("s", token.supervised), ("x", token.special)) if is_so)
    what = "supervised" if token.supervised else "masked"
    quoted = "part of a character" if not token.text else f"“{_visible(token.text)}”"
    title = markup(f"{quoted}\ntoken {position}, id {token.id}\n{what}{', control token' if token.special else ''}")
    shown = markup(token.text).replace("\n", f'<b class="nl">↵</b>{"" if inline else chr(10)}')
    shown = shown or '<b class="part">·</b>'
    return f'<i{f" class={kinds!r}" if kinds else ""} title="{title}">{shown}</i>'


def _turn(role: str, shown: str) -> str:
    name = "".join(c for c in role.lower() if c.isalnum())
    return f'<div class="turn"><span class="role role-{name}">{markup(role)}</span><div>{shown}</div></div>'


def _hidden(row: ShownRow) -> str:
    rest = [token for block in row.blocks for token in block.tokens][_SHOWN_TOKENS:]
    if not rest:
        return ""
    learnt = sum(token.supervised for token in rest)
    return f'<div class="more">{len(rest):,} more tokens are not shown here ({learnt:,} of them supervised)</div>'


def _visible(text: str) -> str:
    """White space as it would be typed in a program."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
