"""Write text with a trained model.

The commands that people need first:

    python sample.py                                       the newest run's best model
    python sample.py prompt="O Romeo, Romeo!"              go on from a text
    python sample.py checkpoint=runs/NAME length=2000
    python sample.py temperature=0.5 top_k=20 seed=7       tamer, and the same again with the same seed
    python sample.py stop="\\n\\n" num_samples=5             five speeches
    python sample.py prompt_file=scene.txt                 any text, however odd; - reads standard input
    python sample.py interactive=true                      write a scene together
    python sample.py report=look.html                      a page that shows what the model saw, character by character

The prompt is printed first, then `length` new characters. Without a prompt the text begins as if after a line end.
Text goes to standard output and everything else to standard error, so that > play.txt holds the play alone.
"""

import os
import signal
import sys

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    # Ctrl-C while Python is still importing needs no traceback.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

from configs.command_line import CommandLine
from configs.schema import SampleConfig, UserError
from configs.terminal import drop_standard_output

COMMAND_LINE = CommandLine("sample", SampleConfig, __doc__)
if __name__ == "__main__":  # help and refusals do not wait for torch
    COMMAND_LINE.prepare(sys.argv[1:])

from pathlib import Path

import torch

from data.corpus import name_of, parts_of, read
from data.encoded import text_pieces
from data.reading import decoded, read_text, unescaped
from data.tokenizer import Tokenizer
from sampling.conversation import converse
from sampling.novelty import novelty
from sampling.report import check_page, page
from sampling.writer import Writer, known, show, tell
from training import checkpoint as checkpoints
from training.checkpoint import Checkpoint, configuration_of
from training.device import choose_device, torch_errors_in_words
from training.files import write_text
from training.folders import checkpoint_to_read

MOST_AT_ONCE = 64  # texts that are written side by side


def main(config: SampleConfig) -> None:
    """Load a checkpoint, read the prompt, and stream the samples to standard output; then what else was asked for."""
    path = checkpoint_to_read(config.checkpoint)
    checkpoint = checkpoints.load(path)
    device, _ = choose_device(config.device, "device")
    tokenizer = Tokenizer(checkpoint["vocabulary"])
    text = known(given_text(config), tokenizer, config.on_unknown)
    only_shown = config.report_text is not None
    if config.report is not None:
        check_page(config.report, len(text) + (0 if only_shown else config.length))
    seed = config.seed if config.seed is not None else int.from_bytes(os.urandom(3))
    best = checkpoint["best"]
    about = f"step {checkpoint['step']}"
    if best["step"] == checkpoint["step"]:
        about += f", validation loss {best['loss_val']:.4f}"
    tell(f"{path}: {about}" + ("" if only_shown else f", seed={seed}"))
    with torch_errors_in_words():
        writer = Writer(checkpoints.model_from(checkpoint, path).to(device), tokenizer, config)
        if config.interactive:
            converse(writer, text, generator_of(seed, 0))
            return
        try:
            texts = [] if only_shown else write_samples(writer, text, seed)
        except BrokenPipeError:
            if config.report is None and not config.novelty:
                raise
            drop_standard_output()
            raise UserError(
                "standard output was closed before the text was whole: no page, no figures of novelty"
            ) from None
        if config.report is not None:
            shown = text + "".join(texts[:1])
            name = f"{checkpoint['config']['model']['name']}, {about}: {path}"
            write_text(Path(config.report).resolve(), page(writer.model, tokenizer, shown, name))
            tell(f"open {config.report} in a browser")
        if config.novelty:
            tell(comparison(texts, checkpoint))


def write_samples(writer: Writer, prompt: str, seed: int) -> list[str]:
    """Put all samples on standard output: of those written side by side the first as it is made, the others after it.

    Returns them, without the prompt, if anything more is to be done with them.
    """
    config = writer.config
    texts: list[str] = []
    for first in range(0, config.num_samples, MOST_AT_ONCE):
        numbers = range(first, min(first + MOST_AT_ONCE, config.num_samples))
        kept = numbers if config.novelty or config.report is not None else numbers[1:]
        written: dict[int, list[str]] = {number: [] for number in kept}
        show(title(first, config.num_samples) + prompt)
        for pieces in writer.continuations(prompt, [generator_of(seed, number) for number in numbers]):
            show(pieces[0])
            for number in kept:
                written[number].append(pieces[number - first])
        show("\n")
        whole = {number: "".join(pieces) for number, pieces in written.items()}
        for number in numbers[1:]:
            show(f"{title(number, config.num_samples)}{prompt}{whole[number]}\n")
        if first in whole:
            texts += whole.values()
    return texts


def title(number: int, count: int) -> str:
    """The line above one of several samples."""
    return f"--- {number + 1} of {count} ---\n" if count > 1 else ""


def comparison(texts: list[str], checkpoint: Checkpoint) -> str:
    """A sentence on how new the texts are, or on why that cannot be told."""
    try:
        data = configuration_of(checkpoint).data
        text = read(data)
    except UserError as error:
        return f"novelty: cannot tell, since the training text cannot be had: {error}"
    if text.sha256 != checkpoint["corpus"]["sha256"]:
        return f"novelty: cannot tell, since {name_of(data)} is no longer the text that the model was trained on"
    training = text.ids[parts_of(len(text.ids), data)["train"]]
    overlap = max(map(len, texts)) - 1  # so that every copy is whole in some piece
    return novelty(texts, text_pieces(training, Tokenizer(text.vocabulary), overlap)).sentence()


def generator_of(seed: int, number: int) -> torch.Generator:
    """The random numbers of sample `number`, whatever num_samples is."""
    return torch.Generator().manual_seed(seed + 1_000_003 * number)


def given_text(config: SampleConfig) -> str:
    """The prompt, or the text that the page is to show, from wherever it comes."""
    if config.prompt_file == "-":
        return decoded(sys.stdin.buffer.read(), "standard input")
    file = config.report_text if config.prompt_file is None else config.prompt_file
    return unescaped(config.prompt or "") if file is None else read_text(Path(file))


if __name__ == "__main__":
    COMMAND_LINE.run(main)
