"""What a layout file chooses beyond accelerate, two owners that disagree, and what is not supported."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.config import TrainConfig
from toolkit.data.split import Capacity
from toolkit.errors import UserError
from toolkit.launcher import Launch
from toolkit.parallel.choices import Choices, read_choices
from toolkit.steps import chosen_capacity

FILE = Path("my.yaml")
VARIABLE = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"


def launched(*flags: str, **sections: dict) -> Launch:
    return Launch(("accelerate", "launch", *flags, "recipes/sft.py"), FILE, sections, False)


@pytest.mark.parametrize("section", ["parallelism_config", "fsdp_config", "deepspeed_config"])
def test_accumulation_is_read_wherever_accelerate_lets_it_stand(section: str) -> None:
    choices = read_choices(launched(**{section: {"gradient_accumulation_steps": 4}}), {})
    assert choices.accumulation == 4
    assert choices.accumulation_source == f"gradient_accumulation_steps in my.yaml ({section})"


def test_a_flag_overrides_the_file_and_the_environment_counts_alone() -> None:
    section = {"parallelism_config": {"gradient_accumulation_steps": 4}}
    assert read_choices(launched("--gradient_accumulation_steps", "2", **section), {}).accumulation == 2
    assert read_choices(launched(), {VARIABLE: "1"}).accumulation == 1
    assert read_choices(launched(), {}).accumulation is None


def test_two_owners_that_disagree_are_both_named() -> None:
    section = {"parallelism_config": {"gradient_accumulation_steps": 4}}
    with pytest.raises(UserError, match=rf"my\.yaml \(parallelism_config\) is 4 and the variable {VARIABLE} is 8"):
        read_choices(launched(**section), {VARIABLE: "8"})
    assert read_choices(launched(**section), {VARIABLE: "4"}).accumulation == 4


@pytest.mark.parametrize("value", ["0", "two", "-1", "1.5"])
def test_a_number_of_micro_batches_is_a_whole_number(value: str) -> None:
    with pytest.raises(UserError, match=rf"my\.yaml: gradient_accumulation_steps must be a whole .* got {value}"):
        read_choices(launched(parallelism_config={"gradient_accumulation_steps": value}), {})


def test_the_recipe_agrees_or_is_named_too() -> None:
    choices = Choices(accumulation=4, accumulation_source="SOURCE")
    derived = Capacity(1024, None)
    capacity, said = chosen_capacity(TrainConfig(global_batch_size=16), choices, 2, derived)
    assert (capacity.micro_batches, capacity.max_tokens, capacity.max_rows) == (4, None, None)
    assert "SOURCE" in said
    # 2 rows x 2 devices x 4 micro-batches are the 16 rows of the recipe.
    chosen_capacity(TrainConfig(global_batch_size=16, micro_batch_size=2), choices, 2, derived)
    with pytest.raises(
        UserError, match=r"SOURCE is 4 and train\.micro_batch_size is 3: on 2 devices .* 24 rows, but .* 16"
    ):
        chosen_capacity(TrainConfig(global_batch_size=16, micro_batch_size=3), choices, 2, derived)
    with pytest.raises(UserError, match=r"SOURCE is 4 and train\.max_tokens_per_micro_batch is 99: both decide"):
        chosen_capacity(TrainConfig(global_batch_size=16, max_tokens_per_micro_batch=99), choices, 2, derived)
    with pytest.raises(UserError, match=r"8 micro-batches, but train\.global_batch_size is 7 rows"):
        chosen_capacity(TrainConfig(global_batch_size=7), choices, 2, derived)


FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}


def mesh(world: int, **sizes: int) -> dict[str, str]:
    return {**FSDP, "WORLD_SIZE": str(world)} | {f"PARALLELISM_CONFIG_{k}_SIZE": str(v) for k, v in sizes.items()}


def test_the_mesh_of_each_kind_of_layout() -> None:
    def sizes(environment: dict[str, str]) -> tuple[int, ...]:
        found = read_choices(launched(), environment)
        return found.replicate, found.shard, found.tensor, found.context

    assert sizes({}) == (1, 1, 1, 1)
    assert sizes({"WORLD_SIZE": "4"}) == (4, 1, 1, 1)
    assert sizes({**FSDP, "WORLD_SIZE": "4"}) == (1, 4, 1, 1)
    assert sizes(mesh(16, DP_REPLICATE=2, DP_SHARD=8)) == (2, 8, 1, 1)
    assert sizes(mesh(16, DP_REPLICATE=2, DP_SHARD=2, TP=4)) == (2, 2, 4, 1)
    assert sizes(mesh(8, DP_SHARD=2, CP=4)) == (1, 2, 1, 4)


@pytest.mark.parametrize(
    ("sections", "environment", "message"),
    [
        ({}, mesh(8, DP_SHARD=2, TP=2), r"dp_shard_size 2 x tp_size 2 is 4, but num_processes is 8"),
        ({}, mesh(8, TP=2, CP=2, DP_SHARD=2), "tp_size and cp_size cannot both"),
        ({}, mesh(2, SP=2), "sp_size .* use parallelism_config_cp_size"),
        ({}, {**mesh(4, TP=4), "ACCELERATE_USE_FSDP": "false"}, "need distributed_type: FSDP"),
        ({}, {**FSDP, "FSDP_VERSION": "1"}, r"fsdp_version: 1 is not supported"),
        ({}, {**FSDP, "ACCELERATE_MIXED_PRECISION": "fp16"}, "fp16 with FSDP2"),
        ({}, {"ACCELERATE_MIXED_PRECISION": "fp8"}, "fp8 is not supported; use no, bf16, fp16"),
        ({}, {"ACCELERATE_USE_DEEPSPEED": "true"}, "deepspeed is not supported"),
        (
            {"parallelism_config": {"ddp_comm_hook": "bf17"}},
            {},
            r"ddp_comm_hook: bf17 is not known; known: no, fp16, bf16",
        ),
        ({"parallelism_config": {"ddp_comm_hook": "bf16"}}, FSDP, "compresses the gradients of DDP"),
        ({"parallelism_config": {"ddp_comm_state_option": {"a": 1}}}, {}, "belongs to ddp_comm_hook: power_sgd"),
    ],
)
def test_what_nothing_here_does_is_refused_in_one_line(sections: dict, environment: dict, message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        read_choices(launched(**sections), environment)
    assert "\n" not in str(refused.value)


def test_what_is_done_besides_is_said() -> None:
    assert Choices().said() == []
    environment = {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR", "ACCELERATE_DYNAMO_MODE": "max-autotune"}
    hook = launched(parallelism_config={"ddp_comm_hook": "BF16"})
    assert read_choices(hook, environment).said() == [
        "gradients sent in bf16",
        "repeated blocks compiled by inductor, mode max-autotune, for lengths that change",
    ]
    part = {**FSDP, "FSDP_CPU_RAM_EFFICIENT_LOADING": "true", "FSDP_ACTIVATION_CHECKPOINTING": "true"}
    recomputed, loading = read_choices(launched(), part).said()
    assert recomputed == "activations recomputed in backward"
    assert loading.startswith("each process loads its part")
