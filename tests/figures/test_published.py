"""The criterion of agreement with the published table, and that the shipped experiment meets it."""

from __future__ import annotations

import math

import invented
import numpy as np
import pytest

from grpo_ablate.analysis.published import (
    Published,
    judge,
    learning_curves,
    mean_tolerance,
    published_of,
    read,
    run_published,
    spread_tolerance,
    table,
)
from grpo_ablate.errors import UserError
from grpo_ablate.spec.identity import replace

SELECTION = invented.ROOT / "experiments" / "selection.yaml"
TABLE = invented.ROOT / "results" / "published" / "translation-selection.csv"
# The article's table: training reward, group-normalised final quality, mean subtraction only.
ARTICLE = {
    "identity": ("0.9921 ± 0.0005", "0.9323 ± 0.0016"),
    "affine": ("0.9921 ± 0.0005", "0.9967 ± 0.0003"),
    "power": ("0.9918 ± 0.0006", "0.9642 ± 0.0013"),
    "tiny": ("0.5853 ± 0.0007", "0.5125 ± <0.0001"),
}


def line(value: float, sd: float, **changes: object) -> Published:
    fields = {"statement": "final", "row": "a", "other": "", "sd_is_bound": False, "digits": 4, "seeds": 40}
    return Published(**{**fields, "value": value, "sd": sd, "source": "", **changes})  # type: ignore[arg-type]


def curves(mean: float, sd: float, seeds: int = 40) -> dict[str, np.ndarray]:
    """One row whose final values have exactly this mean and sample standard deviation."""
    values = np.resize([1.0, -1.0], seeds)
    values = mean + sd * values / values.std(ddof=1)
    return {"a": np.column_stack([np.full(seeds, 0.5125), values])}


def test_the_shipped_table_is_the_article_s():
    found = {
        published.row: f"{published.value:.4f} ± {'<' * published.sd_is_bound}{published.sd:.4f}"
        for published in read(TABLE)
        if published.statement == "final"
    }
    expected = {
        f"{reward}--{advantage}": cell
        for reward, cells in ARTICLE.items()
        for advantage, cell in zip(("group-std", "mean-only"), cells, strict=True)
    }
    assert found == expected
    assert [(p.value, p.seeds) for p in read(TABLE) if p.statement == "initial"] == [(0.5125, 40)]
    gap = next(p for p in read(TABLE) if p.statement == "gap")
    assert (gap.row, gap.other, gap.value) == ("identity--group-std", "affine--group-std", 9e-9)


def test_a_mean_may_lie_four_combined_standard_errors_and_half_a_digit_away():
    theirs = line(0.9323, 0.0016)
    allowed = 4 * math.sqrt(2) * 0.0016 / math.sqrt(40) + 0.00005
    assert mean_tolerance(theirs, 40) == pytest.approx(allowed, rel=1e-12)
    for sign in (-1, 1):
        inside, outside = (
            judge(curves(0.9323 + sign * factor * allowed, 0.0016), [theirs])[0].holds for factor in (0.999, 1.001)
        )
        assert inside
        assert not outside


def test_a_population_mean_may_lie_four_published_standard_errors_away():
    allowed = 4 * 0.0016 / math.sqrt(40) + 0.00005
    assert mean_tolerance(line(0.9323, 0.0016), 4000) == pytest.approx(allowed, rel=1e-12)
    assert judge(curves(0.9323 + 0.999 * allowed, 0.0016, 4000), [line(0.9323, 0.0016)])[0].holds
    assert not judge(curves(0.9323 + 1.001 * allowed, 0.0016, 4000), [line(0.9323, 0.0016)])[0].holds


def test_a_spread_may_lie_four_of_its_standard_errors_away():
    theirs, allowed = line(0.9, 0.0016), 4 * 0.0016 / math.sqrt(78)
    assert spread_tolerance(theirs) == pytest.approx(allowed, rel=1e-12)
    holds = [
        judge(curves(0.9, 0.0016 + factor * allowed), [theirs])[1].holds
        for factor in (-1.001, -0.999, 0.999, 1.001)
    ]
    assert holds == [False, True, True, False]


def test_a_bound_is_an_upper_bound_and_nothing_else():
    theirs = line(0.5125, 0.0001, sd_is_bound=True)
    holds = [judge(curves(0.5125, sd), [theirs])[1].holds for sd in (1e-12, 0.0000999, 0.0001001)]
    assert holds == [True, True, False]


def test_the_gap_is_taken_over_every_evaluation_of_every_seed():
    one = np.full((3, 5), 0.7)
    other = one.copy()
    other[1, 2] += 9.9e-9
    theirs = line(9e-9, math.nan, statement="gap", other="b")
    assert judge({"a": one, "b": other}, [theirs])[0].ours == pytest.approx(9.9e-9, rel=1e-6)
    assert judge({"a": one, "b": other}, [theirs])[0].holds
    other[1, 2] += 2e-10
    assert not judge({"a": one, "b": other}, [theirs])[0].holds


def test_the_untrained_quality_is_exact_in_every_row():
    theirs = line(0.5125, math.nan, statement="initial", row="")
    start = {"a": np.full((2, 2), 0.5125), "b": np.full((2, 2), np.mean([0, 0.35, 0.7, 1]))}
    assert judge(start, [theirs])[0].holds
    start["b"][1, 0] += 1e-12
    assert not judge(start, [theirs])[0].holds


def test_a_diverged_run_does_not_agree():
    broken = curves(0.9323, 0.0016)
    broken["a"][3, -1] = math.nan
    assert not any(verdict.holds for verdict in judge(broken, [line(0.9323, 0.0016)]))


def test_a_published_row_that_the_experiment_lacks_is_named(tmp_path):
    for part in ("experiments/selection.yaml", "experiments/testbeds/selection.yaml"):
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        text = (invented.ROOT / part).read_text().replace("tiny:", "small:")
        (tmp_path / part).write_text(text)
    wanted = tmp_path / "results" / "published" / TABLE.name
    wanted.parent.mkdir(parents=True)
    wanted.write_text(TABLE.read_text())
    with pytest.raises(UserError, match="no row 'tiny--group-std'; "):
        run_published(tmp_path / "experiments" / "selection.yaml", 1, 0)
    wanted.write_text(TABLE.read_text().replace("0.9323", "high"))
    with pytest.raises(UserError, match="line 3 is not a published number"):
        read(wanted)


def test_the_report_names_what_disagrees():
    lines = table(judge(curves(0.95, 0.0016), [line(0.9323, 0.0016)]))
    assert [entry.split()[-1] for entry in lines[1:]] == ["DISAGREES", "agrees"]


def test_the_shipped_key_reproduces_the_published_table():
    report = run_published(SELECTION)
    assert report.agrees, report.text
    assert (report.seeds, len(report.verdicts)) == (40, 2 * 8 + 2)
    assert {verdict.seeds for verdict in report.verdicts if verdict.quantity == "mean"} == {40}


@pytest.mark.slow
@pytest.mark.parametrize("random_key", [1, 2, 3, 4, 5])
def test_other_keys_reproduce_the_published_table(random_key):
    report = run_published(SELECTION, random_key=random_key)
    assert report.agrees, report.text
    assert report.random_key == random_key


def test_another_key_is_another_random_stream_with_the_same_start():
    spec = invented.experiment("selection").row("identity--mean-only").effective
    one, same, other = (
        learning_curves(replace(spec, {"sampling": {"random_key": key}}), 2, "eval/reward") for key in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, same)
    np.testing.assert_array_equal(one[:, 0], other[:, 0])
    assert (one[:, 1:] != other[:, 1:]).all()


def test_every_published_row_is_in_the_shipped_experiment():
    assert len(published_of(invented.experiment("selection"))) == 10
