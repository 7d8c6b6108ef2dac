"""Every experiment is documented, and every pretraining builds: the whole step, with the published parameter counts."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from elmo_jax.checkpoints.softmax_layout import deinterleave
from elmo_jax.config_file import load_config
from elmo_jax.data.batches import TrainingBatch
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.windows import Window
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.errors import UserError
from elmo_jax.finetuning.source import with_architecture
from elmo_jax.model.bilm import BiLM, parameter_count
from elmo_jax.tasks.registry import NAMES
from elmo_jax.training.partitioning import map_step
from elmo_jax.training.setup import total_steps, warmup_warning
from elmo_jax.training.step import TrainStep, initial_state, without_softmax

FOLDER = Path(__file__).parents[2] / "experiments"
# The size of the vocabulary, the parameters without the softmax and those of the softmax, by experiment.
SIZES = {
    "pretrain_sotu_tiny": (21_644, 759_184, 21_644 * 65),
    "pretrain_english": (100_000, 5_421_392, 100_000 * 257),
    "pretrain_small": (100_000, 13_593_296, 100_000 * 129),
    "pretrain_1b_word": (793_471, 93_600_848, 500_651_471 - 93_600_848),
}
# The experiment whose model is fine-tuned, with its architecture and vocabulary, by fine-tuning.
FINETUNED = {
    "finetune_legal": "pretrain_sotu_tiny",
    "finetune_english": "pretrain_english",
}


# The command in the docstring of each experiment.
COMMANDS = {
    **{name: f"elmo-jax pretrain --config experiments/{name}.py" for name in SIZES},
    **{name: f"elmo-jax finetune --from runs/{of.removeprefix('pretrain_')}" for name, of in FINETUNED.items()},
    "finetune_english": "elmo-jax finetune --from english",  # the packaged biLM
    "pretrain_auto": "elmo-jax pretrain --config experiments/pretrain_auto.py",
}


def test_every_experiment_is_listed_here():
    names = {path.stem for path in FOLDER.glob("*.py")} - {"licenses"}
    assert names == set(COMMANDS) | {f"task_{name}" for name in NAMES}  # those of tasks: tests of test_tasks


@pytest.mark.parametrize("name", [*SIZES, *FINETUNED])
def test_builds_with_the_right_parameter_counts(name):
    vocabulary, parameters, of_softmax = SIZES[FINETUNED.get(name, name)]
    config = load_config(FOLDER / f"{name}.py")
    if name in FINETUNED:
        config = with_architecture(config, load_config(FOLDER / f"{FINETUNED[name]}.py").model, FINETUNED[name])
    model = BiLM(config.model)
    step = TrainStep(model, config.train, total_steps=1000, vocabulary_size=vocabulary)
    state = jax.eval_shape(lambda: initial_state(config, model.clone(vocabulary_size=vocabulary), step.optimizer))
    assert parameter_count(without_softmax(state.params)) == parameters
    exported = jax.eval_shape(lambda params: deinterleave(params, vocabulary), state.params)
    assert parameter_count(exported["softmax"]) == of_softmax

    rows, unroll, types = config.train.batch_size, config.train.unroll_steps, vocabulary + 1000
    ints = jnp.int32
    shape = jax.ShapeDtypeStruct
    window = Window(
        words=shape((2 * rows * unroll,), ints),
        word_count=shape((1,), ints),
        inputs=shape((2, unroll, rows), ints),
        targets=shape((2, unroll, rows), ints),
    )
    batch = TrainingBatch(
        window,
        reset_state=shape((unroll, rows), bool),
        position=shape((rows, 2), ints),
        negatives=shape((2, config.train.negatives), ints),
        num_draws=shape((2,), np.float32),
    )
    program = map_step(step, state, make_mesh(jax.devices()[:1]))
    char_ids = shape((types, config.model.char_cnn.max_characters), jnp.int16)
    new, metrics = jax.eval_shape(program, state, batch, char_ids)
    assert jax.tree.map(lambda s: (s.shape, s.dtype), new) == jax.tree.map(lambda s: (s.shape, s.dtype), state)
    assert metrics.loss.shape == (2,)


class Prepared(Corpus):
    """A corpus of some size."""

    number = 0

    def __init__(self):
        pass

    def tokens(self, split):
        return self.number


@pytest.mark.parametrize(
    ("tokens", "cells", "epochs"),
    [(400_000, 256, 5.0), (5_000_000, 256, 2.0), (20_000_000, 512, 1.0), (10**9, 1024, 1.0)],
)
def test_the_size_follows_the_corpus(monkeypatch, tokens, cells, epochs):
    monkeypatch.setattr(Prepared, "number", tokens)
    monkeypatch.setattr(Corpus, "open", lambda path: Prepared())
    config = load_config(FOLDER / "pretrain_auto.py", ["--config.data.corpus=data/mine"])
    assert (config.model.lstm.cells, config.train.epochs, config.data.corpus) == (cells, epochs, "data/mine")
    assert warmup_warning(config, total_steps(config, Prepared())) is None
    with pytest.raises(UserError, match="chooses its settings by the corpus; give --config.data.corpus=DIR"):
        load_config(FOLDER / "pretrain_auto.py")


def test_1_billion_word_is_the_papers():
    config = load_config(FOLDER / "pretrain_1b_word.py")
    assert dataclasses.asdict(config.model.lstm) == {
        "cells": 4096,
        "projection": 512,
        "layers": 2,
        "cell_clip": 3.0,
        "projection_clip": 3.0,
        "skip_connections": True,
    }
    assert config.model.char_cnn.features == 2048 and config.model.dropout == 0.1
    train = config.train
    assert (train.unroll_steps, train.negatives, train.epochs, train.batch_size) == (20, 8192, 10.0, 3 * 128)
    optimizer = train.optimizer
    assert (optimizer.name, optimizer.learning_rate, optimizer.initial_accumulator) == ("adagrad", 0.2, 1.0)
    assert optimizer.clip_norm == 10 and optimizer.schedule == "constant" and train.carry == "endless"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_docstring_has_the_command(name):
    text = (FOLDER / f"{name}.py").read_text().split('"""')[1]
    assert COMMANDS[name] in text
    if name in FINETUNED:
        assert f"--config experiments/{name}.py" in text
