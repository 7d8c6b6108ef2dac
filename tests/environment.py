"""Sets the options of XLA for the tests."""


def xla_flags(devices: int) -> str:
    """XLA_FLAGS of a process with so many CPU devices: programs are compiled sooner, and run slower."""
    sooner = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    return f"--xla_force_host_platform_device_count={devices} {sooner}"
