"""The stages that a recipe is made of, in their order: begin, data, model, then `fine_tune`, and leave."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.distributed import DistributedConfig

from toolkit.build import build_model
from toolkit.card.gather import gather
from toolkit.card.write import write_card
from toolkit.config import DataConfig, RunConfig
from toolkit.data.prepare import prepare
from toolkit.data.prepared import PreparedData
from toolkit.data.shapes import SUPERVISED
from toolkit.data.tokens import TokenRows
from toolkit.errors import UserError
from toolkit.evaluation import Answer, answer
from toolkit.finished import load_finished
from toolkit.monitor.preparation import PreparationProgress
from toolkit.monitor.summary import report
from toolkit.parallel.loading import distributed_config
from toolkit.publish import publish
from toolkit.start import Run, start


def begin(config: RunConfig) -> Run | None:
    """Processes that work together, and an output folder; None, and a line, if the run has ended before.

    What can be wrong is found here, before data or weights are read. Raises UserError.
    """
    run = start(config)
    if run.finished:
        run.say(f"{run.folder.path} is complete already, there is nothing to do")
        return None
    return run


def data_of(
    run: Run,
    tokenizer: PreTrainedTokenizerBase,
    *,
    accepted: Collection[str] = SUPERVISED,
    prompts: int = 0,
    pack: Callable[[TokenRows], TokenRows] | None = None,
    config: DataConfig | None = None,
) -> PreparedData:
    """The rows of the config as tokens and labels, made now or taken from the cache, with a progress bar; see `prepare`.

    accepted: names of the shapes that the recipe learns from (`toolkit.data.shapes`). config: in place of the run's own.
    """
    if run.config.generate_rows and not prompts:
        raise UserError("generate_rows: this recipe generates no answers; set it to 0")
    with PreparationProgress(active=run.layout.is_main) as progress:
        return prepare(
            config or run.config.data,
            tokenizer,
            seed=run.config.seed,
            prompts=prompts,
            note=run.say,
            progress=progress,
            accepted=accepted,
            pack=pack,
            max_steps=run.config.train.max_steps,
        )


def model_of(run: Run, tokenizer: PreTrainedTokenizerBase, *, whole: bool = False) -> PreTrainedModel:
    """The model of the config on the CPU, with an adapter where one is asked for; cut into parts where the layout does so while
    it loads, unless it is to be `whole`."""
    sharded: DistributedConfig | None = None if whole else distributed_config(run.layout.choices)
    return build_model(run.config, tokenizer, mixed_precision=run.layout.mixed_precision, say=run.say, sharded=sharded)


def answers_of(
    run: Run, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: PreparedData
) -> list[Answer]:
    """What `model`, whole on each process, answers to the prompts of the evaluation rows; see `evaluation.answer`."""
    longest = run.config.generate_max_tokens
    return answer(run.layout, model, tokenizer, data.prompts, max_new_tokens=longest, beat=run.beat)


def finished_answers_of(run: Run, tokenizer: PreTrainedTokenizerBase, data: PreparedData) -> list[Answer]:
    """The same of the model in the run's folder, loaded as a user would load it."""
    return answers_of(run, load_finished(run.folder.model)[0], tokenizer, data) if data.prompts else []


def leave(
    run: Run,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data: PreparedData,
    evaluations: dict[str, dict[str, float]],
    before: Sequence[Answer] = (),
    after: Sequence[Answer] = (),
) -> None:
    """The end of a run: the model's card, the table of what was achieved, and the upload where one is wished.

    evaluations: what `fine_tune` returned. before, after: answers to evaluation rows, by `answers_of`.
    """
    if run.layout.is_main:
        write_card(run.folder, gather(run, model, tokenizer, data, evaluations, before, after))
        report(run.folder, evaluations, before, after)
    publish(run)
