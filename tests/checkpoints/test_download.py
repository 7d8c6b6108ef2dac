"""Published biLMs as people have them: folders and zip files of simple_elmo, and files at URLs."""

import hashlib
import http.server
import struct
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elmo_jax.checkpoints import hub
from elmo_jax.checkpoints.hdf5 import write_hdf5
from elmo_jax.checkpoints.open import open_bilm
from elmo_jax.cli.main import main
from elmo_jax.errors import UserError
from elmo_jax.runs.folder import from_launch
from tests.checkpoints.small_models import SMALL, assert_equal, random_tree


class Server(http.server.BaseHTTPRequestHandler):
    folder: Path
    asked: list[str] = []
    cut = False  # whether a file ends before its end
    stalls = False  # whether nothing follows the first half of a file

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.asked.append(self.path)
        file = self.folder / self.path.strip("/")
        content = file.read_bytes() if file.is_file() else b""
        self.send_response(200 if file.is_file() else 404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if self.cut or self.stalls else content)
        if self.stalls:
            self.wfile.flush()
            self.rfile.read(1)  # until the client closes the connection


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A folder as simple_elmo has it."""
    folder = tmp_path / "196"
    folder.mkdir()
    write_hdf5(folder / "options.json", folder / "model.hdf5", SMALL, random_tree(SMALL))
    (folder / "vocab.txt").write_text("the\n")
    return folder


@pytest.fixture
def url(published: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server of that folder."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("XDG_CACHE_HOME", str(published.parent / "cache"))
    monkeypatch.setattr(Server, "folder", published, raising=False)
    monkeypatch.setattr(Server, "asked", [])
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_folder_and_a_zip_file(published: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = open_bilm((published / "options.json", published / "model.hdf5"))
    assert open_bilm(published).fingerprint == expected.fingerprint
    for prefix in ("", "196/"):
        with zipfile.ZipFile(published.parent / "196.zip", "w") as archive:
            for file in published.iterdir():
                archive.write(file, f"{prefix}{file.name}")
                archive.writestr(f"__MACOSX/._{file.name}", "what macOS adds")
        actual = open_bilm(published.parent / "196.zip")
        assert_equal(actual.params, expected.params)
        assert actual.config == SMALL and actual.fingerprint == expected.fingerprint
    out = published.parent / "again"
    assert main(["export", str(published.parent / "196.zip"), "--out", str(out)]) == 0
    assert open_bilm(out).fingerprint == expected.fingerprint
    with zipfile.ZipFile(published.parent / "other.zip", "w") as archive:
        archive.write(published / "vocab.txt", "vocab.txt")
    with pytest.raises(UserError, match=r"other.zip: expected options.json and weights \(.hdf5\) in it"):
        open_bilm(published.parent / "other.zip")


def changed(path: Path, flags: int = 0, method: int = 0) -> None:
    """Writes flags and a compression method into the headers of a zip file."""
    content = bytearray(path.read_bytes())
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = content.find(magic)
        while start >= 0:
            struct.pack_into("<HH", content, start + offset, flags, method)
            start = content.find(magic, start + 4)
    path.write_bytes(content)


@pytest.mark.parametrize(("flags", "method", "how"), [(1, 0, "encrypted"), (0, 9, "compressed by method 9")])
def test_zip_files_that_python_cannot_read(
    published: Path, capsys: pytest.CaptureFixture[str], flags: int, method: int, how: str
) -> None:
    for name, files in (("model.zip", published.iterdir()), ("text.zip", [published / "vocab.txt"])):
        with zipfile.ZipFile(published.parent / name, "w") as archive:
            for file in files:
                archive.write(file, file.name)
        changed(published.parent / name, flags, method)
    with pytest.raises(UserError, match=f"model.zip: .* is {how}; unpack it"):
        open_bilm(published.parent / "model.zip")
    assert main(["prepare", str(published.parent / "text.zip"), "--out", str(published.parent / "corpus")]) == 2
    assert f"text.zip: vocab.txt is {how}; unpack it" in capsys.readouterr().err


def test_a_zip_file_that_would_fill_the_disk(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(published.parent / "model.zip", "w") as archive:
        archive.write(published / "options.json", "options.json")
        archive.write(published / "model.hdf5", "model.hdf5")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(UserError, match="model.hdf5 of model.zip: .*, and the disk has 1.0 kB free"):
        open_bilm(published.parent / "model.zip")


def test_a_url_is_downloaded_once(published: Path, url: str, tmp_path: Path) -> None:
    expected = open_bilm(published)
    digest = hashlib.sha256((published / "model.hdf5").read_bytes()).hexdigest()
    pair = (f"{url}/options.json", f"{url}/model.hdf5#sha256={digest}")
    for _ in range(2):
        assert open_bilm(pair).fingerprint == expected.fingerprint
    assert Server.asked == ["/options.json", "/model.hdf5"]
    assert main(["export", pair[1], "--options", pair[0], "--out", str(tmp_path / "imported")]) == 0
    assert Server.asked == ["/options.json", "/model.hdf5"]
    assert open_bilm(tmp_path / "imported").fingerprint == expected.fingerprint
    assert from_launch(tmp_path, pair[0]) == pair[0]  # type: ignore[arg-type]  # a setting that is a URL stays one


def test_a_download_that_fails_leaves_nothing(
    published: Path, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def complaint(weights: str) -> str:
        arguments = ["export-hdf5", weights, str(published / "o.json"), str(published / "w.hdf5")]
        assert main(arguments) == 2
        *_, last = capsys.readouterr().err.splitlines()
        assert not [
            path for path in (published.parent / "cache").rglob("*") if path.name not in (".lock",) and path.is_file()
        ]
        return last

    assert "nothing.zip: the server has answered with status 404; check the URL" in complaint(f"{url}/nothing.zip")
    assert "'80x'); check the URL" in complaint("http://127.0.0.1:80x/nothing.zip")
    digest = hashlib.sha256(b"other").hexdigest()
    assert "not the one that is given; do not use it" in complaint(f"{url}/model.hdf5#sha256={digest}")
    assert "expected https://HOST/FILE or https://HOST/FILE#sha256=HEX" in complaint(f"{url}/model.hdf5#sha256=12")
    assert "expected https://HOST/FILE" in complaint(f"{url}/")
    assert "cannot be downloaded" in complaint("http://127.0.0.1:1/model.zip")
    with monkeypatch.context() as slow:
        slow.setattr(hub, "_SECONDS", 0.5)
        slow.setattr(Server, "stalls", True)
        assert "model.hdf5: cannot be downloaded (timed out); try again" in complaint(f"{url}/model.hdf5")
    monkeypatch.setattr(Server, "cut", True)
    assert "model.hdf5: has ended after" in complaint(f"{url}/model.hdf5")
