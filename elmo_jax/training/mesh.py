"""Devices: the mesh, what is divided over it, and the training step mapped to it.

There is one axis, `data`. Rows of the batch are divided over it; parameters, optimizer and lexicon are on every device,
but the softmax's rows, which may be divided too (`Placement`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from elmo_jax.config import Config
from elmo_jax.data.batches import TrainingBatch, Window
from elmo_jax.errors import UserError
from elmo_jax.model.bilm import BiLM, LSTMForm
from elmo_jax.model.precision import Precision
from elmo_jax.training.exchange import AXIS, Placement, choose_placement
from elmo_jax.training.state import TrainState
from elmo_jax.training.step import TrainStep

EVERYWHERE = PartitionSpec()
ROWS = PartitionSpec(AXIS)
WINDOW_SPECS = Window(
    words=ROWS,
    word_count=ROWS,
    inputs=PartitionSpec(None, None, AXIS),
    targets=PartitionSpec(None, None, AXIS),
)
BATCH_SPECS = TrainingBatch(
    WINDOW_SPECS, restart=PartitionSpec(None, AXIS), position=ROWS, negatives=EVERYWHERE, tries=EVERYWHERE
)


def make_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """All devices of all processes, or those given, along the axis `data`; those of a process side by side."""
    devices = sorted(
        jax.devices() if devices is None else devices, key=lambda device: (device.process_index, device.id)
    )
    return Mesh(np.asarray(devices), (AXIS,), axis_types=(AxisType.Auto,))


def check_rows(batch_size: int, mesh: Mesh) -> None:
    """Raises `UserError` if the devices do not divide the batch."""
    devices = mesh.size
    if batch_size % devices:
        near = max(1, round(batch_size / devices)) * devices
        raise UserError(
            f"config.train.batch_size: {batch_size} rows cannot be divided over {devices} devices; take a multiple of"
            f" {devices}, for example {near}"
        )


def local_rows(rows: int, mesh: Mesh) -> range:
    """Rows of the global batch that this process's devices hold; the mesh keeps the devices of a process together."""
    share = rows // mesh.size
    places = [place for place, device in enumerate(mesh.devices.flat) if device.process_index == jax.process_index()]
    return range(places[0] * share, (places[-1] + 1) * share)


def preferred_form(mesh: Mesh) -> LSTMForm:
    """How these devices run the LSTMs best."""
    return LSTMForm.of(mesh.devices.flat[0].platform)


def preferred_encoder_chunk(mesh: Mesh) -> int:
    """Distinct words encoded at a time: accelerators need larger products to be busy."""
    return 256 if mesh.devices.flat[0].platform == "cpu" else 1024


def model_for(config: Config, mesh: Mesh) -> BiLM:
    """The biLM of an experiment, without softmax, as these devices run it best."""
    return BiLM(
        config.model,
        precision=Precision(config.train.precision),
        form=preferred_form(mesh),
        encoder_chunk=preferred_encoder_chunk(mesh),
    )


def softmax_placement(config: Config, vocabulary_size: int, mesh: Mesh) -> Placement:
    """Where a training on this mesh has the softmax's rows. Raises `UserError` where it cannot be as `config` says."""
    train = config.train
    targets = 2 * train.batch_size // mesh.size * train.unroll_steps
    projection = config.model.lstm.projection
    return choose_placement(train.softmax, mesh.size, vocabulary_size, projection, targets, 2 * train.negatives)


def params_specs(params: Any, placement: Placement) -> Any:
    """A `PartitionSpec` for every array of a parameter tree with a softmax."""
    rows = jax.tree.map(lambda _: placement.spec, params["softmax"])
    return jax.tree.map(lambda _: EVERYWHERE, params) | {"softmax": rows}


def state_specs(state: Any, placement: Placement = Placement.REPLICATED) -> Any:
    """A `PartitionSpec` for every array of a `TrainState` (or of its shapes)."""
    specs = jax.tree.map(lambda _: EVERYWHERE, state)
    specs.params = params_specs(state.params, placement)
    specs.softmax_accumulator = specs.params["softmax"]
    specs.carry = jax.tree.map(lambda _: PartitionSpec(None, AXIS), state.carry)
    specs.position = ROWS
    return specs


def shardings(specs: Any, mesh: Mesh) -> Any:
    """The specs on this mesh."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda x: isinstance(x, PartitionSpec))


def map_step(step: TrainStep, state: TrainState, mesh: Mesh) -> jax.stages.Wrapped:
    """The step over all devices, `(state, batch, spellings) -> (state, metrics)`, compiled at its first call.

    The memory of the state that goes in is reused.
    """
    specs = state_specs(state, step.placement)
    # each device's program states itself what is averaged, so there is nothing for the replication check to insert
    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=(specs, BATCH_SPECS, EVERYWHERE), out_specs=(specs, EVERYWHERE), check_vma=False
    )
    return jax.jit(mapped, donate_argnums=0)


def to_devices(arrays: Any, specs: Any, mesh: Mesh) -> Any:
    """This process's part of some arrays as global arrays.

    A divided array holds the rows of this process's devices only; any other is the same on all processes.
    """
    with jax.transfer_guard("allow"):  # the training loop forbids those that nobody asked for
        return jax.tree.map(
            lambda array, spec: jax.make_array_from_process_local_data(NamedSharding(mesh, spec), array),
            arrays,
            specs,
        )


def divided(arrays: Any, specs: Any, mesh: Mesh) -> Any:
    """Some arrays that every process has whole, as global arrays."""
    return jax.tree.map(
        lambda array, spec: jax.make_array_from_callback(array.shape, NamedSharding(mesh, spec), lambda i: array[i]),
        arrays,
        specs,
    )


def whole(tree: Any) -> Any:
    """All of some arrays on every host, divided or not. Every process calls it."""

    def one(array: jax.Array) -> np.ndarray:
        if array.is_fully_addressable or array.is_fully_replicated:
            return np.asarray(jax.device_get(array))
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))

    return jax.tree.map(one, tree)


def to_host(array: jax.Array, axis: int = 0) -> np.ndarray:
    """This process's part of an array that is divided along `axis`."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[axis].start or 0)
    return np.concatenate([jax.device_get(shard.data) for shard in shards], axis)
