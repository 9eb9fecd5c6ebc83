"""Large texts: encoded once into a file, found again, and whatever happens to that file, never another text."""

import errno
import fcntl
import json
import logging
import os
import resource
import threading
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from configs.schema import UserError
from data import encoded, playlet, reading
from data.batches import Batches
from data.encoded import EncodedText, encode, encode_files, text_pieces, translated
from data.tokenizer import Tokenizer, dtype_of
from tests.scripts import SMALL, refused, script

TEXT = "é “x” 日 🙂\nsecond line\n" * 20


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache, to which every text of a file goes, however small."""
    monkeypatch.setattr(encoded, "FOLDER", tmp_path / "cache")
    monkeypatch.setattr(encoded, "SMALL", 0)
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_bytes(TEXT.encode())
    return tmp_path / "text.txt"


def same(one: EncodedText, other: EncodedText) -> bool:
    return (one.vocabulary, one.sha256) == (other.vocabulary, other.sha256) and np.array_equal(one.ids, other.ids)


@contextmanager
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within it no text may be read."""
    with monkeypatch.context() as patched:
        patched.setattr(encoded, "file_pieces", None)
        yield


@pytest.mark.parametrize("piece", [2, 3, 7, 1 << 20])
def test_a_text_from_the_cache_is_the_text_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(reading, "PIECE", piece)
    names = {"1.txt": "\ufeff" + TEXT, "2.txt": TEXT.replace("\n", "\r\n") + "\r", "3.txt": ""}
    for name, text in names.items():
        (tmp_path / name).write_bytes(text.encode())
    paths = [tmp_path / name for name in names]
    found = encode_files(paths)
    assert same(found, encode(TEXT + TEXT + "\n"))
    assert caplog.text.count("2.txt: line ends CRLF and CR are read as LF") == caplog.text.count("read as LF") == 1
    assert not found.ids.flags.writeable
    with warnings.catch_warnings(record=True) as warned:
        torch.set_warn_always(True)
        torch.from_numpy(encode_files(paths).ids)
        torch.set_warn_always(False)
    assert warned == []
    with unread(monkeypatch):
        assert same(encode_files(paths), found)
    monkeypatch.setattr(encoded, "SMALL", 1 << 20)
    monkeypatch.setattr(encoded, "FOLDER", tmp_path / "unused")
    assert same(encode_files(paths), found)
    assert not (tmp_path / "unused").exists()


@pytest.mark.parametrize("piece", [2, 3, 1 << 20])
def test_a_wrong_byte_is_named_wherever_pieces_end(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(reading, "PIECE", piece)
    for raw, place in (
        (b"\xff", "0 is 0xff"),
        (TEXT.encode()[:-1] + "日".encode()[:2], f"{len(TEXT.encode()) - 1} is"),
    ):
        path.write_bytes(raw)
        with pytest.raises(UserError, match=f"text.txt is not UTF-8: byte {place}"):
            encode_files([path])
    assert not cache.exists()


ASSIGNED = [point for point in range(0x110000) if unicodedata.category(chr(point)) not in ("Cn", "Cs")]


@pytest.mark.parametrize(
    ("distinct", "itemsize"),
    [(255, 1), (256, 1), (257, 2), (32_768, 2), (32_769, 4), (65_536, 4), (70_000, 4), (None, 4)],
)
def test_vocabularies_of_every_size_come_back(path: Path, distinct: int | None, itemsize: int) -> None:
    text = "".join(map(chr, reversed(ASSIGNED[13 : distinct and 13 + distinct]))).replace("\r", "")
    if "\n" not in text:
        text = chr(0) + text  # instead of the line end
    path.write_bytes(text.encode())
    found = encode_files([path])
    assert found.ids.itemsize == itemsize
    tokenizer = Tokenizer(found.vocabulary)
    assert tokenizer.decode(found.ids) == text
    batches = Batches(torch.from_numpy(found.ids), 50, 4, seed=0)
    for start, window in zip(batches.starts(3).tolist(), batches.windows(3), strict=True):
        assert tokenizer.decode(window.numpy()) == text[start : start + 51]


def test_a_text_is_read_again_only_if_its_files_have_changed(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = encode_files([path])
    (ids,) = cache.glob("*.ids")
    written = ids.stat()
    os.utime(path, ns=(1, 1))
    with unread(monkeypatch), pytest.raises(TypeError):
        encode_files([path])
    assert same(encode_files([path]), before)
    assert os.path.samestat(ids.stat(), written)  # it was the same text
    with unread(monkeypatch):
        assert same(encode_files([path]), before)
    path.write_bytes(TEXT[:-1].encode())
    assert same(encode_files([path]), encode(TEXT[:-1]))
    assert {found.stem for found in cache.iterdir()} == {encode(TEXT[:-1]).sha256}  # the old one takes no room any more
    assert same(before, encode(TEXT))  # but stays with those who have it


def with_record(**changes: object) -> Callable[[Path, Path], Any]:
    return lambda ids, record: record.write_text(json.dumps(json.loads(record.read_text()) | changes))


DAMAGES: dict[str, Callable[[Path, Path], Any]] = {
    "cut short": lambda ids, record: os.truncate(ids, ids.stat().st_size - 1),
    "without its middle": lambda ids, record: ids.write_bytes(ids.read_bytes()[:100] + ids.read_bytes()[-100:]),
    "empty": lambda ids, record: os.truncate(ids, 0),
    "gone": lambda ids, record: ids.unlink(),
    "with other bytes in the middle": lambda ids, record: ids.write_bytes(
        ids.read_bytes()[:200] + bytes(5) + ids.read_bytes()[205:]
    ),
    "of another text": lambda ids, record: ids.write_bytes(ids.read_bytes()[::-1]),
    "of another version": with_record(version=0),
    "of an odd vocabulary": with_record(vocabulary="ba"),
    "of no vocabulary": with_record(vocabulary=["a", "b"]),
    "without a record": lambda ids, record: record.unlink(),
    "with half a record": lambda ids, record: os.truncate(record, 30),
    "with no record's content": lambda ids, record: record.write_text("[1]"),
    "with bytes": lambda ids, record: record.write_bytes(b"\xff"),
    "with an endless number": lambda ids, record: record.write_text(
        record.read_text().replace('"files": [["', '"files": [["x", Infinity], ["')
    ),
    "nested without end": lambda ids, record: record.write_text("[" * 100_000),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_made_anew(path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setattr(encoded, "_ENDS", 50)
    encode_files([path])
    (ids,), (record,) = cache.glob("*.ids"), cache.glob("*.json")
    whole = ids.read_bytes(), record.read_bytes()
    DAMAGES[damage](ids, record)
    assert same(encode_files([path]), encode(TEXT))
    assert (ids.read_bytes(), record.read_bytes()) == whole


def test_a_full_disk_is_said_and_costs_no_other_text(path: Path, cache: Path, tmp_path: Path) -> None:
    encode_files([path])
    before = {found: found.read_bytes() for found in cache.iterdir()}
    (tmp_path / "longer.txt").write_text("a" * 2_000_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write .*: File too large\. The text takes 2 MB there\. Make room"):
            encode_files([tmp_path / "longer.txt"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {found: found.read_bytes() for found in cache.iterdir()} == before


def test_a_touched_text_is_found_again_where_the_cache_cannot_be_written_to(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = encode_files([path])
    os.utime(path, ns=(1, 1))
    monkeypatch.setattr(encoded, "_open_new", lambda path: (_ for _ in ()).throw(OSError(errno.EROFS, "read-only")))
    assert same(encode_files([path]), before)
    path.write_text("another text")
    with pytest.raises(UserError, match=r"cannot write .*: read-only"):
        encode_files([path])


def test_a_folder_that_cannot_be_written_to_is_named(path: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(UserError, match=f"cannot write {cache}/"):
        encode_files([path])


def test_two_may_encode_the_same_text_at_once(path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both, write_ids, found = threading.Barrier(2, timeout=60), encoded._write_ids, []

    def write_together(*arguments: Any) -> None:
        both.wait()
        write_ids(*arguments)
        both.wait()

    monkeypatch.setattr(encoded, "_write_ids", write_together)
    threads = [threading.Thread(target=lambda: found.append(encode_files([path]))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.setattr(encoded, "_write_ids", write_ids)
    assert [same(one, encode(TEXT)) for one in found] == [True, True]
    assert sorted(left.suffix for left in cache.iterdir()) == [".ids", ".json"]


def test_what_a_killed_process_left_is_removed_and_what_another_writes_is_not(path: Path, cache: Path) -> None:
    cache.mkdir()
    left, held = cache / ".left.ids.1.tmp", cache / ".held.ids.2.tmp"
    left.write_bytes(b"1")
    with open(held, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        encode_files([path])
        assert (left.exists(), held.exists()) == (False, True)


def test_a_file_that_is_taken_for_a_stray_before_it_is_held_is_made_again(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[Path] = []

    def hold_late(file: Any, how: int) -> None:
        if not removed:
            removed.append(Path(file.name))
            removed[0].unlink()

    monkeypatch.setattr(fcntl, "flock", hold_late)
    assert same(encode_files([path]), encode(TEXT))
    assert len(removed) == 1


@pytest.mark.parametrize("more", ["more", "もっと"])
def test_a_text_that_grows_meanwhile_is_refused(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    write_ids = encoded._write_ids

    def write_later(*arguments: Any) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(more)
        write_ids(*arguments)

    monkeypatch.setattr(encoded, "_write_ids", write_later)
    with pytest.raises(UserError, match=r"text.txt changed while it was read"):
        encode_files([path])
    assert list(cache.iterdir()) == []


@given(
    text=st.text("abcé", max_size=30), vocabulary=st.sets(st.sampled_from("abcdé"), min_size=1), size=st.integers(1, 9)
)
def test_ids_become_those_of_another_vocabulary(text: str, vocabulary: set[str], size: int) -> None:
    tokenizer = Tokenizer("".join(sorted(vocabulary)))
    own = encode(text)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encoded, "_PIECE", size)
        ids, unknown = translated(own.ids, own.vocabulary, tokenizer)
    assert tokenizer.decode(ids) == "".join(character for character in text if character in vocabulary)
    assert unknown == {sign: count for sign, count in Counter(text).items() if sign not in vocabulary}
    assert list(unknown) == sorted(unknown)
    assert ids.dtype == dtype_of(len(tokenizer.vocabulary))


def test_pieces_overlap() -> None:
    text = encode("abcdefgh")
    tokenizer = Tokenizer(text.vocabulary)
    assert list(text_pieces(text.ids, tokenizer, overlap=2, size=3)) == ["abc", "bcdef", "efgh"]


def test_a_run_on_a_large_text_is_a_run_on_a_small_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "books").mkdir()
    for number in (1, 2):
        (tmp_path / "books" / f"{number}.txt").write_text(playlet.write(5000, seed=number)[0])
    options = (*SMALL, "trainer.max_steps=3", "data=text", "data.path=books/*.txt")
    results = {}
    for name, most in (("large", 0), ("small", 1 << 20)):
        monkeypatch.setattr(encoded, "SMALL", most)
        result = script("train.py", *options, f"hydra.run.dir={name}", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert "not writable" not in result.stderr
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        results[name] = {key: summary[key] for key in ("loss_val", "loss_train", "corpus", "baselines")}
    assert results["large"] == results["small"]
    assert results["large"]["corpus"]["name"] == "books"
    monkeypatch.setattr(encoded, "SMALL", 0)
    shown = script("evaluate.py", "checkpoint=large", "json=true", cwd=tmp_path)
    assert json.loads(shown.stdout)["loss"] == results["large"]["loss_val"], shown.stderr
    told = script("sample.py", "checkpoint=large", "seed=1", "length=40", "novelty=true", cwd=tmp_path)
    assert "longest copy from the training text" in told.stderr
    assert script("train.py", "resume=large", "trainer.max_steps=4", cwd=tmp_path).returncode == 0
    (tmp_path / "books" / "3.txt").write_text("one more")
    refused(
        script("train.py", "resume=large", "trainer.max_steps=5", cwd=tmp_path), "this is not the text", "sha256 was"
    )
