"""The keys of a recipe's configuration, by section, with their defaults, bounds and help. `parsing.py` fills them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


def option(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    path: bool = False,
    alters: bool = True,
) -> Any:
    """A dataclass field with its help text and bounds; `path` fields have `~` and `$VARIABLES` expanded.

    alters: another value may alter what is learned, so that a run cannot be resumed with it unless that is allowed.
    """
    metadata = {"help": help, "minimum": minimum, "above": above, "below": below, "path": path, "alters": alters}
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: default.copy(), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class ModelConfig:
    """Which model is trained."""

    name_or_path: str | None = option(None, "hub name or folder of the model", path=True)
    gguf_file: str | None = option(None, "a .gguf file in that folder; its weights are dequantized")
    revision: str | None = option(None, "branch, tag or commit of a hub model")
    dtype: str | None = option(
        None,
        "dtype of the weights: float32 by default, with an adapter what the layout computes in; 'auto' keeps the checkpoint's",
    )
    quantization: Literal["nf4", "fp4", "int8"] | None = option(
        None, "keep the frozen base of an adapter in 4 or 8 bits (bitsandbytes): QLoRA"
    )
    double_quantization: bool = option(False, "with nf4 and fp4: quantize the scales too, 0.4 bits per weight less")
    new_tokens: list[str] = option([], "tokens to add that occur in texts; each gets a row in the embeddings")
    new_special_tokens: list[str] = option(
        [], "tokens to add that steer, as turn markers of a chat template do: inside messages they are text"
    )
    attn_implementation: str | None = option(
        None, "attention backend; default: padding-free SDPA or flash attention", alters=False
    )
    trust_remote_code: bool = option(False, "run modeling code that comes with a hub model", alters=False)
    random_init: bool = option(False, "start from random weights: only the config and the tokenizer are read")
    gradient_checkpointing: bool = option(
        False, "recompute activations in backward: less memory, more time", alters=False
    )

    @property
    def added_tokens(self) -> list[str]:
        """All tokens to add."""
        return list(dict.fromkeys([*self.new_tokens, *self.new_special_tokens]))


@dataclass
class AdapterConfig:
    """Train an adapter by peft and leave the model's own weights as they are. docs/adapters.md says which when."""

    method: Literal[
        "none", "lora", "rslora", "dora", "pissa", "olora", "loha", "lokr", "ia3", "vera", "oft", "hra", "miss"
    ] = option("none", "kind of adapter; none trains the whole model")
    r: int = option(16, "rank, or what the method has in its place; ia3 has none", minimum=1)
    alpha: int = option(
        32, "updates are scaled by alpha / r (rslora: alpha / sqrt(r)); vera, oft, hra, miss: unused", minimum=1
    )
    dropout: float = option(0.0, "dropout before the adapter's matrices", minimum=0.0, below=1.0)
    target_modules: str | list[str] = option(
        "all-linear", "which modules get one: all-linear, all but the output head; names, or their ends; or one regex"
    )
    exclude_modules: list[str] = option([], "names, or their ends, of modules that get none")
    modules_to_save: list[str] = option(
        [], "modules that are trained whole beside it, such as embed_tokens and lm_head"
    )
    trainable_tokens: list[str] = option(
        [], "tokens whose embeddings are trained beside it; those that the model section adds always are"
    )
    tied_embeddings: Literal["keep", "untie"] | None = option(
        None,
        "where embeddings and head are one matrix and are trained: keep them one, or make two; must be chosen then",
    )
    name_or_path: str | None = option(None, "an adapter to go on training; its method and sizes are kept", path=True)

    @property
    def wanted(self) -> bool:
        """True when an adapter is trained, not the whole model."""
        return self.method != "none" or self.name_or_path is not None


@dataclass
class SourceConfig:
    """One source of a mixture. What is not set is as in the data section."""

    path: str | None = option(None, "file, folder, glob or hub name", path=True)
    name: str | None = option(None, "name in reports and in eval_loss/NAME; default: from the path")
    config: str | None = option(None, "configuration (subset) of a hub data set")
    split: str | None = option(None, "split of a hub data set")
    revision: str | None = option(None, "branch, tag or commit of a hub data set")
    field: str | None = option(None, "key of a JSON document under which the list of rows lies")
    columns: dict[str, str] | None = option(None, "as data.columns, for this source")
    delimiter: str | None = option(None, "as data.delimiter")
    encoding: str | None = option(None, "as data.encoding")
    sample_by: Literal["line", "paragraph", "document"] | None = option(None, "as data.sample_by")
    max_rows: int | None = option(None, "read at most this many rows of it", minimum=1)
    weight: float | None = option(None, "its share of an epoch's rows, relative to the other weights", above=0)
    repeat: float | None = option(None, "passes over it in one epoch; 0.5 takes another half each time", above=0)


@dataclass
class DataConfig:
    """Which rows are learned from, and how they become tokens and labels."""

    train: str | SourceConfig | list[str | SourceConfig] | None = option(
        None, "file, folder, glob or hub name; or a list of them, each with its options: a mixture", path=True
    )
    eval: str | SourceConfig | list[str | SourceConfig] | None = option(None, "the same, for evaluation", path=True)
    train_split: str = option("train", "split of a hub data set to train on")
    eval_split: str = option("test", "split of a hub data set to evaluate on")
    eval_fraction: float = option(0.0, "share of each source held out when data.eval is not set", minimum=0.0)
    columns: dict[str, str] | None = option(
        None, "our column or role name -> the file's, as {prompt: q, completion: a} or {user: q, assistant: a}"
    )
    delimiter: str | None = option(None, "field delimiter of CSV files; default: a comma, a tab in .tsv")
    encoding: str = option("utf-8", "encoding of text files")
    sample_by: Literal["line", "paragraph", "document"] = option("line", "what a row of a .txt file is")
    max_rows: int | None = option(None, "read at most this many rows of each source", minimum=1)
    on_bad_row: Literal["error", "skip"] = option(
        "error", "what a row that cannot be used does; skipped ones are counted", alters=False
    )
    max_bad_fraction: float = option(
        0.1, "stop when a larger share of a source's rows cannot be used or keeps no label", minimum=0.0, alters=False
    )
    train_on: Literal["assistant", "last_assistant", "completion", "all"] = option(
        "assistant", "which text is learned: all answers, the last one, the completion of a prompt, or everything"
    )
    max_length: int = option(2048, "longest row in tokens", minimum=2)
    overlength: Literal["error", "truncate", "drop", "split"] = option(
        "truncate", "what happens to longer rows; always counted"
    )
    chat_template: str | None = option(None, "file with a chat template, or 'chatml'; saved with the model", path=True)
    system_policy: Literal["keep", "fold"] = option(
        "keep", "fold puts a system message into the first user turn, for templates that refuse it"
    )
    control_tokens: Literal["text", "token"] = option(
        "text", "how control tokens inside the text of messages are encoded: as the text they are, or acting"
    )
    num_proc: int | None = option(None, "processes that tokenize; default: one for each core", minimum=1, alters=False)
    cache_dir: str | None = option(
        None, "where tokenized data is kept; default: $TOOLKIT_CACHE, else ~/.cache/toolkit", path=True, alters=False
    )
    streaming: bool = option(
        False, "tokenize while training, for data that does not fit the disk; needs train.max_steps"
    )
    shuffle: bool = option(True, "a new order of the rows in every epoch")
    shuffle_window: int = option(10_000, "with streaming: rows within which the order is shuffled", minimum=1)


@dataclass
class TrainConfig:
    """What an optimizer step is. How many devices share it is the layout's affair."""

    global_batch_size: int = option(16, "rows of one optimizer step, over all devices and micro-batches", minimum=1)
    micro_batch_size: int | None = option(None, "at most this many rows at once on one device", minimum=1, alters=False)
    max_tokens_per_micro_batch: int | None = option(
        None, "at most this many tokens at once on one device", minimum=1, alters=False
    )
    padding_free: bool = option(
        True, "lay rows end to end without padding; false pads them to the longest", alters=False
    )
    epochs: float = option(1.0, "passes over the training rows", above=0)
    max_steps: int | None = option(None, "optimizer steps; overrides epochs", minimum=1)
    learning_rate: float = option(2e-5, "peak learning rate", minimum=0.0)
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = option(
        "none", "rate = learning_rate x (global_batch_size / learning_rate_base_batch_size), or its square root"
    )
    learning_rate_base_batch_size: int | None = option(None, "the batch size learning_rate was tuned at", minimum=1)
    schedule: Literal["linear", "cosine", "constant"] = option("linear", "shape of the learning rate after warm-up")
    warmup_steps: int | None = option(None, "optimizer steps of linear warm-up", minimum=0)
    warmup_ratio: float = option(0.0, "warm-up as a share of all steps, rounded up", minimum=0.0)
    optimizer: Literal["adamw", "sgd"] = option("adamw", "update rule")
    weight_decay: float = option(0.0, "decay of matrices; never of norms and biases", minimum=0.0)
    adam_beta1: float = option(0.9, "AdamW: decay of the gradient average", minimum=0.0)
    adam_beta2: float = option(0.999, "AdamW: decay of the squared-gradient average", minimum=0.0)
    adam_epsilon: float = option(1e-8, "AdamW: added to the denominator", minimum=0.0)
    label_smoothing_factor: float = option(
        0.0,
        "share of each target spread evenly over the vocabulary; evaluation loss and perplexity stay plain cross-entropy",
        minimum=0.0,
        below=1.0,
    )
    max_grad_norm: float = option(1.0, "clip gradients to this global norm; 0 does not clip", minimum=0.0)


@dataclass
class CheckpointConfig:
    """When the state of a run is saved, and which of the saved ones are kept."""

    save_every: int | None = option(None, "optimizer steps between checkpoints", minimum=1, alters=False)
    save_every_minutes: float = option(
        30.0, "minutes between checkpoints; 0 saves by steps only", minimum=0.0, alters=False
    )
    keep_last: int = option(2, "newest checkpoints that are kept", minimum=1, alters=False)
    keep_best: str | None = option(
        None, "metric, such as eval_loss: each evaluation that is the best so far is saved and kept", alters=False
    )
    asynchronous: bool = option(
        False, "write while training goes on; takes main memory for a copy of the state", alters=False
    )
    on_save_error: Literal["stop", "continue"] = option(
        "stop", "what a checkpoint that cannot be written does", alters=False
    )


@dataclass
class WatchConfig:
    """What is watched while a run goes on."""

    hang_timeout: float = option(
        10.0,
        "minutes without progress after which a run says who hangs where, and ends; 0 never",
        minimum=0.0,
        alters=False,
    )
    stop_grace_seconds: float = option(
        25.0, "seconds that a run has to save and end after SIGTERM or SIGUSR1", above=0, alters=False
    )
    straggler_factor: float = option(
        1.5, "name a rank whose steps take this many times the median; 0 never", minimum=0.0, alters=False
    )
    on_bad_step: Literal["stop", "skip", "rewind"] = option(
        "stop",
        "a non-finite step, or a spike: end the run, skip the update, or go back and pass that batch by",
        alters=False,
    )
    max_bad_steps: int = option(
        3, "with skip and rewind: end the run after this many bad steps", minimum=0, alters=False
    )
    spike_sigma: float | None = option(
        None,
        "a loss this many standard deviations above the last 128 is a bad step too; default: never",
        above=0,
        alters=False,
    )


@dataclass
class RunConfig:
    """What every recipe has: where the run goes, its seed and its rhythm. A recipe adds its own sections."""

    model: ModelConfig = field(default_factory=ModelConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)
    output_dir: str = option(
        "outputs/run", "folder of the run: metrics, config and the finished model", path=True, alters=False
    )
    overwrite: bool = option(
        False, "replace an earlier run in output_dir; only files that run wrote are removed", alters=False
    )
    resume: str = option(
        "never", "auto goes on from the newest whole checkpoint in output_dir if there is one; or a checkpoint's folder",
        path=True, alters=False,
    )  # fmt: skip
    allow_changes: list[str] = option(
        [],
        "keys that may differ from the checkpoint's although that alters what is learned; data for its rows",
        alters=False,
    )
    seed: int = option(0, "seed of row order, dropout and random weights", minimum=0)
    log_every: int = option(
        10, "optimizer steps between printed lines where there is no terminal", minimum=1, alters=False
    )
    log_gradient_norms: bool = option(
        False, "write every parameter's gradient norm of every step to OUTPUT_DIR/gradient_norms.jsonl", alters=False
    )
    eval_every: int | None = option(
        None, "optimizer steps between evaluations; one at the end in any case", minimum=1, alters=False
    )
    generate_rows: int = option(
        0, "evaluation rows to answer by generation, before and after (exact match)", minimum=0, alters=False
    )
    generate_max_tokens: int = option(64, "longest generated answer in tokens", minimum=1, alters=False)
    push_to_hub: bool = option(
        False, "upload OUTPUT_DIR/model to the Hugging Face hub when the run is complete", alters=False
    )
    hub_model_id: str | None = option(None, "repository to upload to, as NAMESPACE/NAME", alters=False)
    hub_private_repo: bool = option(
        True, "only upload to a private repository; false also makes and takes public ones", alters=False
    )

    def __post_init__(self) -> None:
        # What others may read shows paths as they were written, not where they lie here: `parse` sets it. Not a field,
        # since it is no setting.
        self.as_written: RunConfig = self
        # Keys that the user gave, with where; what is not in it is a default. `parse` sets it too.
        self.given: dict[str, str] = {}
