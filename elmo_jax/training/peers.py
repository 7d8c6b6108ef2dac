"""The processes of a run watch each other, so that one that dies ends all of them, with a line that names it.

JAX's own watch notices a dead process after 100 seconds, and then aborts the others with a log of C++ frames; and
collectives on accelerators wait for a dead process for ever. Here every process keeps a connection to process 0. The
system closes it at once where a process dies, and a host that vanishes is noticed by its silence. What ends the run is
told to all, so that all end with the same status: process 0 last, since JAX aborts those that are there after it.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import queue
import selectors
import signal
import socket
import sys
import threading
import time
from typing import Any, NoReturn

import jax

from elmo_jax.errors import TRY_AGAIN
from elmo_jax.training.rendezvous import Message, line, meet

PING_SECONDS = 5.0
SILENCE_SECONDS = 60.0  # after which a host is gone
LINGER_SECONDS = 5.0  # for news to reach the others before this process ends


@dataclasses.dataclass
class _Peer:
    """The other end of a connection."""

    name: str
    heard: float  # when
    unread: bytes = b""
    done: bool = False  # came to the end of its work


class Peers:
    """This process's connections: of process 0 to all others, of any other to process 0."""

    def __init__(self, coordinator: str | None = None) -> None:
        """Connects; every process does so at the same time, once JAX knows them all.

        Args:
          coordinator: a name of process 0's host that the others can reach it by, where one is known.

        Raises:
          PeerLost: not all of them came.
        """
        self.name = f"process {jax.process_index()} on {socket.gethostname()}"
        connections = meet(self.name, coordinator)
        self._peers = {connection: _Peer(name, time.monotonic()) for connection, name in connections.items()}
        self._selector = selectors.DefaultSelector()
        for connection in connections:
            connection.settimeout(LINGER_SECONDS)
            self._selector.register(connection, selectors.EVENT_READ)
        self._requests: queue.SimpleQueue[Message] = queue.SimpleQueue()  # of this process's main thread
        self._wake, woken = socket.socketpair()
        self._selector.register(woken, selectors.EVENT_READ)
        self._is_first = jax.process_index() == 0
        self._done = False
        self._all_done = threading.Event()
        _delay_aborts()
        threading.Thread(target=self._watch, name="peers", daemon=True).start()

    def end(self, status: int, text: str) -> NoReturn:
        """Ends all processes, and this one, which has printed `text` itself; the others print it."""
        self._ask({"kind": "end", "status": status, "text": text})
        while True:  # until the thread ends the process, within seconds
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()

    def finish(self) -> None:
        """Returns when every process has called it; until then any of them may be lost."""
        self._ask({"kind": "done"})
        self._all_done.wait()

    def _ask(self, message: Message) -> None:
        """Has the thread do something."""
        self._requests.put(message)
        self._wake.send(b"!")

    def _watch(self) -> None:
        """The thread: all that happens on the connections."""
        pinged = time.monotonic()
        while True:
            for key, _ in self._selector.select(PING_SECONDS):
                connection: Any = key.fileobj
                if connection in self._peers:
                    self._read(connection)
                else:
                    connection.recv(1)
                    self._requested(self._requests.get())
            now = time.monotonic()
            if now - pinged >= PING_SECONDS:
                pinged = now
                self._send({"kind": "ping"})
            for peer in self._peers.values():
                if now - peer.heard > SILENCE_SECONDS:
                    self._lost(peer, f"has not been heard of for {SILENCE_SECONDS:.0f} seconds")

    def _requested(self, message: Message) -> None:
        if message["kind"] == "end":
            self._leave(message)
        self._done = True
        if not self._is_first:
            self._send(message)
        self._see_whether_all_are_done()

    def _read(self, connection: socket.socket) -> None:
        peer = self._peers[connection]
        try:
            received = connection.recv(1 << 16)
        except OSError:
            received = b""
        if not received:
            self._selector.unregister(connection)
            del self._peers[connection]
            if not self._all_done.is_set():
                self._lost(peer, "is gone")
            return
        peer.heard = time.monotonic()
        *lines, peer.unread = (peer.unread + received).split(b"\n")
        for message in map(json.loads, lines):
            if message["kind"] == "end":
                tell(message["text"])
                self._leave(message)
            elif message["kind"] == "done":
                peer.done = True
                self._see_whether_all_are_done()
            elif message["kind"] == "all done":
                self._all_done.set()

    def _see_whether_all_are_done(self) -> None:
        """On process 0, which tells the others."""
        if self._is_first and self._done and all(peer.done for peer in self._peers.values()):
            self._all_done.set()
            self._send({"kind": "all done"})

    def _lost(self, peer: _Peer, how: str) -> NoReturn:
        if not self._is_first:
            time.sleep(1)  # JAX has its own account of the loss of process 0; this line is to be the last
        text = f"{peer.name} {how}, so all processes end; the same launch goes on from the last checkpoint"
        tell(text)
        self._leave({"kind": "end", "status": TRY_AGAIN, "text": text})

    def _leave(self, message: Message) -> NoReturn:
        """Tells the others, waits for them to take it in, and ends the process."""
        self._send(message)
        deadline = time.monotonic() + LINGER_SECONDS
        waiting = set(self._peers)
        while waiting and time.monotonic() < deadline:
            for key, _ in self._selector.select(0.1):
                connection: Any = key.fileobj
                try:
                    ended = not connection.recv(1 << 16)
                except OSError:
                    ended = True
                if ended:
                    self._selector.unregister(connection)
                    waiting.discard(connection)
        end_process(message["status"])

    def _send(self, message: Message) -> None:
        for connection in self._peers:
            try:
                connection.sendall(line(message))
            except OSError:  # it is gone: the next read finds it so
                pass


def tell(text: str) -> None:
    """A line for the user; it does not run into a live line of the terminal."""
    live = "\n" if sys.stderr.isatty() else ""
    print(f"{live}elmo-jax: {text}", file=sys.stderr, flush=True)


def end_process(status: int) -> NoReturn:
    """Ends the process as it stands: anything more would wait for processes that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _delay_aborts() -> None:
    """Holds a thread that aborts for six seconds, while the others go on and can say why.

    JAX aborts in the moment in which it finds process 0 gone, which is the moment in which the watch finds it too. The
    handler is the C library's own `sleep`, given the signal's number, 6, as the seconds: nothing of Python runs in it.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))
