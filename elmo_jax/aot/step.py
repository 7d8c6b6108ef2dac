"""Compiles the training step ahead of time, from shapes alone, for devices that are not present.

It is the same step as in `pretrain`, mapped over the same kind of mesh with the same shardings and donated state.

The rates of chips and the slices of up to 256 of them are from Google Cloud's pages cloud.google.com/tpu/docs/v4, v5e,
v5p and v6e. A chip sends with all its links, in one direction: for v4, v5e and v6e at the page's "all-reduce bandwidth
per Pod", divided by the chips of a Pod (for v5e and v6e half of their "bidirectional inter-chip interconnect
bandwidth"), for v5p at the page's 4,800 Gbit/s. The memory that the compiler leaves to a program was read from its
out-of-memory errors (libtpu 0.0.42).
"""

import importlib.util
import math
import re
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh

from elmo_jax.config import Config
from elmo_jax.data.batches import TrainingBatch
from elmo_jax.data.windows import Window
from elmo_jax.distributed.mesh import REPLICATED, check_rows, make_mesh, named_shardings
from elmo_jax.errors import UserError
from elmo_jax.runs.progress import Progress
from elmo_jax.training.partitioning import BATCH_SPECS, map_step, model_for, softmax_placement, state_specs
from elmo_jax.training.softmax_sharding import Placement
from elmo_jax.training.step import TrainState, TrainStep, initial_state, without_softmax

_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Chip(NamedTuple):
    """The published data of one kind of chip."""

    usable: float  # the bytes of the main memory that a program can use
    rates: dict[str, float]  # per second: bf16 operations, bytes of the main memory, and bytes sent to other chips
    slices: tuple[str, ...]  # the shapes of the slices
    one_device: str | None = None  # libtpu's name of the setting that makes the two cores of a chip one device, if any


def _rates(compute: float, memory: float, exchange: float) -> dict[str, float]:
    return {"compute": compute, "memory": memory, "exchange": exchange}


CHIPS = {
    "v4": Chip(30.75 * 2**30, _rates(275e12, 1200e9, 1.1e15 / 4096), _CUBES, "megacore"),
    "v5e": Chip(15.75 * 2**30, _rates(197e12, 819e9, 200e9), _FLAT),
    "v5p": Chip(95.74 * 2**30, _rates(459e12, 2765e9, 600e9), _CUBES),
    "v6e": Chip(31.25 * 2**30, _rates(918e12, 1638e9, 400e9), _FLAT),
}


class Target(NamedTuple):
    """The devices to compile for."""

    topology: str
    devices: Sequence[jax.Device]
    chip: Chip | None  # None for CPUs, whose rates are not published


class Compiled(NamedTuple):
    """A compiled step, or the compiler's report that it does not fit."""

    text: str  # of the program; empty if it does not fit
    memory: dict[str, int]  # the bytes on one device: each part of the arguments, the temporaries and the program
    seconds: float  # that the compilation took


def find_target(topology: str) -> Target:
    """Returns the devices of a topology such as `v5e:16x16` or `cpu:8`."""
    name, _, count = topology.partition(":")
    if name == "cpu" and count.isdecimal() and int(count):
        devices = jax.devices("cpu")
        if int(count) > len(devices):
            flags = f"XLA_FLAGS=--xla_force_host_platform_device_count={count} and no JAX_NUM_CPU_DEVICES"
            raise UserError(f"--topology {topology}: JAX was started with {len(devices)} CPU devices; set {flags}")
        return Target(topology, devices[: int(count)], None)
    chip = CHIPS.get(name)
    if chip is None or count not in chip.slices:
        known = f"slices of {name}: {', '.join(chip.slices)}" if chip else f"chips: {', '.join(CHIPS)}"
        raise UserError(f"--topology {topology}: no such slice ({known}; or cpu:8 for a mesh of 8 CPU devices)")
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"--topology {topology}: the TPU's compiler is not installed; pip install 'elmo_jax[tpu]'")
    shape = [int(size) for size in count.split("x")]
    # A host has 2 x 2 chips, or all chips of a smaller slice.
    options: dict[str, Any] = {"chips_per_host_bounds": tuple(min(2, size) for size in (*shape[:2], 1))}
    if chip.one_device:
        options["chip_config_name"] = chip.one_device
    description = topologies.get_topology_desc(topology, "tpu", **options)
    return Target(topology, description.devices, chip)


def step_shapes(
    config: Config, step: TrainStep, mesh: Mesh, word_types: int
) -> tuple[TrainState, TrainingBatch, jax.ShapeDtypeStruct]:
    """Returns the arguments of the step as shapes of global arrays: state, batch and the lexicon's character ids."""
    model = step.model.clone(vocabulary_size=step.vocabulary_size)
    state = jax.eval_shape(lambda: initial_state(config, model, step.optimizer))
    rows, steps = config.train.batch_size, config.train.unroll_steps
    groups, directions = mesh.size * config.train.accumulate, len(config.model.directions)
    distinct = min(directions * steps * rows // groups, word_types)  # U: the most distinct words of a group's window

    def shape(*dims: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, dtype)

    indices = shape(directions, steps, rows)
    batch = TrainingBatch(
        Window(words=shape(groups * distinct), word_count=shape(groups), inputs=indices, targets=indices),
        reset_state=shape(steps, rows, dtype=bool),
        position=shape(rows, 2),
        negatives=shape(directions, config.train.negatives),
        num_draws=shape(directions, dtype=jnp.float32),
    )
    return state, batch, shape(word_types, config.model.char_cnn.max_characters, dtype=jnp.int16)


def compile_step(config: Config, target: Target, vocabulary_size: int, word_types: int) -> Compiled:
    """Compiles the training step for a target, and shows on stderr what it is doing.

    `vocabulary_size` is V, the words of the softmax, and `word_types` those of the lexicon, whose character ids every
    device holds.
    """
    mesh = make_mesh(target.devices)
    check_rows(config.train.batch_size, mesh, config.train.accumulate)
    placement = softmax_placement(config, vocabulary_size, mesh)
    model = model_for(config, mesh)
    step = TrainStep(model, config.train, total_steps=1, vocabulary_size=vocabulary_size, placement=placement)
    state, batch, char_ids = step_shapes(config, step, mesh, word_types)
    parts = _parts(state, batch, char_ids, mesh, placement)
    with Progress("tracing the step"):
        lowered = map_step(step, state, mesh).lower(state, batch, char_ids)
    began = time.perf_counter()
    try:
        with Progress(f"compiling it for {target.topology}, which takes minutes for a large model"):
            compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        size = r"([\d.]+)([KMGT]?)"
        used = re.search(rf"(Used |\(){size}( of|\) exceeds available HBM) ", str(error))
        if used is None:
            raise UserError(f"the compiler ran out of memory: {' '.join(str(error).split())[:300]}") from None
        others = int(float(used[2]) * _UNITS[used[3]]) - sum(parts.values())
        return Compiled("", {**parts, "temporaries and others": others}, time.perf_counter() - began)
    analysis: Any = compiled.memory_analysis()
    arguments = analysis.argument_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    memory = parts | {
        "padding and results": arguments - sum(parts.values()),
        "temporaries": analysis.temp_size_in_bytes,
        "program": analysis.generated_code_size_in_bytes,
    }
    return Compiled(str(compiled.as_text()), memory, time.perf_counter() - began)


def _parts(
    state: TrainState, batch: TrainingBatch, char_ids: jax.ShapeDtypeStruct, mesh: Mesh, placement: Placement
) -> dict[str, int]:
    """Returns the bytes of the step's arguments on one device by part, without the padding that a device may add."""
    specs = state_specs(state, mesh, placement)

    def bytes_of(shapes: Any, specs: Any) -> int:
        def size(s: Any, sharding: Any) -> int:
            return math.prod(sharding.shard_shape(s.shape)) * s.dtype.itemsize

        return sum(jax.tree.leaves(jax.tree.map(size, shapes, named_shardings(specs, mesh))))

    return {
        "parameters": bytes_of(without_softmax(state.params), without_softmax(specs.params)),
        "optimizer": bytes_of(state.dense_optimizer, specs.dense_optimizer),
        "softmax rows": bytes_of(state.params["softmax"], specs.params["softmax"]),
        "softmax accumulator": bytes_of(state.softmax_accumulator, specs.softmax_accumulator),
        "LSTM carry": bytes_of(state.carry, specs.carry),
        "character ids": bytes_of(char_ids, REPLICATED),
        "batch": bytes_of(batch, BATCH_SPECS) + bytes_of(state.position, specs.position),
    }
