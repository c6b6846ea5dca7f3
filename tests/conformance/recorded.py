"""trl's trainers on responses whose log-probabilities are given: all but the forward pass is trl's own code.

Every token of a batch has an id of its own. A model that looks the log-probability of an id up in a table then
stands for any model, and the gradient of its table is that of the loss with respect to each log-probability.
Batches are lists of responses as in a batch file, group after group, all groups of one size.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import batches
import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from grpo_ablate.algorithm.objective import loss, prepare
from grpo_ablate.algorithm.records import Batch, Policy
from grpo_ablate.explain.batch_file import BatchFile, parse
from grpo_ablate.spec.resolve import merged
from grpo_ablate.spec.schema import Switches

Entries = list[dict[str, Any]]
Ragged = list[list[float]]
LIMIT = 8  # sampling.max_tokens, longer than any response here
RESERVED = 16  # ids of the pad and end tokens and of the prompts
NUMBERS = ("logp", "old_logp", "ref_logp", "sampler_logp")


def single(value: float) -> float:
    """Return the nearest number that float32 holds."""
    return torch.tensor(value, dtype=torch.float32).item()


def fixed_batch(seed: int, groups: int = 3, size: int = 4) -> Entries:
    """Return responses of unequal lengths, truncated ones among them, group after group, as float32 holds them."""
    entries = sorted(
        batches.responses(seed, (size,) * groups, missing=False, longest=6), key=lambda entry: entry["group"]
    )
    for entry in entries:
        entry |= {name: [single(value) for value in entry[name]] for name in NUMBERS}
        entry |= {"reward": single(entry["reward"])}
        del entry["steps"]
    assert {entry["truncated"] for entry in entries} == {True, False}
    assert len({len(entry["logp"]) for entry in entries}) > 2
    return entries


def with_current_as_old(entries: Entries) -> Entries:
    """Return the batch as it is before the first step: every ratio is 1."""
    return [entry | {"old_logp": entry["logp"]} for entry in entries]


class Recorded(PreTrainedModel):
    """A model that says of every token what its table holds."""

    class Config(PretrainedConfig):
        model_type = "recorded"

    config_class = Config

    def __init__(self, table: Tensor, entropies: Tensor, ends: list[int]):
        super().__init__(self.Config())
        self.table = torch.nn.Parameter(table)
        self.entropies = torch.nn.Parameter(entropies)
        self.generation_config = GenerationConfig(eos_token_id=ends)

    def forward(self, input_ids, attention_mask, labels=None, fused_lm_head=True):
        return SimpleNamespace(log_probs=self.table[input_ids], entropy=self.entropies[input_ids])


@dataclass(frozen=True)
class Ids:
    """The id of every token of every response."""

    of: list[list[int]]
    ends: list[int]  # ids that end a response: the last of each that is not truncated

    @property
    def count(self) -> int:
        return RESERVED + sum(map(len, self.of))

    def table(self, values: Ragged) -> Tensor:
        """Return float32 [ids] from one value per token; 0 for the prompts."""
        table = torch.zeros(self.count)
        for ids, row in zip(self.of, values, strict=True):
            table[ids] = torch.tensor(row)
        return table

    def ragged(self, table: Tensor) -> Ragged:
        """Return one value per token."""
        return [table[ids].tolist() for ids in self.of]

    def response(self, token: int) -> int:
        """Return the response that a token belongs to."""
        return next(number for number, ids in enumerate(self.of) if token in ids)


def ids_of(entries: Entries) -> Ids:
    found, after = [], RESERVED
    for entry in entries:
        found.append(list(range(after, after + len(entry["logp"]))))
        after += len(entry["logp"])
    return Ids(found, [ids[-1] for ids, entry in zip(found, entries, strict=True) if not entry["truncated"]])


class Engine:
    """What stands where trl starts vLLM: hands out the recorded responses with the sampler's log-probabilities."""

    def __init__(self, ids: Ids, entries: Entries):
        self.ids, self.entries, self.loads = ids, entries, 0

    def sync_weights(self) -> None:
        self.loads += 1

    def generate(self, prompts, images, num_generations, profiler):
        return None, self.ids.of, [[[value] for value in entry["sampler_logp"]] for entry in self.entries], None


def tokenizer(groups: int) -> PreTrainedTokenizerFast:
    words = ["<pad>", "<end>", "and", *(f"p{group}" for group in range(groups))]
    assert len(words) <= RESERVED
    model = Tokenizer(WordLevel({word: token for token, word in enumerate(words)}, unk_token="<pad>"))
    from tokenizers.pre_tokenizers import WhitespaceSplit

    model.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", eos_token="<end>", padding_side="left"
    )


def prompts(entries: Entries) -> list[str]:
    """Return a prompt for each group, of unequal lengths."""
    groups = list(dict.fromkeys(entry["group"] for entry in entries))
    return ["and " * number + f"p{number}" for number in range(len(groups))]


def reward_function(ids: Ids, values: Sequence[float | None]) -> Callable[..., list[float | None]]:
    """Return what trl calls for rewards: it knows a response by its first token."""
    by_token = {row[0]: value for row, value in zip(ids.of, values, strict=True)}

    def score(*, completion_ids, **_):
        return [by_token[row[0]] for row in completion_ids]

    return score


def make_trainer(
    entries: Entries,
    arguments: dict[str, Any],
    *,
    rewards: Sequence[Sequence[float | None]] | None = None,
    entropies: Ragged | None = None,
    kinds: tuple[Any, Any] = (GRPOTrainer, GRPOConfig),
    **keywords: Any,
) -> Any:
    """Return trl's trainer, about to generate the batch with the old policy.

    ``rewards`` holds a list for each reward function; by default one function gives the batch's own.
    """
    ids, trainer_kind, config_kind = ids_of(entries), *kinds
    words = prompts(entries)
    model = Recorded(
        ids.table([entry["old_logp"] for entry in entries]),
        ids.table(entropies or [[0.0] * len(row) for row in ids.of]),
        ids.ends,
    )
    reference = Recorded(ids.table([entry["ref_logp"] for entry in entries]), torch.zeros(ids.count), ids.ends)
    functions = [reward_function(ids, values) for values in rewards or [[entry["reward"] for entry in entries]]]
    for number, function in enumerate(functions):
        function.__name__ = f"reward_{number}"
    engine = Engine(ids, entries)
    if not arguments.get("use_vllm"):
        keywords["rollout_func"] = lambda asked, trainer: {
            "prompt_ids": trainer.processing_class(asked)["input_ids"],
            "completion_ids": ids.of,
            "logprobs": None,
        }
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
        module = trainer_kind.__module__
        patch.setattr(f"{module}.VLLMGeneration", lambda **_: engine)
        patch.setattr(f"{module}.create_model_from_path", lambda *_, **__: reference)
        trainer = trainer_kind(
            model,
            functions,
            config_kind(
                **{
                    "output_dir": folder,
                    "per_device_train_batch_size": len(entries),
                    "num_generations": len(entries) // len(words),
                    "max_completion_length": LIMIT,
                    "shuffle_dataset": False,
                    "bf16": False,
                    "use_cpu": True,
                    "gradient_checkpointing": False,
                    "report_to": "none",
                    "save_strategy": "no",
                    "logging_strategy": "no",
                    "disable_tqdm": True,
                    "dataloader_pin_memory": False,
                    **arguments,
                }
            ),
            Dataset.from_dict({"prompt": words}),
            processing_class=tokenizer(len(words)),
            **keywords,
        )
    for recorded in (trainer.model, trainer.ref_model):
        if recorded is not None:
            del recorded.forward  # trl's fused output layer, which a table has no use for
    return trainer


def move(model: Recorded, ids: Ids, values: Ragged) -> None:
    """Let the model say other log-probabilities from here on."""
    with torch.no_grad():
        model.table.copy_(ids.table(values))


@dataclass(frozen=True)
class Answer:
    """What one side makes of a batch."""

    advantages: list[float] | Ragged
    loss: float
    gradient: Ragged  # of the loss, with respect to each log-probability
    entropy_gradient: Ragged


def theirs(
    entries: Entries, arguments: dict[str, Any], *, advantages: Ragged | None = None, **keywords: Any
) -> Answer:
    """Generate under the old policy, then take the loss under the current one, all by trl.

    ``advantages``, one a token, take the place of trl's own.
    """
    ids = ids_of(entries)
    # Two inner iterations: the old log-probabilities are taken when the responses are, as for any later step.
    trainer = make_trainer(entries, {"num_iterations": 2, **arguments}, **keywords)
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps  # as train() does
    trainer.model.train()
    size = trainer.args.num_generations
    inputs = trainer._generate_and_score_completions(
        [{"prompt": prompt} for prompt in prompts(entries) for _ in range(size)]
    )
    if advantages is not None:
        longest = inputs["completion_ids"].shape[1]
        inputs["advantages"] = torch.tensor([row + [0.0] * (longest - len(row)) for row in advantages])
    move(trainer.model, ids, [entry["logp"] for entry in entries])
    found = trainer._compute_loss(trainer.model, inputs)
    found.backward()
    gradients = [parameter.grad for parameter in (trainer.model.table, trainer.model.entropies)]
    by_token, by_entropy = (torch.zeros(ids.count) if grad is None else grad for grad in gradients)
    assert not by_token[:RESERVED].any()
    return Answer(inputs["advantages"].tolist(), found.item(), ids.ragged(by_token), ids.ragged(by_entropy))


def switches_of(*layers: dict[str, dict[str, Any]]) -> Switches:
    """Return switches from layers, the later of which win."""
    return Switches.model_validate(merged({"sampling": {"max_tokens": LIMIT}}, *layers))


def components_of(file: BatchFile, values: Sequence[Sequence[float | None]]) -> dict[str, Tensor]:
    """Return reward components [M, B, G] by name from a list for each."""
    found = {}
    for number, row in enumerate(values):
        component = torch.full_like(file.batch.reward, torch.nan)
        for (b, g), value in zip(file.place, row, strict=True):
            component[0, b, g] = torch.nan if value is None else value
        found[f"reward_{number}"] = component
    return found


def ours(
    entries: Entries,
    switches: Switches,
    *,
    rewards: Sequence[Sequence[float | None]] = (),
    entropies: Ragged | None = None,
) -> Answer:
    """Return the same of this project; advantages by token."""
    file = parse(entries, "test")
    batch: Batch = replace(file.batch, components=components_of(file, rewards))
    prepared = prepare(batch, switches, batches.no_draws(batch))
    logprobs = file.logprobs.clone().requires_grad_()
    entropy = torch.zeros_like(logprobs)
    for (b, g), row in zip(file.place, entropies or [], strict=bool(entropies)):
        entropy[0, b, g, : len(row)] = torch.tensor(row, dtype=torch.float64)
    entropy.requires_grad_()
    step = loss(batch, prepared, Policy(logprobs, entropy), switches)
    by_token, by_entropy = torch.autograd.grad(step.loss.sum(), (logprobs, entropy), allow_unused=True)
    return Answer(
        file.ragged(prepared.advantages),
        step.loss.item(),
        file.ragged(by_token),
        [[] for _ in entries] if by_entropy is None else file.ragged(by_entropy),
    )


def largest(one: Ragged, other: Ragged) -> float:
    """Return the largest difference of two ragged lists."""
    pairs = [pair for rows in zip(one, other, strict=True) for pair in zip(*rows, strict=True)]
    return max(abs(a - b) for a, b in pairs)


def by_token(advantages: list[float] | Ragged, entries: Entries) -> Ragged:
    """Return trl's advantages as one a token: it has one a response, or pads."""
    return [
        row[: len(entry["logp"])] if isinstance(row, list) else [row] * len(entry["logp"])
        for row, entry in zip(advantages, entries, strict=True)
    ]


def difference(one: Answer, other: Answer, entries: Entries) -> float:
    """Return the largest difference in an advantage, the loss or a gradient."""
    return max(
        largest(by_token(one.advantages, entries), by_token(other.advantages, entries)),
        abs(one.loss - other.loss),
        largest(one.gradient, other.gradient),
    )
