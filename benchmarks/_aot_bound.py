"""What an H200 allows a kernel at most, from its instructions and its traffic.

docs/kernels.md does this arithmetic by hand. It assumes that every unit is always busy and that
nothing waits; it is a limit, not a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NUM_SMS = 132
CLOCK_HZ = 1.98e9
COPY_BYTES_PER_S = 4.3e12
ISSUE_LANES = 4 * 32  # four schedulers, each issues one instruction for 32 lanes a clock

# Lanes that one SM serves in a clock, from the throughput table of the CUDA programming guide for
# compute capability 9.0. LOCAL, SYNC, CTRL and UNIFORM instructions only take issue slots here.
UNIT_LANES = {"ALU": 64, "IMAD": 64, "FP32": 128, "XU": 16, "SHFL": 32, "LSU": 32}


@dataclass(frozen=True, slots=True)
class Bound:
    """limiter: "issue", "memory" or a unit; raw_gbps: 1e9 raw bytes per second at that limit."""

    limiter: str
    raw_gbps: float
    memory_gbps: float

    @property
    def memory_share(self) -> float:
        """Fraction of what memory alone would allow."""
        return self.raw_gbps / self.memory_gbps


def h200_bound(per_element: Mapping[str, float], raw_nbytes: float, moved_nbytes: float) -> Bound:
    """Tightest limit for elements of `raw_nbytes` that move `moved_nbytes` each.

    per_element: thread-instructions of one element by class, from code for sm_90.
    """
    lanes = NUM_SMS * CLOCK_HZ  # times lanes per SM and clock: thread-instructions per second
    elements_per_s = {"memory": COPY_BYTES_PER_S / moved_nbytes}
    elements_per_s["issue"] = lanes * ISSUE_LANES / sum(per_element.values())
    for unit, width in UNIT_LANES.items():
        if per_element.get(unit):
            elements_per_s[unit] = lanes * width / per_element[unit]
    limiter = min(elements_per_s, key=elements_per_s.__getitem__)
    to_gbps = raw_nbytes / 1e9
    return Bound(limiter, elements_per_s[limiter] * to_gbps, elements_per_s["memory"] * to_gbps)
