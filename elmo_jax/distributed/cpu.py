"""Divides the cores of a CPU into devices, for the training of small biLMs.

XLA computes a matrix product on all cores, but most other operations on one core per device. In a small biLM these take
half of the time, so that one device per core is faster. In a large one the products dominate, which are faster on all
cores together, and the devices would have to add up their gradients.
"""

from __future__ import annotations

import os

import jax
from jax.extend.backend import clear_backends

from elmo_jax.config import LSTMConfig
from elmo_jax.environment import available_cores

# Measured on 2 cores: one layer's kernel of 131,000 weights gains from two devices, and one of 1,049,000 loses.
LARGEST_KERNEL = 1 << 18
FEWEST_ROWS = 8  # per device, since every device encodes the distinct words of its own rows


def is_small(config: LSTMConfig) -> bool:
    """Returns whether a biLM is so small that more devices make its training faster than more cores per product."""
    return 2 * config.projection * 4 * config.cells <= LARGEST_KERNEL


def devices_for(config: LSTMConfig, rows: int, cores: int) -> int:
    """Returns the number of devices with which a CPU trains a biLM best.

    Args:
      config: the architecture of the LSTMs.
      rows: the number of rows of a batch, which the devices divide equally.
      cores: the number of cores.
    """
    if not is_small(config):
        return 1
    devices = 1
    while 2 * devices <= cores and rows % (2 * devices) == 0 and rows >= 2 * devices * FEWEST_ROWS:
        devices *= 2  # a power of two, so that the lanes of a sharded softmax can be divided too
    return devices


def divide_cpu(config: LSTMConfig, rows: int) -> None:
    """Makes as many CPU devices as `devices_for` says.

    In any case, programs of one device run in the thread that calls them. That is the first thread, for which the C
    library keeps blocks of any size (`environment.keep_freed_memory`).

    The number stays as it is if the user has set it (`XLA_FLAGS`, `JAX_NUM_CPU_DEVICES`), in a launch of several
    processes, or if there are arrays on the devices already. It has no effect on a machine with accelerators, whose
    devices JAX prefers.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    is_set = jax.config.values["jax_num_cpu_devices"] != -1
    if is_set or "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    number = devices_for(config, rows, available_cores())
    try:
        jax.config.update("jax_num_cpu_devices", number)
    except RuntimeError:  # there are devices, since a biLM was read from a checkpoint or this is one of many processes
        if jax.distributed.is_initialized() or jax.default_backend() != "cpu" or jax.live_arrays():
            return
        clear_backends()
        jax.config.update("jax_num_cpu_devices", number)
