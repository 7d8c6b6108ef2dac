"""The command `python -m performance`, the benchmark (`make bench`)."""

from __future__ import annotations

import sys
from pathlib import Path

from elmo_jax.cli.values import Parser, local, number, output, whole
from elmo_jax.errors import UserError, exit_status
from performance.run import PARTS, SIZES, Benchmark


def main() -> int:
    """Runs the benchmark; returns the exit status, which is 2 for a mistake of the user."""
    parser = Parser(
        "python -m performance",
        description="Measures training, inference, the command embed with one and all devices, evaluation, the making"
        " of batches and the start of a training at the tiny, the small and the original size, and the training of two"
        " task models, on the devices of this machine.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--corpus",
        type=local,
        default=Path("data/sotu"),
        metavar="DIR",
        help="a prepared corpus (default: %(default)s)",
    )
    parser.add_argument(
        "--sizes", default=",".join(SIZES), metavar="S,S", help="sizes of the biLM (default: %(default)s)"
    )
    parser.add_argument(
        "--parts", default=",".join(PARTS), metavar="P,P", help="parts to measure (default: %(default)s)"
    )
    parser.add_argument("--json", type=output, metavar="FILE", help="write the metrics to FILE as JSON")
    parser.add_argument(
        "--profile", type=local, metavar="DIR", help="write a trace of each part to DIR for TensorBoard"
    )
    parser.add_argument(
        "--seconds",
        type=number(0, 86_400),
        default=15.0,
        metavar="S",
        help="least time to measure training for (default: %(default)s)",
    )
    parser.add_argument(
        "--rows", type=whole(1, 65_536), metavar="N", help="rows per training batch (default: by size and device)"
    )
    try:
        options = parser.parse_args()
        Benchmark(**vars(options)).run()
    except (UserError, KeyboardInterrupt) as error:
        print(f"performance: {error or 'interrupted'}", file=sys.stderr)
        return exit_status(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
