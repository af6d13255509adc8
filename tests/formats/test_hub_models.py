"""Weights from the hub: which files of a model are fetched, and what is refused."""

import pytest
from hub_server import HubServer

from headway.core.errors import UserError
from headway.formats.hub import fetch_model

MODEL = {
    "config.json": b"{}",
    "generation_config.json": b"{}",
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "vocab.json": b"{}",
    "merges.txt": b"",
}
OTHERS = {
    "README.md": b"",
    "pytorch_model.bin": b"\x80\x04",
    "tf_model.h5": b"",
    "model.fp16.safetensors": b"",
    "onnx/model.safetensors": b"",
    "onnx/config.json": b"{}",
    "training_args.bin": b"",
    "modeling_custom.py": b"raise SystemExit",
}


def test_only_weights_configuration_and_tokenizer_are_fetched(hub: HubServer):
    hub.add("model", "me/gpt", MODEL | OTHERS)
    folder = fetch_model("me/gpt")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == MODEL
    fetched = {line.rsplit("/", 1)[1] for line in hub.asked if "/resolve/" in line}
    assert fetched == set(MODEL)


def test_sharded_weights(hub: HubServer):
    parts = {f"model-0000{k}-of-00002.safetensors": b"w" for k in (1, 2)} | {"model.safetensors.index.json": b"{}"}
    hub.add("model", "me/gpt", {"config.json": b"{}", **parts})
    assert {file.name for file in fetch_model("me/gpt").iterdir()} == {"config.json", *parts}


def test_a_revision_and_the_cache(hub: HubServer):
    commit = hub.add("model", "me/gpt", MODEL).commit
    folder = fetch_model(f"me/gpt@{commit}")
    hub.asked.clear()
    assert fetch_model(f"me/gpt@{commit}") == folder and hub.asked == []


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.ckpt", "model.pkl"])
def test_pickle_is_refused(hub: HubServer, name: str):
    hub.add("model", "me/gpt", {"config.json": b"{}", name: b"\x80\x04"})
    with pytest.raises(UserError, match=rf"only as pickle \({name}\), which can run any code"):
        fetch_model("me/gpt")
    assert not any("/resolve/" in line for line in hub.asked)


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"README.md": b""}, r"no safetensors weights; there are: README\.md"),
        ({}, "no safetensors weights; it is empty"),
        ({"model.safetensors": b""}, r"has no config\.json"),
    ],
)
def test_repositories_without_a_model(hub: HubServer, files: dict[str, bytes], sentence: str):
    hub.add("model", "me/gpt", files)
    with pytest.raises(UserError, match=sentence):
        fetch_model("me/gpt")
