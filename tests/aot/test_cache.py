"""Compiled programs are kept by `elmo-jax compile`, so that the same step is not compiled twice."""

import gzip
import json
import os
import re

import jax
import pytest

from elmo_jax.aot import cache
from elmo_jax.cli.main import main
from elmo_jax.runs import progress


@pytest.fixture
def compilations(monkeypatch):
    """Returns a list to which every compilation of a step adds an item."""
    made, compile_really = [], jax.stages.Lowered.compile

    def counted(self, *arguments, **named):
        made.append(1)
        return compile_really(self, *arguments, **named)

    monkeypatch.setattr(jax.stages.Lowered, "compile", counted)
    return made


@pytest.fixture
def compiled(small, tmp_path, capsys):
    """Returns a function that runs the command, and returns its figures and what it printed on stdout and stderr."""

    def run(*more, status=0, topology="cpu:4"):
        out = tmp_path / "figures.json"
        command = ["compile", "--config", str(small), "--topology", topology, "--vocab-size", "500"]
        assert main([*command, "--json", str(out), *more]) == status
        return json.loads(out.read_text()), *capsys.readouterr()

    return run


def test_the_second_time_nothing_is_compiled(compiled, compilations, caches):
    first, shown, _ = compiled()
    assert len(compilations) == 1 and len(list(caches.iterdir())) == 1
    assert not first["compiled_before"] and re.search(r"\(compiled in \d+ s\)", shown)
    second, shown, _ = compiled()
    assert len(compilations) == 1
    assert second.pop("compiled_before") and re.search(r"\(compiled in \d+ s by an earlier command\)", shown)
    first.pop("compiled_before")
    assert second == first


def test_another_step_is_compiled(compiled, compilations, monkeypatch):
    compiled()
    for number, settings in enumerate((["--config.train.batch_size=32"], ["--word-types", "501"]), 2):
        compiled(*settings)
        assert len(compilations) == number
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"] + " --xla_cpu_enable_fast_math=false")
    compiled()
    assert len(compilations) == 4
    monkeypatch.setattr(cache, "_version", lambda package: "2.0")
    compiled()
    assert len(compilations) == 5


def test_without_the_cache(compiled, compilations, caches):
    compiled("--no-cache")
    assert len(compilations) == 1 and not caches.exists()
    compiled()
    compiled("--no-cache")
    assert len(compilations) == 3


def test_a_refusal_is_kept_too(compiled, compilations):
    """No v5e holds the rows of this softmax."""
    large = ["--vocab-size", "900000000"]
    first, _, _ = compiled(*large, status=1, topology="v5e:2x2")
    made = len(compilations)
    assert made >= 1
    second, _, _ = compiled(*large, status=1, topology="v5e:2x2")
    assert second == first and len(compilations) == made


def test_a_damaged_file_is_made_again(compiled, compilations, caches):
    first, _, _ = compiled()
    (path,) = caches.iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    second, _, errors = compiled()
    assert len(compilations) == 2 and "cannot be read" in errors
    assert not second["compiled_before"] and second["memory"] == first["memory"]
    assert cache.read(caches, path.name.removesuffix(".json.gz")) is not None


def test_every_damage_is_seen(tmp_path, capsys):
    result = cache.Result("ENTRY", {"temp": 3}, 1.0)
    cache.write(tmp_path, "whole", result)
    content = (tmp_path / "whole.json.gz").read_bytes()
    assert cache.read(tmp_path, "whole") == result
    damaged = [content[:end] for end in range(len(content))]
    # The bytes from 4 to 9 of a gzip file are its time and its system, which have no effect.
    places = [place for place in range(len(content)) if place not in range(4, 10)]
    damaged += [content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :] for place in places]
    damaged.append(gzip.compress(b'{"text": "ENTRY"}'))
    for number, changed in enumerate(damaged):
        (tmp_path / "damaged.json.gz").write_bytes(changed)
        found = cache.read(tmp_path, "damaged")
        assert found is None or found == result, number
    assert capsys.readouterr().err.count("cannot be read") >= len(damaged) - 8  # a flag of the header may not matter


def test_a_folder_that_cannot_be_written_does_not_end_the_command(compiled, tmp_path):
    (tmp_path / "caches").write_text("a file is in the way")
    figures, _, errors = compiled()
    assert figures["fits"] and errors.count("cannot be kept for the next time") == 1


def test_only_the_newest_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "KEPT", 3)
    for number in range(5):
        cache.write(tmp_path, str(number), cache.Result("text", {}, 1.0))
        os.utime(tmp_path / f"{number}.json.gz", (number, number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.json.gz", "3.json.gz", "4.json.gz"]
    assert cache.read(tmp_path, "4") == cache.Result("text", {}, 1.0) and cache.read(tmp_path, "0") is None


def test_a_long_compilation_says_what_it_is_doing(compiled, monkeypatch):
    """Without a terminal there is a line every 30 seconds, here every hundredth of one."""
    monkeypatch.setattr(progress, "_SECONDS_OF_A_LINE", 0.01)
    _, _, errors = compiled()
    lines = errors.splitlines()
    assert re.fullmatch(r"tracing the step … 0:0\d", lines[0])
    assert re.fullmatch(r"compiling it for cpu:4, which takes minutes for a large model … \d:\d\d", lines[-1])
