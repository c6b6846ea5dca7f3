"""Rows over several testbeds: which are joined, on which pairs, and that the numbers are rliable's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rliable import metrics as rliable
from tidy_runs import lines, table

from grpo_ablate.analysis.across import across, write_across
from grpo_ablate.analysis.compare import compare
from grpo_ablate.analysis.comparison import ControlResult


@pytest.fixture
def comparisons(three_rows):
    """Three comparisons on two testbeds; the row third is in one testbed only, the last comparison is a repeat."""
    experiment = replace(three_rows, seeds=6)
    numbers = np.random.default_rng(0)

    def scores(shift):
        return (0.6 + shift + numbers.normal(0, 0.03, 6)).tolist()

    first = compare(
        experiment, table(lines("base", scores(0)), lines("other", scores(0.03)), lines("third", scores(0)))
    )
    second, repeat = (
        replace(
            compare(experiment, table(lines("base", scores(0)), lines("other", scores(shift)))), testbed="large"
        )
        for shift in (0.02, 0.3)
    )
    return [first, second, repeat]


def test_rows_of_two_testbeds_are_joined_with_rliables_numbers(comparisons):
    (found,) = across(comparisons)
    assert (found.row, found.baseline, found.testbeds, found.seeds) == ("other", "base", ("tiny", "large"), 12)
    own, base = (
        np.array([comparison.row(row).scores for comparison in comparisons[:2]]).T for row in ("other", "base")
    )
    assert found.middle == pytest.approx(rliable.aggregate_iqm(own) - rliable.aggregate_iqm(base), rel=1e-10)
    assert found.improvement == pytest.approx(rliable.probability_of_improvement(own, base), rel=1e-10)
    assert found.middle_low < found.middle < found.middle_high
    assert found.improvement_low < found.improvement <= found.improvement_high


def test_one_testbed_is_not_several(comparisons):
    assert across(comparisons[1:]) == () and across([]) == ()


def test_the_table_holds_the_numbers_and_is_the_same_twice(comparisons, tmp_path):
    (found,) = across(comparisons)
    first = [path.read_bytes() for path in write_across(comparisons, tmp_path)]
    assert [path.read_bytes() for path in write_across(comparisons, tmp_path)] == first
    line = pd.read_csv(tmp_path / "tables" / "across.csv").iloc[0]
    assert line["middle"] == found.middle and line["improvement_high"] == found.improvement_high
    assert line["testbeds"] == "tiny large"
    assert "stratified paired bootstrap" in (tmp_path / "tables" / "across.md").read_text()


def test_a_failed_control_and_missing_runs_stand_above_the_table_over_testbeds(comparisons, tmp_path):
    broken = ControlResult("control.a-a", "the baseline again", False, "differs", 0.0, 0.001)
    late, partial = "2 of 6 seeds were added after a look at results.", "Partial: 3 of 4 runs."
    whole = [replace(comparisons[0], controls=(broken,), partial=partial, notes=(late,)), *comparisons[1:]]
    table, *printed = write_across(whole, tmp_path)
    for path in printed:
        shown = path.read_text()
        said = ("small: CONTROL FAILED", f"small: {partial}", f"small: {late}", "Pairs")
        places = [shown.index(words) for words in said]
        assert places == sorted(places)
    assert pd.read_csv(table)["partial"].tolist() == [f"small: {partial}"]
