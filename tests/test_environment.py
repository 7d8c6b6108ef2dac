"""Tests what a process asks of the C library, and where it keeps compiled programs."""

import os
import platform
import subprocess
import sys

import pytest

from elmo_jax.cli import main as main_module
from elmo_jax.distributed.cpu import LARGEST_BLOCK
from tests.end_to_end.commands import prepare, small_experiment

pytestmark = pytest.mark.quick

# Counts the page faults of a program with ten temporary arrays of 10 MB per device, which XLA runs on its own threads.
CODE = """
import hashlib, resource, sys
from elmo_jax.distributed.cpu import keep_freed_memory
memory, block, dispatch = sys.argv[1:]
if memory != "returned":
    keep_freed_memory(per_thread=memory == "per_thread")
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_cpu_enable_async_dispatch", dispatch == "asynchronous")
def program(x):
    parts = jax.lax.optimization_barrier([x * i for i in range(10)])
    return sum(part @ part.T for part in parts)
devices = jax.devices()
mesh = jax.sharding.Mesh(np.array(devices), "d")
rows = jax.sharding.PartitionSpec("d")
mapped = jax.shard_map(program, mesh=mesh, in_specs=rows, out_specs=rows)
run = jax.jit(mapped, compiler_options={"xla_multiheap_size_constraint_per_heap": int(block)})
x = jax.device_put(np.random.default_rng(0).normal(size=(200 * len(devices), 12_500)).astype(np.float32))
for _ in range(5):
    y = jax.block_until_ready(run(x))
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    y = jax.block_until_ready(run(x))
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults, hashlib.sha256(np.asarray(y).tobytes()).hexdigest())
"""
NO_LIMIT = -1


def measured(memory: str, block: int, devices: int, dispatch: str = "asynchronous") -> tuple[int, str]:
    """Returns the number of page faults and the digest of the result."""
    settings = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    command = [sys.executable, "-c", CODE, memory, str(block), dispatch]
    ran = subprocess.run(command, env=environment | settings, capture_output=True, text=True, check=True)
    assert not ran.stderr
    faults, digest = ran.stdout.split()
    return int(faults), digest


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_used_again():
    returned, digest = measured("returned", NO_LIMIT, 1)
    shared, of_shared = measured("shared", NO_LIMIT, 1)
    per_thread, of_per_thread = measured("per_thread", NO_LIMIT, 1, dispatch="inline")
    assert max(shared, per_thread) < returned / 4
    assert digest == of_shared == of_per_thread


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_threads_of_several_devices_keep_blocks_of_limited_size():
    one_block, digest = measured("per_thread", NO_LIMIT, 2)
    several, of_several = measured("per_thread", LARGEST_BLOCK, 2)
    assert several < one_block / 4
    assert digest == of_several


@pytest.mark.parametrize(
    ("command", "per_thread"),
    [
        (["pretrain", "--config", "missing.py"], True),
        (["finetune", "--from", "missing", "--data", "missing", "--workdir", "new", "--config", "missing.py"], True),
        (["settings", "missing.py"], False),
    ],
)
def test_only_trainings_of_a_bilm_keep_memory_per_thread(monkeypatch, tmp_path, command, per_thread):
    asked = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(main_module, "keep_freed_memory", lambda per_thread: asked.append(per_thread))
    assert main_module.main(command) == 2  # the file is missing
    assert asked == [per_thread]


def launched(folder, *command):
    """Runs a command with an empty cache folder; returns the files in it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION_CACHE")}
    environment["XDG_CACHE_HOME"] = str(folder / "home")
    ended = subprocess.run([sys.executable, "-m", "elmo_jax", *map(str, command)], env=environment, check=False)
    return ended.returncode, sorted(path.name for path in folder.glob("home/elmo_jax/compiled-jax*/*-cache"))


@pytest.mark.slow
def test_inference_keeps_its_programs(tmp_path):
    (tmp_path / "text.txt").write_text("Peace has come .\n")
    embed = ("embed", "english", tmp_path / "text.txt")
    status, programs = launched(tmp_path, *embed, tmp_path / "first.hdf5")
    assert status == 0 and any(name.startswith("jit__run-") for name in programs)
    (tmp_path / "unwritable" / "home").mkdir(parents=True)
    (tmp_path / "unwritable" / "home" / "elmo_jax").touch()  # no folder can be made here
    assert launched(tmp_path / "unwritable", *embed, tmp_path / "second.hdf5") == (0, [])
    assert (tmp_path / "first.hdf5").read_bytes() == (tmp_path / "second.hdf5").read_bytes()


@pytest.mark.slow
def test_a_second_run_compiles_nothing(tmp_path):
    """The programs of one run are those of another one in another folder, with another seed."""
    commands = small_experiment(tmp_path, steps=6)
    assert prepare(commands).status == 0
    train = ("pretrain", "--config", tmp_path / "small.py", f"--config.data.corpus={tmp_path / 'corpus'}", "--workdir")
    status, programs = launched(tmp_path, *train, tmp_path / "first")
    assert status == 0 and len(programs) >= 3
    again = launched(tmp_path, *train, tmp_path / "second", "--config.train.seed=7")
    assert again == (0, programs)
    assert not (tmp_path / "second" / "compilation_cache").exists()
