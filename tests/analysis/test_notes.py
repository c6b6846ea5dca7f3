"""What was decided on after a look at results is said: seeds, claims, rows, terms, and a plan that came late."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from fabricated import changed, train, write_record

from grpo_ablate.analysis.notes import SKEW, changes_after_a_look, notes
from grpo_ablate.analysis.planned import history, path_of, record_plan
from grpo_ablate.runs.record_files import sealed
from grpo_ablate.spec.cells import cells
from grpo_ablate.spec.resolve import Experiment

CLAIM = {
    "id": "no-scale",
    "statement": "The division matters.",
    "source": "a paper",
    "test": {"is": "better", "row": "mean-only", "than": "base"},
}
NO_SCALE = {"advantage": {"scale": "none"}}
ROWS = {"base": {}, "twin": {"update": {"clip_low": 0.1}}, "mean-only": NO_SCALE}


def claims_changed(experiment: Experiment, results: Path) -> dict[str, str]:
    return dict(changes_after_a_look(experiment, results).claims)


def test_an_experiment_run_as_planned_needs_no_note(experiment: Experiment, results: Path) -> None:
    assert notes(experiment, results) == [], "nothing planned, nothing trained"
    record_plan(experiment, results)
    more = changed(experiment, seeds=6, baseline="mean-only", claims=[CLAIM], margin=0.1)
    assert notes(more, results) == [], "nothing was seen yet"
    record_plan(more, results)
    train(more, results)
    assert notes(more, results) == []


@pytest.mark.parametrize("recorded_again", [True, False])
@pytest.mark.parametrize("look", ["a run", "a table"])
def test_seeds_added_after_a_look_are_marked_and_stay_marked(
    experiment: Experiment, results: Path, look: str, recorded_again: bool
) -> None:
    record_plan(experiment, results)
    if look == "a run":
        write_record(results, cells([experiment])[0])
    else:
        (results / "tables").mkdir()
        (results / "tables" / "small.csv").write_text("")
    more = changed(experiment, seeds=6)
    if recorded_again:  # by the workflow, before it trains the rest
        record_plan(more, results)
        assert history("small", results)[0].seeds == 3, "the first entry is never altered"
    train(more, results)
    assert notes(more, results) == ["3 of 6 seeds were added after a look at results."]
    as_planned = changed(more, seeds=3)
    assert notes(as_planned, results) == []


def test_seeds_dropped_after_a_look_are_marked(experiment: Experiment, results: Path) -> None:
    record_plan(experiment, results)
    train(experiment, results)
    assert notes(changed(experiment, seeds=2), results) == [
        "1 of 3 planned seeds was dropped after a look at results."
    ]


def test_claims_added_changed_or_dropped_after_a_look_are_named(experiment: Experiment, results: Path) -> None:
    other = CLAIM | {"id": "other"}
    planned = changed(experiment, claims=[CLAIM, other], margin=0.01)
    record_plan(planned, results)
    reworded = changed(planned, claims=[CLAIM | {"statement": "It does."}, other])
    assert claims_changed(reworded, results) == {}, "nothing was seen yet"
    train(planned, results)
    assert claims_changed(changed(reworded, claims=[CLAIM, other]), results) == {}
    worse = CLAIM | {"test": CLAIM["test"] | {"is": "worse"}}
    late = changed(planned, claims=[worse, CLAIM | {"id": "late"}])
    assert claims_changed(late, results) == {"no-scale": "changed", "late": "added", "other": "dropped"}
    record_plan(late, results)
    assert claims_changed(late, results)["late"] == "added"
    assert "The claim other was dropped after a look at results." in notes(late, results)


def test_a_margin_widened_after_a_look_changes_the_claims_that_read_it(
    experiment: Experiment, results: Path
) -> None:
    planned = changed(experiment, claims=[CLAIM], margin=0.01)
    record_plan(planned, results)
    train(planned, results)
    assert claims_changed(changed(planned, margin=0.1), results) == {"no-scale": "changed"}
    own = changed(planned, margin=0.1, claims=[CLAIM | {"test": CLAIM["test"] | {"margin": 0.01}}])
    assert claims_changed(own, results) == {}
    assert notes(own, results) == ["The margin was changed from 0.01 to 0.1 after a look at results."]


def test_a_row_redefined_after_a_look_is_named_and_changes_the_claims_on_it(
    experiment: Experiment, results: Path
) -> None:
    planned = changed(experiment, claims=[CLAIM])
    record_plan(planned, results)
    train(planned, results)
    other = changed(planned, rows=ROWS | {"mean-only": {"advantage": {"scale": "none", "ddof": 1, "eps": 1}}})
    assert other.row("mean-only").hash == planned.row("mean-only").hash, "neither acts without a scale"
    assert notes(other, results) == []
    other = changed(planned, rows=ROWS | {"mean-only": {"advantage": {"ddof": 1}}})
    assert notes(other, results) == [
        "Row changed after a look at results: mean-only.",
        "The claim no-scale was changed after a look at results.",
    ]
    train(other, results)
    record_plan(other, results)
    assert len(notes(other, results)) == 2, "it stays marked"


def test_rows_added_and_dropped_after_a_look_are_named_and_renamed_ones_are_not(
    experiment: Experiment, results: Path
) -> None:
    planned = changed(experiment, claims=[CLAIM])
    record_plan(planned, results)
    train(planned, results)
    test = CLAIM["test"] | {"row": "no-scale"}
    renamed = {"base": {}, "no-scale": NO_SCALE, "twin": ROWS["twin"]}
    same = changed(planned, rows=renamed, claims=[CLAIM | {"test": test}])
    assert notes(same, results) == [], "another name and another order, and nothing else"
    many = {f"more-{number}": {"optimizer": {"learning_rate": number / 10}} for number in range(1, 9)}
    found = notes(changed(planned, rows={"base": {}} | many, claims=[]), results)
    assert found == [
        "Rows added after a look at results: more-1, more-2, more-4, more-5, more-6, more-7 and 1 more.",
        "Row dropped after a look at results: mean-only.",
        "The claim no-scale was dropped after a look at results.",
    ], "more-3 is the baseline by another name, and twin was"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"baseline": "mean-only"}, "The baseline was changed from base to mean-only"),
        ({"metric": "eval/kl"}, "The metric was changed from eval/reward to eval/kl"),
        ({"margin": 0.05}, "The margin was changed from none to 0.05"),
        ({"held": "tokens"}, "The held quantity was changed from rollouts to tokens"),
        ({"tune": {"learning_rate": [0.1, 0.5]}}, "The learning rates were changed from none to 0.1, 0.5"),
    ],
)
def test_terms_changed_after_a_look_are_named(
    experiment: Experiment, results: Path, keys: dict[str, object], said: str
) -> None:
    record_plan(experiment, results)
    train(experiment, results)
    assert notes(changed(experiment, **keys), results) == [f"{said} after a look at results."]


def test_a_baseline_under_another_name_is_the_same_baseline(experiment: Experiment, results: Path) -> None:
    record_plan(experiment, results)
    train(experiment, results)
    rows = {"plain" if name == "base" else name: row for name, row in ROWS.items()}
    assert notes(changed(experiment, rows=rows, baseline="plain"), results) == []


def test_runs_without_any_plan_are_marked(experiment: Experiment, results: Path) -> None:
    record_plan(experiment, results)
    train(experiment, results)
    path_of(results, "small").unlink()
    (said,) = notes(experiment, results)
    assert said.startswith("No plan was recorded before these runs: seeds, rows and claims may have been chosen")


def test_a_plan_recorded_anew_after_its_history_was_deleted_is_marked(
    experiment: Experiment, results: Path
) -> None:
    train(experiment, results)
    record_plan(experiment, results)
    (said,) = notes(experiment, results)
    assert said.startswith("The plan was first recorded when results existed: ")
    more = changed(experiment, seeds=9)
    assert notes(more, results) == [said, "6 of 9 seeds were added after a look at results."]


def test_records_that_are_older_than_the_first_plan_are_counted(experiment: Experiment, results: Path) -> None:
    """As when the runs were put aside, the history deleted and the plan recorded anew."""
    record_plan(experiment, results)
    (plan,) = history("small", results)
    own = cells([experiment])
    for place, cell in enumerate(own):
        ago = SKEW + timedelta(seconds=1) if place < 3 else SKEW / 2  # clocks of machines differ a little
        write_record(results, cell, started=(plan.time - ago).isoformat())
    assert not history("small", results)[0].looked
    (said,) = notes(experiment, results)
    assert f"when the training of 3 of {len(own)} seed blocks had begun" in said
    run = results / own[0].folder / "provenance.json"
    run.write_text(json.dumps(json.loads(run.read_text()) | {"started": "2099-01-01T00:00:00"}))
    assert "of 2 of" in notes(experiment, results)[0]
    interrupted = {"started": (plan.time - timedelta(days=1)).isoformat()}
    run.write_text(json.dumps(json.loads(run.read_text()) | {"interrupted": [interrupted]}))
    assert "of 3 of" in notes(experiment, results)[0], "its first session counts"
    run.write_text("{")
    assert "of 2 of" in notes(experiment, results)[0], "what is damaged is for `verify` to name"


def test_an_entry_forged_with_its_checksum_is_still_younger_than_the_runs(
    experiment: Experiment, results: Path
) -> None:
    more = changed(experiment, seeds=6)
    train(more, results, started=datetime.now().astimezone().isoformat())
    record_plan(more, results)
    path = path_of(results, "small")
    late = (history("small", results)[0].time + timedelta(hours=1)).isoformat()
    forged = json.loads(path.read_text())[0] | {"looked": False, "recorded": late}
    path.write_text(json.dumps([sealed(forged)]))
    blocks = len(cells([more]))
    assert f"of {blocks} of {blocks} seed blocks" in notes(more, results)[0]
