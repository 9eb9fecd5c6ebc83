"""Tiny Shakespeare: the real download code against a real server that misbehaves, and doing without a network."""

import contextlib
import hashlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from configs.schema import TINY_SHAKESPEARE_URLS, DataConfig, UserError
from data import corpus as texts
from tests.scripts import refused, script


class Server(BaseHTTPRequestHandler):
    """Serves `body`, or misbehaves in the way that the path names."""

    body = b""
    asked: list[str]

    def do_GET(self) -> None:
        type(self).asked.append(self.path)
        if self.path == "/404":
            self.send_error(404)
            return
        if self.path == "/silent":
            time.sleep(3)
            return
        if self.path == "/drip":
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                while True:
                    self.wfile.write(b"x")
                    time.sleep(0.01)
        body = {"/page": b"<html>please log in</html>", "/endless": self.body + b"x" * 10_000_000}.get(
            self.path, self.body
        )
        self.send_response(200)
        if self.path != "/endless":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body[: len(body) // 2] if self.path == "/cut" else body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of a stand-in for Tiny Shakespeare, and a cache folder that is not the user's."""
    Server.body, Server.asked = b"First Citizen:\nSpeak, speak.\n" * 1000, []
    monkeypatch.delenv("TINY_SHAKESPEARE", raising=False)
    monkeypatch.setattr(texts, "CACHE", tmp_path / "cache" / "tiny_shakespeare.txt")
    monkeypatch.setattr(texts, "TINY_SHAKESPEARE_SHA256", hashlib.sha256(Server.body).hexdigest())
    monkeypatch.setattr(texts, "TINY_SHAKESPEARE_BYTES", len(Server.body))
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_a_download_is_kept_and_not_repeated(server: str) -> None:
    config = DataConfig(urls=[f"{server}/good"])
    assert texts.tiny_shakespeare(config).encode() == Server.body
    assert texts.CACHE.read_bytes() == Server.body
    assert texts.tiny_shakespeare(config).encode() == Server.body
    assert Server.asked == ["/good"]
    assert list(texts.CACHE.parent.iterdir()) == [texts.CACHE]


BAD = {
    "/404": "Not Found",
    "/page": "26 bytes that are not",
    "/cut": "that are not",
    "/endless": "that are not",
    "/silent": "timed out",
}


@pytest.mark.parametrize("path", BAD)
def test_what_is_not_the_text_never_becomes_the_corpus(server: str, path: str) -> None:
    texts._download.cache_clear()
    with pytest.raises(texts.CannotBeHad) as error:
        texts.tiny_shakespeare(DataConfig(urls=[server + path], timeout=1))
    assert BAD[path] in str(error.value)
    assert not texts.CACHE.exists()


def test_a_server_that_drips_is_given_up(server: str) -> None:
    with pytest.raises(texts.CannotBeHad, match=r"only [\d,]+ bytes after 1 s"):
        texts.tiny_shakespeare(DataConfig(urls=[f"{server}/drip"], timeout=0.05))


def test_mirrors_are_tried_in_order(server: str) -> None:
    texts.tiny_shakespeare(DataConfig(urls=[f"{server}/404", f"{server}/page", f"{server}/good", f"{server}/never"]))
    assert Server.asked == ["/404", "/page", "/good"]


def test_nobody_listening_is_said_with_every_address(server: str) -> None:
    urls = ["http://127.0.0.1:9/a", "nonsense", "ftp://127.0.0.1:9/b"]
    with pytest.raises(texts.CannotBeHad) as error:
        texts.tiny_shakespeare(DataConfig(urls=urls, timeout=1))
    assert all(url in str(error.value) for url in urls)


def test_a_damaged_cache_is_replaced(server: str, caplog: pytest.LogCaptureFixture) -> None:
    texts.CACHE.parent.mkdir()
    texts.CACHE.write_bytes(Server.body[:100])
    assert texts.tiny_shakespeare(DataConfig(urls=[f"{server}/good"])).encode() == Server.body
    assert texts.CACHE.read_bytes() == Server.body
    assert "damaged" in caplog.text


def test_without_room_for_a_cache_the_text_is_used_all_the_same(server: str, caplog: pytest.LogCaptureFixture) -> None:
    texts.CACHE.parent.write_text("a file where the folder should be")
    assert texts.tiny_shakespeare(DataConfig(urls=[f"{server}/good"])).encode() == Server.body
    assert "could not be kept" in caplog.text
    assert texts.tiny_shakespeare(DataConfig(urls=[f"{server}/good"])).encode() == Server.body
    assert Server.asked == ["/good"]


def test_a_named_copy_is_taken_first_and_must_be_the_text(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copy.txt").write_bytes(Server.body.replace(b"\n", b"\r\n"))
    (tmp_path / "other.txt").write_bytes(b"another text")
    monkeypatch.setenv("TINY_SHAKESPEARE", str(tmp_path / "copy.txt"))
    assert texts.tiny_shakespeare(DataConfig()).encode() == Server.body
    with pytest.raises(UserError, match=r"other.txt is not Tiny Shakespeare.*data=text"):
        texts.tiny_shakespeare(DataConfig(path=str(tmp_path / "other.txt")))
    assert Server.asked == []


def test_the_real_text_is_the_one_that_is_checked_for(tiny_shakespeare_path: Path) -> None:
    corpus = texts.load(DataConfig(path=str(tiny_shakespeare_path)), 64)
    assert corpus.identity() == {
        "name": "tiny_shakespeare",
        "sha256": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        "characters": 1_115_394,
        "vocab_size": 65,
    }
    assert texts.TINY_SHAKESPEARE_BYTES == 1_115_394
    assert TINY_SHAKESPEARE_URLS[0].endswith("char-rnn/master/data/tinyshakespeare/input.txt")


# Without a network, on the command line. The cache and the network of this machine must not matter.

OFFLINE = ("data.urls=[http://127.0.0.1:9/nobody]", "data.timeout=1")


@pytest.fixture
def no_cache() -> Iterator[None]:
    """The checkout's own cache, put aside for a test."""
    aside = texts.CACHE.with_name("aside.txt")
    present = texts.CACHE.exists()
    if present:
        texts.CACHE.rename(aside)
    yield
    if present:
        aside.rename(texts.CACHE)


@pytest.mark.usefixtures("no_cache")
def test_a_plain_run_without_network_trains_on_the_playlet_and_says_so_twice(tmp_path: Path) -> None:
    small = ("debug=smoke", "data=tiny_shakespeare", "trainer.max_steps=2", "trainer.sample_length=0")
    result = script("train.py", *small, *OFFLINE, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (
        result.stderr.count("NOT Tiny Shakespeare: Tiny Shakespeare could not be had (http://127.0.0.1:9/nobody") == 2
    )
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("_gpt_playlet")
    assert "name: playlet" in (folder / "config.yaml").read_text()
    assert '"name": "playlet"' in (folder / "summary.json").read_text()


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize("how", [("data.fallback=null",), ("-m", "seed=1,2")])
def test_where_nobody_watches_the_wrong_text_is_an_error(tmp_path: Path, how: tuple[str, ...]) -> None:
    refused(
        script("train.py", "debug=smoke", "data=tiny_shakespeare", *OFFLINE, *how, cwd=tmp_path), "could not be had"
    )
    assert not (tmp_path / "runs").exists()
