"""The exact loss of a trained model on a text.

The commands that people need first:

    python evaluate.py                                     the newest run's best model, on its validation part
    python evaluate.py checkpoint=runs/NAME stride=1       each character after as many others as the model can see
    python evaluate.py data.path=other.txt                 on any other text, all of it
    python evaluate.py split=train json=true               for scripts: one line of JSON
    python evaluate.py inspect=true checkpoint=best.pt     what the checkpoint holds

Without a stride, this is the number that training reported. Figures go to standard output, everything else to standard error.
"""

import os
import signal
import sys

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # nothing is lost, and no traceback is needed

from configs.checks import data_problems
from configs.command_line import CommandLine
from configs.schema import DataConfig, EvaluateConfig, OtherTextConfig, TrainConfig, UserError

COMMAND_LINE = CommandLine("evaluate", EvaluateConfig, __doc__)
if __name__ == "__main__":  # help and refusals do not wait for torch
    COMMAND_LINE.prepare(sys.argv[1:])

import json
import math
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from data import corpus as texts
from data.encoded import translated
from data.tokenizer import Tokenizer
from training import checkpoint as checkpoints
from training.checkpoint import Checkpoint, configuration_of
from training.device import Setup, choose_setup, torch_errors_in_words
from training.evaluation import Evaluation, evaluate, position_groups
from training.folders import checkpoint_to_read
from training.inspection import contents, lines


@dataclass(frozen=True)
class Part:
    """What is to be evaluated: a part of a text, as ids that the model knows."""

    name: str  # of the text
    sha256: str  # of the whole text
    split: str
    learned: bool  # whether the model has been trained on any of it
    ids: NDArray[np.integer]
    skipped: dict[str, int]  # characters that the model does not know, and how many of each
    floor: float | None  # true nats per character, where they are known


def main(config: EvaluateConfig) -> None:
    """Load a checkpoint and a text, and print the exact loss."""
    with torch_errors_in_words():
        path = checkpoint_to_read(config.checkpoint)
        checkpoint = checkpoints.load(path)
        if config.inspect:
            held = contents(checkpoint, path)
            print(json.dumps(held, allow_nan=False) if config.json else "\n".join(lines(held)), flush=True)
            return
        trained = configuration_of(checkpoint)
        setup = setup_of(checkpoint, trained, config.device)
        model = checkpoints.model_from(checkpoint, path).to(setup.device)
        model.use_attention(setup.attention_path)
        block_size = model.config.block_size
        stride = config.stride or block_size
        if stride > block_size:
            raise UserError(f"stride={stride} would leave characters out: at most model.block_size={block_size}")
        part = part_of(config, checkpoint, trained.data)
        with tqdm(total=len(part.ids) - 1, unit=" characters", disable=None, leave=False) as bar:
            result = evaluate(
                model, torch.from_numpy(part.ids), setup, stride, lambda counted: bar.update(counted - bar.n)
            )
    if not math.isfinite(result.nats):
        raise UserError(f"{path} gives no finite loss on this text: its weights are damaged")
    figures = {
        "loss": result.nats,
        "bits_per_char": result.bits_per_char,
        "perplexity": result.perplexity if math.isfinite(result.perplexity) else None,
        "characters": result.characters,
        "stride": stride,
        "split": part.split,
        "corpus": {"name": part.name, "sha256": part.sha256},
        "skipped": part.skipped,
        "floor": part.floor,
        "checkpoint": str(path),
        "step": checkpoint["step"],
        **setup.facts(),
        "loss_by_position": result.nats_by_position,
        "characters_by_position": result.characters_by_position,
    }
    if config.json:
        print(json.dumps(figures, allow_nan=False), flush=True)
    else:
        print(f"{path}: {trained.model.name}, step {checkpoint['step']}, trained on {checkpoint['corpus']['name']}")
        print("\n".join(table(part, result, stride, block_size)))
        print(f"\ncomputed with {', '.join(f'{name} {fact}' for name, fact in setup.facts().items())}", flush=True)


def setup_of(checkpoint: Checkpoint, trained: TrainConfig, device: str | None) -> Setup:
    """Compute as training did, so that the number is the same to the last bit, or on the device that is asked for."""
    made_with = checkpoint["versions"]
    if device is not None and device != made_with["device"]:
        return choose_setup(replace(trained.trainer, device=device), "device")
    with checkpoints.taken_for_damage("the checkpoint is damaged: it does not say how it was computed"):
        as_in_training = replace(
            trained.trainer,
            device=made_with["device"],
            precision=made_with["precision"],
            attention_path=made_with["attention"],
            threads=int(made_with["threads"].partition(" ")[0]),  # perhaps in each of several processes
        )
    return choose_setup(as_in_training, "device")


def text_to_read(own: DataConfig, asked: OtherTextConfig) -> DataConfig:
    """The checkpoint's own text but for what is asked for; a path alone means a text file."""
    given = {key: value for key, value in asdict(asked).items() if value is not None}
    if "path" in given:
        given = {"name": "text", **given}
    elif "name" in given:
        given["path"] = None
    return replace(own, **given)


def part_of(config: EvaluateConfig, checkpoint: Checkpoint, own: DataConfig) -> Part:
    """Read the text and cut out the part. Raises UserError for a text that the model cannot read or that is too short."""
    data = text_to_read(own, config.data)
    with texts.that_may_have_moved(data.path if config.data.path is None else None):
        text = texts.read(data)
    trained_on_it = text.sha256 == checkpoint["corpus"]["sha256"]
    for name in ("validation_fraction", "test_fraction"):
        if trained_on_it and getattr(data, name) != getattr(own, name):
            raise UserError(
                f"data.{name}={getattr(data, name)} would mix the parts of the model's own text: "
                f"it was trained with {getattr(own, name)}"
            )
    if found := list(data_problems(data)):
        raise UserError("; ".join(found))
    if not trained_on_it and config.data.name is None and config.data.path is None:
        raise UserError(
            f"{texts.name_of(data)} is not the text any more that the model was trained on: to evaluate it all the same, "
            "name it with data.path=FILE"
        )
    split = config.split or ("validation" if trained_on_it else "all")
    place = texts.parts_of(len(text.ids), data)[split]
    tokenizer = Tokenizer(checkpoint["vocabulary"])
    ids, unknown = translated(text.ids[place], text.vocabulary, tokenizer)
    if unknown and config.on_unknown == "error":
        raise UserError(
            f"{tokenizer.unknown_sentence(''.join(unknown))}. Leave them out, or add on_unknown=skip, which counts them apart"
        )
    if len(ids) < 2 and split == "test" and not data.test_fraction:
        raise UserError("there is no test part: the model was trained without data.test_fraction")
    if len(ids) < 2:
        raise UserError(f"the {split} part has {len(ids)} characters that the model knows, and 2 are needed")
    floor = None if text.nats is None or unknown else float(text.nats[place][1:].mean())
    learned = trained_on_it and split in ("train", "all")
    return Part(texts.name_of(data), text.sha256, split, learned, ids, unknown, floor)


def table(part: Part, result: Evaluation, stride: int, block_size: int) -> list[str]:
    """The figures as lines for people."""
    seen = "windows do not overlap"
    if stride < block_size:
        seen = f"after the first {block_size}, each sees at least {block_size - stride + 1} before it"
    learned = ", on which the model was trained" if part.learned else ""
    lines = [f"{part.name}, {part.split}{learned}: {result.characters:,} characters predicted; stride {stride}, {seen}"]
    if part.skipped:
        signs = ", ".join(f"{character!r} {count:,}" for character, count in list(part.skipped.items())[:20])
        more = f" and {len(part.skipped) - 20} other kinds" if len(part.skipped) > 20 else ""
        lines.append(f"skipped, since the model has never seen them: {sum(part.skipped.values()):,} ({signs}{more})")
    lines += ["", f"{'loss':<20}{result.nats:>10.4f}  nats per character"]
    lines.append(f"{'':<20}{result.bits_per_char:>10.4f}  bits per character")
    lines.append(f"{'perplexity':<20}{result.perplexity:>10.4f}")
    if part.floor is not None:
        lines.append(f"{'true entropy':<20}{part.floor:>10.4f}  nats per character")
    lines += ["", f"{'characters seen':<20}{'nats':>10}{'bits':>10}{'predicted':>14}"]
    for group in position_groups(len(result.nats_by_position)):
        counts, nats = result.characters_by_position[group], result.nats_by_position[group]
        mean = sum(count * one for count, one in zip(counts, nats, strict=True)) / sum(counts)
        first, last = group.start + 1, group.stop
        name = str(first) if first == last else f"{first} to {last}"
        lines.append(f"{name:<20}{mean:>10.4f}{mean / math.log(2):>10.4f}{sum(counts):>14,}")
    return lines


if __name__ == "__main__":
    COMMAND_LINE.run(main)
