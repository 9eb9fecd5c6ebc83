"""Devices and precisions: what is here works, what is not is refused by name, and fallbacks are said."""

import logging
import os
import platform
import resource
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn

from configs.schema import TrainConfig, TrainerConfig, UserError
from data.corpus import Corpus
from model.attention import MultiHeadAttention
from tests.scripts import SMALL, process, refused, script
from training.device import choose_device, choose_setup, compiled, torch_errors_in_words
from training.run import Run

HAS_CUDA = torch.cuda.is_available()


def test_auto_finds_a_device_and_says_why() -> None:
    setup = choose_setup(TrainerConfig(threads=1))
    assert setup.device.type in ("cpu", "cuda", "mps")
    for word in (f"device {setup.device}", "precision", f"attention {setup.attention_path} (", "threads 1 (as asked)"):
        assert word in setup.reasons
    assert torch.get_num_threads() == 1


def test_threads_are_those_asked_for_or_the_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)), raising=False)
    for share, threads, reason in (
        ("2", 2, "OMP_NUM_THREADS; there are 4 cores"),
        ("16", 4, "one for each core of this process"),
        ("", 4, "one for each core of this process"),
        ("2,1", 4, "one for each core of this process"),
        ("0", 4, "one for each core of this process"),
    ):
        monkeypatch.setenv("OMP_NUM_THREADS", share)
        setup = choose_setup(TrainerConfig(device="cpu"))
        assert setup.threads == torch.get_num_threads() == threads
        assert f"threads {threads} ({reason})" in setup.reasons
    assert choose_setup(TrainerConfig(device="cpu", threads=1)).threads == 1


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is another one")
def test_what_a_step_frees_is_there_for_the_next_step() -> None:
    choose_setup(TrainerConfig(device="cpu", threads=1))

    def step() -> None:
        kept = [torch.ones(500_000) for _ in range(10)]
        assert len(kept) == 10

    step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        step()
    given_out = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert given_out < 2000  # pages; without it, 20 steps take some 100,000 from the system anew


@pytest.mark.parametrize("name", ["gpu", "cpu:x", "cpu:", "cpu:0", "", "cuda:-1", "cuda:x", "cuda:²"])
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"device={name} is no device"):
        choose_device(name, "device")


@pytest.mark.skipif(HAS_CUDA, reason="a GPU is here")
def test_a_gpu_that_is_not_here_is_refused(tmp_path: Path) -> None:
    for name in ("cuda", "cuda:3"):
        with pytest.raises(UserError, match=f"device={name}: torch finds no CUDA GPU here. Use device=auto"):
            choose_device(name, "device")
    refused(
        script("train.py", *SMALL, "trainer.device=cuda", cwd=tmp_path),
        "trainer.device=cuda: torch finds no CUDA GPU here. Use trainer.device=auto",
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not HAS_CUDA, reason="no GPU is here")
def test_training_on_a_gpu_comes_near_training_on_the_cpu(tmp_path: Path) -> None:
    losses = []
    for device in ("cpu", "cuda"):
        options = (f"trainer.device={device}", "trainer.precision=float32", f"hydra.run.dir={device}")
        result = script("train.py", *SMALL, *options, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        losses.append(torch.load(tmp_path / device / "last.pt", weights_only=True)["best"]["loss_val"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)
    assert process("sample.py", "checkpoint=cuda", "device=cpu", cwd=tmp_path, CUDA_VISIBLE_DEVICES="").returncode == 0


@pytest.mark.skipif(not HAS_CUDA, reason="no GPU is here")
def test_a_gpu_gives_the_same_bits_when_asked(tmp_path: Path) -> None:
    weights = []
    for number in (1, 2):
        options = ("trainer.device=cuda", "trainer.deterministic=true", "model.dropout=0.2", f"hydra.run.dir={number}")
        result = process("train.py", *SMALL, *options, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert "deterministic kernels only, as asked" in result.stderr
        weights.append(torch.load(tmp_path / str(number) / "last.pt", weights_only=True)["model"])
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name])


@pytest.mark.skipif(not HAS_CUDA, reason="no GPU is here")
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_gpu_goes_on_in_half_precision_with_muon_and_n_grams_left_out(tmp_path: Path, precision: str) -> None:
    options = (
        "trainer.device=cuda", f"trainer.precision={precision}", "optimizer=muon", "optimizer.warmup_steps=5",
        "model.dropout=0.1", "model.n_gram_dropout=0.3", "hydra.run.dir=run",
    )  # fmt: skip
    result = script("train.py", *SMALL, *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    first = torch.load(tmp_path / "run" / "last.pt", weights_only=True)
    assert first["best"]["loss_val"] < 3
    result = script("train.py", "resume=run", "trainer.max_steps=30", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert torch.load(tmp_path / "run" / "last.pt", weights_only=True)["step"] == 30


def test_torch_is_asked_for_determinism_and_released_from_it() -> None:
    try:
        choose_setup(TrainerConfig(device="cpu", threads=1, deterministic=True))
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        with (
            pytest.raises(UserError, match=r"trainer\.deterministic=true cannot be honoured here: put_"),
            torch_errors_in_words(),
        ):
            raise RuntimeError(
                "put_ does not have a deterministic implementation, but you set ... You can turn off ..."
            )
    finally:
        choose_setup(TrainerConfig(device="cpu", threads=1))
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_cpu_gives_the_same_bits_with_and_without_asking(trained: Path, tmp_path: Path) -> None:
    options = ("trainer.sample_length=50", "trainer.deterministic=true", "hydra.run.dir=run")
    result = process("train.py", *SMALL, *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    first, second = (
        torch.load(folder / "last.pt", weights_only=True)["model"] for folder in (trained, tmp_path / "run")
    )
    for name, weight in first.items():
        assert torch.equal(weight, second[name])


def test_cpu_auto_is_exact() -> None:
    setup = choose_setup(TrainerConfig(device="cpu", threads=1))
    assert setup.precision == torch.float32


@pytest.mark.parametrize(
    ("precision", "instructions", "dropout", "asked", "taken"),
    [
        ("float32", True, 0.0, "auto", "fused"),
        ("bfloat16", False, 0.0, "auto", "fused"),
        ("bfloat16", True, 0.0, "auto", "plain"),
        ("bfloat16", True, 0.0, "fused", "fused"),
        ("float32", False, 0.0, "plain", "plain"),
        ("float32", False, 0.1, "auto", "plain"),
        ("float32", False, 0.1, "fused", "fused"),
    ],
)
def test_the_attention_path_is_the_faster_one_or_the_one_asked_for(
    precision: str, instructions: bool, dropout: float, asked: str, taken: str
) -> None:
    config = TrainerConfig(device="cpu", precision=precision, attention_path=asked, threads=1)
    with mock.patch("torch.cpu.get_capabilities", return_value={"avx512_bf16": instructions}):
        setup = choose_setup(config, dropout=dropout)
    assert setup.attention_path == taken
    assert f"attention {taken} (" in setup.reasons


def test_the_path_that_was_chosen_reaches_every_layer(
    small_config: TrainConfig, corpus: Corpus, tmp_path: Path
) -> None:
    for path in ("plain", "fused"):
        small_config.trainer.attention_path = path
        run = Run(small_config, corpus, tmp_path)
        layers = [module for module in run.model.modules() if isinstance(module, MultiHeadAttention)]
        assert [layer.path for layer in layers] == [path] * small_config.model.n_layer


def test_the_path_that_is_chosen_depends_on_the_dropout_of_the_model(
    small_config: TrainConfig, corpus: Corpus, tmp_path: Path
) -> None:
    small_config.model.dropout = 0.1
    assert Run(small_config, corpus, tmp_path).setup.attention_path == "plain"


def test_a_compiler_that_fails_is_said_and_the_model_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(3, 3)

    def fails(_: nn.Module) -> torch.Tensor:
        raise RuntimeError("\nno compiler found\nmore")

    state = torch.get_rng_state()
    with caplog.at_level(logging.WARNING):
        assert compiled(model, fails) is model
    assert "torch.compile failed here (no compiler found): going on without it" in caplog.text
    assert torch.equal(torch.get_rng_state(), state)


def test_a_compiled_model_shares_its_weights_under_their_own_names() -> None:
    model = nn.Linear(3, 3)
    fast = compiled(model, lambda network: network(torch.ones(3)).sum())
    assert fast is not model
    assert torch.allclose(fast(torch.ones(3)), model(torch.ones(3)))
    assert all(weight.grad is None for weight in model.parameters())
    assert set(model.state_dict()) == {"weight", "bias"}


@pytest.mark.slow
def test_without_a_compiler_a_run_says_so_and_goes_on(tmp_path: Path) -> None:
    broken = {"CXX": "/bin/false", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    result = process("train.py", *SMALL, "trainer.compile=true", cwd=tmp_path, **broken)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert "torch.compile failed here" in result.stderr
