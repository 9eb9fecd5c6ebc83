"""The page on a text: what it says is what the model says, whatever the text; and what a browser makes of it."""

import base64
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from configs.schema import ModelConfig, UserError
from data.tokenizer import Tokenizer
from model.language_model import LanguageModel
from sampling.report import look, page, windows
from tests.models import woken
from tests.scripts import refused, script

CHROMIUM = Path("/usr/bin/chromium")
HOSTILE = "<script>alert('x')</script> &amp; \"q\" </script>\n<!-- 🙂 שלום‮ é\té ${x} {{data}} \\u003c\n"
SMALL = ModelConfig(block_size=8, n_layer=2, n_embd=8, n_head=2, head_size=4, n_gram_rows=50)


def model_for(text: str, config: ModelConfig = SMALL) -> tuple[LanguageModel, Tokenizer]:
    tokenizer = Tokenizer.of(text)
    return woken(config, tokenizer.vocab_size), tokenizer


def data_of(html: str) -> dict[str, Any]:
    """What stands in the page's only data element."""
    ((_, text),) = re.findall(r'<script id="data" type="application/json">()(.*?)</script>', html, re.DOTALL)
    data: dict[str, Any] = json.loads(text)
    return data


@pytest.mark.parametrize("length", [2, 8, 9, 10, 30])
@pytest.mark.parametrize("block_size", [1, 2, 8])
def test_each_character_belongs_to_one_window_that_is_long_enough(length: int, block_size: int) -> None:
    foretold = []
    for start, new, end in windows(length, block_size):
        for character in range(new, end):
            foretold.append(character)
            seen = character - start
            assert min(character, math.ceil(3 * block_size / 4)) <= seen <= block_size
    assert foretold == list(range(1, length))


def test_it_shows_what_the_model_says_of_the_documented_windows() -> None:
    text = "to be, or not to be: that is"
    model, tokenizer = model_for(text)
    ids = torch.from_numpy(tokenizer.encode(text)).long()
    found = look(model, ids)
    for start, new, end in windows(len(text), 8):
        for character in range(new, end):
            window = ids[None, start:character]
            logarithms = model(window)[0, -1].double().log_softmax(0)
            assert float(found.bits[character]) == pytest.approx(
                -float(logarithms[ids[character]].detach()) / math.log(2), abs=1e-5
            )
            assert found.likeliest[character].tolist() == logarithms.argsort(descending=True)[:5].tolist()
            weights = model.attention_weights(window)[:, 0, :, -1]  # (L, H, T): of the last that was read
            for layer, head in np.ndindex(2, 2):
                kept = zip(
                    found.distances[layer, head, character].tolist(), found.weights[layer, head, character], strict=True
                )
                back = {distance: float(weight) for distance, weight in kept if weight > 0}
                assert back == {
                    len(window[0]) - place: pytest.approx(float(weight), abs=1e-5)
                    for place, weight in enumerate(weights[layer, head])
                }


def test_the_page_holds_the_text_and_its_figures_whatever_the_text_is() -> None:
    model, tokenizer = model_for(HOSTILE)
    html = page(model, tokenizer, HOSTILE, name="<b>odd</b>.pt")
    data = data_of(html)
    assert data["text"] == HOSTILE
    assert data["model"] == "<b>odd</b>.pt"
    assert html.count("<script") == 2  # the data and the program: the text added none
    assert data["bits_per_char"] == pytest.approx(sum(data["bits"][1:]) / (len(HOSTILE) - 1), abs=1e-3)
    assert data["worst"][0] == max(range(len(HOSTILE)), key=lambda place: data["bits"][place])
    weights = np.frombuffer(base64.b64decode(data["weights"]), np.uint8)
    assert len(weights) == 2 * 2 * len(HOSTILE) * data["looked_at"]
    assert not re.search(r"""(src|href)=|url\(|https?://(?!www\.w3\.org/2000/svg)""", html)  # nothing is fetched


def test_a_model_without_attention_has_a_page_too() -> None:
    model, tokenizer = model_for("abcab", ModelConfig(n_layer=0, n_previous=0, n_gram_order=0))
    assert data_of(page(model, tokenizer, "abcab", ""))["layers"] == 0


def test_two_thousand_characters_of_four_by_four_heads_stay_small() -> None:
    text = "the king and the storm " * 87
    model, tokenizer = model_for(text, ModelConfig(block_size=64, n_layer=4, n_embd=16, head_size=4, n_gram_order=0))
    assert len(page(model, tokenizer, text[:2000], "")) < 5_000_000


def test_sample_py_writes_it(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "given.txt").write_text("the king and the storm")
    options = (f"checkpoint={trained}", "seed=1", "length=40")
    result = script("sample.py", *options, "prompt=the king", "report=page #1.html", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert data_of((tmp_path / "page #1.html").read_text())["text"] + "\n" == result.stdout
    given = script("sample.py", options[0], "report_text=given.txt", "report=given.html", cwd=tmp_path)
    assert data_of((tmp_path / "given.html").read_text())["text"] == "the king and the storm"
    assert given.stdout == ""


def test_a_text_that_ended_at_once_has_no_page(trained: Path, tmp_path: Path) -> None:
    options = (f"checkpoint={trained}", "temperature=0", "length=1")
    first = script("sample.py", *options, cwd=tmp_path).stdout.removesuffix("\n")
    stop = "stop=" + first.replace("\n", "\\n")
    refused(script("sample.py", *options, stop, "length=9", "report=a.html", cwd=tmp_path), "at least 2 characters")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_shown_is_refused_before_anything_is_written(trained: Path, tmp_path: Path) -> None:
    named = f"checkpoint={trained}"
    refused(script("sample.py", named, "report=best.pt", cwd=tmp_path), "ends in .html")
    refused(script("sample.py", named, "report=none/a.html", cwd=tmp_path), "folder that does not exist")
    refused(script("sample.py", named, "report_text=a.txt", cwd=tmp_path), "add report=FILE.html")
    both = script("sample.py", named, "report_text=a.txt", "report=a.html", "prompt=x", "seed=3", cwd=tmp_path)
    refused(both, "leave out prompt=x", "leave out seed=3")
    refused(script("sample.py", named, "report_text=gone.txt", "report=a.html", cwd=tmp_path), "gone.txt")
    refused(script("sample.py", named, "interactive=true", "report=a.html", cwd=tmp_path), "leave out report")
    for length in (0, 20_000):
        words = f"from 2 to 20,000 characters, and these would be {length + 1:,}"
        refused(script("sample.py", named, "prompt=a", f"length={length}", "report=a.html", cwd=tmp_path), words)
    assert not list(tmp_path.iterdir())
    (tmp_path / "a.html").write_text("somebody's page")
    (tmp_path / "b.html").mkdir()
    for name in ("a.html", "b.html"):
        refused(
            script("sample.py", named, "length=9", f"report={name}", cwd=tmp_path), f"{name} exists and is no such page"
        )
    assert (tmp_path / "a.html").read_text() == "somebody's page"


def test_a_page_takes_the_place_of_an_older_one(trained: Path, tmp_path: Path) -> None:
    for prompt in ("the king", "the storm"):
        result = script(
            "sample.py", f"checkpoint={trained}", "length=9", f"prompt={prompt}", "report=a.html", cwd=tmp_path
        )
        assert result.returncode == 0, result.stderr
        assert data_of((tmp_path / "a.html").read_text())["text"].startswith(prompt)


def test_a_link_is_written_through(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to("real.html")
    assert script("sample.py", f"checkpoint={trained}", "length=9", "report=link.html", cwd=tmp_path).returncode == 0
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").is_file()


def test_damaged_weights_are_noticed() -> None:
    model, tokenizer = model_for("abcab")
    assert model.bigram is not None
    model.bigram.weight.data[0] = math.inf
    with pytest.raises(UserError, match="not finite"):
        page(model, tokenizer, "abcab", "")


def test_a_head_that_looks_everywhere_alike_is_shown_to_do_so() -> None:
    text = "the king and the storm " * 30
    config = ModelConfig(
        block_size=640, n_layer=1, attention="uniform", positions="none", qk_norm=False, n_gram_order=0
    )
    model, tokenizer = model_for(text, config)
    weights = np.frombuffer(base64.b64decode(data_of(page(model, tokenizer, text, ""))["weights"]), np.uint8)
    assert (weights.reshape(4, len(text), -1)[:, 600] == 255).all()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no playwright: pip install -r requirements-browser.txt"
    )
    if not CHROMIUM.exists():
        pytest.skip(f"no {CHROMIUM}: on Debian, apt-get install chromium")
    quiet = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=str(CHROMIUM), args=quiet)
        yield chromium
        chromium.close()


@pytest.fixture(params=["light", "dark"])
def shown(request: pytest.FixtureRequest, browser: Any, tmp_path: Path) -> Iterator[Any]:
    """A hostile text's page in a browser, in one of the themes; no error of its program is left unseen."""
    model, tokenizer = model_for(HOSTILE)
    (tmp_path / "page.html").write_text(page(model, tokenizer, HOSTILE, "a model"), encoding="utf-8")
    tab = browser.new_page(color_scheme=request.param, offline=True)
    errors: list[str] = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("dialog", lambda dialog: errors.append(dialog.message))
    tab.goto((tmp_path / "page.html").as_uri())
    yield tab
    assert errors == []
    tab.close()


def test_the_text_is_shown_as_text(shown: Any) -> None:
    assert shown.text_content("#text").replace("↵", "") == HOSTILE
    assert shown.locator("#text script, #text b").count() == 0


def test_pointing_at_a_character_tells_of_it(shown: Any) -> None:
    place = HOSTILE.index("alert")
    shown.hover(f"#c{place}")
    told = shown.inner_text("#one")
    assert f"number {place + 1}" in told
    assert "bits, a chance of" in told
    assert shown.locator("#one tr").count() == 5
    shown.hover("#c0")
    assert "nothing before it" in shown.inner_text("#one")


def test_keys_move_through_the_text(shown: Any) -> None:
    shown.focus("#text")
    for keys, place in ((["ArrowRight"] * 3, 3), (["ArrowLeft"], 2), (["End"], len(HOSTILE) - 1), (["Home"], 0)):
        for key in keys:
            shown.keyboard.press(key)
        assert shown.get_attribute("#text", "aria-activedescendant") == f"c{place}"
        assert shown.get_attribute(f"#c{place}", "aria-selected") == "true"
    shown.keyboard.press("ArrowDown")
    assert shown.get_attribute("#text", "aria-activedescendant") == f"c{HOSTILE.index(chr(10)) + 1}"
    shown.keyboard.press("ArrowUp")
    assert shown.get_attribute("#text", "aria-activedescendant") == "c0"
    shown.keyboard.press("Escape")
    assert shown.get_attribute("#text", "aria-activedescendant") is None


def test_layer_and_head_choose_whose_attention_is_underlined(shown: Any) -> None:
    def underlined() -> dict[str, str]:
        found: dict[str, str] = shown.evaluate(
            "Object.fromEntries(spans.map((span, at) => [at, span.style.getPropertyValue('--weight')])"
            ".filter(([, weight]) => weight))"
        )
        return found

    assert underlined() == {}
    shown.click("#c30")
    pictures = {}
    for layer, head in ((1, 1), (2, 1), (2, 2)):
        shown.select_option("#layer", str(layer))
        shown.select_option("#head", str(head))
        pictures[layer, head] = (str(underlined()), shown.screenshot())
        assert max(map(float, underlined().values())) == 1
        assert "looked most at: " in shown.inner_text("#looked")
        assert all(22 <= int(place) < 30 for place in underlined())
    assert len({weights for weights, _ in pictures.values()}) == 3
    assert len({picture for _, picture in pictures.values()}) == 3  # and it is seen
    shown.select_option("#layer", "none")
    assert underlined() == {}


def test_the_most_surprising_are_a_click_away(shown: Any) -> None:
    shown.locator("#worst button").first.click()
    assert shown.get_attribute("#text", "aria-activedescendant") == f"c{shown.evaluate('data.worst[0]')}"
    shown.keyboard.press("Escape")
    assert shown.get_attribute("#text", "aria-activedescendant") is None
