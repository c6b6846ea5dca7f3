"""Questions and answers out of a file of the user's."""

from __future__ import annotations

from typing import Any

from grpo_ablate.dotted import is_dotted
from grpo_ablate.errors import UserError
from grpo_ablate.spec.schema import JsonlTask
from grpo_ablate.tasks.text.judging import Judge
from grpo_ablate.tasks.text.prompting import chat, plain
from grpo_ablate.tasks.text.protocol import Judged, Prompt
from grpo_ablate.tasks.text.rows import questions
from grpo_ablate.tasks.text.verifiers import Named, Options, Own

COMPONENTS = {"chrf": ("chrf", "accuracy")}  # of verifiers that say more than right or wrong
OF_ITS_OWN = ("score", "accuracy")


class Jsonl:
    """The questions of a data file, put as the settings say, and the verifier that they name."""

    name = "jsonl"

    def __init__(self, settings: JsonlTask):
        found = questions(settings)
        if settings.contents.sha256 not in ("", found.sha256):
            raise UserError(f"{settings.path}: has changed since the row was resolved; plan the row anew.")
        self.settings = settings
        self.questions = found.train + found.held_out
        self.prompt_count, self.held_out_count = len(found.train), len(found.held_out)
        self.stop = tuple(settings.stop)
        self.groups: dict[str, list[bool]] = {}
        own = is_dotted(settings.verifier)
        options = Options(settings.pattern, settings.tolerance)
        self.judge_all = Judge(
            Own(settings.verifier) if own else Named(settings.verifier, options),
            OF_ITS_OWN if own else COMPONENTS.get(settings.verifier, ("accuracy",)),
            settings.format,
            settings.time_limit,
        )
        self.components = self.judge_all.components

    def prompt(self, number: int) -> Prompt:
        """Return a question as chat messages, or as one text."""
        settings, asked = self.settings, self.questions[number].question
        if isinstance(asked, str):
            asked = settings.template.replace("{question}", asked)
            return plain(settings, asked) if settings.form == "plain" else chat(settings, asked)
        return chat(settings, asked)

    def judge(self, numbers: list[int], responses: list[str]) -> Judged:
        """Judge responses to the questions ``numbers``."""
        asked = [self.questions[number] for number in numbers]
        return self.judge_all(numbers, responses, [(question.answer, question.row) for question in asked])

    def exhibit(self, number: int) -> dict[str, Any]:
        """Return the right answer."""
        return {"answer": self.questions[number].answer}
