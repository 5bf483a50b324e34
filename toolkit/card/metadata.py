"""The head of a model card: the metadata that the hub reads."""

from __future__ import annotations

import math

from huggingface_hub import EvalResult, ModelCardData

from toolkit.card.facts import CardFacts, SourceFacts

# Names of metrics on the hub, where it has one.
_HUB_METRICS = {
    "eval_loss": ("loss", "Loss"),
    "eval_perplexity": ("perplexity", "Perplexity"),
    "eval_token_accuracy": ("accuracy", "Token accuracy"),
    "exact_match": ("exact_match", "Exact match"),
}


def metadata(facts: CardFacts) -> ModelCardData:
    """What can be said truly in the hub's terms; what cannot (a local folder as base, a local file as data set, a license
    that nobody stated) is left out, since the hub would link it to something else or refuse it."""
    base, adapter = facts.base, facts.adapter
    tags = [facts.toolkit, facts.recipe] + ([adapter.method] if adapter else [])
    hub_data = list(dict.fromkeys(source.hub_id for source in facts.train if source.hub_id))
    descends = base.hub_id is not None and not base.random
    results = eval_results(facts)
    return ModelCardData(
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        base_model=base.hub_id if descends else None,
        base_model_relation=("adapter" if adapter else "finetune") if descends else None,
        datasets=hub_data or None,
        tags=tags,
        model_name=facts.title if results else None,
        eval_results=results or None,
        license=base.license.get("license"),
        license_name=base.license.get("license_name"),
        license_link=base.license.get("license_link"),
    )


def eval_results(facts: CardFacts) -> list[EvalResult]:
    """The figures after training, where the evaluation rows are one data set of the hub, to which they can be ascribed."""
    if len(facts.eval) != 1 or facts.eval[0].hub_id is None:
        return []
    source = facts.eval[0]
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=str(source.hub_id),
            dataset_name=_dataset_name(source, held_out=facts.held_out),
            dataset_config=source.config,
            dataset_split=source.split,
            dataset_revision=source.revision,
            metric_type=_HUB_METRICS[metric.name][0],
            metric_name=_HUB_METRICS[metric.name][1],
            metric_value=float(metric.after),
        )
        for metric in facts.metrics
        if metric.name in _HUB_METRICS and metric.after is not None and math.isfinite(metric.after)
    ]


def _dataset_name(source: SourceFacts, *, held_out: bool) -> str:
    return f"{source.hub_id}, {source.rows:,} rows" + (" held out" if held_out else "")
