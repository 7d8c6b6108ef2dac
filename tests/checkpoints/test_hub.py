"""biLMs on the Hub: uploads, downloads and their failures, against a server that speaks the Hub's HTTP endpoints."""

import base64
import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from etils import epath

import elmo_jax
from elmo_jax.checkpoints import hub
from elmo_jax.cli.main import main
from elmo_jax.errors import UserError
from elmo_jax.runs.folder import from_launch
from tests.checkpoints.exports import MODEL, WORDS, tree

INFO = {
    "heldout_perplexity": {"forward": 12.0, "backward": 13.0, "average": 12.5},
    "sources": [{"text": "speeches", "from": "a library", "licence": "public domain"}],
}
COMMIT, TOKEN = "0123456789abcdef0123456789abcdef01234567", "hf_right"


class Hub(http.server.BaseHTTPRequestHandler):
    """The endpoints that huggingface_hub uses for one file of a repository, and for a commit of small files."""

    files: dict[str, bytes] = {}  # of the repository me/small
    commit = COMMIT
    cut = False  # whether a download ends before its end

    def log_message(self, *arguments: Any) -> None:
        pass

    def answer(self, status: int, content: bytes = b"{}", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if self.cut and status == 200 else content)
            self.close_connection = True

    def do_GET(self) -> None:
        user, name, _, revision, file = (*self.path.strip("/").split("/"), "", "", "", "")[:5]
        if (user, name) != ("me", "small"):
            self.answer(401, X_Error_Code="RepoNotFound")
        elif revision not in ("main", COMMIT):
            self.answer(404, X_Error_Code="RevisionNotFound")
        elif file not in self.files:
            self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=self.commit)
        else:
            self.answer(200, self.files[file], ETag=f'"{hash(self.files[file]):x}"', X_Repo_Commit=self.commit)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self.answer(401, b'{"error": "Invalid username or password."}')
        elif self.path == "/api/repos/create":
            self.answer(200, json.dumps({"url": f"http://{self.headers['Host']}/me/small"}).encode())
        elif "/preupload/" in self.path:
            files = [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(content)["files"]]
            self.answer(200, json.dumps({"files": files}).encode())
        elif "/commit/" in self.path:
            for line in map(json.loads, content.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            url = f"http://{self.headers['Host']}/me/small/commit/{COMMIT}"
            self.answer(200, json.dumps({"commitUrl": url, "commitOid": COMMIT}).encode())
        else:
            self.answer(200)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The Hub's cache; `huggingface_hub` reads its environment when it is imported first."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = tmp_path_factory.mktemp("hub")
    os.environ |= {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    yield home / "hub"
    server.shutdown()


def small_export(file: Path) -> Path:
    elmo_jax.export_bilm(file, MODEL, tree(), WORDS, INFO)
    return file


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "files", {})
    monkeypatch.setattr(Hub, "cut", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)


def test_a_biLM_is_uploaded_with_its_card_and_loaded_by_its_name(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = small_export(tmp_path / "small.safetensors")
    copy = str(tmp_path / "copy.safetensors")
    assert main(["export", str(file), "--out", copy, "--push", "hf:me/small"]) == 0
    assert "elmo_jax.load_bilm('hf:me/small')" in capsys.readouterr().out
    card = Hub.files["README.md"].decode()
    for part in ("held-out perplexity 12.5", "- speeches, from a library; licence: public domain", "- average: 12.5"):
        assert part in card, part
    assert 'elmo_jax.load_bilm("hf:me/small")' in card
    expected = elmo_jax.load_bilm(file).fingerprint
    for name in ("hf:me/small", f"hf:me/small@{COMMIT}"):
        assert elmo_jax.load_bilm(name).fingerprint == expected
    assert from_launch(epath.Path(tmp_path), "hf:me/small") == "hf:me/small", "as a trained task looks for its biLM"
    again = str(tmp_path / "again.safetensors")
    assert main(["export", "hf:me/small", "--out", again]) == 0
    assert elmo_jax.load_bilm(again).fingerprint == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:small", "expected hf:USER/NAME or hf:USER/NAME@REVISION"),
        ("hf:me/other", "hf:me/other: does not exist, or is private"),
        ("hf:me/small@v9", "hf:me/small@v9: there is no such revision"),
        ("hf:me/small", "hf:me/small: has no bilm.safetensors"),
    ],
)
def test_what_is_not_on_the_hub(cache: Path, name: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        elmo_jax.load_bilm(name)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_a_refused_token(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = small_export(tmp_path / "small.safetensors")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(UserError, match=r"^hf:me/small: .*HF_TOKEN"):
        hub.push(file, "hf:me/small", elmo_jax.load_bilm(file))
    assert not Hub.files


def test_a_cut_download_leaves_nothing(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "cut", True)
    monkeypatch.setattr(Hub, "commit", "f" * 40)  # of which nothing is in the cache
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the attempts
    Hub.files["bilm.safetensors"] = bytes(100_000)
    with pytest.raises(UserError, match="^hf:me/small: the transfer has failed") as caught:
        elmo_jax.load_bilm("hf:me/small")
    assert "\n" not in str(caught.value)
    assert not list(cache.rglob(f"snapshots/{Hub.commit}/*"))


def test_a_name_on_the_hub_is_not_a_place_to_write_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = small_export(tmp_path / "small.safetensors")
    pushed = [["--out", str(tmp_path / "a"), "--push", name] for name in ("hf:me/small@main", "hf:me/-small")]
    for options in (["--out", "hf:me/small"], *pushed):
        assert main(["export", str(file), *options]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert options[-1] in line
    assert not (tmp_path / "a").exists()
