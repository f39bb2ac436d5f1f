"""Thread pool of parallel loops, as LLVM IR text, so that no C compiler is needed.

`pool_ir(target)` defines

    void autosched_run(ptr fn, ptr env, i64 n_tasks, i64 n_threads)   a region on at most n_threads threads
    void autosched_pool_shutdown()                                    joins the workers; the next region starts new ones

with fn: `void (ptr env, i64 task, i64 thread_id)` and 0 <= thread_id < n_threads. A kernel calls `autosched_parallel`,
which is the first with its own number of threads (`bound_parallel_ir`).

How a region runs. The caller is thread 0. Each worker owns one cache line with a word: IDLE, GO, ASLEEP or QUIT. The
caller sets GO for as many workers as there are further tasks, wakes those that sleep (futex), and takes tasks itself.
A worker takes its GO by compare-and-swap, so when no task is left the caller takes back what nobody has taken yet: a
region never waits for a thread that the system has not scheduled.

Work stealing. Each thread has a range of consecutive tasks, with an atomic counter, and steals from the others' ranges
when its own is empty. So no thread waits while there is work, and yet a thread mostly gets the tasks of the last call,
whose data are in its own caches, and which write pages and lines that no other core has.

How a worker idles. It watches its word for 20 to 50 us, which is as long as the other threads of a region may need to
end it and Python to start the next. For about half a millisecond more it watches it, but offers its core to others
(sched_yield) every other microsecond; it answers a GO as soon, 0.3 us later on average. Then it sleeps, and at once
when a yield lasted so long that somebody else must have run: on a machine with more threads than cores, who spins takes
the time of those who work. To wake a sleeper costs its caller 2 us and more (futex), and a small region ends before it
comes. Peers watch longer: libgomp and TVM 300,000 pauses, which are 7 ms where a pause takes 24 ns, LLVM's OpenMP
200 ms.

Where a worker runs. The system likes to put it on the core of the thread that woke it, where it waits for the next
tick although another core is idle: a product of 128x128x128 took 36 us a call in the first 4 ms after a rest, as on one
thread, and 20 us later. So a worker that is made or called is kept away from its caller's core, if the caller may use
others; where the caller has moved since the last call, onto the worker's core perhaps, the worker moves too.

A region runs on the calling thread alone, with thread_id 0, when the pool is busy (a nested region, another thread's
region), when there is one task or one thread, and on systems other than Linux. A forked child notices that its workers
are gone and makes its own. If threads cannot be created, the region runs on those there are.
"""

from __future__ import annotations

import sys
from string import Template

from autosched.errors import TargetError
from autosched.target import Target
from autosched.target.host import ASK_FOR_TILES

MAX_THREADS = 256
_PATIENCE = 12  # an idle worker spins without yielding once, with yielding so many times as long, then it sleeps
_PAUSES_A_YIELD = 64  # a power of two; 1.5 us, of which a yield takes 0.5
_LONG_YIELD_NS = 20_000  # of an empty core's yield: below 1 us; a thread that has the core keeps it for longer
# (pause instruction, its declaration, iterations of the idle spin: 20-50 us, number of the futex system call)
_ARCH: dict[str, tuple[str, str, int, int]] = {
    "x86_64": ("call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()", 1500, 202),
    "aarch64": ("call void @llvm.aarch64.isb(i32 15)", "declare void @llvm.aarch64.isb(i32)", 2000, 98),
}

_SERIAL = """
define internal void @autosched_serial(ptr %fn, ptr %env, i64 %n) nounwind {
entry:
  %any = icmp sgt i64 %n, 0
  br i1 %any, label %loop, label %done
loop:
  %t = phi i64 [ 0, %entry ], [ %t1, %loop ]
  call void %fn(ptr %env, i64 %t, i64 0)
  %t1 = add i64 %t, 1
  %more = icmp slt i64 %t1, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""

_SERIAL_POOL = """
define $link void @autosched_run(ptr %fn, ptr %env, i64 %n, i64 %limit) nounwind {
  call void @autosched_serial(ptr %fn, ptr %env, i64 %n)
  ret void
}
define $link void @autosched_pool_shutdown() nounwind {
  ret void
}
"""

_STATE = """
%slot = type { i32, i32, i64, i64, [40 x i8] } ; word, thread id, pthread_t, 1 + the core that it is kept away from
%share = type { i64, i64, [48 x i8] } ; the next task, the end
@autosched_slots = $link global [$max x %slot] zeroinitializer, align 64
@autosched_busy = $link global i32 0, align 64
@autosched_shares = $link global [$max x %share] zeroinitializer, align 64
@autosched_pending = $link global i64 0, align 64
@autosched_region = $link global { ptr, ptr, i64 } zeroinitializer, align 64
@autosched_workers = $link global i64 0, align 64
@autosched_pid = $link global i32 0, align 64

declare i64 @syscall(i64, ...) nounwind
declare i32 @pthread_create(ptr, ptr, ptr, ptr) nounwind
declare i32 @pthread_join(i64, ptr) nounwind
declare i32 @getpid() nounwind
declare i32 @sched_getcpu() nounwind
declare i32 @sched_getaffinity(i32, i64, ptr) nounwind
declare i32 @pthread_setaffinity_np(i64, i64, ptr) nounwind
declare i64 @llvm.vector.reduce.or.v16i64(<16 x i64>)
declare i32 @sched_yield() nounwind
declare i32 @clock_gettime(i32, ptr) nounwind
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.smin.i64(i64, i64)
$declare_pause

; the worker may run on all cores of the caller but the one that the caller is on; of 1024 cores, else it is left alone
define internal void @autosched_part(ptr %slot) nounwind {
entry:
  %mask = alloca [16 x i64], align 16
  %cpu.32 = call i32 @sched_getcpu()
  %cpu = sext i32 %cpu.32 to i64
  %mark = add i64 %cpu, 1
  %kept.p = getelementptr %slot, ptr %slot, i64 0, i32 3
  %kept = load i64, ptr %kept.p
  %same = icmp eq i64 %kept, %mark
  %sane = icmp ult i64 %cpu, 1024
  br i1 %same, label %done, label %check
check:
  br i1 %sane, label %ask, label %done
ask:
  call void @llvm.memset.p0.i64(ptr align 16 %mask, i8 0, i64 128, i1 false)
  %failed = call i32 @sched_getaffinity(i32 0, i64 128, ptr %mask)
  %known = icmp eq i32 %failed, 0
  br i1 %known, label %clear, label %done
clear:
  %place = lshr i64 %cpu, 6
  %bit = and i64 %cpu, 63
  %one = shl i64 1, %bit
  %others.bits = xor i64 %one, -1
  %word.p = getelementptr [16 x i64], ptr %mask, i64 0, i64 %place
  %word = load i64, ptr %word.p
  %rest = and i64 %word, %others.bits
  store i64 %rest, ptr %word.p
  %all = load <16 x i64>, ptr %mask, align 16
  %any = call i64 @llvm.vector.reduce.or.v16i64(<16 x i64> %all)
  %others = icmp ne i64 %any, 0
  br i1 %others, label %set, label %done
set:
  %thread.p = getelementptr %slot, ptr %slot, i64 0, i32 2
  %thread = load i64, ptr %thread.p
  %r = call i32 @pthread_setaffinity_np(i64 %thread, i64 128, ptr %mask)
  store i64 %mark, ptr %kept.p
  br label %done
done:
  ret void
}

define internal void @autosched_wake(ptr %word, i32 %old) nounwind {
entry:
  %asleep = icmp eq i32 %old, 2
  br i1 %asleep, label %wake, label %done
wake:
  %r = call i64 (i64, ...) @syscall(i64 $futex, ptr %word, i32 129, i32 1, ptr null, ptr null, i32 0)
  br label %done
done:
  ret void
}

; the first %n shares, the one of this thread before the others
define internal void @autosched_drain(ptr %fn, ptr %env, i64 %n, i64 %id) nounwind {
entry:
  br label %open
open:
  %i = phi i64 [ %id, %entry ], [ %next, %empty ]
  %left = phi i64 [ %n, %entry ], [ %left1, %empty ]
  %share = getelementptr [$max x %share], ptr @autosched_shares, i64 0, i64 %i
  %end.p = getelementptr %share, ptr %share, i64 0, i32 1
  %end = load i64, ptr %end.p
  br label %claim
claim:
  %t = atomicrmw add ptr %share, i64 1 monotonic
  %more = icmp slt i64 %t, %end
  br i1 %more, label %work, label %empty
work:
  call void %fn(ptr %env, i64 %t, i64 %id)
  br label %claim
empty:
  %i1 = add i64 %i, 1
  %wraps = icmp eq i64 %i1, %n
  %next = select i1 %wraps, i64 0, i64 %i1
  %left1 = sub i64 %left, 1
  %others = icmp sgt i64 %left1, 0
  br i1 %others, label %open, label %done
done:
  ret void
}
"""

_WORKER = """
define internal i64 @autosched_now() nounwind { ; nanoseconds
  %t = alloca [2 x i64], align 16
  %r = call i32 @clock_gettime(i32 1, ptr %t)
  %s = load i64, ptr %t
  %n.p = getelementptr i64, ptr %t, i64 1
  %n = load i64, ptr %n.p
  %s.n = mul i64 %s, 1000000000
  %now = add i64 %s.n, %n
  ret i64 %now
}

define internal ptr @autosched_worker(ptr %slot) nounwind {
entry:
  %id.p = getelementptr %slot, ptr %slot, i64 0, i32 1
  %id.32 = load i32, ptr %id.p
  %id = zext i32 %id.32 to i64
  br label %idle
idle:
  br label %spin
spin:
  %i = phi i32 [ 0, %idle ], [ %i1, %relax ], [ %i1, %watch ], [ %i1, %yield ]
  %w = load atomic i32, ptr %slot monotonic, align 64
  switch i32 %w, label %relax [ i32 1, label %take
                                i32 3, label %quit ]
relax:
  $pause
  %i1 = add i32 %i, 1
  %fresh = icmp ult i32 %i1, $spins
  br i1 %fresh, label %spin, label %watch
watch:
  %phase = and i32 %i1, $yield_mask
  %due = icmp eq i32 %phase, 0
  br i1 %due, label %yield, label %spin
yield:
  %before = call i64 @autosched_now()
  %y = call i32 @sched_yield()
  %after = call i64 @autosched_now()
  %taken = sub i64 %after, %before
  %contested = icmp ugt i64 %taken, $long_yield
  %tired = icmp ugt i32 %i1, $patience
  %rest = or i1 %contested, %tired
  br i1 %rest, label %sleep, label %spin
sleep:
  %s = cmpxchg ptr %slot, i32 0, i32 2 acq_rel monotonic
  br label %doze
doze:
  %r = call i64 (i64, ...) @syscall(i64 $futex, ptr %slot, i32 128, i32 2, ptr null, ptr null, i32 0)
  %d = load atomic i32, ptr %slot monotonic, align 64
  %still = icmp eq i32 %d, 2
  br i1 %still, label %doze, label %idle
take:
  %g = cmpxchg ptr %slot, i32 1, i32 0 acquire monotonic
  %got = extractvalue { i32, i1 } %g, 1
  br i1 %got, label %run, label %idle
run:
  %fn = load ptr, ptr @autosched_region
  %env.p = getelementptr { ptr, ptr, i64 }, ptr @autosched_region, i64 0, i32 1
  %env = load ptr, ptr %env.p
  %n.p = getelementptr { ptr, ptr, i64 }, ptr @autosched_region, i64 0, i32 2
  %n = load i64, ptr %n.p
  call void @autosched_drain(ptr %fn, ptr %env, i64 %n, i64 %id)
  %p = atomicrmw sub ptr @autosched_pending, i64 1 release
  br label %idle
quit:
  ret ptr null
}

; the number of workers there are, at most %want, after creating what is missing
define internal i64 @autosched_staff(i64 %want) nounwind {
entry:
  %pid = call i32 @getpid()
  %known = load i32, ptr @autosched_pid
  %same = icmp eq i32 %pid, %known
  br i1 %same, label %check, label %reset
reset:
  call void @llvm.memset.p0.i64(ptr align 64 @autosched_slots, i8 0, i64 $slot_bytes, i1 false)
  store i64 0, ptr @autosched_workers
  store i32 %pid, ptr @autosched_pid
  br label %check
check:
  %have = load i64, ptr @autosched_workers
  %enough = icmp sge i64 %have, %want
  br i1 %enough, label %done, label %create
create:
  %id = add i64 %have, 1
  %slot = getelementptr [$max x %slot], ptr @autosched_slots, i64 0, i64 %id
  store atomic i32 0, ptr %slot monotonic, align 64
  %id.p = getelementptr %slot, ptr %slot, i64 0, i32 1
  %id.32 = trunc i64 %id to i32
  store i32 %id.32, ptr %id.p
  %thread.p = getelementptr %slot, ptr %slot, i64 0, i32 2
  %rc = call i32 @pthread_create(ptr %thread.p, ptr null, ptr @autosched_worker, ptr %slot)
  %ok = icmp eq i32 %rc, 0
  br i1 %ok, label %created, label %done
created:
  %kept.p = getelementptr %slot, ptr %slot, i64 0, i32 3
  store i64 0, ptr %kept.p
  call void @autosched_part(ptr %slot)
  store i64 %id, ptr @autosched_workers
  br label %check
done:
  %total = load i64, ptr @autosched_workers
  %n = call i64 @llvm.smin.i64(i64 %total, i64 %want)
  ret i64 %n
}
"""

_REGION = """
define $link void @autosched_run(ptr %fn, ptr %env, i64 %n, i64 %limit) nounwind {
entry:
  %n.limit = call i64 @llvm.smin.i64(i64 %n, i64 %limit)
  %threads = call i64 @llvm.smin.i64(i64 %n.limit, i64 $max)
  %want = sub i64 %threads, 1
  %alone = icmp slt i64 %want, 1
  br i1 %alone, label %serial, label %lock
lock:
  %l = cmpxchg ptr @autosched_busy, i32 0, i32 1 acquire monotonic
  %mine = extractvalue { i32, i1 } %l, 1
  br i1 %mine, label %staff, label %serial
serial:
  call void @autosched_serial(ptr %fn, ptr %env, i64 %n)
  ret void
staff:
  %workers = call i64 @autosched_staff(i64 %want)
  store ptr %fn, ptr @autosched_region
  %env.p = getelementptr { ptr, ptr, i64 }, ptr @autosched_region, i64 0, i32 1
  store ptr %env, ptr %env.p
  %present = add i64 %workers, 1
  %present.p = getelementptr { ptr, ptr, i64 }, ptr @autosched_region, i64 0, i32 2
  store i64 %present, ptr %present.p
  store atomic i64 %workers, ptr @autosched_pending monotonic, align 64
  br label %divide
divide:
  %s = phi i64 [ 0, %staff ], [ %s1, %divide ]
  %first = phi i64 [ 0, %staff ], [ %end, %divide ]
  %s1 = add i64 %s, 1
  %before = mul i64 %s1, %n
  %end = sdiv i64 %before, %present
  %share = getelementptr [$max x %share], ptr @autosched_shares, i64 0, i64 %s
  %end.p = getelementptr %share, ptr %share, i64 0, i32 1
  store atomic i64 %first, ptr %share monotonic, align 64
  store i64 %end, ptr %end.p
  %divided = icmp eq i64 %s1, %present
  br i1 %divided, label %staffed, label %divide
staffed:
  %some = icmp sgt i64 %workers, 0
  br i1 %some, label %go, label %work
go:
  %i = phi i64 [ 1, %staffed ], [ %i1, %go ]
  %slot = getelementptr [$max x %slot], ptr @autosched_slots, i64 0, i64 %i
  %old = atomicrmw xchg ptr %slot, i32 1 acq_rel
  call void @autosched_part(ptr %slot)
  call void @autosched_wake(ptr %slot, i32 %old)
  %i1 = add i64 %i, 1
  %left = icmp sle i64 %i1, %workers
  br i1 %left, label %go, label %work
work:
  call void @autosched_drain(ptr %fn, ptr %env, i64 %present, i64 0)
  %p = load atomic i64, ptr @autosched_pending acquire, align 64
  %finished = icmp eq i64 %p, 0
  br i1 %finished, label %done, label %retract
retract:
  %j = phi i64 [ 1, %work ], [ %j1, %next ]
  %slot.j = getelementptr [$max x %slot], ptr @autosched_slots, i64 0, i64 %j
  %c = cmpxchg ptr %slot.j, i32 1, i32 0 monotonic monotonic
  %back = extractvalue { i32, i1 } %c, 1
  br i1 %back, label %drop, label %next
drop:
  %dropped = atomicrmw sub ptr @autosched_pending, i64 1 monotonic
  br label %next
next:
  %j1 = add i64 %j, 1
  %left.j = icmp sle i64 %j1, %workers
  br i1 %left.j, label %retract, label %wait
wait:
  %k = phi i32 [ 0, %next ], [ %k1, %pause ], [ 0, %yield ]
  %q = load atomic i64, ptr @autosched_pending acquire, align 64
  %over = icmp eq i64 %q, 0
  br i1 %over, label %done, label %pause
pause:
  $pause
  %k1 = add i32 %k, 1
  %long = icmp ugt i32 %k1, $spins
  br i1 %long, label %yield, label %wait
yield: ; a worker of ours may be waiting for this very core
  %y = call i32 @sched_yield()
  br label %wait
done:
  store atomic i32 0, ptr @autosched_busy release, align 64
  ret void
}
"""

_SHUTDOWN = """
define $link void @autosched_pool_shutdown() nounwind {
  call void @autosched_end_workers()
  ret void
}

define internal void @autosched_end_workers() nounwind {
entry:
  %l = cmpxchg ptr @autosched_busy, i32 0, i32 1 acquire monotonic
  %mine = extractvalue { i32, i1 } %l, 1
  br i1 %mine, label %count, label %leave
count:
  %workers = call i64 @autosched_staff(i64 0)
  %total = load i64, ptr @autosched_workers
  %some = icmp sgt i64 %total, 0
  br i1 %some, label %quit, label %done
quit:
  %i = phi i64 [ 1, %count ], [ %i1, %quit ]
  %slot = getelementptr [$max x %slot], ptr @autosched_slots, i64 0, i64 %i
  %old = atomicrmw xchg ptr %slot, i32 3 acq_rel
  call void @autosched_wake(ptr %slot, i32 %old)
  %thread.p = getelementptr %slot, ptr %slot, i64 0, i32 2
  %thread = load i64, ptr %thread.p
  %r = call i32 @pthread_join(i64 %thread, ptr null)
  %i1 = add i64 %i, 1
  %left = icmp sle i64 %i1, %total
  br i1 %left, label %quit, label %done
done:
  store i64 0, ptr @autosched_workers
  store atomic i32 0, ptr @autosched_busy release, align 64
  br label %leave
leave:
  ret void
}
"""


def pool_ir(target: Target, system: str = sys.platform, linkage: str = "") -> str:
    """Return the LLVM IR of a process's pool."""
    if not system.startswith("linux"):
        return _SERIAL + Template(_SERIAL_POOL).substitute(link=linkage)
    if target.arch not in _ARCH:
        raise TargetError(
            f"the thread pool has no code for the architecture {target.arch!r}; known are {', '.join(_ARCH)}"
        )
    pause, declare_pause, spins, futex = _ARCH[target.arch]
    text = _SERIAL + _STATE + _WORKER + _REGION + _SHUTDOWN
    return Template(text).substitute(
        link=linkage,
        pause=pause,
        declare_pause=declare_pause,
        spins=spins,
        patience=_PATIENCE * spins,
        yield_mask=_PAUSES_A_YIELD - 1,
        long_yield=_LONG_YIELD_NS,
        futex=futex,
        max=MAX_THREADS,
        slot_bytes=64 * MAX_THREADS,
    )


def exported_pool_ir(target: Target, threads: int, system: str = sys.platform) -> str:
    """Return the pool of an exported object: weak, so that a program's objects share one; `threads` is this kernel's
    own number.

    When its library is unloaded, the pool ends its workers, whose code is in the library. On processors with tiles
    (AMX) it asks Linux for the permission when it is loaded; a refusal shows at a kernel's first tile.
    """
    ends = _END_WHEN_UNLOADED if system.startswith("linux") else ""
    asks = _ASK_FOR_TILES if system == "linux" and target.arch == "x86_64" and target.has("amx-tile") else ""
    return pool_ir(target, system, "weak") + bound_parallel_ir("autosched_parallel", threads) + ends + asks


# The function by its internal name: another library's may have taken the place of the weak one.
_END_WHEN_UNLOADED = """
@llvm.global_dtors = appending global [1 x { i32, ptr, ptr }] [
  { i32, ptr, ptr } { i32 65535, ptr @autosched_end_workers, ptr null }]
"""
_ASK_FOR_TILES = f"""
define internal void @autosched_ask_for_tiles() nounwind {{
  %code = call i64 (i64, ...) @syscall({", ".join(f"i64 {n}" for n in ASK_FOR_TILES)})
  ret void
}}
@llvm.global_ctors = appending global [1 x {{ i32, ptr, ptr }}] [
  {{ i32, ptr, ptr }} {{ i32 65535, ptr @autosched_ask_for_tiles, ptr null }}]
"""


def bound_parallel_ir(name: str, threads: int) -> str:
    """Return `void @name(ptr fn, ptr env, i64 n_tasks)`: a region on at most `threads` threads, whatever other kernels
    use.
    """
    return (
        f"define void @{name}(ptr %fn, ptr %env, i64 %n) nounwind {{\n"
        f"  tail call void @autosched_run(ptr %fn, ptr %env, i64 %n, i64 {threads})\n  ret void\n}}\n"
    )
