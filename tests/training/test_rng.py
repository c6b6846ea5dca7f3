"""Keyed random numbers: the generator is Philox4x32-10, and a number depends on its key alone."""

import math

import pytest
import torch

from grpo_ablate.rng import Keys, Purpose, RoundUniforms, normal, philox


def words(*values: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(value, dtype=torch.int64) for value in values)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter, key, expected):
    assert tuple(word.item() for word in philox(words(*counter), words(*key))) == expected


def full(members, prompts, group_size, tokens=1, seeds=None):
    keys = Keys(torch.tensor(seeds if seeds is not None else range(members)), 3)
    return RoundUniforms(keys, Purpose.RESPONSE, (prompts, group_size, tokens))


def test_a_number_does_not_depend_on_members_group_size_or_block():
    wide = full(4, 5, 8, 2)(17)
    narrow = full(1, 5, 3, 2, seeds=[2])(17)
    assert torch.equal(wide[2:3, :, :3], narrow)
    single = full(4, 5, 8, 2)
    single.rounds = 1
    assert torch.equal(single(17), wide)


def test_a_number_does_not_depend_on_the_order_of_calls():
    stream = full(2, 3, 4)
    forward = [stream(round) for round in range(200)]
    backward = [full(2, 3, 4)(round) for round in reversed(range(200))]
    assert all(torch.equal(a, b) for a, b in zip(forward, reversed(backward), strict=True))


def test_every_coordinate_of_the_key_changes_the_number():
    seen = []
    for random_key in (0, 1):
        for purpose in (Purpose.RESPONSE, Purpose.EVALUATION):
            keys = Keys(torch.arange(2), random_key)
            for coordinates in (
                {},
                {"round": 1},
                {"attempt": 1},
                {"slot": 1},
                {"sample": 1},
                {"token": 1},
            ):
                seen += keys.uniform(purpose, **coordinates).tolist()
    assert len(set(seen)) == len(seen) == 2 * 2 * 6 * 2


def test_uniforms_are_uniform_and_normals_normal():
    keys = Keys(torch.arange(100), 0)
    grid = {"round": torch.arange(1000), "dimensions": 2}
    uniform = keys.uniform(Purpose.REWARD_UNIFORM, **grid).flatten()
    normals = normal(keys.uniform(Purpose.REWARD_NORMAL, **grid).flatten())
    n = uniform.numel()
    assert uniform.min() >= 0 and uniform.max() < 1
    # Four standard errors of the mean, the second moment and of each tenth of the unit interval.
    assert abs(uniform.mean() - 0.5) < 4 / math.sqrt(12 * n)
    counts = torch.histc(uniform, 10, 0, 1)
    assert (counts / n - 0.1).abs().max() < 4 * math.sqrt(0.09 / n)
    assert abs(normals.mean()) < 4 / math.sqrt(n)
    assert abs(normals.square().mean() - 1) < 4 * math.sqrt(2 / n)
    assert abs(normals.pow(4).mean() - 3) < 4 * math.sqrt(96 / n)


def test_uniforms_carry_53_bits():
    values = Keys(torch.arange(1000)).uniform(Purpose.RESPONSE) * 2.0**53
    assert torch.equal(values, values.floor())
    assert (values.long() & 1).any() and not (values.long() & 1).all()


def test_normals_are_finite_at_both_ends_of_the_unit_interval():
    ends = normal(torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64))
    assert ends.isfinite().all() and ends[0] == -ends[1]


@pytest.mark.parametrize(("seeds", "key"), [([2**32], 0), ([-1], 0), ([0], 65536), ([0], -1)])
def test_a_seed_or_key_beyond_its_bits_would_repeat_anothers_numbers_and_is_refused(seeds, key):
    with pytest.raises(ValueError, match="leaves the range"):
        Keys(torch.tensor(seeds), key)


@pytest.mark.parametrize(
    "coordinate", [{"sample": 65536}, {"token": torch.tensor([0, 65536])}, {"slot": -1}, {"round": 2**32}]
)
def test_a_coordinate_beyond_its_bits_is_refused(coordinate):
    keys = Keys(torch.tensor([2**32 - 1]), 65535)
    keys.uniform(Purpose.RESPONSE, sample=65535, token=torch.tensor([65535]), slot=2**32 - 1, round=2**32 - 1)
    with pytest.raises(ValueError, match=f"{next(iter(coordinate))} from .* leaves the range"):
        keys.uniform(Purpose.RESPONSE, **coordinate)
