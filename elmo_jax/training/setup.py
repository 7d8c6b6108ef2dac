"""Prepares a training of a biLM for the devices: recipe, checks of the sizes, model, step, evaluator and text."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import jax
import numpy as np

from elmo_jax.characters import PADDING
from elmo_jax.config import Config
from elmo_jax.data.batches import BatchSettings, TrainingBatch, TrainingBatches, epoch_tokens, portions, prefetched
from elmo_jax.data.blocks import BLOCK_TOKENS
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.windows import BlockSource, DistinctWords, Share, spread_blocks
from elmo_jax.distributed.mesh import REPLICATED, check_rows, local_part, local_rows, named_shardings, to_devices
from elmo_jax.errors import UserError
from elmo_jax.model.bilm import parameter_count
from elmo_jax.runs.perplexity import WHOLE, Perplexity
from elmo_jax.settings import LARGEST_INTEGER
from elmo_jax.training.evaluate import Evaluator, Watch
from elmo_jax.training.partitioning import BATCH_SPECS, map_step, model_for, put_params, softmax_placement, state_specs
from elmo_jax.training.step import TrainState, TrainStep, initial_state, with_accumulators
from elmo_jax.training.throughput import Work, affordable_evaluation
from elmo_jax.training.training_report import TrainingResult
from elmo_jax.types import Tree

SMALL = 10_000_000  # parameters, which take less than a second to draw


class TrainingSetup:
    """The programs of a training, for given settings, corpus and devices.

    Attributes:
      step: one update, as the program of one device.
      char_ids: [types, W] the raw character ids of the lexicon, on every device.
      heldout_blocks: the number of blocks of the held-out text that are evaluated during training.
      watch: what is called after each window of an evaluation.
    """

    def __init__(
        self, config: Config, corpus: Corpus, mesh: jax.sharding.Mesh, total_steps: int, frozen: tuple[str, ...] = ()
    ) -> None:
        # Nothing is compiled; `frozen` are the parts of the parameters that are not trained.
        self.config, self.corpus, self.mesh, self.total_steps = config, corpus, mesh, total_steps
        self._model = model_for(config, mesh)
        vocabulary_size = corpus.vocabulary_size
        placement = softmax_placement(config, vocabulary_size, mesh)
        self.step = TrainStep(self._model, config.train, total_steps, vocabulary_size, frozen, placement)
        self._evaluator = Evaluator(self._model, config.evaluation, mesh, vocabulary_size, placement)
        self.watch: Watch = lambda window: None
        tokens = config.evaluation.tokens or affordable_evaluation(config, vocabulary_size, total_steps)
        self.heldout_blocks = len(spread_blocks(corpus.blocks("heldout"), tokens))
        char_ids = corpus.char_ids(config.model.char_cnn.max_characters)
        self._distinct = DistinctWords(char_ids, PADDING)
        self.char_ids = to_devices(char_ids, REPLICATED, mesh)
        # The filters are applied to every position with a character, and to one of padding.
        self.work = Work(config, vocabulary_size, float((char_ids != PADDING).sum(1).mean()) + 1)

        def start(params: Tree | None, seed: jax.Array, accumulators: Tree | None) -> TrainState:
            with_softmax = self._model.clone(vocabulary_size=vocabulary_size)
            state = initial_state(config, with_softmax, self.step.optimizer, params, frozen, seed)
            initial = config.train.optimizer.initial_accumulator
            return state if accumulators is None else with_accumulators(state, accumulators, initial, frozen)

        self._shapes = jax.eval_shape(start, None, np.int32(config.train.seed), None)
        self._shardings = named_shardings(state_specs(self._shapes, mesh, placement), mesh)
        # For a small model on a CPU, compilation takes most of the time of this program, which LLVM's passes triple.
        is_fast = parameter_count(self._shapes.params) < SMALL and mesh.devices.flat[0].platform == "cpu"
        options = {"xla_backend_optimization_level": 0} if is_fast else None
        self._start = jax.jit(start, out_shardings=self._shardings, compiler_options=options)

    def first_state(self, params: Tree | None, accumulators: Tree | None = None) -> TrainState:
        """Makes the state before the first update, with these parameters and accumulators; None for initial ones."""
        return self._start(params, np.int32(self.config.train.seed), accumulators)

    def abstract_state(self) -> Any:
        pairs = self._shapes, self._shardings
        return jax.tree.map(lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), *pairs)

    def mapped_step(self) -> jax.stages.Wrapped:
        """Returns the step over all devices: `(state, batch, char_ids) -> (state, metrics)`."""
        return map_step(self.step, self._shapes, self.mesh)

    def batches(self, state: TrainState, step: int) -> Iterator[tuple[TrainingBatch, int, int]]:
        """Yields batches from the state's position on, the distinct words of this process's part, and blocks read."""
        settings = BatchSettings.of(self.config, self.corpus.vocabulary_size)
        if mixture := self.config.data.mixture:
            settings = dataclasses.replace(settings, mixed=portions(self.corpus, mixture))
        train = self.config.train
        share = Share(local_rows(train.batch_size, self.mesh), len(self.mesh.local_devices) * train.accumulate)
        blocks, position = self.corpus.blocks("train"), local_part(state.position)
        batches = TrainingBatches(blocks, self._distinct, settings, share, position, step)

        def placed(batch: TrainingBatch) -> tuple[TrainingBatch, int, int]:
            words = int(batch.window.word_count.sum())
            return to_devices(batch, BATCH_SPECS, self.mesh), words, batches.blocks_read

        return prefetched(map(placed, batches))

    def heldout(self, params: Tree, whole: bool = False) -> Perplexity:
        """Returns the perplexity of the corpus's held-out text; `params` are those of a training state.

        Unless it is to be the `whole` text, blocks are spread evenly, so that each named source has its share,
        which is none for a small one.
        """
        blocks = self._heldout(self.corpus.blocks("heldout"), whole)
        sources = self._heldout(self.corpus.source_of_blocks("heldout"), whole)  # of the same blocks
        return self._evaluator.sentences(params, blocks, self._distinct, self.char_ids, self.watch, sources)[0]

    @functools.cached_property
    def whole_blocks(self) -> int:
        """The number of blocks that are evaluated after training: all of them, unless the settings say otherwise."""
        return len(self._heldout(self.corpus.blocks("heldout"), whole=True))

    def _heldout(self, blocks: Any, whole: bool) -> Any:
        return spread_blocks(blocks, self.config.evaluation.tokens if whole else self.heldout_blocks * BLOCK_TOKENS)

    def perplexity(self, params: Tree, blocks: BlockSource, char_ids: Any) -> Perplexity:
        """Returns the perplexity of another text, whose lexicon begins with the vocabulary of the corpus.

        `params` are those of a training state, and `char_ids` [types, W] the raw character ids of the text's lexicon.
        """
        on_devices = to_devices(char_ids, REPLICATED, self.mesh)
        distinct = DistinctWords(char_ids, PADDING)
        return self._evaluator.sentences(params, blocks, distinct, on_devices, self.watch)[0]

    def heldout_with_vocabulary(self, params: Tree, size: int) -> Perplexity:
        """Returns the perplexity of the held-out text over the first `size` words, those of the exported `params`."""
        placement = softmax_placement(self.config, size, self.mesh)
        evaluator = Evaluator(self._model, self.config.evaluation, self.mesh, size, placement)
        placed = put_params(params, placement, self.mesh)
        blocks = self._heldout(self.corpus.blocks("heldout"), whole=True)
        return evaluator.sentences(placed, blocks, self._distinct, self.char_ids, self.watch)[0]


# Measures the perplexity of a text with the programs of a training and the parameters of a training state.
Measure = Callable[[TrainingSetup, Tree], Perplexity]
measure_whole: Measure = functools.partial(TrainingSetup.heldout, whole=True)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The plan of one kind of training; the default is pretraining."""

    params: Tree | None = None  # those before the first update, in the layout of an export; None for random ones
    accumulators: Callable[[], Tree] | None = None  # reads those of Adagrad, a tree like `params`; None for new ones
    frozen: tuple[str, ...] = ()  # the parts of the parameter tree that are not trained
    patience: int = 0  # the number of evaluations without a lower held-out perplexity that ends training; 0 means never
    exports: Literal["last", "best"] = "last"  # the step; the best has the lowest held-out perplexity, and may be 0
    # The texts that are measured with the first parameters and with the exported ones, by their names in the metrics
    # (as in `NAME/perplexity/forward`). The held-out text is evaluated during training too.
    before: Mapping[str, Measure] = dataclasses.field(default_factory=dict)
    after: Mapping[str, Measure] = dataclasses.field(default_factory=lambda: {WHOLE: measure_whole})
    # returns the entries of `result.json` in addition to those of `training_report.summary`
    further_results: Callable[[TrainingResult], dict[str, Any]] = lambda result: {}
    finetuned_from: dict[str, Any] | None = None  # the provenance of the model that `params` comes from


def check_sizes(config: Config, corpus: Corpus, mesh: jax.sharding.Mesh) -> None:
    """Raises `UserError` for sizes with which training is impossible."""
    train = config.train
    check_rows(train.batch_size, mesh, train.accumulate)
    softmax_placement(config, corpus.vocabulary_size, mesh)  # raises if the mesh does not allow it
    check_negatives(config, corpus.vocabulary_size)
    tokens, needed = epoch_tokens(corpus, config.data.mixture), train.tokens_per_step
    if tokens < needed:
        batch = f"one batch of {train.batch_size} rows × {train.unroll_steps} steps = {needed}"
        problem = f"{tokens} training tokens are fewer than {batch}"
        raise UserError(f"{corpus.path}: {problem}; give more text, or lower config.train.batch_size")
    if not corpus.tokens("heldout"):
        remedy = "prepare it with --heldout-fraction above 0, or --heldout"
        raise UserError(f"{corpus.path}: has no held-out text; {remedy}")


def check_negatives(config: Config, vocabulary_size: int) -> None:
    """Raises `UserError` if a vocabulary has too few words to draw the negatives of a step from."""
    if (negatives := config.train.negatives) >= vocabulary_size:
        problem = f"{negatives} distinct negatives cannot be drawn from a vocabulary of {vocabulary_size} words"
        raise UserError(f"config.train.negatives: {problem}; use fewer, or 0 for the full softmax")


def warmup_warning(config: Config, total: int) -> str | None:
    """Returns a warning if the warmup has no effect, or is not over at the end of a run of `total` steps, or None."""
    optimizer = config.train.optimizer
    if optimizer.schedule == "constant" and optimizer.warmup_steps:
        problem = f"{optimizer.warmup_steps:,} has no effect, since config.train.optimizer.schedule is constant"
        return f"config.train.optimizer.warmup_steps: {problem}; set that to warmup_cosine"
    if optimizer.schedule == "constant" or not total or optimizer.warmup_steps < total:
        return None
    return (
        f"config.train.optimizer.warmup_steps: {optimizer.warmup_steps:,} steps of warmup are not fewer than the"
        f" {total:,} steps of the run, in which the learning rates reach {total / optimizer.warmup_steps:.1%} of their"
        " peak; use fewer"
    )


def rows_warning(config: Config, corpus: Corpus, total: int) -> str | None:
    """Returns a warning if the rows are so many for the text that `total` steps leave out a tenth of it or more."""
    rows, blocks = config.train.batch_size, len(corpus.blocks("train"))
    each = total * config.train.unroll_steps * blocks / corpus.tokens("train")
    if each >= 2 or total * config.train.tokens_per_step < corpus.tokens("train"):
        return None
    problem = (
        f"each of the {rows:,} rows reads {each:.2g} of the {blocks:,} blocks of the text, from the start of a block"
    )
    return f"config.train.batch_size: {problem}; some text is skipped and other text is read twice; use fewer rows"


def total_steps(config: Config, corpus: Corpus) -> int:
    """Returns `train.steps`, or else the number of steps of `train.epochs` epochs."""
    steps = config.train.epochs * epoch_tokens(corpus, config.data.mixture) / config.train.tokens_per_step
    if not config.train.steps and steps > LARGEST_INTEGER:
        epochs = f"{config.train.epochs:g} epochs are {steps:.3g} steps"
        raise UserError(f"config.train.epochs: {epochs}; at most {LARGEST_INTEGER:,}")
    total, profile = config.train.steps or math.ceil(steps), config.train.profile
    if profile and (len(profile) != 2 or sum(profile) - 1 > total):
        expected = f"the first step and the number of steps, within the {total:,} steps of the run"
        raise UserError(f"config.train.profile: expected {expected}, got {profile}")
    return total
