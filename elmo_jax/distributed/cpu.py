"""Settings for computations on a CPU: how the C library keeps memory, and into how many devices the cores are divided.

XLA computes a matrix product on all cores, but most other operations on one core per device. In a small biLM these take
half of the time, so that one device per core is faster. In a large one the products dominate, which are faster on all
cores together, and the devices would have to add up their gradients.
"""

import ctypes
import glob
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `cli.main` needs this module before it imports what takes time
    from elmo_jax.config import LSTMConfig

# Measured on 2 cores: one layer's kernel of 131,000 weights gains from two devices, and one of 1,049,000 loses.
LARGEST_KERNEL = 1 << 18
FEWEST_ROWS = 8  # per device, since every device encodes the distinct words of its rows

# The parameters of mallopt in glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
# The size in bytes of the heaps from which glibc allocates for a thread with a separate arena. Only the first
# thread has a heap of any size.
HEAP = 2**26
LARGEST_BLOCK = HEAP - 2**22  # of a program's temporary memory, in bytes; leaves room for small blocks next to it


def keep_freed_memory(per_thread: bool = False) -> None:
    """Makes glibc keep freed memory for later allocations, on a machine without accelerator and before it has threads.

    Every training step allocates and frees the same hundred megabytes. If they were returned to the operating system
    in between, it would fill their new pages with zeros, which took a fifth of the time of a step. With `per_thread`,
    the threads of several devices do not wait for each other's memory, which took a fifth as well; but a thread keeps
    no block of more than 64 MB (`training.partitioning.step_options`), unless it is the first one of the process.
    """
    if platform.libc_ver()[0] != "glibc" or has_accelerator():
        return
    mallopt = ctypes.CDLL(None).mallopt
    if not per_thread:
        mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_MAX, 0)  # no block comes directly from the operating system and returns to it when freed
    mallopt(_M_TRIM_THRESHOLD, -1)  # never
    mallopt(_M_TOP_PAD, HEAP)  # with as much, glibc keeps heaps in which nothing is used


_CPU_INFO = Path("/proc/cpuinfo")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # microseconds of CPU time per period, and the period, of control groups v2


def available_cores() -> int:
    """Returns the number of cores that this process may use, which Slurm or the quota of a container may limit."""
    # macOS has no affinity.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text(encoding="ascii").split()
    except (OSError, ValueError):  # not Linux, or another version of control groups
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def has_accelerator() -> bool:
    """Returns whether the machine has a TPU or a GPU, without starting JAX."""
    patterns = ("/dev/accel*", "/dev/vfio/[0-9]*", "/dev/nvidia[0-9]*", "/dev/kfd")
    return any(map(glob.glob, patterns))


def multiplies_bfloat16() -> bool:
    """Returns whether this processor has instructions for products of bfloat16 that XLA uses (x86 with Linux)."""
    try:
        flags = set(_CPU_INFO.read_text(encoding="ascii", errors="replace").split())
    except OSError:
        return False
    return not flags.isdisjoint({"avx512_bf16", "amx_bf16"})


def is_small(config: "LSTMConfig") -> bool:
    """Returns whether a biLM is so small that more devices make its training faster than more cores per product."""
    return 2 * config.projection * 4 * config.cells <= LARGEST_KERNEL


def devices_for(config: "LSTMConfig", rows: int, cores: int) -> int:
    """Returns the number of devices with which a CPU trains a biLM best; they divide the `rows` trained at once."""
    if not is_small(config):
        return 1
    devices = 1
    while 2 * devices <= cores and rows % (2 * devices) == 0 and rows >= 2 * devices * FEWEST_ROWS:
        devices *= 2  # a power of two, so that it divides the groups of rows of a sharded softmax too
    return devices


def divide_cpu(config: "LSTMConfig", rows: int) -> None:
    """Makes as many CPU devices as `devices_for` says.

    The number stays as it is if the user has set it (`XLA_FLAGS`, `JAX_NUM_CPU_DEVICES`), in a launch of several
    processes, or if there are arrays on the devices already. In any case, programs of one device run in the thread that
    calls them, the first one, for which the C library keeps blocks of any size.
    """
    import jax  # not before, since the command sets the memory up before it imports JAX
    from jax.extend.backend import clear_backends

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    is_set = jax.config.jax_num_cpu_devices != -1  # type: ignore[attr-defined]
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
