"""Tasks of reasoning-gym, made procedurally and scored by its own scorers (Stojanovski et al. 2025)."""

from __future__ import annotations

from dataclasses import fields
from importlib import metadata
from typing import Any

from grpo_ablate.errors import UserError, nearest
from grpo_ablate.spec.schema import ReasoningGymTask
from grpo_ablate.tasks.text.judging import Judge
from grpo_ablate.tasks.text.prompting import chat, plain
from grpo_ablate.tasks.text.protocol import Judged, Prompt, Verdict
from grpo_ablate.tasks.text.verifiers import as_number

PACKAGE = "reasoning-gym"
SEEDS = {
    "train": 1 << 20,
    "held-out": 1 << 26,
    "shots": 1 << 28,
}  # an entry's seed is its data set's plus its number
TRIES = 20  # times as many held-out entries as wanted are looked at, since some are among those that train
FIXED = ("seed", "size")  # of a data set's configuration: not the user's to choose

Entry = dict[str, Any]


class ReasoningGym:
    """Entries of one data set. No question that trains is held out.

    Components: ``score`` is the data set's own, which may give a part of the credit; ``accuracy`` is 1 for a score
    of 1. The held-out prompts have no groups.
    """

    name = "reasoning-gym"
    groups: dict[str, list[bool]] = {}

    def __init__(self, settings: ReasoningGymTask):
        if settings.library not in ("", installed()):
            raise UserError(
                f"the row was resolved with {PACKAGE} {settings.library}, and version {installed()} is installed, "
                "which need not make the same questions: plan the row anew."
            )
        self.settings = settings
        self.prompt_count, self.held_out_count = settings.train_prompts, settings.held_out
        train = data_set(settings, "train", settings.train_prompts)
        self.entries = [entry(train, number) for number in range(settings.train_prompts)]
        self.entries += held_out(settings, {one["question"] for one in self.entries})
        self.shots, self.stop = "", tuple[str, ...]()
        if settings.form == "few-shot":
            made = data_set(settings, "shots", max(1, settings.shots))
            shots = [entry(made, number) for number in range(settings.shots)]
            if any(shot["answer"] is None for shot in shots):
                raise UserError(
                    f"task.form few-shot shows worked answers, but {settings.dataset} gives none: use chat."
                )
            self.shots = "".join(f"Question: {shot['question']}\nAnswer: {shot['answer']}\n\n" for shot in shots)
            several_lines = any("\n" in str(shot["answer"]) for shot in shots)
            self.stop = ("\nQuestion:",) if several_lines else ("\n",)
        scorer = Scorer(settings.dataset, settings.parameters)
        self.judge_all = Judge(scorer, ("score", "accuracy"), settings.format, settings.time_limit)
        self.components = self.judge_all.components

    def prompt(self, number: int) -> Prompt:
        """Return a question as chat messages, or after worked ones."""
        asked = self.entries[number]["question"]
        if self.settings.form == "chat":
            return chat(self.settings, asked)
        return plain(self.settings, f"{self.shots}Question: {asked}\nAnswer:")

    def judge(self, numbers: list[int], responses: list[str]) -> Judged:
        """Score responses to the entries ``numbers``, without the white space around them."""
        said = [response.strip() for response in responses] if self.judge_all.format is None else responses
        return self.judge_all(numbers, said, [(self.entries[number],) for number in numbers])

    def exhibit(self, number: int) -> dict[str, Any]:
        """Return the data set's own answer."""
        return {"answer": str(self.entries[number]["answer"])}


class Scorer:
    """A data set's ``score_answer``, which may call anything: it runs in a process of its own."""

    def __init__(self, dataset: str, parameters: dict[str, Any]):
        self.dataset, self.parameters = dataset, parameters
        self.made: Any = None

    def prepare(self) -> None:
        """Make the data set, so that no verdict waits for it."""
        from reasoning_gym import create_dataset

        self.made = create_dataset(self.dataset, seed=0, size=1, **self.parameters)

    def __call__(self, response: str, entry: Entry) -> Verdict:
        """Return the score of a response; what counts as the same answer is the text."""
        score = as_number(self.made.score_answer(response, entry))
        return Verdict({"score": score, "accuracy": float(score == 1)}, response)


def data_set(settings: ReasoningGymTask, part: str, size: int) -> Any:
    """Return the data set with the seed of a part.

    Raises UserError where the package is missing, or the name, a parameter or its value is not known to it.
    """
    registry = _registry()
    if settings.dataset not in registry:
        raise UserError(
            f"task.dataset: {PACKAGE} has no data set '{settings.dataset}'; {nearest(settings.dataset, registry)}"
        )
    known = [field.name for field in fields(registry[settings.dataset][1]) if field.name not in FIXED]
    for key in settings.parameters:
        if key not in known:
            raise UserError(f"task.parameters: {settings.dataset} has no parameter '{key}'; {nearest(key, known)}")
    from reasoning_gym import create_dataset

    try:
        return create_dataset(settings.dataset, seed=SEEDS[part], size=size, **settings.parameters)
    except Exception as error:  # assertions of its configuration, with or without words
        raise UserError(
            f"task.parameters: {settings.dataset} refuses them: {error or type(error).__name__}."
        ) from None


def entry(made: Any, number: int) -> Entry:
    """Return an entry of a data set. Raises UserError where its parameters let none be made."""
    try:
        return dict(made[number])
    except Exception as error:  # what its parameters let go wrong
        raise UserError(
            f"task.parameters: no question {number} can be made with them: {type(error).__name__}: {error}."
        ) from None


def held_out(settings: ReasoningGymTask, trained: set[str]) -> list[Entry]:
    """Return entries whose questions do not train and differ from one another.

    Raises UserError where the data set has too few different questions.
    """
    found: dict[str, Entry] = {}
    made = data_set(settings, "held-out", TRIES * settings.held_out)
    for number in range(len(made)):
        one = entry(made, number)
        if one["question"] not in trained:
            found.setdefault(one["question"], one)
        if len(found) == settings.held_out:
            return list(found.values())
    raise UserError(
        f"task.held_out is {settings.held_out}, but beside its {settings.train_prompts} training prompts "
        f"{settings.dataset} gave {len(found)} different questions: choose fewer of either, or other parameters."
    )


def installed() -> str:
    """Return the version of the package. Raises UserError where it is not installed."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        raise UserError(
            f"task.name is {PACKAGE}, but that package is not installed: pip install 'grpo-ablate[tasks]'."
        ) from None


def _registry() -> dict[str, Any]:
    installed()
    from reasoning_gym.factory import DATASETS

    return DATASETS
