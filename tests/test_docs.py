"""The pages in docs/ are true: their code prints what they say, their tables and pictures come from their scripts."""

import code
import contextlib
import io
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import attention as attention_benchmark
from configs.command_line import CONFIGS
from configs.overrides import yaml_groups
from configs.schema import ModelConfig, UserError
from data.tokenizer import Tokenizer
from docs import results_table, scale_study
from model.language_model import LanguageModel
from tests.faults import guards
from tests.scripts import ROOT, environment, refused, script
from training import checkpoint as checkpoints
from training.pictures import attention_map

README = (ROOT / "README.md").read_text(encoding="utf-8")
ATTENTION = (ROOT / "docs" / "attention.md").read_text(encoding="utf-8")


def test_every_block_prints_what_stands_below_it() -> None:
    blocks = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", ATTENTION, re.DOTALL)
    assert len(blocks) == ATTENTION.count("```python") > 10
    console = code.InteractiveConsole()
    options = torch._tensor_str.PRINT_OPTS
    before = (options.sci_mode, options.linewidth)
    try:
        for block, expected in blocks:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                for line in [*block.splitlines(), ""]:  # as if pasted at Python's own prompt
                    console.push(line)
            assert printed.getvalue() == expected, block
    finally:
        torch.set_printoptions(sci_mode=before[0], linewidth=before[1])


def test_the_study_of_the_scale_prints_the_table_and_draws_the_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scale_study.main([str(tmp_path / "scale.png")])
    table = capsys.readouterr().out
    assert table in ATTENTION  # computed in float64, so that no processor rounds another last digit into sight
    drawn, kept = (np.asarray(Image.open(folder / "scale.png")) for folder in (tmp_path, ROOT / "docs"))
    assert drawn.shape == kept.shape
    # Fonts differ between systems; the lines do not.
    assert np.array_equal(drawn[34:352, 57:500], kept[34:352, 57:500])
    for row in table.splitlines()[2:]:
        head_size, variance, entropy, scaled_variance, scaled_entropy = map(float, row.strip("| ").split("|"))
        assert variance == pytest.approx(head_size, rel=0.02)
        assert scaled_variance == pytest.approx(1, abs=0.05)
        assert scaled_entropy >= entropy


def finished_run(folder: Path, model: str, loss_val: float, **changes: Any) -> Path:
    """A folder as a run leaves it."""
    folder.mkdir()
    summary = {
        "status": "finished", "model": model, "loss_val": loss_val, "steps": 1200, "best_step": 10,
        "parameters": 4225, "train_seconds": 90.0, "bits_per_char": 2.5, "chars_per_second": 2000.0,
        "baselines": {"1": 3.0, "2": 2.0}, "overrides": [f"model={model}"], "resumed": [], "corpus": {"sha256": "one"}, **changes,
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))
    sample = "=== step {}, validation loss 1.0000 ===\nshort\nA line of {} | with a bar and more to be cut\n\n"
    (folder / "samples.txt").write_text(sample.format(5, "another step") + sample.format(10, "the best step"))
    return folder


def test_the_table_of_results_is_made_from_run_folders(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{results_table.BEGIN}old\n{results_table.END}after\n")
    runs = [
        finished_run(tmp_path / "a", "gpt", 1.5),
        finished_run(tmp_path / "b", "head", 2.5, overrides=["a|b`", "c d"]),
    ]
    results_table.write(results_table.table_of(runs), readme)
    line = "`A line of the best step \\| with a bar and`"
    assert readme.read_text() == (
        f"before\n{results_table.BEGIN}{results_table.HEADER}"
        "| counted 1-gram | every run | | 3.0000 | 4.3281 | | | |\n"
        f"| head | `python train.py 'a\\|b'' 'c d'` | 10 of 1,200 | 2.5000 | 3.6067 | 4,225 | 1.50 | {line} |\n"
        "| counted 2-gram | every run | | 2.0000 | 2.8854 | | | |\n"
        f"| gpt | `python train.py model=gpt` | 10 of 1,200 | 1.5000 | 2.1640 | 4,225 | 1.50 | {line} |\n"
        f"{results_table.END}after\n"
    )
    (tmp_path / "multirun.yaml").touch()
    assert results_table.table_of([*runs, tmp_path / "multirun.yaml"]) in readme.read_text()
    for folder, words in (
        (finished_run(tmp_path / "c", "gpt", 1.0, corpus={"sha256": "two"}), "different texts or validation parts"),
        (
            finished_run(tmp_path / "g", "gpt", 1.0, baselines={"1": 3.0, "2": 1.9}),
            "different texts or validation parts",
        ),
        (finished_run(tmp_path / "d", "gpt", 1.0, status="interrupted"), "has not ended in order"),
        (finished_run(tmp_path / "e", "gpt", math.nan), "has not ended in order"),
        (finished_run(tmp_path / "f", "gpt", 1.0, parameters=None), "or a damaged one"),
        (tmp_path / "none", "holds no finished run"),
    ):
        with pytest.raises(UserError, match=words):
            results_table.table_of([*runs, folder])
    with pytest.raises(UserError, match="has some in it: name one, such as"):
        results_table.table_of([tmp_path])
    with pytest.raises(UserError, match="name the folders"):
        results_table.table_of([])
    with pytest.raises(UserError, match="has no place for the table"):
        results_table.write("table", runs[0] / "summary.json")


def test_the_table_of_results_reads_a_real_run(trained: Path) -> None:
    result = script("docs/results_table.py", str(trained), cwd=trained)
    summary = json.loads((trained / "summary.json").read_text())
    assert f"| {summary['loss_val']:.4f} |" in result.stdout
    assert f"| counted 5-gram | every run | | {summary['baselines']['5']:.4f} |" in result.stdout
    assert (ROOT / "README.md").read_text(encoding="utf-8") == README


@pytest.mark.parametrize(
    "name",
    [
        "docs/results_table.py",
        "docs/sweep_table.py",
        "docs/attention_maps.py",
        "docs/tensorboard_picture.py",
        "docs/page_picture.py",
        "benchmarks/attention.py",
    ],
)
def test_scripts_refuse_in_a_sentence_and_help(name: str, tmp_path: Path) -> None:
    refused(script(name, "none", "--wrong", "x", "y", cwd=tmp_path), Path(name).name + ": ")
    assert f"python {name}" in script(name, "--help", cwd=tmp_path).stdout
    assert not list(tmp_path.iterdir())


def test_the_table_in_the_readme_climbs_the_ladder() -> None:
    table = README.partition(results_table.BEGIN)[2].partition(results_table.END)[0]
    assert table.startswith(results_table.HEADER)
    losses = [float(line.split("|")[4]) for line in table.splitlines()[2:]]
    assert losses == sorted(losses, reverse=True)
    rungs = [choice for choice in yaml_groups(CONFIGS)["experiment"] if choice.startswith("ladder/")]
    assert len(rungs) == 5
    places = [table.index(f"`python train.py experiment={rung}`") for rung in rungs]
    assert places == sorted(places)


def test_maps_of_a_trained_model(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    result = script("docs/attention_maps.py", "run", "the k\\ning", cwd=tmp_path)
    assert result.stdout == f"drawn: {Path('run') / 'attention_maps.png'}\n"
    picture = np.asarray(Image.open(tmp_path / "run" / "attention_maps.png"))
    checkpoint = checkpoints.load(trained / "best.pt")
    ids = torch.from_numpy(Tokenizer(checkpoint["vocabulary"]).encode("the k\ning")).long()
    weights = checkpoints.model_from(checkpoint, trained).attention_weights(ids[None])  # (n_layer, 1, H, T, T)
    wanted = attention_map(weights[1, 0, 2].numpy(), "the k\ning", "layer 2, head 3")
    height, width, _ = wanted.shape
    assert picture.shape == (2 * height, 4 * width, 3)  # two layers of four heads
    assert np.array_equal(picture[height:, 2 * width : 3 * width], wanted)


def test_maps_that_cannot_be_drawn_are_refused_in_a_sentence(trained: Path, tmp_path: Path) -> None:
    bigram = LanguageModel(ModelConfig(n_layer=0, n_previous=0, n_gram_order=0), 2)
    (tmp_path / "bigram").mkdir()
    changed = {"model": bigram.state_dict(), "sizes": bigram.sizes(), "vocabulary": "ab"}
    checkpoints.save(tmp_path / "bigram" / "best.pt", checkpoints.load(trained / "best.pt") | changed)
    for run, text, words in (
        (trained, "a" * 17, "the window has 17 characters, but block_size is 16"),
        (trained, "a" * 101, "the text has 101 characters, and a picture shows 100"),
        (trained, "日", "the model has never seen '日'"),
        (trained, "", "it takes a text"),
        (tmp_path / "bigram", "a", "a model with at least one layer"),
        (tmp_path / "none", "a", "cannot read the checkpoint"),
    ):
        refused(script("docs/attention_maps.py", str(run), text, "maps.png", cwd=tmp_path), words)
    assert not (tmp_path / "maps.png").exists()


def test_the_benchmark_of_the_paths(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(attention_benchmark, "SHAPES", ((1, 1, 4, 4),))
    monkeypatch.setattr(attention_benchmark, "BLOCK_SIZES", (4,))
    monkeypatch.setattr(attention_benchmark, "SECONDS_A_ROUND", 0.001)
    attention_benchmark.main(["cpu"])
    figures = json.loads(capsys.readouterr().out)
    ratios = figures["plain_over_fused"] | figures["recomputed_over_cached"]
    kinds = ("float32", "bfloat16", "float32 with dropout")
    assert set(ratios) == {"T4", *(f"{kind} B1 H1 T4 S4" for kind in kinds)}
    assert min(ratios.values()) > 0


def test_the_page_on_reliability_names_what_is_there(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(tests/[\w/.]+)`", page))
    assert len(named) > 8
    for path in named:
        assert (ROOT / path).exists(), path
    for command in re.findall(r"```sh\npython (.*)\n```", page):
        program = command.split()
        if program[0] == "-m":
            shown = subprocess.run(
                [sys.executable, *program, "--help"], cwd=ROOT, env=environment(), capture_output=True, text=True
            )
            assert shown.returncode == 0, shown.stderr
            assert f"python {command}" in shown.stdout
        else:
            shown_by_script = script(command, cwd=tmp_path)
            assert shown_by_script.returncode == 0, shown_by_script.stderr
            assert json.loads(shown_by_script.stdout)["safe_ms"] > 0
    assert len(re.findall(r"^\| .* \| [\d,]+ \|$", page, re.MULTILINE)) == 12  # what the long form printed
    assert not re.search(r"[A-Z]{3,}_[A-Z]{3,}", page)  # a figure that was to be filled in
    assert len(guards.GUARDS) == len({guard.name for guard in guards.GUARDS}) > 20
    for guard in guards.GUARDS:  # each can be taken away, and the test that misses it is there
        assert (ROOT / guard.file).read_text(encoding="utf-8").count(guard.words) == 1, guard.name
        file, _, test = guard.test.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), guard.name
