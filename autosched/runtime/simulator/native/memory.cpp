// Where an address lies, and what the compiler's instrumentation reports of each access.
#include "runtime.h"
#include <cstdio>

namespace simulator {

extern "C" Place simulator_place;

std::vector<Buffer> buffers;

namespace {

bool is_private(const void* at)  // on the thread's stack, or what it is told of itself
{
  const unsigned char* p = (const unsigned char*)at;
  const unsigned char* own = (const unsigned char*)&simulator_place;
  return (p >= me().stack && p < me().stack + STACK) || (p >= own && p < own + sizeof simulator_place);
}

}  // namespace

bool is_shared(const void* at)
{
  return !blocks.empty() && at >= blocks[0].shared && at < blocks[0].shared + blocks.size() * ARENA;
}

const Buffer* buffer_of(const void* at)
{
  const unsigned char* p = (const unsigned char*)at;
  for (const Buffer& buffer : buffers)
    if (p >= buffer.start && p < buffer.start + buffer.bytes) return &buffer;
  return nullptr;
}

const char* place_of(const void* at)
{
  static char texts[4][128];
  static unsigned next;
  char* text = texts[next++ % 4];
  if (is_shared(at)) {
    const uint64_t offset = (const unsigned char*)at - blocks[0].shared;
    snprintf(text, sizeof texts[0], "byte %d of shared memory", byte_of(offset % ARENA));
    return text;
  }
  const Buffer* nearest = buffer_of(at);
  if (nearest == nullptr) {
    for (const Buffer& buffer : buffers) {
      const int64_t from = (const unsigned char*)at - buffer.start;
      if (from >= -4096 && from < int64_t(buffer.bytes) + 4096) nearest = &buffer;
    }
    if (nearest == nullptr) return "memory of nobody";
  }
  const long long offset = (const unsigned char*)at - nearest->start;
  const unsigned long long all = nearest->bytes;
  snprintf(text, sizeof texts[0], "byte %lld of %s, which has %llu", offset, nearest->name, all);
  return text;
}

extern "C" unsigned char* simulator_shared(unsigned offset) { return me().block->shared + shared_start + offset; }

extern "C" unsigned simulator_shared_offset(const void* at) { return (const unsigned char*)at - me().block->shared; }

void examine_place(const void* at, unsigned bytes, const char* verb)
{
  const unsigned char* const last = (const unsigned char*)at + bytes - 1;
  if (is_shared(at)) {
    if (!has_bytes((last - blocks[0].shared) % ARENA - (bytes - 1), bytes))
      stop("outside", "%s %s %s, beyond the %u bytes of the launch", where(current), verb, place_of(at),
           launch_bytes());
  } else if (buffer_of(at) == nullptr || buffer_of(at) != buffer_of(last)) {
    stop("outside", "%s %s %u bytes at %s", where(current), verb, bytes, place_of(at));
  }
}

extern "C" void simulator_access(const void* at, unsigned bytes, int kind, const void* site)
{
  if ((!options.checked && !options.counted) || is_private(at)) return;
  me().site = site;
  ++numbers.accesses;
  const char* const verb = kind == READ ? "reads" : kind == WRITE ? "writes" : "updates";
  if (bytes <= 16 && (uintptr_t)at % bytes)
    find("misaligned", "%s %s %u bytes at %s", where(current), verb, bytes, place_of(at));
  examine_place(at, bytes, verb);
  if (options.checked) check(at, bytes, (Kind)kind, current);
  if (options.counted) count(at, bytes, (Kind)kind, current);
}

extern "C" void simulator_open(const Options* wanted, const Buffer* given, unsigned n)
{
  options = *wanted;
  numbers = Numbers();
  buffers.assign(given, given + n);
  forget_checks();
}

extern "C" const Numbers* simulator_numbers() { return &numbers; }

}  // namespace simulator

// What g++ -fsanitize=thread calls, which here is no sanitizer but tells of accesses.
#define TOLD(NAME, SIZE, KIND) \
  extern "C" void NAME(void* at) \
  { simulator::simulator_access(at, SIZE, simulator::KIND, __builtin_return_address(0)); }
#define TOLD_OF(SIZE) \
  TOLD(__tsan_read##SIZE, SIZE, READ) \
  TOLD(__tsan_write##SIZE, SIZE, WRITE) \
  TOLD(__tsan_unaligned_read##SIZE, SIZE, READ) \
  TOLD(__tsan_unaligned_write##SIZE, SIZE, WRITE)
TOLD_OF(1)
TOLD_OF(2)
TOLD_OF(4)
TOLD_OF(8)
TOLD_OF(16)
#define TOLD_OF_MANY(NAME, KIND) \
  extern "C" void NAME(void* at, uint64_t n) \
  { simulator::simulator_access(at, n, simulator::KIND, __builtin_return_address(0)); }
TOLD_OF_MANY(__tsan_read_range, READ)
TOLD_OF_MANY(__tsan_write_range, WRITE)
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_init() {}

// What g++ -fsanitize=bounds calls: what it says of the place begins with the file and the line.
namespace {

struct Type { uint16_t kind, facts; char name[1]; };
struct Bounds { const char* file; uint32_t line, column; const Type *array, *index; };

}  // namespace

extern "C" void __ubsan_handle_out_of_bounds(const Bounds* where_it_is, uint64_t index)
{
  using namespace simulator;
  me().site = __builtin_return_address(0);
  if (!options.checked) return;
  stop("outside", "%s uses element %lld of %s", where(current), (long long)index, where_it_is->array->name);
}
