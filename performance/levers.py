"""Measures the gain of each optimization for speed alone: `python -m performance.levers data/sotu` (or `make levers`).

Each optimization is run in turns with its plain form, which is equal to it by the tests, in one process (in several
where the settings of the C library differ), so that the other load of the machine affects both. In training, the
forward and the backward pass are timed. The table has the medians of the wall time and of the processor time of all
cores, which other processes disturb less.

Shapes: U distinct words, W characters, T steps, B rows, P dimension of the projection, C cells, V words of the
vocabulary.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from elmo_jax.characters import PADDING
from elmo_jax.checkpoints.export import PretrainedBiLM
from elmo_jax.data.corpus import Corpus
from elmo_jax.distributed.cpu import available_cores, divide_cpu, keep_freed_memory
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.embedding import embed as embedding
from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.model import char_cnn, lstm, reference
from elmo_jax.model.bilm import BiLM, LSTMForm, initial_carry, initial_params
from elmo_jax.model.precision import Precision
from elmo_jax.training import partitioning
from elmo_jax.training.optimizer import adagrad_rows, combine_rows
from performance.infer import BATCH, heldout_sentences
from performance.machine import squares
from performance.sizes import SIZES
from performance.train import Training, host_batches

STEPS = 20
ROWS_OF_A_DEVICE = 16  # in `make pretrain` on 2 cores
Form = Callable[[], Any]
TimedForm = Callable[[], tuple[float, float]]


def compare(title: str, plain: tuple[str, Form], lever: tuple[str, Form], turns: int) -> None:
    """Runs both forms in turns and prints one line."""
    compare_timed(title, (plain[0], partial(_timed, plain[1])), (lever[0], partial(_timed, lever[1])), turns)


def _timed(form: Form) -> tuple[float, float]:
    """Runs a form and returns its seconds and its processor seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    jax.block_until_ready(form())
    return time.perf_counter() - wall, time.process_time() - processor


def compare_timed(title: str, plain: tuple[str, TimedForm], lever: tuple[str, TimedForm], turns: int) -> None:
    """Runs both forms in turns, which return their seconds and their processor seconds, and prints one line."""
    found: dict[str, list[tuple[float, float]]] = {"plain": [], "lever": []}
    for turn in range(turns + 1):
        for name, (_, form) in (("plain", plain), ("lever", lever)):
            times = form()
            if turn:  # the first turn compiles
                found[name].append(times)
    wall, processor = (
        [statistics.median(times[kind] for times in found[name]) for name in ("plain", "lever")] for kind in (0, 1)
    )
    print(
        f"{title:<34} {wall[0] * 1e3:>9.1f} {wall[1] * 1e3:>9.1f} {wall[0] / wall[1]:>6.2f} ×"
        f" {processor[0] / processor[1]:>6.2f} ×  {plain[0]} -> {lever[0]}",
        flush=True,
    )


class Batch:
    """A training batch of one size of the biLM, and the model."""

    def __init__(self, name: str, corpus: Corpus) -> None:
        self.size = SIZES[name]
        self.model = BiLM(self.size.model, encoder_chunk=256)
        self.params = initial_params(self.model, jax.random.key(0))
        spellings = corpus.spellings()
        batch = next(host_batches(self.size, corpus, spellings, self.size.rows, 1))
        window = batch.window
        self.inputs = jnp.asarray(window.inputs)
        self.count = int(window.word_count[0])
        room = -(-self.count // 256) * 256  # the number of distinct words, rounded up to whole chunks
        self.words = jnp.asarray(spellings[window.words[:room]])  # [U, W], short ones first
        self.every_token = jnp.asarray(spellings[window.words[window.inputs.reshape(-1)]])  # [2TB, W]
        self.targets, self.negatives = jnp.asarray(window.targets), jnp.asarray(batch.negatives)

    def encoder(self, characters: jax.Array, count: int, gather: jax.Array | None = None) -> Form:
        """Returns the forward and the backward pass of the encoder and of the gathering of its vectors."""

        # All data are arguments, since XLA would evaluate constants at compile time.
        @jax.jit
        def run(params: Any, characters: jax.Array, count: jax.Array, gather: jax.Array | None) -> Any:
            def loss(params: Any) -> Any:
                vectors = self.model.apply({"params": params}, characters, count, method="encode")
                return squares(vectors if gather is None else vectors[gather])

            return jax.grad(loss)(params)

        return lambda: run(self.params, characters, jnp.int32(count), gather)


def encoder_levers(batch: Batch, turns: int) -> None:
    """Measures distinct words, cut positions, the order by length, and the gradient of the maximum."""
    distinct = batch.encoder(batch.words, batch.count, batch.inputs)
    tokens = batch.every_token
    every = batch.encoder(tokens, len(tokens))
    compare("distinct words once", ("every token", every), ("distinct", distinct), max(1, turns // 4))

    # With one word of 48 bytes in each chunk of 256, all positions are convolved.
    long = batch.words.at[::256].set(jnp.full(batch.words.shape[1], ord("x"), batch.words.dtype))
    all_positions, cut = batch.encoder(long, batch.count), batch.encoder(batch.words, batch.count)
    compare("cut character positions", ("all 50", all_positions), ("what the chunk needs", cut), turns)
    mixed = batch.words[np.random.default_rng(0).permutation(len(batch.words))]
    unsorted = batch.encoder(mixed, len(mixed))
    compare("short words first", ("as they come", unsorted), ("sorted", batch.encoder(batch.words, len(mixed))), turns)

    product = batch.encoder(batch.words, batch.count)
    with mock.patch.object(char_cnn, "add_rows", _add_by_product):
        product()  # compiles
    compare("characters' gradients, on a CPU", ("one-hot product", product), ("row by row", cut), turns)

    config, projection = batch.size.model.char_cnn, batch.size.model.lstm.projection
    lengths = np.sum(np.asarray(batch.words) != PADDING, 1)
    widest = max(width for width, _ in config.filters)
    positions = min(config.max_characters, int(lengths.max()) + widest)  # the number of positions of both forms
    characters = batch.words[: batch.count]

    one_chunk = BiLM(batch.size.model, encoder_chunk=len(characters))

    @jax.jit
    def plain(params: Any, characters: jax.Array) -> Any:
        return jax.grad(lambda p: squares(reference.encode(p, characters, config, projection)))(params)

    @jax.jit
    def own(params: Any, characters: jax.Array) -> Any:
        return jax.grad(
            lambda p: squares(one_chunk.apply({"params": {"token_encoder": p}}, characters, method="encode"))
        )(params)

    encoder = batch.params["token_encoder"]
    compare(
        "maximum's own backward pass",
        ("XLA's convolution and autodiff", lambda: plain(encoder, characters[:, :positions])),
        (f"own, {positions} positions", lambda: own(encoder, characters)),
        max(1, turns // 2),
    )


def _add_by_product(table: jax.Array, ids: jax.Array, vectors: jax.Array) -> jax.Array:
    return char_cnn.add_product(table, ids.reshape(-1), vectors.reshape(-1, table.shape[1]))


def lstm_levers(batch: Batch, turns: int) -> None:
    """Measures one layer of one direction, with its forward and backward pass."""
    config = batch.size.model.lstm
    params, rows = batch.params["forward"]["layer_0"], batch.size.rows
    inputs = jax.random.normal(jax.random.key(1), (STEPS, rows, config.projection))
    state = lstm.State(jnp.zeros((rows, config.cells)), jnp.zeros((rows, config.projection)))

    def form(
        products: lstm.InputProducts,
        backward: bool = True,
        precision: Precision = Precision.FLOAT32,
        bits: bool = True,
        transposed: bool = False,
    ) -> Form:
        settings = lstm.LSTMSettings.of(config, precision, input_products=products, bits=bits, transposed=transposed)
        matrices = jax.tree.map(jnp.transpose, params) if transposed else params

        def loss(params: Any, inputs: jax.Array) -> Any:
            return squares(lstm.projected_lstm(params, inputs, state, settings)[0])

        run = jax.jit(jax.grad(loss, (0, 1)) if backward else loss)
        return lambda: run(matrices, inputs)

    @jax.jit
    def autodiff(params: Any, inputs: jax.Array) -> Any:
        settings = lstm.LSTMSettings.of(config, Precision.FLOAT32)

        def outputs(params: Any, inputs: Any) -> Any:
            return reference.lstm_layer(params, inputs, state, settings.cell_clip, settings.projection_clip)[0]

        return jax.grad(lambda p, x: squares(outputs(p, x)), (0, 1))(params, inputs)

    before, inside = lstm.InputProducts.BEFORE_SCAN, lstm.InputProducts.IN_STEP
    own = form(inside)
    compare(
        "LSTM: weights' gradient after scan",
        ("autodiff", lambda: autodiff(params, inputs)),
        ("own backward pass", own),
        max(1, turns // 2),
    )
    compare("LSTM: input products, training", ("before the scan", form(before)), ("in the step", own), turns)
    at_first, right = form(before, backward=False), form(inside, backward=False)
    left = form(inside, backward=False, transposed=True)
    compare("LSTM: input products, inference", ("before the scan", at_first), ("in the step", right), 2 * turns)
    compare("LSTM: matrices, inference", ("right operand", right), ("left operand", left), 2 * turns)
    rounded = form(inside, precision=Precision.BFLOAT16)
    over_one = form(inside, precision=Precision.BFLOAT16)
    with mock.patch.object(Precision, "summed_product", _summed_over_one_axis):
        over_one()  # compiles
    compare("LSTM: bfloat16 weights' gradient", ("sum over one axis", over_one), ("over two axes", rounded), turns)
    as_they_are = form(inside, precision=Precision.BFLOAT16, bits=False)
    compare("LSTM: loops write bfloat16", ("as it is", as_they_are), ("as integers", rounded), turns)
    compare("LSTM: precision", ("float32", own), ("bfloat16", rounded), turns)


def _summed_over_one_axis(precision: Precision, a: jax.Array, b: jax.Array) -> jax.Array:
    return precision.product(a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1]), (0, 0))


def directions_lever(batch: Batch, turns: int) -> None:
    """Measures both directions of the stack, with their forward and backward pass."""
    rows = batch.size.rows
    vectors = jax.random.normal(jax.random.key(2), (2, STEPS, rows, batch.size.model.lstm.projection))
    carry = initial_carry(batch.size.model, rows)

    def stack(form: LSTMForm) -> Form:
        model = batch.model.clone(form=form)

        @jax.jit
        def run(params: Any, vectors: jax.Array) -> Any:
            def loss(params: Any, vectors: jax.Array) -> Any:
                return squares(model.apply({"params": params}, vectors, carry, method="run_layers")[0][-1])

            return jax.grad(loss, (0, 1))(params, vectors)

        return lambda: run(batch.params, vectors)

    compare(
        "directions",
        ("together", stack(LSTMForm.of("gpu"))),
        ("apart", stack(LSTMForm.of("cpu"))),
        turns,
    )


def softmax_levers(batch: Batch, turns: int, vocabulary_size: int) -> None:
    """Measures the update of the rows that a step touches against that of the whole table."""
    projection = batch.size.model.lstm.projection
    spread = np.asarray(batch.negatives, np.int64).reshape(-1) * vocabulary_size // batch.size.vocabulary_size
    ids = jnp.concatenate([batch.targets.reshape(-1), jnp.asarray(spread, jnp.int32)])
    gradient = jax.random.normal(jax.random.key(3), (len(ids), projection))

    def rows(values: jax.Array, sums: jax.Array, ids: jax.Array, gradient: Any) -> Any:
        summed: Any
        once, summed = combine_rows(ids, gradient, vocabulary_size)
        scale = 10 / jnp.maximum(jnp.sqrt(jnp.sum(summed**2)), 10)
        return adagrad_rows(values, sums, once, scale * summed, jnp.float32(0.2))

    def dense(values: jax.Array, sums: jax.Array, ids: jax.Array, gradient: jax.Array) -> Any:
        whole = jnp.zeros_like(values).at[ids].add(gradient)
        scale = 10 / jnp.maximum(jnp.sqrt(jnp.sum(whole**2)), 10)
        return adagrad_rows(values, sums, None, scale * whole, jnp.float32(0.2))

    def form(update: Callable[..., Any]) -> Form:
        run, state = jax.jit(update, donate_argnums=(0, 1)), [jnp.ones((vocabulary_size, projection)) for _ in range(2)]

        def once() -> Any:
            state[:] = run(*state, ids, gradient)
            return state

        return once

    title = f"softmax: rows only, V = {vocabulary_size:,}"
    compare(title, ("whole table", form(dense)), ("drawn rows", form(rows)), turns)


def devices_lever(name: str, corpus: Corpus, turns: int) -> None:
    """Measures whole training steps with one device per core, and with how many words such a device encodes at once."""
    size, devices, steps = SIZES[name], jax.devices(), 4 if name == "tiny" else 1
    one, all_devices = (
        Training(size, corpus, make_mesh(devices[:number]), size.rows, Precision.FLOAT32)
        for number in (1, len(devices))
    )
    compare(
        "step: a device per core" + ("" if name == "tiny" else " (not taken)"),
        ("one device", lambda: one.run(steps)),
        (f"{len(devices)} devices", lambda: all_devices.run(steps)),
        turns,
    )
    if name == "tiny":
        mesh, rows = make_mesh(devices), ROWS_OF_A_DEVICE * len(devices)
        with mock.patch.object(partitioning, "preferred_encoder_chunk", return_value=256):
            large = Training(size, corpus, mesh, rows, Precision.FLOAT32)
        small = Training(size, corpus, mesh, rows, Precision.FLOAT32)
        compare(
            f"step of {rows} rows: words per chunk",
            (f"256 on {len(devices)} devices", lambda: large.run(2 * steps)),
            (f"{partitioning.preferred_encoder_chunk(mesh)}", lambda: small.run(2 * steps)),
            turns,
        )


def memory_lever(name: str, corpus: Path, turns: int, environment: dict[str, str]) -> None:
    """Measures training steps as `pretrain` makes them, without and with both forms of `keep_freed_memory`."""
    steps = 4 if name == "tiny" else 1
    command = [sys.executable, "-m", "performance.levers", str(corpus), "--answer", name, str(steps)]
    with contextlib.ExitStack() as stack:

        def form(memory: str) -> TimedForm:
            process = subprocess.Popen(
                [*command, memory], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            questions, answers = stack.enter_context(process).stdin, process.stdout
            assert questions is not None and answers is not None

            def once() -> tuple[float, float]:
                print(file=questions, flush=True)
                wall, processor = map(float, answers.readline().split())
                return wall, processor

            return once

        returned, shared, per_thread = form("returned"), form("shared"), form("per_thread")
        compare_timed("step: freed memory kept", ("returned", returned), ("shared by the threads", shared), turns)
        compare_timed("step: memory per thread", ("shared", shared), ("per thread", per_thread), turns)


def answer(corpus: Path, name: str, steps: int, memory: str) -> None:
    """Makes training steps for each line of standard input, and prints their seconds and their processor seconds.

    So the steps of several processes, whose C libraries are set differently, can be timed in turns.
    """
    if memory != "returned":
        keep_freed_memory(per_thread=memory == "per_thread")
    size = SIZES[name]
    divide_cpu(size.model.lstm, size.rows)
    training = Training(size, Corpus.open(corpus), make_mesh(), size.rows, Precision.FLOAT32)
    for _ in sys.stdin:
        print(*_timed(lambda: training.run(steps)), flush=True)


def inference_levers(name: str, corpus: Corpus, turns: int) -> None:
    """Measures inference for the middle and the longest batch of 64 sentences."""
    config = SIZES[name].model
    params = jax.device_get(initial_params(BiLM(config), jax.random.key(0)))
    bilm = EmbeddingBiLM.of(PretrainedBiLM(config, params, None, {}, ""))
    sentences = sorted(heldout_sentences(corpus), key=len)
    own = embedding.ON_CPU.windows
    for title, start in (("middle", len(sentences) // 2), ("longest", len(sentences) - BATCH)):
        part = sentences[start : start + BATCH]

        def run(windows: tuple[int, ...], part: list[list[str]] = part) -> Form:
            def once() -> Any:
                with mock.patch.object(embedding, "ON_CPU", embedding.ON_CPU._replace(windows=windows)):
                    return bilm.embed(part)[0]

            return once

        whole = (2 + max(map(len, part)),)
        compare(
            f"embed: windows, {title} batch",
            ("padded to the longest", run(whole)),
            (f"windows of {own}, ended rows left out", run(own)),
            turns,
        )
    words = [word for sentence in sentences[:256] for word in sentence]
    bilm.words(words)
    compare(
        "embed: words kept",
        ("every distinct word of the call", lambda: bilm.words.encode(sorted(set(words)))),
        ("found again", lambda: bilm.words(words)),
        max(1, turns // 2),
    )


def main() -> None:
    """Measures all optimizations and prints the table."""
    parser = argparse.ArgumentParser("python -m performance.levers", description=__doc__)
    parser.add_argument("corpus", type=Path, help="a prepared corpus")
    parser.add_argument("--sizes", default="tiny,small", help="%(default)s")
    parser.add_argument(
        "--turns", type=int, default=8, help="number of times that each form is timed (default: %(default)s)"
    )
    parser.add_argument("--answer", nargs=3, help=argparse.SUPPRESS)  # what `memory_lever` starts
    options = parser.parse_args()
    if options.answer:
        name, steps, memory = options.answer
        answer(options.corpus, name, int(steps), memory)
        return
    environment = dict(os.environ)
    keep_freed_memory()  # as the commands do
    corpus = Corpus.open(options.corpus)
    jax.config.update("jax_num_cpu_devices", min(2, available_cores()))  # all but `devices_lever` use the first one
    for name in options.sizes.split(","):
        print(f"\n{name:<34} {'plain ms':>9} {'lever ms':>9} {'gain':>8} {'of CPU':>8}")
        batch = Batch(name, corpus)
        encoder_levers(batch, options.turns)
        lstm_levers(batch, options.turns)
        directions_lever(batch, options.turns)
        devices_lever(name, corpus, options.turns)
        memory_lever(name, options.corpus, options.turns, environment)
        softmax_levers(batch, options.turns, batch.size.vocabulary_size)
        if name == "small":
            softmax_levers(batch, max(1, options.turns // 3), 793_471)
        inference_levers(name, corpus, options.turns)


if __name__ == "__main__":
    main()
