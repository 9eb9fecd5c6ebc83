"""Print runs as the table that ends a sweep: what was changed, and what it came to over all seeds.

python docs/sweep_table.py runs/SWEEP
python docs/sweep_table.py runs/SWEEP runs/NAME        together with other runs on the same text
python docs/sweep_table.py --csv runs/SWEEP            a line for each run, all figures in full
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.command_line import run_script
from configs.schema import UserError
from training.results import csv_of, results_in, table_of


def main(arguments: list[str]) -> None:
    names = [name for name in arguments if name != "--csv"]
    if unknown := [name for name in names if name.startswith("-")]:
        raise UserError(f"there is no option {unknown[0]}: there is --csv")
    folders = [Path(name) for name in names if not Path(name).is_file()]  # a sweep has files beside its runs
    if not folders:
        raise UserError("name the folders of the runs that belong in the table, or of their sweep")
    results = results_in(folders)
    print(table_of(results) if names == arguments else csv_of(results), end="")


if __name__ == "__main__":
    run_script(main, __doc__)
