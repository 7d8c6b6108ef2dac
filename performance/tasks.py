"""Measures how fast a task model trains: the tagger `pos` of two biLSTM layers, batches included.

The sentences are the first of the held-out text, cut at 40 words. The tags are made up, since they do not change the
speed. There are no characters, no ELMo and no dropout.
"""

import statistics
from typing import Any

import jax
import numpy as np

from elmo_jax.config_file import with_overrides
from elmo_jax.data.corpus import Corpus
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.tasks.core.data import Ladder, TaskData, choose_shapes
from elmo_jax.tasks.core.inputs import TextEncoder
from elmo_jax.tasks.core.program import TaskProgram
from elmo_jax.tasks.core.setup import TaskSetup
from elmo_jax.tasks.core.tagging import TaggedSentence
from elmo_jax.tasks.core.vocabulary import build
from elmo_jax.tasks.registry import default_config, get_task, task_config
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
    state = program.first_state(0, data.arrays(data.epoch(None)[0]))
    frozen, seed, rate = program.frozen(0, layers_are_given=True), np.uint32(0), np.float32(1e-3)

    def epoch() -> Any:
        nonlocal state
        for _, host in data.iterate(data.epoch(None)):
            state, _ = program.train_step(state, program.device_put(host), frozen, rate, seed)
        return state.step

    jax.block_until_ready(epoch())  # compiles
    seconds = statistics.median(machine.timed(epoch) for _ in range(REPEATS))
    numbers = machine.numbers(sum(map(len, sentences)), seconds, operations=0)
    return numbers | {"rows": config.train.batch_size}
