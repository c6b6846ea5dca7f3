"""The experiment of two trainers: its table, its refusals, its figure and its target."""

from __future__ import annotations

import importlib
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from scipy import stats

from grpo_ablate.analysis import figures
from grpo_ablate.analysis.figures import style
from grpo_ablate.analysis.figures.material import Material
from grpo_ablate.conform import table
from grpo_ablate.errors import UserError
from grpo_ablate.spec.resolve import load_conform_experiments, load_experiment, load_experiments

ROOT = Path(__file__).resolve().parents[2]
needs_trl = pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed")
TESTBED = {
    "description": "a tiny language model",
    "task": {"name": "arithmetic", "held_out": 16, "train_prompts": 32},
    "policy": {"name": "stacked", "hidden": 32, "layers": 1, "heads": 1, "kv_heads": 1, "intermediate": 32,
               "warmstart": {"steps": 20, "demonstrations": 64, "batch": 16}},
    "evaluation": {"every": 2, "samples": 2},
    "sampling": {"prompts": 4, "group_size": 4, "max_tokens": 12},
    "update": {"inner_passes": 2},
    "optimizer": {"name": "adamw", "learning_rate": 1e-3, "max_grad_norm": 1},
    "budget": {"rollouts": 80},
}  # fmt: skip
FILE = {
    "question": "Do they learn alike?",
    "testbed": "tongue",
    "baseline": "trl-1.16",
    "seeds": 2,
    "rows": {"trl-1.16": {"preset": "trl-1.16"}},
    "figures": ["trainers"],
}


def written(folder: Path, name: str = "conform-trl", **changes) -> Path:
    """Write a small experiment of two trainers, its file or its testbed changed."""
    (folder / "experiments/testbeds").mkdir(parents=True, exist_ok=True)
    testbed = TESTBED | {key: changes.pop(key) for key in list(changes) if key in TESTBED}
    (folder / "experiments/testbeds/tongue.yaml").write_text(yaml.safe_dump(testbed))
    path = folder / f"experiments/{name}.yaml"
    path.write_text(yaml.safe_dump(FILE | changes, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A project's folder with the table of a small experiment, and what was said on the way."""
    folder, said = tmp_path_factory.mktemp("conform"), []
    table.write_table(load_experiment(written(folder)), folder / "results", said.append)
    torch.set_flush_denormal(False)  # which training sets for the whole process
    return folder, said


@needs_trl
def test_the_table_has_a_line_per_trainer_seed_and_block(trained):
    folder, said = trained
    found = pd.read_parquet(folder / "results/tables/conform-trl-runs.parquet")
    pd.testing.assert_frame_equal(found, pd.read_csv(folder / "results/tables/conform-trl-runs.csv"))
    assert len(found) == 2 * 2 * 3
    assert found["trainer"].tolist() == ["grpo-ablate"] * 6 + ["trl"] * 6
    one = found[(found["trainer"] == "trl") & (found["seed"] == 1)]
    assert one["round"].tolist() == [2, 4, 5]  # the last block is shorter
    assert one["rollouts"].tolist() == [32, 64, 80] and one["updates"].tolist() == [4, 8, 10]
    assert found["train/reward_raw"].between(0, 1).all() and found["train/reward_raw"].nunique() > 2
    assert said[0] == "conform-trl: the warm start" and said[-1] == "conform-trl: trl-1.16, trl, seed 1"


@needs_trl
def test_ours_are_the_rewards_that_an_ordinary_run_records(trained):
    from grpo_ablate.algorithm.loop import Loop
    from grpo_ablate.policies.registry import make_policy
    from grpo_ablate.rng import Keys
    from grpo_ablate.runs.warmstart import load_start
    from grpo_ablate.tasks.registry import make_task

    folder, _ = trained
    spec = load_experiment(folder / "experiments/conform-trl.yaml").rows[0].effective
    task, keys = make_task(spec.task), Keys(torch.tensor([0, 1]), spec.sampling.random_key)
    begin = load_start(folder / "results", spec, range(2), "test")
    loop = Loop(spec, make_policy(spec, task, keys, begin.parameters), task, keys)
    loop.start()
    while not loop.finished:
        loop.advance()
    recorded = [line.values["train/reward_raw"] for line in loop.history.lines if line.round > 0]
    found = pd.read_parquet(folder / "results/tables/conform-trl-runs.parquet")
    ours = found[found["trainer"] == "grpo-ablate"].pivot(index="round", columns="seed", values="train/reward_raw")
    np.testing.assert_allclose(ours.to_numpy(), torch.stack(recorded).numpy(), rtol=0, atol=1e-12)


@needs_trl
def test_the_same_command_makes_the_same_table(trained, tmp_path):
    folder, _ = trained
    shutil.copytree(folder / "results/warmstarts", tmp_path / "results/warmstarts")
    said = []
    table.write_table(load_experiment(written(tmp_path)), tmp_path / "results", said.append)
    torch.set_flush_denormal(False)
    assert said[0] == "conform-trl: trl-1.16, grpo-ablate"  # the warm start was there
    for name in ("conform-trl-runs.parquet", "conform-trl-runs.csv"):
        assert (tmp_path / "results/tables" / name).read_bytes() == (folder / "results/tables" / name).read_bytes()


def refused(folder, **changes):
    with pytest.raises(UserError) as caught:
        table.write_table(load_experiment(written(folder, **changes)), folder / "results", print)
    assert not (folder / "results").exists()  # before anything is trained
    return str(caught.value)


@needs_trl
def test_what_trl_cannot_train_is_refused_before_anything_runs(tmp_path):
    row = {"trl-1.16": {"preset": "trl-1.16", "advantage": {"baseline": "leave-one-out"}}}
    assert "row 'trl-1.16': trl 1.16 cannot train this: advantage.baseline" in refused(tmp_path, rows=row)
    row = {"trl-1.16": {"preset": "trl-1.16", "optimizer": {"warmup": 3}}}
    assert "optimizer.warmup is 3" in refused(tmp_path, rows=row)
    row = {"trl-1.16": {"preset": "trl-1.16", "reward": {"components": {"accuracy": 2.0}}}}
    assert "reward.components: expected none" in refused(tmp_path, rows=row)
    cold = TESTBED["policy"] | {"warmstart": {}}
    assert "both trainers start from one folder" in refused(tmp_path, policy=cold)


def test_without_trl_the_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "the package trl is not installed; pip install 'grpo-ablate[trl]'." in refused(tmp_path)


def test_two_trainers_belong_to_files_of_that_name(tmp_path):
    with pytest.raises(UserError, match=r"alpha\.yaml: expected an experiment of two trainers"):
        path = written(tmp_path, "alpha", figures=["curves"])
        table.write_table(load_experiment(path), tmp_path / "results", print)
    for name, kind in (("alpha", "trainers"), ("conform-trl", "curves")):
        with pytest.raises(UserError, match=rf"{name}\.yaml: figures: {kind}: experiments of two trainers"):
            load_experiment(written(tmp_path, name, figures=[kind]))


def test_the_grid_leaves_them_to_those_who_have_trl():
    folder = ROOT / "experiments"
    beside = [experiment.name for experiment in load_conform_experiments(folder)]
    assert beside == ["conform-trl"]
    assert not set(beside) & {experiment.name for experiment in load_experiments(folder)}


RISE = np.array([0.3, 0.4, 0.5, 0.6])
NOISE = np.array([[0.0, 0.01, -0.01, 0.02], [0.02, -0.02, 0.01, 0.0], [-0.01, 0.0, 0.02, 0.03]])


@pytest.fixture
def invented(tmp_path):
    """The material of the shipped experiment with invented curves of three seeds; trl's are .05 higher."""
    experiment = load_experiment(ROOT / "experiments/conform-trl.yaml")
    lines = [
        {"experiment": experiment.name, "row": "trl-1.16", "trainer": trainer, "seed": seed,
         "round": 5 * block + 5, "updates": 10 * block + 10, "rollouts": 320 * block + 320,
         "train/reward_raw": RISE[block] + (0.05 + NOISE[seed, block] if trainer == "trl" else 0.01 * seed)}
        for trainer in ("grpo-ablate", "trl")
        for seed in range(3)
        for block in range(4)
    ]  # fmt: skip
    return Material(experiment, pd.DataFrame(lines), tmp_path)


def test_the_figure_shows_every_seed_the_means_and_their_difference(invented):
    module = importlib.import_module("grpo_ablate.analysis.figures.trainers")
    with style.theme():
        figure = module.draw(invented, {})
        left, right = figure.axes
        ours, theirs = (line.get_ydata() for line in left.lines)
        np.testing.assert_allclose(ours, RISE + 0.01)
        np.testing.assert_allclose(theirs, RISE + 0.05 + NOISE.mean(0))
        assert [len(seeds.get_segments()) for seeds in left.collections if hasattr(seeds, "get_segments")] == [
            3,
            3,
        ]
        (gap,) = [line.get_ydata() for line in right.lines if len(line.get_xdata()) == 4]
        np.testing.assert_allclose(gap, theirs - ours)
        assert right.get_ylim()[0] == -right.get_ylim()[1]
        assert left.get_xlabel() == right.get_xlabel() == "rollouts"


def test_the_caption_names_n_and_the_difference_over_the_later_half(invented):
    told = importlib.import_module("grpo_ablate.analysis.figures.trainers").caption(invented, {})
    gaps = (0.05 + NOISE - 0.01 * np.arange(3)[:, None])[:, 2:].mean(1)
    half = stats.t.ppf(0.975, 2) * gaps.std(ddof=1) / np.sqrt(3)
    assert "n = 3 seeds each" in told
    assert f"{gaps.mean():+.3f} (95 % interval {gaps.mean() - half:+.3f} to {gaps.mean() + half:+.3f})" in told
    assert told.count("$") % 2 == 0


def test_its_files_are_drawn_from_its_table(invented, tmp_path):
    (tmp_path / "tables").mkdir()
    invented.runs.to_parquet(tmp_path / "tables/conform-trl-runs.parquet")
    figures.draw(invented.experiment, tmp_path)
    drawn = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert drawn == ["conform-trl-trainers.pdf", "conform-trl-trainers.png"]
    assert sorted(f"figures/{name}" for name in drawn) == sorted(figures.outputs(invented.experiment))


@pytest.mark.slow
@needs_trl
def test_its_target_makes_table_and_figure_and_then_has_nothing_to_do(tmp_path):
    from project import build_language

    project = build_language(tmp_path / "project")
    testbed = yaml.safe_dump(TESTBED)
    (project.path / "experiments/testbeds/tongue.yaml").write_text(testbed)
    project.write("conform-trl", FILE)
    assert project.planned("conform-trl") == {"warmstart": 1, "conform-trl": 1}
    assert "conform-trl" not in project.planned("all")
    project.run("--cores", "1", "conform-trl")
    for name in ("tables/conform-trl-runs.csv", "figures/conform-trl-trainers.png"):
        assert (project.path / "results" / name).exists()
    assert not project.planned("conform-trl")
    project.edit("grpo_ablate/conform/curves.py", "1_000_000_000", "1_000_000")
    assert project.planned("conform-trl") == {"conform-trl": 1}
