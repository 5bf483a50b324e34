"""A student learns its teacher's distribution of every labelled token, beside the label itself. In chunks of positions: the
full `[seq, vocabulary]` logits of neither exist."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from toolkit.data.collate import MicroBatch
from toolkit.errors import UserError
from toolkit.objectives import ObjectiveOutput
from toolkit.objectives.divergences import DIVERGENCES, likeliest, with_rest
from toolkit.objectives.head import OutputHead, finish, hidden_states
from toolkit.objectives.product import HeadProduct, scaled
from toolkit.parallel.vocabulary import VocabularyShard

_CHUNK_BYTES = (
    2**26
)  # of logits held at once, in the precision of the product; several copies of them in fp32 live beside


@dataclass(frozen=True)
class DistillationSettings:
    """divergence: one of `DIVERGENCES`. temperature: both distributions are softmax(logits / temperature). weight: the share of
    the divergence in the loss, the rest is the cross-entropy of the labels. beta: of jsd."""

    divergence: str = "forward_kl"
    temperature: float = 1.0
    weight: float = 0.5
    beta: float = 0.5


@dataclass(frozen=True)
class Distillation:
    """(1 - w) CE + w T^2 D over labelled tokens, D between the distributions at temperature T. Weight: labelled tokens.

    T^2 keeps the gradients of D at the size of those of CE, whatever T is (https://arxiv.org/abs/1503.02531, section 2).
    Metrics: D as `divergence`, CE as `cross_entropy`, and when evaluating the shares of tokens that are predicted exactly, and
    as the teacher does. teacher: a frozen model, whole on each process; None where its likeliest tokens come with the batch.
    """

    settings: DistillationSettings = field(default_factory=DistillationSettings)
    teacher: PreTrainedModel | None = None
    unit = "tokens"
    perplexity = False

    def __call__(self, model: PreTrainedModel, batch: MicroBatch) -> ObjectiveOutput:
        """Loss sum over the labelled positions of `batch`, as `[]` fp32."""
        head = OutputHead.of(model)
        if VocabularyShard.of(head.weight) is not None:
            raise UserError(
                "parallelism_config_tp_size: distillation does not know a split vocabulary yet; set it to 1"
            )
        hidden, targets = hidden_states(model, batch)[batch.labelled], batch.targets[batch.labelled]
        training = torch.is_grad_enabled()
        sums = _Chunked.apply(
            hidden,
            head.weight,
            head.bias,
            targets,
            head.scale,
            head.softcap,
            self.taught(batch),
            self.settings,
            training,
        )
        names = ["divergence", "cross_entropy"] + ["token_accuracy", "teacher_agreement"] * (not training)
        weight = torch.tensor(float(batch.label_tokens), device=hidden.device)
        return ObjectiveOutput(sums[0], weight, dict(zip(names, sums[1].unbind(), strict=False)))

    def taught(self, batch: MicroBatch) -> Taught:
        """What the teacher says of the labelled positions."""
        if self.teacher is None:
            known = batch.known.teacher
            if known is None:  # of a filler
                nothing = torch.zeros(0, 1, device=batch.targets.device)
                known = nothing.long(), nothing
            return Taught(None, None, *known)
        teacher = self.teacher.to(batch.input_ids.device)  # type: ignore[arg-type]
        with torch.no_grad():
            return Taught(hidden_states(teacher, batch)[batch.labelled], OutputHead.of(teacher), None, None)


class Taught(NamedTuple):
    """What a teacher says of some positions: hidden states `[positions, hidden]` and the head that makes logits of them, or its
    likeliest tokens `[positions, k]` with their log-probabilities at the run's temperature."""

    hidden: torch.Tensor | None
    head: OutputHead | None
    ids: torch.Tensor | None
    log_probs: torch.Tensor | None

    def part(self, part: slice) -> Taught:
        """Some of the positions."""
        cut = (None if values is None else values[part] for values in (self.hidden, self.ids, self.log_probs))
        hidden, ids, log_probs = cut
        return Taught(hidden, self.head, ids, log_probs)


def teacher_log_probs(hidden: torch.Tensor, head: OutputHead, temperature: float, vocabulary: int) -> torch.Tensor:
    """log softmax(logits / temperature) `[positions, vocabulary]` over the first tokens, in fp32. A matrix may have more rows
    than there are tokens, and those of a teacher others than those of its student."""
    with torch.autocast(hidden.device.type, enabled=False):
        dtype = head.weight.dtype
        raw = functional.linear(hidden.to(dtype), head.weight, head.bias)
    values = finish(raw, head.scale, head.softcap)[:, :vocabulary]
    return functional.log_softmax(values / temperature, dim=-1)


class _Chunked(torch.autograd.Function):
    """Makes its gradients in forward, chunk by chunk, so that the logits of one chunk live at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        scale: float,
        softcap: float | None,
        taught: Taught,
        settings: DistillationSettings,
        training: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss sum `[]`, and sums of the metrics `[4]`."""
        product = HeadProduct(hidden, weight, bias, [training and needed for needed in ctx.needs_input_grad[:3]])
        loss_sum, sums = hidden.new_zeros((), dtype=torch.float32), hidden.new_zeros(4, dtype=torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            for part, logits in product.chunks(_CHUNK_BYTES):
                with torch.set_grad_enabled(training):
                    values = finish(logits.requires_grad_(training), scale, softcap)
                    loss, found = _losses(values, targets[part], taught.part(part), settings)
                loss_sum, sums = loss_sum + loss.detach(), sums + found.detach()
                if training:
                    product.add(part, *torch.autograd.grad(loss, logits))
        ctx.grads = product.gradients
        ctx.mark_non_differentiable(sums)
        return loss_sum, sums

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Of the loss sum alone."""
        grads, ctx.grads = scaled(ctx.grads, grad_outputs[0]), None
        return *grads, None, None, None, None, None, None


def _losses(
    values: torch.Tensor, targets: torch.Tensor, taught: Taught, settings: DistillationSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss sum `[]` and sums of the metrics `[4]` of a student's logits `[positions, vocabulary]`."""
    cross_entropy = functional.cross_entropy(values, targets, reduction="sum")
    temperature = settings.temperature
    if taught.hidden is not None and taught.head is not None:
        vocabulary = min(values.shape[1], taught.head.weight.shape[0])
        with torch.no_grad():
            teacher = teacher_log_probs(taught.hidden, taught.head, temperature, vocabulary)
            best = teacher.argmax(-1)
        student = functional.log_softmax(values[:, :vocabulary] / temperature, dim=-1)
    else:
        assert taught.ids is not None
        assert taught.log_probs is not None
        teacher, best = with_rest(taught.log_probs), taught.ids[:, 0]
        student = likeliest(functional.log_softmax(values / temperature, dim=-1), taught.ids)
    divergence = DIVERGENCES[settings.divergence](student, teacher, settings.beta).sum()
    loss = (1.0 - settings.weight) * cross_entropy + settings.weight * temperature**2 * divergence
    predicted = values.argmax(-1)
    counts = (predicted == targets).sum(), (predicted == best).sum()
    return loss, torch.stack([divergence, cross_entropy, *(count.float() for count in counts)])
