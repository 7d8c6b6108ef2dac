"""The command `python -m performance`, the benchmark (`make bench`).

Each part is measured by `performance.parts` in a separate process, so that peak memory is per part. This module does
not import JAX, since this process must not occupy an accelerator that the parts need.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from elmo_jax.cli.values import Parser, local, number, output, whole
from elmo_jax.distributed.cpu import has_accelerator, multiplies_bfloat16
from elmo_jax.errors import UserError, exit_status
from elmo_jax.files import write_json

SIZES = ("tiny", "small", "original")
PARTS = ("train", "infer", "embed", "evaluate", "data", "start", "task")
IN_BFLOAT16 = ("train", "infer")  # what is measured in both precisions on processors with instructions for bfloat16
TASKS = ("pos",)  # what is measured in the part `task`, which has no sizes
HEADER = (
    f"{'part':<23} {'tokens/s':>10} {'GFLOP/s':>8} {'of product':>10} {'product':>8} {'tok/s per':>9} {'memory':>8}"
    f" {'compile':>8}\n"
    f"{'':<23} {'':>10} {'(model)':>8} {'':>10} {'GFLOP/s':>8} {'GFLOP/s':>9} {'GB':>8} {'s':>8}"
)


def main() -> int:
    parser = Parser(
        "python -m performance",
        description="Measures training, inference, the command embed with one and all devices, evaluation, the making"
        " of batches and the start of a training at the tiny, the small and the original size, and the training of a"
        " task model, on the devices of this machine.",
    )
    add = parser.add_argument
    add("--corpus", type=local, default=Path("data/sotu"), metavar="DIR", help="a corpus (default: %(default)s)")
    add("--sizes", nargs="+", choices=SIZES, default=SIZES, help="sizes of the biLM (default: all)")
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="parts to measure (default: all)")
    add("--json", type=output, metavar="FILE", help="write the metrics to FILE as JSON")
    add("--profile", type=local, metavar="DIR", help="write a trace of each part to DIR for TensorBoard")
    add("--seconds", type=number(0, 86_400), default=15.0, metavar="S", help="least time of training (default: 15)")
    add("--rows", type=whole(1, 65_536), metavar="N", help="rows per training batch (default: by size and device)")
    try:
        _run(parser.parse_args())
    except (UserError, KeyboardInterrupt) as error:
        print(f"performance: {error or 'interrupted'}", file=sys.stderr)
        return exit_status(error)
    return 0


def _run(options: argparse.Namespace) -> None:
    if not (options.corpus / "corpus.json").exists():
        raise UserError(
            f"{options.corpus}: not a prepared corpus; make one with: elmo-jax prepare sotu --out {options.corpus}"
        )
    # accelerators are measured in bfloat16 alone
    precisions = ("", "/bfloat16") if multiplies_bfloat16() and not has_accelerator() else ("",)
    sizes_of = {"start": [size for size in options.sizes if size == "tiny"], "task": TASKS}
    names = [
        f"{part}/{size}{precision}"
        for part in options.parts
        for size in sizes_of.get(part, options.sizes)
        for precision in (precisions if part in IN_BFLOAT16 else ("",))
    ]
    if not names:
        raise UserError("--parts: start is measured at the tiny size only; add tiny to --sizes")
    results: dict[str, Any] = {}
    for name in names:
        results[name] = measured(name, options)
        if len(results) == 1:
            print(header(results[name]))
        print(line(name, results[name]), flush=True)
        if options.json:  # written after each part, so that a later failure loses nothing
            write_json(options.json, results)


def measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    arguments = [name, "--corpus", options.corpus, "--seconds", options.seconds]
    if options.rows is not None:
        arguments += ["--rows", options.rows]
    if options.profile:
        arguments += ["--profile", options.profile / name.replace("/", "_")]
    command = [sys.executable, "-m", "performance.parts", *map(str, arguments)]
    environment = os.environ | {"TQDM_DISABLE": "1"}  # no progress bars between the lines of the table
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
    if ended.returncode:
        reason = "see the line above" if ended.returncode == 2 else f"its process ended with {ended.returncode}"
        raise UserError(f"{name}: could not be measured; {reason}")
    metrics: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return metrics


def header(numbers: dict[str, Any]) -> str:
    return f"{numbers['devices']}, {numbers['precision']}, JAX {numbers['jax']}\n\n{HEADER}"


def line(name: str, numbers: dict[str, Any]) -> str:
    if "seconds_cold" in numbers:
        cold, warm = numbers["seconds_cold"], numbers["seconds_warm"]
        return (
            f"{name:<23} {cold:.1f} s to the first step, {warm:.1f} s with a cache of compiled programs;"
            f" {numbers['seconds_vectors']:.1f} s to the first vectors of `embed english`"
        )
    notes = ""
    if "devices_used" in numbers:
        rate = numbers["tokens_per_second_of_one_device"]
        notes = f"devices {numbers['devices_used']}; one device {rate:,.0f} tokens/s"
    if "tokens_per_second_of_known_words" in numbers:
        notes = f"words known: {numbers['tokens_per_second_of_known_words']:,.0f} tokens/s"
    work = (
        f"{numbers['model_gflops']:>8,.0f} {numbers['share_of_matmul']:>10.0%}"
        if numbers["model_gflops"]
        else f"{'-':>8} {'-':>10}"
    )
    return (
        f"{name:<23} {numbers['tokens_per_second']:>10,.0f} {work} {numbers['matmul_gflops']:>8,.0f}"
        f" {numbers['tokens_per_second_per_matmul_gflops']:>9,.2f} {numbers['peak_memory_bytes'] / 1e9:>8.2f}"
        f" {numbers['compile_seconds']:>8.1f}  {notes}"
    )


if __name__ == "__main__":
    sys.exit(main())
