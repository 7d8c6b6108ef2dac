"""Compiles the step of an experiment for a topology, and advises what to change if it does not fit."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from elmo_jax.aot.chips import CHIPS
from elmo_jax.aot.compile_report import Report
from elmo_jax.aot.step import DoesNotFit, Target, compile_step, find_target
from elmo_jax.config import Config
from elmo_jax.data.corpus import Corpus
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.errors import UserError
from elmo_jax.training.partitioning import with_precision
from elmo_jax.training.setup import check_negatives

_MULTIPLE = 8  # the advised number of rows is a multiple of this, since a TPU's registers hold 8 rows


@dataclasses.dataclass(frozen=True)
class TooLarge:
    """The result for a step that does not fit, with advice."""

    title: str
    topology: str
    error: DoesNotFit
    advice: list[str]
    fits = False

    def describe(self) -> str:
        """Returns the result as text for the terminal."""
        lines = [
            f"{self.title} does not fit on {self.topology}: a chip needs at least {self.error.needed / 1e9:.1f} GB and"
            f" a program can have {self.error.usable / 1e9:.1f} GB of it",
            *(f"  {name:<22}{size / 1e9:>8.2f} GB" for name, size in self.error.parts.items()),
            "what to change:",
            *(f"  {line}" for line in self.advice),
        ]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Returns the result for `--json`."""
        return {
            "experiment": self.title,
            "topology": self.topology,
            "fits": False,
            "memory": {**self.error.parts, "total": self.error.needed, "usable": self.error.usable},
            "advice": self.advice,
        }


def compile_for(
    title: str,
    config: Config,
    topology: str,
    *,
    vocabulary_size: int | None,
    word_types: int | None,
    defaults: tuple[int, int],
) -> Report | TooLarge:
    """Compiles the training step of an experiment.

    Args:
      title: the name of the experiment.
      config: the settings; the prepared corpus that they name, if it exists, determines sizes that are not given.
      topology: the devices, such as `v5e:16x16` or `cpu:8`.
      vocabulary_size: the words of the softmax; None for those of the corpus.
      word_types: the words of the lexicon; None for those of the corpus.
      defaults: both sizes, if neither the arguments nor a corpus determine them.

    Raises:
      UserError: the topology does not exist, its compiler is not installed, or the number of its devices does not
        divide the number of rows.
    """
    target = find_target(topology)
    config = with_precision(config, make_mesh(target.devices))
    if vocabulary_size is None:
        corpus = None
        with contextlib.suppress(UserError):  # the command needs no data
            corpus = Corpus.open(config.data.corpus)
        vocabulary_size = corpus.vocabulary_size if corpus else defaults[0]
        word_types = word_types or (corpus.report["lexicon"]["types"] if corpus else defaults[1])
    word_types = max(word_types or vocabulary_size, vocabulary_size)
    check_negatives(config, vocabulary_size)

    try:
        compiled = compile_step(config, target, vocabulary_size, word_types)
    except DoesNotFit as error:
        return TooLarge(title, topology, error, list(_advice(config, target, error)))
    return Report(title, config, target, vocabulary_size, word_types, compiled)


def _advice(config: Config, target: Target, error: DoesNotFit) -> Iterator[str]:
    rows = config.train.batch_size // len(target.devices)
    if config.train.precision == "float32":
        yield "--config.train.precision=bfloat16 makes the temporaries smaller"
    fixed = sum(size for name, size in error.parts.items() if name not in ("LSTM carry", "batch"))
    # All memory except the fixed parts is assumed to be proportional to the number of rows.
    fewer = min(int((0.95 * error.usable - fixed) / max(error.needed - fixed, 1.0) * rows), rows - 1)
    fewer = fewer if fewer < _MULTIPLE else fewer // _MULTIPLE * _MULTIPLE
    if fewer > 0:
        total = fewer * len(target.devices)
        yield f"--config.train.batch_size={total} should fit: {fewer} rows per chip instead of {rows}"
    before = config.train.accumulate
    groups = next((k for k in range(before + 1, rows + 1) if rows % k == 0 and rows // k <= fewer // before), None)
    if groups is not None:
        yield f"--config.train.accumulate={groups} may fit: the same batch in groups of {rows // groups} rows per chip"
    softmax = error.parts["softmax rows"] + error.parts["softmax accumulator"]
    if config.train.softmax == "replicated" and len(target.devices) > 1:
        share = softmax / len(target.devices) / 1e9
        yield (
            f"--config.train.softmax=sharded leaves a chip {share:.1f} GB of the softmax's rows and their accumulator"
            f" instead of {softmax / 1e9:.1f}"
        )
    if softmax > 0.3 * error.usable:
        yield (
            f"fewer words in the softmax (elmo-jax prepare --vocab-size): its rows and their accumulator take"
            f" {softmax / 1e9:.1f} GB of each chip"
        )
    larger = [chip.name for chip in CHIPS.values() if chip.usable > max(error.needed, error.usable)]
    if larger:
        yield f"chips with more memory: {', '.join(larger)}"
