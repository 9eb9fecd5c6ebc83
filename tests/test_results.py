"""Tables of runs by their summaries: what was changed, mean and spread over seeds, and what cannot stand there."""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from configs.schema import UserError
from tests.scripts import refused, script
from training import results
from training.results import changed_keys, csv_of, results_in, table_of


def a_run(folder: Path, loss: float, *overrides: str, **changes: Any) -> Path:
    """A folder as a run leaves it."""
    folder.mkdir()
    summary = {
        "status": "finished", "model": "gpt", "loss_val": loss, "bits_per_char": 2.5, "best_step": 1000, "steps": 1300,
        "parameters": 4225, "chars_per_second": 2000.0, "train_seconds": 9.5, "overrides": list(overrides), "resumed": [],
        "corpus": {"sha256": "one"}, "baselines": {"1": 3.0, "5": 1.75}, **changes,
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines() if "---" not in line]


def rows(folders: list[Path]) -> list[list[str]]:
    header, *lines = cells(table_of(results_in(folders)))
    assert header[-8:] == [
        "seeds", "nats", "std", "to counted 5-gram", "parameters", "characters/s", "best step", "ended",
    ]  # fmt: skip
    return [header[:-8], *lines]


def test_rows_are_what_was_changed_over_all_seeds(tmp_path: Path) -> None:
    runs = [
        a_run(tmp_path / "0", 2.0, "debug=smoke", "model.n_layer=1", "seed=1"),
        a_run(tmp_path / "1", 1.5, "debug=smoke", "model.n_layer=2", "seed=1", best_step=900, chars_per_second=1000.0),
        a_run(tmp_path / "2", 2.5, "debug=smoke", "model.n_layer=1", "seed=2", status="early_stopped", parameters=4226),
        a_run(tmp_path / "3", 1.6, "debug=smoke", "model.n_layer=2", "seed=2"),
        a_run(tmp_path / "4", math.inf, "debug=smoke", "model.n_layer=3", "seed=1", status="diverged"),
    ]
    assert rows(runs) == [
        ["model.n_layer"],
        ["`2`", "2", "1.5500", "0.0707", "-0.2000", "4,225", "1,500", "900 to 1,000", "finished"],
        ["`1`", "2", "2.2500", "0.3536", "+0.5000", "4,225 to 4,226", "2,000", "1,000", "1 finished, 1 early_stopped"],
        ["`3`", "0", "", "", "", "", "", "", "diverged"],
    ]


def test_the_spread_of_one_seed_is_empty_and_so_are_figures_that_are_not_there(tmp_path: Path) -> None:
    runs = [
        a_run(tmp_path / "0", 2.0, baselines={"1": 3.0}),
        a_run(tmp_path / "1", 1.0, "seed=9", baselines={"1": 3.0}),
    ]
    assert rows(runs[:1]) == [[], ["1", "2.0000", "", "", "4,225", "2,000", "1,000", "finished"]]
    assert rows(runs) == [[], ["2", "1.5000", "0.7071", "", "4,225", "2,000", "1,000", "finished"]]


def test_a_run_that_failed_among_seeds_does_not_count(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / str(seed), 1.0 + seed, f"seed={seed}") for seed in range(2)]
    runs.append(a_run(tmp_path / "2", 9.0, "seed=2", status="interrupted"))
    assert rows(runs)[1] == ["2", "1.5000", "0.7071", "-0.2500", "4,225", "2,000", "1,000", "2 finished, 1 interrupted"]


def test_values_are_short_and_keep_the_table_whole(tmp_path: Path) -> None:
    runs = [
        a_run(tmp_path / "0", 1.0, "trainer.probe='a|b`\nc'", "optimizer.lr=0.0012345678901"),
        a_run(tmp_path / "1", 2.0, f"trainer.probe={'x' * 99}", "+optimizer.lr=0.5"),
        a_run(tmp_path / "2", 3.0),
    ]
    table = table_of(results_in(runs)).replace("\\|", "/")
    (header, *lines) = cells(table)
    assert header[:2] == ["trainer.probe", "optimizer.lr"]
    assert [line[:2] for line in lines] == [["`a/b' c`", "`0.001235`"], [f"`{'x' * 31}…`", "`0.5`"], ["", ""]]
    assert len({len(line) for line in table_of(results_in(runs)).splitlines()}) == 1  # it can be read as it is


def test_what_was_changed_when_a_run_went_on_counts(tmp_path: Path) -> None:
    again = [{"step": 1000, "overrides": ["trainer.max_steps=2000"]}]
    runs = [a_run(tmp_path / "0", 1.0), a_run(tmp_path / "1", 2.0, "trainer.max_steps=1500", resumed=again)]
    assert [line[0] for line in rows(runs)[1:]] == ["", "`2000`"]


def test_the_file_has_a_line_for_each_run_and_all_digits(tmp_path: Path) -> None:
    runs = [
        a_run(tmp_path / "0", 1 / 3, "data.path='a,\"b\".txt'", "seed=1", "trainer.threads=1"),
        a_run(tmp_path / "1", math.nan, "data.path=c.txt", "seed=2", "trainer.threads=1", status="failed"),
    ]
    first, second = csv.DictReader(io.StringIO(csv_of(results_in(runs))))
    assert first["folder"] == "0"
    assert (first["data.path"], first["seed"], first["status"]) == ('a,"b".txt', "1", "finished")
    assert float(first["loss_val"]) == 1 / 3
    assert float(first["to_counted_5_gram"]) == 1 / 3 - 1.75
    assert (first["best_step"], first["text"]) == ("1000", "one")
    assert (second["status"], second["loss_val"], second["to_counted_5_gram"]) == ("failed", "", "")
    assert "trainer.threads" not in first


def test_runs_on_different_texts_or_parts_do_not_stand_in_one_table(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "0", 1.0), a_run(tmp_path / "1", 2.0, corpus={"sha256": "two"})]
    other = a_run(tmp_path / "2", 2.0, baselines={"1": 3.0, "5": 1.8})
    failed = a_run(tmp_path / "3", 2.0, corpus={"sha256": "two"}, status="failed")  # which shows no loss
    for pair in (runs, [runs[0], other]):
        with pytest.raises(UserError, match="different texts or validation parts"):
            table_of(results_in(pair))
        assert len(csv_of(results_in(pair)).splitlines()) == 3  # where each line speaks for itself
    assert len(rows([runs[0], failed])) == 2


@pytest.mark.parametrize(
    "spoilt", ["{", "[]", "{}", '{"status": "finished"}', '{"status": "finished", "overrides": 3, "resumed": []}']
)
def test_a_folder_that_holds_no_run_is_refused(tmp_path: Path, spoilt: str) -> None:
    (tmp_path / "run").mkdir()
    refused(script("docs/sweep_table.py", "run", cwd=tmp_path), "run holds no finished run, or a damaged one")
    (tmp_path / "run" / "summary.json").write_text(spoilt)
    refused(script("docs/sweep_table.py", "run", cwd=tmp_path), "run holds no finished run, or a damaged one")


@pytest.mark.parametrize("key", [*results.FIGURES, "model", "corpus", "baselines", "overrides", "resumed"])
@pytest.mark.parametrize("value", [None, [3], {"step": "1"}, 10**400], ids=["none", "list", "object", "huge"])
def test_a_summary_with_a_value_of_another_kind_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    if (key, value) == ("loss_val", None):
        pytest.skip("so a run ends that has no finite loss")
    with pytest.raises(UserError, match="damaged"):
        results_in([a_run(tmp_path / "run", 1.0, **{key: value})])


def test_the_script_shows_the_same_of_any_folders(tmp_path: Path) -> None:
    folders = [a_run(tmp_path / name, 1.0, f"seed={name}") for name in "12"]
    (tmp_path / "multirun.yaml").touch()
    shown = script("docs/sweep_table.py", *map(str, folders), "multirun.yaml", cwd=tmp_path)
    assert shown.stdout == table_of(results_in(folders))
    assert script("docs/sweep_table.py", "--csv", "1", "2", cwd=tmp_path).stdout == csv_of(results_in(folders))
    assert changed_keys(results_in(folders)) == ["seed"]
    refused(script("docs/sweep_table.py", cwd=tmp_path), "name the folders")
    refused(script("docs/sweep_table.py", ".", cwd=tmp_path), "has some in it: name one, such as 1")
