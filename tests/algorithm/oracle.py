"""The same algorithm as plain loops over responses and tokens, scalar by scalar, differentiated by autograd.

Written from the formulas and independently of the package: no padding, no masks, no shared helpers. A batch
is a list of responses as in a batch file.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import torch

Entry = dict[str, Any]


def by_group(batch: list[Entry]) -> list[list[int]]:
    groups: dict[Any, list[int]] = {}
    for i, response in enumerate(batch):
        groups.setdefault(response["group"], []).append(i)
    return list(groups.values())


def estimator(name: str, logp, ref, exact):
    if name == "exact":
        return exact
    z = ref - logp
    return {"k1": -z, "k2": z * z / 2, "k3": torch.exp(torch.as_tensor(z, dtype=torch.float64)) - z - 1}[name]


def old_kl(response: Entry, switches) -> list[float]:
    old = response.get("old_logp", response["logp"])
    result = []
    for t in range(len(old)):
        ref = response["ref_logp"][t] if "ref_logp" in response else 0.0
        exact = response["kl_exact"][t] if "kl_exact" in response else None
        result.append(float(estimator(switches.kl.estimator, float(old[t]), ref, exact)))
    return result


def masked(response: Entry, switches) -> bool:
    return switches.reward.overlong == "mask" and response.get("truncated", False)


def shaped_reward(response: Entry, switches) -> float | None:
    raw, reward = response.get("reward"), switches.reward
    if raw is None:
        return None
    value = {
        "identity": lambda: raw,
        "affine": lambda: reward.scale * raw + reward.shift,
        "power": lambda: raw**reward.power,
        "constant": lambda: reward.constant,
    }[reward.transform]()
    if reward.overlong == "soft":
        limit, buffer, length = switches.sampling.max_tokens, reward.overlong_buffer, len(response["logp"])
        if limit - buffer < length <= limit:
            value += (limit - buffer - length) / buffer
        elif length > limit:
            value -= 1
    if switches.kl.place == "reward-before" and switches.kl.beta > 0:
        value -= switches.kl.beta * math.fsum(old_kl(response, switches))
    return value


def std(values: list[float], ddof: int) -> float:
    if len(set(values)) < 2:
        return 0.0
    return statistics.stdev(values) if ddof == 1 else statistics.pstdev(values)


def relative(i: int, pool: list[int], everyone: list[int], R: dict[int, float], switches) -> float:
    """The advantage of item i within its pool of items; ``everyone`` are all items of the batch."""
    a = switches.advantage
    values, batch = [R[j] for j in pool], [R[j] for j in everyone]
    others = [R[j] for j in pool if j != i]
    constant = len(set(values)) == 1
    if a.baseline in ("mean", "leave-one-out") and constant:
        return 0.0
    result = (
        R[i]
        - {
            "none": lambda: 0.0,
            "constant": lambda: a.constant,
            "mean": lambda: statistics.fmean(values),
            "leave-one-out": lambda: statistics.fmean(others),
            "batch": lambda: statistics.fmean(batch),
            "ema": lambda: a.ema_initial,
        }[a.baseline]()
    )
    if a.scale == "none":
        return result
    s = {
        "group-std": lambda: std(values, a.ddof),
        "batch-std": lambda: std(batch, a.ddof),
        "leave-one-out-std": lambda: std(others, a.ddof) if len(others) > 1 else 0.0,
    }[a.scale]()
    if s == 0:
        return result
    return result / (math.sqrt(s * s + a.eps) if a.eps_inside else s + a.eps)


def clip_advantage(value: float, switches) -> float:
    bound = switches.advantage.advantage_clip
    return value if bound == "off" else max(-bound, min(bound, value))


def advantages(batch: list[Entry], switches) -> list[list[float]]:
    """One advantage per token of every response."""
    result = [[0.0] * len(response["logp"]) for response in batch]
    if switches.advantage.supervision == "process":
        items = [(i, j) for i, response in enumerate(batch) for j in range(len(response["steps"]))]
        R = {k: batch[i]["steps"][j][1] for k, (i, j) in enumerate(items)}
        for group in by_group(batch):
            pool = [k for k, (i, _) in enumerate(items) if i in group]
            for k in pool:
                i, j = items[k]
                for t in range(batch[i]["steps"][j][0] + 1):
                    result[i][t] += relative(k, pool, list(R), R, switches)
        result = [[clip_advantage(value, switches) for value in row] for row in result]
    else:
        R = {}
        for i, response in enumerate(batch):
            value = shaped_reward(response, switches)
            out = masked(response, switches) and not switches.reward.masked_in_baseline
            if value is not None and not out:
                R[i] = value
        for group in by_group(batch):
            pool = [i for i in group if i in R]
            for i in pool:
                value = clip_advantage(relative(i, pool, list(R), R, switches), switches)
                result[i] = [value] * len(batch[i]["logp"])
    if switches.kl.place == "reward-after" and switches.kl.beta > 0:
        for i, response in enumerate(batch):
            if trains(response, switches):
                k = old_kl(response, switches)
                result[i] = [a - switches.kl.beta * math.fsum(k[t:]) for t, a in enumerate(result[i])]
    return result


def takes_part(response: Entry, switches) -> bool:
    return switches.advantage.supervision == "process" or response.get("reward") is not None


def trains(response: Entry, switches) -> bool:
    return takes_part(response, switches) and not masked(response, switches)


def weights(batch: list[Entry], switches) -> list[float]:
    """The weight of each token of every response."""
    counted = [
        r
        for r in batch
        if takes_part(r, switches) and (switches.reward.masked_in_denominator or not masked(r, switches))
    ]
    responses, tokens = len(counted), sum(len(r["logp"]) for r in counted)
    update = switches.update
    limit = switches.sampling.max_tokens if update.constant == "max-tokens" else update.constant
    result = []
    for r in batch:
        if not trains(r, switches) or not r["logp"]:
            result.append(0.0)
            continue
        result.append(
            {
                "sequence-mean": lambda length: 1 / (responses * length),
                "token-mean": lambda length: 1 / tokens,
                "constant": lambda length: 1 / (responses * limit),
                "sequence-sum": lambda length: 1 / responses,
            }[update.reduction](len(r["logp"]))
        )
    return result


def mismatch(response: Entry, switches) -> list[float]:
    update = switches.update
    old = response.get("old_logp", response["logp"])
    sampler = response.get("sampler_logp", old)
    logs = [float(a) - float(b) for a, b in zip(old, sampler, strict=True)]
    if update.mismatch_level == "sequence":
        logs = [math.fsum(logs)] * len(logs)
    raw = [math.exp(x) for x in logs]
    return {
        "none": [1.0] * len(raw),
        "truncate": [min(w, update.mismatch_cap) for w in raw],
        "mask": [w if w <= update.mismatch_cap else 0.0 for w in raw],
    }[update.mismatch]


def surrogate(logp: list[torch.Tensor], old: list[float], A: list[float], update) -> list[torch.Tensor]:
    """f of every token of one response."""
    logs = [a - b for a, b in zip(logp, old, strict=True)]
    if update.log_ratio_clamp != "off":
        logs = [torch.clamp(x, -update.log_ratio_clamp, update.log_ratio_clamp) for x in logs]
    L = len(logs)
    low = 1 - update.clip_low if update.clip_low != "off" else -math.inf
    high = 1 + update.clip_high if update.clip_high != "off" else math.inf

    def clipped(u, a):
        return torch.minimum(u * a, torch.clamp(u, low, high) * a)

    if update.surrogate == "clip":
        f = [clipped(torch.exp(x), a) for x, a in zip(logs, A, strict=True)]
        if update.dual_clip != "off":
            f = [
                torch.maximum(v, torch.tensor(update.dual_clip * a, dtype=torch.float64)) if a < 0 else v
                for v, a in zip(f, A, strict=True)
            ]
        return f
    if update.surrogate == "sequence":
        s = torch.exp(sum(logs) / L)
        return [clipped(s, a) for a in A]
    if update.surrogate == "geometric":
        held = [
            torch.clamp(x, max=update.clip_high)
            if a > 0 and update.clip_high != "off"
            else torch.clamp(x, min=-update.clip_low)
            if a < 0 and update.clip_low != "off"
            else x
            for x, a in zip(logs, A, strict=True)
        ]
        return [a * torch.exp(sum(held) / L) for a in A]
    if update.surrogate == "cispo":
        return [
            torch.clamp(torch.exp(x), low, high).detach() * a * p for x, a, p in zip(logs, A, logp, strict=True)
        ]
    if update.surrogate == "soft":
        result = []
        for x, a in zip(logs, A, strict=True):
            tau = update.tau_pos if a > 0 else update.tau_neg
            result.append(a * 4 / tau * torch.sigmoid(tau * (torch.exp(x) - 1)))
        return result
    return [a * p for a, p in zip(A, logp, strict=True)]


def loss(batch: list[Entry], switches, logp: list[list[torch.Tensor]], entropy=None) -> dict[str, torch.Tensor]:
    """The loss and its parts; ``logp`` holds the current log-probabilities as scalars with gradient."""
    A, w = advantages(batch, switches), weights(batch, switches)
    policy = kl = bonus = torch.zeros((), dtype=torch.float64)
    for i, response in enumerate(batch):
        if w[i] == 0:
            continue
        old = [float(x) for x in response.get("old_logp", response["logp"])]
        f = surrogate(logp[i], old, A[i], switches.update)
        m = mismatch(response, switches)
        for t in range(len(f)):
            policy = policy + w[i] * m[t] * f[t]
            if switches.kl.beta > 0 and switches.kl.place == "loss":
                ref = response["ref_logp"][t] if "ref_logp" in response else 0.0
                exact = (
                    torch.tensor(response["kl_exact"][t], dtype=torch.float64) if "kl_exact" in response else None
                )
                k = estimator(switches.kl.estimator, logp[i][t], ref, exact)
                if switches.kl.gradient == "ratio" and switches.kl.estimator != "exact":
                    k = torch.exp(logp[i][t] - old[t]) * k
                if switches.kl.gradient == "score-function" and switches.kl.estimator != "exact":
                    k = k.detach() * (1 + logp[i][t] - logp[i][t].detach())
                kl = kl + w[i] * k
            if entropy is not None:
                bonus = bonus + w[i] * entropy[i][t]
    parts = {
        "policy": -policy,
        "kl": switches.kl.beta * kl,
        "entropy": -switches.update.entropy_coefficient * bonus,
    }
    return parts | {"loss": sum(parts.values())}


def explained(batch: list[Entry], switches) -> dict[str, Any]:
    """Advantages, weights, loss, its parts and the gradient of the loss in every log-probability."""
    logp = [[torch.tensor(float(x), dtype=torch.float64, requires_grad=True) for x in r["logp"]] for r in batch]
    parts = loss(batch, switches, logp)
    leaves = [x for row in logp for x in row]
    grads = iter(
        torch.autograd.grad(parts["loss"], leaves, allow_unused=True)
        if parts["loss"].requires_grad
        else [None] * len(leaves)
    )
    gradient = [[0.0 if (g := next(grads)) is None else float(g) for _ in row] for row in logp]
    return {
        "advantages": advantages(batch, switches),
        "weights": [[w] * len(r["logp"]) for w, r in zip(weights(batch, switches), batch, strict=True)],
        "grad": gradient,
        "loss": parts["loss"].item(),
        "policy_loss": parts["policy"].item(),
        "kl_loss": parts["kl"].item(),
    }
