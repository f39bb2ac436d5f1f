// The copy engine: tiles of tensors to shared memory and back. PTX ISA, "cp.async.bulk.tensor"; cuda.h,
// "cuTensorMapEncodeTiled" and "cuTensorMapEncodeIm2col".
//
// Late: a load is done when somebody waits for its mbarrier, a store when its thread waits for the group.
#include "runtime.h"
#include <algorithm>

namespace simulator {

namespace {

constexpr unsigned MOST_RANK = 5, SPATIAL = 3;

// What a map says; `maps.py` writes it. Innermost first; strides in bytes, from the second dimension on.
struct Map {
  uint64_t address, strides[MOST_RANK - 1];
  uint32_t extents[MOST_RANK];
  uint16_t box[MOST_RANK];
  int16_t lower[SPATIAL], upper[SPATIAL];
  uint16_t channels, pixels;
  uint8_t steps[MOST_RANK], rank, bytes, swizzle, is_im2col;
};
static_assert(sizeof(Map) <= 128, "as large as a CUtensorMap");

struct Load { unsigned block; uint32_t barrier; std::function<void()> run; };
std::vector<Load> loads;

// A row of the box: where it lies in the tensor (nullptr: outside), and how many bytes of it are inside, from where.
struct Row { unsigned char* at; unsigned before, inside, bytes; };

unsigned swizzled(unsigned offset, unsigned mode)  // of the map: 0 none, 1 of 32, 2 of 64, 3 of 128 bytes
{
  return mode ? offset ^ (offset >> 7 & ((1u << mode) - 1)) << 4 : offset;
}

bool is_inside(const Map& map, unsigned d, int64_t at) { return at >= 0 && at < int64_t(map.extents[d]); }

// The elements `first` and on along the innermost dimension, the others at `at`.
Row row_at(const Map& map, const int64_t* at, int64_t first, unsigned n)
{
  Row row = {nullptr, 0, 0, n * map.bytes};
  uint64_t place = map.address;
  for (unsigned d = 1; d < map.rank; ++d) {
    if (!is_inside(map, d, at[d])) return row;
    place += at[d] * map.strides[d - 1];
  }
  const int64_t begin = std::max<int64_t>(first, 0), end = std::min<int64_t>(first + n, map.extents[0]);
  if (begin >= end) return row;
  row.at = (unsigned char*)place + begin * map.bytes;
  row.before = (begin - first) * map.bytes;
  row.inside = (end - begin) * map.bytes;
  return row;
}

std::vector<Row> tile(const Map& map, const std::vector<int>& from)
{
  std::vector<Row> rows;
  int64_t at[MOST_RANK] = {};
  unsigned counts[MOST_RANK] = {1, 1, 1, 1, 1}, n = 1;
  counts[0] = map.box[0];  // the innermost dimension has no steps
  for (unsigned d = 1; d < map.rank; ++d) counts[d] = (map.box[d] + map.steps[d] - 1) / map.steps[d];
  for (unsigned d = 1; d < map.rank; ++d) n *= counts[d];
  for (unsigned r = 0; r < n; ++r) {
    unsigned rest = r;
    for (unsigned d = 1; d < map.rank; ++d) {
      at[d] = from[d] + int64_t(rest % counts[d]) * map.steps[d];
      rest /= counts[d];
    }
    rows.push_back(row_at(map, at, from[0], counts[0]));
  }
  return rows;
}

// Pixel after pixel of an image's box, over rows and images: c, w, h, (d,) n; `offsets` of the filter's tap.
std::vector<Row> pixels(const Map& map, const std::vector<int>& from, const std::vector<unsigned>& offsets)
{
  const unsigned spatial = map.rank - 2;
  std::vector<Row> rows;
  std::vector<int64_t> base(from.begin(), from.end());
  for (unsigned p = 0; p < map.pixels; ++p) {
    int64_t at[MOST_RANK] = {};
    for (unsigned d = 0; d < spatial; ++d) at[d + 1] = base[d + 1] + offsets[d];
    at[map.rank - 1] = base[map.rank - 1];
    rows.push_back(row_at(map, at, base[0], map.channels));
    for (unsigned d = 0; d <= spatial; ++d) {
      if (d == spatial) {
        ++base[map.rank - 1];
        break;
      }
      base[d + 1] += map.steps[d + 1];
      if (base[d + 1] <= int64_t(map.extents[d + 1]) - 1 + map.upper[d]) break;
      base[d + 1] = map.lower[d];
    }
  }
  return rows;
}

// Between a row and its place in shared memory; 16 bytes stay together.
void move(const Map& map, const Row& row, unsigned char* shared, unsigned offset, bool is_load)
{
  for (unsigned n = 0; n < row.bytes; ++n) {
    unsigned char* const to = shared + swizzled(offset + n, map.swizzle);
    const bool inside = row.at != nullptr && n >= row.before && n < row.before + row.inside;
    if (is_load) *to = inside ? row.at[n - row.before] : 0;
    else if (inside) row.at[n - row.before] = *to;
  }
}

void each_part(const Map& map, unsigned offset, unsigned bytes, const std::function<void(unsigned)>& part)
{
  for (unsigned n = 0; n < bytes; n += 16) part(swizzled(offset + n, map.swizzle));
}

unsigned bytes_of(const std::vector<Row>& rows)
{
  unsigned sum = 0;
  for (const Row& row : rows) sum += row.bytes;
  return sum;
}

void examine(const Map& map, uint32_t offset, unsigned bytes)
{
  const unsigned unit = map.swizzle ? 128u << map.swizzle : 128;
  if (offset % unit)
    find("misaligned", "%s copies a tile at byte %d of shared memory, no multiple of %u", where(current),
         byte_of(offset), unit);
  if (!has_bytes(offset, bytes))
    stop("outside", "%s copies a tile at bytes %d to %d of shared memory, beyond the %u of the launch", where(current),
         byte_of(offset), byte_of(offset) + int(bytes) - 1, launch_bytes());
}

void examine_tensor(const Row& row, Kind kind, unsigned thread)
{
  if (row.at == nullptr || !options.checked) return;
  const Buffer* const buffer = buffer_of(row.at);
  if (buffer == nullptr || buffer != buffer_of(row.at + row.inside - 1))
    stop("outside", "%s copies %u bytes of a tensor at %s", where(thread), row.inside, place_of(row.at));
  check(row.at, row.inside, kind, thread);
}

// What is stored of a row must have been written; what is outside of the tensor is not stored.
void examine_parts(const Map& map, const Row& row, unsigned char* shared, unsigned offset, unsigned thread)
{
  if (row.at == nullptr) return;
  const unsigned last = row.before + row.inside;
  for (unsigned n = 0; n < row.bytes; n += 16) {
    const unsigned begin = std::max(n, row.before), end = std::min(n + 16, last);
    if (begin < end) check_engine(shared + swizzled(offset + n, map.swizzle) + begin - n, end - begin, thread);
  }
}

std::vector<Row> rows_of(const Map& map, const int* from, const unsigned short* offsets)
{
  const std::vector<int> start(from, from + map.rank);
  if (from[0] * map.bytes % 16)  // an H200 says: an illegal instruction
    stop("refused", "%s copies from element %d on along the innermost dimension, no multiple of 16 bytes",
         where(current), from[0]);
  if (!map.is_im2col) return tile(map, start);
  return pixels(map, start, std::vector<unsigned>(offsets, offsets + map.rank - 2));
}

// To `offset` of a block's shared memory, for the mbarrier at `barrier` there.
void load(const Map& map, const std::vector<Row>& rows, unsigned block, uint32_t offset, uint32_t barrier,
          unsigned thread)
{
  unsigned char* const shared = blocks[block].shared;
  unsigned at = offset;
  for (const Row& row : rows) {
    examine_tensor(row, READ, thread);
    move(map, row, shared, at, true);
    if (options.checked)
      each_part(map, at, row.bytes, [&](unsigned place) { end_copy(shared + place, 16, thread, true); });
    at += row.bytes;
  }
  bytes_came(blocks[block], barrier, at - offset, thread);
}

void defer(unsigned block, uint32_t barrier, const std::function<void()>& run)
{
  if (options.late) loads.push_back({block, barrier, run});
  else run();
}

void put(const std::function<void()>& store)
{
  if (!options.late) store();
  me().stores.push_back(options.late ? store : [] {});
}

Map map_at(const void* at)
{
  Map map;
  memcpy(&map, at, sizeof map);
  if (map.rank < 1 || map.rank > MOST_RANK) stop("refused", "%s copies by a map that was not made", where(current));
  return map;
}

}  // namespace

void forget_loads() { loads.clear(); }

void run_loads(const Block& block, uint32_t barrier)
{
  for (size_t n = 0; n < loads.size();) {
    if (loads[n].block != rank_of(block) || loads[n].barrier != barrier) {
      ++n;
      continue;
    }
    const Load one = loads[n];
    loads.erase(loads.begin() + n);
    one.run();
  }
}

void examine_loads(const Block& block)
{
  for (const Load& load : loads)
    if (load.block == rank_of(block))
      return find("unfinished", "%s is the last of its block to end, which a copy for the mbarrier at byte %d is under "
                  "way to", where(current), byte_of(load.barrier));
}

void examine_stores(unsigned number)
{
  const Thread& thread = threads[number];
  bool is_left = !thread.stores.empty();
  for (const auto& group : thread.store_groups) is_left |= !group.empty();
  if (is_left)
    find("unfinished", "%s ends with no cp.async.bulk.wait_group behind what it stores from shared memory", where(number));
}

// What the engine arrives at was made by a thread, and seen by the engine only behind a fence.
void examine_barrier(const Block& block, uint32_t barrier)
{
  const auto found = block.phases.find(barrier);
  if (options.checked && found != block.phases.end() && !found->second.is_shown)
    find("unfenced", "%s made the mbarrier at byte %d with no fence.mbarrier_init behind, and %s has a copy arrive there",
         where(found->second.maker), byte_of(barrier), where(current));
}

// `mask`: blocks of the cluster that get the tile, each at the same place and with its own mbarrier; 0: this one.
extern "C" void simulator_load_tile(uint32_t to, const void* map_given, const int* from, uint32_t barrier,
                                    unsigned mask, const unsigned short* offsets)
{
  const Map map = map_at(map_given);
  const std::vector<Row> rows = rows_of(map, from, offsets);
  const unsigned offset = to % ARENA, bytes = bytes_of(rows), thread = current;
  const unsigned own = to / ARENA ? to / ARENA - 1 : rank_of(*me().block);
  examine(map, offset, bytes);
  for (const Row& row : rows)
    if (options.checked && row.at != nullptr) examine_order(row.at, READ, thread);
  for (unsigned block = 0; block < blocks.size(); ++block) {
    if (mask ? !(mask >> block & 1) : block != own) continue;
    unsigned char* const shared = blocks[block].shared;
    visit(blocks[block], "copies a tile to");
    phase_at(blocks[block], barrier % ARENA, "copies for");
    examine_barrier(blocks[block], barrier % ARENA);
    if (options.checked)
      each_part(map, offset, bytes, [&](unsigned place) { begin_copy(shared + place, 16, thread); });
    if (options.late) memset(shared + offset, POISON, bytes);
    defer(block, barrier % ARENA, [=] { load(map, rows, block, offset, barrier % ARENA, thread); });
  }
}

// `op`: 0 a copy, 1 a sum of float32.
extern "C" void simulator_store_tile(const void* map_given, const int* to, uint32_t from, int op)
{
  const Map map = map_at(map_given);
  const std::vector<Row> rows = rows_of(map, to, nullptr);
  const unsigned thread = current;
  unsigned char* const shared = me().block->shared;
  examine(map, from, bytes_of(rows));
  put([=] {
    unsigned at = from;
    for (const Row& row : rows) {
      if (options.checked) examine_parts(map, row, shared, at, thread);
      std::vector<float> sums((row.inside + 3) / 4);
      if (op && row.at) memcpy(sums.data(), row.at, row.inside);
      examine_tensor(row, op ? BOTH : WRITE, thread);
      move(map, row, shared, at, false);
      for (unsigned n = 0; op && row.at && n < row.inside / 4; ++n) ((float*)row.at)[n] += sums[n];
      at += row.bytes;
    }
  });
}

extern "C" void simulator_load_bytes(uint32_t to, const void* from, unsigned bytes, uint32_t barrier)
{
  if (to % 16 || (uintptr_t)from % 16 || bytes % 16)
    find("misaligned", "%s copies %u bytes from %s to byte %d", where(current), bytes, place_of(from), byte_of(to));
  unsigned char* const place = shared_at(to);
  const unsigned block = rank_of(*me().block), thread = current;
  examine_barrier(*me().block, barrier);
  if (options.checked) examine_order(from, READ, thread);
  if (options.checked) begin_copy(place, bytes, thread);
  if (options.late) memset(place, POISON, bytes);
  defer(block, barrier, [=] {
    if (options.checked) examine_place(from, bytes, "copies");
    if (options.checked) check(from, bytes, READ, thread);
    memcpy(place, from, bytes);
    if (options.checked) end_copy(place, bytes, thread, true);
    bytes_came(blocks[block], barrier, bytes, thread);
  });
}

extern "C" void simulator_store_bytes(void* to, uint32_t from, unsigned bytes)
{
  if (from % 16 || (uintptr_t)to % 16 || bytes % 16)
    find("misaligned", "%s copies %u bytes from byte %d to %s", where(current), bytes, byte_of(from),
         place_of(to));
  unsigned char* const place = shared_at(from);
  const unsigned thread = current;
  put([=] {
    if (options.checked) {
      check_engine(place, bytes, thread);
      examine_place(to, bytes, "copies");
      check(to, bytes, WRITE, thread);
    }
    memcpy(to, place, bytes);
  });
}

extern "C" void simulator_commit_stores()
{
  me().store_groups.push_back(std::move(me().stores));
  me().stores.clear();
}

void finish_stores(unsigned number, unsigned pending)
{
  auto& groups = threads[number].store_groups;
  while (groups.size() > pending) {
    for (const auto& store : groups.front()) store();
    groups.erase(groups.begin());
  }
}

// Also where only what is read need be over: that nobody waits for more is not found.
extern "C" void simulator_wait_for_stores(unsigned pending) { finish_stores(current, pending); }

// Arrives at an mbarrier when all that this thread copies so far has come.
extern "C" void simulator_copies_arrive(uint32_t barrier)
{
  std::vector<Copy> copies = std::move(me().open);
  for (auto& group : me().groups) copies.insert(copies.end(), group.begin(), group.end());
  me().open.clear();
  me().groups.clear();
  const unsigned block = rank_of(*me().block), thread = current;
  defer(block, barrier, [=] {
    for (const Copy& copy : copies) finish_copy(copy, thread);
    arrive(blocks[block], barrier, 1, 0, thread);
  });
}

}  // namespace simulator
