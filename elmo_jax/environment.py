"""Silences libtpu on machines without a TPU."""

import glob
import importlib.util
import os

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
