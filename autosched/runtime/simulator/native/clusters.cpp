// Blocks of a cluster: their shared memory, and barriers of all their threads. PTX ISA, "barrier.cluster", "mapa".
//
// An address of this block's shared memory is an offset; one of block r of the cluster has r + 1 above the offset.
#include "runtime.h"
#include <algorithm>

namespace simulator {

namespace {

Meeting cluster;

std::vector<unsigned> alive()
{
  std::vector<unsigned> those;
  for (unsigned n = 0; n < threads.size(); ++n)
    if (!threads[n].is_done) those.push_back(n);
  return those;
}

}  // namespace

void forget_arrivals() { cluster = Meeting(); }

unsigned rank_of(const Block& block) { return &block - blocks.data(); }

bool has_ended(const Block& block)
{
  for (unsigned n = 0; n < threads_per_block(); ++n)
    if (!threads[block.first + n].is_done) return false;
  return true;
}

// The thread that runs uses the block's shared memory, which is there as long as one of its threads is.
void visit(Block& block, const char* verb)
{
  if (has_ended(block))
    stop("protocol", "%s %s block %u of its cluster, all of whose threads have ended", where(current), verb,
         rank_of(block));
  if (options.checked && &block != me().block) block.visits[current] = count_of(current);
}

// The last thread of a block ends: those of others that have used its memory must have said so.
void examine_visits(const Block& block)
{
  if (!options.checked || !has_ended(block)) return;
  for (const auto& [visitor, time] : block.visits) {
    bool is_known = false;
    for (unsigned n = 0; n < threads_per_block(); ++n) is_known |= knows(block.first + n, visitor, time);
    if (!is_known)
      find("race", "%s is the last of its block to end, whose mbarriers %s uses with no barrier between",
           where(current), where(visitor));
  }
}

bool has_bytes(uint32_t offset, unsigned bytes) { return offset >= shared_start && offset + bytes <= shared_bytes; }

unsigned launch_bytes() { return shared_bytes - shared_start; }

int byte_of(uint32_t address) { return int(address % ARENA) - int(shared_start); }

unsigned char* shared_at(uint32_t address)
{
  const unsigned rank = address / ARENA, offset = address % ARENA;
  if (rank > blocks.size() || !has_bytes(offset, 1))
    stop("outside", "%s uses byte %d of shared memory, beyond the %u of the launch", where(current), byte_of(offset),
         launch_bytes());
  return (rank ? blocks[rank - 1] : *me().block).shared + offset;
}

extern "C" uint32_t simulator_map(uint32_t address, unsigned rank)
{
  if (rank >= blocks.size())
    stop("outside", "%s names block %u of a cluster of %zu", where(current), rank, blocks.size());
  return (rank + 1) * ARENA + address % ARENA;
}

extern "C" void simulator_fence()
{
  if (options.checked) fence(current);
}

// setmaxnreg: more registers are waited for until others have given theirs back.
extern "C" void simulator_set_registers(unsigned count, int is_more)
{
  if (count % 8 || count < 24 || count > 256)
    stop("refused", "%s asks for %u registers, expected a multiple of 8 from 24 to 256", where(current), count);
  const unsigned begun = std::min(REGISTERS / threads_per_block() / 8 * 8, 256u);  // of each thread
  const auto held_by_others = [=] {
    unsigned sum = 0;
    for (unsigned n = 0; n < threads_per_block(); ++n) {
      const Thread& thread = threads[me().block->first + n];
      if (&thread != &me()) sum += thread.registers ? thread.registers : begun;
    }
    return sum;
  };
  if (is_more) wait_for("registers", [=] { return held_by_others() + count <= REGISTERS; });
  me().registers = count;
  ++progress;
}

extern "C" unsigned simulator_rank() { return rank_of(*me().block); }

extern "C" void simulator_cluster_arrive()
{
  ++progress;
  me().cluster_arrivals = cluster.generation + 1;
  const std::vector<unsigned> those = alive();
  if (++cluster.arrived < those.size()) return;
  if (options.checked) meet_clocks(those, those);
  part(cluster);
}

extern "C" void simulator_cluster_wait()
{
  const uint64_t mine = me().cluster_arrivals;
  wait_for("a barrier of the cluster", [&] { return cluster.generation >= mine; });
}

}  // namespace simulator
