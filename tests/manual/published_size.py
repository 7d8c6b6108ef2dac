"""Takes a biLM of the published size from text to fine-tuning, and prints the time and the memory of every command.

The text is random: each of the 793,471 words once, and then words with a Zipf distribution. The run is killed with
SIGKILL after a checkpoint and resumed. This takes about half an hour on 2 cores, 24 GB of memory and 40 GB of disk.

    python -m tests.manual.published_size FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
WORDS = 793_471 - 3  # in the vocabulary file, <S>, </S> and <UNK> are the first three
SENTENCE = 20


def write_text(path: Path, words: int, seed: int, each_once: bool) -> None:
    """Writes lines of random words; `each_once` begins with one occurrence of each."""
    drawn = (np.random.default_rng(seed).zipf(1.1, words) - 1) % WORDS
    ids = np.concatenate([np.arange(WORDS), drawn]) if each_once else drawn
    with path.open("w") as file:
        for start in range(0, len(ids), SENTENCE):
            file.write(" ".join(map(encoded, ids[start : start + SENTENCE].tolist())) + " .\n")


def encoded(number: int) -> str:
    """Returns the word of a number; no two have the same."""
    word = ""
    while number >= 0:
        word, number = "etaoinshrdlucmfwypvbgkjqxz"[number % 26] + word, number // 26 - 1
    return word


def run(folder: Path, name: str, *arguments: str, kill_at: str = "") -> dict[str, object]:
    """Runs a command, and kills it when it has printed `kill_at`, if given; returns its time and its largest memory."""
    began = time.monotonic()
    with (folder / f"{name.replace(' ', '_')}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "elmo_jax", *arguments],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        if kill_at:
            threading.Thread(target=_kill, args=(process, Path(log.name), kill_at, folder), daemon=True).start()
        _, status, usage = os.wait4(process.pid, 0)
    row = {
        "command": name,
        "seconds": round(time.monotonic() - began, 1),
        "memory_gb": round(usage.ru_maxrss / 1e6, 2),
        "status": os.waitstatus_to_exitcode(status),
    }
    print(json.dumps(row), flush=True)
    assert row["status"] == (-signal.SIGKILL if kill_at else 0), (folder / f"{name}.log").read_text()[-2000:]
    return row


def _kill(process: subprocess.Popen[bytes], log: Path, text: str, folder: Path) -> None:
    while text not in log.read_text(errors="replace") and not list(folder.glob(text)):
        time.sleep(0.5)
    process.kill()


def main() -> int:
    """Runs all commands; returns 0 if each ended as it should."""
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "text.txt", 3_000_000, 0, each_once=True)
    write_text(folder / "domain.txt", 200_000, 1, each_once=False)
    (folder / "sentences.txt").write_text("".join((folder / "domain.txt").read_text().splitlines(True)[:200]))
    prepare = ("--format", "lines", "--vocab-size", str(WORDS + 3), "--heldout-fraction", "0.002")
    pretrain = ("--config", str(ROOT / "experiments" / "pretrain_1b_word.py"), "--workdir", "run")
    settings = ("data.corpus=corpus", "train.batch_size=128", "train.epochs=0", "train.steps=6", "checkpoint.every=2")
    tune = ("train.batch_size=128", "train.epochs=0", "train.steps=2", "finetune.vocabulary=keep")
    rows = [run(folder, "prepare", "prepare", "text.txt", "--out", "corpus", *prepare)]
    launch = ("pretrain", *pretrain, *(f"--config.{setting}" for setting in settings))
    rows.append(run(folder, "pretrain, killed after a checkpoint", *launch, kill_at="run/checkpoints/2"))
    rows.append(run(folder, "pretrain, resumed to step 6", *launch))
    rows.append(run(folder, "evaluate 4,200 words", "evaluate", "run", "--data", "sentences.txt"))
    rows.append(run(folder, "export", "export", "run", "--out", "exported"))
    rows.append(run(folder, "embed 200 lines", "embed", "run", "sentences.txt", "vectors.hdf5"))
    arguments = ("finetune", "--from", "run", "--data", "domain.txt", "--workdir", "tuned")
    rows.append(run(folder, "finetune, 2 steps", *arguments, *(f"--config.{setting}" for setting in tune)))
    print("\n| command | seconds | memory, GB |\n|---|---|---|")
    for row in rows:
        print(f"| {row['command']} | {row['seconds']:,.0f} | {row['memory_gb']} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
