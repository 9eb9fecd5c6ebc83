"""Playlet: a play without end, written by a small random grammar whose true entropy is known.

It is the text to fall back on without a network, the tests' text, and an instrument. Each step of the writing picks one
of a few strings with known probabilities, and no string of a pick begins another one, so the text can be read back into
its picks in one way only. Hence the exact probability of every character given all before it, and a floor in nats that
no honest model gets below: one that does has looked ahead, and the gap to it is how much is left to learn.

What there is to learn, from near to far: spelling; which words follow which; the verb agrees with its noun in number, and
"every" and "all" foretell that number; the line that closes a speech takes up the noun of its first line, as "it" or
"they"; "my lord" or "my lady" depends on who spoke before; one who is called upon speaks next.
"""

import math
import random
from functools import cache

import numpy as np
from numpy.typing import NDArray

SEED = 20  # of the text that results speak of; another seed is another text

Choices = tuple[str, ...]

TITLES = {"ORLANDO": "lord", "BEATRICE": "lady", "CASSIO": "lord", "VIOLA": "lady", "DUKE": "lord", "NERISSA": "lady"}
SINGULAR = tuple(
    "crown rose sword star letter ship storm bell promise shadow candle garden river raven song grave".split()
)
PLURAL = tuple(noun + "s" for noun in SINGULAR)
ADJECTIVES = tuple("golden silent broken gentle bitter hollow patient weary distant burning".split())
VERBS_SINGULAR = tuple("sleeps burns waits falls sings returns withers trembles forgives whispers".split())
VERBS_PLURAL = tuple(verb.removesuffix("s") for verb in VERBS_SINGULAR)
PLACES = ("beneath the moon", "upon the hill", "beyond the sea", "within my heart", "before the gate", "among the dead")
OPENINGS = ("And so ", "But hark, ", "O, ", "Alas, ", "Now ")
STOPS = (",\n", ".\n", "!\n")


def write(characters: int, seed: int = SEED) -> tuple[str, NDArray[np.float64]]:
    """A play of exactly so many characters, and -log P(character | all before it) for each, in nats (characters,).

    The last speech is cut off where the length is reached. The bytes are the same on every machine and Python: Python
    promises the sequence of Random.random for a given seed.
    """
    writer = _Writer(seed)
    previous = called = None
    while writer.length < characters:
        previous, called = _write_speech(writer, previous, called)
    return "".join(writer.pieces)[:characters], np.concatenate(writer.nats)[:characters]


class _Writer:
    """Collects picked strings and what each of their characters cost."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.length = 0
        self.pieces: list[str] = []
        self.nats: list[NDArray[np.float64]] = []

    def pick(self, choices: Choices) -> str:
        """Write one of the choices, the first the likeliest (Zipf: the k-th has a weight of 1 / k), and return it."""
        cumulative, costs = _odds(choices)
        draw = self.random.random()
        place = next((i for i, limit in enumerate(cumulative) if draw < limit), len(choices) - 1)
        self._add(choices[place], costs[place])
        return choices[place]

    def sure(self, text: str) -> None:
        """Write what follows from the text so far, at no cost."""
        self._add(text, np.zeros(len(text)))

    def _add(self, text: str, nats: NDArray[np.float64]) -> None:
        self.pieces.append(text)
        self.nats.append(nats)
        self.length += len(text)


@cache
def _odds(choices: Choices) -> tuple[list[float], list[NDArray[np.float64]]]:
    """Cumulative probabilities of the choices, and the nats of each character of each choice.

    A character costs log(mass of the choices that agree so far / mass of those that still agree after it).
    """
    weights = [1 / rank for rank in range(1, len(choices) + 1)]
    cumulative = [sum(weights[: i + 1]) / sum(weights) for i in range(len(choices))]

    def mass(prefix: str) -> float:
        return math.fsum(weight for choice, weight in zip(choices, weights, strict=True) if choice.startswith(prefix))

    for choice, weight in zip(choices, weights, strict=True):
        if mass(choice) != weight:
            raise ValueError(f"{choice!r} begins another choice: the text could be read in two ways")
    costs = [
        np.array([math.log(mass(choice[:i]) / mass(choice[: i + 1])) for i in range(len(choice))]) for choice in choices
    ]
    return cumulative, costs


def _write_speech(writer: _Writer, previous: str | None, called: str | None) -> tuple[str, str | None]:
    """Write one speech; return who spoke and who was called upon to answer, if anybody."""
    if called:
        speaker = called
        writer.sure(speaker + ":\n")
    else:
        speaker = writer.pick(tuple(name + ":\n" for name in TITLES if name != previous)).removesuffix(":\n")
    if previous:
        title = TITLES[previous]
        writer.pick((f"My {title}, ", f"Good {title}, ", f"No, my {title}; ", f"Weep not, {title}: "))
    else:
        writer.sure("Hear me: ")
    subject, plural = _write_clause(writer)
    while writer.pick(OPENINGS) != "And so ":
        _write_clause(writer)
    writer.sure("they " if plural else "it ")
    writer.pick(VERBS_PLURAL if plural else VERBS_SINGULAR)
    writer.sure(", the " + subject)
    if writer.pick((".\n\n", "; answer, ")) == ".\n\n":
        return speaker, None
    called = writer.pick(tuple(name for name in TITLES if name != speaker))
    writer.sure(".\n\n")
    return speaker, called


def _write_clause(writer: _Writer) -> tuple[str, bool]:
    """Write a subject, its verb and the end of the line; return the noun and whether it is plural."""
    determiner = writer.pick(("the ", "my ", "every ", "all "))
    if determiner == "the ":
        writer.pick(tuple(adjective + " " for adjective in ADJECTIVES))
    nouns = {"every ": SINGULAR, "all ": PLURAL}.get(determiner, _interleaved(SINGULAR, PLURAL))
    noun = writer.pick(tuple(noun + " " for noun in nouns)).removesuffix(" ")
    plural = noun in PLURAL
    writer.pick(VERBS_PLURAL if plural else VERBS_SINGULAR)
    if writer.pick((" ", *STOPS)) == " ":
        writer.pick(PLACES)
        writer.pick(STOPS)
    return noun, plural


def _interleaved(first: Choices, second: Choices) -> Choices:
    return tuple(noun for pair in zip(first, second, strict=True) for noun in pair)
