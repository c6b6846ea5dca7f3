"""Advantage functions of the user's own: what they get, what they may return, and that they never mix members."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from grpo_ablate.algorithm.advantages import normalise
from grpo_ablate.cli import main
from grpo_ablate.errors import UserError
from grpo_ablate.spec.schema import Advantage

Own = Callable[[str], Advantage]
NAN = torch.nan


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Own:
    """Return a function that makes the settings of an advantage function with this body."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    made = iter(range(100))

    def make(body: str) -> Advantage:
        name = f"advantage_{tmp_path.name}_{next(made)}".replace("-", "_")
        Path(f"{name}.py").write_text(
            f"import torch\n\nSEEN = []\n\ndef function(rewards, present):\n    {body}\n"
        )
        return Advantage(function=f"{name}:function")

    return make


def values(*members: list[list[float]]) -> torch.Tensor:
    return torch.tensor(members, dtype=torch.float64)


def test_the_worked_example_is_what_its_formula_says() -> None:
    """A_i = r_i minus the median of the group, by hand."""
    settings = Advantage(function="examples.own_functions:against_the_median")
    rewards = values([[0.0, 1.0, 5.0], [2.0, 2.0, 8.0]])
    expected = values([[-1.0, 0.0, 4.0], [0.0, 0.0, 6.0]])
    assert torch.equal(normalise(rewards, rewards >= 0, settings), expected)


def test_the_mean_only_function_equals_the_switch(own: Own) -> None:
    settings = own("return rewards - rewards.nanmean(-1, keepdim=True)")
    rewards = torch.rand(3, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    member = torch.rand(3, 5, 8, generator=torch.Generator().manual_seed(1)) < 0.7
    builtin = normalise(rewards, member, Advantage(scale="none"))
    torch.testing.assert_close(normalise(rewards, member, settings), builtin, rtol=0, atol=1e-15)


def test_missing_rewards_reach_it_as_nan_and_get_no_advantage(own: Own) -> None:
    settings = own(
        "assert rewards.isnan().equal(~present)\n    return torch.where(present, rewards - 0.5, torch.inf)"
    )
    rewards, member = values([[1.0, 0.0, 7.0]]), torch.tensor([[[True, True, False]]])
    assert torch.equal(normalise(rewards, member, settings), values([[0.5, -0.5, 0.0]]))


def test_members_never_meet_and_arguments_are_copies(own: Own) -> None:
    settings = own(
        "SEEN.append(rewards.shape); rewards += 100; present[:] = False; return rewards - rewards.mean()"
    )
    rewards = values([[1.0, 3.0]], [[10.0, 30.0]])
    member = torch.ones(2, 1, 2, dtype=torch.bool)
    assert torch.equal(normalise(rewards, member, settings), values([[-1.0, 1.0]], [[-10.0, 10.0]]))
    assert torch.equal(rewards, values([[1.0, 3.0]], [[10.0, 30.0]])) and member.all()
    assert sys.modules[settings.function.partition(":")[0]].SEEN == [(1, 2), (1, 2)]


@pytest.mark.parametrize(
    ("body", "returned"),
    [
        ("return rewards.mean(-1)", r"the shape \[1\]"),
        ("return rewards.tolist()", "a list"),
        ("pass", "a NoneType"),
    ],
)
def test_anything_but_an_advantage_for_each_reward_is_refused(own: Own, body: str, returned: str) -> None:
    rewards = values([[1.0, 3.0]])
    with pytest.raises(UserError, match=rf"^advantage\.function: '.*' returned {returned}, expected a tensor"):
        normalise(rewards, rewards >= 0, own(body))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("raise KeyError('oh')", "failed: KeyError: 'oh'."),
        (
            "return (rewards - rewards.mean()) / rewards.std(correction=0)",
            "made of finite rewards what is not finite.",
        ),
    ],
)
def test_what_fails_or_divides_by_nothing_is_refused(own: Own, body: str, sentence: str) -> None:
    rewards = values([[2.0, 2.0]])
    with pytest.raises(UserError) as caught:
        normalise(rewards, rewards >= 0, own(body))
    assert str(caught.value).startswith("advantage.function: '") and sentence in str(caught.value)


def test_float32_results_are_taken_as_float64(own: Own) -> None:
    rewards = values([[1.0, 3.0]])
    found = normalise(rewards, rewards >= 0, own("return (rewards - 2).float()"))
    assert found.dtype == torch.float64 and torch.equal(found, values([[-1.0, 1.0]]))


def test_explain_takes_an_own_function(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Rewards 0, 1, 5 about their median 1; a response's weight is 1/3, and d(-w A u)/d logp = -w A at ratio 1."""
    batch = [{"group": "a", "reward": reward, "logp": [-1.0]} for reward in (0.0, 1.0, 5.0)]
    (tmp_path / "batch.json").write_text(json.dumps(batch))
    own = "advantage.function=examples.own_functions:against_the_median"
    with pytest.raises(SystemExit) as ended:
        main(["explain", str(tmp_path / "batch.json"), "--set", own, "--json"])
    assert not ended.value.code
    found = json.loads(capsys.readouterr().out)
    assert found["advantages"] == [[-1.0], [0.0], [4.0]]
    assert [gradient for (gradient,) in found["grad"]] == pytest.approx([1 / 3, 0.0, -4 / 3])
    with pytest.raises(SystemExit):
        main(["explain", str(tmp_path / "batch.json"), "--set", own])
    assert "examples.own_functions:against_the_median; clip 0.2/0.2; sequence-mean" in capsys.readouterr().out
