"""PTX wrappers of tile pipelines: the copy engine, mbarriers, register reallocation, one instruction each.

Sources: PTX ISA, "mbarrier", "cp.async.bulk.tensor", "setmaxnreg", "mapa", "barrier.cluster".
"""

from __future__ import annotations

from autosched.ir.instructions.tiles import MOST_TURNS, REGISTERS, WARPGROUP
from autosched.ir.stmt import TileCopy

MEMORY = ': "memory"'
FUNCTION = "static __device__ __forceinline__ "
FIRST_TURN = len(REGISTERS) + 1  # named barriers with lower numbers belong to warpgroups
COORDINATES = ("x", "y", "z", "u", "v")
BARRIER_TYPE = "unsigned long long"
MAP_TYPE = "struct __align__(64) TensorMap { unsigned long long opaque[16]; };"
BARRIER = '"r"((unsigned)__cvta_generic_to_shared(barrier))'
# Functions of one PTX instruction each, by name: (parameters, instruction, operands).
PLAIN: dict[str, tuple[str, str, str]] = {
    "start_barrier": ("unsigned long long* barrier, unsigned count",
                      "mbarrier.init.shared::cta.b64 [%0], %1;", f':: {BARRIER}, "r"(count) {MEMORY}'),
    "show_barriers": ("", "fence.mbarrier_init.release.cluster;", f"::{MEMORY}"),
    "expect_bytes": ("unsigned long long* barrier, unsigned bytes",
                     "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;", f':: {BARRIER}, "r"(bytes) {MEMORY}'),
    "arrive": ("unsigned long long* barrier",
               "mbarrier.arrive.shared::cta.b64 _, [%0];", f":: {BARRIER} {MEMORY}"),
    "arrive_elsewhere": ("unsigned barrier",
                         "mbarrier.arrive.shared::cluster.b64 _, [%0];", f':: "r"(barrier) {MEMORY}'),
    "arrive_at_cluster": ("", "barrier.cluster.arrive.release.aligned;", f"::{MEMORY}"),
    "wait_for_cluster": ("", "barrier.cluster.wait.acquire.aligned;", f"::{MEMORY}"),
    "begin_products": ("", "wgmma.fence.sync.aligned;", f"::{MEMORY}"),
    "commit_products": ("", "wgmma.commit_group.sync.aligned;", f"::{MEMORY}"),
    **{f"meet_{n}": ("", f"bar.sync {n}, {WARPGROUP};", f"::{MEMORY}") for n in REGISTERS},
    "take_turn": ("int number", f"bar.sync %0, {MOST_TURNS * WARPGROUP};", f':: "r"(number) {MEMORY}'),
    "give_turn": ("int number", f"bar.arrive %0, {MOST_TURNS * WARPGROUP};", f':: "r"(number) {MEMORY}'),
    "show_to_engine": ("", "fence.proxy.async.shared::cta;", f"::{MEMORY}"),
    "commit_stores": ("", "cp.async.bulk.commit_group;", f"::{MEMORY}"),
    "wait_for_stores": ("", "cp.async.bulk.wait_group.read 0;", f"::{MEMORY}"),
    "wait_for_all_products_but_0": ("", "wgmma.wait_group.sync.aligned 0;", f"::{MEMORY}"),
    "wait_for_all_products_but_1": ("", "wgmma.wait_group.sync.aligned 1;", f"::{MEMORY}"),
}  # fmt: skip
HAS_PASSED = f"""\
{FUNCTION}bool has_passed(unsigned long long* barrier, unsigned parity)
{{
  unsigned passed;
  asm volatile("{{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }}"
               : "=r"(passed) : {BARRIER}, "r"(parity) {MEMORY});
  return passed;
}}"""
IN_BLOCK = f"""\
{FUNCTION}unsigned in_block(unsigned rank, unsigned long long* barrier)
{{
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : {BARRIER}, "r"(rank));
  return there;
}}"""
LOAD = f"""\
{FUNCTION}void {{name}}(void* to, const TensorMap* map, {{parameters}}, unsigned long long* barrier{{last}})
{{{{
  asm volatile("cp.async.bulk.tensor.{{rank}}d.shared::cluster.global"
               "{{mode}}.mbarrier::complete_tx::bytes{{multicast}} "
               "[%0], [%1, {{{{{{places}}}}}}], [%{{bar}}]{{window}};"
               :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"((unsigned long long)map), {{operands}},
                  {BARRIER}{{offsets}} {MEMORY});
}}}}"""
STORE = f"""\
{FUNCTION}void store_tile_{{rank}}(const TensorMap* map, {{parameters}}, const void* from)
{{{{
  asm volatile("cp.async.bulk.tensor.{{rank}}d.global.shared::cta.bulk_group [%0, {{{{{{places}}}}}}], [%1];"
               :: "l"((unsigned long long)map), "r"((unsigned)__cvta_generic_to_shared(from)), {{operands}} {MEMORY});
}}}}"""
# Keeps the compiler from reading an accumulator before the wait for the asynchronous products.
KEEP = f"""\
{FUNCTION}void keep_{{kind}}({{kind}}& value) {{{{ asm volatile("" : "+{{letter}}"(value) :{MEMORY}); }}}}"""
SETMAXNREG = f"""\
{FUNCTION}void {{name}}() {{{{ asm volatile("setmaxnreg.{{way}}.sync.aligned.u32 {{count}};"); }}}}"""


def load_function(load: TileCopy, is_multicast: bool) -> tuple[str, str]:
    """Return (name, text) of the function that loads panels of the tile; `is_multicast`: to all blocks of a cluster."""
    spatial = 0 if load.pixels is None else len(load.pixels.counts)
    rank = spatial + 2 if spatial else load.rank
    places = COORDINATES[:rank]
    offsets = [f"{x}_in_window" for x in COORDINATES[1 : spatial + 1]]
    name = (f"load_pixels_{rank}" if spatial else f"load_tile_{rank}") + "_for_all" * is_multicast
    last = ", ".join(f"%{n + rank + 3}" for n in range(spatial))
    window = f", {{{last}}}" if spatial else ""
    text = LOAD.format(
        name=name,
        rank=rank,
        mode=".im2col" if spatial else "",
        multicast=".multicast::cluster" * is_multicast,
        parameters=", ".join(f"int {x}" for x in (*places, *offsets)),
        places=", ".join(f"%{n + 2}" for n in range(rank)),
        bar=rank + 2,
        window=window + f", %{rank + 3 + spatial}" * is_multicast,
        operands=", ".join(f'"r"({x})' for x in places),
        offsets="".join(f', "h"((unsigned short){x})' for x in (*offsets, *["blocks"] * is_multicast)),
        last=", unsigned blocks" * is_multicast,
    )
    return name, text


def store_function(rank: int) -> tuple[str, str]:
    """Return (name, text) of the function that stores panels."""
    name, places = f"store_tile_{rank}", COORDINATES[:rank]
    text = STORE.format(
        rank=rank,
        parameters=", ".join(f"int {x}" for x in places),
        places=", ".join(f"%{n + 2}" for n in range(rank)),
        operands=", ".join(f'"r"({x})' for x in places),
    )
    return name, text
