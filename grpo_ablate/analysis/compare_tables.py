"""A comparison as files: rows and claims in CSV, Markdown, LaTeX and Typst, and everything as JSON."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from grpo_ablate.analysis.alarms import above, alarms
from grpo_ablate.analysis.comparison import VERDICTS, ClaimResult, Comparison, RowResult, as_json
from grpo_ablate.analysis.failures import failure_notes
from grpo_ablate.analysis.tables import DIALECTS, STALE, Table, decimals, number, shown_apart
from grpo_ablate.analysis.words import estimate, interval, p_value
from grpo_ablate.analysis.words import number as word


def comparison_files(comparison: Comparison) -> dict[str, bytes]:
    """Return the files of a comparison by their endings (`comparison.FILES`)."""
    claims = [_claim_line(claim, comparison.partial) for claim in comparison.claims]
    contents = {
        "-comparison.csv": _csv(_row_lines(comparison)).encode(),
        "-claims.csv": _csv(claims).encode(),
        "-comparison.json": as_json(comparison),
    }
    heading = headings(comparison)
    for dialect, render in DIALECTS.items():
        for part, table in (("comparison", rows_table(comparison)), ("claims", claims_table(comparison))):
            contents[f"-{part}.{dialect}"] = (above(heading, dialect) + render(table)).encode()
    return contents


def headings(comparison: Comparison) -> list[str]:
    """Return what stands above every table: failed controls, and that runs are missing."""
    return [*alarms(comparison.controls), *([comparison.partial] if comparison.partial else [])]


def rows_table(comparison: Comparison) -> Table:
    """Return the rows beside the baseline, and after them the rows at their own best learning rates."""
    results = [*comparison.rows, *(tuned.result for tuned in comparison.tuned)]
    gaps = [row.difference for row in results if row.difference is not None]
    digits = decimals([row.sd for row in results])
    fine = max(digits, decimals([gap.sd for gap in gaps], significant=2))
    name = comparison.metric.rpartition("/")[2].replace("_", " ")
    columns: list[tuple[str, list[str]]] = [
        ("Row", [_label(row, comparison.baseline) for row in results]),
        (f"{name[:1].upper()}{name[1:]}", [number(row.mean, digits) for row in results]),
        ("Difference", [_or_blank(row, lambda gap: _signed(gap.mean, fine)) for row in results]),
        ("95 % interval", [_or_blank(row, lambda gap: _interval(gap.low, gap.high, fine)) for row in results]),
        ("Seeds won", [_or_blank(row, lambda gap: won(gap.won, len(gap.values))) for row in results]),
    ]
    if len({row.n for row in results}) > 1:
        columns.insert(1, ("n", [str(row.n) for row in results]))
    if any(not math.isnan(row.p) for row in results):
        columns.append(("p", ["" if math.isnan(row.p) else p_value(row.p) for row in results]))
    if any(row.failed for row in results):
        columns.append(("Failed", [str(len(row.failed)) for row in results]))
    columns.append(("Verdict", [row.verdict for row in results]))
    return Table(
        header=tuple(title for title, _ in columns),
        rows=tuple(zip(*(cells for _, cells in columns), strict=True)),
        notes=tuple(_row_notes(comparison, results)),
    )


def claims_table(comparison: Comparison) -> Table:
    """Return the claims with their verdicts."""
    return Table(
        header=("Claim", "Test", "n", "Measured", "p", "Verdict"),
        rows=tuple(
            (
                f"{claim.statement} ({claim.source})",
                asked(claim),
                str(claim.n),
                measured(claim),
                p_value(claim.p),
                verdict(claim),
            )
            for claim in comparison.claims
        ),
        notes=tuple(_claim_notes(comparison)),
    )


def asked(claim: ClaimResult) -> str:
    """Say what a claim asks of the runs."""
    sign = {"better": ">", "worse": "<", "equivalent": "≈", "exact": "=", "ratio": "/"}[claim.kind]
    value = f" ≈ {claim.value:g}" if claim.kind == "ratio" else ""
    margin = f" ± {claim.margin:g}" if claim.margin > 0 and claim.kind not in ("better", "worse") else ""
    return f"{claim.row} {sign} {claim.than}{value}{margin}, {claim.metric}"


def measured(claim: ClaimResult) -> str:
    """Return a claim's estimate with its interval, or what an exact one found."""
    if claim.kind == "ratio" and not math.isnan(claim.ratio):
        return estimate(claim.ratio, claim.ratio_low, claim.ratio_high)
    if claim.difference is None:
        return claim.words
    return estimate(claim.difference.mean, claim.difference.low, claim.difference.high, signed=True)


def verdict(claim: ClaimResult) -> str:
    """Return the verdict in words, and that the claim was decided on late.

    Where nothing was found, with the smallest effect that would have been seen.
    """
    text = VERDICTS[claim.verdict]
    seen = claim.kind != "ratio" and claim.difference is not None and claim.difference.detectable > 0
    if claim.verdict == "inconclusive" and seen and claim.difference is not None:
        text += f" ({word(claim.difference.detectable)} would have been seen)"
    if claim.decided:
        text += f" (the claim was {claim.decided})"
    return text if claim.sign_flip_reaches else f"{text} ‡"


def won(share: float, pairs: int) -> str:
    """Return in how many of the pairs a row is higher, a tie counting half.

    >>> won(0.75, 8), won(0.5, 3)
    ('6 / 8', '1.5 / 3')
    """
    return f"{share * pairs:g} / {pairs}" if pairs else ""


def _row_notes(comparison: Comparison, results: Sequence[RowResult]) -> list[str]:
    notes = [
        "Paired differences to the baseline over seeds, with t intervals. A row without a claim has an "
        "uncorrected interval and no p."
    ]
    if any(not math.isnan(row.p) for row in results):
        notes.append(f"p: paired t test after Holm's correction for the {_claims(comparison)} of the file.")
    if comparison.noise_floor is not None:
        floor = comparison.noise_floor
        notes.append(
            "Noise floor, the baseline again under other random numbers: "
            f"{estimate(floor.mean, floor.low, floor.high, signed=True)}."
        )
    notes += failure_notes(comparison.metric, comparison.floor, {row.row: row.failed for row in results})
    twins = [f"{row.row} = {row.twin_of}" for row in comparison.rows if row.twin_of]
    if twins:
        notes.append(f"Twins, one run under two names, since what they differ in cannot act: {', '.join(twins)}.")
    order = [row.row for row in comparison.rows]
    same = [
        f"{row.row} = {other}"
        for row in comparison.rows
        for other in row.identical_to
        if row.twin_of is None and order.index(other) < order.index(row.row)
    ]
    if same:
        notes.append(f"Trained apart, parameters bit-identical in the end: {', '.join(same)}.")
    if comparison.tuned:
        notes.append("Rows named with @ are at their best learning rate of those tried on the tuning seeds.")
    if any(row.stale for row in results):
        notes.append(STALE)
    return [*notes, *comparison.notes]


def _claim_notes(comparison: Comparison) -> list[str]:
    if not comparison.claims:
        return ["The experiment declares no claims.", *comparison.notes]
    notes = [
        f"p after Holm's correction for the {_claims(comparison)} of the file; equivalence and ratios by two "
        "one-sided tests against the margin."
    ]
    if not all(claim.sign_flip_reaches for claim in comparison.claims):
        notes.append(
            f"‡ with fewer than {comparison.sign_flip_needs} seeds no sign-flip test could reach "
            f"{comparison.alpha:g} among {_claims(comparison)}."
        )
    return [*notes, *comparison.notes]


def _claims(comparison: Comparison) -> str:
    return "1 claim" if comparison.family == 1 else f"{comparison.family} claims"


def _label(row: RowResult, baseline: str) -> str:
    at = f" @ {word(row.learning_rate)}" if "@" in row.row else ""
    mark = " (baseline)" if row.row == baseline else ""
    name = row.label.partition("@")[0] if at else row.label
    return f"{name}{at}{mark}{' †' if row.stale else ''}"


def _or_blank(row: RowResult, show: Any) -> str:
    return "" if row.difference is None else str(show(row.difference))


def _signed(value: float, digits: int) -> str:
    if value and abs(value) < 0.5 * 10**-digits:  # not 0, though it would be printed as 0
        return word(value, signed=True)
    text = number(value, digits)
    return f"+{text}" if value > 0 and not math.isinf(value) else text


def _interval(low: float, high: float, digits: int) -> str:
    if math.isnan(low) or 0 < max(abs(low), abs(high)) < 0.5 * 10**-digits:
        return interval(low, high)
    apart = shown_apart(digits, low, high)
    return f"[{number(low, apart)}, {number(high, apart)}]"


def _row_lines(comparison: Comparison) -> list[dict[str, Any]]:
    return [
        _row_line(comparison, row, tuned)
        for tuned, rows in (
            (False, comparison.rows),
            (True, tuple(tuned.result for tuned in comparison.tuned)),
        )
        for row in rows
    ]


def _row_line(comparison: Comparison, row: RowResult, tuned: bool) -> dict[str, Any]:
    gap, area = row.difference, row.area_difference
    kept = ("mean", "sd", "low", "high", "boot_low", "boot_high", "won", "ties", "detectable")
    return {
        "experiment": comparison.experiment,
        "row": row.row,
        "label": row.label,
        "metric": comparison.metric,
        "tuned": tuned,
        "learning_rate": row.learning_rate,
        "n": row.n,
        "mean": row.mean,
        "sd": row.sd,
        "ci_low": row.low,
        "ci_high": row.high,
        **{f"difference_{name}": None if gap is None else getattr(gap, name) for name in kept},
        "area": row.area,
        **{f"area_difference_{name}": None if area is None else getattr(area, name) for name in kept[:4]},
        "p": row.p,
        "verdict": row.verdict,
        "failed": len(row.failed),
        **asdict(row.spent),
        "stale": row.stale,
        "twin_of": row.twin_of,
        "identical_to": " ".join(row.identical_to),
        "partial": comparison.partial,
    }


CLAIM_COLUMNS = (
    "id", "statement", "source", "kind", "row", "than", "metric", "margin", "value", "n", "difference", "low",
    "high", "ratio", "ratio_low", "ratio_high", "p", "p_t_holm", "p_sign_flip_holm", "p_wilcoxon_holm",
    "detectable", "verdict", "words", "sign_flip_reaches", "decided", "partial",
)  # fmt: skip


def _claim_line(claim: ClaimResult, partial: str) -> dict[str, Any]:
    gap, tests = claim.difference, claim.tests
    own = {name: getattr(claim, name) for name in CLAIM_COLUMNS if hasattr(claim, name)}
    found = {
        "difference": None if gap is None else gap.mean,
        "low": None if gap is None else gap.low,
        "high": None if gap is None else gap.high,
        "detectable": None if gap is None else gap.detectable,
        **{f"p_{name}": None if tests is None else getattr(tests, name) for name in ("t_holm", "sign_flip_holm")},
        "p_wilcoxon_holm": None if tests is None else tests.wilcoxon_holm,
        "partial": partial,
    }
    return {name: (own | found)[name] for name in CLAIM_COLUMNS}


def _csv(lines: Sequence[dict[str, Any]]) -> str:
    """Return lines as CSV; numbers in full, an empty cell where there is none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(lines[0] if lines else CLAIM_COLUMNS)
    for line in lines:
        writer.writerow(
            [
                "" if value is None or (isinstance(value, float) and math.isnan(value)) else value
                for value in line.values()
            ]
        )
    return text.getvalue()
