"""Tests what fine-tuning refuses before a run exists; the command itself is tested in end_to_end/."""

import json
from types import SimpleNamespace

import jax
import pytest
from etils import epath

from elmo_jax.errors import UserError
from elmo_jax.finetuning.finetune import ORIGINAL, Text, check_original


@pytest.mark.parametrize(("folder", "processes"), [("gs://bucket/run/corpus", 1), ("run/corpus", 2)])
def test_text_is_not_prepared_into_a_bucket_or_by_many_processes(monkeypatch, tmp_path, folder, processes):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    (tmp_path / "text.txt").write_text("a house\n" * 200)
    with pytest.raises(UserError, match="prepare it first") as error:
        Text(["text.txt"]).prepare(epath.Path(folder))
    assert "--data CORPUS" in str(error.value) and "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_what_is_forgotten_is_measured_on_one_text(tmp_path):
    """A second launch with another `--original` would compare two perplexities of different texts."""
    workdir = epath.Path(tmp_path)
    one, two = (SimpleNamespace(fingerprint=letter * 64, path=f"corpus_{letter}") for letter in "ab")
    check_original(workdir, one)  # no run yet
    for was, same, others in (("a" * 64, one, (two, "it was deleted")), (None, "it was deleted", (one,))):
        (tmp_path / "config.json").write_text(json.dumps({"config": {}, "facts": {ORIGINAL: was}}))
        check_original(workdir, same)
        for other in others:
            with pytest.raises(UserError, match="--original: .* measures what is forgotten on .*, and now") as error:
                check_original(workdir, other)
            assert "\n" not in str(error.value)
    (tmp_path / "config.json").write_text(json.dumps({"config": {}, "facts": {}}))  # of an older version
    check_original(workdir, two)
