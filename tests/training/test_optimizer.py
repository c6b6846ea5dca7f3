"""The stacked optimiser is torch.optim, member by member."""

import math

import pytest
import torch

from grpo_ablate.policies.optimizer import StackedOptimizer, rate_factor
from grpo_ablate.spec.schema import Optimizer

SETTINGS = [
    Optimizer(name="sgd", learning_rate=0.3),
    Optimizer(name="sgd", learning_rate=0.1, weight_decay=0.2, max_grad_norm=0.5),
    Optimizer(name="adamw", learning_rate=0.01, betas=[0.9, 0.95], weight_decay=0.1),
    Optimizer(name="adamw", learning_rate=0.05, max_grad_norm=1.0, schedule="cosine", warmup=3),
]


@pytest.fixture(params=["side by side", "member by member"], autouse=True)
def path(request, monkeypatch):
    """Both ways in which members may be stepped."""
    if request.param == "member by member":
        monkeypatch.setattr("grpo_ablate.policies.optimizer.LARGE", 1)


def torch_steps(start, gradients, settings, total):
    """One member trained by torch.optim, torch's clipping and a schedule set by hand."""
    parameters = [tensor.clone().requires_grad_() for tensor in start]
    if settings.name == "sgd":
        optimizer = torch.optim.SGD(parameters, lr=1.0, weight_decay=settings.weight_decay)
    else:
        optimizer = torch.optim.AdamW(
            parameters, lr=1.0, betas=tuple(settings.betas), weight_decay=settings.weight_decay
        )
    for step, gradient in enumerate(gradients):
        for parameter, value in zip(parameters, gradient, strict=True):
            parameter.grad = value.clone()
        if settings.max_grad_norm != "off":
            torch.nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm)
        factor = 1.0
        if step < settings.warmup:
            factor = (step + 1) / settings.warmup
        elif settings.schedule == "cosine":
            factor = (1 + math.cos(math.pi * (step - settings.warmup) / (total - settings.warmup))) / 2
        optimizer.param_groups[0]["lr"] = settings.learning_rate * factor
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("settings", SETTINGS)
def test_each_member_follows_torch_optim_with_its_own_count_and_norm(settings):
    generator = torch.Generator().manual_seed(1)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    members, total = 3, 12
    start = [random(members, 4, 3), random(members, 5)]
    parameters = [tensor.clone().requires_grad_() for tensor in start]
    optimizer = StackedOptimizer(parameters, settings, total)
    received = [[] for _ in range(members)]
    for step in range(total):
        # Gradients of very different sizes, so that one norm over all members would show.
        gradients = [
            random(*p.shape) * torch.tensor([0.01, 1.0, 100.0]).reshape(-1, *[1] * (p.dim() - 1)) for p in start
        ]
        active = torch.tensor([True, step % 2 == 0, step % 3 != 1])
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        norms = optimizer.step(active)
        for member in range(members):
            expected = math.sqrt(sum(float(g[member].square().sum()) for g in gradients))
            assert norms[member].item() == pytest.approx(expected, rel=1e-12)
            if active[member]:
                received[member].append([gradient[member] for gradient in gradients])
    assert optimizer.steps.tolist() == [len(list_) for list_ in received]
    for member in range(members):
        expected = torch_steps([t[member] for t in start], received[member], settings, total)
        for parameter, value in zip(parameters, expected, strict=True):
            torch.testing.assert_close(parameter[member].detach(), value, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_member_that_takes_no_step_stays_bit_by_bit_even_beside_nan(settings):
    parameter = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    optimizer = StackedOptimizer([parameter], settings, 4)
    parameter.grad = torch.tensor([[math.nan, math.inf], [0.1, 0.2]], dtype=torch.float64)
    before = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    optimizer.step(torch.tensor([False, True]))
    assert parameter[0].tolist() == [1.0, 2.0]
    assert parameter[1].isfinite().all() and parameter[1].tolist() != [3.0, 4.0]
    for name, tensor in optimizer.state().items():
        assert torch.equal(tensor[0], before[name][0])


def test_schedules_meet_their_end_points():
    steps = torch.tensor([0, 1, 2, 6, 10])
    linear = rate_factor(steps, Optimizer(schedule="linear", warmup=2), 10)
    assert linear.tolist() == [0.5, 1.0, 1.0, 0.5, 0.0]
    cosine = rate_factor(steps, Optimizer(schedule="cosine", warmup=2), 10)
    torch.testing.assert_close(cosine, torch.tensor([0.5, 1, 1, 0.5, 0], dtype=torch.float64))
    assert rate_factor(steps, Optimizer(), 10).tolist() == [1.0] * 5


def test_state_loaded_into_another_optimiser_continues_bitwise():
    settings = SETTINGS[3]
    gradients = [torch.full((2, 3), 0.1 * (step + 1), dtype=torch.float64) for step in range(6)]

    def run(optimizer, parameter, some):
        for gradient in some:
            parameter.grad = gradient.clone()
            optimizer.step(torch.tensor([True, True]))

    whole = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    run(StackedOptimizer([whole], settings, 6), whole, gradients)
    first = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    optimizer = StackedOptimizer([first], settings, 6)
    run(optimizer, first, gradients[:2])
    second = first.detach().clone().requires_grad_()
    resumed = StackedOptimizer([second], settings, 6)
    resumed.load({name: tensor.clone() for name, tensor in optimizer.state().items()})
    run(resumed, second, gradients[2:])
    assert torch.equal(whole, second)
