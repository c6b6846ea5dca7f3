"""A row and what trains in its stead come out the same: parameters and every measurement."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from data_files import write_lines
from tiny_model import save_tiny

from grpo_ablate.runs.train import run_in_memory
from grpo_ablate.spec.identity import replace
from grpo_ablate.spec.inert import RULES, neutralised
from grpo_ablate.spec.resolve import find_row
from grpo_ablate.spec.schema import Spec

# Regimes in which a switch might act after all: several steps, old samples, filters, KL everywhere, other moments.
REGIMES: dict[str, dict[str, dict[str, Any]]] = {
    "plain": {},
    "several-steps": {"update": {"inner_passes": 2, "minibatches": 2}},
    "stale": {"update": {"staleness": 1}},
    "no-kl": {"kl": {"beta": 0.0}},
    "kl-before": {"kl": {"beta": 0.3, "place": "reward-before", "estimator": "exact"}},
    "kl-before-batch": {
        "kl": {"beta": 0.3, "place": "reward-before", "estimator": "exact"},
        "advantage": {"scale": "batch-std"},
    },
    "kl-ratio": {
        "kl": {"beta": 0.3, "gradient": "ratio", "estimator": "k3"},
        "update": {"inner_passes": 3, "surrogate": "reinforce"},
    },
    "resample": {"sampling": {"dynamic": "resample", "prompt_order": "iid"}},
    "adamw": {"optimizer": {"name": "adamw"}, "advantage": {"scale": "none"}},
    "own-advantage": {"advantage": {"function": "examples.own_functions:against_the_median"}},
}
SETTINGS: dict[str, Any] = {
    "reward.scale": 3.0, "reward.shift": 2.0, "reward.scale_low": 0.25, "reward.scale_high": 4.0,
    "reward.shift_low": -3.0, "reward.shift_high": 3.0, "reward.power": 2.0, "reward.clip_low": 0.2,
    "reward.clip_high": 0.6, "reward.noise_std": 0.5, "reward.constant": 2.0, "reward.overlong_buffer": 1,
    "reward.masked_in_baseline": False, "reward.masked_in_denominator": False, "sampling.engine": "vllm",
    "sampling.filter_on": "quality", "sampling.max_resample": 1, "sampling.on_exhausted": "fail",
    "advantage.constant": 0.5, "advantage.ema_decay": 0.5, "advantage.ema_initial": 0.5, "advantage.ddof": 1,
    "advantage.eps": 0.1, "advantage.eps_inside": True, "kl.estimator": "k1", "kl.gradient": "score-function",
    "kl.place": "reward-after", "kl.refresh_reference": 2, "kl.beta": 0.2, "update.clip_low": 0.01,
    "update.clip_high": 0.01, "update.dual_clip": 1.01, "update.tau_pos": 3.0, "update.tau_neg": 3.0,
    "update.log_ratio_clamp": 0.01, "update.reduction": "token-mean", "update.constant": 1,
    "update.mismatch": "truncate", "update.mismatch_level": "sequence", "update.mismatch_cap": 1.0,
    "optimizer.betas": [0.5, 0.6], "evaluation.final_evaluations": 2, "reward.model": "scorer",
    "reward.model_digest": "0" * 16, "reward.model_dtype": "bfloat16", "reward.refresh_model": 1,
    "reward.refresh_steps": 2, "reward.refresh_learning_rate": 0.1, "advantage.baseline": "leave-one-out",
    "advantage.scale": "batch-std",
}  # fmt: skip
# Of tasks in words, for a pretrained model: the task, and what is said beside it to no effect.
TEXTS: dict[str, tuple[dict[str, Any], Any]] = {
    "task.pattern": ({"name": "jsonl", "verifier": "exact"}, "[0-9]"),
    "task.tolerance": ({"name": "jsonl", "verifier": "exact"}, 0.5),
    "task.held_out_share": ({"name": "jsonl", "verifier": "numeric", "held_out_path": "others.jsonl"}, 0.4),
    "task.shots": ({"name": "reasoning-gym", "dataset": "chain_sum", "form": "chat", "held_out": 2}, 2),
    "policy.vllm": ({"name": "addition", "form": "chat", "held_out": 2}, {"gpu_memory_utilization": 0.5}),
}


def short(spec: Spec) -> Spec:
    return replace(spec, {"budget": {"rollouts": 6 * spec.rollouts_per_round}, "evaluation": {"every": 3}})


@pytest.mark.parametrize("regime", REGIMES)
def test_a_switch_called_inert_changes_no_parameter_and_no_measurement(regime: str) -> None:
    base = short(replace(find_row("experiments/selection.yaml:identity--group-std")[1].spec, REGIMES[regime]))
    assert set(itertools.chain.from_iterable(rule.keys for rule in RULES)) <= {*SETTINGS, *TEXTS}
    tested = 0
    for key, value in SETTINGS.items():
        section, name = key.split(".")
        stated = replace(base, {section: {name: value}})
        effective, inert = neutralised(stated)
        if key not in {item.key for item in inert}:
            continue
        tested += 1
        one, other = (run_in_memory(spec, range(3)) for spec in (stated, effective))
        rounding = 1e-12 if regime == "kl-before" else 0.0  # a constant that the mean removes leaves its rounding
        if regime == "kl-before":  # its twin has beta 0, where the sampled KL is not measured, and other rewards
            for metric in ("train/kl_reference", "train/kl_reference_exact", "train/reward_shaped"):
                one.pop(metric, None), other.pop(metric, None)
        assert set(one) == set(other)
        for metric in one:
            assert one[metric] == pytest.approx(other[metric], rel=rounding, abs=rounding, nan_ok=True), (
                key,
                metric,
            )
    assert tested >= 10


@pytest.mark.parametrize("key", TEXTS)
def test_a_switch_of_texts_called_inert_changes_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    save_tiny(Path("model"))
    for file, first in (("rows.jsonl", 0), ("others.jsonl", 20)):
        rows = [{"question": f"{n} + 1", "answer": str(n + 1)} for n in range(first, first + 20)]
        write_lines(Path(file), rows)
    task, value = TEXTS[key]
    if task["name"] == "jsonl":
        task = {**task, "path": "rows.jsonl"}
    base = Spec.model_validate(
        {
            "task": task,
            "policy": {"name": "huggingface", "model": "model", "device": "cpu"},
            "reward": {"transform": "random"},
            "evaluation": {"samples": 2},
            "sampling": {"prompts": 2, "group_size": 2, "max_tokens": 3},
            "budget": {"rollouts": 8},
        }
    )
    section, name = key.split(".")
    stated = replace(base, {section: {name: value}})
    effective, inert = neutralised(stated)
    assert key in {item.key for item in inert} and effective != stated
    one, other = (run_in_memory(spec, range(3, 4)) for spec in (stated, effective))
    assert one["train/gradient_norm"][0] > 0
    assert str(one) == str(other)  # NaN stands for nothing measured


def test_the_shipped_experiments_state_what_they_train(tmp_path: Path) -> None:
    """The reference row's own inert switches, too, change nothing."""
    for row in ("ddof-1", "affine--mean-only", "leave-one-out"):
        found = find_row(f"experiments/selection.yaml:{row}")[1]
        assert run_in_memory(short(found.spec), range(2)) == run_in_memory(short(found.effective), range(2))
