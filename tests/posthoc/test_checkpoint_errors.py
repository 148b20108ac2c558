"""Wrong and damaged checkpoints: one line that says what is wrong and what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from memaudit.errors import CheckpointError, StrategyError
from memaudit.posthoc.checkpoints import detect, fingerprint, load, step_of
from memaudit.posthoc.checkpoints.names import match_names
from tests.helpers import tiny_llama


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return tiny_llama(128, seed=2)


@pytest.fixture
def folder(model: torch.nn.Module, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path / "checkpoint-5", max_shard_size="100KB")  # type: ignore[operator]
    return tmp_path / "checkpoint-5"


def fails(path: Path | str, *words: str, **choices: object) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(path, **choices)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_missing_shards_are_named(folder: Path) -> None:
    (folder / "model-00002-of-00004.safetensors").unlink()
    fails(folder, "lacks 1 of the 4 shards", "model-00002-of-00004.safetensors")


def test_cut_off_shard(folder: Path) -> None:
    shard = folder / "model-00001-of-00004.safetensors"
    shard.write_bytes(shard.read_bytes()[:500])
    fails(folder, str(folder))


def test_config_that_does_not_fit(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    for change, words in (
        ({"num_hidden_layers": 3}, ("missing", "model.layers.2")),
        ({"num_hidden_layers": 1}, ("unexpected", "model.layers.1")),
        ({"vocab_size": 130}, ("shape",)),
    ):
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        fails(folder, *words, strategy="single")


def test_dcp_without_metadata_and_without_a_shard(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"model": tiny_llama(128).state_dict()}, checkpoint_id=tmp_path / "a", no_dist=True)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / ".metadata").unlink()
    fails(tmp_path / "b", ".metadata", "rank 0")
    next((tmp_path / "a").glob("*.distcp")).unlink()
    fails(tmp_path / "a", "lacks 1", ".distcp")


def test_dcp_that_does_not_fit(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"model": tiny_llama(128, layers=3).state_dict()}, checkpoint_id=tmp_path / "a", no_dist=True)
    tiny_llama(128, layers=2).config.save_pretrained(tmp_path / "a")
    fails(tmp_path / "a", "unexpected", "model.layers.2", "--config-from")


def test_weights_without_configuration(tmp_path: Path) -> None:
    torch.save({"state_dict": tiny_llama(128).state_dict()}, tmp_path / "a.ckpt")
    fails(tmp_path / "a.ckpt", "--config-from")


def test_lightning_file_of_objects_is_not_run(tmp_path: Path, folder: Path) -> None:
    class Settings:
        pass

    globals()["Settings"] = Settings
    Settings.__qualname__ = "Settings"
    torch.save({"state_dict": {}, "hyper_parameters": Settings()}, tmp_path / "a.ckpt")
    fails(tmp_path / "a.ckpt", "--trust-pickle", config_from=str(folder))


def test_zero_lacks_a_rank(tmp_path: Path) -> None:
    step = tmp_path / "a" / "global_step5"
    step.mkdir(parents=True)
    (tmp_path / "a" / "latest").write_text("global_step5")
    torch.save({}, step / "zero_pp_rank_0_mp_rank_00_model_states.pt")
    torch.save(
        {"optimizer_state_dict": {"partition_count": 4}}, step / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    )
    torch.save({}, step / "zero_pp_rank_2_mp_rank_00_optim_states.pt")
    fails(tmp_path / "a", "saved by 4 ranks", "1, 3")


def test_bitsandbytes_without_gpu(folder: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (folder / "config.json").write_text(json.dumps(config))
    assert detect(folder).kind == "quantised"
    fails(folder, "needs a GPU")


def test_nothing_there(tmp_path: Path) -> None:
    fails(tmp_path / "no", "no checkpoint at")
    fails(tmp_path, "holds no checkpoint")
    (tmp_path / "a.gguf").write_bytes(b"nope")
    fails(tmp_path / "a.gguf", "GGUF")
    (tmp_path / "adapter_config.json").write_text("{}")
    fails(tmp_path, "adapter_model.safetensors")


def test_a_mistyped_path_is_no_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a download was tried")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    fails("out/checkpoint-3", "no checkpoint at out/checkpoint-3")


def test_strategies_that_cannot_be(folder: Path) -> None:
    for strategy in ("ddp", "fsdp2", "zero3"):
        with pytest.raises(StrategyError, match="torchrun"):
            load(folder, strategy=strategy)


def test_fingerprint_follows_content(folder: Path, tmp_path: Path) -> None:
    first = fingerprint(detect(folder))
    shutil.copytree(folder, tmp_path / "copy")
    assert fingerprint(detect(tmp_path / "copy")) == first
    tiny_llama(128, seed=9).save_pretrained(folder, max_shard_size="100KB")
    assert fingerprint(detect(folder)) != first


def test_device_map_with_weights_on_the_disk(folder: Path, model: torch.nn.Module, tmp_path: Path) -> None:
    loaded = load(
        folder, strategy="device-map", max_memory={"cpu": 150_000}, offload_dir=str(tmp_path / "offload")
    )
    places = set(map(str, loaded.model.hf_device_map.values()))
    assert "disk" in places, places
    ids = torch.tensor([[3, 4, 5, 6, 7]])
    with torch.no_grad():
        assert torch.allclose(loaded.model(ids).logits, model(ids).logits, atol=1e-6)


def test_gguf(tmp_path: Path, model: torch.nn.Module) -> None:
    write_gguf(model, tmp_path / "a.gguf")
    loaded = load(tmp_path / "a.gguf")
    assert loaded.checkpoint.kind == "gguf"
    ids = torch.tensor([[3, 4, 5, 6, 7, 100]])
    with torch.no_grad():
        assert torch.allclose(loaded.model(ids).logits, model(ids).logits, atol=1e-5)


def write_gguf(model: torch.nn.Module, path: Path) -> None:
    """Write a Llama as llama.cpp's converter does: its names, and query and key rows in its rotary order."""
    import gguf

    config = model.config  # type: ignore[union-attr]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    writer.add_token_merges([])
    names = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    for name, tensor in model.state_dict().items():
        short = name.replace("model.layers.", "blk.")
        for ours, theirs in names.items():
            short = short.replace(ours, theirs)
        heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
        kind = next((k for k in heads if f"self_attn.{k}_proj" in name), None)
        if kind:
            rows, columns = tensor.shape
            tensor = tensor.view(heads[kind], 2, rows // heads[kind] // 2, columns).swapaxes(1, 2)
            tensor = tensor.reshape(rows, columns)
        writer.add_tensor(short, tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_names() -> None:
    expected = {"net.a.weight": (2, 3), "net.b.weight": (4,)}
    wrapped = {
        "model._forward_module.net.a.weight": (2, 3),
        "model._forward_module.net._orig_mod.b.weight": (4,),
        "optimizer.state.net.a.weight.exp_avg": (2, 3),
    }
    joined = match_names(expected, wrapped, where="x")
    assert joined == dict(zip(expected, list(wrapped)[:2], strict=True))
    two = {f"{who}.{name}": shape for who in ("student", "teacher") for name, shape in expected.items()}
    with pytest.raises(CheckpointError, match="--prefix"):
        match_names(expected, two, where="x")
    assert match_names(expected, two, where="x", prefix="teacher")["net.b.weight"] == "teacher.net.b.weight"


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-30", 30),
        ("epoch=1-step=60.ckpt", 60),
        ("global_step7", 7),
        ("final", None),
        ("epoch_3", 3),
    ],
)
def test_step_of(name: str, step: int | None) -> None:
    assert step_of(Path(name)) == step
