"""Step scores: the advantages of process supervision, and its expected update beside outcome supervision."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from grpo_ablate.algorithm.records import Steps
from grpo_ablate.exact.columns import cosine_and_norm
from grpo_ablate.exact.policy import ExactPolicy, jacobian, support, tables
from grpo_ablate.exact.propositions.cases import SHORT_AND_LONG, advantages, row, tree
from grpo_ablate.exact.propositions.findings import Finding, equals, falls_below, printed
from grpo_ablate.exact.quantities import response_laws
from grpo_ablate.exact.update import expected_update
from grpo_ablate.spec.schema import Sampling

TITLE = "Process supervision"
STATEMENT = (
    "Step scores are pooled over the group, standardised, and each token gets the sum of the steps that end "
    "at it or later. On a token tree where every word is a step, right words +1 and wrong ones -1, the "
    "expected update points elsewhere than that of outcome supervision with the sum of the same scores as the "
    "reward."
)
PROCESS = {"advantage": {"supervision": "process"}}
SCORE = {"yes": 1.0, "no": -1.0}


def findings() -> Iterator[Finding]:
    """Yield what was found."""
    yield from _worked()
    policy = stepwise()
    case = "token tree, sequence-sum, G = 2"
    found = expected_update(policy, row(2, PROCESS)).expected_update
    yield equals(
        case, "process: E update", found, by_loops(policy), "all 225 ordered pairs, written as plain loops"
    )
    for size in (2, 4):
        process, outcome = (expected_update(policy, row(size, kind)) for kind in (PROCESS, {}))
        case = f"token tree, sequence-sum, G = {size}"
        cosine, _ = cosine_and_norm(process.expected_update, outcome.expected_update)
        yield falls_below(
            case, "cosine of process and outcome updates", cosine, 1.0, "other tokens get the credit", by=1e-3
        )


def _worked() -> Iterator[Finding]:
    nothing = math.nan
    steps = Steps(
        end=torch.tensor([[[[1, 3], [2, 0]]]]),
        score=torch.tensor([[[[1.0, -1.0], [1.0, nothing]]]], dtype=torch.float64),
        present=torch.tensor([[[[True, True], [True, False]]]]),
    )
    found = advantages(row(2, PROCESS), [0.0, 0.0], steps, length=4)
    case = "lengths 4 and 3; steps (end 2, +1), (end 4, -1) and (end 3, +1)"
    root = math.sqrt(0.5)
    exact = "pool (1, -1, 1) has mean 1/3 and standard deviation sqrt(8)/3"
    yield equals(case, "advantages of response 1", found[0], (-root, -root, -2 * root, -2 * root), exact)
    yield equals(case, "advantages of response 2", found[1][:3], (root, root, root), exact)
    four = "four decimals by hand"
    yield equals(
        case, "advantages of response 1", found[0], (-0.7071, -0.7071, -1.4142, -1.4142), four, printed(4)
    )
    yield equals(case, "advantages of response 2", found[1][:3], (0.7071, 0.7071, 0.7071), four, printed(4))


def stepwise() -> ExactPolicy:
    """Return the tree with a step per word, and the sum of a response's scores as its reward."""
    steps = {
        name: [[t, SCORE[word]] for t, word in enumerate(name.split()) if word in SCORE]
        for name in tree().prompts[0].names
    }
    rewards = {name: sum(score for _, score in scored) for name, scored in steps.items()}
    assert SHORT_AND_LONG["horizon"] == 3
    return tree(steps=steps, rewards=rewards)


def by_loops(policy: ExactPolicy) -> Tensor:
    """Return the expected update of two responses, each token's score times its pooled step scores."""
    prompt, law = policy.prompts[0], response_laws(policy)[0].tolist()
    point = policy.parameters.clone().requires_grad_()
    table = tables(prompt, point, support(prompt, point, Sampling()), Sampling()).logprobs
    token_scores = jacobian(table, point)
    words = [name.split() for name in prompt.names]
    total = torch.zeros_like(policy.parameters)
    for i in range(len(law)):
        for j in range(len(law)):
            pool = [SCORE[word] for k in (i, j) for word in words[k] if word in SCORE]
            if len(set(pool)) < 2:
                continue
            mean = sum(pool) / len(pool)
            std = math.sqrt(sum((score - mean) ** 2 for score in pool) / len(pool))
            for k in (i, j):
                standard = [(SCORE[word] - mean) / std if word in SCORE else 0.0 for word in words[k]]
                for t in range(len(words[k])):
                    total = total + law[i] * law[j] * sum(standard[t:]) / 2 * token_scores[prompt.edges[k, t]]
    return total
