"""The long form of tests/fuzz: every command with every mistake, random ones together, and damage to every file.

Each command must succeed or end with status 2 and one line; what is read from damaged files must be the very same, or
be refused in one line; and no command may change the files that it was given.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.environment import xla_flags


def main() -> int:
    """Prints the faults and the counts; returns 1 if there are faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pairs", type=int, default=300, help="command lines with several random mistakes")
    parser.add_argument("--files", type=int, default=200, help="damaged files")
    parser.add_argument("--share", type=float, default=1.0, help="of the command lines with one mistake")
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"], os.environ["XLA_FLAGS"] = "cpu", xla_flags(2)

    from tests.fuzz.command_line import Counts, all_cases, check, pairs
    from tests.fuzz.files import check_files
    from tests.fuzz.things import make_more, make_things

    chance, began = random.Random(options.seed), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="elmo-jax-fuzz-") as temporary:
        folder = Path(temporary)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "programs")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        for name in ("things", "files"):
            (folder / name).mkdir()
        items = make_things(folder / "things")
        make_more(items)
        actual = {"command line": Counts(), "files": Counts()}
        cases = [case for case in all_cases() if chance.random() < options.share]
        for case in [*cases, *(pairs(chance) for _ in range(options.pairs))]:
            check(case, items, folder / "scratch", actual["command line"])
        check_files(items, folder / "files", options.files, options.seed, actual["files"])
    for name, counts in actual.items():
        for label, fault in counts.faults:
            print(f"{name}: {label}\n  {fault}\n", file=sys.stderr)
        print(f"{name}: {counts}")
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if any(counts.faults for counts in actual.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
