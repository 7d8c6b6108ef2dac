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
# What the clients of buckets say of a service that does not answer now: codes of gRPC and HTTP, and lost connections.
_UNAVAILABLE = re.compile(
    r"UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|(code: ?|, |^\w+: )(429|50[0234])\b|[Tt]ime(d )?out|[Dd]isconnected"
    r"|(Client|Proxy|Connect\w*)(OS)?Error|[Cc]annot connect|[Cc]onnection (reset|refused|aborted)|unreachable"
    r"|name resolution"
)
_FINAL = re.compile(r"os_error_code=|PERMISSION_DENIED|PermissionError|[Ff]orbidden|NOT_FOUND|FileNotFound|\b40[134]\b")
_PLACE = re.compile(r"\[?tensorstore_spec=.*|gs://\S+|'[^']*'|\"[^\"]*\"", re.DOTALL)  # which may have any words
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
    if isinstance(error, ConnectionError | TryAgain):  # the loss of a reader, of another process or of a service
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
    """Returns whether an error of a bucket's client is that of a service that may answer if it is asked again."""
    text = _PLACE.sub("", f"{type(error).__name__}: {error}")
    if _FINAL.search(text):
        return False
    return isinstance(error, ConnectionError | TimeoutError) or _UNAVAILABLE.search(text) is not None


def exit_status(error: BaseException) -> int:
    """Returns the command's exit status for the exception that ended it."""
    if isinstance(error, TryAgain):
        return TRY_AGAIN
    if isinstance(error, UserError) or of_machine(error):
        return 2
    return 130 if isinstance(error, KeyboardInterrupt) else 1
