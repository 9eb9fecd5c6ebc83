"""Texts as they are written: what may be the end is held back, and nothing else."""

import itertools
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from configs.schema import SampleConfig, UserError
from data.tokenizer import Tokenizer
from sampling.writer import Stop, Writer, known
from tests.models import RUNGS, woken


def shown(text: str, end: str) -> str:
    stop = Stop(end)
    return "".join([stop.passed(character) for character in text]) + stop.held


@given(text=st.text("ab\n", max_size=30), end=st.text("ab\n", max_size=4))
def test_a_text_passes_up_to_its_end(text: str, end: str) -> None:
    assert shown(text, end) == (text.partition(end)[0] if end else text)


def test_only_what_may_be_the_end_is_held_back() -> None:
    stop = Stop("\n\nA")
    assert [stop.passed(character) for character in "x\n\n\nB\n"] == ["x", "", "", "\n", "\n\nB", ""]
    assert stop.held == "\n"


def test_nothing_comes_after_the_end() -> None:
    stop = Stop("b")
    assert [stop.passed(character) for character in "abc"] == ["a", "", ""]
    assert stop.reached


def test_unknown_characters_are_named_or_dropped() -> None:
    tokenizer = Tokenizer("ab")
    assert known("axb", tokenizer, "drop") == "ab"
    with pytest.raises(UserError, match=re.escape("'x' (U+0078)")):
        known("axb", tokenizer, "error")


def writer_of(**options: Any) -> Writer:
    return Writer(woken(RUNGS["gpt"]), Tokenizer("abcdefghijk"), SampleConfig(**options))


def test_writing_ends_when_every_text_has() -> None:
    generators = [torch.Generator().manual_seed(seed) for seed in range(3)]
    whole = writer_of(length=10**9, stop="ab", temperature=2).continuations("k", generators)
    pieces = list(itertools.islice(whole, 5000))
    assert len(pieces) < 5000
    texts = ["".join(column) for column in zip(*pieces, strict=True)]
    assert len({len(text) for text in texts}) > 1
    assert all("ab" not in text for text in texts)


def test_a_stop_that_can_never_come_is_refused() -> None:
    with pytest.raises(
        UserError, match=re.escape("stop=a\\nz would never come: the model has never seen '\\n' (U+000A), 'z'")
    ):
        writer_of(stop="a\\nz")
