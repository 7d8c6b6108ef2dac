"""Stores a training state as nested dicts of arrays, and checks a stored one before it is restored."""

from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from elmo_jax.checkpoints import layout
from elmo_jax.errors import UserError

_ITEM = "default"  # the folder in which Orbax's manager puts a single item


def paths(tree: Any) -> list[str]:
    """Returns the key paths of the leaves, joined by `/`; they do not depend on the classes of the tree's nodes."""
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(tree)]
    assert len(set(names)) == len(names), "two leaves with one path"
    return names


def named(tree: Any) -> dict[str, Any]:
    """Returns any pytree as nested dicts, so that the classes and empty nodes of an Optax state are not stored."""
    return layout.unflatten(dict(zip(paths(tree), jax.tree.leaves(tree), strict=True)))


def saved_tree(handler: ocp.PyTreeCheckpointHandler, item: epath.Path) -> dict[str, Any]:
    """Returns the metadata of a checkpoint's arrays (`.shape`, `.dtype`) as a nested dict."""
    metadata = handler.metadata(item)
    return getattr(metadata, "tree", metadata)


def check_fits(saved: dict[str, Any], wanted: dict[str, Any], folder: epath.Path) -> None:
    """Raises `UserError` if keys, shapes or dtypes differ; Orbax would cast arrays, and with some settings pad them."""
    for path in sorted(saved.keys() | wanted.keys()):
        if path not in saved or path not in wanted:
            side = "lacks" if path in wanted else "holds, besides what is expected,"
            raise UserError(f"{folder}: the checkpoint {side} '{path}'; it is of another model or optimizer")
        leaf = wanted[path]
        actual, expected = (saved[path].dtype, tuple(saved[path].shape)), (leaf.dtype, leaf.shape)
        if actual != expected:
            shown = [f"{np.dtype(dtype).name}{list(shape)}" for dtype, shape in (actual, expected)]
            raise UserError(f"{folder}: '{path}' is {shown[0]}, expected {shown[1]}; it is of another model")


def load(folder: epath.Path, abstract_state: Any) -> Any:
    """Loads the state in a step folder, with the keys, shapes, dtypes and shardings of `abstract_state`."""
    wanted = named(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), abstract_state))
    saved = saved_tree(ocp.PyTreeCheckpointHandler(), folder / _ITEM)
    check_fits(layout.flatten(saved), layout.flatten(wanted), folder)
    with jax.transfer_guard("allow"):
        restored = ocp.StandardCheckpointHandler().restore(folder / _ITEM, args=ocp.args.StandardRestore(wanted))
    leaves = layout.flatten(restored)
    return jax.tree.unflatten(jax.tree.structure(abstract_state), [leaves[path] for path in paths(abstract_state)])


def load_subtree(folder: epath.Path, name: str) -> dict[str, Any]:
    """Loads a subtree of the state in a step folder, such as `params`, as NumPy arrays."""
    handler = ocp.PyTreeCheckpointHandler()
    tree = saved_tree(handler, folder / _ITEM).get(name)
    if not isinstance(tree, dict):
        raise UserError(f"{folder}: the checkpoint has no {name!r}; expected a checkpoint of a training run")
    wanted = {name: jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)}
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
    arguments = ocp.args.PyTreeRestore(item=wanted, restore_args=as_numpy, partial_restore=True)
    return handler.restore(folder / _ITEM, args=arguments)[name]
