"""From the files a user writes to fully resolved rows: testbed, preset, axes and a row's own keys, merged."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo_ablate import metrics
from grpo_ablate.errors import UserError, nearest
from grpo_ablate.spec.combinations import refusal
from grpo_ablate.spec.files import BESIDE, Changes, Claim, ExperimentFile, Figures, RowFile, TestbedFile
from grpo_ablate.spec.identity import spec_hash
from grpo_ablate.spec.inert import Inert, neutralised, notes
from grpo_ablate.spec.margins import margin_of
from grpo_ablate.spec.model_files import identified
from grpo_ablate.spec.presets import PRESETS
from grpo_ablate.spec.reading import checked, parse_yaml, read_yaml
from grpo_ablate.spec.schema import Advantage, Kl, Spec, Switches, Update
from grpo_ablate.spec.text_tasks import settled

Sparse = dict[str, dict[str, Any]]

# The baseline with one thing changed: every experiment trains these, and judges them before any claim.
CONTROLS: dict[str, tuple[str, Sparse]] = {
    "control.a-a": ("the baseline again, other random numbers", {"sampling": {"random_key": 1}}),
    "control.random-reward": ("the baseline on a random reward", {"reward": {"transform": "random"}}),
}
EXACT = "exact-"  # files of this name are exact experiments: they train nothing
CONFORM = "conform-"  # and these set another trainer beside this one


@dataclass(frozen=True)
class Row:
    """One resolved row. ``spec`` is what was stated; ``effective`` is what trains: inert switches neutral."""

    id: str
    label: str
    spec: Spec
    effective: Spec
    inert: tuple[Inert, ...]
    hash: str
    notes: tuple[str, ...]
    stated: Sparse = field(compare=False)  # the switches this row itself writes


@dataclass(frozen=True)
class Testbed:
    """What a testbed says beside its spec."""

    __test__ = False

    name: str
    path: Path
    quick: bool
    seeds_per_job: int
    stale: str
    stream: bool
    gpus: int = 0
    on_request: bool = False


@dataclass(frozen=True)
class FigureSpec:
    """A figure that an experiment asks for, by kind and options."""

    kind: str
    options: dict[str, Any] = field(compare=False, default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One ablation, resolved and checked."""

    name: str
    path: Path
    question: str
    testbed: Testbed
    baseline: str
    seeds: int
    metric: str
    rows: tuple[Row, ...]
    axes: dict[str, tuple[str, ...]] = field(compare=False)
    figures: tuple[FigureSpec, ...]
    published: Path | None
    claims: tuple[Claim, ...] = ()
    margin: float | None = None  # differences within it do not matter
    held: str = "rollouts"  # the quantity that rows must have spent alike
    controls: tuple[Row, ...] = ()  # judged before any claim, shown in no table of rows
    tuned: dict[str, tuple[Row, ...]] = field(compare=False, default_factory=dict)  # row -> itself at each rate

    @property
    def first_tuning_seed(self) -> int:
        """The first seed after the whole blocks that the rows are compared on."""
        size = self.testbed.seeds_per_job
        return -(-self.seeds // size) * size

    @property
    def trained_rows(self) -> tuple[Row, ...]:
        """The rows of the tables, the controls, and the rows at each learning rate."""
        return (*self.rows, *self.controls, *(row for rows in self.tuned.values() for row in rows))

    def row(self, name: str) -> Row:
        """Return the row of that id, or raise a UserError that offers the nearest one."""
        for row in self.rows:
            if row.id == name:
                return row
        raise UserError(f"{self.path}: no row '{name}'; {nearest(name, [row.id for row in self.rows])}")

    def trained_row(self, name: str) -> Row:
        """Return the row, control or row at a learning rate of that id, or raise as `row` does."""
        return replace(self, rows=self.trained_rows).row(name)


# A preset settles these whole, whatever the testbed says: what it does not name is neutral.
_PRESET_OWNS: dict[str, tuple[str, ...]] = {
    "advantage": tuple(Advantage.model_fields),
    "kl": tuple(Kl.model_fields),
    "update": (
        "surrogate", "clip_low", "clip_high", "dual_clip", "tau_pos", "tau_neg", "log_ratio_clamp",
        "reduction", "constant", "mismatch", "mismatch_level", "mismatch_cap",
    ),
}  # fmt: skip
_NEUTRAL = {"advantage": Advantage(), "kl": Kl(), "update": Update()}


def merged(*layers: dict[str, Any]) -> dict[str, Any]:
    """Merge sections key by key; later layers win."""
    result: dict[str, Any] = {}
    for layer in layers:
        for section, keys in layer.items():
            if isinstance(keys, dict) and isinstance(result.get(section), dict):
                result[section] = {**result[section], **keys}
            else:
                result[section] = keys
    return result


def preset_switches(name: str, where: str) -> Sparse:
    """Return every switch that a preset settles, neutral values included."""
    if name not in PRESETS:
        raise UserError(f"{where}: no preset '{name}'; {nearest(name, PRESETS)}")
    owned = {
        section: {key: getattr(_NEUTRAL[section], key) for key in keys} for section, keys in _PRESET_OWNS.items()
    }
    return merged(owned, PRESETS[name].switches)


def load_testbed(path: Path) -> tuple[Testbed, TestbedFile]:
    """Read one testbed file and check it."""
    file = checked(TestbedFile, read_yaml(path), str(path))
    if file.policy.name == "huggingface" and file.seeds_per_job != 1:
        raise UserError(
            f"{path}: seeds_per_job is {file.seeds_per_job}, but a pretrained model trains one seed a job: write "
            "seeds_per_job: 1."
        )
    if file.gpus > 1 and file.policy.name != "huggingface":
        raise UserError(
            f"{path}: gpus is {file.gpus}, but only a pretrained model (policy.name huggingface) trains one run "
            "on several GPUs: write gpus: 1."
        )
    testbed = Testbed(
        path.stem, path, file.quick, file.seeds_per_job, file.stale, file.stream, file.gpus, file.on_request
    )
    return testbed, file


def load_experiment(path: Path) -> Experiment:
    """Read an experiment file with its testbed; resolve and check every row.

    Raises:
        UserError: one sentence that names the file, the row and the key at fault.
    """
    file = checked(ExperimentFile, read_yaml(path), str(path))
    testbed_path = path.parent / "testbeds" / f"{file.testbed}.yaml"
    if not testbed_path.exists():
        known = sorted(p.stem for p in testbed_path.parent.glob("*.yaml"))
        if not known:
            raise UserError(
                f"{path}: there is no testbed in {testbed_path.parent}: "
                "an experiment's file belongs into experiments/."
            )
        raise UserError(f"{path}: no testbed '{file.testbed}' ({testbed_path}); {nearest(file.testbed, known)}")
    testbed, testbed_file = load_testbed(testbed_path)
    base = testbed_file.model_dump(exclude_unset=True, exclude=set(BESIDE))
    written = _crossed(path, file)
    for name, row in file.rows.items():
        if name in written:
            raise UserError(f"{path}: row '{name}' is written under rows and crossed from axes; rename one.")
        written[name] = row
    if not written:
        raise UserError(f"{path}: the experiment has no rows; write some under rows or axes.")
    rows = tuple(_resolve(path, testbed_file, name, row, base) for name, row in written.items())
    if file.baseline not in written:
        raise UserError(f"{path}: the baseline '{file.baseline}' is no row; {nearest(file.baseline, written)}")
    published = None if file.published is None else path.parent.parent / file.published
    if published is not None and not _exists(published):
        raise UserError(f"{path}: the published table {str(file.published)[:200]} does not exist.")
    axes = {axis: tuple(levels) for axis, levels in file.axes.items()}
    experiment = Experiment(
        path.stem, path, file.question, testbed, file.baseline, file.seeds, file.metric, rows, axes,
        figure_specs(file.figures), published, tuple(file.claims), file.margin, file.held,
        _controls(path, testbed_file, written[file.baseline], base),
        _tuned(path, testbed_file, written, base, file),
    )  # fmt: skip
    check_claims(experiment)
    from grpo_ablate.analysis.figures import named

    named(experiment)  # refuses figures that could not be drawn
    if not metrics.known(file.metric):
        raise UserError(f"{path}: metric: no metric '{file.metric}'; {nearest(file.metric, metrics.names())}")
    return experiment


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long for the file system
        return False


def _controls(path: Path, testbed: TestbedFile, baseline: RowFile, base: Sparse) -> tuple[Row, ...]:
    return tuple(
        replace(_resolve(path, testbed, name, _changed(baseline, changes), base), label=label)
        for name, (label, changes) in CONTROLS.items()
    )


def _tuned(
    path: Path, testbed: TestbedFile, written: dict[str, RowFile], base: Sparse, file: ExperimentFile
) -> dict[str, tuple[Row, ...]]:
    """Return every row at each learning rate of ``tune``."""
    rates = file.tune.learning_rate if file.tune else []
    if len(set(rates)) < len(rates):
        raise UserError(f"{path}: tune.learning_rate names a value twice.")
    return {
        name: tuple(
            _resolve(
                path, testbed, f"{name}@{rate:g}", _changed(row, {"optimizer": {"learning_rate": rate}}), base
            )
            for rate in rates
        )
        for name, row in written.items()
        if rates
    }


def _changed(row: RowFile, changes: Sparse) -> RowFile:
    """Return a row with further switches set."""
    stated = merged(row.stated(), changes)
    return RowFile.model_validate(stated | ({} if row.preset is None else {"preset": row.preset}))


def check_claims(experiment: Experiment) -> None:
    """Raise UserError, naming file, claim and key, where a claim does not say what can be judged."""
    seen: set[str] = set()
    for claim in experiment.claims:
        where, test = f"{experiment.path}: claim '{claim.id}'", claim.test
        if claim.id in seen:
            raise UserError(f"{where}: two claims have this id; rename one.")
        seen.add(claim.id)
        names = [row.id for row in experiment.rows]
        for key, name in (("row", test.row), ("than", test.than)):
            if name not in names:
                raise UserError(f"{where}: test.{key}: no row '{name}'; {nearest(name, names)}")
        if test.row == test.than:
            raise UserError(f"{where}: test.row and test.than are both '{test.row}'; name two rows.")
        margin = margin_of(experiment, claim)
        if test.kind in ("equivalent", "ratio") and not margin:
            state = "missing" if margin is None else "0"
            raise UserError(f"{where}: test.margin is {state}: {test.kind} needs a margin above 0.")
        if (test.value is None) == (test.kind == "ratio"):
            wanted = "needs the stated ratio as test.value" if test.kind == "ratio" else "reads no test.value"
            raise UserError(f"{where}: test.is {test.kind} {wanted}.")
        if test.metric is not None and not metrics.known(test.metric):
            raise UserError(
                f"{where}: test.metric: no metric '{test.metric}'; {nearest(test.metric, metrics.names())}"
            )


def figure_specs(figures: Figures) -> tuple[FigureSpec, ...]:
    """Return the figures of an experiment file, each written as a kind or as ``{kind: options}``."""
    return tuple(
        FigureSpec(figure) if isinstance(figure, str) else FigureSpec(*next(iter(figure.items())))
        for figure in figures
    )


def standing(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Return the experiments of the whole grid: those whose testbed is not trained on request alone."""
    return [experiment for experiment in experiments if not experiment.testbed.on_request]


def load_experiments(folder: Path = Path("experiments")) -> list[Experiment]:
    """Return every experiment of a folder that trains, by name."""
    paths = sorted(path for path in folder.glob("*.yaml") if not path.name.startswith((EXACT, CONFORM)))
    if not paths:
        raise UserError(f"{folder}: no experiment files (*.yaml) here.")
    return [load_experiment(path) for path in paths]


def load_conform_experiments(folder: Path = Path("experiments")) -> list[Experiment]:
    """Return every experiment of a folder that two trainers train, by name."""
    return [load_experiment(path) for path in sorted(folder.glob(f"{CONFORM}*.yaml"))]


def _crossed(path: Path, file: ExperimentFile) -> dict[str, RowFile]:
    if not file.axes:
        return {}
    for axis, levels in file.axes.items():
        for name in levels:
            if "--" in name:
                raise UserError(f"{path}: axis {axis}: the level '{name}' contains '--', which joins levels.")
    rows = {}
    for combination in itertools.product(*(levels.items() for levels in file.axes.values())):
        name = "--".join(level for level, _ in combination)
        owner: dict[str, str] = {}
        for axis, (_, level) in zip(file.axes, combination, strict=True):
            for section, keys in level.stated().items():
                for key in keys:
                    if owner.setdefault(f"{section}.{key}", axis) != axis:
                        raise UserError(
                            f"{path}: row '{name}': the axes {owner[f'{section}.{key}']} and {axis} "
                            f"both set {section}.{key}."
                        )
        presets = [level.preset for _, level in combination if level.preset is not None]
        if len(presets) > 1:
            raise UserError(f"{path}: row '{name}': two axes both name a preset.")
        row: dict[str, Any] = merged(*(level.stated() for _, level in combination))
        rows[name] = RowFile.model_validate(row | ({"preset": presets[0]} if presets else {}))
    return rows


def _resolve(path: Path, testbed: TestbedFile, name: str, row: RowFile, base: dict[str, Any]) -> Row:
    where = f"{path}: row '{name}'"
    stated = row.stated()
    preset = {} if row.preset is None else preset_switches(row.preset, where)
    layers = merged(base, preset, stated)
    budget, sampling = layers["budget"], layers.setdefault("sampling", {})
    changed_groups = "group_size" in merged(preset, stated).get("sampling", {})
    if (
        changed_groups
        and "prompts" not in stated.get("sampling", {})
        and budget.get("hold", "prompts-x-group") == "prompts-x-group"
    ):
        held = testbed.sampling.prompts * testbed.sampling.group_size
        if held % sampling["group_size"]:
            raise UserError(
                f"{where}: sampling.group_size {sampling['group_size']} does not divide the {held} rollouts "
                "per update that budget.hold prompts-x-group holds."
            )
        sampling["prompts"] = held // sampling["group_size"]
    spec = checked(Spec, layers, where)
    reason = refusal(spec)
    if reason is not None:
        raise UserError(f"{where}: {reason}")
    spec = settled(identified(spec, where), where)
    reason = refusal(spec)  # again, now that questions in files are counted
    if reason is not None:
        raise UserError(f"{where}: {reason}")
    effective, inert = neutralised(spec)
    return Row(
        id=name,
        label=row.label or name.replace("--", ", "),
        spec=spec,
        effective=effective,
        inert=inert,
        hash=spec_hash(effective),
        notes=notes(spec),
        stated=stated,
    )


def switches(row: str | None, preset: str | None, settings: Sequence[str]) -> Switches:
    """Return the switches of ``experiments/x.yaml:row`` or of a preset, with ``section.key=value`` settings.

    Without row or preset: the preset ``documents``.
    """
    if row is not None and preset is not None:
        raise UserError("give a row or a preset, not both.")
    base: Sparse
    if row is not None:
        spec = find_row(row)[1].spec
        base = {name: getattr(spec, name).model_dump() for name in Switches.model_fields}
    else:
        base = preset_switches(preset or "documents", "--preset")
    own = _settings(settings)
    found = checked(Switches, merged(base, own), "--set" if settings else f"preset {preset or 'documents'}")
    reason = refusal(found)
    if reason is not None:
        raise UserError(reason)
    return found


def _settings(settings: Sequence[str]) -> Sparse:
    own: Sparse = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        section, dot, name = key.strip().partition(".")
        if not equals or not dot or not name:
            raise UserError(f"--set {setting}: expected section.key=value, as in advantage.scale=none.")
        if section not in Switches.model_fields:
            raise UserError(f"--set {setting}: no section '{section}'; {nearest(section, Switches.model_fields)}")
        own.setdefault(section, {})[name] = parse_yaml(f"value: {value.strip()}", f"--set {setting}")["value"]
    checked(Changes, own, "--set")
    return own


def find_row(address: str) -> tuple[Experiment, Row]:
    """Return the experiment and row of an address ``experiments/x.yaml:row``; the row may be a control's."""
    path, colon, name = address.rpartition(":")
    if not colon:
        raise UserError(f"'{address}': expected a file and a row, as in experiments/selection.yaml:ROW.")
    experiment = load_experiment(Path(path))
    return experiment, experiment.trained_row(name)
