"""Tests what a process asks of the C library."""

import platform
import subprocess
import sys

import pytest

# Counts the page faults of forty pieces of 100 MB, allocated one after the other in a thread, as XLA does.
CODE = """
import ctypes, resource, sys, threading
from elmo_jax.environment import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def pieces():
    for _ in range(40):
        piece = library.malloc(100_000_000)
        library.memset(piece, 1, 100_000_000)
        library.free(piece)
thread = threading.Thread(target=pieces)
thread.start()
thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_used_again():
    def faults(how: str) -> int:
        return int(subprocess.run([sys.executable, "-c", CODE, how], capture_output=True, check=True).stdout)

    assert faults("kept") < faults("given back") / 4
