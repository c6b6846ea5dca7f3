"""The tabular policy: its law, its exact measures, its gradients."""

import math

import pytest
import torch
from training_specs import make_loop, make_spec

from grpo_ablate.policies.protocol import Draw
from grpo_ablate.rng import Purpose

SEEDS = range(50)
LOGITS = torch.tensor(
    [[0.5, -1.0, 2.0, 0.0], [1.0, 0.3, 0, 0], [0.2, 0.1, -0.4, 0], [0, 1, 2, 3], [2, -2, 0, 0]],
    dtype=torch.float64,
)


def policy_with(logits=LOGITS, seeds=SEEDS, **sections):
    policy = make_loop(make_spec(**sections), seeds).policy
    with torch.no_grad():
        policy.logits.copy_(logits)
    return policy


def draw(policy, round=0, group_size=4, attempt=0):
    prompts = torch.tensor([[0, 1, 2, 4]]).expand(policy.members, -1)
    everything = torch.ones(prompts.shape, dtype=torch.bool)
    return prompts, policy.sample(
        prompts, group_size, Draw(Purpose.RESPONSE, round, attempt), wanted=everything, kl_exact=True
    )


def law_by_hand(logits, valid, temperature=1.0, top_k=None, top_p=1.0):
    """The law of one prompt, candidate by candidate."""
    weights = {c: math.exp(float(logits[c]) / temperature) for c in range(len(logits)) if valid[c]}
    order = sorted(weights, key=lambda c: -weights[c])[:top_k]
    total, kept, reached = sum(weights[c] for c in order), [], 0.0
    for candidate in order:
        if reached >= top_p:
            break
        kept.append(candidate)
        reached += weights[candidate] / total
    total = sum(weights[c] for c in kept)
    return [weights[c] / total if c in kept else 0.0 for c in range(len(logits))]


LAWS = [{}, {"temperature": 0.5}, {"top_k": 2}, {"top_p": 0.8}, {"temperature": 2.0, "top_k": 3, "top_p": 0.9}]


@pytest.mark.parametrize("law", LAWS)
def test_candidates_are_drawn_from_the_law_and_recorded_under_it(law):
    policy = policy_with(sampling=law)
    valid = policy.task.valid
    counts = torch.zeros(LOGITS.shape, dtype=torch.float64)
    rounds = 40
    for round in range(rounds):
        _, drawn = draw(policy, round)
        for slot, prompt in enumerate([0, 1, 2, 4]):
            expected = law_by_hand(LOGITS[prompt], valid[prompt], **law)
            tokens = drawn.tokens[:, slot, :, 0]
            counts[prompt] += torch.bincount(tokens.flatten(), minlength=4)
            recorded = drawn.old_logprobs[:, slot, :, 0].exp()
            torch.testing.assert_close(recorded, torch.tensor(expected, dtype=torch.float64)[tokens])
    n = rounds * len(SEEDS) * 4
    for prompt in (0, 1, 2, 4):
        for candidate, p in enumerate(law_by_hand(LOGITS[prompt], valid[prompt], **law)):
            assert abs(counts[prompt, candidate] / n - p) <= 4.5 * math.sqrt(p * (1 - p) / n)


@pytest.mark.parametrize("law", LAWS)
def test_an_unchanged_policy_has_ratio_one_under_every_law(law):
    policy = policy_with(sampling=law)
    prompts, drawn = draw(policy)
    batch = _batch(prompts, drawn)
    assert torch.equal(policy.logprobs(batch).logprobs, drawn.old_logprobs)


def test_the_support_stays_that_of_the_sampling_while_the_policy_moves():
    policy = policy_with(sampling={"top_k": 2})
    prompts, drawn = draw(policy)
    batch = _batch(prompts, drawn)
    with torch.no_grad():
        policy.logits.copy_(-LOGITS)  # now other candidates are the top two
    for slot, prompt in enumerate([0, 1, 2, 4]):
        top = sorted(range(4), key=lambda c: -float(LOGITS[prompt, c]) - 10 * bool(policy.task.valid[prompt, c]))[
            :2
        ]
        expected = torch.full((4,), -math.inf, dtype=torch.float64)
        expected[top] = -LOGITS[prompt, top]
        expected = expected.log_softmax(-1)[drawn.tokens[0, slot, :, 0]]
        torch.testing.assert_close(policy.logprobs(batch).logprobs[0, slot, :, 0], expected)


def _batch(prompts, drawn):
    from grpo_ablate.algorithm.records import Batch

    shape = drawn.tokens.shape[:3]
    return Batch(
        prompts=prompts, tokens=drawn.tokens, token=drawn.token, present=torch.ones(shape, dtype=torch.bool),
        truncated=drawn.truncated, reward=torch.zeros(shape), components={}, sampler_logprobs=drawn.old_logprobs,
        old_logprobs=drawn.old_logprobs, support=drawn.support,
    )  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
def test_entropy_divergence_and_their_gradients_are_those_of_the_formulas(law):
    policy = policy_with(seeds=[0], sampling=law)
    policy.reference = policy.reference + torch.linspace(-1, 1, 20, dtype=torch.float64).view(5, 4)
    prompts, drawn = draw(policy)
    says = policy.logprobs(_batch(prompts, drawn), kl_exact=True)
    (says.entropy.sum() + 3 * says.kl_exact.sum() + 7 * says.logprobs.sum()).backward()

    logits = LOGITS.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for slot, prompt in enumerate([0, 1, 2, 4]):
        kept = [c for c, p in enumerate(law_by_hand(LOGITS[prompt], policy.task.valid[prompt], **law)) if p > 0]
        temperature = law.get("temperature", 1.0)
        logp = (logits[prompt, kept] / temperature).log_softmax(-1)
        reference = (policy.reference[0, prompt, kept] / temperature).log_softmax(-1)
        entropy, divergence = -(logp.exp() * logp).sum(), (logp.exp() * (logp - reference)).sum()
        torch.testing.assert_close(says.entropy[0, slot, :, 0], entropy.expand(4))
        torch.testing.assert_close(says.kl_exact[0, slot, :, 0], divergence.expand(4))
        torch.testing.assert_close(drawn.old_kl_exact[0, slot, :, 0], divergence.expand(4))
        chosen = sum(logp[kept.index(int(a))] for a in drawn.tokens[0, slot, :, 0])
        total = total + 4 * entropy + 12 * divergence + 7 * chosen
    total.backward()
    torch.testing.assert_close(policy.logits.grad[0], logits.grad)


def test_exact_evaluation_is_the_expectation_over_the_policy_itself():
    # The sampling law is another one; the policy is measured at temperature 1 with every candidate.
    policy = policy_with(seeds=[0], sampling={"temperature": 0.5, "top_k": 2})
    found = policy.evaluate("exact", 0)
    task = policy.task
    reward = accuracy = entropy = divergence = greedy = 0.0
    for prompt in range(5):
        law = law_by_hand(LOGITS[prompt], task.valid[prompt])
        size = int(task.valid[prompt].sum())
        reward += sum(p * float(q) for p, q in zip(law, task.qualities[prompt], strict=True)) / 5
        best = max(float(q) for q, v in zip(task.qualities[prompt], task.valid[prompt], strict=True) if v)
        accuracy += sum(p for p, q in zip(law, task.qualities[prompt], strict=True) if float(q) == best) / 5
        greedy += (float(task.qualities[prompt, law.index(max(law))]) == best) / 5
        entropy -= sum(p * math.log(p) for p in law if p) / 5
        divergence += sum(p * math.log(p * size) for p in law if p) / 5
    expected = {
        "eval/reward": reward, "eval/accuracy": accuracy, "eval/greedy_accuracy": greedy,
        "eval/entropy": entropy, "eval/kl": divergence,
    }  # fmt: skip
    assert {name: value.item() for name, value in found.items()} == pytest.approx(expected, abs=1e-14)


def test_greedy_accuracy_of_a_uniform_policy_is_the_share_of_best_candidates():
    spec = make_spec(qualities=[[0, 0.35, 0.7, 1], [1, 1, 0, 0.5]])
    found = make_loop(spec, [0]).policy.evaluate("exact", 0)
    assert found["eval/greedy_accuracy"].item() == (1 / 4 + 2 / 4) / 2
    assert found["eval/reward"].item() == pytest.approx((0.5125 + 0.625) / 2)


def test_sampled_evaluation_estimates_the_exact_one_without_bias():
    policy = policy_with(seeds=range(400))
    exact, sampled = policy.evaluate("exact", 3), policy.evaluate(8, 3)
    for name in ("eval/reward", "eval/accuracy"):
        values = sampled[name]
        assert abs(values.mean() - exact[name][0]) < 4 * values.std() / 20
    best = torch.stack(
        [
            (LOGITS[i][policy.task.valid[i]].softmax(-1) * policy.task.best[i][policy.task.valid[i]]).sum()
            for i in range(5)
        ]
    )
    for k in (2, 4, 8):
        values = sampled[f"eval/pass_at_{k}"]
        assert abs(values.mean() - (1 - (1 - best) ** k).mean()) < 4 * values.std() / 20
    probability = [LOGITS[i][policy.task.valid[i]].softmax(-1) for i in range(5)]
    distinct = sum((1 - (1 - p) ** 8).sum() for p in probability) / 5
    values = sampled["eval/distinct_answers"]
    assert abs(values.mean() - distinct) < 4 * values.std() / 20


def test_evaluation_and_training_draw_unrelated_numbers():
    policy = policy_with(torch.zeros(5, 4, dtype=torch.float64), seeds=range(300))
    everything = torch.ones(300, 2, dtype=torch.bool)
    prompts = torch.tensor([[0, 3]]).expand(300, -1)  # both have four candidates
    numbers = [
        policy.sample(prompts, 4, Draw(purpose, 0), wanted=everything).tokens.double()
        for purpose in (Purpose.EVALUATION, Purpose.EXHIBIT)
    ]
    correlation = torch.corrcoef(torch.stack([n.flatten() for n in numbers]))[0, 1]
    assert abs(correlation) < 4 / math.sqrt(numbers[0].numel())


def test_a_candidate_of_probability_zero_is_never_drawn():
    logits = torch.tensor([[-2000.0, 0, 0, -2000], *LOGITS[1:].tolist()], dtype=torch.float64)
    policy = policy_with(logits, seeds=range(200))
    for round in range(20):
        _, drawn = draw(policy, round)
        assert set(drawn.tokens[:, 0].flatten().tolist()) == {1, 2}
