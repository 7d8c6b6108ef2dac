"""Commands and functions in processes that are forked from one that has imported what they need.

Importing JAX, Flax, Orbax and Matplotlib takes as long as training the small experiment. A server process imports them
once, uses none of them, and forks for every command. A forked process is one as any other: it has its own arguments,
folder, environment, output, signals and limits, and ends as Python ends.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from tests.end_to_end import forked
function, arguments = forked.serve(int(sys.argv[1]))
sys.exit(function(*arguments))
"""
COMMAND = "elmo_jax.cli.main:main"
LARGEST = 1 << 17  # the largest size of a request in bytes, including its environment
MODULES = (
    "elmo_jax.checkpoints.export",
    "elmo_jax.config_file",
    "elmo_jax.data.prepare.pipeline",
    "elmo_jax.embedding.embed_file",
    "elmo_jax.embedding.words_file",
    "elmo_jax.finetuning.finetune",
    "elmo_jax.training.evaluate_text",
    "elmo_jax.training.pretrain",
    "jaxlib.mlir.dialects.mhlo",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "ml_collections.config_flags",
    "PIL.JpegImagePlugin",
    "sacremoses",
    "sentencex",
    "tensorflow_datasets",
)


class Forked:
    """A command that runs, as a `subprocess.Popen` whose output is read at the end."""

    def __init__(
        self,
        server: Server,
        function: tuple[str, Sequence[object]],
        folder: Path,
        environment: dict[str, str],
        largest_file: int | None = None,
        **streams: int,
    ):
        """Starts it.

        Args:
          server: the process to fork.
          function: a function, "module:name", and the arguments that it is called with; what it returns is the status.
          folder: the current folder.
          environment: all variables.
          largest_file: the size in bytes over which no file may grow, as on a disk that is full.
          **streams: descriptors for `stdout` and `stderr`, which are then not read here.
        """
        self._files = [None if name in streams else tempfile.TemporaryFile() for name in ("stdout", "stderr")]
        given = [streams.get(name) or file for name, file in zip(("stdout", "stderr"), self._files, strict=True)]
        self._status, status = os.pipe()
        server.request(
            {"function": function, "folder": str(folder), "environment": environment, "largest_file": largest_file},
            [stream if isinstance(stream, int) else stream.fileno() for stream in given] + [status],
        )
        os.close(status)
        self._told = b""
        self.returncode: int | None = None
        while b"\n" not in self._told:
            self._listen(None)
        self.pid = int(self._told.split()[0])

    def _listen(self, timeout: float | None) -> None:
        """Takes in what the server says: the process id, and once it has ended its status."""
        if select.select([self._status], [], [], timeout)[0]:
            block = os.read(self._status, 100)
            assert block, "the server of commands is gone"
            self._told += block

    def poll(self) -> int | None:
        """The exit status as Popen's; None while it runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end."""
        if self._wait(timeout) is None:
            raise subprocess.TimeoutExpired("elmo-jax", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def _wait(self, timeout: float | None) -> int | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            self._listen(left)
            if self._told.count(b"\n") == 2:
                self.returncode = int(self._told.split()[1])
                os.close(self._status)
            elif left == 0:
                break
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for its end; all of its output and of its errors."""
        self.wait(timeout)
        return tuple("" if file is None else os.pread(file.fileno(), 1 << 30, 0).decode() for file in self._files)

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Unless it has ended."""
        self.send_signal(signal.SIGKILL)


class Server:
    """The process that forks; it is started at the first request and ended with this process."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def request(self, request: dict[str, object], descriptors: list[int]) -> None:
        """Requests a process with these descriptors for its output, its errors, its id and its status."""
        if self._socket is None:
            self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            # no threads before the fork
            environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(other.fileno())],
                env=environment,
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
            )
            other.close()
            atexit.register(self._end, process)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        self._socket.sendmsg([json.dumps(request).encode()], [rights])

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert self._socket is not None
        self._socket.close()  # this ends the server
        process.wait()


SERVER = Server()


def serve(descriptor: int) -> tuple[Callable[..., object], list[Any]]:
    """Forks at each request that comes from a socket; returns, in the forked process alone, what it is to call."""
    _import()
    requests, running = socket.socket(fileno=descriptor), {}
    awake, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends pytest, which ends this process
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    while True:
        ready = select.select([requests, awake], [], [])[0]
        if awake in ready:
            awake.recv(1000)
            for pid, status in list(running.items()):
                ended, code = os.waitpid(pid, os.WNOHANG)
                if ended:
                    os.write(status, f"{os.waitstatus_to_exitcode(code)}\n".encode())
                    os.close(running.pop(pid))
        if requests in ready:
            content, descriptors, _, _ = socket.recv_fds(requests, LARGEST, 3)
            if not content:
                sys.exit()
            output, errors, status = descriptors
            if pid := os.fork():
                running[pid] = status
                os.write(status, f"{pid}\n".encode())
                os.close(output)
                os.close(errors)
            else:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                for unneeded in (requests, awake, wake):
                    unneeded.close()
                for unneeded in (*running.values(), status):
                    os.close(unneeded)
                return _become(json.loads(content), output, errors)


def _import() -> None:
    """Imports what commands import when they are run."""
    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()  # the collector of a forked process would write into every page of these modules
    gc.set_threshold(50_000)  # as in `tests/conftest.py`
    assert len(os.listdir("/proc/self/task")) == 1, "a process of several threads cannot be forked"


def _become(request: dict[str, Any], output: int, errors: int) -> tuple[Callable[..., object], list[Any]]:
    """Makes this process one that was started so; returns the function and its arguments."""
    for descriptor, number in ((output, 1), (errors, 2)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # a new one, since the old one remembers whether the former output was a file
    sys.stdout = open(1, "w", encoding="utf-8", buffering=1 if os.isatty(1) else -1, closefd=False)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:1] = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if request["largest_file"] is not None:
        # no compiled programs are kept: JAX would keep the beginning of one that is too long, and never replace it
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e9)
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"], resource.RLIM_INFINITY))
    name, arguments = request["function"]
    if name == COMMAND:
        sys.argv = ["elmo-jax", *arguments]
        arguments = [arguments]
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function), arguments
