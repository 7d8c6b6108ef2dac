"""Keeps the TPU's library quiet where there is no TPU."""

from __future__ import annotations

import glob
import importlib.util
import os

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
