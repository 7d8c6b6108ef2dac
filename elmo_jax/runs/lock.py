"""Lets one launch at a time write into the folder of a run.

In a local or shared folder, the lock is an `flock` on the file `.lock`, which the operating system releases when its
holder ends, even if it is killed; the file stays. In a bucket, and in file systems without `flock`, it is a lease: an
object that names its holder, which rewrites it every few seconds. Every write is conditional on the version that the
writer has seen, so that of two launches one has the lease. A launch that meets a lease watches it for longer than the
time between two rewritings. If it changes, the holder is alive; if not, the lease is taken over, and the holder ends if
it comes back. Clocks of different hosts, and process numbers, which containers share or hide, are never compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
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

from elmo_jax.distributed.collectives import is_primary, raise_on_all
from elmo_jax.errors import TryAgain, UserError, is_of_service, reason_of
from elmo_jax.files import in_bucket, try_flock
from elmo_jax.interrupts import leave

LOCK, LEASE = ".lock", ".lease.json"  # names in the folder of the run
HEARTBEAT_SECONDS = 15.0  # between two rewritings of a lease
LEASE_SECONDS = 60.0  # how long a lease must stay unchanged before it is taken over
OTHER_HOST_SECONDS = 100.0  # how long a file server may hold the lock of a host that is gone (NFS: 90 seconds)


@dataclasses.dataclass(frozen=True)
class Holder:
    """The process that holds the lock of a run."""

    host: str  # the name of its host
    process: int  # its process id there
    since: str  # when it took the lock, in ISO format, UTC
    token: str  # a random text that tells two launches apart

    @classmethod
    def this(cls) -> Holder:
        now = datetime.datetime.now(datetime.UTC).isoformat(sep=" ", timespec="seconds")
        return cls(socket.gethostname(), os.getpid(), now, secrets.token_hex(8))

    @classmethod
    def parse(cls, content: bytes | str) -> Holder | None:
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError):  # it is not complete
            return None

    def as_json(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode()

    def __str__(self) -> str:
        return f"process {self.process} on {self.host} (since {self.since})"


@contextlib.contextmanager
def store_errors(workdir: epath.Path) -> Iterator[None]:
    """A context that turns the errors of a bucket's client, and those of the file system, into a `UserError`.

    If the bucket may answer when it is asked again, it is a `TryAgain`.
    """
    try:
        yield
    except Exception as error:  # the clients of object stores raise exceptions of any kind
        if isinstance(error, UserError) or not (in_bucket(workdir) or isinstance(error, OSError)):
            raise
        if in_bucket(workdir) and is_of_service(error):
            raise TryAgain(f"{workdir}: does not answer ({reason_of(error)}); the same launch continues") from error
        hint = "; is there such a bucket, and may you write to it?" if in_bucket(workdir) else ""
        raise UserError(f"{workdir}: cannot be read and written ({reason_of(error)}){hint}") from error


@contextlib.contextmanager
def locked(workdir: epath.Path) -> Iterator[None]:
    """A context in which this launch alone writes into the folder of a run; process 0 takes the lock for all."""
    with contextlib.ExitStack() as stack:
        with raise_on_all(), store_errors(workdir):
            if is_primary():
                flock = None if in_bucket(workdir) else _flock(workdir)
                stack.enter_context(flock or _Lease(workdir))
        yield


def _refusal(workdir: epath.Path, holder: Holder | None) -> UserError:
    what = f"{holder or 'another launch'} is writing into this folder"
    return UserError(f"{workdir}: {what}; wait for it to end or stop it, or give this launch another folder")


def _flock(workdir: epath.Path) -> contextlib.AbstractContextManager[None] | None:
    """Takes the lock; returns the context that releases it, or None if the file system has no `flock`."""
    path = workdir / LOCK
    waited_until = time.monotonic() + OTHER_HOST_SECONDS
    while True:
        try:
            os.makedirs(workdir, exist_ok=True)  # `embed` deletes its folder at its end
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                taken = try_flock(descriptor)
            except OSError:
                os.close(descriptor)
                raise
        except OSError as error:
            raise UserError(f"{workdir}: cannot be written ({error.strerror}); choose another place") from None
        with contextlib.suppress(FileNotFoundError):
            if taken and os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return _held(descriptor)
        os.close(descriptor)
        if taken is None:
            return None
        if taken:
            continue  # the file was deleted with its folder in the meantime
        holder = None
        with contextlib.suppress(OSError):
            holder = Holder.parse(path.read_bytes())
        elsewhere = holder is not None and holder.host != socket.gethostname()
        if not elsewhere or time.monotonic() > waited_until:
            raise _refusal(workdir, holder)
        time.sleep(min(1.0, OTHER_HOST_SECONDS))


@contextlib.contextmanager
def _held(descriptor: int) -> Iterator[None]:
    try:
        with contextlib.suppress(OSError):  # on a full disk the lock holds without a name
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, Holder.this().as_json(), 0)
        yield
    finally:
        os.close(descriptor)


class _Lease:
    """A context in which this launch holds the lease of a folder, and renews it."""

    def __init__(self, workdir: epath.Path) -> None:
        import tensorstore

        self._workdir, self._ended, self._mine = workdir, threading.Event(), Holder.this()
        # In a file system without `flock`, TensorStore makes a conditional write safe by a file that only one can make.
        local = {"driver": "file", "path": f"{os.path.abspath(workdir)}/", "file_io_locking": {"mode": "lockfile"}}
        self._store = tensorstore.KvStore.open(f"{workdir}/" if in_bucket(workdir) else local).result()
        self._seen = b""  # the generation of the lease that this launch has read or written last
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> None:
        lease = self._read()
        if lease.state == "value":
            holder, seconds = Holder.parse(lease.value), f"{LEASE_SECONDS:.0f} seconds"
            print(f"{self._workdir}: waiting for up to {seconds} to see if {holder} is still there", file=sys.stderr)
            deadline, first = time.monotonic() + LEASE_SECONDS, lease
            while lease.state == "value" and time.monotonic() < deadline:
                time.sleep(min(1.0, LEASE_SECONDS / 4))
                lease = self._read()
                if lease.state == "value" and lease.stamp.generation != first.stamp.generation:
                    raise _refusal(self._workdir, Holder.parse(lease.value))
        self._seen = lease.stamp.generation
        if not self._write(self._mine.as_json()):
            raise _refusal(self._workdir, Holder.parse(self._read().value))
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        try:
            self._write(None)
        except Exception as error:  # of any kind, from the client of an object store; the next launch waits for a while
            self._warn("deleted", error)

    def _read(self) -> Any:
        return self._store.read(LEASE).result()

    def _write(self, content: bytes | None) -> bool:
        written = self._store.write(LEASE, content, if_equal=self._seen).result().generation
        self._seen = written or self._seen
        return bool(written)

    def _renew(self) -> None:
        warned = False
        while not self._ended.wait(HEARTBEAT_SECONDS):
            try:
                if self._write(self._mine.as_json()):
                    continue
                current = self._read()
                holder = Holder.parse(current.value)
                if current.state == "value" and holder != self._mine:
                    leave(f"{holder} has taken over {self._workdir}; this launch ends", 2)
                self._seen = current.stamp.generation  # it was deleted, or the answer to an earlier write was lost
            except Exception as error:  # of any kind, from the client of an object store; the next turn may succeed
                if not warned:
                    self._warn("renewed", error)
                warned = True

    def _warn(self, verb: str, error: Exception) -> None:
        print(f"elmo-jax: warning: {self._workdir / LEASE}: the lease cannot be {verb} ({error})", file=sys.stderr)
