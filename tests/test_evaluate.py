"""evaluate.py as people start it: the number that training reported, on any text, and what it refuses."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from configs.schema import TrainerConfig
from data.playlet import write
from data.tokenizer import Tokenizer
from tests.scripts import SMALL, process, refused, script
from training import checkpoint as checkpoints
from training.device import choose_setup
from training.evaluation import evaluate


def figures(home: Path, *options: str) -> dict[str, Any]:
    result = script("evaluate.py", "json=true", *options, cwd=home)
    assert result.returncode == 0, result.stderr
    (line,) = result.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def expected(trained: Path, text: str, stride: int | None = None) -> float:
    """The loss of the trained model on a text, computed here."""
    checkpoint = checkpoints.load(trained / "best.pt")
    ids = torch.from_numpy(Tokenizer(checkpoint["vocabulary"]).encode(text))
    model = checkpoints.model_from(checkpoint, trained / "best.pt")
    return evaluate(model, ids, choose_setup(TrainerConfig(device="cpu", threads=1)), stride).nats


@pytest.fixture(scope="module")
def playlet() -> str:
    return write(20_000)[0]


def test_it_is_the_number_that_training_reported(trained: Path) -> None:
    summary = json.loads((trained / "summary.json").read_text())
    found = figures(trained.parents[1])  # the newest run
    assert found["loss"] == summary["loss_val"]  # to the last bit
    assert found["bits_per_char"] == summary["bits_per_char"] == found["loss"] / math.log(2)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert (found["characters"], found["stride"], found["split"]) == (1999, 16, "validation")
    assert found["corpus"] == {key: summary["corpus"][key] for key in ("name", "sha256")}
    assert found["loss_by_position"] == summary["last_loss_val_by_position"]
    assert found["floor"] == pytest.approx(summary["floor"])
    assert (found["checkpoint"], found["step"]) == (f"runs/{trained.name}/best.pt", 20)


@pytest.mark.parametrize(
    ("split", "part"), [("train", slice(0, 18_000)), ("validation", slice(18_000, None)), ("all", slice(None))]
)
def test_every_part_of_the_models_own_text(trained: Path, playlet: str, split: str, part: slice) -> None:
    found = figures(trained.parents[1], f"split={split}")
    assert found["loss"] == expected(trained, playlet[part])
    assert found["characters"] == len(playlet[part]) - 1
    assert sum(found["characters_by_position"]) == found["characters"]


def test_a_stride_gives_each_character_more_to_see(trained: Path, playlet: str) -> None:
    found = figures(trained.parents[1], "stride=3")
    assert found["loss"] == expected(trained, playlet[18_000:], 3) != expected(trained, playlet[18_000:])
    assert found["characters"] == sum(found["characters_by_position"]) == 1999
    assert found["characters_by_position"][:13] == [1] * 13


def test_another_text_is_read_whole_and_in_the_checkpoints_vocabulary(trained: Path, tmp_path: Path) -> None:
    text = "An she be.\nAn the!\n" * 3  # too short to be trained on, and without most of the vocabulary
    (tmp_path / "other text.txt").write_text(text)
    found = figures(tmp_path, f"checkpoint={trained}", "data.path=other text.txt")
    assert found["loss"] == expected(trained, text)
    assert (found["corpus"]["name"], found["split"], found["characters"]) == ("other text", "all", len(text) - 1)
    assert found["floor"] is None
    found = figures(tmp_path, f"checkpoint={trained}", "data=text", "data.path=other text.txt", "split=validation")
    assert found["loss"] == expected(trained, text[int(len(text) * 0.9) :])
    found = figures(
        tmp_path, f"checkpoint={trained}", "data.path=other text.txt", "split=train", "data.validation_fraction=0.5"
    )
    assert found["characters"] == len(text) // 2 - 1


def test_a_copy_of_the_models_own_text_is_known_by_its_content(trained: Path, playlet: str, tmp_path: Path) -> None:
    (tmp_path / "copy.txt").write_text(playlet, encoding="utf-8")
    found = figures(tmp_path, f"checkpoint={trained}", "data.path=copy.txt")
    assert found["loss"] == json.loads((trained / "summary.json").read_text())["loss_val"]
    changed = script(
        "evaluate.py", f"checkpoint={trained}", "data.path=copy.txt", "data.validation_fraction=0.5", cwd=tmp_path
    )
    refused(changed, "data.validation_fraction=0.5 would mix the parts of the model's own text", "trained with 0.1")


def test_unknown_characters_are_refused_with_the_list_or_counted_apart(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.txt").write_text("An é she🙂 be.éé\n", encoding="utf-8")
    options = (f"checkpoint={trained}", "data.path=odd.txt")
    refused(
        script("evaluate.py", *options, cwd=tmp_path), "'é' (U+00E9)", "'🙂' (U+1F642)", "on_unknown=skip",
    )  # fmt: skip
    found = figures(tmp_path, *options, "on_unknown=skip")
    assert found["skipped"] == {"é": 3, "🙂": 1}
    assert found["loss"] == expected(trained, "An  she be.\n")
    shown = script("evaluate.py", *options, "on_unknown=skip", cwd=tmp_path).stdout
    assert "skipped, since the model has never seen them: 4 ('é' 3, '🙂' 1)" in shown


def test_the_table_is_for_people(trained: Path) -> None:
    result = process("evaluate.py", f"checkpoint={trained}", cwd=trained)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    summary = json.loads((trained / "summary.json").read_text())
    lines = result.stdout.splitlines()
    assert lines[0] == f"{trained / 'best.pt'}: gpt, step 20, trained on playlet"
    assert lines[1] == "playlet, validation: 1,999 characters predicted; stride 16, windows do not overlap"
    assert f"{summary['loss_val']:.4f}  nats per character" in lines[3]
    assert f"{summary['bits_per_char']:.4f}  bits per character" in lines[4]
    assert re.fullmatch(
        r"computed with device cpu, instructions \S+, precision float32, attention fused, threads 1", lines[-1]
    )
    rows = [line.rsplit(maxsplit=3) for line in lines[-7:-2]]
    assert [row[0] for row in rows] == ["1", "2", "3 to 4", "5 to 8", "9 to 16"]
    assert sum(int(row[3].replace(",", "")) for row in rows) == 1999
    mean = sum(float(row[1]) * int(row[3].replace(",", "")) for row in rows) / 1999
    assert mean == pytest.approx(summary["loss_val"], abs=1e-4)
    trained_on = script("evaluate.py", f"checkpoint={trained}", "split=all", "stride=4", cwd=trained).stdout
    assert "playlet, all, on which the model was trained: 19,999" in trained_on
    assert "stride 4, after the first 16, each sees at least 13 before it" in trained_on


def test_what_cannot_be_evaluated_is_refused(trained: Path, tmp_path: Path) -> None:
    def told(*options: str) -> Any:
        return script("evaluate.py", f"checkpoint={trained}", *options, cwd=tmp_path)

    refused(told("stride=17"), "stride=17 would leave characters out: at most model.block_size=16")
    refused(told("stride=0"), "stride=0 is refused: it must be at least 1")
    refused(told("data=text"), "data=text needs a file: add data.path=FILE")
    refused(told("data=playlet", "data.path=x"), "data=playlet writes its own text")
    refused(told("data.path=none.txt"), "cannot read the text none.txt: No such file")
    refused(told("split=tests"), "split=tests is not one of train, validation, test, all")
    refused(told("split=test"), "there is no test part: the model was trained without data.test_fraction")
    refused(told("data.test_fraction=0.1"), "data.test_fraction=0.1 would mix the parts of the model's own text")
    refused(told("spilt=all"), "there is no option spilt: did you mean split?")
    refused(told("device=cuda:99"), "device=cuda:99")
    refused(told("-m", "stride=1,2"), "-m is for train.py")
    for name, text in (("empty", ""), ("single", "A")):
        (tmp_path / name).write_text(text)
        refused(
            told(f"data.path={name}"), f"the all part has {len(text)} characters that the model knows, and 2 are needed"
        )
    shares = "data.validation_fraction=0.1 and data.test_fraction=0.95 leave nothing to train on"
    refused(told("data.path=single", "data.test_fraction=0.95"), shares)
    (tmp_path / "wrong").write_bytes(b"\xff\xfe\x00")
    refused(told("data.path=wrong"), "wrong is UTF-16")
    refused(script("evaluate.py", cwd=tmp_path), f"no trained model in {tmp_path / 'runs'}")


def test_a_text_that_is_not_any_more_what_it_was_is_said(tmp_path: Path, trained: Path) -> None:
    shutil.copy(trained / "best.pt", tmp_path / "best.pt")
    checkpoint = checkpoints.load(tmp_path / "best.pt")
    checkpoint["config"]["data"] |= {"name": "text", "path": "mine.txt"}
    checkpoints.save(tmp_path / "best.pt", checkpoint)
    refused(
        script("evaluate.py", "checkpoint=best.pt", cwd=tmp_path),
        "cannot read the text mine.txt", "If it has moved, say where it is with data.path=FILE",
    )  # fmt: skip
    (tmp_path / "mine.txt").write_text("An she be.\n" * 9)
    words = "mine is not the text any more that the model was trained on"
    refused(script("evaluate.py", "checkpoint=best.pt", cwd=tmp_path), words, "name it with data.path=FILE")
    changed = script("evaluate.py", "checkpoint=best.pt", "data.validation_fraction=0.2", cwd=tmp_path)
    refused(changed, words)
    assert figures(tmp_path, "checkpoint=best.pt", "data.path=mine.txt")["split"] == "all"


def test_a_loss_beyond_all_perplexity_is_said(tmp_path: Path, trained: Path) -> None:
    checkpoint = checkpoints.load(trained / "best.pt")
    checkpoint["model"]["bigram.weight"] *= 1e5
    checkpoints.save(tmp_path / "bad.pt", checkpoint)
    found = figures(tmp_path, "checkpoint=bad.pt")
    assert found["loss"] > 1000
    assert found["perplexity"] is None
    assert "inf" in script("evaluate.py", "checkpoint=bad.pt", cwd=tmp_path).stdout


def test_help_is_instant_and_complete(tmp_path: Path) -> None:
    result = script("evaluate.py", "--help", cwd=tmp_path)
    assert result.returncode == 0
    for words in ("python evaluate.py data.path=other.txt", "data: playlet, text, tiny_shakespeare", "stride=null"):
        assert words in result.stdout
    assert "experiment" not in result.stdout


def test_the_test_part_is_evaluated_and_nothing_else_sees_it(tmp_path: Path) -> None:
    options = (*SMALL, "data.validation_fraction=0.1", "data.test_fraction=0.1", "hydra.run.dir=run")
    assert script("train.py", *options, cwd=tmp_path).returncode == 0
    result = figures(tmp_path, "checkpoint=run", "split=test")
    assert (result["split"], result["characters"]) == ("test", 1999)
    assert result["loss"] != figures(tmp_path, "checkpoint=run")["loss"]
    whole = script("evaluate.py", "checkpoint=run", "split=all", cwd=tmp_path).stdout
    assert "on which the model was trained" in whole
    assert (
        "on which the model was trained"
        not in script("evaluate.py", "checkpoint=run", "split=test", cwd=tmp_path).stdout
    )


def test_inspecting_says_what_the_checkpoint_holds(trained: Path) -> None:
    found = figures(trained.parents[1], "inspect=true")
    checkpoint = checkpoints.load(trained / "best.pt")
    assert {**found["sizes"], "name": found["name"]} == checkpoint["sizes"]
    assert sum(found["parameters"].values()) == sum(weight.numel() for weight in checkpoint["model"].values())
    for key in ("step", "vocabulary", "corpus", "versions"):
        assert found[key] == checkpoint[key]
    assert found["bytes"] == (trained / "best.pt").stat().st_size
    assert (found["resumable"], figures(trained, "inspect=true", "checkpoint=last.pt")["resumable"]) == (False, True)
    (command,) = found["commands"]
    assert command.startswith("python train.py debug=smoke")
    shown = script("evaluate.py", "inspect=true", cwd=trained.parents[1])
    for words in (checkpoint["corpus"]["sha256"], "block_size 16", f"{found['best']['loss_val']:.4f}", command):
        assert words in shown.stdout


def test_inspecting_takes_no_options_of_evaluating(trained: Path) -> None:
    result = script("evaluate.py", "inspect=true", "stride=2", "data.path=x", cwd=trained)
    refused(result, "leave out stride=2", "leave out data.path=x")


def test_inspecting_a_state_from_before_the_first_evaluation(trained: Path, tmp_path: Path) -> None:
    checkpoint = checkpoints.load(trained / "last.pt")
    checkpoint["best"] = {"step": 0, "loss_val": math.inf, "waited": 0}
    checkpoints.save(tmp_path / "last.pt", checkpoint)
    assert figures(tmp_path, "inspect=true", "checkpoint=last.pt")["best"] is None
    assert "not evaluated yet" in script("evaluate.py", "inspect=true", "checkpoint=last.pt", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("starts", [1]),
        ("starts", [{}]),
        ("seconds", {"train": math.nan, "eval": 1.0}),
        ("versions", {"threads": "many"}),
    ],
)
def test_a_whole_checkpoint_that_says_nonsense_of_itself(trained: Path, tmp_path: Path, key: str, value: Any) -> None:
    checkpoint = checkpoints.load(trained / "best.pt")
    checkpoint[key] = {**checkpoint[key], **value} if isinstance(value, dict) else value
    checkpoints.save(tmp_path / "odd.pt", checkpoint)
    (tmp_path / "one.txt").write_text("the king and the storm" * 9)
    inspect = () if key == "versions" else ("inspect=true", "json=true")
    data = ("data.path=one.txt",) if key == "versions" else ()
    refused(script("evaluate.py", "checkpoint=odd.pt", *inspect, *data, cwd=tmp_path), "is damaged")


def test_inspecting_says_what_is_wrong_with_the_weights(trained: Path, tmp_path: Path) -> None:
    checkpoint = checkpoints.load(trained / "best.pt")
    next(iter(checkpoint["model"].values())).fill_(math.nan)
    checkpoints.save(tmp_path / "odd.pt", checkpoint)
    refused(script("evaluate.py", "checkpoint=odd.pt", "inspect=true", cwd=tmp_path), "weights that are not finite")
