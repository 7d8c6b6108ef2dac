"""What the process asks of its surroundings: a quiet TPU library where there is no TPU, and memory that is kept."""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
import platform

# libtpu, once JAX loads it to look for devices, asks where its TPU stands among others, complains on the error stream
# that nobody answers, and leaves a folder of logs in /tmp. These are the answers of a TPU that stands alone. It also
# lets only one process use it, by a file in /tmp: that protects a TPU; without one it only stops who would compile.
_ALONE = {
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_HOST_BOUNDS": "1,1,1",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def quiet_without_tpu() -> None:
    """Where libtpu is installed, for `elmo-jax compile`, but no TPU is there, lets it load without a word.

    What the user has set stays as it is; which devices JAX then finds is not touched.
    """
    tpu = glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")
    if not tpu and importlib.util.find_spec("libtpu") is not None:
        for name, value in _ALONE.items():
            os.environ.setdefault(name, value)


# of glibc's <malloc.h>
_M_ARENA_MAX, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -8, -3, -1


def keep_freed_memory() -> None:
    """Where a CPU trains, has the C library keep what is freed for what is allocated next.

    A training step allocates and frees the same hundred megabytes each time. Given back to the system in between, they
    come again as fresh pages, which the system fills with zeros: a fifth of the time of a step. To be called before
    there are threads. Does nothing with another C library than glibc, or beside an accelerator.
    """
    accelerators = ("/dev/accel*", "/dev/vfio/[0-9]*", "/dev/nvidia[0-9]*", "/dev/kfd")
    if platform.libc_ver()[0] != "glibc" or any(glob.glob(pattern) for pattern in accelerators):
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_M_ARENA_MAX, 1)  # of all threads: only the first arena can hold large pieces
    mallopt(_M_MMAP_THRESHOLD, 2**30)
    mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
