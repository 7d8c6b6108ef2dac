"""Measures what needs an accelerator, in at most nine minutes, and writes all of it to one JSON file.

    python -m tools.accelerator --out DIR

runs the steps, the most important ones first, each in a separate process, and rewrites `DIR/accelerator.json` after
each. A step that fails leaves its last lines there, and the others continue; what `--limit` leaves no time for is "not
run". The trace is `DIR/profile.zip`; all other files are temporary. `--tiny` runs the same steps on the tiny biLM, in
2 to 9 minutes on 2 CPU cores. On an H200, the steps but
`make_pretrain` and `task` took 6 minutes; `task` was not over after 137 s.

Nothing is downloaded or installed. The text is that of the package `sotu`, so the softmax of the trainings has 21,644
words; in `speed` it has the paper's 793,471 rows. Packages that are missing are listed in the file. Next to JAX, Flax,
Optax and Orbax, a machine needs these, which can be unpacked to a folder in PYTHONPATH: array_record backports.zstd
dm-tree docstring-parser googleapis-common-protos grain immutabledict importlib_resources ml_collections portpicker
promise sacremoses sentencex simple-parsing sotu tensorboardX tensorflow-datasets tensorflow-metadata termcolor toml.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.environment import SOONER

ROOT = Path(__file__).parents[1]
STEP_SECONDS = 150.0  # after which a step is killed
LAST_LINES = 15  # of a step that failed
LOSSES = ("train/loss/forward", "train/loss/backward")
DEVICES = """\
import jax, json
found = jax.devices()
print(json.dumps({"devices": [d.device_kind for d in found], "memory": found[0].memory_stats()}))
"""
# `pretrain --processes 1` would connect to nothing, so this connects first. XLA may leave out exchanges with one
# device, so the lines that NCCL prints are counted.
CONNECTED = """\
import socket, sys, jax
with socket.create_server(("127.0.0.1", 0)) as free:
    address = "127.0.0.1:%d" % free.getsockname()[1]
jax.distributed.initialize(address, num_processes=1, process_id=0)
from elmo_jax.cli.main import main
from elmo_jax.distributed.collectives import meet
meet()
status = main(sys.argv[1:])
jax.distributed.shutdown()
sys.exit(status)
"""


@dataclasses.dataclass(frozen=True)
class Step:
    """One measurement."""

    arguments: Sequence[str | Path]  # those of Python
    numbers: Callable[[str], dict[str, Any]]  # returns what was measured, from the files and from what was printed
    before: Callable[[], None] = lambda: None  # writes what the command reads


def steps_of(work: Path, out: Path, tiny: bool) -> dict[str, Step]:
    """Returns the steps by name, the most important ones first; `work` receives their files, and `out` the trace."""
    size, experiment = ("tiny", "pretrain_sotu_tiny") if tiny else ("original", "pretrain_1b_word")
    number = 20 if tiny else 200
    corpus, tagged = work / "corpus", work / "tagged"
    limited = ("train.epochs=0", "train.log_every=5", "train.log_seconds=0", "evaluation.tokens=2000")

    def train(command: str, experiment: str, run: str, *settings: str) -> list[str | Path]:
        options = ["--config", f"experiments/{experiment}.py", "--workdir", work / run]
        return [*command.split(), *options, *(f"--config.{setting}" for setting in settings)]

    def pretrain(run: str, steps: int, precision: str = "bfloat16", *more: str) -> list[str | Path]:
        settings = (f"data.corpus={corpus}", f"train.steps={steps}", f"train.precision={precision}", *limited, *more)
        return train("pretrain", experiment, run, *settings)

    def part(name: str, *arguments: str) -> Step:
        file = work / f"{name}{''.join(arguments)}.json"
        options = ["--corpus", corpus, "--json", file, "--sizes", size, "--seconds", "0.1" if tiny else "15"]
        command = ["-m", "performance", "--parts", name, *options, *arguments]
        return Step(command, lambda _: dict(read_json(file)[f"{name}/{size}"]))

    cli = ["-m", "elmo_jax"]
    longer = pretrain("bfloat16", number + 10, "bfloat16", f"train.profile=({number + 4},3)")
    task = ["bilm=english", "seeds=(0,)", "train.num_buckets=3", f"train.epochs={1 if tiny else 3}"]
    task += [f"data.{split}={tagged / split}.conllu" for split in ("train", "dev", "test")]
    shorter = ["train.epochs=0", f"train.steps={number}"] if tiny else []
    of_make = train("pretrain", "pretrain_sotu_tiny", "make", f"data.corpus={corpus}", *shorter)
    return {
        "devices": Step(["-c", DEVICES], lambda log: dict(json.loads(re.findall("^{.*}$", log, re.MULTILINE)[-1]))),
        "corpus": Step(
            [*cli, "prepare", "sotu", "--out", corpus], lambda _: dict(read_json(corpus / "corpus.json")["lexicon"])
        ),
        "speed": part("train"),
        "bfloat16": Step([*cli, *pretrain("bfloat16", number)], lambda _: run_numbers(work / "bfloat16")),
        "float32": Step(
            [*cli, *pretrain("float32", number, "float32")],
            lambda _: run_numbers(work / "float32", compared_with=work / "bfloat16"),
        ),
        # makes the run in bfloat16 longer, and so resumes it
        "profile": Step([*cli, *longer], lambda _: profile_numbers(work / "bfloat16" / "profile", out)),
        "embed": part("embed"),
        "nccl": Step(
            ["-c", CONNECTED, *pretrain("nccl", 10), "--processes", "1"],
            lambda log: {"nccl_lines": log.count("NCCL INFO"), **run_numbers(work / "nccl")},
        ),
        "make_pretrain": Step([*cli, *of_make], lambda _: run_numbers(work / "make")),
        "speed_of_more_rows": part("train", "--rows", "128" if tiny else "4096"),
        "task": Step(
            [*cli, *train("task train", "task_pos", "task", *task)],
            lambda _: {"tags": "shapes of words", **read_json(work / "task" / "result.json")["seeds"][0]},
            lambda: write_tagged(tagged, 100 if tiny else 2000),
        ),
    }


def read_json(path: Path) -> Any:
    """Returns the content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def losses_of(run: Path) -> dict[int, list[float]]:
    """Returns the losses of both directions at each report, in nats per token, each the mean since the one before."""
    records = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return {record["step"]: [record[name] for name in LOSSES] for record in records if LOSSES[0] in record}


def run_numbers(run: Path, compared_with: Path | None = None) -> dict[str, Any]:
    """Returns the losses of a run, their relative differences from those of the run `compared_with`, and its result."""
    numbers: dict[str, Any] = {"losses": losses_of(run)}
    if compared_with is not None and (compared_with / "metrics.jsonl").exists():
        numbers |= differences(numbers["losses"], losses_of(compared_with))
    return numbers | (read_json(run / "result.json") if (run / "result.json").exists() else {})


def differences(losses: dict[int, list[float]], others: dict[int, list[float]]) -> dict[str, Any]:
    """Returns the largest and the final relative difference from `losses`, at the steps that both runs report."""
    common = sorted(losses.keys() & others.keys())
    found = [max(abs(b / a - 1) for a, b in zip(losses[step], others[step], strict=True)) for step in common]
    return {"compared_steps": common, "largest_difference": max(found), "final_difference": found[-1]} if found else {}


def profile_numbers(profile: Path, out: Path) -> dict[str, Any]:
    """Copies a trace to `profile.zip`; returns the milliseconds of the twenty operations that took longest in all."""
    from jax.profiler import ProfileData

    archive = Path(shutil.make_archive(str(out / "profile"), "zip", profile))
    took: Counter[str] = Counter()
    for path in profile.rglob("*.xplane.pb"):
        for line in (line for plane in ProfileData.from_file(str(path)).planes for line in plane.lines):
            if line.name.startswith(("Stream", "tf_XLA")):  # of a GPU, and the threads of a CPU
                for event in line.events:
                    took[event.name] += event.duration_ns
    return {"zip_bytes": archive.stat().st_size, "milliseconds": {n: t / 1e6 for n, t in took.most_common(20)}}


def write_tagged(folder: Path, number: int) -> None:
    """Writes CoNLL-U files with so many sentences each, whose tags are made up from the shapes of the words.

    No annotated text comes with the package. The accuracy shows that the tagger learns, and nothing else.
    """
    from elmo_jax.data.samples.sotu import sotu_paths

    folder.mkdir()
    text = " ".join(path.read_text(encoding="utf-8") for path in sotu_paths()[-20:])
    sentences = [re.findall(r"\w+|[^\w\s]", sentence)[:40] for sentence in re.split(r"(?<=[.?!])\s+", text)]
    for index, split in enumerate(("train", "dev", "test")):
        part = sentences[index * number : (index + 1) * number]
        rows = [
            [f"{n}\t{w}\t_\t{'LOWER' if w.islower() else 'OTHER'}" + "\t_" * 6 for n, w in enumerate(s, 1)]
            for s in part
        ]
        (folder / f"{split}.conllu").write_text("\n\n".join(map("\n".join, rows)) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """Returns the versions, the GPUs with their driver, and the packages that are missing, without starting JAX."""
    found = {re.sub(r"[-_.]+", "-", d.name).lower(): d.version for d in importlib.metadata.distributions()}
    needed = (ROOT / "setup.cfg").read_text(encoding="utf-8").partition("install_requires =\n")[2].partition("\n\n")[0]
    names = [*re.findall(r"^ +([\w.-]+)", needed, re.MULTILINE), "sotu"]
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    gpus = subprocess.run(query, capture_output=True, text=True, check=False).stdout if shutil.which(query[0]) else ""
    return {
        "gpus": gpus.splitlines(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: found[name] for name in sorted(found) if re.match("jax|flax$|nvidia-nccl", name)},
        "missing_packages": [name for name in names if re.sub(r"[-_.]+", "-", name).lower() not in found],
    }


def measured(step: Step, seconds: float, environment: dict[str, str]) -> dict[str, Any]:
    """Runs a step for at most so many seconds; returns its record, of which an error of any kind is a part."""
    command = [sys.executable, *map(str, step.arguments)]
    record: dict[str, Any] = {"command": shlex.join(command), "status": "not started"}
    began = time.monotonic()
    try:
        step.before()
        with tempfile.TemporaryFile() as file:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file, process_group=0)
            try:
                record["status"] = process.wait(seconds)
            except subprocess.TimeoutExpired:
                record["status"] = f"killed after {seconds:.0f} seconds"
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            file.seek(0)
            log = file.read().decode(errors="replace")
        if record["status"] != 0:
            record["last_lines"] = log.splitlines()[-LAST_LINES:]
        record["numbers"] = step.numbers(log)  # a step that failed may have measured some
    except Exception as error:
        record["error"] = f"{type(error).__name__}: {error}"
    return record | {"seconds": round(time.monotonic() - began, 1)}


def run_steps(steps: dict[str, Step], out: Path, limit: float, tiny: bool) -> dict[str, Any]:
    """Runs the steps until `limit` seconds are over; returns the content of `accelerator.json`."""
    began = time.monotonic()
    report = {"tiny": tiny, **machine(), "steps": {name: {"status": "not run"} for name in steps}}
    environment = {"XLA_FLAGS": SOONER if tiny else "", "TQDM_DISABLE": "1", "NCCL_DEBUG": "INFO"} | os.environ
    for name, step in steps.items():
        left = limit - (time.monotonic() - began)
        if left > 0:
            record = report["steps"][name] = measured(step, min(STEP_SECONDS, left), environment)
            print(f"{name}: status {record['status']}, {record['seconds']} s", flush=True)
        report["seconds"] = round(time.monotonic() - began, 1)
        part = out / "accelerator.json.part"
        part.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(out / "accelerator.json")
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the chosen steps; returns 0 if all of them ended well, and otherwise 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder of accelerator.json")
    parser.add_argument("--steps", metavar="NAME,NAME", help="run only these, in the usual order")
    parser.add_argument("--limit", type=float, default=540.0, metavar="SECONDS", help="of all steps (default: 540)")
    parser.add_argument("--tiny", action="store_true", help="the tiny biLM, to try the steps on CPUs")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="elmo-jax-") as work:
        steps = steps_of(Path(work), options.out, options.tiny)
        chosen = options.steps.split(",") if options.steps else list(steps)
        if unknown := [name for name in chosen if name not in steps]:
            parser.error(f"--steps: expected some of {', '.join(steps)}; got {', '.join(unknown)}")
        steps = {name: step for name, step in steps.items() if name in chosen}
        report = run_steps(steps, options.out, options.limit, options.tiny)
    return int(any(record["status"] != 0 or "error" in record for record in report["steps"].values()))


if __name__ == "__main__":
    sys.exit(main())
