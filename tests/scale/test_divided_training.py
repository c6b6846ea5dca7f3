"""Two processes that share a run's groups compute the gradients and metrics of one, whatever the shares are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from shares import NAMES, SHARES, cases, save_model, trained
from torch import Tensor

from grpo_ablate.parallel.policy import merged

Found = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny model in it."""
    found = tmp_path_factory.mktemp("divided")
    save_model(found / "model")
    return found


@pytest.fixture(scope="module")
def divided(folder: Path) -> list[dict[tuple[str, str], Found]]:
    """What each of two processes found, for every case and share."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = Path(__file__).with_name("shares.py")
    done = subprocess.run([*command, str(script), str(folder)], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Found]:
    """What one process computes with nothing of this in between."""
    return {name: trained(name, *case) for name, case in cases(folder / "model").items()}


def assert_close(first: Tensor, second: Tensor, what: str, tolerance: float = 1e-6) -> None:
    assert first.dtype == second.dtype and first.shape == second.shape, what
    first, second = first.double(), second.double()
    assert torch.equal(first.isnan(), second.isnan()), what
    gap = (first.nan_to_num() - second.nan_to_num()).abs()
    bound = tolerance * second.nan_to_num().abs().clamp(min=1.0)
    assert bool((gap <= bound).all()), f"{what}: {gap.max().item():.2e}"


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", NAMES)
def test_two_processes_compute_what_one_does(divided, alone, name: str, share: str) -> None:
    expected = alone[name]
    for rank in range(2):
        found = divided[rank][name, share]
        assert found["columns"].keys() == expected["columns"].keys()
        for column, values in expected["columns"].items():
            assert_close(found["columns"][column], values, column)
        for part in ("parameters", "state"):
            assert found[part].keys() == expected[part].keys()
            for key, values in expected[part].items():
                if not key.endswith(".sha256"):  # of bits, which rounding changes; the state has the numbers
                    assert_close(found[part][key], values, f"{part} {key}")
        assert len(found["gradients"]) == len(expected["gradients"]) > 0
        for step, (ours, theirs) in enumerate(zip(found["gradients"], expected["gradients"], strict=True)):
            assert_close(ours, theirs, f"gradient of step {step}")
        assert len(found["batches"]) == len(expected["batches"])
        for round, (ours, theirs) in enumerate(zip(found["batches"], expected["batches"], strict=True)):
            assert ours.keys() == theirs.keys()
            for key, values in theirs.items():
                assert_close(seen(ours[key], theirs), seen(values, theirs), f"round {round}: {key}")


def seen(values: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Return what is read of a batch's tensor: responses that exist, scored tokens; the rest may hold anything."""
    present = batch["present"]
    if values.shape[:4] == batch["token"].shape:
        present = batch["token"] & present[..., None]
    if values.shape[: present.dim()] != present.shape:
        return values
    return values.masked_fill(~present.reshape(*present.shape, *(1 for _ in values.shape[present.dim() :])), 0)


def test_both_processes_hold_the_same_bits(divided) -> None:
    for case, found in divided[0].items():
        other = divided[1][case]
        for part in ("parameters", "state", "columns"):
            for key, values in found[part].items():
                assert torch.equal(values.nan_to_num(), other[part][key].nan_to_num()), (case, part, key)
        assert all(map(torch.equal, found["gradients"], other["gradients"])), case


def test_the_cases_really_learn(alone) -> None:
    """An equality of zeros would prove nothing."""
    for name, found in alone.items():
        assert max(float(gradient.abs().max()) for gradient in found["gradients"]) > 1e-4, name
        assert found["columns"]["train/gradient_norm"].nan_to_num().max() > 1e-4, name


def test_the_rewards_that_should_be_missing_are(alone) -> None:
    column = alone["transformer: sequence ratio, batch statistics, missing rewards"]["columns"]
    assert column["train/reward_missing"].nan_to_num().sum() > 0


def test_parts_of_different_widths_are_put_together_slot_by_slot() -> None:
    first = torch.tensor([[True, False, True]]), {"x": torch.arange(6.0).reshape(1, 3, 2), "y": torch.ones(1, 3)}
    second = torch.tensor([[False, True, False]]), {"x": torch.full((1, 3, 3), 9.0), "y": torch.zeros(1, 3)}
    found = merged([first, None, second])
    assert found["x"].tolist() == [[[0, 1, 0], [9, 9, 9], [4, 5, 0]]]
    assert found["y"].tolist() == [[1, 0, 1]]
