"""Every option of Quillet on one page: its type, default, meaning and limits.

The YAML groups beside this file choose values; this file says which values exist. It imports no torch, so help,
completion and refusals are instant. configs/checks.py says what is wrong with values.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

TINY_SHAKESPEARE_URLS = [
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    "https://cdn.jsdelivr.net/gh/karpathy/char-rnn@master/data/tinyshakespeare/input.txt",
]


class UserError(Exception):
    """What the user asked cannot be done. The message is one plain sentence: what was wrong, with what value, what to do."""


def option(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] = (),
    also: str = "",
    free_text: bool = False,
) -> Any:
    """A documented dataclass field.

    `least` and `most` are inclusive limits, `above` and `below` exclusive ones. `also` lists other names by which people
    know the option: a mistyped key is compared with them too. A `free_text` value is taken from the command line letter
    for letter, outside Hydra's grammar.
    """
    limits = {"least": least, "most": most, "above": above, "below": below}
    metadata = {
        "help": help,
        "limits": {name: limit for name, limit in limits.items() if limit is not None},
        "choices": choices,
        "also": also.split(),
        "free_text": free_text,
    }
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class ModelConfig:
    name: str = option("gpt", "what run folders and tables call this model")
    block_size: int = option(64, "characters the model sees at once", least=1, also="context context_length seq_len")
    n_layer: int = option(2, "blocks; 0: the bigram table alone", least=0, most=1000, also="layers depth")
    n_head: int = option(4, "attention heads in each block", least=1, most=10_000, also="heads num_heads")
    head_size: int = option(32, "width of one head, free of n_embd and n_head", least=1, also="head_dim")
    n_embd: int = option(128, "width of the stream between blocks", least=1, also="width d_model hidden_size")
    attention: str = option("softmax", "learned weights, or equal ones for all so far", choices=("softmax", "uniform"))
    feed_forward: bool = option(True, "a feed-forward part, four times as wide, in each block")
    dropout: float = option(0.0, "share of activations dropped in training", least=0, below=1)
    positions: str = option("rotary", "how it knows where characters stand", choices=("rotary", "learned", "none"))
    norm: str = option("layer_norm", "before each part, without parameters", choices=("layer_norm", "rms_norm"))
    activation: str = option("squared_relu", "of the feed-forward part", choices=("squared_relu", "gelu", "relu"))
    qk_norm: bool = option(True, "normalise queries and keys before they meet")
    bigram: bool = option(True, "add the bigram table to the logits")
    bigram_init: str = option("counts", "what the table starts from", choices=("counts", "zero"))
    n_previous: int = option(
        2, "earlier characters whose embeddings join the input", least=0, most=1000, also="previous"
    )
    n_gram_order: int = option(7, "n-grams of up to this order join, too; 0: none", least=0, most=64, also="ngram")
    n_gram_rows: int = option(
        65_536, "rows of their table, in which a hash finds them", least=1, also="ngram_vocab hash"
    )
    n_gram_dropout: float = option(0.0, "share of n-grams' rows left out in training", least=0, below=1)
    embedding_std: float = option(0.5, "spread of the numbers that embeddings start from", least=0, most=100)


@dataclass
class DataConfig:
    name: str = option("tiny_shakespeare", "which text", choices=("tiny_shakespeare", "text", "playlet"))
    path: str | None = option(
        None, "a UTF-8 text file; or several: books/*.txt", free_text=True, also="file text input dataset"
    )
    validation_fraction: float = option(0.1, "share of the text, its end, never trained on", above=0, below=1)
    test_fraction: float = option(0.0, "share after that, kept even from validation", least=0, below=1, also="holdout")
    characters: int = option(1_000_000, "length of the Playlet, in characters", least=1)
    fallback: str | None = option("playlet", "for want of Tiny Shakespeare; null: stop", choices=("playlet",))
    fallback_reason: str | None = option(None, "why the fallback was taken; filled in by train.py")
    urls: list[str] = option(TINY_SHAKESPEARE_URLS, "where Tiny Shakespeare is downloaded from, in order")
    timeout: float = option(15.0, "seconds without an answer before a download is given up", above=0, most=600)


@dataclass
class OptimizerConfig:
    name: str = option("adamw", "which optimizer", choices=("adamw", "muon"))
    lr: float = option(3e-3, "highest learning rate of matrices", least=0, also="learning_rate")
    table_lr: float = option(1e-2, "highest learning rate of tables: embeddings, bigram", least=0, also="embedding_lr")
    n_gram_lr: float = option(0.3, "highest learning rate of the rows of n-grams", least=0)
    weight_decay: float = option(0.1, "decay of matrices; tables are not decayed", least=0, also="wd")
    beta1: float = option(0.9, "AdamW's memory of the gradient", least=0, below=1)
    beta2: float = option(0.95, "AdamW's memory of its square", least=0, below=1)
    momentum: float = option(0.95, "Muon's memory of the gradient", least=0, below=1)
    warmup_steps: int = option(20, "steps of linear warm-up", least=0, also="warmup_iters")
    schedule: str = option("linear", "shape of the cool-down", choices=("linear", "cosine", "constant"))
    cooldown_fraction: float = option(0.6, "share of the steps, the last ones, that cool down", least=0, most=1)
    final_lr_fraction: float = option(0.01, "what is left of lr at the last step", least=0, most=1, also="min_lr")
    grad_clip: float = option(1.0, "largest norm of the gradient, n-grams' apart; 0: any", least=0)


@dataclass
class TrainerConfig:
    max_steps: int = option(1300, "optimizer updates", least=1, also="steps max_iters iterations epochs")
    max_minutes: float | None = option(None, "stop after this much training time", above=0)
    batch_size: int = option(12, "windows in one step, all its parts together", least=1, most=1_000_000)
    grad_accumulation: int = option(1, "parts in which a step is computed", least=1, also="gradient_accumulation_steps")
    eval_interval: int = option(325, "steps between evaluations", least=1, also="eval_iters val_interval")
    save_interval: int | None = option(
        None, "steps between saves; null: save at evaluations", least=1, also="checkpoint"
    )
    log_interval: int = option(10, "steps between points of the training curves", least=1)
    patience: int | None = option(None, "evaluations without a better one before stopping", least=1, also="early_stop")
    sample_length: int = option(200, "characters sampled at each evaluation; 0: no samples at all", least=0)
    probe: str | None = option(
        None, "text whose attention is drawn; null: a real line; '': none", free_text=True, also="attention_text"
    )
    overfit_batch: bool = option(False, "train on the first step's windows again and again")
    device: str = option("auto", "auto, cpu, cuda, cuda:1, mps")
    precision: str = option(
        "auto", "of the blocks", choices=("auto", "float32", "bfloat16", "float16"), also="dtype amp"
    )
    attention_path: str = option(
        "auto", "how attention is computed", choices=("auto", "plain", "fused"), also="flash sdpa"
    )
    threads: int | None = option(
        None, "processor threads; null: one a core", least=1, most=1024, also="num_threads num_workers"
    )
    profile: bool = option(False, "show where the time of ten steps goes; trace.json has all")
    compile: bool = option(False, "torch.compile the model: slow to start, then faster")
    deterministic: bool = option(False, "the same bits each time on a GPU too (a CPU has them anyway)")


@dataclass
class TrainConfig:
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    seed: int = option(1337, "of the weights, the batches and dropout", least=0, most=2**31 - 1)
    resume: str | None = option(None, "go on with a run: its folder, or latest", free_text=True)


@dataclass
class SampleConfig:
    checkpoint: str | None = option(
        None, "file or run folder; null: the newest run", free_text=True, also="ckpt model path"
    )
    prompt: str | None = option(
        None, r"text to go on from; \n is a line end, \t a tab", free_text=True, also="start text"
    )
    prompt_file: str | None = option(None, "a file with the prompt; -: standard input", free_text=True)
    interactive: bool = option(False, "write a text together, a turn each", also="chat conversation")
    length: int = option(500, "new characters after the prompt", least=0, also="max_new_tokens num_chars")
    stop: str | None = option(None, r"end a text before these characters, as \n\n", free_text=True, also="end until")
    temperature: float = option(0.8, "0: always the likeliest character; 1: as the model says", least=0, also="temp")
    top_k: int | None = option(None, "choose among this many likeliest characters", least=1)
    top_p: float | None = option(None, "choose among the likeliest that hold this share", above=0, most=1)
    min_p: float | None = option(None, "leave out those less likely than this times the likeliest", above=0, most=1)
    seed: int | None = option(None, "same seed, same text; null: a new one, which is printed", least=0, most=2**31 - 1)
    num_samples: int = option(1, "how many texts", least=1, also="batch")
    exact_window: bool = option(False, "slow: always see precisely the last block_size")
    novelty: bool = option(False, "say how much of the texts is copied from training", also="verbatim memorised")
    report: str | None = option(None, "write a page on the text to this file.html", free_text=True, also="html")
    report_text: str | None = option(None, "make the page of this file instead of writing", free_text=True)
    on_unknown: str = option("error", "what to do with characters never seen", choices=("error", "drop"))
    device: str = option("cpu", "auto, cpu, cuda, cuda:1, mps")


@dataclass
class OtherTextConfig:
    name: str | None = option(None, "null: the checkpoint's own", choices=("tiny_shakespeare", "text", "playlet"))
    path: str | None = option(
        None, "a UTF-8 text file; or several: books/*.txt", free_text=True, also="file text input dataset"
    )
    validation_fraction: float | None = option(None, "null: as in training", above=0, below=1)
    test_fraction: float | None = option(None, "null: as in training", least=0, below=1)


@dataclass
class EvaluateConfig:
    checkpoint: str | None = option(
        None, "file or run folder; null: the newest run", free_text=True, also="ckpt model path"
    )
    data: OtherTextConfig = field(default_factory=OtherTextConfig)
    split: str | None = option(
        None, "null: validation; of any other text all", choices=("train", "validation", "test", "all"), also="part"
    )
    stride: int | None = option(
        None, "characters from window to window; null: block_size", least=1, also="step overlap"
    )
    on_unknown: str = option("error", "what to do with characters never seen", choices=("error", "skip"))
    inspect: bool = option(False, "say what the checkpoint holds, without a text", also="info show")
    json: bool = option(False, "print one line of JSON", also="format")
    device: str | None = option(None, "auto, cpu, cuda, cuda:1, mps; null: as in training")


def literal(text: str) -> str:
    """Text that OmegaConf will read as exactly this, and not as an interpolation where it holds ${."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)  # a backslash before ${ is halved on reading, as are those before it


def options(schema: type) -> dict[str, dict[str, Any]]:
    """{"model.block_size": metadata, ...} for every option of a configuration class, in order."""
    return {key: metadata for key, _, metadata in leaves(schema())}


def values(config: object) -> dict[str, Any]:
    """{"model.block_size": 64, ...} for every option of a configuration, in order."""
    return {key: value for key, value, _ in leaves(config)}


def leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Key, value and metadata of every option of a configuration, in order."""
    for entry in fields(config):
        value = getattr(config, entry.name)
        if is_dataclass(value):
            yield from leaves(value, f"{prefix}{entry.name}.")
        else:
            yield prefix + entry.name, value, entry.metadata
