"""Machine constants of the GPU's analytic latency that are the same on every card.

As on processors they only have to be right relative to each other; what differs between devices is in
`autosched.target.GpuFacts`, what is fitted to measurements in `cost_model.gpu.constants`. Rates are those of one
multiprocessor.
Sources: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions" and "Maximize Utilization";
Nsight Compute documentation (sectors, requests, wavefronts); Jia et al., "Dissecting the NVIDIA Volta GPU
Architecture via Microbenchmarking" (latencies); Abdelkhalik et al., "Demystifying the Nvidia Ampere Architecture".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autosched.errors import TargetError
from autosched.ir.closed_forms.arithmetic import divide, multiply
from autosched.ir.expr import Expr
from autosched.ir.instructions.matrices import MatrixIntrinsic
from autosched.target import GpuFacts, Target
from cost_model.gpu.constants import CardConstants, constants_of, matrix_rates_of

SECTOR = 32  # bytes that memory and caches move at least
WAVEFRONT = 128  # bytes that shared memory or L1 deliver in a cycle
VECTOR_BYTES = 16  # that a thread moves at a time, at most
COPIED_BYTES = 4  # that an asynchronous copy or a vector has at least
BANKS = 32  # of shared memory, 4 bytes wide
BANK_BYTES = 4
SCHEDULERS = 4  # instructions started in a cycle

# Slots of the single-precision pipe per operation of a thread. Integers stand in conditions, where divisors are
# constants.
SLOTS: dict[str, float] = {
    "float_mad": 1.0, "float_addsub": 1.0, "float_mul": 1.0, "float_divmod": 12.0, "float_cmp": 2.0, "float_math": 14.0,
    "float_other": 2.0, "int_mad": 1.0, "int_addsub": 1.0, "int_mul": 1.0, "int_divmod": 6.0, "int_cmp": 1.0,
    "int_math": 4.0, "int_other": 1.0, "bool_op": 0.5, "select_op": 1.0,
}  # fmt: skip
DOT_SHARE = 0.5  # of a multiply-add for each product that an instruction adds up with others
# Slots of a multiply-add with an operand that comes in vectors along the reduction: in each of its steps all its
# registers are in one bank, and wait for each other (`autosched.codegen.c.tiles.zigzag`).
ALONG_SLOTS = 1.13
# Double-precision operations take this many slots, by compute capability; cards for graphics have few such units.
DOUBLE_SLOTS: dict[str, float] = {"sm_80": 2.0, "sm_90": 2.0, "sm_100": 2.0}
DOUBLE_SLOTS_ELSEWHERE = 64.0

ARITHMETIC_LATENCY = 4.0  # cycles until a result can be used
DIVISION_INSTRUCTIONS = 8.0  # per dimension whose position is no fixed distance from that of the thread's last copy
BORDER_INSTRUCTIONS = 2.0  # per comparison with a border
HELD_ADDRESSES = 2  # registers beside each vector that is held for the next iteration of a pipeline
LOADS_IN_FLIGHT = 4.0  # iterations of a short loop that the compiler overlaps
L2_CAPACITY_SHARE = 0.7  # of L2 that a working set may fill

SHARED_RESERVED = 1 << 10  # bytes of a multiprocessor's shared memory that each block costs beside its own
REGISTER_UNIT = 8  # registers are given to the threads of a warp in multiples of this
MAX_THREADS_Z = 64


@dataclass(frozen=True)
class GpuMachine:
    """The facts about a target that the cost model reads."""

    target: Target
    facts: GpuFacts
    constants: CardConstants
    matrix_rates: tuple[tuple[str, float], ...]  # by pipe

    @property
    def double_slots(self) -> float:
        return DOUBLE_SLOTS.get(self.facts.arch, DOUBLE_SLOTS_ELSEWHERE)

    @property
    def clock_hz(self) -> Expr:
        return multiply(self.constants.clock_share, self.facts.clock_ghz * 1e9)

    @property
    def dram_bytes_s(self) -> Expr:
        return multiply(self.constants.dram_share, self.facts.bandwidth_bytes_s)

    def l2_bytes_s(self, by_engine: bool) -> Expr:
        """Bytes in a second from L2 into all multiprocessors, by threads or by the copy engine."""
        each = self.constants.l2_tiles if by_engine else self.constants.l2_shared
        return multiply(multiply(each, float(self.facts.multiprocessors)), self.clock_hz)

    def matrix_rate(self, row: MatrixIntrinsic) -> Expr:
        """Multiply-adds of a multiprocessor in a cycle by matrix instructions: as measured, else from the tables."""
        measured = dict(self.matrix_rates).get(row.pipe)
        if measured is None:
            return multiply(self.constants.tensor_share, float(row.rate(self.facts.arch)))
        return multiply(divide(self.constants.tensor_share, self.constants.clock_share), measured)


def gpu_machine(
    target: Target, constants: CardConstants | None = None, matrix_rates: Mapping[str, float] | None = None
) -> GpuMachine:
    """The cost model's view of a GPU, with the constants and rates of its card unless others are given. Raises
    TargetError for a target that is none."""
    if target.gpu is None:
        raise TargetError(f"the target {target.kind} has no facts of a GPU; parse it with parse_target")
    rates = matrix_rates_of(target.gpu) if matrix_rates is None else matrix_rates
    return GpuMachine(target, target.gpu, constants or constants_of(target.gpu), tuple(rates.items()))
