"""Every answer counts the same, whatever its length: supervised fine-tuning with an objective of one's own."""

from dataclasses import dataclass

from transformers import PreTrainedModel

from toolkit import (
    MicroBatch,
    ObjectiveOutput,
    RunConfig,
    answer_log_probs,
    begin,
    data_of,
    exit_with_message,
    fine_tune,
    leave,
    load_tokenizer,
    model_of,
    option,
    parse,
)


@dataclass
class EqualAnswersConfig(RunConfig):
    """Supervised fine-tuning in which every answer counts the same."""

    power: float = option(
        1.0, "the loss of an answer is divided by its length to this power; 0 counts tokens", minimum=0.0
    )
    output_dir: str = option("outputs/equal_answers", "folder of the run", path=True, alters=False)


@dataclass(frozen=True)
class EqualAnswers:
    """The sum over answers of -log p(answer) / tokens^power. Weight: answers."""

    power: float
    unit = "answers"
    perplexity = False

    def __call__(self, model: PreTrainedModel, batch: MicroBatch) -> ObjectiveOutput:
        """The loss *sum* of one micro-batch, and what it is to be divided by once all are added up."""
        log_probs, tokens = answer_log_probs(model, batch)
        losses = -log_probs / tokens.clamp(min=1.0) ** self.power
        weight = log_probs.new_tensor(float(batch.rows))
        # A micro-batch without rows still leads back to every weight, as all processes must.
        return ObjectiveOutput(losses.sum() + 0.0 * log_probs.sum(), weight, {"answer_length": tokens.sum()})


def main() -> None:
    """Configuration, data, model, training, results."""
    config = parse(EqualAnswersConfig)
    run = begin(config)
    if run is None:
        return
    tokenizer = load_tokenizer(config.model)
    data = data_of(run, tokenizer)
    model = model_of(run, tokenizer)
    evaluations = fine_tune(run, model, tokenizer, data, EqualAnswers(config.power))
    leave(run, model, tokenizer, data, evaluations)


if __name__ == "__main__":
    exit_with_message(main)
