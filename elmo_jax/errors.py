"""The errors that the command reports in one line, without a traceback."""

import os
import re
import traceback


class UserError(Exception):
    """A mistake of the user, with a message of one line that says what is wrong and what to do.

    The command line prints the message, without a traceback, and exits with status 2.
    """


class TryAgain(Exception):
    """Something outside of this process failed, such as a bucket that did not answer; a new launch can continue.

    The command line prints the message and exits with status `TRY_AGAIN`.
    """


class PeerLost(TryAgain):
    """Another process of the run is lost, so this one cannot continue; a new launch of all processes can."""


TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: a restart may succeed, whereas status 2 says that it would not
ERROR_NUMBER = re.compile(r"os_error_code='(\d+)'")  # that of the operating system, in messages of TensorStore
# The codes of gRPC and HTTP with which a service says that it cannot answer now, and the names of a lost connection.
_UNAVAILABLE = re.compile(
    r"UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|\b(429|50[0234])\b|[Tt]ime(d |-)?out|[Cc]onnect(ion|or)"
)
_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|out of memory|failed to allocate (request|\d)|_ALLOC_FAILED", re.IGNORECASE)


def reason_of(error: BaseException) -> str:
    """Returns why something failed in one line: the operating system's words, or the type and the message."""
    if number := ERROR_NUMBER.search(str(error)):
        return os.strerror(int(number[1]))
    text = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:200]


def of_machine(error: BaseException) -> str | None:
    """Returns the line for an error that this machine causes, which a restart would meet again; None for others.

    Such are a full disk, a missing permission, too little memory of the host or of a device, and a missing backend.
    """
    if isinstance(error, ConnectionError):  # the loss of a reader or of another process
        return None
    # Before memory, since TensorStore calls a full disk RESOURCE_EXHAUSTED.
    if number := ERROR_NUMBER.search(str(error)):
        return f"{os.strerror(int(number[1]))}: {' '.join(str(error).split())[:300]}"
    if isinstance(error, MemoryError) or (isinstance(error, Exception) and _MEMORY.search(str(error))):
        lines = str(error).removeprefix("RESOURCE_EXHAUSTED: ").splitlines() or ["the system has no more"]
        return f"not enough memory: {lines[0].rstrip('.')}; use smaller batches, shorter lines or another machine"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, ValueError) and any(frame.filename.endswith("jax/_src/config.py") for frame in frames):
        jax_variables = [item for item in os.environ.items() if item[0].startswith("JAX_")]
        blamed = [f"{name}={value}" for name, value in jax_variables if name.lower() in str(error).lower()]
        return f"{' or '.join(blamed) or 'a variable JAX_…'}: not understood by JAX ({error}); correct it, or unset it"
    if isinstance(error, RuntimeError | AssertionError) and frames and frames[-1].filename.endswith("xla_bridge.py"):
        asked = os.environ.get("JAX_PLATFORMS", "")
        reason = str(error).partition(" (set JAX_PLATFORMS")[0].rstrip(".") or "JAX has no such backend here"
        if "process_index" in reason:
            return "JAX_NUM_CPU_DEVICES or --xla_force_host_platform_device_count in XLA_FLAGS is 0; expected 1 or more"
        return f"JAX_PLATFORMS={asked}: {reason}; set it to a platform of this machine, such as cpu, or unset it"
    return None


def is_of_service(error: BaseException) -> bool:
    """Returns whether an error is that of a service, such as a bucket's, that may answer if it is asked again."""
    if ERROR_NUMBER.search(str(error)):  # of a disk
        return False
    return isinstance(error, ConnectionError | TimeoutError) or bool(
        not getattr(error, "errno", None) and _UNAVAILABLE.search(f"{type(error).__name__}: {error}")
    )


def exit_status(error: BaseException) -> int:
    """Returns the command's exit status for the exception that ended it."""
    if isinstance(error, UserError) or of_machine(error):
        return 2
    if isinstance(error, TryAgain):
        return TRY_AGAIN
    return 130 if isinstance(error, KeyboardInterrupt) else 1
