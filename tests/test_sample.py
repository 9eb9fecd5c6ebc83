"""sample.py as people use it: any prompt, any length, from the checkpoint alone, as a stream."""

import contextlib
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from configs.checks import problems
from configs.schema import SampleConfig, UserError
from model.generation import generate
from sample import main
from tests.scripts import ROOT, SMALL, environment, process, refused, script, start

VERSE = 'What\'s here? O Romeo, Romeo! a=b (hi) {x} [y] "Speak," said he; 50% #1 & é “x” 日本 🙂\ttab\n'


@pytest.fixture(scope="session")
def versed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with nothing but best.pt of a model that knows every character of VERSE and of ordinary text."""
    home = tmp_path_factory.mktemp("versed")
    letters = "".join(map(chr, range(32, 127)))
    (home / "text.txt").write_text((VERSE + letters + "\n") * 30, encoding="utf-8")
    small = (*SMALL, "trainer.max_steps=2", "hydra.run.dir=run")
    assert script("train.py", *small, "data=text", "data.path=text.txt", cwd=home).returncode == 0
    alone = tmp_path_factory.mktemp("alone")
    shutil.copy(home / "run" / "best.pt", alone)
    shutil.rmtree(home)
    return alone


def text_of(folder: Path, **options: Any) -> str:
    """What sample.py writes, without the line end that it adds for the terminal; in this process, which is faster."""
    config = SampleConfig(**{"checkpoint": str(folder / "best.pt"), "seed": 1, "length": 60, **options})
    assert problems(config) == []
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()):
        main(config)
    assert output.getvalue().endswith("\n")
    return output.getvalue()[:-1]


def test_the_prompt_comes_first_and_then_so_many_characters(versed: Path) -> None:
    text = text_of(versed, prompt="What's here? O Romeo, Romeo!", length=40)
    assert text.startswith("What's here? O Romeo, Romeo!")
    assert len(text) == len("What's here? O Romeo, Romeo!") + 40


LINES = [
    "O Romeo, Romeo!",
    "a=b",
    "(hi)",
    "{x} [y]",
    '"Speak,"',
    "'Tis he",
    "日本",
    "é “x” 🙂",
    "50% #1 &",
    "${x}",
    " ",
    "a\nb",
]


def test_any_line_reaches_the_model_by_option_file_and_standard_input(versed: Path, tmp_path: Path) -> None:
    prompt = VERSE + "\n".join(LINES)
    (tmp_path / "prompt.txt").write_text(prompt, encoding="utf-8")
    expected = text_of(versed, prompt=prompt, length=5)
    assert expected[:-5] == prompt
    assert text_of(versed, prompt_file=str(tmp_path / "prompt.txt"), length=5) == expected
    for how, stdin in ((f"prompt={prompt}", ""), ("prompt_file=-", prompt)):
        result = script("sample.py", "checkpoint=best.pt", "seed=1", "length=5", how, cwd=versed, stdin=stdin)
        assert result.returncode == 0, result.stderr
        assert result.stdout == expected + "\n"


def test_line_ends_and_tabs_can_be_typed(versed: Path) -> None:
    assert text_of(versed, prompt="a\\nb\\tc", length=0) == "a\nb\tc"


@pytest.mark.parametrize("prompt", [None, "", " ", "\n"])
def test_an_empty_prompt_is_a_prompt(versed: Path, prompt: str | None) -> None:
    text = text_of(versed, prompt=prompt, length=30)
    assert text.startswith(prompt or "")
    assert len(text) == len(prompt or "") + 30


@pytest.mark.parametrize("length", [0, 1, 48])
@pytest.mark.parametrize("prompt", [15, 16, 17, 48])
def test_prompts_and_lengths_of_every_size(versed: Path, prompt: int, length: int) -> None:
    text = text_of(versed, prompt="x" * prompt, length=length)
    assert text[:prompt] == "x" * prompt
    assert len(text) == prompt + length


def test_unknown_characters_are_listed_or_dropped(trained: Path) -> None:
    result = script("sample.py", "prompt=Quiz 🙂? 🙂", cwd=trained.parents[1])
    refused(result, "'z' (U+007A)", "'🙂' (U+1F642)", "on_unknown=drop")
    assert len(result.stderr.splitlines()) == 1
    assert text_of(trained, prompt="the 🙂storm", length=0, on_unknown="drop") == "the storm"


def test_same_seed_same_text_and_samples_do_not_depend_on_their_number(versed: Path) -> None:
    one, two, other = text_of(versed), text_of(versed, num_samples=2), text_of(versed, seed=2)
    assert text_of(versed) == one != other
    header = "--- 1 of 2 ---\n"
    assert two.startswith(header + one + "\n--- 2 of 2 ---\n")
    assert two != header + one + "\n--- 2 of 2 ---\n" + one


def test_more_than_are_written_side_by_side(versed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = text_of(versed, num_samples=5, length=9)
    monkeypatch.setattr("sample.MOST_AT_ONCE", 2)
    assert text_of(versed, num_samples=5, length=9) == together
    assert together.count("---\n") == 5


def test_a_text_ends_before_the_wanted_characters(versed: Path) -> None:
    whole = text_of(versed, num_samples=3, length=200, prompt="Ro", temperature=1)
    texts = [text.removesuffix("\n") for text in re.split("--- . of 3 ---\n", whole + "\n")[1:]]
    end = texts[0][100:102]
    cut = text_of(versed, num_samples=3, length=200, prompt="Ro", temperature=1, stop=end)
    assert re.split("--- . of 3 ---\n", cut + "\n")[1:] == [
        "Ro" + text.removeprefix("Ro").split(end)[0] + "\n" for text in texts
    ]


def test_a_text_without_them_has_its_whole_length(versed: Path) -> None:
    assert text_of(versed, stop="never there", length=90) == text_of(versed, length=90)


@pytest.mark.parametrize("exact", [False, True])
def test_the_window_is_the_one_that_was_asked_for(versed: Path, exact: bool) -> None:
    with mock.patch("sampling.writer.generate", wraps=generate) as spy:
        text_of(versed, length=9, exact_window=exact)
    assert spy.call_args.kwargs == {"exact_window": exact}


def test_a_new_seed_is_told(versed: Path) -> None:
    result = script("sample.py", "checkpoint=best.pt", "length=60", cwd=versed)
    seed = int(result.stderr.rsplit("seed=", 1)[1])
    assert result.stdout == text_of(versed, seed=seed) + "\n"


def test_greedy_is_repeatable(versed: Path) -> None:
    greedy = text_of(versed, temperature=0)
    assert text_of(versed, temperature=0, seed=2) == greedy
    assert text_of(versed, temperature=1e-8) == greedy


def test_nonsense_is_refused_by_name_all_at_once(tmp_path: Path) -> None:
    options = (
        "top_k=0",
        "top_p=0",
        "length=-1",
        "num_samples=0",
        "temperature=-1",
        "seed=x",
        "lenth=3",
    )
    refused(script("sample.py", *options, cwd=tmp_path), *options[:-1], "did you mean length?")
    for bad in ("nan", "inf", "hot"):
        refused(script("sample.py", f"temperature={bad}", cwd=tmp_path), f"temperature={bad} is refused")


def test_empty_names_of_files_are_refused(tmp_path: Path) -> None:
    for key in ("prompt_file", "report_text"):
        refused(script("sample.py", f"{key}=", "report=a.html", cwd=tmp_path), f"{key} is empty: name a file")


def test_nothing_trained_is_said_with_the_place_looked_at(tmp_path: Path) -> None:
    refused(script("sample.py", cwd=tmp_path), f"no trained model in {tmp_path / 'runs'}", "python train.py")
    assert not list(tmp_path.iterdir())


def test_damaged_files_are_refused_in_one_line(versed: Path, tmp_path: Path) -> None:
    (tmp_path / "half.pt").write_bytes((versed / "best.pt").read_bytes()[:5000])
    result = script("sample.py", "checkpoint=half.pt", cwd=tmp_path)
    refused(result, "half.pt is cut short, or of another program or an earlier version")
    assert len(result.stderr.splitlines()) == 1


def test_a_prompt_that_is_no_text_is_refused(versed: Path, tmp_path: Path) -> None:
    (tmp_path / "odd").write_bytes(b"\xff\xfe\x00")
    for file, words in {tmp_path / "odd": "UTF-16", tmp_path / "gone": "No such file", "/dev/zero": "a device"}.items():
        with pytest.raises(UserError, match=words):
            text_of(versed, prompt_file=str(file))
    command = [sys.executable, str(ROOT / "sample.py"), "checkpoint=best.pt", "prompt_file=-"]
    raw = subprocess.run(command, cwd=versed, env=environment(), input=b"a\xffb", capture_output=True, check=False)
    assert raw.returncode == 2
    assert b"standard input is not UTF-8: byte 1 is 0xff" in raw.stderr


def test_text_comes_as_it_is_made(versed: Path) -> None:
    length = 4000  # less than what an unflushed stream would hold back
    process = start("sample.py", "checkpoint=best.pt", "prompt=Speak", f"length={length}", cwd=versed)
    assert process.stdout is not None
    assert len(process.stdout.read(20)) == 20
    process.kill()
    rest = process.stdout.read()  # communicate() would lose what the stream has read ahead
    process.communicate()
    assert len(rest) < length - 20


def test_a_reader_who_has_enough_ends_it_quietly(versed: Path) -> None:
    process = start("sample.py", "checkpoint=best.pt", "length=100000", cwd=versed)
    assert process.stdout is not None
    process.stdout.read(20)
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    assert process.wait(timeout=30) == 0
    assert len(errors.splitlines()) == 1
    assert "seed=" in errors


def test_what_cannot_be_made_since_the_reader_left_is_said(versed: Path) -> None:
    process = start("sample.py", "checkpoint=best.pt", "length=19000", "report=a.html", cwd=versed)
    assert process.stdout is not None
    process.stdout.read(20)
    process.stdout.close()
    assert process.stderr is not None
    assert "standard output was closed before the text was whole" in process.stderr.read()
    assert process.wait(timeout=30) == 2
    assert [path.name for path in versed.iterdir()] == ["best.pt"]


def test_remarks_that_nobody_reads_cost_no_text(versed: Path) -> None:
    command = f"{sys.executable} {ROOT / 'sample.py'} checkpoint=best.pt seed=1 length=60 2> /dev/full"
    result = subprocess.run(command, shell=True, cwd=versed, env=environment(), capture_output=True, check=False)
    assert result.stdout.decode() == text_of(versed) + "\n"


def test_a_terminal_without_a_character_shows_a_question_mark(versed: Path) -> None:
    result = process("sample.py", "checkpoint=best.pt", "prompt=é🙂!", "length=0", cwd=versed, PYTHONIOENCODING="ascii")
    assert result.returncode == 0
    assert result.stdout == "??!\n"


def test_sampling_writes_no_file(versed: Path) -> None:
    assert script("sample.py", "checkpoint=best.pt", "length=3", cwd=versed).returncode == 0
    assert [path.name for path in versed.iterdir()] == ["best.pt"]
