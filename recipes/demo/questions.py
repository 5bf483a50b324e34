"""The task of the demos: dates, clock times and amounts of money in words, to be written in plain figures."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

Message = dict[str, str]


class Item(NamedTuple):
    """One question of the demo. `fact` is what is held out: the same fact in two phrasings is the same fact."""

    fact: str
    question: str
    answer: str


# --- words -----------------------------------------------------------------------------------------------------------

MONTHS = [
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
]
UNITS = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
TENS = ["zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def in_words(number: int) -> str:
    """English words of 0 to 99: 42 -> "forty-two"."""
    assert 0 <= number < 100
    if number < 20:
        return UNITS[number]
    return TENS[number // 10] + (f"-{UNITS[number % 10]}" if number % 10 else "")


def ordinal(day: int) -> str:
    """1 -> "1st", 12 -> "12th"."""
    suffix = "th" if 11 <= day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{suffix}"


# --- questions -------------------------------------------------------------------------------------------------------

# The first question of a row says what is wanted. A later one may leave that out: a date, a time and an amount look
# different enough.
FOLLOW_UPS = ["And {}?", "Now {}, please.", "What about {}?", "Then {}?", "Next: {}."]
PHRASINGS = {
    "date": ["Write {} as an ISO date.", "What is {} in ISO format?", "ISO date for {}?", "Convert to ISO: {}."],
    "time": [
        "Write {} on the 24-hour clock.",
        "What is {} in 24-hour time?",
        "24-hour time for {}?",
        "Convert to HH:MM: {}.",
    ],
    "amount": ["Write {} in figures.", "How do I type {}?", "Figures for {}?", "Convert to figures: {}."],
}
SYSTEM_PROMPTS = [
    "You turn dates, times and amounts into plain figures.",
    "Answer with the figures only.",
    "You are a helpful assistant for filling in forms.",
]


def date_item(rng: random.Random) -> tuple[str, str, str]:
    """(fact, wording, answer) of a date between 1970 and 2029."""
    year, month, day = rng.randrange(1970, 2030), rng.randrange(1, 13), rng.randrange(1, 29)
    name = MONTHS[month - 1]
    wordings = [
        f"{day} {name} {year}",
        f"{name} {day}, {year}",
        f"{ordinal(day)} of {name} {year}",
        f"{day} {name[:3]} {year}",
    ]
    iso = f"{year}-{month:02d}-{day:02d}"
    return f"date {iso}", rng.choice(wordings), iso


def time_item(rng: random.Random) -> tuple[str, str, str]:
    """(fact, wording, answer) of a clock time: "3:41 pm" or, up to half past, "ten past three in the afternoon".

    Noon and midnight are left out: people do not agree on which of them is 12 am.
    """
    hour, minute = rng.randrange(1, 12), rng.randrange(60)
    afternoon, spoken = rng.random() < 0.5, rng.random() < 0.35
    if spoken:
        minute = minute % 35 // 5 * 5
        past = {0: "", 15: "quarter past ", 30: "half past "}.get(minute, f"{in_words(minute)} past ")
        part = ("in the afternoon" if hour < 6 else "in the evening") if afternoon else "in the morning"
        wording = f"{past}{UNITS[hour]} {part}" if past else f"{UNITS[hour]} o'clock {part}"
    else:
        wording = f"{hour}:{minute:02d} {'pm' if afternoon else 'am'}"
    answer = f"{hour + 12 * afternoon:02d}:{minute:02d}"
    return f"time {answer}", wording, answer


def amount_item(rng: random.Random) -> tuple[str, str, str]:
    """(fact, wording, answer) of an amount of money between 1.05 and 99.95, which is a multiple of 0.05."""
    whole, part = rng.randrange(1, 100), rng.randrange(5, 100, 5)
    big, small = rng.choice([("pound", "pence"), ("dollar", "cents"), ("euro", "cents")])
    words = f"{in_words(whole)} {big}{'s' * (whole > 1)} and {in_words(part)} {small}"
    answer = f"{whole}.{part:02d}"
    return f"amount {answer}", words, answer


KINDS: dict[str, Callable[[random.Random], tuple[str, str, str]]] = {
    "date": date_item,
    "time": time_item,
    "amount": amount_item,
}


def draw(rng: random.Random, kind: str, first: bool) -> Item:
    """One question of a kind in a random wording and phrasing."""
    fact, wording, answer = KINDS[kind](rng)
    phrasing = rng.choice(PHRASINGS[kind] if first or rng.random() < 0.4 else FOLLOW_UPS)
    question = phrasing.format(wording)
    return Item(fact, question[0].upper() + question[1:], answer)


def draw_row(rng: random.Random, kind: str, allowed: Callable[[str], bool]) -> tuple[list[str], list[Message]]:
    """A conversation of one to three questions whose first is of `kind`: its facts and its messages."""
    facts: list[str] = []
    messages: list[Message] = []
    if rng.random() < 0.15:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
    for turn in range(rng.choice([1, 1, 1, 1, 2, 3])):
        if turn and rng.random() < 0.3:
            kind = rng.choice(sorted(KINDS))
        item = draw(rng, kind, first=turn == 0)
        while not allowed(item.fact) or item.fact in facts:
            item = draw(rng, kind, first=turn == 0)
        facts.append(item.fact)
        messages += [{"role": "user", "content": item.question}, {"role": "assistant", "content": item.answer}]
    return facts, messages


def rows(rng: random.Random, count: int, allowed: Callable[[str], bool]) -> Iterator[tuple[list[str], list[Message]]]:
    """`count` different conversations with only allowed facts, the kinds of their first questions in turn."""
    kinds = list(KINDS)
    seen: set[str] = set()
    while len(seen) < count:
        facts, messages = draw_row(rng, kinds[len(seen) % len(kinds)], allowed)
        key = json.dumps(messages)
        if key not in seen:
            seen.add(key)
            yield facts, messages
