"""An explanation as text for a terminal of 100 columns: a table of tokens per response, the loss, the metrics."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from grpo_ablate.explain.batch_file import shown
from grpo_ablate.explain.explanation import Explanation
from grpo_ablate.spec.schema import Switches

WIDTH = 100


def format_text(explanation: Explanation, switches: Switches, source: str = "batch") -> str:
    """Return the explanation as lines of at most 100 columns (long group ids aside)."""
    tokens = sum(map(len, explanation.logp))
    blocks = [
        f"{source}: {_count(len(explanation.logp), 'response')} in "
        f"{_count(len(_distinct(explanation.groups)), 'group')}, {_count(tokens, 'token')}\n{_setting(switches)}"
    ]
    blocks += _responses(explanation)
    blocks.append(_losses(explanation))
    blocks.append(_metrics(explanation))
    if explanation.notes:
        blocks.append(
            "\n".join(
                textwrap.fill(note, WIDTH, initial_indent="note: ", subsequent_indent="      ")
                for note in explanation.notes
            )
        )
    return "\n\n".join(blocks)


def number(value: float | None) -> str:
    """Return a number to seven digits in at most ten columns, in powers of ten where it would not fit.

    >>> number(-1.7320508), number(12.5), number(0.0), number(2e-9), number(None)
    ('-1.732051', '12.50000', '0', '2.000e-09', '-')
    """
    if value is None or value != value:
        return "-"
    if value == 0:
        return "0"
    size = abs(value)
    if not 1e-4 <= size < 1e4:
        return f"{value:.3e}"
    return f"{value:.{6 if size < 10 else 5 if size < 100 else 4 if size < 1000 else 3}f}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _distinct(groups: Sequence[object]) -> set[tuple[bool, object]]:
    return {(isinstance(group, bool), group) for group in groups}


def _setting(switches: Switches) -> str:
    """Return the switches that are not neutral, so that the reader sees what was asked."""
    stated = []
    for section in Switches.model_fields:
        record = getattr(switches, section)
        for key, field in type(record).model_fields.items():
            value = getattr(record, key)
            if value != field.default:
                stated.append(f"{section}.{key} {value}")
    advantage, update, kl = switches.advantage, switches.update, switches.kl
    built_in = f"{advantage.baseline}, {advantage.scale} (ddof {advantage.ddof}, eps {advantage.eps:g})"
    summary = (
        f"{advantage.function or built_in}; "
        f"{update.surrogate} {update.clip_low}/{update.clip_high}; {update.reduction}; beta {kl.beta:g}"
    )
    lines = [summary]
    if stated:
        lines += textwrap.wrap("set: " + ", ".join(stated), WIDTH, subsequent_indent="     ")
    return "\n".join(lines)


def _responses(explanation: Explanation) -> list[str]:
    """Return one block per response; a column that says nothing in the whole batch is left out."""
    columns: list[tuple[str, list[list[float]] | list[list[str | None]]]] = [
        ("logp", explanation.logp),
        ("advantage", explanation.advantages),
        ("weight", explanation.weights),
        ("ratio", explanation.ratios),
        ("objective", explanation.objective),
    ]
    if any(any(row) for row in explanation.clipped):
        columns.append(("clip", explanation.clipped))
    if any(factor != 1 for row in explanation.mismatch for factor in row):
        columns.append(("mismatch", explanation.mismatch))
    if any(any(row) for row in explanation.kl):
        columns.append(("kl", explanation.kl))
    columns.append(("dloss/dlogp", explanation.grad))
    texts = {name: [[_cell(value) for value in row] for row in rows] for name, rows in columns}
    widths = {
        name: max(len(name), *(len(cell) for row in rows for cell in row), 0) for name, rows in texts.items()
    }
    if 7 + sum(2 + width for width in widths.values()) > WIDTH:
        del texts["logp"]  # the reader's own number, and the first that can be spared
    header = "  token  " + "  ".join(f"{name:>{widths[name]}}" for name in texts)
    blocks = []
    for index, logp in enumerate(explanation.logp):
        lines = [_title(explanation, index)]
        if not logp:
            lines.append("  no tokens")
        else:
            lines.append(header)
        for position in range(len(logp)):
            cells = "  ".join(f"{rows[index][position]:>{widths[name]}}" for name, rows in texts.items())
            lines.append(f"  {position:>5}  {cells}")
        blocks.append("\n".join(lines))
    return blocks


def _cell(value: float | str | None) -> str:
    return value if isinstance(value, str) else number(value)


def _title(explanation: Explanation, index: int) -> str:
    reward, shaped = explanation.rewards[index], explanation.shaped[index]
    title = f"response {index}  group {shown(explanation.groups[index])}  reward "
    title += "missing" if reward is None else f"{reward:g}"
    return title if shaped is None or shaped == reward else f"{title}  shaped {number(shaped)}"


def _losses(explanation: Explanation) -> str:
    rows = [
        ("loss", explanation.loss),
        ("policy_loss", explanation.policy_loss),
        ("kl_loss", explanation.kl_loss),
    ]
    return "\n".join(f"{name:<12} {number(value):>13}" for name, value in rows)


def _metrics(explanation: Explanation) -> str:
    """Return the metrics in two columns."""
    cells = [f"{name:<32} {number(value):>13}" for name, value in explanation.metrics.items()]
    half = (len(cells) + 1) // 2
    left, right = cells[:half], cells[half:] + [""] * (2 * half - len(cells))
    return "\n".join(f"{a}     {b}".rstrip() for a, b in zip(left, right, strict=True))
