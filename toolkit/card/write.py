"""OUTPUT/model/README.md: the card that the hub and every reader of the folder look for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from huggingface_hub import ModelCard
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from toolkit.card.facts import CardFacts
from toolkit.card.gather import gather
from toolkit.card.metadata import metadata
from toolkit.card.text import card_text
from toolkit.data.prepared import PreparedData
from toolkit.evaluation import Answer
from toolkit.start import Run

CARD = "README.md"


def write_card(
    run: Run,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data: PreparedData,
    evaluations: Mapping[str, Mapping[str, float]],
    before: Sequence[Answer],
    after: Sequence[Answer],
) -> None:
    """Write the card of a run into its model's folder; before `report`, which calls the run finished (main process only)."""
    save_card(gather(run, model, tokenizer, data, evaluations, before, after), run.folder.model / CARD)
    run.folder.record_files()  # at once: what is not noted would be taken for somebody else's


def save_card(facts: CardFacts, file: Path) -> None:
    """Metadata and text as one file, whole or as it was."""
    part = file.with_name(file.name + ".partial")
    ModelCard(f"---\n{metadata(facts).to_yaml()}\n---\n\n{card_text(facts)}").save(part)
    part.replace(file)
