"""The benchmarks of speed, in a short form: their figures are there and hang together."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import ablation, encoding, runs, sampling, scaling, sweeping, throughput, time_to_loss
from configs.schema import UserError
from model.language_model import LanguageModel
from tests.scripts import ROOT, refused, script

TINY = (
    "debug=smoke data.characters=3000 model.n_layer=1 trainer.max_steps=4 trainer.eval_interval=2 trainer.threads=1"
).split()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run tiny, whatever it is asked to be."""
    train_config = runs.train_config
    monkeypatch.setattr(runs, "train_config", lambda arguments: train_config([*arguments, *TINY]))


def test_the_sprint_is_timed_to_the_loss_of_the_baseline(
    tiny: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        time_to_loss, "BASELINE", ["optimizer.lr=1e-4", "optimizer.table_lr=1e-4", "optimizer.n_gram_lr=1e-4"]
    )
    monkeypatch.setattr(time_to_loss, "SPRINT", ["model.name=sprint"])
    time_to_loss.main(["5", "6"])
    figures = json.loads(capsys.readouterr().out)
    assert [result["seed"] for result in figures["seeds"]] == [5, 6]
    for result in figures["seeds"]:
        assert result["ratio"] == pytest.approx(result["baseline_seconds"] / result["sprint_seconds"], rel=0.1)
        assert result["sprint_final_loss"] < result["loss"]
    monkeypatch.setattr(
        time_to_loss, "SPRINT", ["optimizer.lr=1e-9", "optimizer.table_lr=1e-9", "model.bigram_init=zero"]
    )
    with pytest.raises(UserError, match="never came to"):
        time_to_loss.main(["5"])


def test_choices_are_turned_off_one_at_a_time(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "CHOICES", {"all": [], "slow": ["trainer.grad_accumulation=4"]})
    table = ablation.table(4, [1, 2])
    assert table.startswith(ablation.HEADER)
    (all_cells, slow_cells) = ([cell.strip() for cell in line.split("|")[2:-1]] for line in table.splitlines()[2:])
    assert all_cells[2] == "1.00"
    assert all_cells[0] == all_cells[3]  # the same steps
    assert float(slow_cells[2]) > 1


@pytest.mark.parametrize("choice", ablation.CHOICES)
def test_every_choice_is_one_that_train_py_takes(choice: str) -> None:
    config = runs.train_config(ablation.CHOICES[choice])
    default = runs.train_config([])
    assert (config == default) == (not ablation.CHOICES[choice])


def test_each_size_is_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(throughput, "SIZES", [["model.n_embd=8"], ["model.n_embd=16"]])
    throughput.main(["--sizes", "data=playlet", "trainer.batch_size=1", "trainer.threads=1", "model.n_layer=1"])
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line["options"].split()[0] for line in lines] == ["model.n_embd=8", "model.n_embd=16"]
    assert min(line["train_chars_per_s"] for line in lines) > 0
    with pytest.raises(UserError, match="no figures for model"):
        throughput.main(["--sizes", "n_haed=1"])


def test_throughput_and_its_share_of_what_the_machine_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "LARGE", {"cpu": 64, "cuda": 64})
    figures: dict[str, Any] = throughput.figures_of(TINY)
    assert figures["train_chars_per_s"] > 0
    assert 0 <= figures["share_of_peak"] < 1
    peak = figures["peak_gigaflops"]  # both are rounded to whole ones
    assert figures["share_of_peak"] == pytest.approx(figures["gigaflops"] / peak, abs=1 / peak + 0.001)
    assert figures["memory_mb"] > 50


def test_a_sweep_side_by_side_against_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"did you mean model\.n_head"):
        sweeping.seconds([*sweeping.TINY, "model.n_haed=1"])
    took = {"joblib": 3.0, "threads=1": 5.0, "": 6.0}
    monkeypatch.setattr(
        sweeping, "seconds", lambda options: next(took[name] for name in took if name in " ".join(options))
    )
    sweeping.main([])
    figures = json.loads(capsys.readouterr().out)
    assert (figures["ratio"], figures["jobs"], figures["two_workers_seconds"]) == (1.67, 16, 3.0)
    assert figures["one_after_another_seconds"] == {"one_thread": 5.0, "all_cores": 6.0}


def test_sampling_against_recomputing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"LENGTH": 150, "MANY": 4, "ROUNDS": 1}.items():
        monkeypatch.setattr(sampling, name, value)
    monkeypatch.setattr(sampling, "seconds_to_the_first_character", lambda: 1.0)  # see the next test
    sampling.main([*TINY, "model.block_size=128"])
    figures = json.loads(capsys.readouterr().out)
    for name in ("one", "many"):
        ratio = figures[f"{name}_chars_per_s"] / figures["recomputed_chars_per_s"]
        assert figures[f"{name}_ratio"] == pytest.approx(ratio, rel=0.1)
    assert figures["many_texts"] == 4
    assert figures["late_over_early"] > 0


def test_the_first_character_is_waited_for(trained: Path, tmp_path: Path) -> None:
    sampling.write_a_character(trained)
    with pytest.raises(UserError, match="wrote nothing"):
        sampling.write_a_character(tmp_path)


def test_operations_are_counted_as_torch_counts_them() -> None:
    config = runs.train_config(TINY).model
    model = LanguageModel(config, 11)
    model.use_attention("plain")
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, config.block_size, dtype=torch.long)).sum().backward()
    looked_at_all = (
        6 * 2 * config.n_layer * config.n_head * config.head_size * config.block_size // 2
    )  # not only the past
    counted = counter.get_total_flops() / config.block_size
    assert throughput.flops_per_character(config, model) + looked_at_all == pytest.approx(counted, rel=0.02)


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    assert "python benchmarks/sweeping.py" in script("benchmarks/sweeping.py", "--help", cwd=tmp_path).stdout
    for name in ("time_to_loss", "ablation"):
        refused(script(f"benchmarks/{name}.py", "x", cwd=tmp_path), "whole numbers")
        assert f"python benchmarks/{name}.py" in script(f"benchmarks/{name}.py", "--help", cwd=tmp_path).stdout
    refused(script("benchmarks/throughput.py", "model.n_head=0", "n_haed=1", cwd=ROOT), "n_haed")


def test_a_large_text_is_encoded_and_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("It was a dark night, and it was late.\n" * 30)
    encoding.main(["1", str(tmp_path / "text.txt")])
    figures = json.loads(capsys.readouterr().out)
    assert figures["megabytes"] == 1.0
    assert min(figures.values()) > 0
    (tmp_path / "empty.txt").touch()
    with pytest.raises(UserError, match="an empty text never fills a file"):
        encoding.main(["1", str(tmp_path / "empty.txt")])
    for arguments in (["0"], ["text.txt"], ["1", "text.txt", "more"]):
        with pytest.raises(UserError, match="give a number of megabytes, 1 or more"):
            encoding.main(arguments)


def test_speed_and_memory_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scaling, "SIZES", {"n_embd": [(width, [f"model.n_embd={width}"]) for width in (8, 16)]})
    monkeypatch.setattr(scaling, "ROUNDS", 1)
    monkeypatch.setattr(scaling, "STEPS", 2)
    scaling.main([str(tmp_path / "picture.png"), "debug=smoke", "data.characters=3000", "data.validation_fraction=0.1"])
    figures = json.loads(capsys.readouterr().out)
    assert [width for width, _, _ in figures["n_embd"]] == [8, 16]
    assert all(speed > 0 and megabytes > 0 for _, speed, megabytes in figures["n_embd"])
    assert figures["processes_ratio"] > 0
    assert figures["eight_gpus"]["sent_megabytes_each"] == pytest.approx(
        figures["eight_gpus"]["gradient_megabytes"] * 7 / 4, abs=0.1
    )
    assert Image.open(tmp_path / "picture.png").size[0] > 600
