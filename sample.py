"""Write text with a trained model.

The commands that people need first:

    python sample.py                                       the newest run's best model
    python sample.py prompt="O Romeo, Romeo!"              go on from a text
    python sample.py checkpoint=runs/NAME length=2000
    python sample.py temperature=0.5 top_k=20 seed=7       tamer, and the same again with the same seed
    python sample.py prompt_file=scene.txt                 any text, however odd; - reads standard input

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

COMMAND_LINE = CommandLine("sample", SampleConfig, __doc__)
if __name__ == "__main__":  # help and refusals do not wait for torch
    COMMAND_LINE.prepare(sys.argv[1:])

from pathlib import Path

import torch

from data.corpus import decoded, read_text, unescaped
from data.tokenizer import Tokenizer
from model.generation import generate
from training import checkpoint as checkpoints
from training.device import choose_device
from training.folders import checkpoint_to_read


def main(config: SampleConfig) -> None:
    """Load a checkpoint, read the prompt, and stream the samples to standard output."""
    path = checkpoint_to_read(config.checkpoint)
    checkpoint = checkpoints.load(path)
    device, _ = choose_device(config.device, "device")
    model = checkpoints.model_from(checkpoint, path).to(device)
    tokenizer = Tokenizer(checkpoint["vocabulary"])
    prompt = known_prompt(config, tokenizer)
    seed = config.seed if config.seed is not None else int.from_bytes(os.urandom(3))
    best = checkpoint["best"]
    loss = f", validation loss {best['loss_val']:.4f}" if best["step"] == checkpoint["step"] else ""
    print(f"{path}: step {checkpoint['step']}{loss}, seed={seed}", file=sys.stderr)

    start = torch.from_numpy(tokenizer.encode(prompt)) if prompt else torch.tensor([tokenizer.start_id])
    for number in range(config.num_samples):
        if config.num_samples > 1:
            write(f"--- {number + 1} of {config.num_samples} ---\n")
        write(prompt)
        # Sample i has random numbers of its own, whatever num_samples is.
        generator = torch.Generator().manual_seed(seed + 1_000_003 * number)
        for character in generate(
            model, start, config.length, generator, config.temperature, config.top_k, config.top_p
        ):
            write(tokenizer.decode([character]))
        write("\n")


def known_prompt(config: SampleConfig, tokenizer: Tokenizer) -> str:
    """The prompt, from wherever it comes, in characters that the model knows."""
    if config.prompt_file == "-":
        prompt = decoded(sys.stdin.buffer.read(), "standard input")
    elif config.prompt_file is not None:
        prompt = read_text(Path(config.prompt_file))
    else:
        prompt = unescaped(config.prompt or "")
    if config.on_unknown == "drop":
        return "".join(character for character in prompt if character in tokenizer.vocabulary)
    try:
        tokenizer.encode(prompt)
    except UserError as error:
        raise UserError(f"{error}. Leave them out, or add on_unknown=drop") from None
    return prompt


def write(text: str) -> None:
    """Put text on standard output at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    COMMAND_LINE.run(main)
