// The threads of a block as fibers of one thread of the processor: each runs until it must wait for others.
#include "runtime.h"
#include <string>
#include <sys/mman.h>

namespace simulator {

Options options;
Numbers numbers;
std::vector<Thread> threads;
std::vector<Block> blocks;
unsigned current, shared_start, shared_bytes;
bool is_early;
uint64_t progress;

extern "C" Place simulator_place;
Place simulator_place;

namespace {

void* launching;  // where `launch` left off
void (*entry)(void**);
void** arguments;
bool is_over;

}  // namespace

// Saves what a call keeps, continues at `to`.
extern "C" void simulator_switch(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.globl simulator_switch
simulator_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");
constexpr int SAVED = 6, LINK = -1;
#elif defined(__aarch64__)
asm(R"(
.text
.globl simulator_switch
simulator_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]; stp x21, x22, [sp, #16]; stp x23, x24, [sp, #32]; stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]; stp x29, x30, [sp, #80]; stp d8, d9, [sp, #96]; stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]; stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
  mov sp, x1
  ldp x19, x20, [sp]; ldp x21, x22, [sp, #16]; ldp x23, x24, [sp, #32]; ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]; ldp x29, x30, [sp, #80]; ldp d8, d9, [sp, #96]; ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]; ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
constexpr int SAVED = 20, LINK = 11;
#else
#error "no switch between fibers for this processor"
#endif

namespace {

void resume(unsigned next)
{
  const unsigned from = current;
  if (next == from) return;
  current = next;
  simulator_place.thread = threads[next].index;
  simulator_place.block = threads[next].block->index;
  ++numbers.switches;
  simulator_switch(&threads[from].stack_pointer, threads[next].stack_pointer);
}

void run_thread()
{
  entry(arguments);
  me().is_done = true;
  ++progress;
  thread_ended();
  yield();
  leave();  // nobody is left to run
}

void prepare(Thread& thread)
{
  void** top = (void**)(thread.stack + STACK - 64);
  *--top = nullptr;
  if (LINK < 0) *--top = (void*)run_thread;
  for (int n = 0; n < SAVED; ++n) *--top = nullptr;
  if (LINK >= 0) top[LINK] = (void*)run_thread;
  thread.stack_pointer = top;
}

void run_cluster(Triple first, unsigned size)
{
  const unsigned count = threads_per_block();
  const Triple shape = simulator_place.block_size;
  begin_cluster();
  forget_loads();
  forget_arrivals();
  for (unsigned b = 0; b < size; ++b) {
    Block& block = blocks[b];
    unsigned char* shared = block.shared;
    block = Block();
    block.shared = shared;
    block.first = b * count;
    block.index = {first.x + b, first.y, first.z};
    memset(block.shared, POISON, shared_bytes);
  }
  for (unsigned n = 0; n < threads.size(); ++n) {
    Thread& thread = threads[n];
    unsigned char* stack = thread.stack;
    thread = Thread();
    thread.stack = stack;
    thread.number = n % count;
    thread.block = &blocks[n / count];
    thread.index = {thread.number % shape.x, thread.number / shape.x % shape.y, thread.number / (shape.x * shape.y)};
    prepare(thread);
  }
  current = options.backward ? threads.size() - 1 : 0;
  simulator_place.thread = me().index;
  simulator_place.block = me().block->index;
  simulator_switch(&launching, me().stack_pointer);
  count_all();
}

}  // namespace

void yield()
{
  const unsigned n = threads.size();
  for (unsigned step = 1; step <= n; ++step) {
    const unsigned next = (current + (options.backward ? n - step : step)) % n;
    if (!threads[next].is_done) return resume(next);
  }
}

void leave()
{
  void* nobody;
  simulator_switch(&nobody, launching);
  __builtin_unreachable();
}

namespace {

std::string all_that_wait(const char* mine)
{
  std::map<std::string, unsigned> reasons;
  unsigned ended = 0;
  for (const Thread& thread : threads)
    if (thread.is_done) ++ended;
    else if (thread.waits_for) ++reasons[thread.waits_for];
  std::string text = std::string(where(current)) + " waits for " + mine + "; of " + std::to_string(threads.size());
  text += " threads " + std::to_string(ended) + " have ended";
  for (const auto& [reason, n] : reasons) text += ", " + std::to_string(n) + " wait for " + reason;
  return text;
}

}  // namespace

void wait_for(const char* what, const std::function<bool()>& is_ready)
{
  uint64_t seen = progress;
  me().waits_for = what;
  for (unsigned idle = 0; !is_ready();) {
    yield();
    idle = progress == seen ? idle + 1 : 0;
    seen = progress;
    if (idle > 2) stop("deadlock", "%s", all_that_wait(what).c_str());
  }
  me().waits_for = nullptr;
}

void together(Group& group, unsigned count, const char* what, void* mine, const std::function<void(void* const*)>& all)
{
  group.given[me().number % count] = mine;
  if (!is_last(group.meeting, count, what)) return;
  ++numbers.collectives;
  all(group.given);
  part(group.meeting);
}

bool is_last(Meeting& meeting, unsigned count, const char* what)
{
  if (meeting.arrived == 0) meeting.what = what;
  if (meeting.what != what)
    stop("diverged", "%s is at %s while others of its group are at %s", where(current), what, meeting.what);
  const uint64_t mine = meeting.generation;
  if (++meeting.arrived >= count) return true;
  wait_for(what, [&] { return meeting.generation != mine; });
  return false;
}

void part(Meeting& meeting)
{
  meeting.arrived = 0;
  ++meeting.generation;
  ++progress;
}

extern "C" void simulator_at(const void* site) { me().site = site; }

void end_launch() { is_over = true; }

// Runs all blocks of a grid, one cluster after the other. `sizes`: x, y, z of the grid and of a block, blocks of a
// cluster along x; bytes by which shared memory is not aligned to more than it must be, whether it is early. Returns 0, or 1 where a finding made it end.
extern "C" int simulator_launch(void (*kernel)(void**), void** given, const unsigned* sizes, unsigned shared)
{
  const Triple grid = {sizes[0], sizes[1], sizes[2]}, block = {sizes[3], sizes[4], sizes[5]};
  const unsigned cluster = sizes[6], count = block.x * block.y * block.z * cluster;
  entry = kernel;
  arguments = given;
  shared_start = RESERVED + sizes[7];
  shared_bytes = shared_start + shared;
  is_early = sizes[8];
  is_over = false;
  simulator_place.block_size = block;
  simulator_place.grid_size = grid;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const size_t stacks = (size_t)count * STACK, arenas = (size_t)cluster * ARENA;
  unsigned char* memory = (unsigned char*)mmap(nullptr, stacks + arenas, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) return 1;
  threads.assign(count, Thread());
  blocks.assign(cluster, Block());
  for (unsigned b = 0; b < cluster; ++b) blocks[b].shared = memory + (size_t)b * ARENA;
  for (unsigned n = 0; n < count; ++n) threads[n].stack = memory + arenas + (size_t)n * STACK;
  begin_checks();
  begin_signals(options.seconds);
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x && !is_over; x += cluster) run_cluster({x, y, z}, cluster);
  end_signals();
  munmap(memory, stacks + arenas);
  return is_over;
}

}  // namespace simulator
