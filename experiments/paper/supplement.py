r"""Fine-tunes a biLM on the text of a task, as in section A.1 of the paper's supplement, and prints what that gained.

    python experiments/paper/supplement.py --config experiments/task_sst.py --bilm english --workdir runs/tuned_sst
    # with the best of its runs
    python experiments/paper/gains.py --config experiments/task_sst.py --bilm english --tuned runs/tuned_sst/0.001 \
        --workdir runs/paper/sst --rows all,tuned

The first command reads the sentences of the training examples once, each distinct one, without their labels, with each
of the learning rates of --rates; the perplexity is that of the dev examples' sentences. `supplement.json` in the
workdir has all perplexities and the best run. The second command trains the task with the layers of both biLMs.
`--config.KEY=VALUE` sets a setting of the task, such as its files. If the biLM has no softmax, like the packaged one,
the first run fits one to the same sentences with the biLM frozen. The perplexity before fine-tuning is measured with
it, and the other runs start from it. If the command is stopped, run it again to resume.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from elmo_jax.cli.main import main as elmo_jax
from elmo_jax.config_file import load_file, with_overrides
from elmo_jax.errors import UserError
from elmo_jax.files import write_text
from elmo_jax.tasks.core.setup import rows_of
from elmo_jax.tasks.formats.sources import read_part
from elmo_jax.tasks.registry import get_task, task_config
from gains import check_overrides, fingerprint_of

RATES = "0.001,0.0003,0.0001"
# Those of all tasks; a softmax from zeros needs several epochs of so little text.
SETTINGS = {
    "model.dropout": 0.0,  # one epoch does not overfit
    "train.batch_size": 32,
    "train.unroll_steps": 20,
    "train.epochs": 1.0,
    "train.carry": "block",
    "train.precision": "auto",
    "train.optimizer.name": "adam",
    "train.optimizer.softmax_learning_rate": 0.25,
    "train.optimizer.initial_accumulator": 0.1,
    "train.optimizer.schedule": "warmup_cosine",
    "train.optimizer.warmup_steps": 20,
    "finetune.softmax_epochs": 5.0,
    "finetune.trainable": "all",
}


def text_of(rows: Iterable[Sequence[str]]) -> str:
    """Returns each distinct sentence on a line, in the order of the first ones."""
    return "".join(f"{sentence}\n" for sentence in dict.fromkeys(" ".join(row) for row in rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the experiment on a task")
    parser.add_argument("--bilm", required=True, metavar="BILM", help="a run, an export, a file or a packaged biLM")
    parser.add_argument("--workdir", type=Path, required=True, metavar="DIR", help="the folder of the runs")
    parser.add_argument("--rates", default=RATES, metavar="X,X", help="learning rates (%(default)s)")
    parser.add_argument(
        "--negatives", type=int, default=0, metavar="N", help="of the softmax; 0 for all words (%(default)s)"
    )
    options, overrides = parser.parse_known_args(arguments)
    check_overrides(parser, overrides)
    try:
        config = with_overrides(load_file(options.config), overrides)
        task, settings = get_task(config.task), task_config(config)
        texts = {part: text_of(rows_of(task, read_part(task, settings, part))) for part in ("train", "dev")}
    except UserError as error:
        parser.error(str(error))
    options.workdir.mkdir(parents=True, exist_ok=True)
    for part, text in texts.items():
        write_text(options.workdir / f"{part}.txt", text)
    command = ["--data", str(options.workdir / "train.txt"), "--format", "lines"]
    command += ["--heldout", str(options.workdir / "dev.txt"), *(f"--config.{k}={v}" for k, v in SETTINGS.items())]
    command.append(f"--config.train.negatives={options.negatives}")
    before, after, source = 0.0, {}, options.bilm
    for rate in options.rates.split(","):
        run = options.workdir / rate
        where = ["--from", source, "--workdir", str(run)]
        status = elmo_jax(["finetune", *where, *command, f"--config.train.optimizer.learning_rate={rate}"])
        if status:
            return status
        if (run / "softmax").is_dir():
            source = str(run / "softmax")  # the same biLM with the softmax that the first run has fitted
        result = json.loads((run / "result.json").read_text(encoding="utf-8"))
        before, after[rate] = (result[when]["domain"]["average"] for when in ("before", "after"))
        print(f"\n{config.task}, learning rate {rate}: perplexity on dev {before:.1f} -> {after[rate]:.1f}")
    result = {"bilm": fingerprint_of(options.bilm), "before": before, "after": after, "best": min(after, key=after.get)}
    write_text(options.workdir / "supplement.json", json.dumps(result, indent=1) + "\n")
    print(f"the best  {options.workdir / result['best']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
