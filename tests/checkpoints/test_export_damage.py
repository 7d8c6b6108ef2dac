"""Tests exports that cannot be written, do not fit, or are damaged."""

from __future__ import annotations

import json
import re
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo_jax.checkpoints.export import export_bilm
from elmo_jax.checkpoints.open import open_bilm
from elmo_jax.errors import UserError
from tests.checkpoints.exports import MODEL, WORDS, assert_equal, run, tree


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export_bilm(tmp_path / "out", MODEL, tree(), WORDS, {"steps": 12})
    return tmp_path / "out"


def limited_child(folder: str) -> None:
    """Files may not grow over 4 kB, as on a disk that is full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    try:
        export_bilm(folder, MODEL, tree(1), WORDS)
    except UserError as error:
        print(error)


def test_a_write_that_fails_is_one_line(folder: Path) -> None:
    done = run(f"import test_export_damage; test_export_damage.limited_child({str(folder)!r})")
    assert done.stdout == f"{folder}: the export cannot be written: File too large\n", done.stderr
    assert done.stderr == ""
    assert_equal(open_bilm(folder).params, tree())


def other_tree(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    params = tree()
    change(params)
    return params


@pytest.mark.parametrize(
    ("params", "words", "message"),
    [
        (other_tree(lambda p: p.pop("forward")), WORDS, "parameter 'forward/layer_0/bias' is missing; expected shape"),
        (other_tree(lambda p: p.update(extra=np.zeros(3))), WORDS, "parameter 'extra' has no place in a model of this"),
        (
            other_tree(lambda p: p["softmax"].update(bias=np.zeros(7, np.float32))),
            WORDS,
            r"'softmax/bias' has shape \(7,\), expected \(6,\)",
        ),
        (tree(), WORDS[:-1], "a vocabulary of 5 words for a softmax of 6 rows"),
        (other_tree(lambda p: p.pop("softmax")), WORDS, "a vocabulary of 6 words for a softmax of no rows"),
        (tree(), [*WORDS[:-1], "a\nb"], r"the word 'a\\nb' holds a line break"),
    ],
)
def test_what_does_not_fit_the_model_is_not_exported(
    tmp_path: Path, params: dict[str, Any], words: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        export_bilm(tmp_path / "out", MODEL, params, words)
    assert not (tmp_path / "out").exists()


def rewritten(key: str, value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        values = json.loads((folder / "bilm.json").read_text())
        node = values
        *parents, name = key.split("/", 1) if key.startswith("shapes/") else key.split(".")
        for parent in parents:
            node = node[parent]
        node[name] = value
        (folder / "bilm.json").write_text(json.dumps(values))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rewritten("layout", 2), "bilm.json: layout version 2, this elmo_jax reads 1; export the biLM again"),
        (rewritten("layout", None), "bilm.json: layout version None, this elmo_jax reads 1"),
        (rewritten("model.lstm.cells", 24), r"'backward/layer_0/bias' has shape \(92,\), expected \(96,\)"),
        (rewritten("model.lstm.cell", 24), "bilm.json: model.lstm.cell: no such setting; did you mean"),
        (rewritten("shapes/softmax/kernel", [7, 11]), r"'softmax/bias' has shape \(6,\), expected \(7,\)"),
        (rewritten("info", None), "bilm.json: 'info' is missing or damaged"),
        (rewritten("shapes.softmax/bias", 3), "bilm.json: 'shapes' is damaged"),
        # a few bytes that would make lists of gigabytes
        (rewritten("model.lstm.layers", 3_000_000), "bilm.json: model.lstm.layers: .* at least 1 and at most 1,000"),
        (rewritten("model.char_cnn.highways", 3_000_000), "bilm.json: model.char_cnn.highways: .* at most 1,000"),
        (rewritten("model.char_cnn.filters", [[1, 1]] * 1001), "model.char_cnn.filters: expected 1 to 1000 pairs"),
        (lambda f: (f / "bilm.json").write_text(" " * (1 << 24) + "{}"), "bilm.json: cannot be read .larger than 16"),
        (lambda f: (f / "bilm.json").write_text("[" * 100_000), "bilm.json: cannot be read"),
        (rewritten("fingerprint", "0"), "the parameters are not those that were exported"),
        (lambda f: (f / "bilm.json").write_text("{"), "bilm.json: cannot be read"),
        (lambda f: (f / "bilm.json").write_text("[]"), "bilm.json: layout version None"),
        (lambda f: (f / "bilm.json").unlink(), "out: no biLM here; expected the name of a packaged biLM"),
        (lambda f: (f / "vocabulary.txt").unlink(), "vocabulary.txt: no such file"),
        (lambda f: (f / "vocabulary.txt").write_text("<S>\n"), "vocabulary.txt: not the vocabulary that was exported"),
        (lambda f: shutil.rmtree(f / "parameters"), "parameters: no such folder"),
        (lambda f: shutil.rmtree(f), "out: no such file or folder; expected the name of a packaged biLM"),
    ],
)
def test_a_folder_that_is_wrong(folder: Path, change: Callable[[Path], Any], message: str) -> None:
    change(folder)
    with pytest.raises(UserError, match=message) as caught:
        open_bilm(folder)
    assert "\n" not in str(caught.value)


def test_any_damage_of_the_parameters_is_found(folder: Path) -> None:
    """Each file that is deleted, truncated or has one flipped bit gives an error or the same numbers."""
    found: list[Path] = []
    files = [path for path in (folder / "parameters").rglob("*") if path.is_file()]
    for path in files:
        content = path.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        for damaged in (None, b"", content[: len(content) // 2], content[:-1], bytes(flipped)):
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            try:
                assert_equal(open_bilm(folder).params, tree())
            except UserError as error:
                found.append(path)
                assert re.match(f"{folder}.*export.* again$", str(error)), error
            path.write_bytes(content)
    assert (
        found.count(max(files, key=lambda path: path.stat().st_size)) >= 4
    )  # truncations within the data, except perhaps at the last byte
