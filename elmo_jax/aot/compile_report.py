"""Reports the memory and the exchanges of a compiled training step, and estimates its speed."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from elmo_jax.aot.cost import Assume, Cost, Count, cost_of, once
from elmo_jax.aot.hlo import Instruction, parse
from elmo_jax.aot.step import Compiled, Target
from elmo_jax.config import Config
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.training.partitioning import preferred_encoder_chunk
from elmo_jax.training.row_gradients import FURTHER_ROUNDS
from elmo_jax.training.throughput import Work

# Measured in windows of 128 to 1,024 rows of 20 tokens in both directions (State of the Union addresses; 100 novels):
# there are 1,340 to 1,460 distinct words among 5,120 tokens, and they grow by Heaps' law with an exponent of 0.65.
_TYPICAL_TOKENS, _TYPICAL_WORDS, _HEAPS = 5_120, 1_500, 0.65
_TYPICAL_POSITIONS = 16.0  # of 50 positions, for chunks of 1,024 of these words, sorted by length
_WHY = "as in English text"


@dataclasses.dataclass(frozen=True)
class Estimate:
    """An estimate of a step's time, from the program and the chip's published rates; nothing is run.

    Attributes:
      compute: the seconds per step that the matrix products alone would take.
      memory: the seconds per step that the traffic of the main memory alone would take.
      exchange: the seconds per step that the exchanges between devices alone would take.
      tokens: the tokens per step of all chips.
      model_flops: the operations per step of all chips, as `throughput.Work` counts them.
      peak: the bf16 operations per second of all chips.
    """

    compute: float
    memory: float
    exchange: float
    tokens: int
    model_flops: float
    peak: float

    @property
    def limits(self) -> dict[str, float]:
        """The seconds of each part by its name."""
        return {"matrix products": self.compute, "main memory": self.memory, "exchange": self.exchange}

    @property
    def limited_by(self) -> str:
        """The name of the part that takes longest."""
        return max(self.limits, key=self.limits.__getitem__)

    @property
    def seconds(self) -> float:
        """The seconds per step: those of the longest part, as if the others were hidden behind it."""
        return max(self.limits.values())

    @property
    def tokens_per_second(self) -> float:
        """The tokens per second of all chips; each token of the text counts once."""
        return self.tokens / self.seconds

    @property
    def flop_utilisation(self) -> float:
        """The model's operations, divided by what the matrix units could do in that time."""
        return self.model_flops / (self.seconds * self.peak)

    def as_dict(self) -> dict[str, Any]:
        """Returns the estimate for `--json`."""
        derived = ("seconds", "limited_by", "tokens_per_second", "flop_utilisation")
        return dataclasses.asdict(self) | {name: getattr(self, name) for name in derived}


@dataclasses.dataclass(frozen=True)
class Report:
    """The report about a step that fits.

    Attributes:
      title: the name of the experiment.
      config: the settings.
      target: the devices that the step was compiled for.
      vocabulary_size: the words of the softmax.
      word_types: the words of the lexicon.
      compiled: the compiled step.
    """

    title: str
    config: Config
    target: Target
    vocabulary_size: int
    word_types: int
    compiled: Compiled
    fits = True

    @property
    def rows(self) -> int:
        """The rows per device."""
        return self.config.train.batch_size // len(self.target.devices)

    @property
    def distinct_words(self) -> int:
        """The number of distinct words in a device's batch of typical English text."""
        tokens = 2 * self.config.train.unroll_steps * self.rows
        return min(tokens, round(_TYPICAL_WORDS * (tokens / _TYPICAL_TOKENS) ** _HEAPS))

    @property
    def positions(self) -> float:
        """The number of positions that the filters are applied to, averaged over the encoder's chunks of words."""
        return min(_TYPICAL_POSITIONS, self.config.model.char_cnn.max_characters)

    @functools.cached_property
    def cost(self) -> Cost:
        """The work of a step on one device."""
        room = min(2 * self.config.train.unroll_steps * self.rows, self.word_types)
        chunk = preferred_encoder_chunk(make_mesh(self.target.devices))
        return cost_of(parse(self.compiled.text), _assumed_work(self.distinct_words, self.positions, room, chunk))

    @property
    def sent(self) -> float:
        """The bytes that a device sends per step."""
        return sum(exchange.times * exchange.sent for exchange in self.cost.collectives)

    @property
    def estimate(self) -> Estimate | None:
        """The estimate of a step's time; None if no rates of the device are published."""
        chip, devices = self.target.chip, len(self.target.devices)
        if chip is None:
            return None
        tokens = self.config.train.tokens_per_step
        work = Work(self.config, self.vocabulary_size, self.positions)
        return Estimate(
            compute=self.cost.bf16_flops / chip.flops,
            memory=self.cost.bytes / chip.memory_rate,
            exchange=self.sent / chip.link_rate,
            tokens=tokens,
            model_flops=work.operations(tokens, self.distinct_words * devices),
            peak=chip.flops * devices,
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns the report for `--json`, in bytes, seconds and operations."""
        chip, estimate, memory = self.target.chip, self.estimate, self.compiled.memory
        return {
            "experiment": self.title,
            "topology": self.target.topology,
            "devices": len(self.target.devices),
            "batch_size": self.config.train.batch_size,
            "rows_per_device": self.rows,
            "precision": self.config.train.precision,
            "vocabulary_size": self.vocabulary_size,
            "word_types": self.word_types,
            "compile_seconds": self.compiled.seconds,
            "compiled_before": self.compiled.kept,
            "fits": True,
            "memory": {**memory, "total": sum(memory.values()), "usable": chip.usable if chip else None},
            "collectives": [
                {
                    "kind": exchange.kind,
                    "payload_bytes": exchange.payload,
                    "sent_bytes": exchange.sent,
                    "devices": exchange.group,
                    "times": exchange.times,
                    "loops": list(exchange.loops),
                    "op_name": exchange.op_name,
                }
                for exchange in self.cost.collectives
            ],
            "loops": [{"op_name": name, "turns": turns, "known": why} for name, turns, why in self.cost.loops],
            "program_flops": self.cost.flops,
            "bf16_flops": self.cost.bf16_flops,
            "main_memory_bytes": self.cost.bytes,
            "sent_bytes": self.sent,
            "assumed": {"distinct": self.distinct_words, "positions": self.positions, "why": _WHY},
            "estimate": estimate and estimate.as_dict(),
        }

    def describe(self) -> str:
        """Returns the report as tables for the terminal."""
        when = " by an earlier command" if self.compiled.kept else ""
        head = (
            f"{self.title} on {self.target.topology}: {len(self.target.devices)} devices, {self.rows} rows each,"
            f" {self.config.train.precision}, {self.vocabulary_size:,} words in the softmax"
            f" (compiled in {self.compiled.seconds:.0f} s{when})"
        )
        return "\n\n".join([head, self._memory(), self._exchanges(), self._estimate(), self._assumed()])

    def _memory(self) -> str:
        memory, chip = self.compiled.memory, self.target.chip
        lines = [f"{'memory of a device':<24}{'GB':>8}"]
        lines += [f"  {name:<22}{size / 1e9:>8.2f}" for name, size in memory.items()]
        of = f" of {chip.usable / 1e9:.2f} that a program can have: fits" if chip else ""
        return "\n".join([*lines, f"  {'in all':<22}{sum(memory.values()) / 1e9:>8.2f}{of}"])

    def _exchanges(self) -> str:
        lines = [f"{'exchanges of a step':<24}{'payload MB':>12}{'a device sends MB':>20}  where"]
        for exchange in self.cost.collectives:
            where = "outside all loops"
            if exchange.loops:
                where = f"inside a loop, {exchange.times:,.0f} times per step: {_short(exchange.loops[-1])}"
            lines.append(
                f"  {exchange.kind:<22}{exchange.payload / 1e6:>12,.2f}"
                f"{exchange.times * exchange.sent / 1e6:>20,.2f}  {where}"
            )
        return "\n".join([*lines, f"  {'in all':<22}{'':>12}{self.sent / 1e6:>20,.2f}"])

    def _estimate(self) -> str:
        cost, estimate, chip = self.cost, self.estimate, self.target.chip
        passes = f" ({cost.bf16_flops / cost.flops:.1f} bf16 passes)" if cost.flops else ""
        amounts = {
            "matrix products": f"{cost.flops / 1e12:.2f} TFLOP{passes}",
            "main memory": f"{cost.bytes / 1e9:.1f} GB",
            "exchange": f"{self.sent / 1e9:.2f} GB",
        }
        if estimate is None or chip is None:
            lines = ["work of a step on a device (no rates are published for it, so there is no estimate of its time)"]
            return "\n".join([*lines, *(f"  {name:<18}{amount}" for name, amount in amounts.items())])
        bytes_per_second = (f"{rate / 1e9:.0f} GB/s" for rate in (chip.memory_rate, chip.link_rate))
        rates = (f"{chip.flops / 1e12:.0f} TFLOP/s", *bytes_per_second)
        lines = ["estimate of a step, from the program and the chip's published rates; nothing was run"]
        for (name, amount), rate in zip(amounts.items(), rates, strict=True):
            lines.append(f"  {name:<18}{amount:<32}at {rate:<14}{estimate.limits[name] * 1e3:>8.2f} ms")
        each = estimate.tokens_per_second / len(self.target.devices)
        return "\n".join(
            [
                *lines,
                f"  estimated step: {estimate.seconds * 1e3:.2f} ms, limited by: {estimate.limited_by}",
                f"  estimated tokens/s: {estimate.tokens_per_second:,.0f} ({each:,.0f} per chip)",
                f"  estimated FLOP utilisation: {estimate.flop_utilisation:.0%} of the chips' bf16 rate",
            ]
        )

    def _assumed(self) -> str:
        lines = [
            "assumed, where the program's work depends on the text",
            f"  {self.distinct_words:,} distinct words in a device's batch, filters applied to"
            f" {self.positions:.1f} positions ({_WHY})",
        ]
        others = [(name, why) for name, _, why in self.cost.loops if why not in ("as compiled", _WHY)]
        lines += dict.fromkeys(f"  a loop {why}: {_short(name)}" for name, why in others)
        return "\n".join(lines)


def _short(op_name: str) -> str:
    return op_name.split("shard_map/")[-1]


def _assumed_work(distinct: int, positions: float, room: int, chunk: int) -> Assume:
    """Returns the assumptions about work that depends on the batch.

    The token encoder skips chunks without words and positions without characters. The exchange of softmax rows has
    further rounds only for batches that hardly ever occur.

    Args:
      distinct: the distinct words of a device's batch.
      positions: the positions that the filters are applied to.
      room: the number of distinct words that a device's batch can have.
      chunk: the number of words that are encoded at a time.
    """
    chunk = min(chunk, room)

    def assume(instruction: Instruction) -> Count:
        if FURTHER_ROUNDS in instruction.op_name:
            return Count(0.0, "of rounds that hardly any batch needs, counted as none")
        if "token_encoder" not in instruction.op_name:
            return once(instruction)
        if instruction.opcode == "while":
            return Count(positions, _WHY)
        return Count(min(1.0, math.ceil(distinct / chunk) / math.ceil(room / chunk)), _WHY)

    return assume
