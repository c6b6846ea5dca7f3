"""A comparison for the terminal: controls, rows, claims, effects of the axes, rows at their best rate."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from grpo_ablate.analysis.compare_tables import asked, headings, rows_table
from grpo_ablate.analysis.comparison import VERDICTS, ClaimResult, Comparison
from grpo_ablate.analysis.tables import decimals
from grpo_ablate.analysis.tables import number as fixed
from grpo_ablate.analysis.words import number

WIDTH = 110
STATES = {True: "holds", False: "FAILED", None: "not judged"}


def as_text(comparison: Comparison) -> str:
    """Return the comparison as lines to print."""
    table = rows_table(comparison)
    parts = [
        _wrapped(f"{comparison.experiment}: {comparison.question}", "", "  "),
        f"  testbed {comparison.testbed}, {_seeds(comparison.seeds)}, {comparison.metric}, "
        f"baseline {comparison.baseline}",
        *headings(comparison),
        "",
        *_controls(comparison),
        "",
        *grid(table.header, table.rows),
        *(_wrapped(note, "  ", "  ") for note in table.notes),
        *_claims(comparison),
        *_effects(comparison),
        *_tuned(comparison),
        *_spent(comparison),
        *_failures(comparison),
    ]
    return "\n".join(parts)


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return cells as aligned lines: the first and the last column to the left, the others to the right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    last = len(header) - 1
    return [
        "  ".join(
            cell.ljust(width) if column in (0, last) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def _wrapped(text: str, first: str, later: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=False, break_long_words=False
    )


def _controls(comparison: Comparison) -> list[str]:
    return ["controls"] + [
        _wrapped(f"{STATES[control.holds]}: {control.label}: {control.words}", "  ", "      ")
        for control in comparison.controls
    ]


def _claims(comparison: Comparison) -> list[str]:
    lines = []
    for claim in comparison.claims:
        lines += [
            _wrapped(f"{claim.id}: {claim.statement} ({claim.source})", "  ", "      "),
            f"      {asked(claim)}",
            _wrapped(f"{_verdict(claim)}: {claim.words}", "      ", "      "),
        ]
    return ["", f"claims (Holm's family: {comparison.family})", *lines] if lines else []


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _verdict(claim: ClaimResult) -> str:
    text = VERDICTS[claim.verdict]
    late = f" (the claim was {claim.decided})" if claim.decided else ""
    return f"{text.upper() if claim.verdict == 'contradicted' else text}{late}"


def _effects(comparison: Comparison) -> list[str]:
    if not comparison.effects:
        return []
    digits = decimals([effect.high - effect.low for effect in comparison.effects], significant=2)
    rows = [
        (
            " x ".join(f"{level} vs {reference}" for level, reference in zip(e.levels, e.references, strict=True)),
            f"{'+' if e.estimate > 0 else ''}{fixed(e.estimate, digits)}",
            f"[{fixed(e.low, digits)}, {fixed(e.high, digits)}]",
            f"[{fixed(e.seed_low, digits)}, {fixed(e.seed_high, digits)}]",
        )
        for e in comparison.effects
    ]
    return ["", *grid(("main effects and interactions", "effect", "95 % interval", "seed by seed"), rows)]


def _tuned(comparison: Comparison) -> list[str]:
    if not comparison.tuned:
        return []
    rates = [f"{rate.learning_rate:g}" for rate in comparison.tuned[0].rates]
    rows = [
        (
            tuned.row,
            *(number(rate.mean) for rate in tuned.rates),
            f"{tuned.best:g}{' (an end of the range: the optimum may lie beyond)' if tuned.at_edge else ''}",
        )
        for tuned in comparison.tuned
    ]
    return ["", *grid(("mean on the tuning seeds, by learning rate", *rates, "best"), rows)]


def _spent(comparison: Comparison) -> list[str]:
    rows = [
        (
            row.row,
            *(number(value) for value in (row.spent.rollouts, row.spent.tokens, row.spent.updates)),
            number(row.spent.seconds),
        )
        for row in comparison.rows
    ]
    return [
        "",
        *grid((f"spent per seed (held: {comparison.held})", "rollouts", "tokens", "updates", "seconds"), rows),
    ]


def _failures(comparison: Comparison) -> list[str]:
    if not comparison.failures:
        return []
    lines = [f"  {failure.row} seed {failure.seed}: {failure.reason}" for failure in comparison.failures]
    return ["", "failed runs", *lines]
