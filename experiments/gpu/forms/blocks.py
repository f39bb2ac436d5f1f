"""What threads, blocks and clusters wait for: asynchronous copies, barriers, registers that change hands."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from experiments.gpu.forms.form import BARRIER, BARRIERS, SHARED, FormOutput, InstructionForm, giver, helper, map_of
from experiments.gpu.forms.tiles import ARRIVES, TILE

AB, ABC = "const float* A, float* c", ("A", "c")


def copies() -> Iterator[InstructionForm]:
    """cp.async of 4, 8 and 16 bytes, of which some are there and the rest is zero."""
    groups = helper("commit()", "cp.async.commit_group;", '::: "memory"')
    groups += helper("wait()", "cp.async.wait_group 0;", '::: "memory"')
    whole = helper("commit()", "cp.async.commit_group;", '::: "memory"')
    whole += helper("wait()", "cp.async.wait_all;", '::: "memory"')
    rows = (
        ("cp.async.ca.shared.global", 4, groups), ("cp.async.ca.shared.global", 8, groups),
        ("cp.async.ca.shared.global", 16, whole), ("cp.async.cg.shared.global", 16, groups),
        ("cp.async.cg.shared.global.L2::128B", 16, groups),
    )  # fmt: skip
    for ptx, nbytes, waits in rows:
        text = waits + helper(
            "start(unsigned to, const void* from, int n)", f"{ptx} [%0], [%1], {nbytes}, %2;",
            ':: "r"(to), "l"((unsigned long long)from), "r"(n) : "memory"',
        )  # fmt: skip
        words = nbytes // 4
        array = np.arange(1, 32 * words + 1, dtype=np.float32)
        expected = array.reshape(32, words).copy()
        expected[1::3, words // 2 :] = 0  # a part of each is there
        expected[2::3] = 0
        body = f"""{SHARED}
  const int lane = threadIdx.x;
  start(base + lane * {nbytes}, A + lane * {words}, lane % 3 == 0 ? {nbytes} : lane % 3 == 1 ? {words // 2 * 4} : 0);
  commit();
  wait();
  __syncthreads();
  for (int i = lane; i < {32 * words}; i += 32) c[i] = ((float*)s)[i];"""
        yield InstructionForm(
            f"{ptx} {nbytes}", body, text, AB, ABC, {"A": array, "c": np.zeros(32 * words, np.float32)},
            {"c": FormOutput(expected, "float32")},
        )  # fmt: skip


def arriving_copies() -> InstructionForm:
    text = BARRIERS + helper(
        "start(unsigned to, const void* from)", "cp.async.cg.shared.global [%0], [%1], 16;",
        ':: "r"(to), "l"((unsigned long long)from) : "memory"',
    )  # fmt: skip
    text += helper(
        "join(unsigned bar)", "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];", ':: "r"(bar) : "memory"'
    )
    body = f"""{SHARED}
  if (threadIdx.x == 0) {{ init(base + {BARRIER}, 32); fence_init(); }}
  __syncthreads();
  start(base + threadIdx.x * 16, A + threadIdx.x * 4);
  join(base + {BARRIER});
  while (!done(base + {BARRIER}, 0)) {{ }}
  for (int i = 0; i < 4; ++i) c[threadIdx.x * 4 + i] = ((float*)s)[127 - threadIdx.x * 4 - i];"""
    array = np.arange(128, dtype=np.float32)
    memory = {"A": array, "c": np.zeros(128, np.float32)}
    return InstructionForm(
        "cp.async.mbarrier.arrive.noinc", body, text, AB, ABC, memory, {"c": FormOutput(array[::-1].copy(), "float32")}
    )


def named() -> InstructionForm:
    """Two pairs of warps exchange, and a warp tells another without waiting."""
    text = helper("meet(int id, int n)", "bar.sync %0, %1;", ':: "r"(id), "r"(n) : "memory"')
    text += helper("tell(int id, int n)", "bar.arrive %0, %1;", ':: "r"(id), "r"(n) : "memory"')
    body = """__shared__ float s[128];
  __shared__ float told[32];
  const int t = threadIdx.x, pair = t / 64;
  s[t] = A[t];
  meet(1 + pair, 64);
  const float other = s[t ^ 32];
  if (t < 32) told[t] = other + A[t];
  if (t < 32) tell(3, 64);
  else if (t < 64) meet(3, 64);
  c[t] = t >= 32 && t < 64 ? told[t - 32] : other;"""
    array = np.arange(128, dtype=np.float32)
    expected = (np.arange(128) ^ 32).astype(np.float32)
    expected[32:64] = np.arange(32) + (np.arange(32) ^ 32)
    memory = {"A": array, "c": np.zeros(128, np.float32)}
    return InstructionForm(
        "bar.sync, bar.arrive",
        body,
        text,
        AB,
        ABC,
        memory,
        {"c": FormOutput(expected, "float32")},
        threads=128,
        shared=1024,
    )


def phases() -> InstructionForm:
    """A ring of one place: two warps hand numbers over, and each parity is waited for in turn; test_wait as well."""
    text = BARRIERS + giver(
        "unsigned", "passed(unsigned bar, unsigned parity)",
        "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }",
        ': "r"(bar), "r"(parity) : "memory"',
    )  # fmt: skip
    body = f"""{SHARED}
  const int lane = threadIdx.x % 32;
  const unsigned full = base + {BARRIER}, empty = base + {BARRIER + 8};
  if (threadIdx.x == 0) {{ init(full, 32); init(empty, 32); fence_init(); }}
  __syncthreads();
  if (threadIdx.x < 32) {{
    for (int n = 0; n < 5; ++n) {{
      while (!passed(empty, (n & 1) ^ 1)) {{ }}
      ((float*)s)[lane] = A[n * 32 + lane];
      arrive(full);
    }}
  }} else {{
    for (int n = 0; n < 5; ++n) {{
      while (!done(full, n & 1)) {{ }}
      c[n * 32 + lane] = ((float*)s)[31 - lane];
      arrive(empty);
    }}
  }}"""
    array = np.arange(160, dtype=np.float32)
    memory = {"A": array, "c": np.zeros(160, np.float32)}
    expected = array.reshape(5, 32)[:, ::-1].copy()
    return InstructionForm(
        "mbarrier phases", body, text, AB, ABC, memory, {"c": FormOutput(expected, "float32")}, threads=64
    )


CLUSTER = "".join((
    giver("unsigned", "rank()", "mov.u32 %0, %%cluster_ctarank;", ""),
    giver("unsigned", "map_to(unsigned at, unsigned cta)", "mapa.shared::cluster.u32 %0, %1, %2;",
          ': "r"(at), "r"(cta)'),
    helper("arrive_at(unsigned bar)", "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];",
           ':: "r"(bar) : "memory"'),
    helper("all_arrive()", "barrier.cluster.arrive.release.aligned;", '::: "memory"'),
    helper("all_wait()", "barrier.cluster.wait.acquire.aligned;", '::: "memory"'),
))  # fmt: skip


def multicast() -> InstructionForm:
    """Each block loads a half for both, and waits for all bytes; each tells the other when it has read."""
    array = np.arange(32 * 16, dtype=np.float32).reshape(32, 16)
    text = TILE + CLUSTER + helper(
        "load(unsigned to, const TensorMap* map, int x, int y, unsigned bar, unsigned short mask)",
        f"cp.async.bulk.tensor.2d.shared::cluster.global.{ARRIVES}.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;",
        ':: "r"(to), "l"((unsigned long long)map), "r"(x), "r"(y), "r"(bar), "h"(mask) : "memory"',
    )  # fmt: skip
    body = f"""{SHARED}
  const unsigned full = base + {BARRIER}, empty = base + {BARRIER + 8};
  if (threadIdx.x == 0) {{ init(full, 1); init(empty, 2); fence_init(); }}
  all_arrive();
  all_wait();
  if (threadIdx.x == 0) {{ expect(full, 2048); load(base + rank() * 1024, &map, 0, rank() * 16, full, 3); }}
  while (!done(full, 0)) {{ }}
  for (int i = threadIdx.x; i < 512; i += 32) c[blockIdx.x * 512 + i] = ((float*)s)[i];
  __syncwarp();
  if (threadIdx.x < 2) arrive_at(map_to(empty, threadIdx.x));
  while (!done(empty, 0)) {{ }}
  all_arrive();
  all_wait();"""
    parameters = "const __grid_constant__ TensorMap map, float* c"
    return InstructionForm(
        "multicast to a cluster of 2, remote arrival", body, text, parameters, (map_of("A", array, (16, 16)), "c"),
        {"A": array, "c": np.zeros((2, 32, 16), np.float32)}, {"c": FormOutput(np.stack([array, array]), "float32")},
        cluster=2,
    )  # fmt: skip


def registers(taken: int, given: int) -> InstructionForm:
    """Two warpgroups take registers that the third gives back; all go on with what they had."""
    text = helper("give()", f"setmaxnreg.dec.sync.aligned.u32 {given};", "")
    text += helper("take()", f"setmaxnreg.inc.sync.aligned.u32 {taken};", "")
    body = """const float had = A[threadIdx.x];
  if (threadIdx.x < 256) { take(); c[threadIdx.x] = had + 1; }
  else { give(); c[threadIdx.x] = had + 2; }"""
    array = np.arange(384, dtype=np.float32)
    expected = array + np.where(np.arange(384) < 256, 1, 2)
    memory = {"A": array, "c": np.zeros(384, np.float32)}
    name = f"setmaxnreg {taken} and {given}"
    return InstructionForm(
        name, body, text, AB, ABC, memory, {"c": FormOutput(expected, "float32")}, threads=384, shared=0
    )


def forms() -> Iterator[InstructionForm]:
    yield from copies()
    yield from (arriving_copies(), named(), phases(), multicast(), registers(232, 40), registers(240, 24))
