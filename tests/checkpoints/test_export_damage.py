"""Tests exports that cannot be written, do not fit, or are damaged."""

from __future__ import annotations

import hashlib
import json
import resource
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from elmo_jax.checkpoints.export import NAME, export_bilm
from elmo_jax.checkpoints.layout import fingerprint
from elmo_jax.checkpoints.open import open_bilm
from elmo_jax.errors import UserError
from tests.checkpoints.exports import MODEL, WORDS, assert_equal, run, tree


@pytest.fixture
def file(tmp_path: Path) -> Path:
    export_bilm(tmp_path / "out", MODEL, tree(), WORDS, {"steps": 12})
    return tmp_path / "out" / NAME


def limited_child(folder: str) -> None:
    """Files may not grow over 4 kB, as on a disk that is full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    try:
        export_bilm(folder, MODEL, tree(1), WORDS)
    except UserError as error:
        print(error)


def test_a_write_that_fails_is_one_line(file: Path) -> None:
    done = run(f"import test_export_damage; test_export_damage.limited_child({str(file.parent)!r})")
    assert done.stdout == f"{file}: cannot be read and written (File too large)\n", done.stderr
    assert done.stderr == ""
    assert_equal(open_bilm(file).params, tree())


def other_tree(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    params = tree()
    change(params)
    return params


@pytest.mark.parametrize(
    ("params", "words", "info", "message"),
    [
        (other_tree(lambda p: p.pop("forward")), WORDS, {}, "parameter 'forward/layer_0/bias' is missing; expected"),
        (other_tree(lambda p: p.update(extra=np.zeros(3))), WORDS, {}, "parameter 'extra' has no place in a model of"),
        (
            other_tree(lambda p: p["softmax"].update(bias=np.zeros(7, np.float32))),
            WORDS,
            {},
            r"'softmax/bias' has shape \(7,\), expected \(6,\)",
        ),
        (tree(), WORDS[:-1], {}, "a vocabulary of 5 words for a softmax of 6 rows"),
        (other_tree(lambda p: p.pop("softmax")), WORDS, {}, "a vocabulary of 6 words for a softmax of no rows"),
        (tree(), [*WORDS[:-1], "a\nb"], {}, r"the vocabulary has 'a\\nb', which is no word"),
        (tree(), [*WORDS[:-1], "\ud800"], {}, "info or a word cannot be written as JSON"),
        (tree(), WORDS, {"x": np.float32(1)}, "info or a word cannot be written as JSON"),
        (other_tree(lambda p: p["softmax"].update(bias=np.full(6, np.nan))), WORDS, {}, "expected .* all finite in"),
        (
            other_tree(lambda p: p["softmax"].update(bias=np.zeros(6, int))),
            WORDS,
            {},
            "expected floating-point numbers",
        ),
    ],
)
def test_what_does_not_fit_is_not_exported(
    tmp_path: Path, params: dict[str, Any], words: list[str], info: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        export_bilm(tmp_path / "out", MODEL, params, words, info)
    assert not list(tmp_path.iterdir())


def rewritten(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Returns a function that changes the description in a file, with the checksum that belongs to it."""

    def rewrite(file: Path) -> None:
        content = file.read_bytes()
        size = struct.unpack("<Q", content[:8])[0]
        description = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["elmo_jax"])
        change(description)
        text = json.dumps(description)
        metadata = {"elmo_jax": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
        file.write_bytes(safetensors.numpy.save(safetensors.numpy.load(content), metadata))

    return rewrite


def foreign(file: Path) -> None:
    safetensors.numpy.save_file({"weight": np.zeros(3, np.float32)}, file, {"format": "np"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rewritten(lambda d: d.update(layout=2)), "layout version 2, this elmo_jax reads 1; export the biLM again"),
        (rewritten(lambda d: d["model"]["lstm"].update(cell=24)), "model.lstm.cell: no such setting; did you mean"),
        (rewritten(lambda d: d.update(fingerprint="0")), "damaged .the numbers are not those that were written"),
        (foreign, "not a biLM of elmo_jax, or a damaged one; give one that elmo-jax export wrote"),
        (lambda file: file.write_text("[" * 100_000), "not a biLM of elmo_jax, or a damaged one"),
        (lambda file: file.unlink(), "out: no biLM here; expected the name of a packaged biLM"),
    ],
)
def test_a_file_that_is_wrong(file: Path, change: Callable[[Path], Any], message: str) -> None:
    change(file)
    with pytest.raises(UserError, match=message) as caught:
        open_bilm(file.parent)
    assert "\n" not in str(caught.value)


def test_damage_anywhere_is_found(file: Path) -> None:
    whole = file.read_bytes()
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    rng = np.random.default_rng(0)
    for position in [*range(0, 8), *rng.integers(8, header, 80), *rng.integers(header, len(whole), 20)]:
        flipped = bytearray(whole)
        flipped[position] ^= 1 << int(rng.integers(8))
        file.write_bytes(flipped)
        with pytest.raises(UserError, match="bilm.safetensors") as caught:
            open_bilm(file)
        assert "\n" not in str(caught.value), position
    for size in (0, 5, header - 3, header, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(UserError, match="bilm.safetensors"):
            open_bilm(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d, t: d.pop("model"), "has no valid 'model'"),
        (lambda d, t: d.pop("info"), "has no valid 'info'"),
        (lambda d, t: d.pop("layout"), "layout version None"),
        (lambda d, t: d.update(vocabulary="the"), "has no valid 'vocabulary'"),
        (lambda d, t: d.update(vocabulary=None), "a vocabulary of no words for a softmax of 6 rows"),
        (lambda d, t: d["vocabulary"].pop(), "a vocabulary of 5 words for a softmax of 6 rows"),
        (lambda d, t: d["vocabulary"].append(7) or d["vocabulary"].pop(0), "the vocabulary has 7, which is no word"),
        (lambda d, t: d["info"].update(steps="many"), "'steps' in its info: expected int, got 'many'"),
        (lambda d, t: d["info"].update(settings=None), "'settings' in its info: expected dict, got None"),
        (lambda d, t: d["info"].update(settings={"train": []}), "'settings' in its info: expected those of a training"),
        (lambda d, t: d["info"].update(finetuned_from={"finetuned_from": "x"}), "'finetuned_from' in its info"),
        (lambda d, t: d["model"]["lstm"].update(cells=97), "has shape .*, expected"),
        (lambda d, t: d["model"]["lstm"].update(cells="3"), "model.lstm.cells: expected int, got '3'"),
        (lambda d, t: t["forward/layer_0/bias"].fill(np.nan), "'forward/layer_0/bias' has numbers that are not finite"),
        (lambda d, t: t.pop("forward/layer_0/bias"), "parameter 'forward/layer_0/bias' is missing"),
    ],
)
def test_a_description_of_another_program(file: Path, change: Callable[[Any, Any], Any], message: str) -> None:
    """It has valid checksums, and says what is not in the file."""
    tensors = {key: leaf.copy() for key, leaf in safetensors.numpy.load_file(file).items()}
    header = json.loads(file.read_bytes()[8 : 8 + struct.unpack("<Q", file.read_bytes()[:8])[0]])
    description = json.loads(header["__metadata__"]["elmo_jax"])
    change(description, tensors)
    description["fingerprint"] = fingerprint(tensors)
    text = json.dumps(description)
    save(file, tensors, text)
    with pytest.raises(UserError, match=message) as caught:
        open_bilm(file)
    assert str(file) in str(caught.value)


def save(file: Path, tensors: dict[str, np.ndarray], text: str) -> None:
    digest = hashlib.sha256(text.encode()).hexdigest()
    safetensors.numpy.save_file(tensors, file, {"elmo_jax": text, "sha256": digest})


def test_a_description_that_is_not_json(file: Path) -> None:
    save(file, safetensors.numpy.load_file(file), '{"layout": ')
    with pytest.raises(UserError, match="not a biLM of elmo_jax, or a damaged one"):
        open_bilm(file)
