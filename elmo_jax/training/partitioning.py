"""Places the arrays of a training on the mesh, and maps the training step over it.

The rows of the batch are divided over the axes of the mesh. Parameters and lexicon are replicated, except for the
softmax's rows, which may be divided as well (`Placement`); so is the optimizer's state of large matrices
(`dense_sharding`).
"""

import dataclasses
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from elmo_jax.checkpoints.softmax_layout import interleave
from elmo_jax.config import Config
from elmo_jax.data.batches import TrainingBatch
from elmo_jax.data.windows import Window
from elmo_jax.distributed.cpu import LARGEST_BLOCK, is_small, multiplies_bfloat16
from elmo_jax.distributed.mesh import AXIS, REPLICATED, ROWS, WITHIN, distribute
from elmo_jax.model.bilm import BiLM, LSTMForm
from elmo_jax.model.precision import Precision
from elmo_jax.training.dense_sharding import optimizer_specs
from elmo_jax.training.softmax_sharding import Placement, choose_placement
from elmo_jax.training.step import TrainState, TrainStep
from elmo_jax.types import Tree

WINDOW_SPECS = Window(
    words=ROWS,
    word_count=ROWS,
    inputs=PartitionSpec(None, None, AXIS),
    targets=PartitionSpec(None, None, AXIS),
)
BATCH_SPECS = TrainingBatch(
    WINDOW_SPECS, reset_state=PartitionSpec(None, AXIS), position=ROWS, negatives=REPLICATED, num_draws=REPLICATED
)


def with_precision(config: Config, mesh: Mesh) -> Config:
    """Returns the settings with what `train.precision = "auto"` means on these devices."""
    if config.train.precision != "auto":
        return config
    rounded = mesh.devices.flat[0].platform != "cpu" or multiplies_bfloat16()
    train = dataclasses.replace(config.train, precision="bfloat16" if rounded else "float32")
    return dataclasses.replace(config, train=train)


def preferred_encoder_chunk(mesh: Mesh) -> int:
    """Returns the number of distinct words to encode at a time.

    Products must be large to be efficient on an accelerator, or on all cores of a CPU together. Where each core is a
    device, it has few words, and a large last chunk would be mostly padding.
    """
    if mesh.devices.flat[0].platform != "cpu":
        return 2048
    return 256 if mesh.size == 1 else 64


def model_for(config: Config, mesh: Mesh) -> BiLM:
    """Returns the biLM of an experiment, without softmax, in the form that is fastest on these devices."""
    return BiLM(
        config.model,
        precision=Precision(config.train.precision),
        form=LSTMForm.of(mesh.devices.flat[0].platform),
        encoder_chunk=preferred_encoder_chunk(mesh),
    )


def softmax_placement(config: Config, vocabulary_size: int, mesh: Mesh) -> Placement:
    """Returns the placement of the softmax's rows; `UserError` if the mesh does not allow the one that is requested."""
    train, directions = config.train, len(config.model.directions)
    targets = directions * train.batch_size // mesh.size * train.unroll_steps
    sizes = mesh.size, vocabulary_size, config.model.lstm.projection, targets, directions * train.negatives
    return choose_placement(train.softmax, *sizes)


def params_specs(params: Any, placement: Placement) -> Any:
    """Returns a `PartitionSpec` for every array of a parameter tree with a softmax."""
    rows = jax.tree.map(lambda _: placement.spec, params["softmax"])
    return jax.tree.map(lambda _: REPLICATED, params) | {"softmax": rows}


def state_specs(state: Any, mesh: Mesh, placement: Placement = Placement.REPLICATED) -> Any:
    """Returns a `PartitionSpec` for every array of a `TrainState` or of its shapes."""
    specs = jax.tree.map(lambda _: REPLICATED, state)
    specs.params = params_specs(state.params, placement)
    specs.dense_optimizer = optimizer_specs(state.dense_optimizer, mesh.shape[WITHIN])
    specs.softmax_accumulator = specs.params["softmax"]
    specs.carry = jax.tree.map(lambda _: PartitionSpec(None, AXIS), state.carry)
    specs.position = ROWS
    return specs


def map_step(step: TrainStep, state: TrainState, mesh: Mesh) -> jax.stages.Wrapped:
    """Maps the step over all devices: `(state, batch, char_ids) -> (state, metrics)`, compiled at its first call.

    The memory of the state that is passed in is reused for the new state.
    """
    specs = state_specs(state, mesh, step.placement)
    # The replication check is off, since the program of each device contains all reductions explicitly.
    in_specs, out_specs = (specs, BATCH_SPECS, REPLICATED), (specs, REPLICATED)
    mapped = jax.shard_map(step, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return jax.jit(mapped, donate_argnums=0, compiler_options=step_options(step, mesh))


def step_options(step: TrainStep, mesh: Mesh) -> dict[str, int] | None:
    """Returns the compiler's options for the training step: the size of its largest block of temporary memory.

    The threads of CPU devices keep a freed block only if it fits into a heap of the C library, so that the temporary
    arrays of a small biLM are put into several blocks. XLA would warn of an array that needs a larger one.
    """
    model, train = step.model.config, step.config
    if mesh.devices.flat[0].platform != "cpu" or not is_small(model.lstm):
        return None
    tokens = train.batch_size // (mesh.size * train.accumulate) * train.unroll_steps
    logits = tokens * (train.negatives or step.vocabulary_size)
    softmax = 0 if train.negatives else step.vocabulary_size * model.lstm.projection
    gates = tokens * 4 * model.lstm.cells
    positions = preferred_encoder_chunk(mesh) * model.char_cnn.max_characters
    filters = positions * max(number for _, number in model.char_cnn.filters)
    return {"xla_multiheap_size_constraint_per_heap": max(LARGEST_BLOCK, 4 * max(logits, softmax, gates, filters))}


def put_params(params: Tree, placement: Placement, mesh: Mesh) -> Tree:
    """Places a whole parameter tree, in the layout of an export, on the devices in the layout of a training state."""
    laid_out = interleave(params)
    return dict(distribute(laid_out, params_specs(laid_out, placement), mesh))
