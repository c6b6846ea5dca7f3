"""JSON schemas of the files a user writes; `python -m grpo_ablate.spec.json_schema` writes them anew."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from grpo_ablate.spec.exact_files import ExactExperimentFile
from grpo_ablate.spec.files import ExperimentFile, TestbedFile

MODELS: dict[str, type[BaseModel]] = {
    "experiment.schema.json": ExperimentFile,
    "exact-experiment.schema.json": ExactExperimentFile,
    "testbed.schema.json": TestbedFile,
}


def schema_text(name: str) -> str:
    """Return the schema that ships under ``name``, generated from the typed records."""
    return json.dumps(MODELS[name].model_json_schema(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    for file in MODELS:
        (Path(__file__).parent / file).write_text(schema_text(file))
