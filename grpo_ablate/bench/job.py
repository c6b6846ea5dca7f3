"""What a process of the benchmark is asked to do, as it travels on its command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from grpo_ablate.spec.identity import from_canonical
from grpo_ablate.spec.schema import Spec

if TYPE_CHECKING:
    from grpo_ablate.tasks.protocol import LanguageTask


@dataclass(frozen=True)
class Job:
    """One process of one side."""

    side: str  # a key of worker.SIDES
    spec_json: str  # canonical
    results: str  # where the warm start lies
    members: int  # models trained side by side
    process: int  # 0, 1, ...: the seeds of a process follow those of the one before
    device: str = "cpu"

    @property
    def spec(self) -> Spec:
        """What is trained."""
        return from_canonical(self.spec_json)

    @property
    def seeds(self) -> range:
        """The seeds of the models."""
        return range(self.process * self.members, (self.process + 1) * self.members)

    @property
    def task(self) -> LanguageTask:
        """The task, made anew."""
        return language_task(self.spec)

    @property
    def results_folder(self) -> Path:
        """Where the warm start lies."""
        return Path(self.results)

    def to_json(self) -> str:
        """Return the job as one line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        """Return the job that `to_json` wrote.

        >>> job = Job("ours", "{}", "results", 4, 1)
        >>> Job.from_json(job.to_json()) == job, list(job.seeds)
        (True, [4, 5, 6, 7])
        """
        return Job(**json.loads(text))


def language_task(spec: Spec) -> LanguageTask:
    """Return the task of a spec whose policy is a language model; so its task has tokens."""
    from grpo_ablate.tasks.registry import make_task

    return cast("LanguageTask", make_task(spec.task))
