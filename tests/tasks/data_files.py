"""Small data files in the layouts of GSM8K and MATH, written by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

GSM8K = [
    {
        "question": f"Ann has {n} apples and buys {n + 1}. How many has she now?",
        "answer": f"She has {n} + {n + 1} = <<{n}+{n + 1}={2 * n + 1}>>{2 * n + 1:,} apples.\n#### {2 * n + 1:,}",
    }
    for n in range(500, 540)
]
MATH = [
    {
        "problem": f"Simplify $\\frac{{{2 * n}}}{{{4 * n + 2}}}$.",
        "level": "Level 2",
        "solution": f"It is $\\boxed{{\\frac{{{n}}}{{{2 * n + 1}}}}}$.",
    }
    for n in range(1, 41)
]


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path)
    return path
