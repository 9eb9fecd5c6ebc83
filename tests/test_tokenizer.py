"""The tokenizer: every text comes back, the ids depend on the text alone, and unknown characters are all named."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.schema import UserError
from data.tokenizer import Tokenizer
from tests.scripts import ROOT


@given(st.text(min_size=1))
def test_decode_undoes_encode(text: str) -> None:
    tokenizer = Tokenizer.of(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocabulary == "".join(sorted(set(text)))


@pytest.mark.parametrize("distinct", [1, 2, 255, 256, 257, 32_768, 32_769, 65_536, 70_000])
def test_vocabularies_of_every_size_come_back(distinct: int) -> None:
    points = [point for point in range(32, 80_000) if not 0xD800 <= point < 0xE000][:distinct]
    text = "".join(map(chr, reversed(points))) + chr(points[0])
    tokenizer = Tokenizer.of(text)
    ids = tokenizer.encode(text)
    assert tokenizer.vocab_size == distinct
    assert tokenizer.decode(ids) == text
    assert ids.itemsize == (1 if distinct <= 256 else 2 if distinct <= 32_768 else 4)


def test_a_text_of_several_pieces_comes_back() -> None:
    text = "abc🙂" * 400_000  # longer than what is encoded at once
    tokenizer = Tokenizer.of(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_unknown_character_is_named_once_with_its_code_point() -> None:
    with pytest.raises(UserError) as error:
        Tokenizer.of("abc\n").encode("Hello 🙂🙂 cab")
    for name in ("'H' (U+0048)", "'🙂' (U+1F642)", "'o' (U+006F)"):
        assert str(error.value).count(name) == 1
    assert "'a'" not in str(error.value)


def test_a_text_begins_after_a_line_end_where_there_is_one() -> None:
    assert Tokenizer("\tab").start_id == 0
    tokenizer = Tokenizer("\t\nab")
    assert tokenizer.decode([tokenizer.start_id]) == "\n"


@pytest.mark.parametrize("vocabulary", ["", "ba", "aa"])
def test_a_vocabulary_is_sorted_and_distinct(vocabulary: str) -> None:
    with pytest.raises(ValueError, match="distinct characters in code-point order"):
        Tokenizer(vocabulary)


def test_no_ids_are_no_text() -> None:
    tokenizer = Tokenizer("ab")
    assert tokenizer.decode(tokenizer.encode("")) == ""
    assert tokenizer.decode(np.array([1, 0])) == "ba"


def test_the_mapping_is_the_same_in_every_process() -> None:
    program = "from data.tokenizer import Tokenizer; print(ascii(Tokenizer.of('To be, or not to be: é 日').vocabulary))"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    ]
    assert outputs == [ascii("".join(sorted(set("To be, or not to be: é 日")))) + "\n"] * 3
