// mbarriers: phases that end when all arrivals and all announced bytes have come. PTX ISA, "mbarrier".
#include "runtime.h"
#include <cstdio>

namespace simulator {

namespace {

void end_phase(Phase& phase)
{
  if (phase.pending || phase.bytes) return;
  phase.pending = phase.count;
  ++phase.number;
  phase.known = phase.coming;
  phase.coming.clear();
  ++progress;
}

Block& block_of(uint32_t address) { return address / ARENA ? blocks[address / ARENA - 1] : *me().block; }

}  // namespace

Phase& phase_at(Block& block, uint32_t offset, const char* what)
{
  const auto found = block.phases.find(offset);
  if (found == block.phases.end())
    stop("protocol", "%s %s byte %d, where there is no mbarrier", where(current), what, byte_of(offset));
  Phase& phase = found->second;
  if (options.checked && !knows(current, phase.maker, phase.made))
    find("race", "%s %s the mbarrier at byte %d, which %s made with no barrier between", where(current), what,
         byte_of(offset), where(phase.maker));
  return phase;
}

void arrive(Block& block, uint32_t offset, unsigned count, int64_t bytes, unsigned thread)
{
  Phase& phase = phase_at(block, offset, "arrives at");
  if (count > phase.pending)
    stop("protocol", "%s arrives at the mbarrier at byte %d, which waits for no more of its %u arrivals", where(thread),
         byte_of(offset), phase.count);
  phase.pending -= count;
  phase.bytes += bytes;
  ++progress;
  if (options.checked) tell(phase.coming, thread);
  end_phase(phase);
}

void bytes_came(Block& block, uint32_t offset, int64_t bytes, unsigned thread)
{
  Phase& phase = phase_at(block, offset, "copies for");
  phase.bytes -= bytes;
  ++progress;
  if (options.checked) tell(phase.coming, thread);
  if (phase.bytes < 0 && phase.pending == 0)
    stop("protocol", "%lld bytes more than announced come to the mbarrier at byte %d", (long long)-phase.bytes,
         byte_of(offset));
  end_phase(phase);
}

extern "C" void simulator_mbarrier_init(uint32_t offset, unsigned count)
{
  if (offset % 8) find("misaligned", "%s makes an mbarrier at byte %d", where(current), byte_of(offset));
  shared_at(offset);
  Phase phase = {count, count, 0, 0, current, 0, false, {}, {}};
  if (options.checked) phase.made = count_of(current);
  me().block->phases[offset] = phase;
}

// What this thread made is seen by the copy engine from now on.
extern "C" void simulator_show_barriers()
{
  for (auto& [offset, phase] : me().block->phases) phase.is_shown |= phase.maker == current;
}

extern "C" void simulator_mbarrier_end(uint32_t offset) { me().block->phases.erase(offset); }

// `announced` bytes will come; `count` 0: that is all.
extern "C" void simulator_mbarrier_arrive(uint32_t address, unsigned count, int64_t announced)
{
  visit(block_of(address), "arrives in");
  arrive(block_of(address), address % ARENA, count, announced, current);
}

// Waits until the phase of that parity is over: of a new mbarrier the one of parity 1 is.
extern "C" void simulator_mbarrier_wait(uint32_t offset, unsigned parity)
{
  Block& block = *me().block;
  Phase& phase = phase_at(block, offset, "waits for");
  char what[96];
  snprintf(what, sizeof what, "the phase of parity %u of the mbarrier at byte %d", parity, byte_of(offset));
  wait_for(what, [&] {
    run_loads(block, offset);
    return (phase.number & 1) != (parity & 1);
  });
  if (options.checked) listen(phase.known, current);
}

}  // namespace simulator
