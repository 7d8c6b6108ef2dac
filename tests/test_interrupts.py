"""Tests that a signal ends a command with one line and its status at any moment, and that runs save."""

import importlib.machinery
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elmo_jax import interrupts as module
from elmo_jax.interrupts import StopSignals

ROOT = Path(__file__).parents[1]
# `elmo-jax settings` imports `ml_collections`; these stand for what commands do when they are interrupted.
IN_AN_IMPORT = """
try:
    time.sleep(60)
except KeyboardInterrupt:  # as in the C code of a module that is being initialized
    raise ImportError("Encountered an error while initializing the extension")
"""
IN_A_CALLBACK = """
class Callback:
    def __del__(self):
        time.sleep(60)

Callback()  # which prints the interrupt and ignores it
time.sleep(60)
"""
IN_C_CODE = """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # the signal meets another thread
with atomic_file(Path("written")) as partial, temporary_folder() as folder:
    partial.write_text("half")
    Path("names").write_text(f"{partial}\\n{folder}")
    ctypes.CDLL(None).sleep(60)
"""


def started(folder: Path) -> subprocess.Popen[str]:
    """Starts `elmo-jax settings`, which imports the folder's `ml_collections.py`."""
    return subprocess.Popen(
        [sys.executable, "-m", "elmo_jax", "settings"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{folder}:{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("work", "number"),
    [
        (IN_AN_IMPORT, signal.SIGINT),
        (IN_A_CALLBACK, signal.SIGINT),
        (IN_C_CODE, signal.SIGINT),
        (IN_C_CODE, signal.SIGTERM),
    ],
)
def test_a_signal_ends_a_command(tmp_path: Path, work: str, number: signal.Signals) -> None:
    head = "import ctypes, signal, time\nfrom pathlib import Path\nfrom elmo_jax.files import *\nprint(1, flush=True)\n"
    (tmp_path / "ml_collections.py").write_text(head + work)
    process = started(tmp_path)
    assert process.stdout is not None and process.stdout.readline() == "1\n"
    if work is IN_C_CODE:
        while not (tmp_path / "names").exists() or not (tmp_path / "names").read_text():
            select.select([], [], [], 0.01)
    process.send_signal(number)
    line = "interrupted" if number == signal.SIGINT else "stopped by SIGTERM"
    assert process.communicate(timeout=50) == ("", f"elmo-jax: {line}\n")
    assert process.returncode == 128 + number
    if work is IN_C_CODE:
        assert not [name for name in (tmp_path / "names").read_text().split() if os.path.exists(name)]


def test_a_signal_that_stops_a_run_is_acknowledged_at_once(tmp_path: Path) -> None:
    (tmp_path / "ml_collections.py").write_text(
        "import ctypes, signal\nfrom elmo_jax.interrupts import StopSignals\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
        "with StopSignals():\n    print(1, flush=True)\n    ctypes.CDLL(None).sleep(60)\n"
    )
    with started(tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline() == "1\n"
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert process.stderr.readline() == "elmo-jax: SIGTERM received: saving and stopping\n"
        process.kill()


def test_other_signals_are_not_the_first_of_two(tmp_path: Path) -> None:
    """A package may handle them; the SIGTERM that follows is not the second one, which would end a run at once."""
    (tmp_path / "ml_collections.py").write_text(
        "import os, signal, time\nfrom elmo_jax.interrupts import StopSignals\n"
        "OTHERS = signal.SIGCHLD, signal.SIGALRM, signal.SIGWINCH\n"
        "for number in OTHERS:\n    signal.signal(number, lambda *_: None)\n"
        "with StopSignals() as stop:\n"
        "    for number in OTHERS:\n        os.kill(os.getpid(), number)\n    time.sleep(1.5)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(1.5)\n    print(stop.received.name, flush=True)\n"
    )
    with started(tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline() == "SIGTERM\n"
        process.kill()


def test_signals_that_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAME_SECONDS", 60.0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU):
        before = signal.getsignal(number)
        with StopSignals() as stop:
            signal.raise_signal(number)
            signal.raise_signal(number)  # too soon to be a second one
            assert stop.received == number
        assert signal.getsignal(number) == before
    monkeypatch.setattr(module, "SAME_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt), StopSignals():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_ignored_sighup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with StopSignals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.received is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ctrl_c_while_the_command_is_imported() -> None:
    program = """
import os, signal, sys
from elmo_jax.__main__ import main

class Finder:
    def find_spec(self, name, *_):
        if name == "elmo_jax.cli.main":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (130, "elmo-jax: interrupted\n")


def test_no_exception_is_raised_while_an_extension_module_is_initialized() -> None:
    program = """
import os, signal
from elmo_jax import interrupts

class ExtensionFileLoader:
    def create_module(self):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            print("raised")

interrupts.end_on_interrupt()
ExtensionFileLoader().create_module()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "elmo-jax: interrupted\n")
    assert "ExtensionFileLoader.create_module" == importlib.machinery.ExtensionFileLoader.create_module.__qualname__
