"""Sets environment variables that JAX and libtpu read: where compiled programs are kept, and silence without a TPU."""

import fcntl
import glob
import hashlib
import importlib.metadata
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
    """Prevents errors and logs of libtpu on a machine that has libtpu, for `elmo-jax compile`, but no TPU."""
    tpu = glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")
    if not tpu and importlib.util.find_spec("libtpu") is not None:
        for name, value in _ALONE.items():
            os.environ.setdefault(name, value)


def cache_folder() -> Path:
    """Returns the user's folder of what can be downloaded or computed again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "elmo_jax"


def keep_compiled_programs(folder: Path, most: int = -1) -> None:
    """Makes JAX, which must not be imported yet, keep all compiled programs below a folder.

    Of more than `most` bytes, those used last are kept; -1 keeps all of them. The user's own settings of JAX's cache
    stay as they are. If the folder cannot be written, nothing is kept.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    # JAX's own keys do not contain the processor, and a program compiled for another one may end with SIGILL.
    try:
        flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    except (OSError, StopIteration):
        flags = ""
    processor = hashlib.sha256(f"{platform.machine()} {flags}".encode()).hexdigest()[:12]
    programs = folder / f"compiled-jax{importlib.metadata.version('jaxlib')}-{processor}"
    try:
        programs.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    try:
        fcntl.flock(os.open(programs, os.O_RDONLY), fcntl.LOCK_SH)
    except OSError:
        most = -1  # without `flock`, JAX would wait for ten seconds at every program
    for program in programs.glob("*-cache") if most >= 0 else ():
        # Of a process that was killed, or that kept all programs. JAX would refuse to keep any other.
        if not program.with_name(program.name.removesuffix("-cache") + "-atime").exists():
            program.unlink(missing_ok=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(programs)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(most))
