"""What an exact table can hold of a point: a function per quantity, from the point to named numbers.

Vectors become a column per parameter or response, ``update/0: 1``. A column that has no value (a cosine with 0)
is NaN. Everything is the exact expectation over one group; under dynamic sampling, over an accepted one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from grpo_ablate.algorithm.kl import ESTIMATORS
from grpo_ablate.exact import quantities
from grpo_ablate.exact.points import Point
from grpo_ablate.exact.policy import ExactPolicy, reference_table, support, tables
from grpo_ablate.exact.report import parameter_names
from grpo_ablate.exact.update import ExactUpdate, expected_update, length
from grpo_ablate.spec.schema import Sampling

Columns = dict[str, float]
ROUNDING = 1e-12  # a vector this small beside another is 0


@dataclass(frozen=True)
class Found:
    """A point and its expected update, enumerated when a quantity first asks for it."""

    point: Point

    @cached_property
    def update(self) -> ExactUpdate:
        """Return the expected update at the point."""
        return expected_update(self.point.policy, self.point.switches, at=self.point.now)

    @property
    def now(self) -> Tensor:
        """Return the parameters where the gradient is taken, [D]."""
        return self.point.now


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator != 0 else math.nan


def cosine_and_norm(found: Tensor, wanted: Tensor) -> tuple[float, float]:
    """Return the cosine between two vectors and |found| / |wanted|; NaN where a vector is 0 but for rounding."""
    a, b = length(found), length(wanted)
    angle = float((found / a) @ (wanted / b)) if a > ROUNDING * b > 0 else math.nan
    return angle, _ratio(a, b)


def _vector(name: str, values: Tensor, found: Found) -> Columns:
    names = parameter_names(found.point.policy)
    return {f"{name}/{label}": value for label, value in zip(names, values.tolist(), strict=True)}


def _by_response(name: str, values: list[Tensor], found: Found) -> Columns:
    prompts = found.point.policy.prompts
    single = len(prompts) == 1
    return {
        f"{name}/{label if single else f'{number}: {label}'}": value
        for number, (prompt, row) in enumerate(zip(prompts, values, strict=True))
        for label, value in zip(prompt.names, row.tolist(), strict=True)
    }


def gradient(found: Found) -> Columns:
    """The gradient of the expected reward, per parameter."""
    return _vector("gradient", found.update.gradient, found)


def update(found: Found) -> Columns:
    """The expected update, per parameter."""
    return _vector("update", found.update.expected_update, found)


def cosine(found: Found) -> Columns:
    """Between expected update and gradient."""
    return {"cosine": cosine_and_norm(found.update.expected_update, found.update.gradient)[0]}


def norm_ratio(found: Found) -> Columns:
    """|expected update| / |gradient|."""
    value = found.update.norm_ratio
    return {"norm_ratio": math.nan if value is None else value}


def bias(found: Found) -> Columns:
    """|expected update - gradient|, and the same after the best rescaling, relative to the update."""
    difference = found.update.expected_update - found.update.gradient
    angle = cosine(found)["cosine"]
    return {"bias": length(difference), "direction_bias": math.sqrt(max(0.0, 1.0 - angle**2))}


def variance(found: Found) -> Columns:
    """Trace of the covariance of one group's update."""
    return {"variance": found.update.variance}


def variance_per_rollout(found: Found) -> Columns:
    """G x variance: at N rollouts the mean over N / G groups has this divided by N."""
    return {"variance_per_rollout": found.update.group_size * found.update.variance}


def noise_per_rollout(found: Found) -> Columns:
    """G x variance / |expected update|^2: how many rollouts until signal and noise are equal; free of scale."""
    size = float(found.update.expected_update.square().sum())
    return {"noise_per_rollout": _ratio(found.update.group_size * found.update.variance, size)}


def p_mixed(found: Found) -> Columns:
    """Chance that the raw rewards of a group are not all equal."""
    return {"p_mixed": found.update.p_mixed}


def accepted(found: Found) -> Columns:
    """Chance that a group trains, and under that filter the law of the prompts."""
    columns = {"accepted": found.update.accepted}
    policy, sampling = found.point.policy, found.point.switches.sampling
    if len(policy.prompts) > 1 and sampling.dynamic != "off":
        law = quantities.accepted_law(policy, sampling.group_size, sampling)
        columns |= {f"accepted_law/{number}": share for number, share in enumerate(law)}
    return columns


def gain(found: Found) -> Columns:
    """Expected update . gradient: rise of the expected reward per unit of learning rate, to first order."""
    return {"gain": float(found.update.expected_update @ found.update.gradient)}


def gain_per_rollout(found: Found) -> Columns:
    """The same per response generated, rejected groups charged."""
    return {"gain_per_rollout": float(found.update.per_rollout @ found.update.gradient)}


def limit(found: Found) -> Columns:
    """E_x[grad mu / sigma], where group-std goes as G grows, beside the gradient."""
    value = quantities.population_limit(found.point.policy, found.point.switches.sampling)
    angle, ratio = cosine_and_norm(value, found.update.gradient)
    return {"limit_cosine": angle, "limit_norm_ratio": ratio}


def baseline(found: Found) -> Columns:
    """The constant that is subtracted."""
    return {"baseline": found.point.switches.advantage.constant}


def push(found: Found) -> Columns:
    """d log pi(y) along the expected update, per response."""
    pushed = quantities.push(found.point.policy, found.update.expected_update, found.point.switches.sampling)
    return _by_response("push", pushed, found)


def push_classes(found: Found) -> Columns:
    """d log P(class) along the expected update: right (reward above 0) or wrong, and short or long.

    Short: not longer than the mean length of the prompt's possible lengths.
    """
    policy, sampling = found.point.policy, found.point.switches.sampling
    pushed = quantities.push(policy, found.update.expected_update, sampling)
    laws = quantities.response_laws(policy, sampling)
    columns = {}
    for size in ("short", "long"):
        for right in ("right", "wrong"):
            flow = mass = 0.0
            for prompt, rise, law in zip(policy.prompts, pushed, laws, strict=True):
                length = prompt.token.sum(-1).double()
                middle = (length.min() + length.max()) / 2
                member = ((length <= middle) == (size == "short")) & ((prompt.reward > 0) == (right == "right"))
                chosen = torch.where(member, prompt.probability * law, 0.0)
                flow, mass = flow + float(chosen @ rise), mass + float(chosen.sum())
            columns[f"push_classes/{size}-{right}"] = _ratio(flow, mass)
    return columns


def ratios(found: Found) -> Columns:
    """pi_now(y) / pi_old(y), per response."""
    policy, sampling = found.point.policy, found.point.switches.sampling
    now = quantities.response_laws(policy.at(found.now), sampling)
    old = quantities.response_laws(policy, sampling)
    return _by_response("ratios", [a / b for a, b in zip(now, old, strict=True)], found)


def expected_reward(found: Found) -> Columns:
    """E r where groups are drawn; for rewards 0 and 1 the success probability."""
    return {"expected_reward": quantities.expected_reward(found.point.policy, found.point.switches.sampling)}


def kl(found: Found) -> Columns:
    """KL(pi, pi_ref) over whole responses, at the present parameters."""
    at = found.point.policy.at(found.now)
    return {"kl": quantities.reference_kl(at, found.point.switches.sampling)}


def kl_estimate(found: Found) -> Columns:
    """Expected value of k1, k2, k3 summed over a response, under the law groups are drawn from, without ratio."""
    means = estimator_means(found.point.policy, found.now, found.point.switches.sampling)
    return {f"kl_estimate/{name}": value for name, value in means.items()}


def estimator_means(
    policy: ExactPolicy, now: Tensor, sampling: Sampling | None = None, weighted: bool = False
) -> dict[str, float]:
    """Return E k1, E k2, E k3, each summed over the tokens of a response drawn at ``policy.parameters``.

    The estimators are those of the parameters ``now`` [D]; ``weighted``: each token times its ratio.
    """
    law = sampling or Sampling()
    means = dict.fromkeys(ESTIMATORS, 0.0)
    for prompt, probabilities in zip(policy.prompts, quantities.response_laws(policy, law), strict=True):
        kept = support(prompt, policy.parameters, law)
        present, old = (tables(prompt, at, kept, law).logprobs[prompt.edges] for at in (now, policy.parameters))
        reference = reference_table(prompt, kept, law)
        if reference is None:
            raise ValueError("the KL needs a reference")
        ratio = (present - old).exp() if weighted else torch.ones_like(old)
        for name, estimator in ESTIMATORS.items():
            by_response = (ratio * estimator(reference[prompt.edges] - present)).sum(-1)
            means[name] += prompt.probability * float(probabilities @ by_response)
    return means


def kl_agreement(found: Found) -> Columns:
    """The penalty's part of the update beside -beta grad KL(pi, pi_ref) at the present parameters.

    Cosine, norm ratio and |difference| / |gradient|. The whole update counts, so let the rewards be equal.
    """
    at = found.point.policy.at(found.now)
    wanted = -found.point.switches.kl.beta * quantities.kl_gradient(at, found.point.switches.sampling)
    angle, ratio = cosine_and_norm(found.update.expected_update, wanted)
    error = float((found.update.expected_update - wanted).norm())
    return {
        "kl_cosine": angle,
        "kl_norm_ratio": ratio,
        "kl_norm_error": abs(ratio - 1.0),
        "kl_error": _ratio(error, float(wanted.norm())),
    }


DPO_BETAS = (0.1, 0.5, 1.0)


def pair(found: Found) -> Columns:
    """What multiplies grad log pi(y+) - grad log pi(y-) of two responses: the row's weight, and DPO's.

    DPO's is beta sigmoid(-beta margin) with margin = log(pi(y+)/pi(y-)) - log(ref(y+)/ref(y-)) (Rafailov et al.
    2023, section 4). The row's weight is per mixed group.
    """
    policy = found.point.policy
    prompt, scores = policy.prompts[0], quantities.scores(policy)[0]
    if len(policy.prompts) != 1 or len(prompt.names) != 2 or prompt.reference is None:
        raise ValueError("a pair is one prompt with two responses and a reference")
    better = int(prompt.reward.argmax())
    direction = scores[better] - scores[1 - better]
    mixed = found.update.expected_update * (found.update.accepted / found.update.p_mixed)
    weight = float(mixed @ direction / direction.square().sum())
    law = quantities.response_laws(policy)[0].log()
    reference = prompt.reference[0].log_softmax(0)
    margin = float(law[better] - law[1 - better] - reference[better] + reference[1 - better])
    columns = {"margin": margin, "pair_weight": weight}
    for beta in DPO_BETAS:
        columns[f"dpo_weight/{beta:g}"] = beta / (1.0 + math.exp(beta * margin))
    return columns


QUANTITIES: dict[str, Callable[[Found], Columns]] = {
    "gradient": gradient,
    "update": update,
    "cosine": cosine,
    "norm_ratio": norm_ratio,
    "bias": bias,
    "variance": variance,
    "variance_per_rollout": variance_per_rollout,
    "noise_per_rollout": noise_per_rollout,
    "p_mixed": p_mixed,
    "accepted": accepted,
    "gain": gain,
    "gain_per_rollout": gain_per_rollout,
    "limit": limit,
    "baseline": baseline,
    "push": push,
    "push_classes": push_classes,
    "ratios": ratios,
    "expected_reward": expected_reward,
    "kl": kl,
    "kl_estimate": kl_estimate,
    "kl_agreement": kl_agreement,
    "pair": pair,
}
