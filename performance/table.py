"""Formats what the command prints, which is one line per part."""

from typing import Any

HEADER = (
    f"{'part':<17} {'tokens/s':>10} {'GFLOP/s':>8} {'of product':>10} {'product':>8} {'tok/s per':>9} {'memory':>8}"
    f" {'compile':>8}\n"
    f"{'':<17} {'':>10} {'(model)':>8} {'':>10} {'GFLOP/s':>8} {'GFLOP/s':>9} {'GB':>8} {'s':>8}"
)


def header(figures: dict[str, Any]) -> str:
    """Returns the head of the table, with the devices and the names of the columns."""
    return f"{figures['devices']}, {figures['precision']}, JAX {figures['jax']}\n\n{HEADER}"


def line(name: str, figures: dict[str, Any]) -> str:
    """Returns the line of one part."""
    if "seconds_cold" in figures:
        cold, warm = figures["seconds_cold"], figures["seconds_warm"]
        return f"{name:<17} {cold:.1f} s to the first step, {warm:.1f} s with a cache of compiled programs"
    notes = ""
    if "devices_used" in figures:
        rate = figures["tokens_per_second_of_one_device"]
        notes = f"devices {figures['devices_used']}; one device {rate:,.0f} tokens/s"
    if "beside" in figures:
        notes = f"{figures['share_of_beside']:.0%} of the speed of {figures['beside']}"
    work = (
        f"{figures['model_gflops']:>8,.0f} {figures['share_of_matmul']:>10.0%}"
        if figures["model_gflops"]
        else f"{'-':>8} {'-':>10}"
    )
    plain = ""
    if "tokens_per_second_of_plain" in figures:
        rate = figures["tokens_per_second_of_plain"]
        plain = (
            f"\n{'  the plain biLM':<17} {rate:>10,.0f}  (model/reference.py, every token encoded, autodiff, Optax);"
            f" the line above is {figures['tokens_per_second'] / rate:.1f} times as fast"
        )
    return (
        f"{name:<17} {figures['tokens_per_second']:>10,.0f} {work} {figures['matmul_gflops']:>8,.0f}"
        f" {figures['tokens_per_second_per_matmul_gflops']:>9,.2f} {figures['peak_memory_bytes'] / 1e9:>8.2f}"
        f" {figures['compile_seconds']:>8.1f}  {notes}{plain}"
    )
