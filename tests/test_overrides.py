"""Overrides: everything wrong is found at once, and free text passes letter for letter."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from configs.command_line import CONFIGS
from configs.overrides import OverrideReader, override_of, yaml_groups
from configs.schema import SampleConfig, TrainConfig

TRAIN = OverrideReader(TrainConfig, yaml_groups(CONFIGS), sweeping=False)
SWEEP = OverrideReader(TrainConfig, yaml_groups(CONFIGS), sweeping=True)
SAMPLE = OverrideReader(SampleConfig, {}, sweeping=False)

REFUSED = {
    "learning_rat=1": "there is no option learning_rat: did you mean optimizer.lr?",
    "+learning_rat=1": "there is no option learning_rat: did you mean optimizer.lr?",
    "++learning_rat=1": "did you mean optimizer.lr?",
    "block_size=8": "did you mean model.block_size?",
    "max_iters=8": "did you mean trainer.max_steps?",
    "model.block_sise=8": "did you mean model.block_size?",
    "modle=gpt": "did you mean model?",
    "+model.block_size=8": "write it without +",
    "~model.block_size": "options are set, not removed",
    "model=gpt2": "model=gpt2 is not one of average, bigram, gpt, head, multihead",
    "zzzzzz=1": "--help lists the options",
    "gpt": "write KEY=VALUE",
    "=3": "there is no option",
    "seed=1,2": "add -m",
    "trainer.max_steps=1e3": "it must be a whole number; write 1000",
    "trainer.max_steps=1.5": "it must be a whole number",
    "trainer.max_steps=true": "it must be a whole number",
    "trainer.max_steps=": "it must be a whole number",
    "optimizer.lr=abc": "it must be a number",
    "trainer.compile=maybe": "it must be true or false",
    "data.urls=x": "it must be a list",
    "model.n_layer=null": "it must be a whole number",
    "hydra.rundir=x": "did you mean hydra.run?",
    "+hydra.rundir=x": "did you mean hydra.run?",
    "++hydra.run.dirr=x": "did you mean hydra.run.dir?",
    "trainer.device=(x": "put quotes around the value",
    "hydra.output_subdir=../x": "is not yours to set",
    "hydra.mode=MULTIRUN": "-m makes a sweep",
    "model=null": "model=null is not one of",
    "+model=gpt": "write it without +",
}  # fmt: skip


@pytest.mark.parametrize("override", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(override: str) -> None:
    good, (problem,) = TRAIN.read([override])
    assert good == []
    assert REFUSED[override] in problem


def test_every_problem_is_reported_and_the_rest_is_kept() -> None:
    good, found = TRAIN.read([*REFUSED, "model=head"])
    assert good == ["model=head"]
    assert len(found) == len(REFUSED)


ACCEPTED = [
    "optimizer.lr=1e-3", "optimizer.lr=1", "model.n_layer=2", "trainer.compile=true", "model=gpt", "experiment=textbook",
    "trainer.max_minutes=null", "hydra.run.dir=x", "+hydra.job.env_set.A=1", "hydra.verbose=true", "hydra/launcher=basic",
    "hydra.sweeper.max_batch_size=2", "hydra.launcher.n_jobs=2", "trainer.device='${oc.env:DEVICE}'",
]  # fmt: skip


@pytest.mark.parametrize("override", ACCEPTED)
def test_what_can_be_honoured_passes_as_it_is(override: str) -> None:
    assert TRAIN.read([override]) == ([override], [])


def test_every_value_of_a_sweep_is_checked() -> None:
    good, found = SWEEP.read(["model=gpt,gtp", "seed=1,x", "model.n_layer=range(1,3)", "optimizer.lr=interval(0,1)"])
    assert good == ["model.n_layer=range(1,3)", "optimizer.lr=interval(0,1)"]
    assert found[0].startswith("model=gtp is not one of")
    assert found[1].startswith("seed=x is refused")


def _prompt_of(argument: str) -> str:
    """The prompt that sample.py would see."""
    (override,), found = SAMPLE.read([argument])
    assert found == []
    config = OmegaConf.structured(SampleConfig)
    OmegaConf.update(config, "prompt", OverridesParser.create().parse_override(override).value())
    return str(config.prompt)


LINES = [
    "What's here?", "O Romeo, Romeo! wherefore art thou Romeo?", "a=b", "(hi)", "{hi}", "[hi]", "日本", "é “x” 🙂", "a\nb",
    "ROMEO:", "'Tis true, 'tis", '"Speak," said "he"', "${x}", "$5 and \\${y}", " leading and trailing ", "a#1", "50%",
    "\\n stays two letters here", "back\\", "don\\'t", "C:\\new\\t.txt", "~x", "a,b", "1", "true", "null!", "",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_any_line_can_be_a_prompt(line: str) -> None:
    assert _prompt_of(f"prompt={line}") == line


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")) | st.text("\\${}'\"ab, "))
def test_any_text_passes_letter_for_letter(text: str) -> None:
    if text[:1] not in ("'", '"') and text != "null":
        assert _prompt_of(f"prompt={text}") == text


def test_a_quoted_value_means_what_is_between_the_quotes() -> None:
    assert _prompt_of("prompt='O Romeo, Romeo'") == "O Romeo, Romeo"
    assert _prompt_of('prompt="a=b"') == "a=b"


def test_paths_need_no_quotes() -> None:
    for path in ("my texts/é=1#2.txt", "/home/me/a,b", "C:\\new\\t.txt"):
        assert TRAIN.read([f"data.path={path}"]) == ([override_of("data.path", path)], [])


def test_null_is_nothing() -> None:
    assert TRAIN.read(["data.path=null"]) == (["data.path=null"], [])
