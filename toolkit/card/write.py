"""OUTPUT/model/README.md: the card that the hub and every reader of the folder look for."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import ModelCard

from toolkit.card.facts import CardFacts
from toolkit.card.metadata import metadata
from toolkit.card.text import card_text
from toolkit.run_folder import RunFolder

CARD = "README.md"


def write_card(folder: RunFolder, facts: CardFacts) -> None:
    """Write the card of a run into its model's folder; before `report`, which calls the run finished (main process only)."""
    save_card(facts, folder.model / CARD)
    folder.record_files()  # at once: what is not noted would be taken for somebody else's


def save_card(facts: CardFacts, file: Path) -> None:
    """Metadata and text as one file, whole or as it was."""
    part = file.with_name(file.name + ".partial")
    ModelCard(f"---\n{metadata(facts).to_yaml()}\n---\n\n{card_text(facts)}").save(part)
    part.replace(file)
