"""The house: scripts stand on sampling and training, these on model and data, these on the schema; nothing looks upwards."""

import ast
from pathlib import Path

import pytest

from tests.scripts import ROOT

MAY_IMPORT = {
    "configs": {"configs"},
    "data": {"data", "configs.schema", "configs.json_file"},
    "model": {"model", "configs.schema"},
    "training": {
        "training",
        "model",
        "data",
        "configs.schema",
        "configs.checks",
        "configs.overrides",
        "configs.json_file",
        "configs.launch",
        "configs.sweeping",
        "configs.terminal",
    },
    "sampling": {"sampling", "training", "model", "data", "configs.schema", "configs.checks"},
}
OURS = (
    "configs",
    "data",
    "model",
    "training",
    "sampling",
    "train",
    "sample",
    "evaluate",
    "tests",
    "benchmarks",
    "docs",
)


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module}
    return found


@pytest.mark.parametrize("floor", MAY_IMPORT)
def test_nothing_looks_upwards(floor: str) -> None:
    for path in (ROOT / floor).glob("*.py"):
        for name in imports(path):
            if name.split(".")[0] in OURS:
                assert name in MAY_IMPORT[floor] or name.split(".")[0] in MAY_IMPORT[floor], (
                    f"{path.name} imports {name}"
                )
            if floor == "configs":
                assert name.split(".")[0] not in ("torch", "tensorboard"), f"{path.name} imports {name}"


def test_every_file_can_be_read_in_one_sitting() -> None:
    for folder in (*MAY_IMPORT, "."):
        for path in (ROOT / folder).glob("*.py"):
            assert len(path.read_text(encoding="utf-8").splitlines()) <= 300, path.name
