"""Playlet: the same bytes everywhere, and a floor that is the exact entropy of the picks."""

import hashlib
import math
import re

import numpy as np
import pytest

from data import playlet
from data.playlet import ADJECTIVES, OPENINGS, PLACES, PLURAL, SINGULAR, STOPS, TITLES, VERBS_PLURAL, VERBS_SINGULAR

TEXT, NATS = playlet.write(200_000)


def test_the_text_is_the_same_on_every_machine() -> None:
    text, nats = playlet.write(1_000_000)
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "dfc7575601aa0186b1845bd8463e6353940aaf9bf294eb3fb82af72431a72a45"
    )
    assert len(text) == len(nats) == 1_000_000
    assert nats.mean() == pytest.approx(0.232157, abs=1e-6)


def test_a_shorter_text_is_the_beginning_of_a_longer_one() -> None:
    text, nats = playlet.write(1234)
    assert text == TEXT[:1234]
    assert np.array_equal(nats, NATS[:1234])
    assert playlet.write(1234, seed=1)[0] != text


def zipf(choices: tuple[str, ...], chosen: str) -> float:
    """-log of 1 / rank among all ranks."""
    return math.log((choices.index(chosen) + 1) * sum(1 / rank for rank in range(1, len(choices) + 1)))


class Reader:
    """Reads a play back into its picks, by the grammar as its documentation tells it, and adds up what they cost."""

    def __init__(self, text: str) -> None:
        self.rest, self.nats = text, 0.0

    def pick(self, choices: tuple[str, ...]) -> str:
        (chosen,) = [choice for choice in choices if self.rest.startswith(choice)]  # never two
        self.nats += zipf(choices, chosen)
        self.expect(chosen)
        return chosen

    def expect(self, text: str) -> None:
        assert self.rest.startswith(text)
        self.rest = self.rest.removeprefix(text)

    def clause(self) -> tuple[str, bool]:
        determiner = self.pick(("the ", "my ", "every ", "all "))
        if determiner == "the ":
            self.pick(tuple(f"{adjective} " for adjective in ADJECTIVES))
        both = tuple(noun for pair in zip(SINGULAR, PLURAL, strict=True) for noun in pair)
        nouns = SINGULAR if determiner == "every " else PLURAL if determiner == "all " else both
        noun = self.pick(tuple(f"{noun} " for noun in nouns)).strip()
        self.pick(VERBS_PLURAL if noun in PLURAL else VERBS_SINGULAR)
        if self.pick((" ", *STOPS)) == " ":
            self.pick(PLACES)
            self.pick(STOPS)
        return noun, noun in PLURAL

    def speech(self, previous: str | None, called: str | None) -> tuple[str, str | None]:
        speaker = called or self.pick(tuple(f"{name}:\n" for name in TITLES if name != previous)).removesuffix(":\n")
        if called:
            self.expect(f"{called}:\n")
        if previous is None:
            self.expect("Hear me: ")
        else:
            title = TITLES[previous]
            self.pick((f"My {title}, ", f"Good {title}, ", f"No, my {title}; ", f"Weep not, {title}: "))
        noun, plural = self.clause()
        while self.pick(OPENINGS) != "And so ":
            self.clause()
        self.expect("they " if plural else "it ")
        self.pick(VERBS_PLURAL if plural else VERBS_SINGULAR)
        self.expect(f", the {noun}")
        if self.pick((".\n\n", "; answer, ")) == ".\n\n":
            return speaker, None
        called = self.pick(tuple(name for name in TITLES if name != speaker))
        self.expect(".\n\n")
        return speaker, called


def test_the_floor_is_the_entropy_of_the_picks_read_back() -> None:
    end = TEXT.rindex("\n\n") + 2  # the last speech is cut off
    reader = Reader(TEXT[:end])
    previous = called = None
    while reader.rest:
        previous, called = reader.speech(previous, called)
    assert NATS[:end].sum() == pytest.approx(reader.nats, rel=1e-12)


def test_each_character_costs_what_the_agreeing_choices_lose() -> None:
    _, (burn, sing, bells) = playlet._odds(("burn", "sing", "bells"))
    total = 1 + 1 / 2 + 1 / 3
    assert burn == pytest.approx([math.log(total / (1 + 1 / 3)), math.log((1 + 1 / 3) / 1), 0, 0])
    assert sing == pytest.approx([math.log(total / 0.5), 0, 0, 0])
    assert bells == pytest.approx([math.log(total / (1 + 1 / 3)), math.log((1 + 1 / 3) * 3), 0, 0, 0])


def test_choices_that_could_be_read_in_two_ways_are_refused() -> None:
    with pytest.raises(ValueError, match="'it' begins another choice"):
        playlet._odds(("its", "it"))


def test_picks_follow_their_odds() -> None:
    after = re.findall(r"(?:And so|But hark,|O,|Alas,|Now) ", TEXT)
    weights = [1 / rank for rank in range(1, len(OPENINGS) + 1)]
    for opening, weight in zip(OPENINGS, weights, strict=True):
        expected = weight / sum(weights)
        spread = math.sqrt(expected * (1 - expected) / len(after))
        assert after.count(opening) / len(after) == pytest.approx(expected, abs=4.5 * spread)
