"""The warm start: its recipe, its identity, its files, and what a run takes from it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from language_specs import WARM, language_spec, sections, warm
from safetensors.torch import load_file

from grpo_ablate.cli import main
from grpo_ablate.errors import UserError
from grpo_ablate.policies.stacked.architecture import Architecture
from grpo_ablate.policies.stacked.supervised import answer_loss
from grpo_ablate.policies.stacked.transformers_folder import load_transformers
from grpo_ablate.rng import Keys, Purpose
from grpo_ablate.runs import warmstart
from grpo_ablate.runs.record import read_record
from grpo_ablate.runs.train import make_loop, run_in_memory, train
from grpo_ablate.runs.warmstart import Decaying, Session, load_start, train_start
from grpo_ablate.spec.schema import Optimizer
from grpo_ablate.spec.warmstart import parse_start, start_hash, start_of

COMMAND = "grpo-ablate warmstart ROW"


def trained(results: Path, spec, seeds: range = range(2)):
    start = start_of(spec, seeds[0], seeds[-1])
    train_start(start, results)
    return results / start.folder


def content(folder: Path) -> dict[str, bytes]:
    """The bytes of everything that must not depend on how it came about."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("timing.json", "provenance.json")
    }


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"task": {"held_out": 8}}, True),
        ({"task": {"operands": [2, 7], "train_prompts": 16}}, True),
        ({"sampling": {"group_size": 2}, "optimizer": {"learning_rate": 1e-2}}, True),
        ({"budget": {"rollouts": 640}, "evaluation": {"samples": 4}}, True),
        ({"policy": {"hidden": 64}}, False),
        ({"policy": warm(steps=21)}, False),
        ({"policy": warm(learning_rate=1e-3)}, False),
        ({"policy": warm(per_seed=True)}, False),
    ],
)
def test_the_task_and_the_policy_alone_decide_a_start(changes, same):
    assert (start_hash(language_spec(**changes)) == start_hash(language_spec())) is same


def test_a_start_stated_by_its_own_json_or_by_a_rows_is_the_same():
    spec = language_spec()
    start = start_of(spec, 0, 7)
    assert parse_start(start.spec_json, None, "") == start
    assert parse_start(spec.model_dump_json(exclude_defaults=True), None, "") == start
    own = start_of(language_spec(policy=warm(per_seed=True)), 8, 15)
    assert own.folder == f"warmstarts/{own.hash[:8]}/seeds-8-15"
    assert parse_start(own.spec_json, (8, 15), "") == own
    assert start_of(language_spec(policy=warm(steps=0)), 0, 7) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "--cell: is not JSON"),
        ("[]", "expected a JSON object with task and policy"),
        ('{"task": {"name": "arithmetic"}, "policy": {"name": "stacked"}}', "there is no warm start"),
        ('{"task": {"name": "arithmetic"}, "policy": {"name": "stacked", "hiden": 8}}', "did you mean 'hidden'"),
        (start_of(language_spec(policy=warm(per_seed=True)), 0, 1).spec_json, "say which seeds with --seeds"),
    ],
)
def test_a_mistake_in_a_start_is_a_sentence(text, words):
    with pytest.raises(UserError, match=words):
        parse_start(text, None, "--cell")


def test_the_learning_rate_is_constant_and_falls_linearly_over_the_second_half():
    parameter = torch.zeros(1, 1, requires_grad=True)
    optimizer = Decaying([parameter], Optimizer(name="adamw", learning_rate=0.4), 10)
    rates = []
    for _ in range(10):
        rates.append(float(optimizer.rate()))
        optimizer.step(torch.ones(1, dtype=torch.bool))
    assert rates == pytest.approx([0.4] * 6 + [0.32, 0.24, 0.16, 0.08])


def test_the_steps_are_those_of_adamw_on_the_loss_of_keyed_demonstrations(tmp_path):
    spec = language_spec(policy=warm(steps=6))
    folder = trained(tmp_path, spec)
    session = Session(start_of(spec, 0, 0), tmp_path / "other")
    flat = session.flat.detach().clone().requires_grad_()
    optimizer = torch.optim.AdamW([flat], lr=4e-3, betas=(0.9, 0.95), weight_decay=0)
    for step in range(6):
        optimizer.param_groups[0]["lr"] = 4e-3 * min(1.0, 2 * (1 - step / 6))
        uniform = Keys(torch.tensor([0])).uniform(
            Purpose.WARM_START, round=step, slot=torch.arange(WARM["batch"]), dimensions=2
        )
        rows = (uniform[0] * WARM["demonstrations"]).long()
        optimizer.zero_grad()
        demonstrations = session.task.demonstrations(WARM["demonstrations"], 0)
        loss = answer_loss(
            flat, session.architecture, demonstrations.tokens[rows][None],
            demonstrations.prompt_length[rows][None], demonstrations.length[rows][None],
        )  # fmt: skip
        loss.sum().backward()
        optimizer.step()
    found = load_file(folder / "parameters.safetensors")
    for name, expected in session.architecture.views(flat.detach()).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-5)


def test_the_loss_falls_and_is_told(tmp_path):
    spec = language_spec(policy=warm(steps=60))
    told = json.loads((trained(tmp_path, spec) / "start.json").read_text())
    first, last = told["loss"][0][1][0], told["loss"][-1][1][0]
    assert len(told["loss"]) == 20 and told["loss"][-1][0] == 60
    assert last < first - 1
    assert 0 < told["evaluation"]["eval/entropy"][0] < torch.tensor(49.0).log()


def test_seeds_with_starts_of_their_own_are_trained_as_if_alone(tmp_path):
    spec = language_spec(policy=warm(per_seed=True))
    both = load_file(trained(tmp_path, spec, range(2)) / "parameters.safetensors")
    alone = load_file(trained(tmp_path, spec, range(1, 2)) / "parameters.safetensors")
    shared = load_file(trained(tmp_path, language_spec()) / "parameters.safetensors")
    for name, values in both.items():
        assert torch.equal(values[1:], alone[name])
        assert torch.equal(values[:1], shared[name])  # the start that all share is seed 0's
    assert not torch.equal(both["embedding"][0], both["embedding"][1])


def test_a_member_is_a_folder_that_reads_back_as_its_parameters(tmp_path):
    spec = language_spec(policy=warm(per_seed=True))
    folder = trained(tmp_path, spec)
    held = load_file(folder / "parameters.safetensors")
    for seed in range(2):
        found = load_transformers(folder / "model" / f"seed-{seed}", spec.policy, 49)
        assert set(found) == set(Architecture(spec.policy, 49).shapes)
        assert all(torch.equal(value, held[name][seed]) for name, value in found.items())
        assert (folder / "model" / f"seed-{seed}" / "tokenizer.json").exists()


def test_a_start_that_is_taken_up_again_is_the_same_bit_by_bit(tmp_path, monkeypatch):
    spec = language_spec(policy=warm(per_seed=True))
    whole = content(trained(tmp_path / "whole", spec))

    class Killed(BaseException):
        """Nothing in the package handles it."""

    plain = Session.accumulate
    for moment in (0, 7, 38):  # calls: two members a step
        left = [moment]

        def deadly(self, member, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return plain(self, member)

        start = start_of(spec, 0, 1)
        monkeypatch.setattr(Session, "accumulate", deadly)
        with pytest.raises(Killed):
            train_start(start, tmp_path / str(moment), checkpoint_seconds=0)
        monkeypatch.setattr(Session, "accumulate", plain)
        assert not (tmp_path / str(moment) / start.folder).exists()
        assert content(trained(tmp_path / str(moment), spec)) == whole


def test_a_kill_at_any_moment_of_publishing_is_mended_by_the_rerun(tmp_path, monkeypatch):
    spec, plain = language_spec(), Path.replace
    whole = content(trained(tmp_path / "whole", spec))
    trained(tmp_path / "results", spec)

    class Killed(BaseException):
        """Nothing in the package handles it."""

    for moment in range(5):  # four files and the folder of the model
        left = [moment]

        def deadly(self, target, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return plain(self, target)

        monkeypatch.setattr(Path, "replace", deadly)
        with pytest.raises(Killed):
            trained(tmp_path / "results", spec)
        monkeypatch.setattr(Path, "replace", plain)
        folder = tmp_path / "results" / start_of(spec, 0, 1).folder
        assert not (folder / "start.json").exists()
        assert content(trained(tmp_path / "results", spec)) == whole


def test_a_finished_start_is_published_again_without_training(tmp_path, monkeypatch):
    spec = language_spec()
    folder = trained(tmp_path, spec)
    before = content(folder)
    shutil.rmtree(folder)
    monkeypatch.setattr(warmstart, "answer_loss", None)
    assert content(trained(tmp_path, spec)) == before


def test_a_checkpoint_of_another_recipe_is_not_used(tmp_path, capsys):
    spec, other = language_spec(), language_spec(policy=warm(learning_rate=1e-3))
    trained(tmp_path, spec)
    scratch = [tmp_path / start_of(one, 0, 1).scratch for one in (spec, other)]
    shutil.copytree(*scratch)
    found = content(trained(tmp_path, other))
    assert "it was written by a run with another warm start" in capsys.readouterr().err
    assert found == content(trained(tmp_path / "fresh", other))


def test_a_run_begins_where_its_start_ended(tmp_path):
    longest = Session(start_of(language_spec(), 0, 1), tmp_path).spec.sampling.max_tokens
    spec = language_spec(task={"held_out": 256}, evaluation={"samples": 4}, sampling={"max_tokens": longest})
    told = json.loads((trained(tmp_path, spec) / "start.json").read_text())
    loop = make_loop(spec, range(2), load_start(tmp_path, spec, range(2), COMMAND))
    line = loop.start()
    for name, (value,) in told["evaluation"].items():  # seed 0 draws what the start's evaluation drew
        assert float(line.values[name][0]) == value, name
    greedy = line.values["eval/greedy_accuracy"]
    assert float(greedy[0]) == float(greedy[1])


def test_the_record_names_the_start_and_the_checkpoint_is_of_that_start(tmp_path, capsys):
    spec = language_spec()
    folder = trained(tmp_path, spec)
    begin = load_start(tmp_path, spec, range(2), COMMAND)
    train(spec, range(2), tmp_path / "run", tmp_path / "scratch", testbed="bench", begin=begin)
    run = read_record(tmp_path / "run").run
    told = json.loads((folder / "start.json").read_text())
    assert run["start"] == {"hash": told["hash"], "sha256": told["sha256"]}
    other = type(begin)({k: v + 0.01 for k, v in begin.parameters.items()}, begin.hash, "f" * 64)
    train(spec, range(2), tmp_path / "run", tmp_path / "scratch", testbed="bench", begin=other)
    assert "another warm start" in capsys.readouterr().err
    assert read_record(tmp_path / "run").run["start"]["sha256"] == "f" * 64


def test_a_run_is_not_begun_from_random_weights_by_mistake():
    with pytest.raises(UserError, match="begin from a warm start, and none was given"):
        run_in_memory(language_spec(), range(1))
    assert run_in_memory(language_spec(policy=warm(steps=0)), range(1))["eval/reward"]


def test_a_start_that_diverged_says_which_setting_to_lower(tmp_path):
    spec = language_spec(policy=warm(learning_rate=1e30))
    trained(tmp_path, spec)
    with pytest.raises(
        UserError, match=r"the warm start diverged, .* lower policy\.warmstart\.learning_rate \(1e\+30\)"
    ):
        load_start(tmp_path, spec, range(2), COMMAND)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda folder: shutil.rmtree(folder), f"is not trained yet; make it with: {COMMAND}"),
        (lambda folder: (folder / "start.json").unlink(), f"is not trained yet; make it with: {COMMAND}"),
        (lambda folder: (folder / "start.json").write_text("{"), r"start\.json: is not JSON; remove "),
        (
            lambda folder: (folder / "start.json").write_text(
                (folder / "start.json").read_text().replace('"eval/reward": [', '"eval/reward": [1')
            ),
            r"start\.json: differs from the checksum in it; remove .* to train it again",
        ),
        (lambda folder: (folder / "parameters.safetensors").unlink(), r"safetensors: is missing; remove"),
        (
            lambda folder: (folder / "parameters.safetensors").write_bytes(b"0" * 100),
            r"parameters\.safetensors: differs from the checksum in start\.json; remove .* to train it again",
        ),
    ],
)  # fmt: skip
def test_a_missing_or_edited_start_is_a_sentence(tmp_path, harm, words):
    spec = language_spec()
    harm(trained(tmp_path, spec))
    with pytest.raises(UserError, match=words):
        load_start(tmp_path, spec, range(2), COMMAND)


def test_a_trained_seed_is_exported_as_the_parameters_of_its_record(tmp_path, monkeypatch, capsys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (tmp_path / "experiments/testbeds").mkdir(parents=True)
    testbed = sections() | {"description": "a tiny language model", "seeds_per_job": 2}
    (tmp_path / "experiments/testbeds/small.yaml").write_text(yaml.safe_dump(testbed))
    experiment = {"question": "Does it?", "testbed": "small", "baseline": "base", "seeds": 2, "rows": {"base": {}}}
    (tmp_path / "experiments/tiny.yaml").write_text(yaml.safe_dump(experiment))
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        return ended.value.code or 0

    export = ("export", "experiments/tiny.yaml:base", "--to", "model", "--seed")
    assert command(*export, "1") == 2
    assert "seed 1 is not trained in results; `grpo-ablate train" in capsys.readouterr().err
    assert command("train", "experiments/tiny.yaml:base") == 0  # the warm start first
    assert command(*export, "1") == 0
    (parameters,) = Path("results/runs").rglob("parameters.safetensors")
    model = AutoModelForCausalLM.from_pretrained("model")
    expected = load_file(parameters)["embedding"][1]
    assert torch.equal(model.get_input_embeddings().weight.detach(), expected)
    assert len(AutoTokenizer.from_pretrained("model")) == len(expected)
    assert command(*export, "1") == 2
    assert "--to model: exists already" in capsys.readouterr().err
