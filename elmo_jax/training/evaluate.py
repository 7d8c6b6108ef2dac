"""Measures held-out perplexity, with the full softmax and without dropout.

Every row starts from a zero LSTM state, which is carried to its end, and every token is scored once.

Words can be merged with `<UNK>`: all of them then count as one word, whose probability is the sum of theirs. So biLMs
with different vocabularies can be compared over the words that both have.

Shapes: T steps, B rows of this process, R rows of all processes, V vocabulary, D devices; a leading 2 is the direction.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, PartitionSpec

from elmo_jax.checkpoints.softmax_layout import rows_of, without_padding
from elmo_jax.config import EvaluationConfig
from elmo_jax.data.batches import prefetched
from elmo_jax.data.lexicon import BEGIN_SENTENCE_ID, UNKNOWN_ID
from elmo_jax.data.windows import (
    BlockSource,
    DistinctWords,
    EvaluationLayout,
    EvaluationWindow,
    Share,
    Window,
    evaluation_windows,
)
from elmo_jax.distributed.mesh import AXIS, REPLICATED, local_part, local_rows, to_devices
from elmo_jax.errors import UserError
from elmo_jax.model.bilm import BiLM, initial_carry
from elmo_jax.model.precision import Precision
from elmo_jax.model.softmax import full_softmax_losses, log_normalizer
from elmo_jax.runs.perplexity import Perplexity, exp, of_directions
from elmo_jax.training.partitioning import WINDOW_SPECS
from elmo_jax.training.softmax_sharding import Placement
from elmo_jax.training.step import without_softmax
from elmo_jax.training.throughput import flops_per_token
from elmo_jax.types import Tree

CARRY_SPEC = PartitionSpec(None, AXIS)
LOSS_SPEC = PartitionSpec(None, None, AXIS)
Watch = Callable[[EvaluationWindow], None]  # what is called after each window, and may raise an exception
_CPU_WINDOW = 5e10  # operations of a window on CPUs: a signal waits for about two, half a second each on two cores


@dataclasses.dataclass
class SentenceScores:
    """The log-probabilities of the sentences of a text, from whose sums the perplexities are computed."""

    tokens: np.ndarray  # [sentences] the number of targets per direction
    unknown: np.ndarray  # [sentences] the number of targets that are `<UNK>` or merged with it
    log_probability: np.ndarray  # [2, sentences] in nats

    def perplexity(self, chosen: Any = slice(None)) -> Perplexity:
        """Returns the perplexities of all sentences, or of those that are true in `chosen`, bool [sentences]."""
        tokens = self.tokens[chosen].sum()
        mean = -self.log_probability[:, chosen].sum(1) / tokens
        if not np.isfinite(mean).all():
            problem = f"the loss on the text is not finite: {of_directions(mean)} nats per token"
            raise UserError(f"{problem}; the biLM has parameters that are not finite or too large")
        backward = exp(mean[1]) if len(mean) > 1 else None
        return Perplexity(exp(mean[0]), backward, int(tokens), self.unknown[chosen].sum() / tokens)


class Evaluator:
    """Evaluates parameters on texts, with one compiled program for all texts and parameters of a model."""

    def __init__(
        self,
        model: BiLM,
        config: EvaluationConfig,
        mesh: Mesh,
        vocabulary_size: int,
        placement: Placement = Placement.REPLICATED,
        merged: np.ndarray | None = None,
    ):
        # The model has no softmax. The words that are true in `merged`, bool [V], are merged with `<UNK>`, which is
        # always one of them. If it is given, the softmax of the parameters must have `merged_bias` (`with_merged`).
        self._merged = np.arange(vocabulary_size) == UNKNOWN_ID if merged is None else merged
        self._model, self._config, self._mesh, self._vocabulary_size = model, config, mesh, vocabulary_size
        self._rows = -(-config.batch_size // mesh.size) * mesh.size  # rounded up to the devices; some rows may be empty
        self._steps = config.unroll_steps
        if mesh.devices.flat[0].platform == "cpu":
            per_step = self._rows * flops_per_token(model.config, vocabulary_size)
            self._steps = max(1, min(self._steps, int(_CPU_WINDOW / per_step)))
        self._softmax_losses = _losses_of_a_share if placement is Placement.SHARDED else _losses_of_all
        specs = (REPLICATED, placement.spec, WINDOW_SPECS, CARRY_SPEC, REPLICATED)
        out_specs = LOSS_SPEC, CARRY_SPEC
        mapped = jax.shard_map(self._losses, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=False)
        self._step = jax.jit(
            lambda params, *others: mapped(without_softmax(params), params["softmax"], *others), donate_argnums=2
        )

    def _losses(
        self, dense: Tree, softmax: Tree, window: Window, carry: Tree, char_ids: jax.Array
    ) -> tuple[jax.Array, Tree]:
        """Returns the losses [2, T, B] of one device's rows in nats, and the LSTM state after them."""
        characters = char_ids[window.words]  # [U, W]
        count = window.word_count[0]
        applied: Any = self._model.apply({"params": dense}, characters, window.inputs, carry, count=count)
        layers, after = applied
        hidden = layers[-1]  # [2, T, B, P]
        losses = self._softmax_losses(
            hidden.reshape(-1, hidden.shape[-1]),
            softmax,
            rows_of(window.targets, self._vocabulary_size).reshape(-1),
            self._vocabulary_size,
            self._config.vocabulary_chunk,
            self._model.precision,
        )
        return losses.reshape(hidden.shape[:-1]), after

    def lower(self, *shapes: Any) -> jax.stages.Lowered:
        return self._step.lower(*shapes)

    def sentences(
        self,
        params: Tree,  # with the softmax's rows interleaved
        blocks: BlockSource,
        distinct: DistinctWords,
        char_ids: jax.Array,  # [types, W] the raw character ids of the lexicon, on every device of the mesh
        watch: Watch = lambda window: None,
        sources: Sequence[str] = (),  # the name of the source of each block, whose perplexities are returned as well
    ) -> tuple[Perplexity, SentenceScores]:
        """Returns the perplexities of a text, and the log-probabilities of its sentences in the order of the text."""
        if not len(blocks):
            raise UserError("the text to evaluate on has no tokens; prepare it with a held-out part, or give another")
        rows = local_rows(self._rows, self._mesh)
        carry = initial_carry(self._model.config, len(rows), np.zeros)  # of this process
        carry = to_devices(carry, jax.tree.map(lambda _: CARRY_SPEC, carry), self._mesh)
        sizes = (self._config.batch_size, self._rows, self._steps, self._vocabulary_size)
        layout = EvaluationLayout(*sizes, len(self._model.config.directions))
        windows = evaluation_windows(blocks, distinct, layout, Share(rows, len(self._mesh.local_devices)))
        totals = _Totals(self._merged, len(self._model.config.directions))
        # Losses are fetched one window late, so that the device does not wait for the host.
        late: tuple[jax.Array, EvaluationWindow] | None = None
        for window in prefetched(windows):
            on_devices = to_devices(window.window, WINDOW_SPECS, self._mesh)
            losses, carry = self._step(params, on_devices, carry, char_ids)
            if late is not None:
                totals.add(*late)
            late = losses, window
            watch(window)
        if late is not None:
            totals.add(*late)
        scores = totals.result()
        sentences = [np.count_nonzero(blocks[i] == BEGIN_SENTENCE_ID) for i in range(len(sources))]
        of_sentences = np.repeat(np.array(sources, str), np.array(sentences, np.int64))
        of_sources = {name: scores.perplexity(of_sentences == name) for name in dict.fromkeys(sources)}
        return dataclasses.replace(scores.perplexity(), sources=of_sources), scores


def with_merged(params: Tree, merged: np.ndarray) -> Tree:
    """Returns the tree of an export with the bias of the words, bool [V], that are merged with `<UNK>`."""
    softmax = params["softmax"]
    return params | {"softmax": softmax | {"merged_bias": np.where(merged, softmax["bias"], -np.inf)}}


def _losses_of_all(
    hidden: jax.Array, softmax: Tree, targets: jax.Array, vocabulary_size: int, chunk: int, precision: Precision
) -> jax.Array:
    """Returns the losses [N] of hidden vectors [N, P] on a device with all rows; `targets` [N] are rows."""
    kernel, bias = softmax["kernel"], without_padding(softmax["bias"], vocabulary_size)
    losses = full_softmax_losses(hidden, kernel, bias, targets, chunk, precision)
    if "merged_bias" not in softmax:
        return losses
    merged = without_padding(softmax["merged_bias"], vocabulary_size)
    total, of_merged = (log_normalizer(hidden, kernel, b, chunk, precision) for b in (bias, merged))
    return jnp.where(merged[targets] > -jnp.inf, total - of_merged, losses)


def _losses_of_a_share(
    hidden: jax.Array, softmax: Tree, targets: jax.Array, vocabulary_size: int, chunk: int, precision: Precision
) -> jax.Array:
    """Makes `_losses_of_all` on a device that scores its share of the rows for the tokens of all devices."""
    number, share = hidden.shape[0], softmax["bias"].shape[0]
    first = lax.axis_index(AXIS) * share
    hidden, targets = lax.all_gather((hidden, targets), AXIS, tiled=True)  # [D * N, P], [D * N]
    rows = jnp.where((targets >= first) & (targets < first + share), targets - first, share)
    row, its_bias = (softmax[name].at[rows].get(mode="fill", fill_value=0) for name in ("kernel", "bias"))

    def normalizer(bias: jax.Array) -> jax.Array:
        bias = without_padding(bias, vocabulary_size, first)
        part = log_normalizer(hidden, softmax["kernel"], bias, chunk, precision)
        highest = lax.pmax(part, AXIS)
        return jnp.log(lax.psum(jnp.exp(part - highest), AXIS)) + highest

    true = lax.psum(jnp.sum(hidden * row, axis=-1) + its_bias, AXIS)
    if "merged_bias" in softmax:
        own = softmax["merged_bias"].at[rows].get(mode="fill", fill_value=-jnp.inf)
        true = jnp.where(lax.pmax(own, AXIS) > -jnp.inf, normalizer(softmax["merged_bias"]), true)
    losses = normalizer(softmax["bias"]) - true
    return lax.dynamic_slice_in_dim(losses, lax.axis_index(AXIS) * number, number)


class _Totals:
    """The sums of losses per sentence, in float64 and in the order of the text, so that devices do not matter."""

    def __init__(self, merged: np.ndarray, directions: int = 2) -> None:
        self._merged, self._sentences = merged, 0  # bool [V]: the targets that count as `<UNK>`
        # tokens, those that are <UNK>, forward losses and backward losses, with room for further sentences
        self._sums = np.zeros((2 + directions, 0))

    def add(self, losses: jax.Array, window: EvaluationWindow) -> None:
        values = local_part(losses, axis=2)[:, window.mask]  # [2, n]
        sentences, indices = np.unique(window.sentence[window.mask], return_inverse=True)
        self._sentences, room = max(self._sentences, int(sentences.max(initial=-1)) + 1), self._sums.shape[1]
        if self._sentences > room:  # which doubles, so that the sums are copied only a few times
            self._sums = np.pad(self._sums, ((0, 0), (0, max(self._sentences, 2 * room) - room)))
        unknown = self._merged[window.window.targets[0]][window.mask]
        self._sums[0, sentences] += np.bincount(indices, minlength=len(sentences))
        for row, counted in enumerate((unknown, *values), 1):
            self._sums[row, sentences] += np.bincount(indices, counted, len(sentences))

    def result(self) -> SentenceScores:
        sums = self._sums[:, : self._sentences]
        if jax.process_count() > 1:
            size = int(multihost_utils.process_allgather(np.int64(self._sentences)).max())
            sums = np.pad(sums, ((0, 0), (0, size - self._sentences)))
            # The values are sent as integers, since the gather would round float64 to float32.
            sums = multihost_utils.process_allgather(sums.view(np.uint32)).view(np.float64).sum(0)
        return SentenceScores(sums[0].astype(np.int64), sums[1].astype(np.int64), -sums[2:])
