"""Compiles the training step ahead of time, from shapes alone, for devices that are not present.

It is the same step as in `pretrain`, mapped over the same kind of mesh with the same shardings and donated state.
"""

import dataclasses
import importlib.util
import re
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from elmo_jax.aot.chips import Chip, find_slice
from elmo_jax.config import Config
from elmo_jax.data.batches import TrainingBatch
from elmo_jax.data.windows import Window
from elmo_jax.distributed.mesh import REPLICATED, check_rows, make_mesh, named_shardings
from elmo_jax.errors import UserError
from elmo_jax.runs.progress import Progress
from elmo_jax.training.partitioning import BATCH_SPECS, map_step, model_for, softmax_placement, state_specs
from elmo_jax.training.softmax_sharding import Placement
from elmo_jax.training.step import TrainState, TrainStep, initial_state, without_softmax


@dataclasses.dataclass(frozen=True)
class Target:
    """The devices to compile for."""

    topology: str
    devices: Sequence[jax.Device]
    chip: Chip | None  # None for CPUs, whose rates are not published


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled step."""

    text: str  # of the program
    memory: dict[str, int]  # the bytes on one device: each part of the arguments, the temporaries and the program
    seconds: float  # that the compilation took


class DoesNotFit(Exception):
    """The compiler reports that the step needs more memory than a device has.

    Attributes:
      needed: the bytes that the step needs, according to the compiler.
      usable: the bytes that a program can use, according to the compiler.
      parts: the bytes of the step's arguments, by name.
    """

    def __init__(self, needed: float, usable: float, parts: dict[str, int]):
        super().__init__(f"needs {needed / 1e9:.1f} GB of {usable / 1e9:.1f}")
        self.needed, self.usable, self.parts = needed, usable, parts


def find_target(topology: str) -> Target:
    """Returns the devices of a topology such as `v5e:16x16` or `cpu:8`.

    Raises:
      UserError: the topology does not exist, there are too few CPU devices, or libtpu, the compiler, is not installed.
    """
    name, _, count = topology.partition(":")
    if name == "cpu" and count.isdigit() and int(count):
        devices = jax.devices("cpu")
        if int(count) > len(devices):
            raise UserError(
                f"--topology {topology}: JAX was started with {len(devices)} CPU devices; set"
                f" XLA_FLAGS=--xla_force_host_platform_device_count={count}"
            )
        return Target(topology, devices[: int(count)], None)
    chip, shape = find_slice(topology)
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"--topology {topology}: the TPU's compiler is not installed; pip install 'elmo_jax[tpu]'")
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
    """Compiles the training step, and shows on stderr what it is doing.

    Args:
      config: the settings; `train.batch_size` counts the rows of all devices.
      target: the devices that the step would run on.
      vocabulary_size: V, the words of the softmax.
      word_types: the words of the lexicon, whose character ids every device holds.

    Raises:
      UserError: the number of devices does not divide the number of rows.
      DoesNotFit: the step needs more memory than a device has.
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
        raise _too_large(str(error), parts) from None
    return Compiled(compiled.as_text() or "", _memory(compiled.memory_analysis(), parts), time.perf_counter() - began)


def _parts(
    state: TrainState, batch: TrainingBatch, char_ids: jax.ShapeDtypeStruct, mesh: Mesh, placement: Placement
) -> dict[str, int]:
    """Returns the bytes of the step's arguments on one device by part, without the padding that a device may add."""
    specs = state_specs(state, mesh, placement)

    def bytes_of(shapes: Any, specs: Any) -> int:
        shardings = named_shardings(specs, mesh)
        sizes = jax.tree.map(
            lambda s, sharding: int(np.prod(sharding.shard_shape(s.shape), dtype=np.int64)) * s.dtype.itemsize,
            shapes,
            shardings,
        )
        return sum(jax.tree.leaves(sizes))

    return {
        "parameters": bytes_of(without_softmax(state.params), without_softmax(specs.params)),
        "optimizer": bytes_of(state.dense_optimizer, specs.dense_optimizer),
        "softmax rows": bytes_of(state.params["softmax"], specs.params["softmax"]),
        "softmax accumulator": bytes_of(state.softmax_accumulator, specs.softmax_accumulator),
        "LSTM carry": bytes_of(state.carry, specs.carry),
        "character ids": bytes_of(char_ids, REPLICATED),
        "batch": bytes_of(batch, BATCH_SPECS) + bytes_of(state.position, specs.position),
    }


def _memory(analysis: Any, parts: dict[str, int]) -> dict[str, int]:
    arguments = analysis.argument_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return parts | {
        "padding and results": arguments - sum(parts.values()),
        "temporaries": analysis.temp_size_in_bytes,
        "program": analysis.generated_code_size_in_bytes,
    }


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _too_large(message: str, parts: dict[str, int]) -> DoesNotFit:
    size = r"([\d.]+)([KMGT]?)"
    match = re.search(rf"Used {size} of {size} hbm", message) or re.search(
        rf"\({size}\) exceeds available HBM \({size}\)", message
    )
    if match is None:
        raise UserError(f"the compiler ran out of memory: {' '.join(message.split())[:300]}")
    needed, usable = (float(match[n]) * _UNITS[match[n + 1]] for n in (1, 3))
    return DoesNotFit(needed, usable, parts)
