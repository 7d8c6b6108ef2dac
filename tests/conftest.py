"""Set before anything else: eight CPU devices for JAX, and Ctrl-C as a terminal has it."""

import os
import signal

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

# a shell starts its background jobs with SIGINT ignored, and processes started by the tests would inherit that
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
