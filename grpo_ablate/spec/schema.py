"""The switches of a run as typed records, each with its frozen neutral value.

A field's default is its *neutral value*: a resolved spec drops every key that equals it before
hashing, so that adding a switch renames no earlier run. Changing a default therefore changes what
old hashes mean: bump ``SCHEMA_VERSION`` when one must change (a test keeps the list append-only).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

SCHEMA_VERSION = 1

Off = Literal["off"]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Coordinate = Annotated[int, Field(ge=1, le=65536)]  # counted by a key of the random numbers
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=80)]


class Section(BaseModel):
    """A named group of switches; unknown keys are refused and types are not coerced."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Candidate(Section):
    """One fixed response of a selection prompt and the quality it earns."""

    text: str
    quality: Finite


class SelectionPrompt(Section):
    """A source sentence, the language to translate into, and the candidates to choose from."""

    source: str
    target: str
    candidates: Annotated[list[Candidate], Field(min_length=2)]


class SelectionTask(Section):
    """Choose one of a prompt's fixed candidates; the reward is the candidate's quality."""

    components: ClassVar[tuple[str, ...]] = ("quality", "accuracy")
    has_steps: ClassVar[bool] = False  # no step scores: process supervision has nothing to read
    needs_tokens: ClassVar[bool] = False

    name: Literal["selection"] = "selection"
    version: Literal[1] = 1
    prompts: Annotated[list[SelectionPrompt], Field(min_length=1)]

    @property
    def pool_size(self) -> int:
        """Prompts that training draws from."""
        return len(self.prompts)


class ArithmeticTask(Section):
    """A chain of additions and subtractions with labelled steps; the verifier is binary, the steps are scored."""

    components: ClassVar[tuple[str, ...]] = ("accuracy",)
    has_steps: ClassVar[bool] = True
    needs_tokens: ClassVar[bool] = True  # responses are token sequences: a language model's task

    name: Literal["arithmetic"]
    version: Literal[1] = 1
    operands: Annotated[list[Annotated[int, Field(ge=2, le=7)]], Field(min_length=1)] = [3, 4, 5, 6, 7]
    train_prompts: Annotated[int, Field(ge=1, le=65536)] = 4096  # the pool that RL draws from
    held_out: Annotated[int, Field(ge=1, le=4096)] = 256  # prompts that only evaluation sees

    @property
    def pool_size(self) -> int:
        """Prompts that training draws from."""
        return self.train_prompts


class TranslationTask(Section):
    """Translate sentences of a small English grammar into French or Spanish; the reward is sentence chrF."""

    components: ClassVar[tuple[str, ...]] = ("chrf", "accuracy")
    has_steps: ClassVar[bool] = False
    needs_tokens: ClassVar[bool] = True

    name: Literal["translation"]
    version: Literal[1] = 1
    train_prompts: Annotated[int, Field(ge=1, le=32768)] = 2048
    held_out: Annotated[int, Field(ge=1, le=4096)] = 256

    @property
    def pool_size(self) -> int:
        """Prompts that training draws from."""
        return self.train_prompts


class TextSection(Section):
    """What all tasks in words share; a pretrained model reads and writes them."""

    has_steps: ClassVar[bool] = False
    needs_tokens: ClassVar[bool] = True

    version: Literal[1] = 1
    system: str = ""  # system message of a chat prompt; empty: what asks for the format, if there is one
    format: Literal["off", "think-answer", "boxed", "hashes"] = "off"  # asked for, and where answers stand
    # Seconds of computing for one verdict; ten times as many by the clock.
    time_limit: Annotated[float, Field(gt=0, le=86_400)] = 10.0


class AdditionTask(TextSection):
    """Sums of two whole numbers; the sizes take turns, so that each listed size has the same share of prompts."""

    name: Literal["addition"]
    form: Literal["few-shot", "chat"] = "few-shot"  # four worked sums before the question, or a chat message
    digits: Annotated[
        list[Annotated[list[Annotated[int, Field(ge=1, le=9)]], Field(min_length=2, max_length=2)]],
        Field(min_length=1),
    ] = [[1, 1], [2, 1]]  # digits of the two numbers, a size each
    train_prompts: Annotated[int, Field(ge=1, le=65536)] = 4096  # a sum of a small size may come more than once
    held_out: Annotated[int, Field(ge=1, le=4096)] = 256

    @property
    def pool_size(self) -> int:
        """Prompts that training draws from."""
        return self.train_prompts


class ReasoningGymTask(TextSection):
    """A data set of reasoning-gym by name, scored by its own scorer; ``library`` is filled in at resolution."""

    name: Literal["reasoning-gym"]
    dataset: Annotated[str, Field(min_length=1)]
    parameters: dict[str, Any] = {}  # of the data set's configuration, without size and seed
    form: Literal["few-shot", "chat"] = "chat"
    shots: Annotated[int, Field(ge=0, le=64)] = 4  # few-shot: worked questions before the one asked
    train_prompts: Annotated[int, Field(ge=1, le=65536)] = 1024
    held_out: Annotated[int, Field(ge=1, le=4096)] = 256
    library: str = ""  # the version of reasoning-gym that makes the questions

    @property
    def pool_size(self) -> int:
        """Prompts that training draws from."""
        return self.train_prompts


class Contents(Section):
    """What a task's data files held when a row was resolved."""

    sha256: str = ""
    train: Annotated[int, Field(ge=0)] = 0  # questions to train on
    held_out: Annotated[int, Field(ge=0)] = 0


class JsonlTask(TextSection):
    """Questions and answers out of a JSONL or Parquet file; ``contents`` is filled in when a row is resolved."""

    name: Literal["jsonl"]
    path: Annotated[str, Field(min_length=1)]
    held_out_path: str = ""  # a file of held-out questions; empty: held_out_share of the others
    held_out_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    train_prompts: Annotated[int, Field(ge=1, le=16_777_216)] | Literal["all"] = "all"  # the first so many
    held_out: Annotated[int, Field(ge=1, le=65536)] = 256  # at most, the first so many
    question: str = "question"  # the key (or keys joined by dots) of a row's question, text or chat messages
    answer: str = "answer"
    layout: Literal["plain", "gsm8k", "math"] = "plain"  # the final answer: all of it, after ####, in \boxed{}
    form: Literal["chat", "plain"] = "chat"
    template: str = "{question}"  # the user's message, or the whole plain prompt
    stop: list[Annotated[str, Field(min_length=1)]] = []  # texts that end a response
    verifier: Literal["exact", "numeric", "last-number", "regular-expression", "math-verify", "chrf"] | str = (
        "last-number"  # or one's own, as package.module:function
    )
    pattern: str = ""  # regular-expression: its first group in the last match is the answer
    tolerance: NonNegative = 0.0  # numeric, last-number: relative
    contents: Contents = Contents()

    @property
    def pool_size(self) -> int:
        """Prompts that training draws from."""
        return self.contents.train


class TabularPolicy(Section):
    """One categorical distribution per prompt with logits of its own, started uniform, in float64."""

    name: Literal["tabular"] = "tabular"


class WarmStart(Section):
    """Supervised training on the task's noisy demonstrations, from which every run starts."""

    steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0  # 0: from random initial weights
    demonstrations: Count = 20_000
    batch: Count = 64
    learning_rate: Positive = 4e-3  # AdamW, linear decay over the second half of the steps
    per_seed: bool = False  # a checkpoint of its own for each seed, or one that all seeds share


class StackedPolicy(Section):
    """A Llama-shaped transformer per seed, all seeds as one batched program, in float32."""

    name: Literal["stacked"]
    hidden: Annotated[int, Field(ge=8, le=8192)] = 64
    layers: Annotated[int, Field(ge=1, le=128)] = 2
    heads: Annotated[int, Field(ge=1, le=128)] = 2
    kv_heads: Annotated[int, Field(ge=1, le=128)] = 2  # grouped-query attention where fewer than heads
    head_size: Annotated[int, Field(ge=32, le=512)] = 32
    intermediate: Annotated[int, Field(ge=8, le=65536)] = 128
    rms_eps: Positive = 1e-6
    rope_theta: Positive = 10_000.0
    tied: bool = False  # input and output embeddings are one matrix
    warmstart: WarmStart = WarmStart()


class Lora(Section):
    """Low-rank adapters on every linear layer but the output's (Hu et al. 2022, LoRA), without dropout."""

    rank: Annotated[int, Field(ge=1, le=65536)] = 16
    alpha: Positive = 32.0  # adapters are scaled by alpha / rank


class Vllm(Section):
    """How vLLM runs inside the training process; ``sampling.engine: vllm`` alone reads it."""

    gpu_memory_utilization: Fraction = 0.3  # share of a GPU's memory for its weights, keys and values
    cpu_cache: Annotated[int, Field(ge=1, le=4096)] = 1  # GiB of keys and values on a CPU
    max_sequences: Annotated[int, Field(ge=1, le=65536)] = 128  # responses drawn side by side
    sleep: bool = True  # on a GPU: give the memory to training between rollouts
    tolerance: Positive | Literal["auto"] = "auto"  # mean |log-probability| gap allowed after weights were loaded


class HuggingFacePolicy(Section):
    """A pretrained causal language model as transformers loads it; one seed a job.

    ``digest`` is that of the model folder's files, filled in when a row is resolved; a folder that has changed
    since is refused.
    """

    name: Literal["huggingface"]
    model: Annotated[str, Field(min_length=1)]  # a folder, a name on the hub, or smollm2
    revision: str = ""  # of a model on the hub: its commit, 40 hexadecimal digits
    digest: str = ""
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the forward pass; steps are taken in float32
    lora: Lora | Off = "off"
    gradient_checkpointing: bool = False  # compute activations twice instead of keeping them
    share_prompts: bool = False  # compute a prompt once for its group; pays where prompts are long
    microbatch_tokens: Count = 8192  # tokens of one forward and backward pass; one response at least
    device: Literal["auto", "cpu", "cuda"] = "auto"
    vllm: Vllm = Vllm()


class Evaluation(Section):
    """When and how a policy is measured. ``samples: exact`` takes the expectation in closed form."""

    every: Count = 1  # rounds between evaluations; round 0 and the last are always evaluated
    samples: Count | Literal["exact"] = "exact"  # responses per held-out prompt
    final_samples: Count | Literal["same"] = "same"  # the same, of the last evaluations
    final_evaluations: Count = 1  # how many evaluations, counted from the end, draw ``final_samples``
    last: Count = 1  # the score of a run is the mean of its last evaluations


class Reward(Section):
    """The scalar that a response earns and its way into the group statistics (maths: rewards)."""

    source: Literal["task", "model"] = "task"  # model: a sequence-classification model scores prompt and response
    model: str = ""  # its folder
    model_digest: str = ""  # of the folder's files, filled in when a row is resolved
    model_dtype: Literal["float32", "bfloat16"] = "float32"
    refresh_model: Annotated[int, Field(ge=0)] = 0  # rounds between refreshes on the task's verdicts; 0: never
    refresh_steps: Annotated[int, Field(ge=1, le=65536)] = 20  # optimiser steps of a refresh
    refresh_learning_rate: Positive = 1e-5
    components: dict[str, Finite] = {}  # weight per named component; empty: the task's own total
    transform: Literal[
        "identity", "affine", "per-prompt-affine", "power", "clip", "rank", "noise", "constant", "random"
    ] = "identity"
    scale: Finite = 1.0  # affine: a in a r + b
    shift: Finite = 0.0  # affine: b in a r + b
    scale_low: Positive = 0.5  # per-prompt-affine: a_x uniform in [scale_low, scale_high]
    scale_high: Positive = 2.0
    shift_low: Finite = -1.0  # per-prompt-affine: b_x uniform in [shift_low, shift_high]
    shift_high: Finite = 1.0
    power: Positive = 1.0  # power: r ** power
    clip_low: Finite | Off = "off"  # clip: bounds of r
    clip_high: Finite | Off = "off"
    noise_std: NonNegative = 0.0  # noise: standard deviation of additive normal noise
    constant: Finite = 0.0  # constant: the reward of every response
    overlong: Literal["off", "soft", "mask"] = "off"
    overlong_buffer: Annotated[int, Field(ge=0)] = 0  # soft: L_cache, tokens before the limit
    masked_in_baseline: bool = True  # mask: does a masked response count in the group statistics
    masked_in_denominator: bool = True  # mask: does it count in BG and N


class Sampling(Section):
    """How responses are drawn: the law, the groups, the filter."""

    engine: Literal["transformers", "vllm"] = "transformers"  # pretrained models only
    prompts: Coordinate = 8  # B, prompts (groups) per round
    prompt_order: Literal["each-once", "cycle", "iid"] = "cycle"
    group_size: Coordinate = 8  # G, responses per prompt
    max_tokens: Coordinate = 1  # L_max
    temperature: Positive = 1.0
    top_k: Count | Off = "off"
    top_p: Fraction = 1.0
    dynamic: Literal["off", "drop", "resample"] = "off"
    filter_on: str = "accuracy"  # reward component whose raw values the filter tests
    max_resample: Count = 3  # resample: extra draws allowed after the first
    on_exhausted: Literal["train-on-fewer", "fail"] = "train-on-fewer"
    random_key: Annotated[int, Field(ge=0, lt=65536)] = 0  # key of all random numbers, beside the seed


class Advantage(Section):
    """From shaped rewards to one weight per token (maths: advantages, process supervision)."""

    supervision: Literal["outcome", "process"] = "outcome"
    baseline: Literal["none", "constant", "mean", "leave-one-out", "batch", "ema"] = "mean"
    constant: Finite = 0.0  # baseline constant: b
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.9
    ema_initial: Finite = 0.0
    scale: Literal["none", "group-std", "batch-std", "leave-one-out-std"] = "group-std"
    ddof: Literal[0, 1] = 0
    eps: NonNegative = 0.0  # delta, the stabiliser of the divisor
    eps_inside: bool = False  # sqrt(s^2 + eps) instead of s + eps
    advantage_clip: Positive | Off = "off"
    function: str = ""  # one's own in place of baseline and scale, as package.module:function


class Update(Section):
    """The surrogate, its clipping, the reduction to a loss, and the inner loop (maths: surrogate)."""

    surrogate: Literal["clip", "reinforce", "cispo", "sequence", "geometric", "soft"] = "clip"
    clip_low: NonNegative | Off = 0.2
    clip_high: NonNegative | Off = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | Off = "off"
    tau_pos: Positive = 1.0
    tau_neg: Positive = 1.05
    log_ratio_clamp: Positive | Off = "off"
    reduction: Literal["sequence-mean", "token-mean", "constant", "sequence-sum"] = "sequence-mean"
    constant: Count | Literal["max-tokens"] = "max-tokens"  # L_max of the constant reduction
    inner_passes: Count = 1
    minibatches: Count = 1
    entropy_coefficient: Finite = 0.0
    staleness: Annotated[int, Field(ge=0)] = 0  # rounds between sampler and trainer
    mismatch: Literal["none", "truncate", "mask"] = "none"
    mismatch_level: Literal["token", "sequence"] = "token"
    mismatch_cap: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.0
    force: bool = False  # allow a combination that is refused because it misweights tokens


class Kl(Section):
    """The penalty on distance from the reference policy (maths: KL to the reference)."""

    beta: NonNegative = 0.0
    estimator: Literal["k1", "k2", "k3", "exact"] = "k3"
    gradient: Literal["pathwise", "ratio", "score-function"] = "pathwise"
    place: Literal["loss", "reward-before", "reward-after"] = "loss"
    refresh_reference: Annotated[int, Field(ge=0)] = 0  # rounds between refreshes; 0: never


class Optimizer(Section):
    """The optimiser of the policy's parameters, the same for every member."""

    name: Literal["sgd", "adamw"] = "sgd"
    learning_rate: Positive = 0.1
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: Annotated[int, Field(ge=0)] = 0  # optimiser steps of linear warm-up
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)] = [
        0.9,
        0.999,
    ]
    weight_decay: NonNegative = 0.0
    max_grad_norm: Positive | Off = "off"  # per member


class Budget(Section):
    """What every row may spend, and what is held when a row changes the group size."""

    rollouts: Count  # responses generated in all, rejected ones included
    hold: Literal["prompts-x-group", "prompts"] = "prompts-x-group"


class Switches(Section):
    """The switches of the algorithm itself: what one batch of responses is turned into."""

    reward: Reward = Reward()
    sampling: Sampling = Sampling()
    advantage: Advantage = Advantage()
    update: Update = Update()
    kl: Kl = Kl()


def _named(default: str) -> Discriminator:
    """Choose a record by its ``name``, which the neutral one need not state."""

    def name(section: Any) -> str:
        found = section.get("name", default) if isinstance(section, dict) else getattr(section, "name", default)
        return found if isinstance(found, str) else str(found)

    return Discriminator(name)


Task = Annotated[
    Annotated[SelectionTask, Tag("selection")]
    | Annotated[ArithmeticTask, Tag("arithmetic")]
    | Annotated[TranslationTask, Tag("translation")]
    | Annotated[AdditionTask, Tag("addition")]
    | Annotated[ReasoningGymTask, Tag("reasoning-gym")]
    | Annotated[JsonlTask, Tag("jsonl")],
    _named("selection"),
]
Policy = Annotated[
    Annotated[TabularPolicy, Tag("tabular")]
    | Annotated[StackedPolicy, Tag("stacked")]
    | Annotated[HuggingFacePolicy, Tag("huggingface")],
    _named("tabular"),
]


class Spec(Switches):
    """Everything that decides what is trained and measured; equal specs are one run."""

    task: Task
    policy: Policy = TabularPolicy()
    evaluation: Evaluation = Evaluation()
    optimizer: Optimizer = Optimizer()
    budget: Budget

    @property
    def rollouts_per_round(self) -> int:
        """B G, responses generated in one round before any resampling."""
        return self.sampling.prompts * self.sampling.group_size

    @property
    def rounds(self) -> int:
        """Rollout rounds that the budget pays for when nothing is resampled."""
        return self.budget.rollouts // self.rollouts_per_round

    @property
    def steps_per_round(self) -> int:
        """Optimiser steps taken on the responses of one round."""
        return self.update.inner_passes * self.update.minibatches
