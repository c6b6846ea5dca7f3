"""Switches that cannot act are named with the reason, and rows that differ only by them train once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_ablate.spec.plan import as_text, plan
from grpo_ablate.spec.resolve import load_experiment

Write = Callable[..., Path]


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ({"update": {"clip_high": 0.28}}, "update.clip_high"),
        ({"update": {"dual_clip": 3}}, "update.dual_clip"),
        ({"kl": {"estimator": "k1"}}, "kl.estimator"),
        ({"kl": {"place": "reward-before"}}, "kl.place"),
        ({"kl": {"refresh_reference": 5}}, "kl.refresh_reference"),
        ({"update": {"reduction": "token-mean"}}, "update.reduction"),
        ({"sampling": {"max_resample": 7}}, "sampling.max_resample"),
        ({"advantage": {"eps_inside": True}}, "advantage.eps_inside"),
        ({"advantage": {"ema_decay": 0.5}}, "advantage.ema_decay"),
        ({"reward": {"power": 4}}, "reward.power"),
        ({"reward": {"overlong_buffer": 4}}, "reward.overlong_buffer"),
        ({"optimizer": {"betas": [0.9, 0.95]}}, "optimizer.betas"),
        ({"update": {"reduction": "token-mean", "constant": 5}}, "update.constant"),
        ({"update": {"mismatch": "mask"}}, "update.mismatch"),
        ({"kl": {"beta": 0.1, "estimator": "exact", "place": "reward-before"}}, "kl.beta"),
    ],
)
def test_a_switch_that_cannot_act_makes_a_twin(write: Write, row: dict[str, Any], key: str) -> None:
    base, twin = load_experiment(write({"rows": {"base": {}, "twin": row}})).rows
    assert key in {i.key for i in twin.inert}
    assert twin.hash == base.hash


@pytest.mark.parametrize(
    "row",
    [
        {"update": {"clip_high": 0.28, "inner_passes": 2}},
        {"update": {"clip_high": 0.28, "minibatches": 2}},
        {"update": {"clip_high": 0.28, "staleness": 1}},
        {"update": {"surrogate": "reinforce"}},
        {"kl": {"beta": 0.1}},
        {"kl": {"beta": 0.1, "gradient": "ratio"}},
        {"kl": {"beta": 0.1, "estimator": "exact", "place": "reward-after"}},
        {"advantage": {"scale": "batch-std"}, "kl": {"beta": 0.1, "estimator": "exact", "place": "reward-before"}},
        {"update": {"surrogate": "reinforce", "inner_passes": 4, "log_ratio_clamp": 0.01}},
        {"advantage": {"ddof": 1}},
        {"advantage": {"eps": 1e-8, "eps_inside": True}},
        {"sampling": {"dynamic": "drop"}},
        {"optimizer": {"name": "adamw", "betas": [0.9, 0.95]}},
    ],
)
def test_a_switch_that_can_act_makes_no_twin(write: Write, row: dict[str, Any]) -> None:
    base, other = load_experiment(write({"rows": {"base": {}, "other": row}})).rows
    assert other.hash != base.hash


def test_gradient_variants_differ_in_the_loss_only(write: Write) -> None:
    def row(place: str, gradient: str) -> dict[str, Any]:
        return {"kl": {"beta": 0.1, "place": place, "gradient": gradient}}

    rows = {
        f"{place}-{gradient}": row(place, gradient)
        for place in ("loss", "reward-before", "reward-after")
        for gradient in ("pathwise", "ratio", "score-function")
    }
    found = {r.id: r.hash for r in load_experiment(write({"rows": {"base": {}, **rows}})).rows}
    assert len({found[f"loss-{g}"] for g in ("pathwise", "ratio", "score-function")}) == 3
    assert len({found[f"reward-before-{g}"] for g in ("pathwise", "ratio", "score-function")}) == 1
    assert len({found[f"reward-after-{g}"] for g in ("pathwise", "ratio", "score-function")}) == 1


def test_plan_names_the_twin_and_the_reason_and_counts_its_jobs_once(write: Write, tmp_path: Path) -> None:
    experiment = load_experiment(write({"rows": {"base": {}, "wide": {"update": {"clip_high": 0.28}}}}))
    found = plan(experiment, tmp_path)
    assert (found.jobs, found.jobs_to_run, found.seconds) == (2 + 4, 2 + 4, None)  # the row, and two controls
    text = as_text([found])
    assert "twin of base" in text
    assert "wide: update.clip_high 0.28 cannot act: with one optimiser step per round every ratio" in text
    assert "time: unknown" in text
    # 80 rollouts x 8 seeds, of the row and its two controls; the twin is not counted
    assert "1,920 rollouts in 6 jobs; 0 done, 6 to run" in text


def test_plan_shows_the_budget_arithmetic(write: Write, tmp_path: Path) -> None:
    row = {"update": {"inner_passes": 3, "minibatches": 2}}
    found = plan(load_experiment(write({"rows": {"base": row}})), tmp_path).rows[0]
    assert (found.prompts, found.group_size, found.rounds, found.updates) == (2, 4, 10, 60)
    assert (found.rollouts, found.tokens, found.jobs) == (80, 80, 2)


def test_notes_state_the_step_size_that_a_switch_changes_on_the_side(write: Write) -> None:
    rows = {
        "base": {},
        "ddof": {"advantage": {"ddof": 1}},
        "loo": {"advantage": {"baseline": "leave-one-out", "scale": "none"}},
        "loo-std": {"advantage": {"baseline": "leave-one-out", "scale": "leave-one-out-std"}},
    }
    experiment = load_experiment(write({"rows": rows}))
    assert "sqrt((G-1)/G) = 0.8660 at G = 4" in experiment.row("ddof").notes[0]
    assert "G/(G-1) = 1.3333 at G = 4" in experiment.row("loo").notes[0]
    assert experiment.row("loo-std").notes == ()  # each response has a divisor of its own
    assert experiment.row("base").notes == ()
