"""Controls hold for what is sound, fail loudly for what is not, and stand above every table when they fail."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from conftest import EXPERIMENT, TESTBED
from fabricated import write_record
from tidy_runs import START, lines, table, written

from grpo_ablate.algorithm import advantages
from grpo_ablate.analysis import exact_controls
from grpo_ablate.analysis.alarms import above, alarms
from grpo_ablate.analysis.collect import collect
from grpo_ablate.analysis.compare import compare
from grpo_ablate.analysis.compare_command import write_compared
from grpo_ablate.analysis.compare_text import as_text
from grpo_ablate.analysis.comparison import ControlResult
from grpo_ablate.analysis.exact_controls import CONTROLS, read_exact_controls, write_exact_controls
from grpo_ablate.analysis.tables import MINUS
from grpo_ablate.errors import UserError
from grpo_ablate.policies import optimizer
from grpo_ablate.spec.cells import cells

NUMBERS = np.random.default_rng(0)
BASE = (0.5 + NUMBERS.normal(0, 0.01, 8)).tolist()
AGAIN = (0.5 + NUMBERS.normal(0, 0.01, 8)).tolist()
NOTHING = (START + NUMBERS.normal(0, 0.01, 8)).tolist()


@pytest.fixture
def experiment(tmp_path):
    return replace(written(tmp_path, EXPERIMENT, TESTBED), seeds=8)


def controlled(experiment, again=AGAIN, nothing=NOTHING):
    return compare(
        experiment,
        table(
            lines("base", BASE),
            lines("control.a-a", again, role="control"),
            lines("control.random-reward", nothing, role="control"),
        ),
    )


def test_a_sound_harness_passes_its_controls_and_shows_the_noise_floor(experiment):
    found = controlled(experiment)
    assert [(control.id, control.holds) for control in found.controls] == [
        ("control.a-a", True), ("control.random-reward", True),
    ]  # fmt: skip
    assert found.failed_controls == () and [row.row for row in found.rows] == ["base"]
    gap = np.subtract(AGAIN, BASE)
    assert found.noise_floor.mean == pytest.approx(gap.mean())
    assert "Noise floor" in as_text(found) and "FAILED" not in as_text(found)


def test_a_baseline_that_differs_from_itself_fails_the_a_a_control(experiment):
    found = controlled(experiment, again=[score + 0.1 for score in AGAIN])
    assert [control.id for control in found.failed_controls] == ["control.a-a"]
    assert found.controls[0].value < 0.001 == found.controls[0].bound


def test_the_a_a_control_is_judged_at_one_in_a_thousand(experiment):
    """A difference that .05 would call one, twenty times in four hundred, does not fail a sound harness."""
    rng = np.random.default_rng(1)
    failed = sum(
        controlled(experiment, again=(0.5 + rng.normal(0, 0.01, 8)).tolist()).controls[0].holds is False
        for _ in range(100)
    )
    assert failed <= 1
    centred = np.subtract(AGAIN, BASE) - np.mean(np.subtract(AGAIN, BASE))
    slight = controlled(experiment, again=(np.array(BASE) + centred + 0.008).tolist()).controls[0]
    assert 0.001 < slight.value < 0.05 and slight.holds


def test_a_control_that_collapses_below_every_row_keeps_what_it_ended_at(experiment):
    """The gain by hand: the mean of what the runs ended at, minus the start; not of the rows' lowest value."""
    ended = [START - 0.2, START - 0.25, *NOTHING[2:]]
    found = controlled(experiment, nothing=ended)
    told = next(control.words for control in found.controls if control.id == "control.random-reward")
    gain = float(told.split(" [")[0].replace(MINUS, "-"))
    assert gain == pytest.approx(np.mean(ended) - START, abs=6e-4)


def test_learning_from_a_random_reward_fails_its_control(experiment):
    found = controlled(experiment, nothing=[score + 0.1 for score in NOTHING])
    assert [control.id for control in found.failed_controls] == ["control.random-reward"]
    worse = controlled(experiment, nothing=[score - 0.1 for score in NOTHING])
    assert worse.failed_controls == ()  # one-sided: to unlearn from noise is no improvement


def test_controls_that_cannot_be_judged_say_so(experiment):
    absent = compare(experiment, table(lines("base", BASE)))
    assert [(control.holds, control.words) for control in absent.controls] == [(None, "not trained yet")] * 2
    one = compare(
        experiment,
        table(*(lines(row, [0.5], role=role) for row, role in
                (("base", "row"), ("control.a-a", "control"), ("control.random-reward", "control")))),
    )  # fmt: skip
    assert [control.holds for control in one.controls] == [None, None]
    assert "not judged" in as_text(one)


def test_a_failed_control_stands_above_every_table(tmp_path, results):
    experiment = written(tmp_path, EXPERIMENT, TESTBED)
    again = next(row.hash for row in experiment.controls if row.id == "control.a-a")

    def shift(columns):
        columns["eval/reward"] = [
            100 + number + seed / 1000 for number, seed in zip(columns["round"], columns["seed"], strict=True)
        ]

    for cell in cells([experiment]):
        write_record(results, cell, change=shift if cell.hash == again else None)
    collected = collect(experiment, results)
    printed = {path: path.read_text() for path in collected if path.suffix in (".md", ".tex", ".typ")}
    found = write_compared(experiment, results)
    assert [control.id for control in found.failed_controls] == ["control.a-a"]
    tables = [path for path in (results / "tables").iterdir() if path.suffix in (".md", ".tex", ".typ")]
    assert (len(printed), len(tables)) == (3, 9)
    for path, text in [*printed.items(), *((path, path.read_text()) for path in tables)]:
        assert re.match(r"\W*(textbf\{|strong\(\")?CONTROL FAILED: the baseline again", text), path
    text = as_text(found)
    assert text.index("CONTROL FAILED") < text.index("controls\n") < text.index("Verdict")


def test_the_exact_controls_hold():
    found = exact_controls.exact_controls()
    assert [control.id for control in found] == [f"control.{name}" for name in CONTROLS]
    assert all(control.holds for control in found)
    leave, cosine, *twins = found
    assert 0 <= leave.value <= 1e-12 and cosine.value > 0.9999 and [twin.value for twin in twins] == [0.0, 0.0]


def test_a_leave_one_out_that_is_not_scaled_fails_its_control(monkeypatch):
    monkeypatch.setitem(
        advantages.BASELINES, "leave-one-out", advantages.BASELINES["mean"]
    )  # forgets the factor G/(G-1)
    assert CONTROLS["leave-one-out"]().holds is False


def test_an_optimizer_that_feels_the_size_of_the_reward_fails_its_control(monkeypatch):
    monkeypatch.setattr(optimizer, "ADAM_EPS", 0.01)  # no longer small beside a gradient
    control = CONTROLS["reward-x-10"]()
    assert control.holds is False and control.value < 0.9999


def test_a_switch_that_acts_though_it_is_called_inert_fails_its_control():
    found = exact_controls._twins("x", "x", {"update": {"clip_low": 0.01}}, {"advantage": {"eps": 1e-9}})
    assert found.holds is False and found.value > 0 and found.words.startswith("parameters differ by up to")


def test_the_table_of_exact_controls_reads_back(results, monkeypatch):
    assert [path.name for path in write_exact_controls(results)] == [
        "controls.csv", "controls.md", "controls.tex", "controls.typ",
    ]  # fmt: skip
    first = (results / "tables" / "controls.csv").read_bytes()
    found = read_exact_controls(results)
    assert found == exact_controls.exact_controls()
    write_exact_controls(results)
    assert (results / "tables" / "controls.csv").read_bytes() == first
    broken = ControlResult("control.x", "A & B", False, "differs by 1", 1.0, 0.5)
    monkeypatch.setattr(exact_controls, "exact_controls", lambda: (broken,))
    assert read_exact_controls(results) == found  # what the workflow judged, not judged again
    write_exact_controls(results)
    assert read_exact_controls(results) == (broken,)
    assert alarms([broken]) == ["CONTROL FAILED: A & B: differs by 1."]
    (results / "tables" / "controls.csv").write_text("id,label\nx,y\n")
    with pytest.raises(UserError, match=r"controls.csv: is not a table of controls"):
        read_exact_controls(results)


def test_an_alarm_is_escaped_for_its_dialect():
    line = ['A & B_C: "x"']
    assert above(line, "md") == '**A & B\\_C: "x"**\n\n'
    assert above(line, "tex") == "\\textbf{A \\& B\\_C: ''x''}\\par\n"
    assert above(line, "typ") == '#strong("A & B_C: \\"x\\"")\n\n'
    assert math.isnan(float("nan")) and above([], "typ") == ""
