"""Where texts come from: files in every state, encoding and locale."""

import codecs
import hashlib
import logging
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from configs.schema import DataConfig, TrainConfig, UserError
from data import corpus as texts
from data import encoded, playlet
from data.reading import files_of, name_of, read_text, unescaped
from tests.scripts import ROOT, SMALL, process, refused, script
from training.initialization import new_model

TEXT = "é “x” 日 🙂\nsecond line\n" * 20


def write(path: Path, raw: bytes) -> DataConfig:
    path.write_bytes(raw)
    return DataConfig(name="text", path=str(path))


def test_a_byte_order_mark_changes_nothing(tmp_path: Path) -> None:
    plain = texts.load(write(tmp_path / "a.txt", TEXT.encode()), 8)
    marked = texts.load(write(tmp_path / "a_bom.txt", codecs.BOM_UTF8 + TEXT.encode()), 8)
    assert plain.tokenizer.vocabulary == marked.tokenizer.vocabulary == "".join(sorted(set(TEXT)))
    assert plain.sha256 == marked.sha256 == hashlib.sha256(TEXT.encode()).hexdigest()


@pytest.mark.parametrize("line_end", ["\r\n", "\r"])
def test_line_ends_become_one_kind_and_are_mentioned_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line_end: str
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "windows.txt"
    path.write_bytes(TEXT.replace("\n", line_end).encode())
    assert read_text(path) == TEXT
    assert caplog.text.count("read as LF") == 1


NOT_UTF8 = {
    "cp1252": ("It’s here".encode("cp1252"), ["byte 2 is 0x92", "WINDOWS-1252"]),
    "cp1252 after a mark": (codecs.BOM_UTF8 + "It’s here".encode("cp1252"), ["byte 5 is 0x92"]),
    "utf-16 little": (codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"), ["UTF-16", "byte 0", "save it as UTF-8"]),
    "utf-16 big": (codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"), ["UTF-16", "byte 0"]),
    "cut off": ("日".encode()[:2], ["byte 0 is 0xe6"]),
    "surrogate": (b"ab\xed\xa0\x80", ["byte 2 is 0xed"]),
    "binary": (bytes(range(256)), ["byte 128 is 0x80"]),
}


@pytest.mark.parametrize("kind", NOT_UTF8)
def test_another_encoding_is_refused_with_file_offset_and_remedy(tmp_path: Path, kind: str) -> None:
    raw, words = NOT_UTF8[kind]
    with pytest.raises(UserError) as error:
        texts.load(write(tmp_path / "odd.txt", raw), 8)
    for word in ["odd.txt", "UTF-8", *words]:
        assert word in str(error.value)


@pytest.mark.parametrize(("name", "words"), [("missing.txt", "No such file"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_text(tmp_path / name)


@pytest.mark.parametrize("characters", [0, 1, 2, 8, 9])
def test_a_text_too_short_is_refused_with_both_numbers(tmp_path: Path, characters: int) -> None:
    with pytest.raises(UserError) as error:
        texts.load(write(tmp_path / "short.txt", b"abcdefghi"[:characters]), 8)
    assert f"the training part has {int(characters * 0.9)} characters and needs 9" in str(error.value)
    assert ("the validation part has" in str(error.value)) == (characters - int(characters * 0.9) < 2)


def test_the_shortest_text_that_is_enough_is_taken(tmp_path: Path) -> None:
    config = write(tmp_path / "enough.txt", b"abcdefghijk")
    config.validation_fraction = 0.15
    assert len(texts.load(config, 8).train) == 9
    config.validation_fraction = 0.01
    with pytest.raises(UserError, match="the validation part has 1 and needs 2"):
        texts.load(config, 8)


def test_the_parts_are_the_text_in_order() -> None:
    corpus = texts.load(DataConfig(name="playlet", characters=5000, validation_fraction=0.2), 8)
    text, nats = playlet.write(5000)
    assert corpus.tokenizer.decode(corpus.train) == text[:4000]
    assert corpus.tokenizer.decode(corpus.validation) == text[4000:]
    assert corpus.floor == pytest.approx(nats[4001:].mean(), abs=1e-12)
    assert corpus.identity() == {
        "name": "playlet",
        "sha256": corpus.sha256,
        "characters": 5000,
        "vocab_size": len(set(text)),
    }


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("a\\nb\\t", "a\nb\t"),
        ("\udcc3\udca9", "é"),  # the two bytes of é, as Python keeps them in an ASCII locale
        ("\udcff", "\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("x\ud83d", "x\ufffd"),
    ],
)
def test_what_was_typed_is_text(typed: str, meant: str) -> None:
    assert unescaped(typed) == meant


def test_texts_are_utf8_in_every_locale(tmp_path: Path) -> None:
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    (tmp_path / "text.txt").write_bytes(TEXT.encode())
    small = ("debug=smoke", "trainer.max_steps=1", "trainer.threads=1", "model.block_size=8")
    result = process("train.py", "data=text", "data.path=text.txt", *small, "hydra.run.dir=run", cwd=tmp_path, **locale)
    assert result.returncode == 0, result.stderr
    assert f"{len(set(TEXT))} distinct" in result.stderr
    for name in ("config.yaml", "train.log", "samples.txt", "summary.json"):
        (tmp_path / "run" / name).read_text(encoding="utf-8")
    assert process("sample.py", "checkpoint=run", "prompt=é “x” 日 🙂", cwd=tmp_path, **locale).returncode == 0


@pytest.mark.slow
def test_memory_stays_a_small_multiple_of_the_text(tmp_path: Path) -> None:
    size = 50_000_000
    (tmp_path / "big.txt").write_text(playlet.write(100_000)[0] * (size // 100_000), encoding="utf-8")
    program = (
        "import resource; from configs.schema import DataConfig;"
        "from pathlib import Path; from data import corpus, encoded; from data.ngrams import baseline_losses;"
        "encoded.FOLDER = Path('cache');"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "c = corpus.load(DataConfig(name='text', path='big.txt'), 64);"
        "loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "baseline_losses(c.train, c.validation, c.tokenizer.vocab_size, highest=2);"
        "print(loaded - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    loading, counting = (int(kilobytes) * 1024 / size for kilobytes in result.stdout.split())
    assert loading < 5
    assert counting < 40


def test_the_test_part_is_kept_from_both_others() -> None:
    config = DataConfig(name="playlet", characters=5000, validation_fraction=0.1, test_fraction=0.2)
    corpus = texts.load(config, 8)
    text, nats = playlet.write(5000)
    assert corpus.tokenizer.decode(corpus.train) == text[:3500]
    assert corpus.tokenizer.decode(corpus.validation) == text[3500:4000]
    assert corpus.identity()["characters"] == 5000
    assert corpus.floor == pytest.approx(nats[3501:4000].mean())
    assert {name: text[part] for name, part in texts.parts_of(5000, config).items()} == {
        "train": text[:3500],
        "validation": text[3500:4000],
        "test": text[4000:],
        "all": text,
    }
    with pytest.raises(UserError, match=r"data.test_fraction=0.0001\) the test part has 1 and needs 2"):
        texts.load(replace(config, test_fraction=0.0001), 8)


def test_several_files_are_one_text_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "B.txt", "a1.txt", "a.md", "in/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"This is {name}.")
    corpus = texts.load(DataConfig(name="text", path=f"{tmp_path}/*.txt"), 8)
    whole = "This is B.txt.This is a.txt.This is a1.txt.This is b.txt."
    assert corpus.sha256 == hashlib.sha256(whole.encode()).hexdigest()
    assert [path.name for path in files_of(f"{tmp_path}/**/[a-c].txt")] == ["a.txt", "b.txt", "c.txt"]
    (tmp_path / "*.txt").write_text("a file of this very name")
    assert files_of(f"{tmp_path}/*.txt") == [tmp_path / "*.txt"]
    with pytest.raises(UserError, match=r"no file matches data.path=.*/b\?.md"):
        files_of(f"{tmp_path}/b?.md")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("books/mine.v2.txt", "mine.v2"),
        ("my books/*.txt", "my_books"),
        ("books/**/*", "books"),
        ("/*.txt", "texts"),
        ("../*", "texts"),
        ("books/play-[0-9].txt", "play-_0-9"),
    ],
)
def test_a_text_has_a_short_name(path: str, name: str) -> None:
    assert name_of(path) == name


def test_what_will_take_long_or_learn_little_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = DataConfig(name="playlet", characters=5000)
    texts.load(config, 8)
    assert caplog.text == ""
    monkeypatch.setattr(texts, "_MANY_KINDS", 20)
    monkeypatch.setattr(texts, "_LONG_EVALUATION", 499)
    texts.load(config, 8)
    assert "distinct characters: a model of characters learns each of them apart" in caplog.text
    assert "has 500 characters, and each evaluation reads them all: a smaller data.validation_fraction" in caplog.text


def test_a_pipe_is_read_once_even_beside_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded, "SMALL", 0)
    monkeypatch.setattr(encoded, "FOLDER", tmp_path / "cache")
    (tmp_path / "1.txt").write_text(TEXT, encoding="utf-8")
    os.mkfifo(tmp_path / "2.txt")
    writer = threading.Thread(target=lambda: (tmp_path / "2.txt").write_bytes(TEXT.encode()), daemon=True)
    writer.start()
    corpus = texts.load(DataConfig(name="text", path=f"{tmp_path}/*.txt"), 8)
    assert corpus.sha256 == hashlib.sha256(2 * TEXT.encode()).hexdigest()


UNREADABLE = {
    "*.md": "no file matches data.path=*.md",
    ".": "cannot read the text .: Is a directory. To read the files in it, write data.path=*.txt",
    "[1i]*": "cannot read the text inner: Is a directory",
    "[13]*": "3.bin is not UTF-8: byte 0 is 0x80",
    "[14]*": "cannot read the text 4.gone: No such file or directory",
}


def test_what_cannot_be_read_among_several_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("inner").mkdir()
    Path("1.txt").write_text(TEXT)
    Path("3.bin").write_bytes(b"\x80")
    Path("4.gone").symlink_to("nowhere")
    for pattern, words in UNREADABLE.items():
        with pytest.raises(UserError) as error:
            texts.load(DataConfig(name="text", path=pattern), 8)
        assert str(error.value).startswith(words)
    refused(script("train.py", *SMALL, "data=text", "data.path=[13]*", cwd=tmp_path), UNREADABLE["[13]*"])
    assert not Path("runs").exists()


def test_a_bigram_table_without_room_is_refused_with_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 8193)))
    corpus = texts.load(write(tmp_path / "signs.txt", text.encode()), 8)
    assert "the text has 8,193 distinct characters" in caplog.text
    with pytest.raises(UserError, match=r"8,193 distinct characters would not fit .*: set model.bigram=false"):
        new_model(TrainConfig(), corpus)
