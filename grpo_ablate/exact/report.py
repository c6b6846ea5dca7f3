"""The answer of ``grpo-ablate exact`` as JSON, or as text for a terminal of 100 columns."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from grpo_ablate.errors import UserError
from grpo_ablate.exact import quantities
from grpo_ablate.exact.policy import ExactPolicy, Prompt
from grpo_ablate.exact.policy_file import load
from grpo_ablate.exact.update import ExactUpdate, expected_update, monte_carlo
from grpo_ablate.spec.schema import Switches

WIDTH = 100
SHOWN = 40  # lines of a table


def run(
    path: Path, switches: Switches, settings: Sequence[str], as_json: bool, groups: int | None, seed: int
) -> str:
    """Answer for a policy file; ``settings`` are the --set arguments; raises UserError.

    The group size is the file's, unless it has none or ``--set sampling.group_size`` says another.
    """
    policy = load(path)
    chosen = switches
    if policy.group_size is not None and not any(
        setting.partition("=")[0].strip() == "sampling.group_size" for setting in settings
    ):
        chosen = with_group_size(switches, policy.group_size)
    if groups is None and seed:
        raise UserError(f"--seed {seed}: nothing is drawn without --monte-carlo N.")
    update = expected_update(policy, chosen) if groups is None else monte_carlo(policy, chosen, groups, seed=seed)
    return as_document(policy, chosen, update) if as_json else as_text(policy, chosen, update)


def with_group_size(switches: Switches, group_size: int) -> Switches:
    """Return the switches with another ``sampling.group_size``."""
    return switches.model_copy(
        update={"sampling": switches.sampling.model_copy(update={"group_size": group_size})}
    )


def as_document(policy: ExactPolicy, switches: Switches, update: ExactUpdate) -> str:
    """Return the answer as JSON; vectors are flat lists over the parameters."""
    document = {
        "gradient": update.gradient.tolist(),
        "expected_update": update.expected_update.tolist(),
        "cosine": update.cosine,
        "norm_ratio": update.norm_ratio,
        "variance": update.variance,
        "p_mixed": update.p_mixed,
        "p_accepted": update.accepted,
        "group_size": update.group_size,
        "groups": update.groups,
        "parameters": parameter_names(policy),
        "push": [row.tolist() for row in quantities.push(policy, update.expected_update, switches.sampling)],
        "notes": notes(policy, switches),
    }
    if update.standard_error is not None:
        document["standard_error"] = update.standard_error.tolist()
    return json.dumps(document, indent=2, allow_nan=False)


def as_text(policy: ExactPolicy, switches: Switches, update: ExactUpdate) -> str:
    """Return the answer as lines of at most 100 columns (long names aside)."""
    how = "multisets enumerated" if update.standard_error is None else "groups sampled: a Monte Carlo estimate"
    advantage, kl = switches.advantage, switches.kl
    built_in = f"{advantage.baseline}, {advantage.scale} (ddof {advantage.ddof}, eps {advantage.eps:g})"
    head = [
        f"{policy.source}: one group of {update.group_size}, {update.groups:,} {how}",
        f"{advantage.function or built_in}; {switches.update.surrogate}; "
        f"{switches.update.reduction}; beta {kl.beta:g}",
    ]
    vectors: list[tuple[str, Tensor]] = [
        ("gradient", update.gradient),
        ("expected update", update.expected_update),
    ]
    if update.standard_error is not None:
        vectors.append(("standard error", update.standard_error))
    scalars = [
        ("cosine", _number(update.cosine)),
        ("norm ratio", _number(update.norm_ratio)),
        ("variance (trace)", _number(update.variance)),
        ("chance of a mixed group", _number(update.p_mixed)),
    ]
    if switches.sampling.dynamic != "off":
        scalars.append(("chance of acceptance", _number(update.accepted)))
    blocks = [
        "\n".join(head),
        _table("parameter", parameter_names(policy), vectors),
        "\n".join(f"{name:<24} {value:>14}" for name, value in scalars),
        _responses(policy, switches, update),
    ]
    said = notes(policy, switches)
    if said:
        blocks.append(
            "\n".join(textwrap.fill(n, WIDTH, initial_indent="note: ", subsequent_indent="      ") for n in said)
        )
    return "\n\n".join(blocks)


def parameter_names(policy: ExactPolicy) -> list[str]:
    """Return a name per parameter: a weight's number, or prompt, prefix and choice of a logit."""
    if policy.prompts[0].features is not None:
        return [f"weight {i}" for i in range(len(policy.parameters))]
    return [
        " ".join(filter(None, (f"{number}:", point, choice)))
        for number, prompt in enumerate(policy.prompts)
        for point in prompt.points
        for choice in prompt.choices
    ]


def notes(policy: ExactPolicy, switches: Switches) -> list[str]:
    """Return what a reader should know before believing the numbers."""
    result = []
    longest, limit = max(prompt.edges.shape[1] for prompt in policy.prompts), switches.sampling.max_tokens
    reads_limit = switches.reward.overlong == "soft" or (
        switches.update.reduction == "constant" and switches.update.constant == "max-tokens"
    )
    if reads_limit and longest > limit:
        result.append(
            f"sampling.max_tokens is {limit}, but a response has {longest} tokens: "
            "set it to the limit of the run (--set sampling.max_tokens=...)"
        )
    update, sampling = switches.update, switches.sampling
    if update.inner_passes * update.minibatches > 1 or update.staleness > 0:
        result.append(
            "the first optimiser step on fresh responses: later passes, minibatches, staleness do not show"
        )
    if sampling.dynamic != "off":
        result.append(
            f"sampling.dynamic {sampling.dynamic}: expectation and variance are those of an accepted group"
        )
    if sampling.dynamic != "off" and sampling.filter_on not in ("reward", "accuracy"):
        result.append(f"sampling.filter_on {sampling.filter_on}: the filter reads 'reward', all that a policy has")
    if switches.reward.components:
        result.append("'reward' is taken as the weighted sum of reward.components")
    if sampling.temperature != 1 or sampling.top_k != "off" or sampling.top_p < 1:
        result.append("gradient and update are those of the law really sampled (temperature, top-k, top-p)")
    if switches.reward.transform == "per-prompt-affine":
        result.append("each group draws a scale and a shift of its own; a run keeps those of a prompt")
    return result


def _responses(policy: ExactPolicy, switches: Switches, update: ExactUpdate) -> str:
    names, columns = [], []
    pushed = quantities.push(policy, update.expected_update, switches.sampling)
    laws = quantities.response_laws(policy, switches.sampling)
    for number, prompt in enumerate(policy.prompts):
        names += [f"{number}: {name}" for name in prompt.names]
        columns.append(torch.stack([laws[number], prompt.reward, _lengths(prompt), pushed[number]]))
    probability, reward, length, rise = torch.cat(columns, 1)
    return _table(
        "response",
        names,
        [("probability", probability), ("reward", reward), ("tokens", length), ("push on log pi", rise)],
    )


def _lengths(prompt: Prompt) -> Tensor:
    return prompt.token.sum(-1).double()


def _table(title: str, names: list[str], columns: list[tuple[str, Tensor]]) -> str:
    cells = [[_number(value) for value in column.tolist()] for _, column in columns]
    widths = [max(14, len(header)) for header, _ in columns]
    first = max(len(title), *(len(name) for name in names[:SHOWN]))
    lines = [f"{title:<{first}}  " + "  ".join(f"{h:>{w}}" for (h, _), w in zip(columns, widths, strict=True))]
    for row, name in enumerate(names[:SHOWN]):
        values = "  ".join(f"{column[row]:>{w}}" for column, w in zip(cells, widths, strict=True))
        lines.append(f"{name:<{first}}  {values}")
    if len(names) > SHOWN:
        lines.append(f"... {len(names) - SHOWN} more (--json has all)")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return f"{value:g}" if value == round(value, 4) else f"{value:.9f}"
    return f"{value:.6e}"
