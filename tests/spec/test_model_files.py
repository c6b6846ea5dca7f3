"""The model of a pretrained policy as a part of a row's identity."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_ablate.errors import UserError
from grpo_ablate.spec.model_files import BLOCK, WHOLE, fingerprint
from grpo_ablate.spec.resolve import Row, load_experiment

TESTBED: dict[str, Any] = {
    "description": "a pretrained model",
    "seeds_per_job": 1,
    "task": {"name": "addition"},
    "evaluation": {"samples": 1},
    "sampling": {"prompts": 2, "group_size": 2, "max_tokens": 8},
    "budget": {"rollouts": 4},
}


def model(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def rows(folder: Path, policy: dict[str, Any], **changes: Any) -> dict[str, Row]:
    """Return the rows of an experiment on a testbed with that policy."""
    (folder / "experiments/testbeds").mkdir(parents=True, exist_ok=True)
    testbed = TESTBED | {"policy": {"name": "huggingface", **policy}} | changes
    (folder / "experiments/testbeds/big.yaml").write_text(yaml.safe_dump(testbed))
    experiment = {
        "question": "?",
        "testbed": "big",
        "baseline": "base",
        "seeds": 1,
        "rows": {"base": {}, "vllm": {"sampling": {"engine": "vllm"}}},
    }
    (folder / "experiments/one.yaml").write_text(yaml.safe_dump(experiment))
    return {row.id: row for row in load_experiment(folder / "experiments/one.yaml").rows}


def test_weights_are_part_of_the_identity_and_readme_files_are_not(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    before = rows(tmp_path, {"model": str(folder)})["base"]
    assert before.spec.policy.digest == fingerprint(folder)
    (folder / "README.md").write_text("hello")
    assert rows(tmp_path, {"model": str(folder)})["base"].hash == before.hash
    model(folder, b"weight?")
    after = rows(tmp_path, {"model": str(folder)})["base"]
    assert after.hash != before.hash
    assert after.spec.policy.model_copy(update={"digest": ""}) == before.spec.policy.model_copy(
        update={"digest": ""}
    )


def test_another_training_of_large_weights_has_another_digest(tmp_path: Path) -> None:
    size = WHOLE + 12345
    noise = random.Random(0).randbytes(size)
    folder = model(tmp_path / "model", noise)
    seen = {fingerprint(folder)}
    for change in (0, size // 2, size - 10):  # a few hundred kilobytes of other numbers anywhere
        start = min(change, size - 4 * BLOCK)
        model(folder, noise[:start] + bytes(4 * BLOCK) + noise[start + 4 * BLOCK :])
        seen.add(fingerprint(folder))
    assert len(seen) == 4


def test_the_settings_of_vllm_act_with_vllm_alone(tmp_path: Path) -> None:
    policy = {"model": "organisation/model", "revision": "a" * 40}
    plain, told = rows(tmp_path, policy), rows(tmp_path, policy | {"vllm": {"max_sequences": 7}})
    assert plain["base"].hash == told["base"].hash
    assert [inert.key for inert in told["base"].inert] == ["policy.vllm"]
    assert plain["vllm"].hash != told["vllm"].hash and not told["vllm"].inert


@pytest.mark.parametrize("revision", ["", "main", "a" * 39])
def test_a_model_of_the_hub_is_named_by_its_commit(tmp_path: Path, revision: str) -> None:
    message = r"row 'base': policy\.revision is '.*expected a commit of 'organisation/model'"
    with pytest.raises(UserError, match=message):
        rows(tmp_path, {"model": "organisation/model", "revision": revision})


@pytest.mark.parametrize("name", ["models/nowhere/here", "./nowhere", "nowhere"])
def test_no_model_folder_is_a_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        UserError, match=r"row 'base': policy\.model: there is no folder '.*nowhere.*or smollm2\.$"
    ):
        rows(tmp_path, {"model": name})


def test_a_folder_that_holds_no_model_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty: has no config\.json"):
        rows(tmp_path, {"model": str(tmp_path / "empty")})


def test_a_digest_that_is_not_the_folders_is_a_sentence(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    with pytest.raises(UserError, match=r"policy\.digest is abc, but the files in .*model have the digest"):
        rows(tmp_path, {"model": str(folder), "digest": "abc"})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seeds_per_job": 8}, "seeds_per_job is 8, but a pretrained model trains one seed a job"),
        ({"evaluation": {"samples": "exact"}}, "evaluation.samples exact needs a closed form"),
        ({"sampling": {**TESTBED["sampling"], "max_tokens": 0}}, "sampling.max_tokens is 0, expected at least 1"),
    ],
)
def test_what_no_pretrained_model_can_do_is_a_sentence(tmp_path: Path, changes: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        rows(tmp_path, {"model": "smollm2"}, **changes)


def test_a_misspelt_key_of_the_policy_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"unknown key 'policy\.microbatch_token'; did you mean 'microbatch_tokens'"
    ):
        rows(tmp_path, {"model": "smollm2", "microbatch_token": 5})
    with pytest.raises(UserError, match=r"policy\.lora\.rank is 'x', expected a whole number"):
        rows(tmp_path, {"model": "smollm2", "lora": {"rank": "x"}})
    with pytest.raises(UserError, match=r"policy\.lora is 'on', expected a mapping of keys to values or off"):
        rows(tmp_path, {"model": "smollm2", "lora": "on"})
    with pytest.raises(UserError, match=r"unknown key 'policy\.lora\.ranc'; did you mean 'rank'"):
        rows(tmp_path, {"model": "smollm2", "lora": {"ranc": 1}})
