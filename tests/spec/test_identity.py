"""Equal training is one hash; names, order and switches that cannot act are not part of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from grpo_ablate.spec.identity import canonical_json, from_canonical, spec_hash
from grpo_ablate.spec.json_schema import MODELS, schema_text
from grpo_ablate.spec.resolve import load_experiment
from grpo_ablate.spec.schema import Section, Spec

Write = Callable[..., Path]


def hashes(path: Path) -> dict[str, str]:
    return {row.id: row.hash for row in load_experiment(path).rows}


def test_renaming_and_reordering_rows_and_keys_changes_no_hash(write: Write) -> None:
    one = hashes(write({"rows": {"base": {}, "other": {"advantage": {"ddof": 1, "eps": 0.1}}}}))
    two = hashes(write({"rows": {"renamed": {"advantage": {"eps": 0.1, "ddof": 1}}, "base": {}}}))
    assert one["base"] == two["base"]
    assert one["other"] == two["renamed"]


def test_writing_a_neutral_value_out_changes_no_hash(write: Write) -> None:
    found = hashes(write({"rows": {"base": {}, "same": {"advantage": {"ddof": 0}, "kl": {"beta": 0.0}}}}))
    assert found["base"] == found["same"]


@pytest.mark.parametrize(
    "changes",
    [
        {"advantage": {"ddof": 1}},
        {"sampling": {"random_key": 1}},
        {"evaluation": {"every": 2}},
        {"budget": {"rollouts": 160}},
        {"optimizer": {"learning_rate": 0.2}},
    ],
)
def test_a_switch_that_acts_changes_the_hash(write: Write, changes: dict[str, Any]) -> None:
    found = hashes(write({"rows": {"base": {}, "changed": changes}}))
    assert found["base"] != found["changed"]


def test_swapping_two_equal_typed_values_changes_the_hash(write: Write) -> None:
    rows = {
        "base": {"update": {"clip_low": 0.1, "clip_high": 0.3, "inner_passes": 2}},
        "swapped": {"update": {"clip_low": 0.3, "clip_high": 0.1, "inner_passes": 2}},
    }
    found = hashes(write({"rows": rows}))
    assert found["base"] != found["swapped"]


def test_directions_for_resolving_scoring_and_checking_are_not_identity(write: Write) -> None:
    rows = {
        "base": {},
        "held": {"budget": {"hold": "prompts"}},
        "scored": {"evaluation": {"last": 3}},
        "forced": {"update": {"force": True}},
    }
    assert len(set(hashes(write({"rows": rows})).values())) == 1


def test_canonical_json_is_sparse_sorted_ascii_and_round_trips(write: Write) -> None:
    spec = load_experiment(write({"rows": {"base": {"kl": {"beta": 1e-9, "estimator": "k1"}}}})).rows[0].effective
    text = canonical_json(spec)
    data = json.loads(text)
    assert data["kl"] == {"beta": 1e-9, "estimator": "k1"}
    assert "update" not in data
    assert text.isascii()
    assert text == json.dumps(data, sort_keys=True, separators=(",", ":"))
    assert from_canonical(text) == spec
    assert spec_hash(from_canonical(text)) == spec_hash(spec)


def branches(kind: Any) -> list[type[Section]]:
    """Return the records that a section may be one of, the neutral one first; empty for a plain value."""
    found = [get_args(branch)[0] for branch in get_args(kind) if get_args(branch)]
    return [branch for branch in found if isinstance(branch, type) and issubclass(branch, Section)]


def neutral_values(model: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            found |= neutral_values(kind, f"{prefix}{name}.")
        elif sections := branches(kind):
            neutral, *others = sections
            found |= neutral_values(neutral, f"{prefix}{name}.")
            for other in others:
                found |= neutral_values(
                    other, f"{prefix}{name}.{get_args(other.model_fields['name'].annotation)[0]}."
                )
        elif not field.is_required():
            found[prefix + name] = field.default
    return found


def test_neutral_values_are_append_only() -> None:
    """A changed neutral value would silently change what old hashes mean; a new switch is appended to the list."""
    frozen = json.loads((Path(__file__).parent / "neutral_values.json").read_text())
    assert neutral_values(Spec) == frozen


@pytest.mark.parametrize("name", sorted(MODELS))
def test_shipped_json_schema_equals_the_typed_records(name: str) -> None:
    shipped = Path("grpo_ablate/spec") / name
    assert shipped.read_text() == schema_text(name), "run: python -m grpo_ablate.spec.json_schema"
