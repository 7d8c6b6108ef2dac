"""What this package assumes of others beyond their documentation, each with the module that relies on it."""

import inspect

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest
from jax.extend import backend
from tensorflow_datasets.core.download import downloader

from elmo_jax.checkpoints import manifest
from elmo_jax.distributed.mesh import is_in_use

pytestmark = pytest.mark.quick

OPTIONS = {  # XLA's options by name
    "xla_backend_optimization_level": "training/setup.py",
    "xla_multiheap_size_constraint_per_heap": "training/partitioning.py",
}


@pytest.mark.parametrize("option", OPTIONS)
def test_xla_has_the_options(option: str) -> None:
    if jax.default_backend() == "cpu":
        compiled = jax.jit(jnp.sin, compiler_options={option: 0 if "level" in option else 1 << 20})
        assert float(compiled(0.0)) == 0, f"{OPTIONS[option]}: XLA no longer has {option}"


def test_jax_tells_whether_its_devices_are_open() -> None:
    jax.devices()
    assert is_in_use(), "distributed/mesh.py: JAX accepts another number of CPU devices although they are open"
    assert callable(backend.clear_backends), "distributed/cpu.py: JAX can no longer close its devices"
    assert hasattr(jax.config, "jax_num_cpu_devices"), "distributed/cpu.py: the number of CPU devices has another name"


def test_orbax_has_the_names(tmp_path) -> None:
    assert ocp.utils.TMP_DIR_SUFFIX, "checkpoints/manager.py: unfinished folders of Orbax have another name"
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=ocp.args.StandardSave({"x": jnp.ones(2)}))
    assert (tmp_path / "1" / manifest._STEP_METADATA).exists(), "checkpoints/manifest.py: Orbax's metadata moved"
    parameters = inspect.signature(ocp.type_handlers.ArrayHandler).parameters
    assert "use_replica_parallel" in parameters, "checkpoints/manager.py: process 0 cannot write replicated arrays"


def test_tfds_has_the_number_of_retries() -> None:
    assert isinstance(downloader.MAX_RETRIES, int), "data/prepare/tfds_text.py: downloads are tried for minutes"
