"""The preset rloo beside trl's RLOOTrainer: the same advantages, and on policy the same gradient."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

if find_spec("trl") is None:
    pytest.skip("trl is not installed", allow_module_level=True)

from recorded import by_token, fixed_batch, largest, ours, switches_of, theirs, with_current_as_old
from trl import RLOOConfig, RLOOTrainer

from grpo_ablate.spec.resolve import preset_switches

RLOO = (RLOOTrainer, RLOOConfig)


@pytest.mark.parametrize("beta", [0.0, 0.2])
@pytest.mark.parametrize("seed", [1, 2])
def test_leave_one_out_advantages_with_the_kl_in_the_reward_are_trl_s(seed, beta):
    entries = fixed_batch(seed)
    entries[5]["reward"] = None
    found = ours(entries, switches_of(preset_switches("rloo", "test"), {"kl": {"beta": beta}}))
    expected = theirs(entries, {"use_vllm": True, "beta": beta}, kinds=RLOO)
    assert largest(found.advantages, by_token(expected.advantages, entries)) < 1e-5


@pytest.mark.parametrize("seed", [1, 2])
def test_on_policy_the_gradient_is_trl_s_and_after_it_the_ratio_of_the_response_comes_in(seed):
    entries, switches = fixed_batch(seed), switches_of(preset_switches("rloo", "test"), {"kl": {"beta": 0.2}})
    arguments = {"use_vllm": True, "beta": 0.2}
    first = with_current_as_old(entries)
    found, expected = ours(first, switches), theirs(first, arguments, kinds=RLOO)
    assert max(map(abs, expected.gradient[0])) > 1e-3
    assert largest(found.gradient, expected.gradient) < 1e-5
    assert largest(ours(entries, switches).gradient, theirs(entries, arguments, kinds=RLOO).gradient) > 1e-3
