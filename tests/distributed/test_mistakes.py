"""Tests mistakes that one of two processes finds: both end with status 2, and none waits for the other."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.distributed.pods import HEARTBEAT_SECONDS, Commands, Ended, ends, free_port, last_words, start
from tests.end_to_end.commands import files


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
    first, second = ends(start(commands, run, 2, 2, "--config.train.log_every=1"))
    assert [first.status, second.status] == [2, 2]
    assert "metrics.jsonl" in last_words(first) and "line 2" in last_words(first)
    assert "process 0 has found a mistake" in last_words(second)
    assert files(run / "checkpoints") == before
