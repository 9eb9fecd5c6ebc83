"""Copies from the training text are found, as long as they are."""

import shutil
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from sampling.novelty import SHORT, novelty
from tests.scripts import SMALL, script


def test_the_longest_copy_and_the_share_of_what_is_new() -> None:
    found = novelty(["xx the king is dea", "to be or"], ["long live: the king is dead. to be or not"])
    assert found.longest == " the king is dea"
    assert found.new == 2 / 12  # of eleven sequences in the first text "xx the k" and "x the ki"; the second has one


@given(
    texts=st.lists(st.text("ab", max_size=40), max_size=3),
    training=st.text("ab", max_size=80),
    size=st.sampled_from([1, 10, 100]),
)
@example(texts=["aabbabab"], training="aabbabab" + 20 * "b", size=10)
def test_it_is_what_looking_everywhere_finds(texts: list[str], training: str, size: int) -> None:
    pieces = {
        text[start:end] for text in texts for start in range(len(text)) for end in range(start + 1, len(text) + 1)
    }
    copied = [piece for piece in pieces if piece in training]
    overlap = max(map(len, texts), default=1) - 1
    found = novelty(texts, (training[max(0, at - overlap) : at + size] for at in range(0, len(training), size)))
    assert len(found.longest) == max(map(len, copied), default=0)
    assert found.longest in training
    short = [text[start : start + SHORT] for text in texts for start in range(len(text) - SHORT + 1)]
    assert found.new == (sum(piece not in training for piece in short) / len(short) if short else None)


def test_sample_py_tells_it_or_why_it_cannot(tmp_path: Path) -> None:
    text = "the king and the storm went out to sea, and the sea was calm. " * 60
    (tmp_path / "text.txt").write_text(text)
    train = (*SMALL, "trainer.max_steps=2", "hydra.run.dir=run", "data=text", "data.path=text.txt")
    assert script("train.py", *train, cwd=tmp_path).returncode == 0
    told = script("sample.py", "seed=1", "length=50", "novelty=true", "checkpoint=run", "prompt=the king", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "longest copy from the training text:" in told.stderr
    assert "sequences of 8 characters are new" in told.stderr
    (tmp_path / "text.txt").write_text(text + "x")
    changed = script("sample.py", "length=5", "novelty=true", "checkpoint=run", cwd=tmp_path)
    assert "is no longer the text" in changed.stderr
    shutil.move(tmp_path / "text.txt", tmp_path / "elsewhere.txt")
    gone = script("sample.py", "length=5", "novelty=true", "checkpoint=run", cwd=tmp_path)
    assert gone.returncode == 0
    assert "cannot tell, since the training text cannot be had" in gone.stderr
