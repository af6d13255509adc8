"""Fetching files from a local hub: what is requested, what is cached, and the message of every failure."""

import socket
import sys
from pathlib import Path

import pytest
from hub_server import HubServer

from headway.core.errors import UserError
from headway.core.hub import Address, fetch

FILES = {"README.md": b"# Poems", "train.txt": b"a rose is a rose\n", "more/odd [1] name.txt": b"is a rose\n"}
POEMS = Address("dataset", "me/poems")


def all_text(names) -> list[str]:
    return sorted(name for name in names if name.endswith(".txt"))


# --- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "revision", "within"),
    [
        ("me/poems", "me/poems", None, ""),
        ("me/poems@v1.0", "me/poems", "v1.0", ""),
        ("me/poems/english", "me/poems", None, "english"),
        ("me/poems@main/a/*.csv", "me/poems", "main", "a/*.csv"),
        ("me/poems@refs/convert/parquet/default", "me/poems", "refs/convert/parquet", "default"),
        ("me/poems@refs/pr/3", "me/poems", "refs/pr/3", ""),
    ],
)
def test_an_address_has_three_parts(text, name, revision, within):
    assert Address.parse(text, "dataset") == Address("dataset", name, revision, within)


@pytest.mark.parametrize("text", ["poems", "", "me/", "/poems", "me/po ems", "me/poems@", "me/../poems", "-me/poems"])
def test_invalid_addresses_are_refused(text):
    with pytest.raises(UserError, match=r"is not the name of a dataset repository; expected owner/name"):
        Address.parse(text, "dataset")


def test_a_model_may_have_no_owner_and_has_no_parts():
    assert Address.parse("gpt2", "model").name == "gpt2"
    with pytest.raises(UserError, match="not the name of a model repository"):
        Address.parse("me/model/folder", "model")


# --- what is fetched, and what is kept -------------------------------------------------------------------------------


def test_only_chosen_files_are_fetched(hub: HubServer):
    hub.add("dataset", "me/poems", FILES)
    folder, names = fetch(POEMS, all_text)
    assert names == ["more/odd [1] name.txt", "train.txt"]
    assert {name: (folder / name).read_bytes() for name in names} == {name: FILES[name] for name in names}
    assert not (folder / "README.md").exists()
    assert not any("README" in line for line in hub.asked)


def test_a_second_use_sends_no_request_and_needs_no_network(hub: HubServer, monkeypatch: pytest.MonkeyPatch):
    hub.add("dataset", "me/poems", FILES)
    first = fetch(POEMS, all_text)
    hub.asked.clear()
    assert fetch(POEMS, all_text) == first
    assert fetch(Address("dataset", "me/poems", "main"), all_text) == first
    assert hub.asked == []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert fetch(POEMS, all_text) == first


def test_cached_files_stay_when_the_repository_changes(hub: HubServer):
    old = hub.add("dataset", "me/poems", FILES).commit
    first, _ = fetch(POEMS, all_text)
    new = hub.add("dataset", "me/poems", {"train.txt": b"now something else\n"}).commit
    assert fetch(POEMS, all_text)[0] == first and first.name == old
    again, _ = fetch(Address("dataset", "me/poems", new), all_text)
    assert again.name == new
    assert (again / "train.txt").read_bytes() == b"now something else\n"


def test_other_files_of_a_cached_repository_are_fetched_when_needed(hub: HubServer):
    hub.add("dataset", "me/poems", FILES)
    fetch(POEMS, all_text)
    folder, _ = fetch(POEMS, lambda names: ["README.md"])
    assert (folder / "README.md").read_bytes() == FILES["README.md"]


def test_a_choice_may_be_refused_before_anything_is_downloaded(hub: HubServer):
    hub.add("dataset", "me/poems", FILES)

    def refuse(names):
        raise UserError(f"none of {len(names)}")

    with pytest.raises(UserError, match="none of 3"):
        fetch(POEMS, refuse)
    assert not any("/resolve/" in line for line in hub.asked)


# --- failures as messages --------------------------------------------------------------------------------------------


def refusal(name: str, revision: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        fetch(Address("dataset", name, revision), all_text)
    return str(caught.value)


def test_unknown_repository(hub: HubServer):
    text = refusal("me/peoms")
    assert text.startswith(f"there is no dataset 'me/peoms' at {hub.url}, or it is private")
    assert "hf auth login" in text


def test_a_model_is_not_found_as_a_dataset(hub: HubServer):
    hub.add("model", "me/poems", FILES)
    assert "there is no dataset 'me/poems'" in refusal("me/poems")


def test_unknown_revision(hub: HubServer):
    hub.add("dataset", "me/poems", FILES)
    assert refusal("me/poems", "v9").startswith("dataset 'me/poems' has no revision 'v9'")


def test_gated(hub: HubServer):
    hub.add("dataset", "me/poems", FILES, gated=True)
    assert f"is gated: accept its terms at {hub.url}/datasets/me/poems" in refusal("me/poems")


@pytest.mark.parametrize(
    ("status", "sentence"),
    [(401, "answered 401 Unauthorized"), (403, "answered 403 Forbidden"), (500, "answered 500 Internal Server")],
)
def test_other_refusals(hub: HubServer, status: int, sentence: str):
    hub.add("dataset", "me/poems", FILES, status=status)
    assert sentence in refusal("me/poems")


def test_no_network(hub: HubServer, monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    text = refusal("me/poems")
    assert "is not (completely) in the hub's cache" in text
    assert f"{address} cannot be reached (" in text and "refused" in text


def test_a_broken_download_can_be_resumed(hub: HubServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the library retries with pauses
    hub.add("dataset", "me/poems", FILES, breaks_off=True)
    assert "(completely) in the hub's cache" in refusal("me/poems")
    hub.add("dataset", "me/poems", FILES)
    folder, _ = fetch(POEMS, all_text)
    assert (folder / "train.txt").read_bytes() == FILES["train.txt"]


def test_offline_without_cache(hub: HubServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    text = refusal("me/poems")
    assert "(completely) in the hub's cache" in text and "HF_HUB_OFFLINE is set" in text
    assert hub.asked == []


def test_offline_with_half_a_cache(hub: HubServer, monkeypatch: pytest.MonkeyPatch):
    hub.add("dataset", "me/poems", FILES)
    fetch(POEMS, lambda names: ["README.md"])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refusal("me/poems")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert refusal("me/poems").endswith("huggingface_hub: pip install 'headway[hub]'")


def test_with_a_library_that_is_too_old(hub: HubServer, monkeypatch: pytest.MonkeyPatch):
    import huggingface_hub

    def has_not(name: str):
        raise AttributeError(name)

    monkeypatch.setattr(huggingface_hub, "__getattr__", has_not)  # names that are not loaded yet are looked up there
    monkeypatch.delattr(huggingface_hub, "get_cached_repo_tree", raising=False)
    assert "is too old: pip install --upgrade 'headway[hub]'" in refusal("me/poems")


def test_a_cache_that_cannot_be_written_is_not_reported_as_a_network_error(hub: HubServer, tmp_path: Path, monkeypatch):
    hub.add("dataset", "me/poems", FILES)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "file"))
    with pytest.raises(OSError, match="file"):
        fetch(POEMS, all_text)


# --- malicious hubs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("etag", ["../../../../outside", "/tmp/outside", "..", "a/b", "x" * 300])
def test_an_etag_with_a_path_writes_nothing_outside_the_cache(hub: HubServer, tmp_path: Path, etag: str):
    hub.add("dataset", "me/poems", FILES, etag=etag)
    with pytest.raises(UserError, match=r"ETag .* do not trust this hub"):
        fetch(POEMS, all_text)
    assert not [path for path in tmp_path.rglob("*") if "outside" in path.name]


@pytest.mark.parametrize("told", [b"", b"[]", b"5", b"{}", b'{"siblings": 5}', b"{" * 10_000, b"\xff\xfe"])
def test_an_invalid_answer_is_reported(hub: HubServer, told: bytes):
    hub.add("dataset", "me/poems", FILES, told=told)
    with pytest.raises(UserError):
        fetch(POEMS, all_text)


def test_a_hub_that_does_not_answer_times_out(hub: HubServer, monkeypatch: pytest.MonkeyPatch):
    hub.add("dataset", "me/poems", FILES, seconds=3.0)
    monkeypatch.setattr("headway.core.hub.LONGEST_LIST", 0.5)
    with pytest.raises(UserError, match="the hub is too slow: nothing of dataset 'me/poems' has arrived for"):
        fetch(POEMS, all_text)


def test_an_endless_file_is_cut_off(hub: HubServer, tmp_path: Path):
    hub.add("dataset", "me/poems", FILES, endless=True)
    with pytest.raises(UserError, match="sends more data for dataset 'me/poems' than it announced"):
        fetch(POEMS, all_text)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 200 << 20
