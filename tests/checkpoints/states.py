"""A state like that of a training, its checkpoints, and calls in other processes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from elmo_jax.checkpoints.manager import Checkpoints

HERE = Path(__file__).parent


P = jax.sharding.PartitionSpec


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    """Resembles the training state: a dataclass with a nested dict, an Optax state and a random key."""

    step: jax.Array
    params: dict[str, Any]
    optimizer: Any
    carry: tuple[jax.Array, ...]
    key: jax.Array  # its data


def state(step: int, rows: int = 16) -> State:
    """A state that is a function of the step, so that a restored one can be checked without the original."""
    one, two, three = jax.random.split(jax.random.key(step), 3)
    params = {
        "token_encoder": {"char_embedding": jax.random.normal(one, (261, 5))},
        "forward": {"layer_0": {"kernel": jax.random.normal(two, (6, 40)).astype(jnp.bfloat16)}},
        "softmax": {"kernel": jax.random.normal(three, (rows, 4)), "bias": jnp.zeros(rows)},
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)).init(params)
    carry = (jnp.full((rows, 3), step, jnp.float32), jnp.arange(rows) % 3 == 0)
    return State(jnp.int32(step), params, optimizer, carry, jax.random.PRNGKey(step))


def abstract(tree: Any, sharding: Any = None) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding or x.sharding), tree)


def assert_equal(found: Any, expected: Any) -> None:
    """Asserts that two states are equal bit for bit, in structure and in dtypes."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, one), two in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == two.dtype, path
        assert np.asarray(one).tobytes() == np.asarray(two).tobytes() and one.shape == two.shape, path


def saved(folder: Path, *steps: int, keep: int = 9) -> Path:
    checkpoints = Checkpoints(folder, keep)
    for step in steps:
        checkpoints.save(step, state(step))
    checkpoints.close()
    return folder


def restored(folder: Path) -> tuple[State, int]:
    actual = Checkpoints(folder).restore(abstract(state(0)))
    assert actual is not None
    return actual


def listing(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
