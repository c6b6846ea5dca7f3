"""A round written from a real run is the round that explain shows."""

import json

import pytest
from training_specs import make_loop, make_spec

from grpo_ablate.errors import UserError
from grpo_ablate.explain import run
from grpo_ablate.runs.dump import write_round
from grpo_ablate.runs.train import train
from grpo_ablate.spec.schema import Switches

ROWS = {
    "kl-exact": {"kl": {"beta": 0.05, "estimator": "exact"}, "advantage": {"eps": 1e-8}},
    "kl-k3-ratio": {"kl": {"beta": 0.2, "estimator": "k3", "gradient": "ratio"}},
    "inner-steps": {"update": {"inner_passes": 3, "minibatches": 2}, "kl": {"beta": 0.1, "estimator": "k2"}},
    "stale-clipped": {"update": {"staleness": 3, "clip_low": 0.01, "clip_high": 0.02}},
    "kl-in-reward": {"kl": {"beta": 0.5, "estimator": "k1", "place": "reward-before"}},
    "kl-exact-in-reward-stale": {
        "kl": {"beta": 0.5, "estimator": "exact", "place": "reward-after"},
        "update": {"staleness": 2},
        "advantage": {"scale": "none"},
    },
    "drop": {"sampling": {"dynamic": "drop"}, "advantage": {"baseline": "leave-one-out", "scale": "none"}},
    "top-k": {"sampling": {"top_k": 2, "temperature": 0.6}, "reward": {"transform": "power", "power": 4}},
}


@pytest.mark.parametrize("name", ROWS)
def test_explain_gives_the_loss_of_the_dumped_round(tmp_path, name, capsys):
    spec = make_spec(**ROWS[name])
    seen = write_round(make_loop(spec, [6]), 9, tmp_path / "round.json")
    expected = float(seen.loss[0])
    assert f"loss {expected!r}" in capsys.readouterr().out
    switches = Switches.model_validate({key: getattr(spec, key).model_dump() for key in Switches.model_fields})
    told = json.loads(run(tmp_path / "round.json", switches, True))
    assert abs(told["loss"] - expected) < 1e-10
    present = seen.batch.present[0]
    advantages = seen.prepared.advantages[0][present][:, 0].tolist()
    assert [a[0] for a in told["advantages"]] == pytest.approx(advantages, abs=1e-10)
    assert expected != 0


def test_dumping_through_train_follows_the_first_seed_and_writes_no_record(tmp_path):
    spec = make_spec(**ROWS["kl-exact"])
    train(
        spec, range(6, 9), tmp_path / "run", tmp_path / "scratch", testbed="bench",
        dump_round=9, dump_path=tmp_path / "a.json",
    )  # fmt: skip
    write_round(make_loop(spec, [6, 7, 8]), 9, tmp_path / "b.json")
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "b.json"]


@pytest.mark.parametrize("number", [0, -1, 13])
def test_a_round_that_does_not_exist_is_a_sentence(tmp_path, number):
    with pytest.raises(UserError, match=rf"--dump-round {number}: the run has rounds 1 to 12"):
        write_round(make_loop(make_spec(), [0]), number, tmp_path / "round.json")
