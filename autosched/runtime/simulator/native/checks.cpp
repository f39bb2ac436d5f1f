// Races, and reads of what nobody has written.
//
// Each thread counts the times at which it told others what it had done; what it knows of the others' counts says which
// of their accesses lie before its own (Flanagan, Freund: FastTrack, 2009). Memory remembers its last write and the
// reads since then. Barriers of all threads are most of what there is, and are cheap: `common` is what all know.
#include "runtime.h"
#include <algorithm>

namespace simulator {

namespace {

constexpr unsigned NOBODY = ~0u;

struct Cell {
  uint32_t write_era = 0, writer = NOBODY, write_time = 0;
  uint32_t read_era = 0, reader = NOBODY, read_time = 0;
  int32_t readers = -1;  // a row of `reads`, where several threads have read
  bool is_written = false, by_update = false, under_way = false, by_engine = false;
};

std::vector<Cell> shared_cells;
std::vector<std::vector<Cell>> buffer_cells;
std::vector<uint32_t> own, common;             // counts of the threads
std::vector<std::vector<uint32_t>> known;      // by each thread, where that is more than `common`
std::vector<std::vector<uint32_t>> fences;      // counts of the threads up to which the engine sees what they wrote
std::vector<uint32_t> reads;                   // rows of a count for each thread
uint32_t era, launch_era;                      // number of this cluster, and of the launch's first
std::vector<unsigned> hazards;                 // by buffer: 1 kernels before read it, 2 they write it

struct Cells { Cell* first; unsigned n, granule; const unsigned char* start; bool is_shared; };

// None for what no launch writes.
Cells cells_of(const void* at, unsigned bytes)
{
  const unsigned char* const p = (const unsigned char*)at;
  if (is_shared(at)) {
    const uint64_t offset = p - blocks[0].shared, first = offset / options.granule;
    const uint64_t end = (offset + bytes + options.granule - 1) / options.granule;
    unsigned char* const start = blocks[0].shared + first * options.granule;
    return {&shared_cells[first], unsigned(end - first), options.granule, start, true};
  }
  const Buffer* const buffer = buffer_of(at);
  if (buffer == nullptr || !buffer->is_written) return {nullptr, 0, 1, p, false};
  const uint64_t offset = p - buffer->start, first = offset / buffer->granule;
  const uint64_t end = (offset + bytes + buffer->granule - 1) / buffer->granule;
  std::vector<Cell>& all = buffer_cells[buffer - buffers.data()];
  return {&all[first], unsigned(end - first), buffer->granule, buffer->start + first * buffer->granule, false};
}

// Whether what happened in `when` at `time` by `other` may happen at the same time as what `thread` does now.
bool is_concurrent(const Cells& cells, uint32_t when, unsigned other, uint32_t time, unsigned thread)
{
  if (other == NOBODY || when < launch_era) return false;
  if (when != era) return !cells.is_shared;
  return !knows(thread, other, time);
}

// What `thread` does and what `other` did `when` may happen in any order.
void race(const void* at, unsigned thread, const char* does, unsigned other, const char* did, uint32_t when)
{
  const char* const who = when == era ? where(other) : "another block";
  find("race", "%s %s %s, which %s %s with no barrier between", where(thread), does, place_of(at), who, did);
}

void after_write(const Cells& cells, unsigned n, unsigned thread, const char* does, bool is_update)
{
  Cell& cell = cells.first[n];
  if (is_update && cell.by_update) return;
  if (is_concurrent(cells, cell.write_era, cell.writer, cell.write_time, thread))
    race(cells.start + n * cells.granule, thread, does, cell.writer, "writes", cell.write_era);
}

void after_reads(const Cells& cells, unsigned n, unsigned thread, const char* does)
{
  Cell& cell = cells.first[n];
  const unsigned char* const at = cells.start + n * cells.granule;
  if (cell.readers >= 0 && cell.read_era == era) {
    const uint32_t* const times = &reads[(size_t)cell.readers * threads.size()];
    for (unsigned t = 0; t < threads.size(); ++t)
      if (times[t] && !knows(thread, t, times[t])) return race(at, thread, does, t, "reads", era);
  } else if (is_concurrent(cells, cell.read_era, cell.reader, cell.read_time, thread)) {
    race(at, thread, does, cell.reader, "reads", cell.read_era);
  }
}

void note_read(Cell& cell, unsigned thread)
{
  const bool fresh = cell.read_era != era || cell.reader == NOBODY;
  if (!fresh && cell.readers >= 0) {
    reads[(size_t)cell.readers * threads.size() + thread] = own[thread];
    return;
  }
  if (!fresh && cell.reader != thread && !knows(thread, cell.reader, cell.read_time)) {
    cell.readers = reads.size() / threads.size();
    reads.resize(reads.size() + threads.size());
    reads[(size_t)cell.readers * threads.size() + cell.reader] = cell.read_time;
    reads[(size_t)cell.readers * threads.size() + thread] = own[thread];
    return;
  }
  cell.readers = -1;
  cell.read_era = era;
  cell.reader = thread;
  cell.read_time = own[thread];
}

void note_write(Cell& cell, unsigned thread, bool is_update)
{
  cell.is_written = true;
  cell.by_update = is_update;
  cell.write_era = era;
  cell.writer = thread;
  cell.write_time = own[thread];
  cell.by_engine = false;
  cell.reader = NOBODY;
  cell.readers = -1;
}

// Shared memory is another in each block.
void renew(const Cells& cells, Cell& cell)
{
  if (!cells.is_shared || cell.write_era == era || cell.read_era == era) return;
  cell = Cell();
}

}  // namespace

void forget_checks() { buffer_cells.clear(); }

void begin_checks()
{
  if (!options.checked) return;
  if (buffer_cells.size() != buffers.size()) buffer_cells.resize(buffers.size());
  for (size_t n = 0; n < buffers.size(); ++n) {
    const Buffer& buffer = buffers[n];
    if (!buffer.is_written || !buffer_cells[n].empty()) continue;
    Cell first;
    first.is_written = buffer.is_known;
    buffer_cells[n].resize(buffer.bytes / buffer.granule + 1, first);
  }
  shared_cells.assign(blocks.size() * ARENA / options.granule + 1, Cell());
  launch_era = era + 1;
}

void begin_cluster()
{
  ++era;
  if (!options.checked) return;
  own.assign(threads.size(), 1);
  common.assign(threads.size(), 0);
  known.assign(threads.size(), {});
  fences.assign(threads.size(), {});
  reads.clear();
}

bool knows(unsigned thread, unsigned other, uint32_t time)
{
  return thread == other || time <= common[other] || (!known[thread].empty() && time <= known[thread][other]);
}

uint32_t count_of(unsigned thread) { return own[thread]; }

void tell(Clock& clock, unsigned thread)
{
  if (clock.empty()) clock = common;
  for (size_t n = 0; n < clock.size(); ++n) clock[n] = std::max(clock[n], common[n]);
  for (size_t n = 0; n < known[thread].size(); ++n) clock[n] = std::max(clock[n], known[thread][n]);
  clock[thread] = own[thread]++;
}

void listen(const Clock& clock, unsigned thread)
{
  if (clock.empty()) return;
  if (known[thread].empty()) known[thread] = common;
  for (size_t n = 0; n < clock.size(); ++n) known[thread][n] = std::max(known[thread][n], clock[n]);
}

void meet_clocks(const std::vector<unsigned>& givers, const std::vector<unsigned>& takers)
{
  unsigned alive = 0;
  for (const Thread& thread : threads) alive += !thread.is_done;
  if (givers.size() == alive && takers.size() == alive) {
    for (unsigned n = 0; n < threads.size(); ++n) {
      if (!threads[n].is_done) common[n] = own[n];
      else  // what it did last is known to those only whom it told
        for (unsigned t : givers)
          if (!known[t].empty()) common[n] = std::max(common[n], known[t][n]);
    }
    for (auto& row : known) row.clear();
    for (unsigned t : givers) ++own[t];
    return;
  }
  Clock all;
  for (unsigned t : givers) tell(all, t);
  for (unsigned t : takers) listen(all, t);
}

extern "C" void simulator_hazards(const unsigned* given, unsigned n) { hazards.assign(given, given + n); }

// Until the wait of an early launch the kernels before may write what they write, and read what this one writes.
void examine_order(const void* at, Kind kind, unsigned thread)
{
  if (!is_early || threads[thread].has_waited || is_shared(at)) return;
  const Buffer* const buffer = buffer_of(at);
  const unsigned hazard = buffer == nullptr ? 0 : hazards[buffer - buffers.data()];
  if (hazard & 2 || (kind != READ && hazard))
    find("early", "%s %s %s before griddepcontrol.wait, while kernels before %s it", where(thread),
         kind == READ ? "reads" : "writes", place_of(at), hazard & 2 ? "write" : "read");
}

void check(const void* at, unsigned bytes, Kind kind, unsigned thread)
{
  examine_order(at, kind, thread);
  const Cells cells = cells_of(at, bytes);
  const char* const does = kind == READ ? "reads" : kind == WRITE ? "writes" : "updates";
  for (unsigned n = 0; n < cells.n; ++n) {
    Cell& cell = cells.first[n];
    renew(cells, cell);
    const unsigned char* const here = cells.start + n * cells.granule;
    if (cell.under_way)
      find("under way", "%s %s %s while a copy to there is under way", where(thread), does, place_of(here));
    if (kind != WRITE && !cell.is_written)
      find("unwritten", "%s %s %s, which nobody has written", where(thread), does, place_of(here));
    after_write(cells, n, thread, does, kind == BOTH);
    if (kind == READ) note_read(cell, thread);
    else {
      after_reads(cells, n, thread, does);
      note_write(cell, thread, kind == BOTH);
    }
  }
}

void begin_copy(const void* to, unsigned bytes, unsigned thread)
{
  const Cells cells = cells_of(to, bytes);
  check(to, bytes, WRITE, thread);
  for (unsigned n = 0; n < cells.n; ++n) cells.first[n].under_way = true;
}

void end_copy(const void* to, unsigned bytes, unsigned thread, bool by_engine)
{
  const Cells cells = cells_of(to, bytes);
  for (unsigned n = 0; n < cells.n; ++n) {
    cells.first[n].under_way = false;
    note_write(cells.first[n], thread, false);
    cells.first[n].by_engine = by_engine;
  }
}

void check_fences(const void* at, unsigned bytes, unsigned thread)
{
  const Cells cells = cells_of(at, bytes);
  for (unsigned n = 0; n < cells.n; ++n) {
    const Cell& cell = cells.first[n];
    if (!cell.is_written || cell.write_era != era || cell.by_engine) continue;
    const std::vector<uint32_t>& those = fences[cell.writer];
    const auto first = std::lower_bound(those.begin(), those.end(), cell.write_time);
    if (first != those.end() && knows(thread, cell.writer, *first)) continue;
    find("unfenced", "%s wrote %s with no fence.proxy.async behind, and %s has it read asynchronously",
         where(cell.writer), place_of(cells.start + n * cells.granule), where(thread));
  }
}

void check_engine(const void* at, unsigned bytes, unsigned thread)
{
  check_fences(at, bytes, thread);
  check(at, bytes, READ, thread);
}

void fence(unsigned thread) { fences[thread].push_back(own[thread]++); }

}  // namespace simulator
