"""Lets one launch at a time write into the folder of a run.

In a local or shared folder, the lock is an `flock` on the file `.lock`, which the operating system releases when its
holder ends, even if it is killed; the file stays. In a bucket, and in file systems without `flock`, it is a lease: a
file that names its holder and that the holder rewrites every few seconds. Whoever finds a lease watches it for longer
than that. If it changes, the holder is alive; if it does not, the lease is taken over. Clocks of different hosts are
never compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from etils import epath

from elmo_jax.distributed.collectives import fails_together, is_first
from elmo_jax.errors import UserError
from elmo_jax.files import in_bucket, lacks_flock, write_json

LOCK, LEASE = ".lock", ".lease.json"  # names in the folder of the run
HEARTBEAT_SECONDS = 15.0  # between two rewritings of a lease
LEASE_SECONDS = 60.0  # how long a lease must stay unchanged before it is taken over
SETTLE_SECONDS = 2.0  # after which two launches that have taken a lease at the same time see which of them has it
OTHER_HOST_SECONDS = 100.0  # how long a file server may hold the lock of a host that is gone (NFS: 90 seconds)


@dataclasses.dataclass(frozen=True)
class Holder:
    """The process that holds the lock of a run."""

    host: str  # the name of its host
    process: int  # its process id there
    since: str  # when it took the lock, in ISO format, UTC
    token: str  # a random text that tells two launches apart
    heartbeat: str  # when it last rewrote its lease, in ISO format, UTC

    @classmethod
    def this(cls) -> Holder:
        """Returns this process as the holder, from now on."""
        return cls(socket.gethostname(), os.getpid(), _now(), secrets.token_hex(8), _now())

    def __str__(self) -> str:
        return f"process {self.process} on {self.host} (since {self.since})"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(sep=" ", timespec="seconds")


@contextlib.contextmanager
def store_errors(workdir: epath.Path) -> Iterator[None]:
    """A context that turns the errors of a bucket's client, and those of the file system, into a `UserError`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the clients of object stores raise exceptions of any kind
        if in_bucket(workdir):
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise UserError(
                f"{workdir}: cannot be read and written ({reason}); is there such a bucket, and may you write to it?"
            ) from error
        if isinstance(error, OSError):
            reason = error.strerror or " ".join(str(error).split())[:200]
            raise UserError(f"{workdir}: cannot be read and written ({reason})") from error
        raise


@contextlib.contextmanager
def locked(workdir: epath.Path) -> Iterator[None]:
    """A context in which this launch alone writes into the folder of a run; process 0 takes the lock for all.

    The folder is made if it is absent.

    Raises:
      UserError: another launch has the lock, which the message names, or the folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        with fails_together(), store_errors(workdir):
            if is_first():
                flock = None if in_bucket(workdir) else _flock(workdir)
                stack.enter_context(flock or _lease(workdir))
        yield


def _unwritable(workdir: epath.Path, error: OSError) -> UserError:
    return UserError(f"{workdir}: cannot be written ({error.strerror}); choose another place")


def _refusal(workdir: epath.Path, holder: Holder | None) -> UserError:
    who = "another launch" if holder is None else str(holder)
    return UserError(
        f"{workdir}: {who} is writing into this folder; wait for it to end or stop it, or give this launch"
        " another folder"
    )


def _read(path: epath.Path) -> Holder | None:
    """Returns the holder in a lock file, or None if it is absent or not complete."""
    try:
        values = json.loads(path.read_text())
        return Holder(**values)
    except (OSError, ValueError, TypeError):
        return None


def _flock(workdir: epath.Path) -> contextlib.AbstractContextManager[None] | None:
    """Takes the lock; returns the context that releases it, or None if the file system has no `flock`."""
    path = workdir / LOCK
    waited_until = time.monotonic() + OTHER_HOST_SECONDS
    while True:
        try:
            os.makedirs(workdir, exist_ok=True)  # `embed` deletes its folder at its end
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise _unwritable(workdir, error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return _held(descriptor)
            os.close(descriptor)
            continue  # the file was deleted with its folder in the meantime
        except BlockingIOError:
            os.close(descriptor)
        except OSError as error:
            os.close(descriptor)
            if not lacks_flock(error):
                raise _unwritable(workdir, error) from None
            return None
        holder = _read(path)
        elsewhere = holder is not None and holder.host != socket.gethostname()
        if not elsewhere or time.monotonic() > waited_until:
            raise _refusal(workdir, holder)
        time.sleep(min(1.0, OTHER_HOST_SECONDS))


@contextlib.contextmanager
def _held(descriptor: int) -> Iterator[None]:
    """Names the holder in the lock file, which stays when the lock is released at the end."""
    try:
        content = json.dumps(dataclasses.asdict(Holder.this())).encode()
        with contextlib.suppress(OSError):  # on a full disk the lock holds without a name
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, content, 0)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _lease(workdir: epath.Path) -> Iterator[None]:
    path = workdir / LEASE
    _wait_for_lease(workdir, path)
    mine = Holder.this()
    _write(path, mine)
    time.sleep(SETTLE_SECONDS)
    found = _read(path)
    if found is None or found.token != mine.token:
        raise _refusal(workdir, found)
    ended = threading.Event()
    thread = threading.Thread(target=_renew, args=(workdir, path, mine, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        found = _read(path)
        if found is not None and found.token == mine.token:
            path.unlink()


def _write(path: epath.Path, holder: Holder) -> None:
    write_json(path, dataclasses.asdict(dataclasses.replace(holder, heartbeat=_now())))


def _wait_for_lease(workdir: epath.Path, path: epath.Path) -> None:
    """Returns once there is no lease, or one whose holder no longer renews it; raises `UserError` otherwise."""
    if not path.exists():
        return
    first = _read(path)
    if first is not None and first.host == socket.gethostname() and not _is_alive(first.process):
        return
    print(f"{workdir}: waiting for up to {LEASE_SECONDS:.0f} seconds to see if {first} is still there", file=sys.stderr)
    deadline = time.monotonic() + LEASE_SECONDS
    while time.monotonic() < deadline:
        time.sleep(min(1.0, LEASE_SECONDS))
        if not path.exists():
            return
        if (now := _read(path)) != first:
            raise _refusal(workdir, now)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        return True
    return True


def _renew(workdir: epath.Path, path: epath.Path, mine: Holder, ended: threading.Event) -> None:
    """Rewrites the lease until the end, or until another launch has taken it over."""
    reported: Any = False
    while not ended.wait(HEARTBEAT_SECONDS):
        try:
            found = _read(path)
            if found is not None and found.token != mine.token:
                print(f"elmo-jax: warning: {found} has taken over {workdir}; stop one of them", file=sys.stderr)
                return
            _write(path, mine)
        except Exception as error:  # of any kind, from the client of an object store; the next turn may succeed
            if not reported:
                print(f"elmo-jax: warning: {path}: the lease cannot be renewed ({error})", file=sys.stderr)
            reported = True
