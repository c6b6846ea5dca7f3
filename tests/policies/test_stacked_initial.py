"""Initial weights: their spread, and that a seed's are its own."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_ablate.policies.stacked.initial import initial_parameters
from grpo_ablate.rng import Keys
from grpo_ablate.spec.schema import StackedPolicy

SETTINGS = StackedPolicy(name="stacked", hidden=128, intermediate=512)


def test_matrices_are_scaled_by_their_inputs_and_norms_are_one() -> None:
    """Embedding .1; a matrix .5 over the root of its inputs: what comes out has half the size of what goes in."""
    found = initial_parameters(SETTINGS, 200, Keys(torch.tensor([3])))
    inputs = {"attention_in": 128, "attention_out": 64, "mlp_in": 128, "mlp_out": 512, "head": 128}
    for name, numbers in found.items():
        kind = name.split(".")[-1]
        if kind.endswith("norm"):
            assert (numbers == 1).all()
            continue
        expected = 0.1 if kind == "embedding" else 0.5 / math.sqrt(inputs[kind])
        assert float(numbers.std()) == pytest.approx(expected, rel=4 / math.sqrt(2 * numbers.numel()))
        assert abs(float(numbers.mean())) < 4 * expected / math.sqrt(numbers.numel())


def test_a_seed_starts_alike_whoever_stands_beside_it() -> None:
    alone, among = (initial_parameters(SETTINGS, 20, Keys(torch.tensor(seeds))) for seeds in ([5], [1, 5, 9]))
    for name, numbers in alone.items():
        assert torch.equal(numbers[0], among[name][1])
        assert name.endswith("norm") or not torch.equal(among[name][0], among[name][1])
