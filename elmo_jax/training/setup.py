"""Prepares a training of a biLM for the devices: model, step, evaluator and text."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from elmo_jax.characters import PADDING
from elmo_jax.config import Config
from elmo_jax.data.batches import BatchSettings, TrainingBatch, TrainingBatches, portions, prefetched
from elmo_jax.data.blocks import BLOCK_TOKENS
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.windows import BlockSource, DistinctWords, Share, spread_blocks
from elmo_jax.distributed.mesh import REPLICATED, local_part, local_rows, named_shardings, to_devices
from elmo_jax.model.bilm import parameter_count
from elmo_jax.runs.perplexity import Perplexity
from elmo_jax.training.evaluate import Evaluator, Watch
from elmo_jax.training.partitioning import (
    BATCH_SPECS,
    map_step,
    model_for,
    put_params,
    softmax_placement,
    state_specs,
)
from elmo_jax.training.state import TrainState, initial_state, with_accumulators
from elmo_jax.training.step import TrainStep
from elmo_jax.training.throughput import Work, affordable_evaluation
from elmo_jax.types import Tree

SMALL = 10_000_000  # parameters, which take less than a second to draw


class PlacedBatch(NamedTuple):
    """A batch on the devices."""

    batch: TrainingBatch
    distinct_words: int  # in this process's part of it
    blocks_read: int  # by this process so far


class TrainingSetup:
    """The programs of a training, for given settings, corpus and devices.

    Attributes:
      config: the settings.
      corpus: the text.
      mesh: the devices.
      total_steps: the number of updates of the run.
      step: one update, as the program of one device.
      work: the floating-point operations of the training.
      char_ids: [types, W] the raw character ids of the lexicon, on every device.
      heldout_blocks: the number of blocks of the held-out text that are evaluated during training.
      watch: what is called after each window of an evaluation.
    """

    def __init__(
        self,
        config: Config,
        corpus: Corpus,
        mesh: jax.sharding.Mesh,
        total_steps: int,
        frozen: tuple[str, ...] = (),
    ) -> None:
        """Makes the programs without compiling them; `frozen` are the parts of the parameters that are not trained."""
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
        self._start = jax.jit(start, out_shardings=self._shardings, compiler_options=self._start_options())

    def _start_options(self) -> dict[str, int] | None:
        """Returns the compiler's options for the program that makes the first state, which runs once.

        For a small model on a CPU most of its time is that of its compilation, which LLVM's passes triple.
        """
        is_small = parameter_count(self._shapes.params) < SMALL
        is_cpu = self.mesh.devices.flat[0].platform == "cpu"
        return {"xla_backend_optimization_level": 0} if is_small and is_cpu else None

    def first_state(self, params: Tree | None, accumulators: Tree | None = None) -> TrainState:
        """Makes the state before the first update, with these parameters and accumulators; None for initial ones."""
        return self._start(params, np.int32(self.config.train.seed), accumulators)

    def abstract_state(self) -> Any:
        """Returns the shapes, dtypes and shardings of the state, the target of a restore."""
        return jax.tree.map(
            lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding),
            self._shapes,
            self._shardings,
        )

    def mapped_step(self) -> jax.stages.Wrapped:
        """Returns the step over all devices: `(state, batch, char_ids) -> (state, metrics)`."""
        return map_step(self.step, self._shapes, self.mesh)

    def batches(self, state: TrainState, step: int) -> Iterator[PlacedBatch]:
        """Yields batches on the devices, from the state's position on."""
        settings = BatchSettings.of(self.config, self.corpus.vocabulary_size)
        if mixture := self.config.data.mixture:
            settings = dataclasses.replace(settings, mixed=portions(self.corpus, mixture))
        train = self.config.train
        share = Share(local_rows(train.batch_size, self.mesh), len(self.mesh.local_devices) * train.accumulate)
        blocks, position = self.corpus.blocks("train"), local_part(state.position)
        batches = TrainingBatches(blocks, self._distinct, settings, share, position, step)

        def placed(batch: TrainingBatch) -> PlacedBatch:
            words = int(batch.window.word_count.sum())
            return PlacedBatch(to_devices(batch, BATCH_SPECS, self.mesh), words, batches.blocks_read)

        return prefetched(map(placed, batches))

    def heldout(self, params: Tree, whole: bool = False) -> Perplexity:
        """Returns the perplexity of the corpus's held-out text; `params` are those of a training state.

        During training, only a part of a long text is evaluated, unless it is to be the `whole` text. Its blocks are
        spread evenly, so that each named source has its share in it.
        """
        blocks, sources = self._heldout(self.corpus.blocks("heldout"), whole), self.corpus.source_of_blocks("heldout")
        sources = self._heldout(sources, whole)  # of the same blocks
        return self._evaluator.sentences(params, blocks, self._distinct, self.char_ids, self.watch, sources)[0]

    @functools.cached_property
    def whole_blocks(self) -> int:
        """The number of blocks that are evaluated after training: all of them, unless the settings say otherwise."""
        return len(self._heldout(self.corpus.blocks("heldout"), whole=True))

    def _heldout(self, blocks: Any, whole: bool) -> Any:
        """Chooses those that are evaluated of the held-out blocks, or of the names of their sources."""
        return spread_blocks(blocks, self.config.evaluation.tokens if whole else self.heldout_blocks * BLOCK_TOKENS)

    def perplexity(self, params: Tree, blocks: BlockSource, char_ids: Any) -> Perplexity:
        """Returns the perplexity of another text, whose lexicon begins with the vocabulary of the corpus.

        The `params` are those of a training state; `char_ids` [types, W] are the raw character ids of the text's
        lexicon.
        """
        on_devices = to_devices(char_ids, REPLICATED, self.mesh)
        distinct = DistinctWords(char_ids, PADDING)
        return self._evaluator.sentences(params, blocks, distinct, on_devices, self.watch)[0]

    def heldout_with_vocabulary(self, params: Tree, size: int) -> Perplexity:
        """Returns the perplexity of the held-out text over the first `size` words of the vocabulary.

        The `params` are a whole tree in the layout of an export, whose softmax has `size` rows.
        """
        placement = softmax_placement(self.config, size, self.mesh)
        evaluator = Evaluator(self._model, self.config.evaluation, self.mesh, size, placement)
        placed = put_params(params, placement, self.mesh)
        blocks = self._heldout(self.corpus.blocks("heldout"), whole=True)
        return evaluator.sentences(placed, blocks, self._distinct, self.char_ids, self.watch)[0]
