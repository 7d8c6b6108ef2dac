"""The process's environment: silences libtpu on machines without a TPU, keeps freed memory, and counts the cores."""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
import platform
from pathlib import Path

# When JAX loads libtpu to look for devices, libtpu queries the topology of the TPU pod, prints errors to stderr because
# nothing answers, and leaves a folder of logs in /tmp. The first three variables describe a single TPU host and switch
# the logs off. A lock file in /tmp also restricts libtpu to one process, which protects a TPU; without a TPU it would
# only prevent a second process from compiling, so the last variable lifts it.
_ALONE = {
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_HOST_BOUNDS": "1,1,1",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def quiet_without_tpu() -> None:
    """Prevents errors and logs of libtpu on a machine that has libtpu, for `elmo-jax compile`, but no TPU.

    Environment variables that the user has set stay as they are. The devices that JAX finds do not change.
    """
    tpu = glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")
    if not tpu and importlib.util.find_spec("libtpu") is not None:
        for name, value in _ALONE.items():
            os.environ.setdefault(name, value)


# The parameters of mallopt in glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_NO_TRIMMING = -1
# The size in bytes of the heaps from which glibc allocates for a thread that has an arena of its own. Only the first
# thread has a heap of any size.
HEAP = 2**26


def keep_freed_memory(per_thread: bool = False) -> None:
    """Makes the C library keep freed memory for later allocations, for computations on a CPU.

    Every training step allocates and frees the same hundred megabytes. If they were returned to the operating system
    in between, they would come back as new pages, which the system fills with zeros; that took a fifth of the time of
    a step. This function must be called before there are threads. It does nothing if the C library is not glibc or if
    the machine has an accelerator.

    Args:
      per_thread: whether every thread keeps memory of its own. The threads of several devices wait for each other if
        they share it, which took a fifth of the time as well. But a thread keeps no block of more than 64 MB
        (`training.partitioning.step_options`), unless it is the first thread of the process.
    """
    accelerators = ("/dev/accel*", "/dev/vfio/[0-9]*", "/dev/nvidia[0-9]*", "/dev/kfd")
    if platform.libc_ver()[0] != "glibc" or any(glob.glob(pattern) for pattern in accelerators):
        return
    mallopt = ctypes.CDLL(None).mallopt
    if not per_thread:
        mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_MAX, 0)  # no block comes directly from the operating system and returns to it when freed
    mallopt(_M_TRIM_THRESHOLD, _NO_TRIMMING)
    mallopt(_M_TOP_PAD, HEAP)  # with as much, glibc keeps heaps in which nothing is used


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
