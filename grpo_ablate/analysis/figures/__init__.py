"""Figures of an experiment: which files there will be (cheap to ask), and drawing them.

A kind of figure is a module of this package, named after the kind (or in ``MODULES``), with two functions:

* ``draw(material, options) -> Figure`` draws it;
* ``caption(material, options) -> str`` says what is shown, on how many seeds, with which interval.

The kinds of exact experiments are modules of the package ``exact`` below; they have no seeds, and their
captions say what is exact and what is assumed.

Nothing here imports pandas, matplotlib or seaborn before something is drawn: the workflow asks for file
names at every start.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ablate import metrics
from grpo_ablate.errors import UserError, nearest
from grpo_ablate.spec.exact_files import ExactExperiment
from grpo_ablate.spec.resolve import CONFORM

if TYPE_CHECKING:
    from grpo_ablate.spec.resolve import Experiment, FigureSpec

# kind -> its options with their defaults. Every kind also takes `name`, which names its files.
KINDS: dict[str, dict[str, Any]] = {
    "curves": {"x": "updates", "metric": None, "rows": None},
    "final": {"metric": None, "rows": None},
    "published": {},
    "sweep": {"axis": None, "by": None, "panel": None, "metric": None, "costs": ["updates", "rollouts"]},
    "grid": {"x": None, "by": None, "panel": None, "metric": None},
    "costs": {"metric": None, "rows": None},
    "differences": {},
    "mixed": {"x": "rollouts", "rows": None},
    "lengths": {"x": "rollouts", "rows": None},
    "clipping": {"x": "updates", "rows": None},
    "tradeoff": {"x": "eval/kl", "metric": None, "rows": None},
    "breakdown": {"rows": None},
    "trainers": {},
}
# Kinds that differ in the metrics alone have one module, which tells them apart by the option `kind`.
MODULES = {"lengths": "rounds", "clipping": "rounds"}
# The options of the kinds of exact experiments.
EXACT_KINDS: dict[str, dict[str, Any]] = {
    "factor": {},
    "mixed": {},
    "stabiliser": {},
    "direction": {},
    "push": {},
    "agreement": {},
    "variance": {},
    "budget": {},
    "slope": {},
    "plateau": {},
    "success": {"kl": False},
    "weight": {},
}
COMPARED = ("differences",)  # kinds that show the comparison
TWO_TRAINERS = ("trainers",)  # kinds that show two trainers; their experiments take no other
FORMATS = ("pdf", "png")
COUNTERS = ("updates", "rollouts", "tokens", "seconds")  # what a learning curve may be drawn against


def module_name(experiment: Experiment | ExactExperiment, kind: str) -> str:
    """Return the module that draws a kind of figure."""
    if isinstance(experiment, ExactExperiment):
        return f"{__name__}.exact.{kind}"
    return f"{__name__}.{MODULES.get(kind, kind)}"


def options(experiment: Experiment | ExactExperiment, figure: FigureSpec) -> dict[str, Any]:
    """Return the options of a figure, defaults filled in, and its ``kind``.

    Raises:
        UserError: no such kind, no such option, or a kind that the experiment does not allow.
    """
    where = f"{experiment.path}: figures"
    kinds = EXACT_KINDS if isinstance(experiment, ExactExperiment) else KINDS
    if figure.kind not in kinds:
        raise UserError(f"{where}: no kind '{figure.kind}'; {nearest(figure.kind, kinds)}")
    defaults = {"name": figure.kind, **kinds[figure.kind]}
    for option in figure.options:
        if option not in defaults:
            raise UserError(f"{where}: {figure.kind} has no option '{option}'; {nearest(option, defaults)}")
    found = {"kind": figure.kind, **defaults, **figure.options}
    if isinstance(experiment, ExactExperiment):
        return found
    _check_counters(where, figure.kind, found)
    measured = _listed(found.get("metric")) + (_listed(found["x"]) if figure.kind == "tradeoff" else [])
    for metric in measured:
        if not metrics.known(str(metric)):
            offer = nearest(str(metric), metrics.names())
            raise UserError(f"{where}: {figure.kind}: no metric '{metric}'; {offer}")
    for row in _listed(found.get("rows")):
        experiment.row(str(row))
    if figure.kind in ("sweep", "grid"):
        _check_axes(where, experiment, figure.kind, found)
    if (figure.kind in TWO_TRAINERS) != experiment.path.name.startswith(CONFORM):
        raise UserError(
            f"{where}: {figure.kind}: experiments of two trainers, {CONFORM}*.yaml, have figures of the kind "
            f"{', '.join(TWO_TRAINERS)}, and others have not."
        )
    if figure.kind == "published" and experiment.published is None:
        raise UserError(f"{where}: {figure.kind} sets ours beside a published table: name it under 'published'.")
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _check_counters(where: str, kind: str, found: dict[str, Any]) -> None:
    for option in ("x", "costs"):
        if option not in found or kind in ("grid", "tradeoff"):
            continue
        counters = _listed(found[option])
        for counter in counters:
            if counter not in COUNTERS:
                offer = nearest(str(counter), COUNTERS)
                raise UserError(f"{where}: {kind}: {option} '{counter}' is no counter; {offer}")
        if kind not in ("curves", "sweep") and len(counters) != 1:
            raise UserError(f"{where}: {kind}: {option} names one counter, of {', '.join(COUNTERS)}.")


def _check_axes(where: str, experiment: Experiment, kind: str, found: dict[str, Any]) -> None:
    for option in ("axis", "x", "by", "panel"):
        if option in found and found[option] not in experiment.axes:
            given = found[option]
            offer = nearest(str(given), experiment.axes)
            raise UserError(
                f"{where}: {kind} needs the option '{option}', the name of an axis; {offer}"
                if given is None
                else f"{where}: {kind}: {option} '{given}' is no axis; {offer}"
            )


def named(
    experiment: Experiment | ExactExperiment,
) -> dict[str, tuple[FigureSpec, dict[str, Any]]]:
    """Return the figures of an experiment by name, each with its options.

    Raises:
        UserError: a figure is not well stated, or two would write the same files.
    """
    found: dict[str, tuple[FigureSpec, dict[str, Any]]] = {}
    for figure in experiment.figures:
        chosen = options(experiment, figure)
        if chosen["name"] in found:
            raise UserError(
                f"{experiment.path}: figures: two are called '{chosen['name']}'; give one the option 'name'."
            )
        found[chosen["name"]] = (figure, chosen)
    return found


def outputs(experiment: Experiment | ExactExperiment) -> list[str]:
    """Return the files that ``draw`` writes, relative to the results folder."""
    return [f"figures/{experiment.name}-{name}.{suffix}" for name in named(experiment) for suffix in FORMATS]


def inputs(experiment: Experiment | ExactExperiment) -> list[str]:
    """Return the tables that ``draw`` reads, relative to the results folder."""
    if isinstance(experiment, ExactExperiment):
        return [f"tables/{experiment.name}.csv"]
    found = [f"tables/{experiment.name}-runs.parquet"]
    compared = any(figure.kind in COMPARED for figure in experiment.figures)
    return [*found, f"tables/{experiment.name}-comparison.json"] if compared else found


def draw(experiment: Experiment | ExactExperiment, results: Path) -> None:
    """Draw every figure of an experiment from its table, as PDF and PNG.

    Reads the tables that ``inputs`` names below ``results`` and writes the files that ``outputs`` names. The bytes
    depend on the tables and the experiment alone. The caption travels in the files' metadata.
    """
    from grpo_ablate.analysis.figures import style

    found = _material(experiment, results)
    for name, (figure, chosen) in named(experiment).items():
        module = importlib.import_module(module_name(experiment, figure.kind))
        with style.theme():
            drawing = module.draw(found, chosen)
            stem = results / "figures" / f"{experiment.name}-{name}"
            style.save(drawing, stem, FORMATS, module.caption(found, chosen))


def captions(experiment: Experiment | ExactExperiment, material: Any) -> dict[str, str]:
    """Return the caption of every figure of an experiment, by the figure's name, from what it is drawn from."""
    return {
        name: importlib.import_module(module_name(experiment, figure.kind)).caption(material, chosen)
        for name, (figure, chosen) in named(experiment).items()
    }


def _material(experiment: Experiment | ExactExperiment, results: Path) -> Any:
    if isinstance(experiment, ExactExperiment):
        from grpo_ablate.analysis.figures.exact import material as exact

        return exact.load(experiment, results)
    from grpo_ablate.analysis.figures import material

    return material.load(experiment, results)


__all__ = [
    "EXACT_KINDS", "FORMATS", "KINDS", "captions", "draw", "inputs", "module_name", "named", "options", "outputs",
]  # fmt: skip
