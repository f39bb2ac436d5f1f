// How well the threads of a warp share accesses: wavefronts of shared memory, sectors of the rest.
//
// The n-th access of each lane at one place of the program is taken for one instruction. CUDA C++ Programming Guide,
// "Shared Memory" of compute capability 5.x and later: 32 banks of 4 bytes. Of 8 bytes a half of the warp is served at
// a time, of 16 a quarter; parts that have no bank in common go together.
#include "runtime.h"
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace simulator {

namespace {

struct Noted { const void* site; uint64_t address; uint32_t order; uint16_t warp; uint8_t lane, bytes, kind; };
struct Lane { uint64_t address; unsigned bytes; };
using Banks = std::map<unsigned, std::set<uint64_t>>;

std::vector<Noted> noted;
constexpr size_t MOST_NOTED = 1 << 21;
constexpr unsigned BANKS = 32, BANK_BYTES = 4, SECTOR = 32;

unsigned cost(const Banks& banks)
{
  size_t most = 0;
  for (const auto& [bank, words] : banks) most = std::max(most, words.size());
  return most;
}

unsigned wavefronts(const std::vector<Lane>& lanes)
{
  const unsigned bytes = lanes[0].bytes, together = bytes >= 16 ? 8 : bytes == 8 ? 16 : 32;
  std::vector<Banks> parts;
  for (size_t first = 0; first < lanes.size(); first += together) {
    Banks part;
    for (size_t n = first; n < std::min(lanes.size(), first + together); ++n)
      for (uint64_t at = lanes[n].address / BANK_BYTES; at * BANK_BYTES < lanes[n].address + bytes; ++at)
        part[at % BANKS].insert(at);
    bool joined = false;
    for (Banks& other : parts) {
      Banks both = other;
      for (const auto& [bank, words] : part) both[bank].insert(words.begin(), words.end());
      if (cost(both) > 1) continue;
      other = both;
      joined = true;
      break;
    }
    if (!joined) parts.push_back(part);
  }
  unsigned sum = 0;
  for (const Banks& part : parts) sum += cost(part);
  return sum;
}

void add(const std::vector<Lane>& lanes)
{
  const bool shared = is_shared((const void*)lanes[0].address);
  const unsigned unit = shared ? BANK_BYTES : SECTOR;
  std::set<uint64_t> units, bytes;
  for (const Lane& lane : lanes) {
    for (uint64_t at = lane.address / unit; at * unit < lane.address + lane.bytes; ++at) units.insert(at);
    for (uint64_t at = lane.address; at < lane.address + lane.bytes; ++at) bytes.insert(at);
  }
  if (shared) {
    ++numbers.shared_requests;
    numbers.wavefronts += wavefronts(lanes);
    numbers.least_wavefronts += (units.size() + BANKS - 1) / BANKS;
  } else {
    ++numbers.requests;
    numbers.sectors += units.size();
    numbers.least_sectors += (bytes.size() + SECTOR - 1) / SECTOR;
  }
}

}  // namespace

void count(const void* at, unsigned bytes, Kind kind, unsigned thread)
{
  const unsigned number = threads[thread].number, block = threads[thread].block - blocks.data();
  const uint16_t warp = block * MOST_WARPS + number / WARP;
  noted.push_back({threads[thread].site, (uint64_t)at, 0, warp, uint8_t(number % WARP), uint8_t(bytes), uint8_t(kind)});
  if (noted.size() >= MOST_NOTED) count_all();
}

void count_all()
{
  if (noted.empty()) return;
  const auto place = [](const Noted& a) { return std::make_tuple(a.warp, a.site, a.kind, a.bytes, a.lane); };
  std::stable_sort(noted.begin(), noted.end(), [&](const Noted& a, const Noted& b) { return place(a) < place(b); });
  for (size_t n = 1; n < noted.size(); ++n)
    noted[n].order = place(noted[n]) == place(noted[n - 1]) ? noted[n - 1].order + 1 : 0;
  const auto instruction = [](const Noted& a) { return std::make_tuple(a.warp, a.site, a.kind, a.bytes, a.order); };
  std::stable_sort(noted.begin(), noted.end(),
                   [&](const Noted& a, const Noted& b) { return instruction(a) < instruction(b); });
  std::vector<Lane> lanes;
  for (size_t n = 0; n < noted.size(); ++n) {
    lanes.push_back({noted[n].address, noted[n].bytes});
    if (n + 1 < noted.size() && instruction(noted[n]) == instruction(noted[n + 1])) continue;
    add(lanes);
    lanes.clear();
  }
  noted.clear();
}

}  // namespace simulator
