"""Rows resolve as stated: testbed, then preset, then axes and the row's own keys; nonsense is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_ablate.errors import UserError
from grpo_ablate.spec.cells import cells
from grpo_ablate.spec.resolve import load_experiment, load_experiments, switches

Write = Callable[..., Path]


def test_a_row_holds_only_what_differs_from_its_testbed(write: Write) -> None:
    experiment = load_experiment(write(testbed={"kl": {"beta": 0.5}}))
    base, mean_only = experiment.rows
    assert base.spec.kl.beta == mean_only.spec.kl.beta == 0.5
    assert (base.spec.advantage.scale, mean_only.spec.advantage.scale) == ("group-std", "none")
    assert mean_only.stated == {"advantage": {"scale": "none"}}


def test_axes_cross_and_rows_stand_beside_them(write: Write) -> None:
    experiment = load_experiment(
        write(
            {
                "baseline": "a--x",
                "axes": {
                    "one": {"a": {}, "b": {"kl": {"beta": 0.1}}},
                    "two": {"x": {}, "y": {"advantage": {"scale": "none"}}},
                },
                "rows": {"single": {"advantage": {"ddof": 1}}},
            }
        )
    )
    assert [row.id for row in experiment.rows] == ["a--x", "a--y", "b--x", "b--y", "single"]
    both = experiment.row("b--y").spec
    assert (both.kl.beta, both.advantage.scale) == (0.1, "none")


def test_a_preset_settles_its_switches_whatever_the_testbed_says_and_the_row_wins(write: Write) -> None:
    testbed = {"kl": {"beta": 0.5}, "advantage": {"eps": 0.1}, "update": {"inner_passes": 3}}
    rows = {"base": {}, "trl": {"preset": "trl-1.16", "advantage": {"ddof": 0}}}
    trl = load_experiment(write({"rows": rows}, testbed)).row("trl").spec
    assert (trl.kl.beta, trl.advantage.eps, trl.update.reduction) == (0.0, 1e-4, "token-mean")
    assert trl.advantage.ddof == 0
    assert trl.update.inner_passes == 3  # the regime is the testbed's


def test_changing_the_group_size_holds_the_rollouts_of_an_update_or_the_prompts(write: Write) -> None:
    order = {"prompt_order": "cycle"}
    rows = {
        "base": {},
        "product": {"sampling": {"group_size": 2, **order}},
        "prompts": {"sampling": {"group_size": 2}, "budget": {"hold": "prompts"}},
        "own": {"sampling": {"group_size": 2, "prompts": 1}},
    }
    experiment = load_experiment(write({"rows": rows}))
    held = {row.id: (row.spec.sampling.prompts, row.spec.rounds) for row in experiment.rows}
    assert held == {"base": (2, 10), "product": (4, 10), "prompts": (2, 20), "own": (1, 40)}


def test_seed_blocks_are_aligned_so_that_more_seeds_add_blocks(write: Write) -> None:
    blocks = {
        seeds: {(c.hash, c.first_seed, c.last_seed) for c in cells([load_experiment(write({"seeds": seeds}))])}
        for seeds in (8, 12)
    }
    assert blocks[8] < blocks[12]
    assert {(a, b) for _, a, b in blocks[12] - blocks[8]} == {(8, 11)}


def test_blocks_are_whole_so_that_a_seed_is_trained_in_one_place(write: Write) -> None:
    few, many = (
        {(c.hash, c.first_seed, c.last_seed) for c in cells([load_experiment(write({"seeds": seeds}))])}
        for seeds in (5, 8)
    )
    assert few == many


def test_shipped_experiments_resolve() -> None:
    experiments = {e.name: e for e in load_experiments()}
    assert {"selection", "selection-group-size", "selection-kl"} <= set(experiments)
    names = [row.id for row in experiments["selection"].rows]
    assert names[:2] == ["identity--group-std", "identity--mean-only"]
    for row in experiments["selection-group-size"].rows:
        assert row.spec.rounds * row.spec.rollouts_per_round == 12800


@pytest.mark.parametrize(
    ("experiment", "sentence"),
    [
        ({"rows": {}}, "the experiment has no rows"),
        ({"baseline": "bas"}, "the baseline 'bas' is no row; did you mean 'base'?"),
        ({"testbed": "smal"}, "no testbed 'smal'"),
        ({"seeds": 0}, "seeds is 0, expected at least 1."),
        ({"sedes": 3}, "unknown key 'sedes'; did you mean 'seeds'?"),
        ({"rows": {"base": {"advantage": {"scal": "none"}}}}, "unknown key 'rows.base.advantage.scal'"),
        ({"rows": {"base": {"preset": "trl"}}}, "row 'base': no preset 'trl'; did you mean 'trl-1.16'?"),
        ({"rows": {"base": {"sampling": {"group_size": 1}}}}, "row 'base': sampling.group_size is 1, but"),
        ({"rows": {"base": {"kl": {"beta": -1}}}}, "rows.base.kl.beta is -1, expected at least 0."),
        (
            {"rows": {"base": {"update": {"clip_high": -0.2}}}},
            "rows.base.update.clip_high is -0.2, expected at least 0 or off.",
        ),
        (
            {"rows": {"base": {"update": {"surrogate": "sequence", "reduction": "token-mean"}}}},
            "row 'base': update.surrogate sequence gives one value per response",
        ),
        (
            {"rows": {"base": {"advantage": {"supervision": "process", "baseline": "leave-one-out"}}}},
            "row 'base': advantage.baseline leave-one-out does not go with advantage.supervision process",
        ),
        ({"rows": {"base": {"sampling": {"group_size": 3}}}}, "does not divide the 8 rollouts per update"),
        ({"rows": {"base": {"budget": {"rollouts": 81}}}}, "the nearest that is: 80."),
        ({"rows": {"base": {"sampling": {"prompts": 5}}}}, "the task has 2 prompts"),
        ({"rows": {"base": {"update": {"minibatches": 3}}}}, "minibatches divide the 2 prompts"),
        ({"rows": {"Base": {}}}, "expected a name of lower-case letters"),
        (
            {"axes": {"one": {"base": {"kl": {"beta": 1}}}, "two": {"x": {"kl": {"beta": 2}}}}, "rows": {}},
            "the axes one and two both set kl.beta",
        ),
        ({"axes": {"one": {"base": {}}}}, "row 'base' is written under rows and crossed from axes"),
        ({"axes": {"one": {"a--b": {}}}}, "the level 'a--b' contains '--'"),
        ({"figures": ["curve"]}, "figures: no kind 'curve'; did you mean 'curves'?"),
        ({"figures": [{"curves": {"x": "update"}}]}, "x 'update' is no counter; did you mean 'updates'?"),
        ({"figures": [{"final": {"metric": "eval/rewards"}}]}, "no metric 'eval/rewards'"),
        ({"figures": [{"final": {"rows": ["bas"]}}]}, "no row 'bas'; did you mean 'base'?"),
        ({"figures": [{"curves": {}, "final": {}}]}, "expected a word or at most 1 entries."),
        ({"metric": "eval/rewards"}, "metric: no metric 'eval/rewards'; did you mean 'eval/reward'?"),
        ({"rows": {"base": {"advantage": {"supervision": "process"}}}}, "does not have"),
        ({"rows": {"base": {"reward": {"components": {"qualty": 1}}}}}, "did you mean 'quality'?"),
        ({"rows": {"base": {"sampling": {"dynamic": "drop", "filter_on": "right"}}}}, "no component 'right'"),
        ({"rows": {"base": {"sampling": {"filter_on": "acuracy"}}}}, "did you mean 'accuracy'"),
        ({"rows": {"base": {"budget": {"rollouts": 10**30}}}}, "expected at most 1e+09."),
        ({"seeds": 10**12}, "expected at most 100000."),
        ({"rows": {"base": {"update": {"mismatch_cap": 0.5}}}}, "expected at least 1."),
        (
            {
                "rows": {
                    "base": {
                        "update": {"surrogate": "sequence"},
                        "kl": {"beta": 0.1, "place": "reward-after"},
                    }
                }
            },
            "kl.place reward-after gives one advantage per token",
        ),
        ({"published": "x" * 5000}, "does not exist"),
        ({"figures": [{}]}, "figures.0 is {}, expected a word or at least 1 entries."),
        ({"published": "results/none.csv"}, "the published table results/none.csv does not exist"),
    ],
)
def test_a_mistake_is_one_sentence_naming_file_row_and_key(
    write: Write, experiment: dict[str, Any], sentence: str
) -> None:
    path = write(experiment)
    with pytest.raises(UserError) as caught:
        load_experiment(path)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_a_mistake_in_a_testbed_names_the_testbed(write: Write) -> None:
    path = write(testbed={"stale": "maybe"})
    with pytest.raises(UserError, match=r"testbeds/small\.yaml: stale is 'maybe', expected rerun or keep\."):
        load_experiment(path)


def test_settings_override_a_row_or_a_preset() -> None:
    chosen = switches(None, None, ["advantage.scale=none", "update.clip_high=off", "advantage.eps=1e-3"])
    assert (chosen.advantage.scale, chosen.update.clip_high, chosen.advantage.eps) == ("none", "off", 1e-3)
    row = switches("experiments/selection.yaml:ddof-1", None, [])
    assert (row.advantage.ddof, row.kl.beta) == (1, 0.05)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["scale=none"], "expected section.key=value"),
        (["advantage.scale"], "expected section.key=value"),
        (["advantag.scale=none"], "no section 'advantag'; did you mean 'advantage'?"),
        (["advantage.scal=none"], "unknown key 'advantage.scal'; did you mean 'scale'?"),
        (["kl.beta=-1"], "kl.beta is -1, expected at least 0."),
    ],
)
def test_a_wrong_setting_is_one_sentence(settings: list[str], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        switches(None, None, settings)
    assert sentence in str(caught.value)


def test_a_misspelt_row_offers_the_nearest() -> None:
    with pytest.raises(UserError, match="no row 'ddof1'; did you mean 'ddof-1'"):
        switches("experiments/selection.yaml:ddof1", None, [])
