"""Controls that are no matter of chance, run in memory on a policy of one categorical a prompt.

Leave-one-out is mean-only times G/(G-1), so at a learning rate times (G-1)/G it trains the same parameters, up to
rounding, under plain SGD; a reward times ten is no other reward to AdamW, which divides by the gradient's size;
and switches that are called inert are inert, bit by bit. A change of the code that breaks one of these breaks what
every comparison rests on.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ablate.analysis.comparison import ControlResult
from grpo_ablate.analysis.tables import DIALECTS, Table
from grpo_ablate.analysis.words import number
from grpo_ablate.analysis.writing import write_whole
from grpo_ablate.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_ablate.spec.schema import Spec

SEEDS = range(4)
ROUNDS = 50
ROUNDING = 1e-12  # of logits of order 1, after ROUNDS updates in float64
COSINE = 0.9999
COLUMNS = ("id", "label", "holds", "value", "bound", "words")

Switches = dict[str, dict[str, Any]]
QUALITIES = (0.0, 0.35, 0.7, 1.0)
PROMPTS, GROUP, RATE = 4, 8, 0.3


@cache
def exact_controls() -> tuple[ControlResult, ...]:
    """Train every control in memory and judge it, once in a process."""
    return tuple(judge() for judge in CONTROLS.values())


def _spec(switches: Switches, rounds: int = ROUNDS) -> Spec:
    from grpo_ablate.spec.schema import Spec

    candidates = [{"text": f"{quality:g}", "quality": quality} for quality in QUALITIES]
    prompts = [{"source": str(index), "target": "any", "candidates": candidates} for index in range(PROMPTS)]
    stated: dict[str, Any] = {
        "task": {"name": "selection", "prompts": prompts},
        "evaluation": {"every": rounds},
        "sampling": {"prompts": PROMPTS, "group_size": GROUP, "prompt_order": "each-once"},
        "optimizer": {"name": "sgd", "learning_rate": RATE},
        "budget": {"rollouts": rounds * PROMPTS * GROUP},
    }
    for section, keys in switches.items():
        stated[section] = {**stated.get(section, {}), **keys}
    return Spec.model_validate(stated)


def _trained(switches: Switches, rounds: int = ROUNDS) -> Tensor:
    """Return every seed's parameters after so many rounds, flat, float64 [seeds, parameters]."""
    import torch

    from grpo_ablate.runs.train import make_loop

    torch.set_num_threads(1)
    loop = make_loop(_spec(switches, max(1, rounds)), SEEDS)
    loop.start()
    for _ in range(rounds):
        loop.advance()
    parameters = loop.policy.parameters()
    return torch.cat([parameters[name].double().flatten(1) for name in sorted(parameters)], dim=1)


def _leave_one_out() -> ControlResult:
    mean: Switches = {"advantage": {"baseline": "mean", "scale": "none"}}
    leave: Switches = {
        "advantage": {"baseline": "leave-one-out", "scale": "none"},
        "optimizer": {"learning_rate": RATE * (GROUP - 1) / GROUP},
    }
    gap = float((_trained(mean) - _trained(leave)).abs().max())
    return ControlResult(
        "control.leave-one-out",
        f"leave-one-out at learning rate (G-1)/G trains mean-only's parameters (SGD, {ROUNDS} updates)",
        gap <= ROUNDING,
        f"largest difference of a parameter {number(gap)}, rounding {number(ROUNDING)}",
        gap,
        ROUNDING,
    )


def _reward_scale() -> ControlResult:
    plain: Switches = {
        "advantage": {"baseline": "mean", "scale": "none"},
        "optimizer": {"name": "adamw", "learning_rate": 0.01},
    }
    tenfold = plain | {"reward": {"transform": "affine", "scale": 10.0, "shift": 0.0}}
    start = _trained(plain, rounds=0)
    first, second = (_trained(switches, rounds=1) - start for switches in (plain, tenfold))
    cosine = float(((first * second).sum(1) / (first.norm(dim=1) * second.norm(dim=1))).min())
    return ControlResult(
        "control.reward-x-10",
        "ten times the reward gives AdamW's first update the same direction (mean-only, no clipping by norm)",
        cosine > COSINE,
        f"smallest cosine {cosine:.8f}, bound {COSINE}",
        cosine,
        COSINE,
    )


def _twins(name: str, label: str, one: Switches, other: Switches) -> ControlResult:
    """Judge two rows that differ by switches which cannot act; both are trained as stated."""
    import torch

    first, second = _trained(one), _trained(other)
    same = bool((first.view(torch.int64) == second.view(torch.int64)).all())  # the bits: 0 is not -0
    gap = float((first - second).abs().max())
    words = "parameters bit-identical" if same else f"parameters differ by up to {number(gap)}"
    return ControlResult(name, label, same, words, gap, 0.0)


CONTROLS: dict[str, Callable[[], ControlResult]] = {
    "leave-one-out": _leave_one_out,
    "reward-x-10": _reward_scale,
    "twin-clip": lambda: _twins(
        "control.twin-clip",
        "clipping cannot act with one optimiser step per round",
        {"update": {"clip_low": 0.01, "clip_high": 0.01}},
        {"update": {"clip_low": "off", "clip_high": "off"}},
    ),
    "twin-kl": lambda: _twins(
        "control.twin-kl",
        "options of the KL cannot act at beta 0",
        {"kl": {"estimator": "k1", "gradient": "ratio", "place": "reward-before"}},
        {"kl": {"estimator": "exact", "place": "loss"}},
    ),
}


def write_exact_controls(results: Path) -> list[Path]:
    """Judge the exact controls and write ``tables/controls.{csv,md,tex,typ}``; return the paths, the CSV first."""
    written = []
    for ending, content in controls_files().items():
        written.append(results / "tables" / f"controls{ending}")
        write_whole(written[-1], content)
    return written


def controls_files() -> dict[str, bytes]:
    """Return the table of the exact controls by the endings of its files, ``.csv`` first."""
    found = exact_controls()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for control in found:
        writer.writerow(
            [control.id, control.label, control.holds, repr(control.value), repr(control.bound), control.words]
        )
    table = Table(
        ("Control", "Measured", "Holds"),
        tuple((control.label, control.words, "yes" if control.holds else "NO") for control in found),
        (),
    )
    printed = {f".{dialect}": render(table).encode() for dialect, render in DIALECTS.items()}
    return {".csv": text.getvalue().encode(), **printed}


def read_exact_controls(results: Path) -> tuple[ControlResult, ...]:
    """Return what `write_exact_controls` found; judged anew where it was not written.

    Raises:
        UserError: the table is damaged.
    """
    path = results / "tables" / "controls.csv"
    try:
        lines = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    except FileNotFoundError:
        return exact_controls()
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}.") from None
    try:
        return tuple(
            ControlResult(
                line["id"], line["label"], {"True": True, "False": False}[line["holds"]], line["words"],
                float(line["value"]), float(line["bound"]),
            )
            for line in lines
        )  # fmt: skip
    except (KeyError, ValueError, TypeError):
        raise UserError(f"{path}: is not a table of controls; remove it to have them judged again.") from None
