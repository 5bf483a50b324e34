"""The text of a model card, made of facts alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from toolkit.card.facts import CardFacts, SourceFacts
from toolkit.card.snippet import loading
from toolkit.data.account import Account

_METRIC_NAMES = {
    "eval_loss": "loss",
    "eval_perplexity": "perplexity",
    "eval_token_accuracy": "token accuracy",
    "exact_match": "exact match",
}

# What the figures are, by one that shows which loss it was.
_EXPLAINED = {
    "eval_perplexity": (
        "Loss: mean cross-entropy per labelled token ({labels} of them); perplexity: its exponential; token accuracy: "
        "the share of labelled tokens that the model ranks first, given the right text before them."
    ),
    "eval_rewards/margins": (
        "Loss and all other figures: means over pairs of answers. logps: sums of the log-probabilities of an answer's "
        "tokens; rewards: beta times what the loss compares; rewards/accuracies: the share of pairs whose better answer "
        "has more."
    ),
    "eval_kl": (
        "Loss: mean over the judged answers. kl: what the model has come to prefer of answers in general, and all rewards are "
        "compared with; rewards and logps: means over desirable (chosen) and other (rejected) answers of beta times what "
        "training changed of their log-probabilities, and of these."
    ),
    "eval_divergence": (
        "Loss: of cross-entropy and divergence as they were weighed in training; all figures are means over labelled tokens "
        "({labels} of them). teacher agreement and token accuracy: the share of them where the model ranks first what its "
        "teacher does, and the label."
    ),
}
_ANYTHING = "Loss and all other figures are means over what the recipe's objective counts."


def card_text(facts: CardFacts) -> str:
    """The card below its metadata, as Markdown."""
    parts = [
        f"# {line(facts.title)}",
        opening(facts),
        "## How to use it",
        loading(facts),
        "## Evaluation",
        evaluation(facts),
    ]
    parts += ["## Data", data(facts), "## Training", training(facts), "## License", license_said(facts)]
    parts += ["## How to repeat it", repeating(facts)]
    return "\n\n".join(parts) + "\n"


def opening(facts: CardFacts) -> str:
    """What was trained, of what."""
    base, adapter = facts.base, facts.adapter
    name = f"[{base.hub_id}](https://huggingface.co/{base.hub_id})" if base.hub_id else code(base.name)
    name += f" (file {code(base.gguf_file)})" if base.gguf_file else ""
    name += f", revision {code(base.revision)}" if base.revision else ""
    if base.random:
        what = f"A model trained from random weights, with the architecture and the tokenizer of {name}"
    elif adapter:
        what = f"An adapter ({adapter.method}) for {name}"
    else:
        what = f"A fine-tuned version of {name}"
    said = [
        f"{what}, made by the recipe `{facts.recipe}` of {facts.toolkit}. This card was generated at the end of the run."
    ]
    if adapter:
        sizes = ", ".join(f"{key} {value:g}" for key, value in adapter.sizes.items())
        targets = ", ".join(code(target) for target in adapter.targets)
        beside = "".join(f"; beside it {thing}" for thing in adapter.beside)
        said.append(f"The adapter: {adapter.method}{f', {sizes}' if sizes else ''}; on {targets}{beside}.")
        if adapter.converted:
            said.append(
                "It is saved as the LoRA of twice that rank which does the same to the base as it was before training."
            )
        if adapter.continued_from:
            said.append(f"Training went on from the adapter {code(adapter.continued_from)}.")
    if facts.quantization:
        said.append(f"While it was trained, the base was quantized by bitsandbytes ({facts.quantization}).")
    share = f" of {facts.parameters:,}" if facts.parameters != facts.trained else ""
    said.append(f"Trained parameters: {facts.trained:,}{share}.")
    if facts.resumed_after is not None:
        said.append(f"The run was resumed: training went on after step {facts.resumed_after:,}, from a checkpoint.")
    return " ".join(said)


def evaluation(facts: CardFacts) -> str:
    """The figures before and after, and how they were computed."""
    if not facts.metrics:
        return "The run had no evaluation rows, so nothing is known of how well the model does."
    shown = [
        (
            _METRIC_NAMES.get(metric.name, line(metric.name.removeprefix("eval_"))),
            *map(_figure, (metric.before, metric.after)),
        )
        for metric in facts.metrics
    ]
    rows = sum(source.rows for source in facts.eval)
    labels = sum(source.labels for source in facts.eval)
    where = "held out of the training data" if facts.held_out else "given as evaluation data"
    how = f"On {rows:,} rows {where}, each once, with dropout off. "
    names = {metric.name for metric in facts.metrics}
    how += next((text for name, text in _EXPLAINED.items() if name in names), _ANYTHING).format(labels=f"{labels:,}")
    if facts.exact_rows:
        how += (
            f" Exact match: the share of {facts.exact_rows:,} of these rows whose greedy answer, of at most "
            f"{facts.exact_tokens:,} tokens, is the reference but for white space around it."
        )
    return table(("", "before", "after"), shown) + "\n\n" + how


def data(facts: CardFacts) -> str:
    """Each source, and what became of its rows."""
    said = [_sources("Trained on", facts.train)]
    if facts.streamed is not None:
        since = f" since step {facts.resumed_after:,}" if facts.resumed_after is not None else ""
        said.append(f"The rows were tokenized while they were read{since}: {line(_account(facts.streamed))}.")
    if facts.held_out:
        said.append(_sources("Evaluated on rows held out of the same sources", facts.eval))
    elif facts.eval:
        said.append(_sources("Evaluated on", facts.eval))
    said.append("Labelled tokens are those that the loss is taken on. Rows read = whole + truncated + split + dropped.")
    return "\n\n".join(said)


def training(facts: CardFacts) -> str:
    """Settings as they came out, those that differ from the defaults, devices, versions."""
    parts = [table(("", ""), facts.training.items())]
    if facts.settings:
        parts.append("Settings that decide what is learnt and differ from the defaults:")
        parts.append(table(("key", "value"), [(code(key), code(value)) for key, value in facts.settings.items()]))
    parts.append("Devices (they do not change what is learnt):")
    parts.append(table(("", ""), facts.layout.items()))
    parts.append("Versions: " + ", ".join(f"{name} {value}" for name, value in facts.versions.items()) + ".")
    return "\n\n".join(parts)


def license_said(facts: CardFacts) -> str:
    """What is known of the license, and no more."""
    stated = facts.base.license.get("license")
    if stated:
        named = f", {line(facts.base.license['license_name'])}" if "license_name" in facts.base.license else ""
        return f"The base model states its license as {code(stated)}{named}. The data may have terms of its own."
    if facts.base.random:
        return "No license is stated: the weights are new, and whoever made them has not chosen one in this card."
    return "No license is stated: none was found in the base model's files. Its terms apply all the same; look them up."


def repeating(facts: CardFacts) -> str:
    """The command and the config."""
    config = facts.config_yaml.strip("\n")
    parts = [fenced("bash", facts.command)]
    if "$CONFIG_DIR" in config:
        parts.append(
            "`$CONFIG_DIR` is the folder of the config file; here it was that of the file the run was started with."
        )
    parts.append(f"<details>\n<summary>config.yaml: every setting</summary>\n\n{fenced('yaml', config)}\n\n</details>")
    return "\n\n".join(parts)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    cells = ([line(cell).replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in cells])


def line(text: str) -> str:
    """`text` in one line."""
    return " ".join(text.split())


def code(text: str | None) -> str:
    """`text` between backticks, more of them than it has itself."""
    shown = line(str(text))
    ticks = "`" * (_longest_run(shown) + 1)
    space = " " if "`" in shown else ""
    return f"{ticks}{space}{shown}{space}{ticks}"


def fenced(language: str, text: str) -> str:
    """`text` as a block that nothing in it can end."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _account(account: Account) -> str:
    return f"{account}; {account.tokens:,} tokens, {account.labels:,} labelled"


def _sources(what: str, sources: Sequence[SourceFacts]) -> str:
    heads = ["source", "rows read", "whole", "truncated", "split", "dropped", "rows used", "tokens", "labelled tokens"]
    mixed = any(source.rows_per_epoch is not None for source in sources)
    if not any(source.account for source in sources):  # a stream
        return f"{what} (as a stream): " + ", ".join(_named(source) for source in sources) + "."
    rows = [
        [_named(s), *_counts(s), *([f"{s.rows_per_epoch:,}"] if s.rows_per_epoch is not None else [])] for s in sources
    ]
    return f"{what}:\n\n" + table([*heads, *["rows in an epoch"] * mixed], rows)


def _counts(source: SourceFacts) -> list[str]:
    a, used = source.account, (source.rows, source.tokens, source.labels)
    read = () if a is None else (a.read, a.whole, a.truncated, a.split, a.dropped.total())
    return [f"{count:,}" for count in (*read, *used)]


def _named(source: SourceFacts) -> str:
    name = (
        f"[{source.hub_id}](https://huggingface.co/datasets/{source.hub_id})" if source.hub_id else code(source.where)
    )
    of: Mapping[str, str | None] = {"config": source.config, "split": source.split, "revision": source.revision}
    more = ", ".join(f"{key} {code(value)}" for key, value in of.items() if value)
    return f"{name} ({more})" if more else name
