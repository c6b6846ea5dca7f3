"""Initial weights by key: a function of the seed and of nothing else."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_ablate.policies.stacked.architecture import Architecture
from grpo_ablate.rng import Keys, Purpose, normal
from grpo_ablate.spec.schema import StackedPolicy

# Standard deviations: a matrix's in units of one over the root of its inputs. From transformers' .02 for all, warm
# starts of the same cost answer fewer prompts, and the same rollouts then teach less.
EMBEDDING, MATRIX = 0.1, 0.5
ROW = 1 << 16  # numbers of one key's ``token`` coordinate


def initial_parameters(settings: StackedPolicy, vocabulary: int, keys: Keys) -> dict[str, Tensor]:
    """Return random parameters by name, float32 [M, ...]: norms of one, and normal matrices.

    The parameters of a seed depend neither on the other members nor on how many there are.
    """
    architecture = Architecture(settings, vocabulary)
    place = torch.arange(architecture.size, device=keys.seeds.device)
    uniform = keys.uniform(Purpose.INITIAL_WEIGHTS, slot=place // ROW, token=place % ROW, dimensions=2)
    found = {}
    for name, numbers in architecture.views(normal(uniform)).items():
        if name.endswith("norm"):
            found[name] = torch.ones_like(numbers, dtype=torch.float32)
        else:
            deviation = EMBEDDING if name == "embedding" else MATRIX / numbers.shape[-2] ** 0.5
            found[name] = (numbers * deviation).float()
    return found


def flattened(parameters: dict[str, Tensor], architecture: Architecture, members: int) -> Tensor:
    """Return parameters by name, [M, ...] or [1, ...] for all members alike, as one tensor float32 [M, P].

    Raises ValueError where the names or shapes are not those of the architecture.
    """
    if set(parameters) != set(architecture.shapes):
        raise ValueError(f"parameters {sorted(parameters)} are not those of {sorted(architecture.shapes)}")
    pieces = []
    for name, shape in architecture.shapes.items():
        value = parameters[name]
        if tuple(value.shape[1:]) != shape or len(value) not in (1, members):
            raise ValueError(f"{name} has shape {tuple(value.shape)}, expected [1 or {members}, *{shape}]")
        pieces.append(value.float().expand(members, *shape).flatten(1))
    return torch.cat(pieces, 1)
