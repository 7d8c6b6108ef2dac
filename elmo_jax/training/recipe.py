"""`Recipe`: what differs between kinds of training."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

from elmo_jax.runs.perplexity import Perplexity
from elmo_jax.training.setup import TrainingSetup
from elmo_jax.training.training_report import WHOLE, TrainingResult
from elmo_jax.types import Tree

# Measures the perplexity of a text with the programs of a training and the parameters of a training state.
Measure = Callable[[TrainingSetup, Tree], Perplexity]
measure_whole: Measure = functools.partial(TrainingSetup.heldout, whole=True)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The plan of one kind of training; the default is pretraining."""

    # the parameters before the first update, a whole tree in the layout of an export; None for random initial ones
    params: Tree | None = None
    # reads Adagrad's accumulators that training continues with, a tree like `params`; None for new ones
    accumulators: Callable[[], Tree] | None = None
    frozen: tuple[str, ...] = ()  # the parts of the parameter tree that are not trained
    patience: int = 0  # the number of evaluations without a lower held-out perplexity that ends training; 0 means never
    # "last" for the last step, or "best" for the one of the lowest held-out perplexity, which may be step 0
    exports: Literal["last", "best"] = "last"
    # The texts that are measured with the first parameters and with the exported ones, by their names in the metrics
    # (as in `NAME/perplexity/forward`). The held-out text is evaluated during training too.
    before: Mapping[str, Measure] = dataclasses.field(default_factory=dict)
    after: Mapping[str, Measure] = dataclasses.field(default_factory=lambda: {WHOLE: measure_whole})
    # returns the entries of `result.json` in addition to those of `training_report.summary`
    further_results: Callable[[TrainingResult], dict[str, Any]] = lambda result: {}
    finetuned_from: dict[str, Any] | None = None  # the provenance of the model that `params` comes from
