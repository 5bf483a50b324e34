"""What tokenized data depends on, as one name: equal names, equal tokens; any change, another name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
import transformers
import xxhash
from transformers import PreTrainedTokenizerBase

from toolkit.data.settings import Settings
from toolkit.data.sources.source import Source
from toolkit.data.sources.table_rows import load_dataset

_CHUNK_BYTES = 1 << 23


def content_digest(files: Iterable[Path], read: Callable[[int], None] = lambda size: None) -> str:
    """A digest of the bytes of all files, in order. Their names, places and time stamps do not count, since none of
    them says what is in a file. `read` is told of the bytes as they are read."""
    digest = xxhash.xxh3_128()
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
                read(len(chunk))
        digest.update(b"\0end of file\0")
    return digest.hexdigest()


def dataset_digest(source: Source) -> str:
    """The same for a data set that the `datasets` library reads: its Arrow files, and what it says of itself."""
    data = load_dataset(source.spec)
    files = [Path(file["filename"]) for file in getattr(data, "cache_files", [])]
    said = [source.dataset, source.spec.config, source.spec.split, getattr(data, "_fingerprint", None), len(data)]
    content = content_digest(files) if files else xxhash.xxh3_128(repr(list(data)).encode()).hexdigest()
    return xxhash.xxh3_128((content + json.dumps(said)).encode()).hexdigest()


def fingerprint(
    source: Source, content: str, tokenizer: PreTrainedTokenizerBase, settings: Settings, max_rows: int | None
) -> str:
    """The name of the tokenized rows of `source`, whose bytes have the digest `content`."""
    spec = source.spec
    parts: dict[str, Any] = {
        "content": content,
        "kinds": [Path(file.name).suffixes[-2:] for file in source.files],
        "reading": [spec.delimiter, spec.encoding, spec.sample_by, spec.field, max_rows],
        "settings": asdict(settings),
        "tokenizer": tokenizer_digest(tokenizer),
        "code": _code_digest(),
        "versions": [transformers.__version__, tokenizers.__version__],
    }
    return xxhash.xxh3_128(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """A digest of the vocabulary, the rules, the special tokens and the chat template."""
    backend = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else repr(sorted(tokenizer.get_vocab().items()))
    rest = [
        type(tokenizer).__name__,
        tokenizer.chat_template,
        {k: str(v) for k, v in tokenizer.special_tokens_map.items()},
    ]
    return xxhash.xxh3_128((backend + json.dumps(rest, sort_keys=True)).encode()).hexdigest()


@cache
def _code_digest() -> str:
    """The code that makes tokens of rows: another version may make others."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return content_digest(files)
