"""Interrupts every command at random moments, and checks that it ends within a second, with 130 and one line.

Every command first runs to its end, which takes its time. Then each is interrupted in turn between the moment at which
Python has started and that time, half of the times as by a terminal, which sends SIGINT to its child processes too.
`pretrain`, `finetune` and `task train` may instead finish their step, save it and say so. At the end every command is
run again, to its end, over what the interrupts have left.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from elmo_jax.cli.main import _parser

STARTED = 0.15  # seconds after which Python itself has started, on a machine that does nothing else
SETTINGS = """
from elmo_jax.config import Config
from elmo_jax.settings import to_dict
from ml_collections import ConfigDict

def get_config() -> ConfigDict:
    return ConfigDict(to_dict(Config())).lock()
"""
SMALL = (
    "--config.model.char_cnn.filters=((1,8),(2,8))",
    "--config.model.lstm.cells=16",
    "--config.model.lstm.projection=8",
    "--config.train.negatives=4",
    "--config.train.batch_size=4",
    "--config.train.epochs=0",
)
TASK = """
from elmo_jax.tasks.registry import default_config

def get_config():
    config = default_config("pos")
    config.bilm, config.data.train, config.data.dev = "english", "words.conllu", "words.conllu"
    config.word_vectors.dim, config.seeds = 8, (0,)
    return config
"""


def commands(steps: int) -> dict[str, list[str]]:
    """Returns the arguments of every command; those that train make so many steps."""
    pretrain = ["--config", "settings.py", "--config.data.corpus=corpus", *SMALL]
    return {
        "prepare": ["prepare", "text.txt", "--out", "new", "--workers", "2", "--min-count", "1"],
        "pretrain": ["pretrain", "--workdir", "run", *pretrain, f"--config.train.steps={steps}"],
        "finetune": [
            "finetune", "--from", "base", "--data", "text.txt", "--workdir", "tuned", f"--config.train.steps={steps}",
            "--config.train.epochs=0",
        ],
        "evaluate": ["evaluate", "base", "--data", "text.txt", "--json", "evaluation.json"],
        "export": ["export", "base", "--out", "exported"],
        "export of weights": ["export", "weights.hdf5", "--options", "options.json", "--out", "imported"],
        "export-hdf5": ["export-hdf5", "english", "options.json", "weights.hdf5"],
        "embed": ["embed", "english", "text.txt", "vectors.hdf5"],
        "neighbours": ["neighbours", "english", "text.txt", "--word", "to"],
        "task train": [
            "task", "train", "--config", "task.py", "--workdir", "task", f"--config.train.epochs={max(1, steps // 20)}",
        ],
        "task evaluate": ["task", "evaluate", "tagger", "--data", "words.conllu"],
        "task predict": ["task", "predict", "tagger", "--input", "text.txt", "--format", "lines"],
        "demo": ["demo", "english", "--port", "47860"],
        "settings": ["settings", "settings.py"],
        "compile": ["compile", "--topology", "cpu:2", *pretrain],
    }  # fmt: skip


SAVES = ("pretrain", "finetune", "task train")


def write_inputs(folder: Path) -> None:
    """Writes the text, the tagged words and the experiments that the commands read."""
    chance = random.Random(0)
    words = "the of and to in a that it is was he for on are with as his they be at".split()
    lines = [[*chance.choices(words, k=chance.randint(3, 30)), "."] for _ in range(3000)]
    (folder / "text.txt").write_text("".join(" ".join(line) + "\n" for line in lines))
    tagged = (
        "".join(f"{n}\t{w}\t{w}\t{w[0]}\t_\t_\t0\t_\t_\t_\n" for n, w in enumerate(line, 1)) for line in lines[:50]
    )
    (folder / "words.conllu").write_text("\n".join(tagged) + "\n")
    (folder / "settings.py").write_text(SETTINGS)
    (folder / "task.py").write_text(TASK)


class Folder:
    """A folder in which commands are run."""

    def __init__(self, path: Path) -> None:
        """Makes the inputs of all commands; `path` is the folder."""
        self.path = path
        (path / "tmp").mkdir()
        root = str(Path(__file__).parents[2])
        self._environment = os.environ | {"PYTHONPATH": root, "TMPDIR": str(path / "tmp"), "JAX_PLATFORMS": "cpu"}
        self._environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        write_inputs(path)
        known = commands(20)
        self.finish(["prepare", "text.txt", "--out", "corpus", "--min-count", "1"])
        self.finish(known["export-hdf5"])
        self.finish([("base" if word == "run" else word) for word in known["pretrain"]])
        self.finish(
            [("tagger" if word == "task" and position else word) for position, word in enumerate(known["task train"])]
        )

    def start(self, arguments: list[str]) -> subprocess.Popen[str]:
        """Starts a command in its own process group."""
        return subprocess.Popen(
            [sys.executable, "-m", "elmo_jax", *arguments],
            cwd=self.path,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def finish(self, arguments: list[str]) -> float:
        """Runs a command to its end, or until it serves; returns the seconds that it took."""
        began = time.monotonic()
        process = self.start(arguments)
        serves = arguments[0] == "demo"
        if serves:  # until it is interrupted
            assert process.stdout is not None and process.stdout.readline().startswith("open http://")
            time.sleep(1)
            process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=600)
        assert process.returncode == (130 if serves else 0), (arguments, process.returncode, output, errors)
        return time.monotonic() - began

    def interrupt(self, name: str, arguments: list[str], after: float, group: bool, limit: float) -> str:
        """Interrupts a command; returns how it ended, which begins with FAULT if it is not as it should be."""
        process = self.start(arguments)
        time.sleep(after)
        if process.poll() is not None:
            process.communicate()
            return "had ended before"
        os.killpg(process.pid, signal.SIGINT) if group else process.send_signal(signal.SIGINT)
        began = time.monotonic()
        try:
            output, errors = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"FAULT: {name} went on for a minute after an interrupt at {after:.2f} s"
        seconds = time.monotonic() - began
        lines = [line for line in errors.splitlines() if line.startswith("elmo-jax: interrupted")]
        if name in SAVES and process.returncode == 130 and "stopped by SIGINT" in output and "Traceback" not in errors:
            return "stopped and saved"
        if process.returncode == 0 and seconds < limit and "Traceback" not in errors and not lines:
            return "was complete"
        if process.returncode == 130 and seconds < limit and len(lines) == 1 and errors.endswith(f"{lines[0]}\n"):
            if "Traceback" not in errors:
                return "interrupted"
        return f"FAULT: {process.returncode} after {seconds:.2f} s\n{output[-500:]}\n{errors[-2000:]}"


def main() -> int:
    """Interrupts as often as is asked; returns 1 if any command did not end as it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("interrupts", type=int, nargs="?", default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=1.0, help="seconds within which a command must end")
    options = parser.parse_args()
    chance, ends = random.Random(options.seed), Counter[str]()
    known = set(_parser()._subparsers._group_actions[0].choices)  # type: ignore[union-attr,arg-type]
    assert known == {name.split()[0] for name in commands(1)}, "every command is to be interrupted"
    with tempfile.TemporaryDirectory(prefix="elmo-jax-interrupts-") as temporary:
        folder = Folder(Path(temporary))
        seconds = {name: folder.finish(arguments) for name, arguments in commands(200).items()}
        for number in range(options.interrupts):
            name = list(seconds)[number % len(seconds)]
            after, ended = chance.uniform(min(STARTED, seconds[name] / 2), seconds[name]), ""
            while ended in ("", "had ended before"):  # the machine may be faster than when the time was taken
                for path in ("run", "tuned", "task", "vectors.hdf5", "exported", "imported", "new"):
                    subprocess.run(["rm", "-rf", path], cwd=folder.path, check=True)
                ended = folder.interrupt(name, commands(200)[name], after, bool(number % 2), options.limit)
                after *= 0.9 if ended == "had ended before" else 1
            print(
                f"{number + 1}/{options.interrupts} {name}, {after:.2f} of {seconds[name]:.2f} s: {ended}", flush=True
            )
            ends[ended.partition(":")[0]] += 1
            left = [path.name for path in (folder.path / "tmp").iterdir()]
            if left:
                print(f"left in the folder for temporary files: {left}")
                ends["FAULT"] += 1
        for arguments in commands(200).values():
            folder.finish(arguments)
    print(dict(ends))
    return int(ends["FAULT"] > 0)


if __name__ == "__main__":
    sys.exit(main())
