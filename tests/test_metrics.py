"""The published list of metrics."""

from __future__ import annotations

import json
import re

from grpo_ablate import metrics


def test_names_are_safe_for_mlflow_and_meanings_are_sentences_of_their_own():
    for name, meaning in metrics.METRICS.items():
        assert re.fullmatch(r"(train|eval)/[a-z0-9_.-]+", name)
        assert meaning.meaning and name == meaning.name
    assert len({m.meaning for m in metrics.METRICS.values()}) == len(metrics.METRICS)


def test_json_and_text_list_every_metric_with_its_denominator():
    listed = json.loads(metrics.as_json())
    assert [entry["name"] for entry in listed] == list(metrics.names())
    text = metrics.as_text().splitlines()
    assert max(map(len, text)) <= 100
    heads = [line.split()[:2] for line in text if not line.startswith(" ")]
    assert heads == [[entry["name"], entry["denominator"]] for entry in listed]


def test_components_are_a_family_of_metrics():
    assert all(
        metrics.known(f"{kind}/component_{name}") for kind in ("train", "eval") for name in ("format", "a-1")
    )
    assert not metrics.known("train/component_") and not metrics.known("train/component_A")
    assert metrics.meaning_of("train/component_format") is metrics.METRICS["train/component"]
    assert metrics.meaning_of("train/loss") is metrics.METRICS["train/loss"]
