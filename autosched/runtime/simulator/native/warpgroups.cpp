// wgmma: products of a warpgroup's 128 threads, with operands in shared memory. PTX ISA, "Asynchronous warpgroup-level
// matrix instructions".
//
// Late: done when their group is waited for; until then the results are no numbers.
#include "runtime.h"

namespace simulator {

extern "C" uint16_t simulator_half_of_float(float value);

namespace {

constexpr unsigned ROWS = 64;

struct Given { void* const* places; const uint32_t* held; const uint32_t* const* held_at; uint64_t a, b; };

Warpgroup& own() { return me().block->warpgroups[me().number / GROUP]; }

unsigned first_of_group() { return me().block->first + me().number / GROUP * GROUP; }

// Byte of element (mn, k) in shared memory: bits 0-13 of the descriptor are the start, 16-29 and 32-45 the strides,
// 62-63 the swizzle, which turns the final address. All but the swizzle count in 16 bytes.
uint32_t place_in(uint64_t descriptor, bool mn_major, unsigned mn, unsigned k, unsigned bytes)
{
  static const unsigned spans[] = {16, 128, 64, 32};
  const unsigned start = (descriptor & 0x3fff) << 4;
  const unsigned leading = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
  const unsigned mode = descriptor >> 62, span = spans[mode];
  uint32_t at;
  if (!mn_major) {
    at = start + mn % 8 * span + mn / 8 * stride;
    at += mode ? k * bytes : k * bytes / 16 * leading + k * bytes % 16;
  } else {
    const unsigned across = span / bytes;
    at = start + mn % across * bytes + k % 8 * span;
    at += mode ? mn / across * leading + k / 8 * stride : mn / across * stride + k / 8 * leading;
  }
  const unsigned turned[] = {0, 7, 3, 1};
  return at ^ (at >> 7 & turned[mode]) << 4;
}

double element(Number number, const Block& block, uint32_t at)
{
  uint32_t bits = 0;
  memcpy(&bits, block.shared + at, bits_of(number) / 8);
  return value_of(number, bits);
}

// An operand of `rows` by k, and the check of what it lies in, 16 bytes at a time.
std::vector<double> operand(const Product& p, bool second, const Block& block, unsigned thread)
{
  const Number number = (Number)p.kinds[1 + second];
  const unsigned rows = second ? p.n : ROWS, bytes = bits_of(number) / 8, unit = 16 / bytes;
  const uint64_t descriptor = second ? p.b : p.a;
  const bool mn_major = p.transposed[second];
  std::vector<double> values(rows * p.k);
  for (unsigned r = 0; r < rows; ++r)
    for (int k = 0; k < p.k; ++k) {
      const uint32_t at = place_in(descriptor, mn_major, r, k, bytes);
      if (!has_bytes(at, bytes))
        stop("outside", "%s multiplies byte %d of shared memory, beyond the %u of the launch", where(thread),
             byte_of(at), launch_bytes());
      if (options.checked && (mn_major ? r : k) % unit == 0) check_engine(block.shared + at, 16, thread);
      values[r * p.k + k] = element(number, block, at) * p.signs[second];
    }
  return values;
}

// What is known of fences where a product is begun counts, not what is known when it is made.
void examine_fences(const Product& p, bool second, const Block& block, unsigned thread)
{
  const unsigned bytes = bits_of((Number)p.kinds[1 + second]) / 8, unit = 16 / bytes, rows = second ? p.n : ROWS;
  const bool mn_major = p.transposed[second];
  for (unsigned r = 0; r < rows; r += mn_major ? unit : 1)
    for (int k = 0; k < p.k; k += mn_major ? 1 : unit) {
      const uint32_t at = place_in(second ? p.b : p.a, mn_major, r, k, bytes);
      if (has_bytes(at, 16)) check_fences(block.shared + at, 16, thread);
    }
}

// A in registers: each warp its 16 rows, as mma.sync has them. They are read when the product is made.
std::vector<double> held(const Product& p)
{
  const Number number = (Number)p.kinds[1];
  const unsigned bits = bits_of(number), per = 32 / bits, mask = per == 1 ? ~0u : (1u << bits) - 1;
  std::vector<double> values(ROWS * p.k);
  for (unsigned t = 0; t < GROUP; ++t)
    for (unsigned r = 0; r < 4; ++r)
      for (unsigned e = 0; e < per; ++e) {
        const unsigned row = t / WARP * 16 + t % WARP / 4 + 8 * (r % 2), k = per * (t % 4) + e + 4 * per * (r / 2);
        const uint32_t* const at = p.held_at[t * 4 + r];
        const uint32_t word = at ? *at : p.held[t * 4 + r];
        values[row * p.k + k] = value_of(number, word >> e * bits & mask) * p.signs[0];
      }
  return values;
}

void write_result(const Product& p, unsigned t, unsigned i, const Factors& factors)
{
  const Sums sums = sums_of(factors.left, true);
  void* const place = p.places[t * p.results + (p.kinds[0] == f16 ? i / 2 : i)];
  if (p.kinds[0] == s32) {
    double sum = p.adds ? *(int32_t*)place : 0;
    for (unsigned k = 0; k < factors.n; ++k) sum += factors.a[k] * factors.b[k];
    *(int32_t*)place = int32_t(uint32_t(int64_t(sum)));
  } else if (p.kinds[0] == f16) {
    uint32_t& word = *(uint32_t*)place;
    const unsigned shift = 16 * (i % 2);
    const double old = p.adds ? value_of(f16, word >> shift & 0xffff) : 0;
    word = (word & ~(0xffffu << shift)) | uint32_t(simulator_half_of_float(added_up(sums, factors, old))) << shift;
  } else {
    *(float*)place = added_up(sums, factors, p.adds ? *(float*)place : 0.0f);
  }
}

void execute(const Product& p, const Block& block, unsigned thread)
{
  const std::vector<double> a = p.in_registers ? held(p) : operand(p, false, block, thread);
  const std::vector<double> b = operand(p, true, block, thread);
  for (unsigned t = 0; t < GROUP; ++t)
    for (int i = 0; i < p.n / 2; ++i) {
      const unsigned row = t / WARP * 16 + t % WARP / 4 + 8 * (i / 2 % 2), column = 8 * (i / 4) + 2 * (t % 4) + i % 2;
      const Number left = (Number)p.kinds[1], right = (Number)p.kinds[2];
      write_result(p, t, i, {&a[row * p.k], &b[column * p.k], 1, unsigned(p.k), left, right});
    }
}

// The results' registers hold nothing of use while a product is under way.
void hide(const Product& p, Results& results)
{
  results.values.resize(p.places.size());
  for (size_t n = 0; n < p.places.size(); ++n) {
    memcpy(&results.values[n], p.places[n], 4);
    memset(p.places[n], POISON, 4);
  }
}

void show(const Product& p, Results& results)
{
  for (size_t n = 0; n < p.places.size(); ++n) memcpy(p.places[n], &results.values[n], 4);
}

void begin(Warpgroup& group, const Product& p, unsigned thread)
{
  if (!group.is_fenced) find("unfenced", "%s multiplies before any wgmma.fence", where(thread));
  if (!options.late) {
    execute(p, *threads[thread].block, thread);
    return;
  }
  if (options.checked && !p.in_registers) examine_fences(p, false, *threads[thread].block, thread);
  if (options.checked) examine_fences(p, true, *threads[thread].block, thread);
  Results& results = group.results[p.places[0]];
  if (results.under_way++ == 0) hide(p, results);
  group.open.push_back(p);
}

void finish(Warpgroup& group, const Product& p, unsigned thread)
{
  Results& results = group.results[p.places[0]];
  show(p, results);
  execute(p, *threads[thread].block, thread);
  if (--results.under_way) hide(p, results);
  else group.results.erase(p.places[0]);
}

}  // namespace

void examine_products(unsigned number)
{
  const Thread& thread = threads[number];
  const Warpgroup& group = thread.block->warpgroups[thread.number / GROUP];
  bool is_left = !group.open.empty();
  for (const auto& products : group.groups) is_left |= !products.empty();
  if (is_left) find("unfinished", "%s ends while products of its warpgroup are under way", where(number));
}

// `facts`: what a Product begins with. `held`, `held_at`: A in registers, or nullptr.
extern "C" void simulator_wgmma(void* const* places, unsigned results, const uint32_t* held,
                                const uint32_t* const* held_at, uint64_t a, uint64_t b, const int* facts)
{
  Given mine = {places, held, held_at, a, b};
  Warpgroup& group = own();
  const unsigned thread = first_of_group();
  together(group.together, GROUP, "wgmma", &mine, [&](void* const* given) {
    Product p = {{facts[0], facts[1], facts[2]}, facts[3], facts[4], facts[5], {facts[6], facts[7]},
                 {facts[8], facts[9]}, held != nullptr, a, b, {}, {}, {}, results};
    for (unsigned t = 0; t < GROUP; ++t) {
      const Given& its = *(const Given*)given[t];
      if (its.a != p.a || its.b != p.b)
        stop("diverged", "threads of the warpgroup of %s give different descriptors", where(thread));
      p.places.insert(p.places.end(), its.places, its.places + results);
      if (!p.in_registers) continue;
      p.held.insert(p.held.end(), its.held, its.held + 4);
      p.held_at.insert(p.held_at.end(), its.held_at, its.held_at + 4);
    }
    begin(group, p, thread);
  });
}

extern "C" void simulator_wgmma_fence()
{
  Warpgroup& group = own();
  together(group.together, GROUP, "wgmma.fence", nullptr, [&](void* const*) { group.is_fenced = true; });
}

extern "C" void simulator_wgmma_commit()
{
  Warpgroup& group = own();
  together(group.together, GROUP, "wgmma.commit_group", nullptr, [&](void* const*) {
    group.groups.push_back(std::move(group.open));
    group.open.clear();
  });
}

extern "C" void simulator_wgmma_wait(unsigned pending)
{
  Warpgroup& group = own();
  const unsigned first = first_of_group();
  together(group.together, GROUP, "wgmma.wait_group", nullptr, [&](void* const*) {
    while (group.groups.size() > pending) {
      for (const Product& p : group.groups.front()) finish(group, p, first);
      group.groups.erase(group.groups.begin());
    }
    if (!options.checked) return;
    std::vector<unsigned> all;
    for (unsigned n = first; n < first + GROUP; ++n) all.push_back(n);
    meet_clocks(all, all);  // what was read has been read for each of them
  });
}

}  // namespace simulator
