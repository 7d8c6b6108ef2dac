"""One, two and four processes train the same biLM; together they stop, fail, are lost, and continue."""

import dataclasses
import json
import re
import shutil
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from etils import epath

from elmo_jax.checkpoints.layout import flatten
from elmo_jax.checkpoints.open import open_bilm
from elmo_jax.cli.main import main
from elmo_jax.config import Config, DataConfig
from elmo_jax.data.batches import TrainingBatch, TrainingBatches
from elmo_jax.errors import TRY_AGAIN, UserError
from elmo_jax.runs import folder as workdir
from tests.distributed.pods import (
    HEARTBEAT_SECONDS,
    STEPS,
    Commands,
    Ended,
    ends,
    free_port,
    last_words,
    launch,
    said,
    start,
)
from tests.end_to_end.commands import checkpoint_steps, files, losses, records, saved_arrays
from tests.manual.chaos import chaos

EVERY_STEP = "--config.train.log_every=1"


def assert_same_training(run: Path, alone: Path, *, first: int = 1) -> None:
    """Within 1e-5: losses from step `first` on, all that the last checkpoint holds, and held-out perplexity."""
    actual, expected = losses(run), losses(alone)
    for step in range(first, STEPS + 1):
        np.testing.assert_allclose(actual[step], expected[step], rtol=0, atol=1e-5, err_msg=f"step {step}")
    arrays, wanted = saved_arrays(run, STEPS), saved_arrays(alone, STEPS)
    assert {path: (a.shape, a.dtype) for path, a in arrays.items()} == {
        path: (a.shape, a.dtype) for path, a in wanted.items()
    }
    for path in wanted:
        np.testing.assert_allclose(arrays[path], wanted[path], rtol=0, atol=1e-5, err_msg=path)
    results = [json.loads((folder / "result.json").read_text()) for folder in (run, alone)]
    for name, value in results[1]["heldout_perplexity"].items():
        assert results[0]["heldout_perplexity"][name] == pytest.approx(value, rel=1e-5)
    sources = [result["heldout_sources"] for result in results]
    assert sources[0].keys() == sources[1].keys() == {"early", "later"}
    for name, values in sources[1].items():
        assert sources[0][name].pop("after") == pytest.approx(values.pop("after"), rel=1e-5)
        assert sources[0][name].pop("before") == pytest.approx(values.pop("before"), rel=1e-5)
        assert sources[0][name] == values
    exported, expected = (flatten(open_bilm(folder).params) for folder in (run, alone))
    assert {key: leaf.shape for key, leaf in exported.items()} == {key: leaf.shape for key, leaf in expected.items()}


def test_processes_train_as_one(together: tuple[Path, list[Ended]], alone: Path) -> None:
    assert_same_training(together[0], alone)


def test_each_process_reads_its_own_rows(together: tuple[Path, list[Ended]], alone: Path) -> None:
    (in_all,) = records(alone)[-2]["processes/blocks_read"]
    run, ended = together
    read = records(run)[-2]["processes/blocks_read"]
    assert len(read) == len(ended) and sum(read) == in_all
    assert all(8 // len(ended) <= number < in_all for number in read)  # each of 8 rows has read a part of a block


def test_times_of_each_process(together: tuple[Path, list[Ended]]) -> None:
    run, ended = together
    trained = [record for record in records(run) if "train/loss/forward" in record]
    assert len(trained) == STEPS
    for record in trained:
        wait, work = record["processes/data_wait"], record["processes/host_seconds"]
        assert len(wait) == len(work) == len(ended)
        assert all(0 <= share < 1 for share in wait) and all(seconds > 0 for seconds in work)


def test_only_process_0_speaks(together: tuple[Path, list[Ended]]) -> None:
    first, *others = together[1]
    assert any("held-out perplexity after training" in line for line in said(first))
    assert [said(other) for other in others] == [[]] * len(others)


def test_sigterm_to_one_stops_all(stopped: tuple[Path, list[Ended]]) -> None:
    run, ended = stopped
    assert [e.status for e in ended] == [128 + signal.SIGTERM] * 2, [e.stderr for e in ended]
    step = checkpoint_steps(run)[-1]
    assert 8 < step < STEPS and saved_arrays(run, step)["step"] == step
    assert checkpoint_steps(run)[:-1], "none was saved by time"
    assert f"stopped by SIGTERM at step {step}, saved in {run}" in ended[0].stdout.splitlines()[-1]
    assert said(ended[1]) == []


@pytest.mark.parametrize(
    ("processes", "devices", "accumulate"), [(1, 2, 2), pytest.param(4, 1, 1, marks=pytest.mark.slow)]
)
def test_resumes_with_another_number(
    commands: Commands,
    stopped: tuple[Path, list[Ended]],
    alone: Path,
    tmp_path: Path,
    processes: int,
    devices: int,
    accumulate: int,
) -> None:
    """Two groups of rows on each of two devices are trained as the rows of four devices."""
    run = shutil.copytree(stopped[0], tmp_path / "run")
    first = checkpoint_steps(run)[-1] + 1
    before = [record for record in records(run) if record["step"] < first]
    launch(commands, run, processes, devices, EVERY_STEP, f"--config.train.accumulate={accumulate}")
    assert records(run)[: len(before)] == before
    assert_same_training(run, alone, first=first)


@pytest.mark.slow
@pytest.mark.parametrize("victims", [(1,), (1, 0)])
def test_kills_after_a_damaged_checkpoint(
    commands: Commands,
    two: tuple[Path, list[Ended]],
    stopped: tuple[Path, list[Ended]],
    tmp_path: Path,
    victims: tuple[int, ...],
) -> None:
    """Process 1 is killed, or then also process 0, which JAX does not survive: the end is that of a run left alone."""
    run = shutil.copytree(stopped[0], tmp_path / "run")
    *_, newest = checkpoint_steps(run)
    damaged = run / "checkpoints" / str(newest)
    largest = max((path for path in damaged.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    largest.write_bytes(bytes(largest.stat().st_size))
    kills = [([victim], step) for victim, step in zip(victims, (newest - 3, newest + 15), strict=False)]
    first, *_ = chaos(commands, run, two[0], kills)
    warnings = [[line for line in e.stderr.splitlines() if "damaged" in line] for e in first]
    assert len(warnings[0]) == 1 and str(damaged) in warnings[0][0] and warnings[1] == []


ASKS = """
import jax
get_config_ = get_config
def get_config():
    config = get_config_()
    config.train.batch_size = 4 * jax.device_count()
    config.train.steps = 4 + jax.process_count()
    return config
"""


@pytest.mark.slow
def test_an_experiment_file_sees_the_devices_of_all_processes(commands: Commands, tmp_path: Path) -> None:
    (commands.folder / "asks.py").write_text((commands.folder / "small.py").read_text() + ASKS)
    coordinator = f"127.0.0.1:{free_port()}"
    ended = ends(
        [
            commands.start(
                *("pretrain", "--config", "asks.py", "--workdir", tmp_path / "run", "--heartbeat", HEARTBEAT_SECONDS),
                *("--coordinator", coordinator, "--processes", "2", "--process", str(process)),
            )
            for process in range(2)
        ]
    )
    assert [e.status for e in ended] == [0, 0], [e.stderr for e in ended]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 6
    train = json.loads((tmp_path / "run" / "config.json").read_text())["config"]["train"]
    assert train["batch_size"] == 8


def slow_export(*arguments: str) -> int:
    """The command; process 0 takes longer for its export than the other one waits by JAX's own settings."""
    save, initialize_ = safetensors.numpy.save, jax.distributed.initialize

    def slow(*values: Any) -> bytes:
        time.sleep(8)
        return save(*values)

    def impatient(**options: Any) -> None:
        assert options["shutdown_timeout_seconds"] >= 3600
        initialize_(**options)

    safetensors.numpy.save, jax.distributed.initialize = slow, impatient
    return main(arguments)


@pytest.mark.slow
def test_an_export_that_takes_long(commands: Commands, tmp_path: Path) -> None:
    """Process 1 waits for it before `pretrain` returns, and may then read it."""
    run = tmp_path / "run"
    ended = ends(start(commands, run, 2, 1, "--config.train.steps=6", function=f"{__name__}:slow_export"))
    assert [e.status for e in ended] == [0, 0], [e.stderr for e in ended]
    assert (run / "result.json").exists()


@pytest.mark.slow
def test_each_process_traces_its_steps(commands: Commands, tmp_path: Path) -> None:
    ended = ends(start(commands, tmp_path / "run", 2, 2, "--config.train.profile=(4,2)"))
    assert [e.status for e in ended] == [0, 0], [e.stderr for e in ended]
    for index in range(2):
        assert len(list((tmp_path / "run" / "profile" / f"process_{index}").rglob("*.xplane.pb"))) == 1


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.corpus=nowhere", "nowhere: not a prepared corpus"),
        ("train.unroll_steps=0", "config.train.unroll_steps: expected"),
    ],
)
def test_mistake_of_one_ends_all(commands: Commands, tmp_path: Path, setting: str, message: str) -> None:
    """A process that has no corpus, or another file of settings: the others cannot know, and would wait."""
    launched = start(commands, tmp_path / "run", 2, 1, only={1: [f"--config.{setting}"]})
    first, second = ends(launched)
    assert (first.status, second.status) == (2, 2)
    host = socket.gethostname()
    assert last_words(second).startswith(f"elmo-jax: process 1 on {host}: {message}")
    assert last_words(first) == f"elmo-jax: process 0 on {host}: process 1 has found a mistake; its own log says which"
    assert "Traceback" not in first.stderr + second.stderr


@pytest.mark.slow
def test_a_model_that_one_process_does_not_find(commands: Commands, two: tuple[Path, list[Ended]]) -> None:
    coordinator = f"127.0.0.1:{free_port()}"
    (two[0].parent / "newest").mkdir()  # a run without export, whose newest checkpoint is looked for
    shutil.copytree(two[0] / "checkpoints", two[0].parent / "newest" / "checkpoints")
    shutil.copy(two[0] / "config.json", two[0].parent / "newest")
    launched = [
        commands.start(
            *("finetune", "--from", model, "--data", "corpus", "--workdir", "tuned", "--heartbeat", HEARTBEAT_SECONDS),
            *("--coordinator", coordinator, "--processes", "2", "--process", str(process)),
        )
        for process, model in enumerate(("newest", "nowhere"))
    ]
    first, second = ends(launched)
    assert [first.status, second.status] == [2, 2]
    assert "process 1 has found a mistake; its own log says which" in last_words(first)
    assert "nowhere: no such file or folder" in last_words(second)
    assert not (commands.folder / "tuned").exists()


def test_damaged_metrics(commands: Commands, two: tuple[Path, list[Ended]]) -> None:
    """Process 0 alone reads them."""
    run = Path(shutil.copytree(two[0], commands.folder / "damaged"))
    (run / "result.json").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([lines[0], "{]\n", *lines[1:]]))
    before = files(run / "checkpoints")
    first, second = ends(start(commands, run, 2, 2, EVERY_STEP))
    assert [first.status, second.status] == [2, 2]
    assert "metrics.jsonl" in last_words(first) and "line 2" in last_words(first)
    assert "process 0 has found a mistake" in last_words(second)
    assert files(run / "checkpoints") == before


def blocked(*arguments: str) -> int:
    """The command, in whose process 1 the text of the fourth step never comes."""
    make = TrainingBatches.__next__

    def wait_forever(batches: TrainingBatches) -> TrainingBatch:
        if batches._step == 3 and jax.process_index() == 1:
            threading.Event().wait()
        return make(batches)

    TrainingBatches.__next__ = wait_forever
    return main(arguments)


@pytest.mark.slow
def test_processes_that_hang_end_and_leave_their_stacks(commands: Commands, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = ends(start(commands, run, 2, 2, "--config.train.watchdog=0.1", function=f"{__name__}:blocked"))
    assert [e.status for e in ended] == [TRY_AGAIN] * 2, [e.stderr for e in ended]
    for index, (phase, position) in enumerate((("steps", "_train"), ("waiting for data", "wait_forever"))):
        stacks = (run / "stacks" / f"process_{index}_{socket.gethostname()}.txt").read_text()
        assert stacks.startswith(f"{phase}: no progress for 0.1") and position in stacks
    printed = [last_words(e) for e in ended]  # one of the two may notice first that the other is gone
    assert any(
        re.search(rf"no progress for 0.1\d* minutes; its stacks are in {run}/stacks/process_", t) for t in printed
    )


def test_settings_of_one_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process other than 0 waits for the run, and refuses settings or a folder other than those of process 0."""
    run, config, metadata = epath.Path(tmp_path), Config(), {"corpus_fingerprint": "a"}
    with monkeypatch.context() as impatient:
        impatient.setattr(workdir, "PATIENCE_SECONDS", 0)
        with pytest.raises(UserError, match="this host does not see it; every host needs the same --workdir"):
            workdir._follow(run, config, metadata)
    with monkeypatch.context() as seen_later:
        seen_later.setattr(workdir.time, "sleep", lambda seconds: workdir.open_workdir(run, config, metadata, ()))
        workdir._follow(run, config, metadata)
    monkeypatch.setattr(workdir, "PATIENCE_SECONDS", 0)
    workdir._follow(run, dataclasses.replace(config, data=DataConfig("a copy here")), metadata)
    other = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=7))
    with pytest.raises(UserError, match="process 0 was started with: train.steps was 0 and is now 7"):
        workdir._follow(run, other, metadata)
