"""The code digest: what changes it and what does not, on a package of five small files."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from grpo_ablate.spec.resolve import load_experiment
from grpo_ablate.spec.schema import Spec, WarmStart
from grpo_ablate.spec.warmstart import start_of
from grpo_ablate.workflow.digest import digest, row_digest, start_digest
from grpo_ablate.workflow.sources import Sources

FILES = {
    "__init__": "",
    "train": '''
"""Trains."""
import math
from toy.loop import run
from toy import spec

def train(cell: spec.Cell) -> None:
    """Train one cell."""
    from toy.engines import ENGINES
    # what remains
    engine = ENGINES[cell.engine]()
    return run(engine, cell.rounds, math.pi)
''',
    "loop": """
from .constants import RATE as STEP
from toy import helpers

def run(engine, rounds, angle):
    return helpers.scale(engine.step(rounds), STEP)

def unused():
    return 1
""",
    "constants": "RATE = 0.5\nOTHER = 1\n",
    "helpers": """
def scale(value, rate):
    return value * inner(rate)

def inner(rate):
    return rate

def unrelated():
    return 0
""",
    "engines": """
class Slow:
    def step(self, rounds):
        return rounds

class Fast:
    def step(self, rounds):
        return rounds + 1

ENGINES = {"slow": Slow, "fast": Fast}
""",
    "spec": """
class Cell:
    engine: str

    @property
    def rounds(self):
        return self.budget // self.size

    @property
    def size(self):
        return 2

    @property
    def other(self):
        return 3
""",
}


def toy(folder: Path, engine: str | None = "slow", **edits: tuple[str, str]) -> str:
    """Digest of the toy package's training with one engine after replacing text in its files."""
    package = folder / "toy"
    package.mkdir(exist_ok=True)
    for name, text in FILES.items():
        old, new = edits.get(name, ("", ""))
        assert old in text
        (package / f"{name}.py").write_text(text.replace(old, new) if old else text)

    def select(keys: Iterable[str]) -> set[str] | None:
        return {engine} if engine and set(keys) <= {"slow", "fast", "new"} else None

    return digest(
        Sources(package, "toy"), ["toy.train.train"], excluded=("toy.spec",), select=select, schema="toy.spec"
    )


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("train", '"""Train one cell."""', '"""Train a cell, better said."""'),
        ("train", "# what remains", "# another comment"),
        ("train", "engine = ENGINES[cell.engine]()", "engine = (\n        ENGINES[cell.engine]()\n    )"),
        ("train", "cell: spec.Cell) -> None", "cell) -> int"),
        ("loop", "    return 1", "    return 2"),
        ("constants", "OTHER = 1", "OTHER = 2"),
        ("helpers", "    return 0", "    return 5"),
        ("engines", "rounds + 1", "rounds + 2"),
        ("engines", '"fast": Fast}', '"fast": Fast, "new": Fast}'),
        ("spec", "    engine: str", "    engine: str\n    added: int = 0"),
        ("spec", "return 3", "return 4"),
    ],
)
def test_what_a_run_does_not_use_leaves_its_digest_alone(tmp_path: Path, file: str, old: str, new: str) -> None:
    assert toy(tmp_path, **{file: (old, new)}) == toy(tmp_path)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("train", "math.pi", "math.tau"),
        ("train", "import math", "import cmath as math"),
        ("loop", "engine.step(rounds)", "engine.step(rounds + 1)"),
        ("constants", "RATE = 0.5", "RATE = 0.25"),
        ("helpers", "    return rate", "    return rate * 2"),
        ("engines", "        return rounds\n", "        return rounds * 3\n"),
        ("helpers", "def scale", "import torch\ntorch.set_num_threads(2)\n\ndef scale"),
        ("spec", "self.budget // self.size", "self.budget"),
        ("spec", "return 2", "return 8"),
    ],
)
def test_what_a_run_uses_changes_its_digest(tmp_path: Path, file: str, old: str, new: str) -> None:
    assert toy(tmp_path, **{file: (old, new)}) != toy(tmp_path)


def test_a_registry_contributes_the_selected_entry_only(tmp_path: Path) -> None:
    edit = {"engines": ("rounds + 1", "rounds + 2")}
    assert toy(tmp_path, "fast", **edit) != toy(tmp_path, "fast")
    assert toy(tmp_path, None, **edit) != toy(tmp_path, None)


def test_an_entry_named_by_a_constant_key_counts_for_every_row(tmp_path: Path) -> None:
    def named(edit: str) -> str:
        return toy(
            tmp_path,
            train=("ENGINES[cell.engine]()", 'ENGINES["fast"]()'),
            engines=("rounds + 1", edit),
        )

    assert named("rounds + 1") != named("rounds + 2")


def test_a_missing_root_is_refused(tmp_path: Path) -> None:
    toy(tmp_path)
    with pytest.raises(ValueError, match=r"toy\.train\.absent is not defined"):
        digest(Sources(tmp_path / "toy", "toy"), ["toy.train.absent"], excluded=())


PACKAGE = Path(__file__).parents[2] / "grpo_ablate"
ROWS = {row.id: row.effective for row in load_experiment(PACKAGE.parent / "experiments/selection.yaml").rows}


def edited(tmp_path: Path, file: str, old: str, new: str) -> Sources:
    """A copy of this package with a change."""
    copy = tmp_path / "grpo_ablate"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    path = copy / file
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    return Sources(copy, "grpo_ablate")


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        # what no row of the experiment uses
        ("algorithm/surrogates.py", "def cispo(", "def cispo(added, ", set()),
        ("algorithm/surrogates.py", '"cispo": cispo', '"cispo": soft', set()),
        ("runs/progress.py", "PLAIN = 0.2, 15.0", "PLAIN = 0.2, 30.0", set()),
        # what some rows use
        ("algorithm/rewards.py", "def noise(", "def noise(added, ", {"noise-0.05", "noise-0.2"}),
        ("algorithm/advantages.py", "def leave_one_out(", "def leave_one_out(added, ", {"leave-one-out"}),
        # what every row uses
        ("algorithm/surrogates.py", "def clip(", "def clip(added, ", set(ROWS)),
        ("policies/tabular.py", "    def step(", "    def step(added, ", set(ROWS)),
        ("rng.py", "class Keys:", "class Keys(object):", set(ROWS)),
    ],
)
def test_the_rows_of_an_experiment_depend_on_the_code_that_they_use(
    tmp_path: Path, file: str, old: str, new: str, changed: set[str]
) -> None:
    sources = edited(tmp_path, file, old, new)
    assert {name for name, spec in ROWS.items() if row_digest(spec, sources) != row_digest(spec)} == changed


SELECTION = ROWS["identity--group-std"]
ARITHMETIC, TRANSLATION = (
    load_experiment(PACKAGE.parent / f"experiments/{name}.yaml").rows[0].effective
    for name in ("normalization", "normalization-translation")
)
LANGUAGE = {"selection": SELECTION, "arithmetic": ARITHMETIC, "translation": TRANSLATION}
COLD = ARITHMETIC.model_copy(update={"policy": ARITHMETIC.policy.model_copy(update={"warmstart": WarmStart()})})


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("tasks/translation/task.py", "    def score(", "    def score(added, ", {"translation"}),
        ("tasks/arithmetic/grader.py", "def final_answers(", "def final_answers(added, ", {"arithmetic"}),
        ("tasks/selection.py", "    def score(", "    def score(added, ", {"selection"}),
        ("policies/stacked/network.py", "def forward(", "def forward(added, ", {"arithmetic", "translation"}),
        ("policies/tabular.py", "    def step(", "    def step(added, ", {"selection"}),
        ("runs/warmstart.py", "    def accumulate(", "    def accumulate(added, ", {"arithmetic", "translation"}),
        (
            "tasks/arithmetic/demonstrations.py",
            "def demonstrations(",
            "def demonstrations(added, ",
            {"arithmetic"},
        ),
        ("runs/warmstart.py", '"""Write the checkpoint."""', '"""Keep where it stands."""', set()),
    ],
)
def test_a_row_depends_on_its_own_task_policy_and_warm_start(
    tmp_path: Path, file: str, old: str, new: str, changed: set[str]
) -> None:
    sources = edited(tmp_path, file, old, new)
    assert {name for name, spec in LANGUAGE.items() if row_digest(spec, sources) != row_digest(spec)} == changed


def text_row(task: dict[str, Any], **sections: Any) -> Spec:
    policy = {"name": "huggingface", "model": "organisation/model"}
    return Spec.model_validate({"task": task, "policy": policy, "budget": {"rollouts": 64}, **sections})


FILE = {"name": "jsonl", "path": "data.jsonl"}
TEXTS = {
    "selection": SELECTION,
    "addition": text_row({"name": "addition"}),
    "exact": text_row({**FILE, "verifier": "exact"}),
    "chrf": text_row({**FILE, "verifier": "chrf"}),
    "model": text_row({**FILE, "verifier": "exact"}, reward={"source": "model", "model": "folder"}),
}


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("tasks/text/addition.py", "    def judge(", "    def judge(added, ", {"addition"}),
        ("tasks/text/rows.py", "def _question(", "def _question(added, ", {"exact", "chrf", "model"}),
        ("tasks/text/verifiers.py", "def chrf(", "def chrf(added, ", {"chrf"}),
        ("tasks/text/verifiers.py", "def latex(", "def latex(added, ", set()),
        ("tasks/text/quantities.py", "def quantity(", "def quantity(added, ", set(TEXTS) - {"selection"}),
        ("tasks/text/tokenized.py", "    def decoded(", "    def decoded(added, ", set(TEXTS) - {"selection"}),
        ("tasks/text/worker.py", "def _called(", "def _called(added, ", set(TEXTS) - {"selection"}),
        ("tasks/text/reward_model.py", "    def scores(", "    def scores(added, ", {"model"}),
    ],
)
def test_a_row_in_words_depends_on_its_own_task_verifier_and_scorer(
    tmp_path: Path, file: str, old: str, new: str, changed: set[str]
) -> None:
    sources = edited(tmp_path, file, old, new)
    assert {name for name, spec in TEXTS.items() if row_digest(spec, sources) != row_digest(spec)} == changed


def test_the_code_of_a_warm_start_is_no_part_of_a_run_without_one(tmp_path: Path) -> None:
    sources = edited(tmp_path, "runs/warmstart.py", "    def accumulate(", "    def accumulate(added, ")
    assert row_digest(COLD, sources) == row_digest(COLD) != row_digest(ARITHMETIC)
    start = start_of(ARITHMETIC, 0, 7)
    assert start is not None and start_digest(start, sources) != start_digest(start)


def test_the_switches_of_a_row_leave_the_code_of_its_warm_start_alone(tmp_path: Path) -> None:
    sources = edited(tmp_path, "algorithm/surrogates.py", "def clip(", "def clip(added, ")
    start = start_of(ARITHMETIC, 0, 7)
    assert start is not None and start_digest(start, sources) == start_digest(start)
    assert row_digest(ARITHMETIC, sources) != row_digest(ARITHMETIC)


def test_no_module_of_the_training_code_is_reached_by_a_name_made_at_run_time() -> None:
    """A digest follows names that stand in the source; an import by a computed name would escape it."""
    training = [PACKAGE / name for name in ("algorithm", "policies", "tasks", "runs")]
    files = [path for folder in training for path in folder.rglob("*.py")] + [PACKAGE / "rng.py"]
    assert not [path for path in files if "import_module" in path.read_text() or "__import__" in path.read_text()]
