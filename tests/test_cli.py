"""The command line: a user's mistake is one sentence on stderr, exit code 2, nothing written; starts are light."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_ablate.cli import main

GOOD = Path("experiments/selection.yaml").read_text()
TESTBED = Path("experiments/testbeds/selection.yaml").read_text()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that writes one experiment into an empty project, which is the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> None:
        Path("experiments/testbeds").mkdir(parents=True)
        Path("experiments/testbeds/selection.yaml").write_text(TESTBED)
        Path("experiments/case.yaml").write_text(text)

    return write


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    out, err = capsys.readouterr()
    code = caught.value.code
    return (code if isinstance(code, int) else 0 if code is None else 1), out, err


CELL = ["--seeds", "0-1", "--testbed", "selection", "--cell"]
HEAD = "question: q\ntestbed: selection\nbaseline: a\nseeds: 2\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (HEAD + "rows: {a: {advantage: {basline: mean}}}\n", "did you mean 'baseline'?"),
        (HEAD + "rows: {a: {kl: {beta: often}}}\n", "rows.a.kl.beta is 'often', expected a number."),
        (HEAD + "rows: {a: {}, b: {}, a: {}}\n", "'a' is written twice (first on line 5)"),
        (HEAD.replace("selection", "selektion") + "rows: {a: {}}\n", "did you mean 'selection'?"),
        (HEAD + "rows: {}\n", "the experiment has no rows"),
        (HEAD + "rows: {a: {sampling: {group_size: 1}}}\n", "row 'a': sampling.group_size is 1"),
        (HEAD + "rows: {a: {kl: {beta: -0.1}}}\n", "rows.a.kl.beta is -0.1, expected at least 0."),
        (
            HEAD + "rows: {a: {update: {clip_high: -1}}}\n",
            "rows.a.update.clip_high is -1, expected at least 0 or off.",
        ),
        (HEAD.replace("seeds: 2", "seeds: 0") + "rows: {a: {}}\n", "seeds is 0, expected at least 1."),
        (HEAD + "rows: {a: {\n", "case.yaml: line"),
        (HEAD.replace("baseline: a", "baseline: c") + "rows: {a: {}}\n", "the baseline 'c' is no row"),
    ],
)
def test_a_wrong_experiment_is_refused_in_one_sentence(
    project: Callable[[str], None], capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    project(text)
    for command in (
        ["plan"],
        ["status"],
        ["train", "experiments/case.yaml:a"],
        ["collect", "experiments/case.yaml"],
    ):
        code, out, err = run(capsys, *command)
        assert code == 2
        assert out == ""
        assert err.startswith("grpo-ablate: error: experiments/case.yaml: ")
        assert sentence in err
        assert err.count("\n") == 1
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "experiments/case.yaml:aa"], "no row 'aa'; did you mean 'a'?"),
        (["train", "experiments/case.yaml:a", "--seeds", "5"], "--seeds 5: expected the first and the last seed"),
        (
            ["train", "experiments/case.yaml:a", "--seeds", "5-2"],
            "--seeds 5-2: expected the first and the last seed",
        ),
        (
            ["train", "experiments/none.yaml:a"],
            "experiments/none.yaml: cannot be read: No such file or directory.",
        ),
        (
            ["plan", "case"],
            "case: cannot be read: No such file or directory; did you mean 'experiments/case.yaml'?",
        ),
        (["plan", "experiments/cse.yaml"], "did you mean 'experiments/case.yaml'?"),
        (["train", "case:a"], "did you mean 'experiments/case.yaml'?"),
        (["train", "a"], "'a': expected a file and a row"),
        (
            ["train", "experiments/case.yaml:a", "--dump", "batch.json"],
            "--dump batch.json: goes with --dump-round",
        ),
        (
            ["train", "experiments/case.yaml:a", "--dump-round", "1", "--stream", "http://127.0.0.1:9"],
            "--dump-round: writes a batch and no run; leave out --stream.",
        ),
        (["train", "experiments/case.yaml:a", "--testbed", "selection"], "--testbed: goes with --cell"),
        (["train", *CELL, "{"], "--cell: is not JSON: "),
        (["train", *CELL, "[" * 20_000], "--cell: is not JSON: "),
        (["train", *CELL, "[]"], "--cell: expected a JSON object"),
        (["train", *CELL, "{}"], "--cell: the key 'task' is missing."),
        (["train", *CELL, '{"tusk": 1}'], "--cell: unknown key 'tusk'; did you mean 'task'?"),
        (["train", "--seeds", "0-1", "--testbed", "../x", "--cell", "{}"], "--testbed ../x: expected lower-case"),
        (["published", "experiments/selection.yaml", "--seeds", "0"], "--seeds 0: expected 1 to 4294967296."),
        (
            ["published", "experiments/selection.yaml", "--random-key", "-1"],
            "--random-key -1: expected 0 to 65535.",
        ),
        (["log", "experiments/case.yaml"], "none of its 3 seed blocks has a record in results; train it first."),
        (["explain", "none.json"], "none.json"),
        (["explain", "none.json", "--preset", "trl"], "no preset 'trl'; did you mean 'trl-1.16'?"),
        (["collect", "experiments/case.yaml"], "runs/selection"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_sentence(
    project: Callable[[str], None], capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    project(HEAD + "rows: {a: {}}\n")
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
    assert not Path("results").exists()


@pytest.mark.parametrize(
    "seeds",
    [
        "0-99999999999999999999", "0-4294967296", f"0-{'9' * 5000}", "4294967296-4294967297", "\u0660-\u0663",
        "\u00b2-\u00b3", "-1-3", "0-3\n", "0-", "",
    ],
)  # fmt: skip
def test_seeds_outside_the_range_are_refused_and_the_range_is_named(
    project: Callable[[str], None], capsys: pytest.CaptureFixture[str], seeds: str
) -> None:
    project(HEAD + "rows: {a: {}}\n")
    code, out, err = run(capsys, "train", "experiments/case.yaml:a", f"--seeds={seeds}")
    assert (code, out) == (2, "")
    assert "expected the first and the last seed, as in 0-39, each from 0 to 4294967295." in err
    assert len(err) < 300
    assert not Path("results").exists()


def test_more_seeds_than_a_job_can_hold_are_refused(
    project: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    project(HEAD + "rows: {a: {}}\n")
    code, _, err = run(capsys, "train", "experiments/case.yaml:a", "--seeds", "0-4294967295")
    assert code == 2 and "one job trains at most 65536 seeds" in err


def test_the_last_seed_of_the_range_trains(
    project: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    project(HEAD + "rows: {a: {budget: {rollouts: 64}}}\n")
    assert run(capsys, "train", "experiments/case.yaml:a", "--seeds", "4294967295-4294967295")[0] == 0
    assert len(list(Path("results/runs").rglob("seeds-4294967295-4294967295/run.json"))) == 1


@pytest.mark.parametrize("results", ["results", "results/deeper"])
@pytest.mark.parametrize(
    "command",
    [
        ["plan"], ["status"], ["train", "experiments/case.yaml:a"], ["log", "experiments/case.yaml"],
        ["collect", "experiments/case.yaml"], ["figures", "experiments/case.yaml"], ["paper"],
        ["samples", "experiments/case.yaml:a"], ["smoke", "selection"], ["propositions"],
    ],
)  # fmt: skip
def test_a_file_in_place_of_the_results_folder_is_refused(
    project: Callable[[str], None], capsys: pytest.CaptureFixture[str], command: list[str], results: str
) -> None:
    project(HEAD + "rows: {a: {}}\n")
    Path("results").write_text("a file")
    code, out, err = run(capsys, *command, "--results", results)
    assert (code, out) == (2, "")
    assert err == f"grpo-ablate: error: --results {results}: {Path('results').absolute()} is not a folder.\n" or (
        err == f"grpo-ablate: error: --results {results}: results is not a folder.\n"
    )
    assert Path("results").read_text() == "a file"


def test_results_that_cannot_be_written_are_a_sentence(
    project: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    project(HEAD + "rows: {a: {budget: {rollouts: 64}}}\n")
    Path("results").write_text("a file where the folder should be")
    code, _, err = run(capsys, "train", "experiments/case.yaml:a")
    assert code == 2
    assert err.startswith("grpo-ablate: error: ")
    assert "results" in err
    assert Path("results").read_text() == "a file where the folder should be"


def test_an_experiment_elsewhere_is_told_where_it_belongs(
    capsys: pytest.CaptureFixture[str], project: Callable[[str], None]
) -> None:
    project(HEAD + "rows: {a: {}}\n")
    Path("mine.yaml").write_text(HEAD + "rows: {a: {}}\n")
    code, _, err = run(capsys, "plan", "mine.yaml")
    assert code == 2 and err.endswith(
        "there is no testbed in testbeds: an experiment's file belongs into experiments/.\n"
    )


def test_what_no_run_can_have_is_refused_before_anything_is_written(
    capsys: pytest.CaptureFixture[str], project: Callable[[str], None]
) -> None:
    project(HEAD.replace("selection", "sums") + "rows: {a: {}}\n")
    testbed = Path(__file__).parents[1] / "experiments" / "testbeds" / "arithmetic.yaml"
    few = testbed.read_text().replace("{name: arithmetic}", "{name: arithmetic, operands: [2]}")
    Path("experiments/testbeds/sums.yaml").write_text(few)
    code, _, err = run(capsys, "train", "experiments/case.yaml:a")
    assert code == 2 and "experiments/case.yaml:a: task.train_prompts: 4096 needs 4096 different prompts" in err
    code, _, err = run(capsys, "train", "experiments/case.yaml:a", "--dump-round", "0", "--seeds", "0-7")
    assert code == 2 and "--dump-round 0: experiments/case.yaml:a has rounds 1 to 40." in err
    assert not Path("results").exists()


def test_train_writes_a_record_and_plan_then_counts_it_done(
    project: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    project(HEAD + "rows: {a: {budget: {rollouts: 64}}}\n")
    assert run(capsys, "train", "experiments/case.yaml:a")[0] == 0
    _, out, _ = run(capsys, "plan", "--json")
    found = json.loads(out)[0]
    assert (found["rows"][0]["jobs"], found["rows"][0]["jobs_done"]) == (1, 1)
    assert (found["jobs"], found["jobs_to_run"]) == (3, 2)  # and the two controls
    _, out, _ = run(capsys, "samples", "experiments/case.yaml:a")
    assert "La biblioteca" in out or "train" in out


def test_light_commands_import_no_heavy_library() -> None:
    """plan and --help must start in a moment: no torch, pandas, mlflow, matplotlib or pyarrow."""
    script = (
        "import sys\n"
        "from grpo_ablate.cli import main\n"
        "try:\n    main(['plan'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'pandas', 'mlflow', 'matplotlib', 'seaborn', 'pyarrow', 'scipy', 'snakemake'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "selection-kl" in done.stdout
