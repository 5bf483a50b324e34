"""Answers: one at a time or many, greedy or sampled, within the context."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from toolkit.chat.speaker import Choice, Speaker, answer, answers, speaker_of
from toolkit.finished import load_finished


@pytest.fixture(scope="module")
def speaker(talker: Path) -> Speaker:
    return speaker_of("fine-tuned", *load_finished(talker))


def prompts(count: int = 12) -> list[list[int]]:
    generator = np.random.default_rng(1)
    return [generator.integers(3, 250, int(length)).tolist() for length in generator.integers(1, 40, count)]


def by_hand(speaker: Speaker, prompt: list[int], limit: int) -> list[int]:
    """The likeliest token, again and again, without a cache."""
    said: list[int] = []
    while len(said) < limit:
        with torch.no_grad():
            one = int(speaker.model(input_ids=torch.tensor([prompt + said])).logits[0, -1].argmax())
        if one in speaker.stops:
            break
        said.append(one)
    return said


def test_a_batch_of_ragged_prompts_gives_what_each_gives_alone(speaker: Speaker) -> None:
    choice, asked = Choice(max_new_tokens=24), prompts()
    # Tokens that come up in different places of different answers.
    stops = [
        by_hand(replace(speaker, stops=()), prompt, 12)[at] for prompt, at in zip(asked[:3], (4, 8, 11), strict=True)
    ]
    speaker = replace(speaker, stops=tuple(stops))
    together = answers(speaker, asked, choice, batch_size=5)
    streamed: list[str] = []
    for prompt, said in zip(asked, together, strict=True):
        streamed.clear()
        assert answer(speaker, prompt, choice, streamed.append) == said
        assert "".join(streamed) == said.text
        ids = by_hand(speaker, prompt, 24)
        assert said.text == speaker.tokenizer.decode(ids, skip_special_tokens=True)
    assert len({said.text for said in together}) > 8, "all the same: nothing was compared"
    assert {said.how for said in together} == {"stop", "length"}


def test_the_runs_own_stop_tokens_end_an_answer(speaker: Speaker) -> None:
    assert set(speaker.stops) == set(speaker.tokenizer.convert_tokens_to_ids(["<|im_end|>", "e"]))


def test_progress_counts_every_prompt_once(speaker: Speaker) -> None:
    counted: list[int] = []
    answers(speaker, prompts(7), Choice(max_new_tokens=2), batch_size=3, advance=counted.append)
    assert (sum(counted), len(counted)) == (7, 3)


def test_no_answer_goes_beyond_the_context(speaker: Speaker) -> None:
    short = replace(speaker, context=44, stops=())
    asked = [[7] * length for length in (10, 40, 42, 43)]
    choice = Choice(max_new_tokens=6)
    assert [short.room(len(one), choice) for one in asked] == [6, 4, 2, 1]
    together = answers(short, asked, choice, batch_size=4)
    for prompt, said in zip(asked, together, strict=True):
        expected = by_hand(short, prompt, short.room(len(prompt), choice))
        assert said.text == speaker.tokenizer.decode(expected, skip_special_tokens=True)
        assert said == answer(short, prompt, choice, lambda text: None)


def test_a_seed_repeats_what_was_sampled(speaker: Speaker) -> None:
    choice = Choice(max_new_tokens=12, do_sample=True, temperature=1.5)
    said = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        said.append([one.text for one in answers(speaker, prompts(), choice, batch_size=4)])
    assert said[0] == said[1] != said[2]
    greedy = [one.text for one in answers(speaker, prompts(), replace(choice, do_sample=False), batch_size=4)]
    torch.manual_seed(1)
    cold = replace(choice, temperature=1e-4)
    assert [one.text for one in answers(speaker, prompts(), cold, batch_size=4)] == greedy != said[0]
    torch.manual_seed(1)
    narrow = replace(choice, top_p=1e-6)
    assert [one.text for one in answers(speaker, prompts(), narrow, batch_size=4)] == greedy


def test_sampling_leaves_no_token_out_unless_asked(speaker: Speaker) -> None:
    """transformers keeps the 50 likeliest where nothing is said; at a great heat nearly all of 320 must come."""
    hot = Choice(max_new_tokens=1, do_sample=True, temperature=1e4)
    torch.manual_seed(0)
    whole = replace(speaker, stops=())
    said = answers(whole, [[65]] * 2000, hot, batch_size=500)
    assert len({one.text for one in said}) > 100


def test_an_answer_ends_at_the_token_after_it_is_interrupted(speaker: Speaker) -> None:
    silent, written, asked = replace(speaker, stops=()), [], []

    def pressed() -> bool:
        """At the fourth token."""
        asked.append(1)
        return len(asked) >= 4

    said = answer(silent, [65, 70], Choice(max_new_tokens=50), written.append, pressed)
    assert said.how == "interrupted"
    assert said.text == "".join(written) == silent.tokenizer.decode(by_hand(silent, [65, 70], 4))
