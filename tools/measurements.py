"""The measurements of `tools.accelerator` that are more than a command, each in a separate process.

    python -m tools.measurements first_update task train --config FILE --workdir DIR …
    python -m tools.measurements lstm --corpus DIR --size original --rows 384
    python -m tools.measurements embed --corpus DIR --size original --layers average --dtype float16
    python -m tools.measurements bits --folder DIR pretrain --config FILE …

Each prints lines of JSON, as soon as it has measured something; `numbers` joins them.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import inspect
import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

BEGAN = time.perf_counter()  # before JAX is imported

# What is replaced in the source of `elmo_jax.model.lstm`; the candidates exist nowhere else.
CANDIDATES: dict[str, tuple[tuple[str, str], ...]] = {
    "as it is": (),
    "the sum for the bias after the loop": (
        ("before, d_bias + d_z.sum(0)), written", "before, d_bias), written"),
        ('d_params = {"kernel"', 'd_params = {"bias": d_z.astype(jnp.float32).sum((0, 1)), "kernel"'),
        ('{**d_params, "bias": d_bias}', "d_params"),
    ),
    "unroll 2": (("reverse=reverse)[0]", "reverse=reverse, unroll=2)[0]"),),
    "unroll 4": (("reverse=reverse)[0]", "reverse=reverse, unroll=4)[0]"),),
    "z in bfloat16": (
        ("_written(settings, *gates), new.cell)", "z.astype(jnp.bfloat16), new.cell)"),
        (
            "i, j, f, o = (gate.astype(jnp.float32) for gate in _read(gates))",
            "i, j, f, o = _cell(gates.astype(jnp.float32), before, settings.cell_clip, -1)[0]",
        ),
    ),
}


def numbers(log: str) -> dict[str, Any]:
    """Returns what a measurement has printed, also if it was killed before its end."""
    values: dict[str, Any] = {}
    for line in log.splitlines():
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            values |= value if isinstance(value, dict) else {}
    return values


def tell(**values: Any) -> None:
    """Prints a line of JSON."""
    print(json.dumps(values), flush=True)


@contextlib.contextmanager
def counted_programs() -> Iterator[dict[str, int]]:
    """Counts the programs that are built, and those that are read from the cache."""
    import jax

    counts = {"built": 0, "from_cache": 0}

    def end(event: str, seconds: float, **_: Any) -> None:
        counts["built"] += event == "/jax/core/compile/backend_compile_duration"

    def hit(event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            counts["from_cache"] += 1
            counts["built"] -= 1

    jax.monitoring.register_event_duration_secs_listener(end)
    jax.monitoring.register_event_listener(hit)
    yield counts


def first_update(arguments: list[str]) -> int:
    """Trains a task; tells when its first update ended, and which programs there were by then and in all."""
    from elmo_jax.environment import cache_folder, keep_compiled_programs

    keep_compiled_programs(cache_folder())  # as the command does, before JAX is imported
    import jax

    from elmo_jax.cli.main import main
    from elmo_jax.tasks.core.program import Programs, TaskState

    call, updates = Programs.__call__, 0

    def timed(self: Programs, *given: Any) -> Any:
        nonlocal updates
        result = call(self, *given)
        if isinstance(result, tuple) and isinstance(result[0], TaskState):
            updates += 1
            if updates == 1:
                jax.block_until_ready(result)
                tell(first_update_seconds=time.perf_counter() - BEGAN, until_first_update=counts)
        return result

    with counted_programs() as counts, mock.patch.object(Programs, "__call__", timed):
        status = main(arguments)
    tell(seconds=time.perf_counter() - BEGAN, updates=updates, **counts)
    return status


def candidate(name: str) -> Any:
    """Returns a form of `elmo_jax.model.lstm._run`."""
    import jax

    from elmo_jax.model import lstm

    functions = (lstm._scan, lstm._run_forward, lstm._run_backward)
    source = "\n\n".join(map(inspect.getsource, functions))
    for old, new in CANDIDATES[name]:
        if source.count(old) != 1:
            raise ValueError(f"{name}: elmo_jax/model/lstm.py has {old!r} {source.count(old)} times; adapt CANDIDATES")
        source = source.replace(old, new)
    namespace = dict(vars(lstm))
    exec(source, namespace)
    form = SimpleNamespace(**namespace)
    run = jax.custom_vjp(lambda *arguments: form._run_forward(*arguments)[0], nondiff_argnums=(5,))
    run.defvjp(form._run_forward, form._run_backward)
    return run


def lstm_speeds(options: argparse.Namespace) -> None:
    """Tells the tokens/s of training with each candidate."""
    from elmo_jax.data.corpus import Corpus
    from elmo_jax.distributed.mesh import make_mesh
    from elmo_jax.model import lstm
    from elmo_jax.model.precision import Precision
    from performance.machine import Machine
    from performance.sizes import SIZES
    from performance.train import Training

    machine = Machine(options.seconds, options.rows, None, Precision.BFLOAT16)
    for name in CANDIDATES:
        began = time.perf_counter()
        try:
            with mock.patch.object(lstm, "_run", candidate(name)):
                arguments = (SIZES[options.size], Corpus.open(options.corpus), make_mesh(), options.rows)
                training = Training(*arguments, Precision.BFLOAT16)
                ready = time.perf_counter() - began
                seconds, _ = training.timed(machine)
            speed = training.config.train.tokens_per_step / seconds
            tell(**{name: {"tokens_per_second": speed, "seconds_to_first_step": ready}})
            del training
        except Exception as error:  # such as too little memory, which another candidate may not lack
            tell(**{name: {"error": f"{type(error).__name__}: {str(error)[:300]}"}})
        gc.collect()


def embed_speed(options: argparse.Namespace) -> None:
    """Tells the words/s of `elmo-jax embed` in its second run, for which no program is built."""
    from elmo_jax.checkpoints.export import export_bilm
    from elmo_jax.cli.main import main
    from elmo_jax.data.corpus import Corpus
    from elmo_jax.files import temporary_folder
    from performance.infer import heldout_sentences, random_bilm
    from performance.machine import Machine
    from performance.sizes import SIZES

    sentences = heldout_sentences(Corpus.open(options.corpus))[: options.sentences]
    bilm = random_bilm(SIZES[options.size], Machine(1.0, None, None))
    with temporary_folder() as folder:
        text = folder / "sentences.txt"
        text.write_text("".join(" ".join(words) + "\n" for words in sentences), encoding="utf-8")
        export_bilm(folder / "bilm", bilm.config, bilm.params)
        form = ["--format", "npy", "--layers", options.layers, "--dtype", options.dtype]
        with counted_programs() as counts:
            for number in ("first", "second"):
                began = time.perf_counter()
                status = main(["embed", str(folder / "bilm"), str(text), str(folder / number), *form])
                if status:
                    raise SystemExit(status)
                words = sum(map(len, sentences))
                tell(**{f"words_per_second_of_{number}_run": words / (time.perf_counter() - began), **counts})


def bits(options: argparse.Namespace, command: list[str]) -> None:
    """Tells whether the parameters of a second run, and of a resumed one, are equal to those of the first, bit for bit.

    The resumed run is a copy of the first without its results and its last checkpoint.
    """
    import jax
    import numpy as np

    from elmo_jax.checkpoints.manager import Checkpoints
    from elmo_jax.cli.main import main

    def checkpoints(run: Path) -> Path:
        return next(path for path in (run / "seed_0" / "checkpoints", run / "checkpoints") if path.exists())

    def params_of(name: str) -> Any:
        run = options.folder / name
        if status := main([*command, "--workdir", str(run)]):
            raise SystemExit(status)
        return Checkpoints(checkpoints(run)).restore_params()

    first, last = params_of("first")
    others = {"second": lambda: params_of("second"), "resumed": lambda: params_of("resumed")}
    shutil.copytree(options.folder / "first", options.folder / "resumed")
    for result in (options.folder / "resumed").rglob("result.json"):
        result.unlink()
    shutil.rmtree(options.folder / "resumed" / "export", ignore_errors=True)
    shutil.rmtree(checkpoints(options.folder / "resumed") / str(last))
    for name, params in others.items():
        leaves, step = params()
        if step != last:
            raise ValueError(f"{name}: ended at step {step}, not {last}")
        differences = jax.tree.leaves(jax.tree.map(lambda a, b: float(np.abs(a - b).max()), first, leaves))
        equal = all(jax.tree.leaves(jax.tree.map(np.array_equal, first, leaves)))
        tell(**{f"{name}_is_equal": equal, f"largest_difference_of_{name}": max(differences)})


def main() -> int:
    """Runs one measurement."""
    if sys.argv[1] == "first_update":
        return first_update(sys.argv[2:])
    parser = argparse.ArgumentParser("python -m tools.measurements", description=__doc__)
    parser.add_argument("name", choices=("lstm", "embed", "bits"))
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--size", default="original")
    parser.add_argument("--rows", type=int, default=384)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--sentences", type=int, default=20_000)
    parser.add_argument("--layers", default="all")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--folder", type=Path)
    options, command = parser.parse_known_args()
    if options.name == "bits":
        bits(options, command)
    else:
        {"lstm": lstm_speeds, "embed": embed_speed}[options.name](options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
