"""Where a model comes from: whether a name is one of the hub, and the license that its own files state. Nothing is asked of
the network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard, try_to_load_from_cache

from toolkit.card.facts import BaseFacts
from toolkit.config import ModelConfig
from toolkit.data.sources.locate import is_hub_id

_LICENSE_ID = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_LICENSE_KEYS = ("license", "license_name", "license_link")


def base_facts(model: ModelConfig, written: ModelConfig) -> BaseFacts:
    """The base model of a run; `written` is the `model` section with paths as the user wrote them."""
    name = str(model.name_or_path)
    hub_id = name if is_hub_id(name) else None
    # Random weights are nobody's work.
    license = {} if model.random_init else license_of(name, hub_id, model.revision, model.gguf_file)
    return BaseFacts(
        without_home(str(written.name_or_path)), hub_id, model.revision, model.gguf_file, model.random_init, license
    )


def license_of(name: str, hub_id: str | None, revision: str | None, gguf_file: str | None) -> dict[str, str]:
    """`license`, and `license_name` and `license_link` where it has them, from README.md in a model's folder or the hub's
    cache, else from the GGUF file; empty where none is stated."""
    readme: Any = Path(name).expanduser() / "README.md"
    if hub_id is not None:
        readme = try_to_load_from_cache(hub_id, "README.md", revision=revision)
    found = _stated(Path(readme)) if isinstance(readme, (str, Path)) else {}
    if not found and gguf_file is not None and hub_id is None:
        stated = _gguf_license(Path(name).expanduser() / gguf_file)
        found = {"license": stated} if _LICENSE_ID.fullmatch(stated) else {}
    link = found.get("license_link", "")
    if link and "://" not in link:  # a file beside the base's card, which is not beside ours
        del found["license_link"]
        if hub_id is not None:
            found["license_link"] = f"https://huggingface.co/{hub_id}/blob/{revision or 'main'}/{link}"
    return found


def without_home(text: str) -> str:
    """`text` with `~` for this user's home folder, whose name is nobody else's affair."""
    home = str(Path.home())
    return text if home == "/" else re.sub(rf"(?<![\w./-]){re.escape(home)}(?=/|\s|$)", "~", text, flags=re.MULTILINE)


def _stated(readme: Path) -> dict[str, str]:
    try:
        data = ModelCard.load(readme, ignore_metadata_errors=True).data
    except (OSError, ValueError, TypeError, yaml.YAMLError):
        return {}
    values = {key: data.get(key) for key in _LICENSE_KEYS}
    return {key: value for key, value in values.items() if isinstance(value, str)} if values["license"] else {}


def _gguf_license(file: Path) -> str:
    try:
        from gguf import GGUFReader

        field = GGUFReader(file).get_field("general.license")
    except (ImportError, OSError, ValueError):
        return ""
    return "" if field is None else str(field.contents()).lower()
