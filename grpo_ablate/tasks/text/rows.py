"""Questions and answers out of a JSONL or Parquet file. Every fault names the file and the row."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from grpo_ablate.errors import UserError, nearest
from grpo_ablate.spec.paths import named_path
from grpo_ablate.spec.schema import JsonlTask
from grpo_ablate.tasks.text.places import LAYOUTS
from grpo_ablate.tasks.text.protocol import Prompt
from grpo_ablate.tasks.text.quantities import quantity

KINDS = (".jsonl", ".ndjson", ".parquet")
NUMERIC = ("numeric", "last-number")  # verifiers that compare with a number


@dataclass(frozen=True)
class Question:
    """A row as the task uses it: the question, the final answer, and everything that stood in the row."""

    question: Prompt
    answer: str
    row: dict[str, Any]

    @property
    def key(self) -> str:
        """What makes two questions the same: their words, whatever the white space between them."""
        if isinstance(self.question, str):
            return json.dumps(" ".join(self.question.split()))
        return json.dumps([[part["role"], " ".join(part["content"].split())] for part in self.question])


@dataclass(frozen=True)
class Questions:
    """The questions of a task and a digest of the files that they came from."""

    train: tuple[Question, ...]
    held_out: tuple[Question, ...]
    sha256: str


def questions(settings: JsonlTask) -> Questions:
    """Read the data files of a task: no held-out question trains, however often it comes.

    Without a file of its own the held-out part is chosen by the questions' text alone, so that it stays the same
    when a file grows. Raises UserError for a file that is missing, empty or of another form, for a row without
    question or answer, and where nothing is left to train on or to measure.
    """
    paths = [named_path(path) for path in (settings.path, settings.held_out_path) if path]
    for path in paths:
        _check(path)
    return _questions(
        settings.model_dump_json(), tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in paths)
    )


@cache  # every row of a grid reads the same files
def _questions(stated: str, files: tuple[tuple[Path, int, int], ...]) -> Questions:
    settings = JsonlTask.model_validate_json(stated)
    contents = [_bytes(path) for path, _, _ in files]
    found = [_read(path, content, settings) for (path, _, _), content in zip(files, contents, strict=True)]
    if settings.held_out_path:
        train, held_out = found
    else:
        held_out = [question for question in found[0] if _place(question) < settings.held_out_share]
        train = [question for question in found[0] if _place(question) >= settings.held_out_share]
    measured = {question.key for question in held_out}
    train = [question for question in train if question.key not in measured]
    if not train:
        raise UserError(f"{files[0][0]}: all of its {len(found[0])} questions are held out, so that none trains.")
    if not held_out:
        raise UserError(
            f"{files[0][0]}: task.held_out_share {settings.held_out_share} holds out none of its {len(found[0])} "
            "questions: raise it, or name a file in task.held_out_path."
        )
    wanted = None if settings.train_prompts == "all" else settings.train_prompts
    if wanted is not None and wanted > len(train):
        raise UserError(
            f"task.train_prompts is {wanted}, but {files[0][0]} has {len(train)} questions to train on."
        )
    digest = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents))
    return Questions(tuple(train[:wanted]), tuple(held_out[: settings.held_out]), digest.hexdigest())


def _place(question: Question) -> float:
    """Return a number in [0, 1) that follows from the question's text."""
    return int.from_bytes(hashlib.sha256(question.key.encode()).digest()[:6], "big") / 2**48


def _check(path: Path) -> None:
    if path.suffix.lower() not in KINDS:
        raise UserError(f"{path}: expected a file that ends in {', '.join(KINDS[:-1])} or {KINDS[-1]}.")
    try:
        there = path.exists()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None
    if not there:
        near = [other.name for other in path.parent.glob("*") if other.suffix.lower() in KINDS]
        offer = nearest(path.name, near) if near else f"{path.parent} has no such files."
        raise UserError(f"{path}: there is no such file; {offer}")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None


def _read(path: Path, content: bytes, settings: JsonlTask) -> list[Question]:
    rows = _parquet(path, content) if path.suffix.lower() == ".parquet" else _json_lines(path, content)
    found = [_question(row, f"{path}: {place}", settings) for place, row in rows]
    if not found:
        raise UserError(f"{path}: is empty: expected a question and an answer in every row.")
    return found


def _json_lines(path: Path, content: bytes) -> Iterable[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: line {number}: is not JSON: {error}.") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}: line {number}: expected a JSON object, found a {type(row).__name__}.")
        yield f"line {number}", row


def _parquet(path: Path, content: bytes) -> Iterable[tuple[str, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    except (pa.ArrowException, OSError):
        raise UserError(f"{path}: is no Parquet file.") from None
    try:
        rows = table.to_pylist()
    except (ValueError, OverflowError) as error:
        raise UserError(f"{path}: holds what cannot be read: {error}.") from None
    for number, row in enumerate(rows, 1):
        yield f"row {number}", row


def _question(row: dict[str, Any], where: str, settings: JsonlTask) -> Question:
    asked, answered = (
        _at(row, getattr(settings, key), f"{where}", f"task.{key}") for key in ("question", "answer")
    )
    if isinstance(asked, list):
        if settings.form != "chat":
            raise UserError(f"{where}: the question is a list of messages, which goes with task.form chat alone.")
        if not asked or not all(_is_message(part) for part in asked):
            raise UserError(f"{where}: the question is a list, but not of messages with a role and a content.")
        if settings.template != "{question}":
            raise UserError(
                f"{where}: the question is a list of messages, which task.template does not change: leave it out."
            )
        asked = [{"role": part["role"], "content": part["content"]} for part in asked]
    elif not isinstance(asked, str) or not asked.strip():
        raise UserError(f"{where}: has no question under '{settings.question}': expected a text.")
    if not _is_answer(answered):
        raise UserError(f"{where}: has no answer under '{settings.answer}': expected a text or a number.")
    answer = LAYOUTS[settings.layout](str(answered))
    if answer is None:
        mark = {"gsm8k": "####", "math": "\\boxed{}"}[settings.layout]
        raise UserError(f"{where}: the answer has no {mark}, which task.layout {settings.layout} reads.")
    if settings.verifier in NUMERIC and quantity(answer) is None:
        raise UserError(
            f"{where}: the answer '{' '.join(answer.split())[:80]}' is no number, but task.verifier is "
            f"{settings.verifier}."
        )
    try:
        json.dumps([asked, answer], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: holds half of a surrogate pair, as \\ud800, which is no character.") from None
    return Question(asked, answer, row)


def _at(row: dict[str, Any], key: str, where: str, setting: str) -> Any:
    """Return what stands under a key, or under keys joined by dots."""
    value: Any = row
    for part in [key] if key in row else key.split("."):
        if not isinstance(value, dict) or part not in value:
            known = value if isinstance(value, dict) else row
            offer = nearest(part, known) if known else "the row is empty."
            raise UserError(f"{where}: has no key '{key}' ({setting}); {offer}")
        value = value[part]
    return value


def _is_answer(value: Any) -> bool:
    """Whether a value is a text that is not blank, or a number that is not NaN."""
    if isinstance(value, str):
        return bool(value.strip())
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool) and value == value


def _is_message(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("role"), str) and isinstance(part.get("content"), str)
