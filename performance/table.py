"""Formats what the command prints, which is one line per part."""

from typing import Any

HEADER = (
    f"{'part':<23} {'tokens/s':>10} {'GFLOP/s':>8} {'of product':>10} {'product':>8} {'tok/s per':>9} {'memory':>8}"
    f" {'compile':>8}\n"
    f"{'':<23} {'':>10} {'(model)':>8} {'':>10} {'GFLOP/s':>8} {'GFLOP/s':>9} {'GB':>8} {'s':>8}"
)


def header(numbers: dict[str, Any]) -> str:
    """Returns the head of the table, with the devices and the names of the columns."""
    return f"{numbers['devices']}, {numbers['precision']}, JAX {numbers['jax']}\n\n{HEADER}"


def line(name: str, numbers: dict[str, Any]) -> str:
    """Returns the line of one part."""
    if "seconds_cold" in numbers:
        cold, warm = numbers["seconds_cold"], numbers["seconds_warm"]
        return (
            f"{name:<23} {cold:.1f} s to the first step, {warm:.1f} s with a cache of compiled programs;"
            f" {numbers['seconds_vectors']:.1f} s to the first vectors of `embed english`"
        )
    notes = ""
    if "devices_used" in numbers:
        rate = numbers["tokens_per_second_of_one_device"]
        notes = f"devices {numbers['devices_used']}; one device {rate:,.0f} tokens/s"
    if "tokens_per_second_of_known_words" in numbers:
        notes = f"words known: {numbers['tokens_per_second_of_known_words']:,.0f} tokens/s"
    if "share_of_plain_jax" in numbers:
        notes = f"{numbers['share_of_plain_jax']:.0%} of the speed of plain JAX"
    work = (
        f"{numbers['model_gflops']:>8,.0f} {numbers['share_of_matmul']:>10.0%}"
        if numbers["model_gflops"]
        else f"{'-':>8} {'-':>10}"
    )
    return (
        f"{name:<23} {numbers['tokens_per_second']:>10,.0f} {work} {numbers['matmul_gflops']:>8,.0f}"
        f" {numbers['tokens_per_second_per_matmul_gflops']:>9,.2f} {numbers['peak_memory_bytes'] / 1e9:>8.2f}"
        f" {numbers['compile_seconds']:>8.1f}  {notes}"
    )
