// Blocks of a cluster: their shared memory, and barriers of all their threads. PTX ISA, "barrier.cluster", "mapa".
//
// An address of this block's shared memory is an offset; one of block r of the cluster has r + 1 above the offset.
#include "runtime.h"

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

unsigned char* shared_at(uint32_t address)
{
  const unsigned rank = address / ARENA, offset = address % ARENA;
  if (rank > blocks.size() || offset >= shared_bytes)
    stop("outside", "%s uses shared address %u, beyond the %u bytes of the launch", where(current), offset, shared_bytes);
  return (rank ? blocks[rank - 1] : *me().block).shared + offset;
}

extern "C" uint32_t simulator_map(uint32_t address, unsigned rank)
{
  if (rank >= blocks.size()) stop("outside", "%s names block %u of a cluster of %zu", where(current), rank, blocks.size());
  return (rank + 1) * ARENA + address % ARENA;
}

extern "C" void simulator_fence()
{
  if (options.checked) fence(current);
}

extern "C" void simulator_set_registers(unsigned count)
{
  if (count % 8 || count < 24 || count > 256) stop("refused", "%s asks for %u registers, expected a multiple of 8 from 24 to 256", where(current), count);
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
