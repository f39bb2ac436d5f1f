// What the threads of a block, or of a warp, do together.
#include "runtime.h"
#include <algorithm>
#include <cstdio>

namespace simulator {

namespace {

unsigned lanes_of(unsigned warp)  // that exist and have not ended
{
  const unsigned first = me().block->first + warp * WARP;
  const unsigned end = std::min(me().block->first + threads_per_block(), first + WARP);
  unsigned alive = 0;
  for (unsigned n = first; n < end; ++n) alive += !threads[n].is_done;
  return alive;
}

// The threads numbered so in this thread's block, and what they know of each other's accesses.
void know_each_other(unsigned first, unsigned count)
{
  if (!options.checked) return;
  std::vector<unsigned> those;
  for (unsigned n = first; n < first + count; ++n)
    if (!threads[n].is_done) those.push_back(n);
  meet_clocks(those, those);
}

// Lanes of a shuffle's group that may be read: CUDA C++ Programming Guide, "Warp Shuffle Functions".
unsigned source(unsigned lane, int kind, int by, unsigned width)
{
  const unsigned first = lane / width * width;
  const int from = kind == LANE ? int(first + (unsigned)by % width)
                   : kind == UP ? int(lane) - by
                   : kind == DOWN ? int(lane) + by
                                  : int(lane ^ (unsigned)by);
  const bool inside = kind == UP ? from >= int(first) : from < int(first + width);
  return inside ? from : lane;
}

unsigned alive_in(const Block& block)
{
  unsigned alive = 0;
  for (unsigned n = 0; n < threads_per_block(); ++n) alive += !threads[block.first + n].is_done;
  return alive;
}

// All lanes of a warp come to a barrier at one place of the program: PTX ISA, "bar", of .aligned.
void examine_lines(const Block& block)
{
  for (unsigned n = 1; n < threads_per_block(); ++n) {
    const Thread &thread = threads[block.first + n], &before = threads[block.first + n - 1];
    if (n % WARP == 0 || thread.is_done || before.is_done || thread.barrier_line == before.barrier_line) continue;
    find("diverged", "%s is at the barrier of line %d, and one of its warp at that of line %d", where(block.first + n),
         thread.barrier_line, before.barrier_line);
  }
}

void end_barrier(Block& block)
{
  if (options.checked) examine_lines(block);
  count_all();
  know_each_other(block.first, threads_per_block());
  part(block.whole);
}

}  // namespace

extern "C" void simulator_barrier(int line)
{
  Block& block = *me().block;
  me().barrier_line = line;
  if (is_last(block.whole, alive_in(block), "a barrier of the block")) end_barrier(block);
}

// Barrier number 0 of no number of threads is that of the block.
extern "C" void simulator_named_barrier(unsigned number, unsigned count, int waits)
{
  if (number == 0 && count == 0) return simulator_barrier(0);
  if (number >= NAMED_BARRIERS || count % WARP || count == 0)
    stop("refused", "%s asks for barrier %u of %u threads", where(current), number, count);
  Named& named = me().block->named[number];
  named.givers.push_back(current);
  if (waits) named.takers.push_back(current);
  Meeting& meeting = named.meeting;
  const uint64_t mine = meeting.generation;
  if (++meeting.arrived == count) {
    if (options.checked) meet_clocks(named.givers, named.takers);
    named.givers.clear();
    named.takers.clear();
    part(meeting);
  } else if (waits) {
    char what[32];
    snprintf(what, sizeof what, "barrier %u", number);
    wait_for(what, [&] { return meeting.generation != mine; });
  } else {
    ++progress;
  }
}

void thread_ended()
{
  examine_copies(current);
  examine_stores(current);
  examine_products(current);
  finish_copies(current, 0);
  me().store_groups.push_back(me().stores);
  finish_stores(current, 0);
  Block& block = *me().block;
  const Meeting& meeting = block.warps[me().number / WARP].meeting;
  if (meeting.arrived) stop("diverged", "%s ends while others of its warp are at %s", where(current), meeting.what);
  const unsigned alive = alive_in(block);
  if (alive && block.whole.arrived == alive) end_barrier(block);
  examine_visits(block);
  if (alive) return;
  examine_loads(block);
  bool has_waited = !is_early;
  for (unsigned n = 0; n < threads_per_block(); ++n) has_waited |= threads[block.first + n].has_waited;
  if (!has_waited)
    find("early", "%s is the last of its block to end, of which none has waited for the kernels before", where(current));
}

extern "C" void simulator_wait_for_kernels() { me().has_waited = true; }

extern "C" void simulator_warp_barrier()
{
  const unsigned warp = me().number / WARP;
  Meeting& meeting = me().block->warps[warp].meeting;
  if (!is_last(meeting, lanes_of(warp), "a barrier of the warp")) return;
  ++numbers.collectives;
  const unsigned first = me().block->first + warp * WARP;
  know_each_other(first, std::min(WARP, me().block->first + threads_per_block() - first));
  part(meeting);
}

extern "C" uint64_t simulator_shuffle(int kind, unsigned mask, uint64_t value, int by, int width)
{
  static const char* const names[] = {"shfl", "shfl_up", "shfl_down", "shfl_xor"};
  const unsigned number = me().number / WARP, lane = me().number % WARP;
  Warp& warp = me().block->warps[number];
  if (!(mask >> lane & 1)) stop("diverged", "%s is not in the mask %#x of its own shuffle", where(current), mask);
  warp.given[lane] = value;
  warp.present = warp.meeting.arrived ? warp.present | 1u << lane : 1u << lane;
  const uint64_t nothing = ~uint64_t(0);  // what a lane has that does not take part
  // The lane that is read is this one's own affair, so it is looked up before any lane goes on.
  const unsigned from = source(lane, kind, by, width);
  if (is_last(warp.meeting, lanes_of(number), names[kind])) {
    ++numbers.collectives;
    for (unsigned n = 0; n < WARP; ++n) warp.taken[n] = warp.present >> n & 1 ? warp.given[n] : nothing;
    part(warp.meeting);
  }
  return warp.taken[from];
}

}  // namespace simulator
