"""Measures how fast a task model trains, compared with code that does only what is needed.

The tagger `pos` of two biLSTM layers is trained as `elmo-jax task train` does, batches included, and then the same
model in plain JAX on the same batches, with its own loop, autodiff and Optax's Adam.

The sentences are the first of the held-out text, cut at 40 words. The tags are made up, since they do not change the
speed. There are no characters, no ELMo and no dropout.

Shapes: T words, B rows, H units, I numbers of input per word.
"""

import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from elmo_jax.config_file import with_overrides
from elmo_jax.data.corpus import Corpus
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.tasks.core.data import Ladder, TaskData, choose_shapes
from elmo_jax.tasks.core.inputs import TextEncoder
from elmo_jax.tasks.core.program import BatchArrays, TaskProgram
from elmo_jax.tasks.core.setup import TaskSetup
from elmo_jax.tasks.core.tagging import TaggedSentence
from elmo_jax.tasks.core.vocabulary import build
from elmo_jax.tasks.registry import default_config, get_task, task_config
from elmo_jax.types import Tree
from performance.infer import heldout_sentences
from performance.machine import Machine

SENTENCES, WORDS, TAGS = 1024, 40, 17  # the number of sentences, their most words, and the number of tags
SETTINGS = (
    "model.layers=(200,200)",
    "model.dropout=0.0",
    "train.batch_size=64",
    "train.optimizer.learning_rate=0.001",
    "word_vectors.dim=100",
)
REPEATS = 3


def measure(name: str, corpus: Corpus, machine: Machine) -> dict[str, Any]:
    """Returns the metrics of the task `pos`."""
    sentences = [words[:WORDS] for words in heldout_sentences(corpus)[:SENTENCES]]
    overrides = [f"--config.{setting}" for setting in SETTINGS]
    config: Any = task_config(with_overrides(default_config(name), overrides))
    task: Any = get_task(name)
    examples = [TaggedSentence(words, [f"T{len(word) % TAGS}" for word in words]) for words in sentences]
    labels = task.labels(examples, config)
    vocabulary, table = build(sentences, [], config.word_vectors, config.characters)
    setup = TaskSetup(task, config, labels, vocabulary, table, None, make_mesh(jax.devices()[:1]))
    ladder = Ladder.of(setup.mesh)
    shapes = choose_shapes(list(map(task.size, examples)), config.train.num_buckets or ladder.buckets, ladder)
    program, data = TaskProgram(setup), TaskData(setup, TextEncoder(setup), examples, shapes, trains=True)
    vectors = table.first_vectors(0)
    state = program.first_state(0, data.arrays(data.epoch(None)[0]))
    frozen, seed, rate = program.frozen(0, layers_are_given=True), np.uint32(0), np.float32(1e-3)

    def ours() -> Any:
        nonlocal state
        for _, host in data.iterate(data.epoch(None)):
            state, _ = program.train_step(state, program.device_put(host), frozen, rate, seed)
        return state.step

    batches = [program.device_put(arrays) for _, arrays in data.iterate(data.epoch(None))]
    plain = _plain_tagger(batches, vectors, len(labels["tags"]))
    jax.block_until_ready(ours())  # compiles
    jax.block_until_ready(plain())
    mine, other = [], []
    for _ in range(REPEATS):  # in turns, since the speed of a shared machine changes
        mine.append(machine.timed(ours))
        other.append(machine.timed(plain))
    seconds, least = statistics.median(mine), statistics.median(other)
    numbers = machine.numbers(sum(map(len, sentences)), seconds, operations=0)
    return numbers | {"rows": config.train.batch_size, "share_of_plain_jax": least / seconds}


def _plain_tagger(batches: list[BatchArrays], vectors: np.ndarray, tags: int) -> Callable[[], Any]:
    """Returns an epoch of the same tagger in plain JAX: two biLSTM layers of 200 units, Adam, and no more."""
    units, random = 200, np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> jax.Array:
        return jnp.asarray(random.normal(0, rows**-0.5, (rows, columns)), jnp.float32)

    def direction(size: int) -> Tree:
        return {"input": matrix(size, 4 * units), "state": matrix(units, 4 * units), "bias": jnp.zeros(4 * units)}

    params: Tree = {
        "words": jnp.asarray(vectors),
        "layers": [[direction(size), direction(size)] for size in (vectors.shape[1], 2 * units)],
        "tag": matrix(2 * units, tags),
    }
    optimizer = optax.chain(optax.clip_by_global_norm(5.0), optax.adam(1e-3))

    def lstm(params: Tree, inputs: jax.Array, mask: jax.Array, reverse: bool) -> jax.Array:  # [T, B, I] -> [T, B, H]
        products = inputs @ params["input"] + params["bias"]

        def step(carry: Any, now: Any) -> Any:
            cell, hidden = carry
            product, real = now
            i, f, g, o = jnp.split(product + hidden @ params["state"], 4, axis=-1)
            new = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            out = jax.nn.sigmoid(o) * jnp.tanh(new)
            cell, hidden = jnp.where(real, new, cell), jnp.where(real, out, hidden)
            return (cell, hidden), hidden

        zeros = jnp.zeros((inputs.shape[1], units))
        return jax.lax.scan(step, (zeros, zeros), (products, mask[..., None]), reverse=reverse)[1]

    def loss(params: Tree, batch: BatchArrays) -> jax.Array:
        (text,) = batch.texts
        mask = text["mask"].T
        hidden = params["words"][text["words"].T]
        for forward, backward in params["layers"]:
            hidden = jnp.concatenate([lstm(forward, hidden, mask, False), lstm(backward, hidden, mask, True)], -1)
        scores = jax.nn.log_softmax(hidden @ params["tag"])
        losses = -jnp.take_along_axis(scores, batch.arrays["tags"].T[..., None], -1)[..., 0]
        return jnp.where(mask, losses, 0.0).sum() / mask.sum()

    def step(params: Tree, state: Any, batch: BatchArrays) -> Any:
        gradient = jax.grad(loss)(params, batch)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    compiled = jax.jit(step, donate_argnums=(0, 1))
    trained = (params, optimizer.init(params))

    def epoch() -> Any:
        nonlocal trained
        for batch in batches:
            trained = compiled(*trained, batch)
        return trained

    return epoch
