// What the parts of the runtime know of each other: the blocks under way, their threads, and who waits for what.
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace simulator {

struct Triple { unsigned x, y, z; };
struct Place { Triple thread, block, block_size, grid_size; };

enum Kind { READ, WRITE, BOTH };
enum Shuffle { LANE, UP, DOWN, XOR };

constexpr unsigned WARP = 32, MOST_WARPS = 32, NAMED_BARRIERS = 16;
constexpr unsigned ARENA = 1 << 18;  // bytes from the shared memory of one block of a cluster to that of the next
constexpr unsigned POISON = 0xff;    // a NaN in every width
constexpr unsigned STACK = 64 << 10;

// `late`: asynchronous work is done when it is waited for, else at once. `backward`: the last thread runs first.
// `checked`: accesses are examined. `counted`: wavefronts and sectors are counted. `granule`: bytes of shared memory that
// are examined together.
struct Options { int late, backward, checked, counted; unsigned granule; };

// Memory that a kernel is given. `granule`: bytes that are examined together. `is_written`: by a launch that comes.
// `is_known`: it has a content before.
struct Buffer { const char* name; unsigned char* start; uint64_t bytes; unsigned granule, is_written, is_known; };

struct Numbers {
  uint64_t switches, collectives, accesses, shared_requests, wavefronts, least_wavefronts, requests, sectors, least_sectors;
};

// Threads that wait for each other. The last one to arrive does what is to be done for all.
struct Meeting { unsigned arrived = 0; uint64_t generation = 0; const char* what = nullptr; const void* site = nullptr; };

struct Warp { Meeting meeting; uint64_t given[WARP], taken[WARP]; uint32_t present = 0; };

struct Block {
  Triple index;
  unsigned first;  // thread of the cluster
  unsigned char* shared;
  Meeting named[NAMED_BARRIERS];  // number 0 is __syncthreads
  Warp warps[MOST_WARPS];
};

struct Copy { unsigned char* to; const unsigned char* from; unsigned bytes, given; };

struct Thread {
  void* stack_pointer;
  unsigned char* stack;
  Triple index;
  unsigned number;  // in its block
  Block* block;
  bool is_done;
  std::vector<Copy> open;                // copies that no group holds yet
  std::vector<std::vector<Copy>> groups; // the oldest first
};

extern Options options;
extern Numbers numbers;
extern std::vector<Thread> threads;  // of all blocks of the cluster
extern std::vector<Block> blocks;    // of the cluster
extern unsigned current;             // the thread that runs
extern unsigned shared_bytes;        // of a block
extern uint64_t progress;            // changes whenever something happens that somebody may wait for

inline Thread& me() { return threads[current]; }
inline unsigned threads_per_block() { return threads.size() / blocks.size(); }

// fibers.cpp
void yield();
[[noreturn]] void leave();  // ends the launch
void wait_for(const char* what, const std::function<bool()>& is_ready);
// Of `count` threads. Returns whether this one is the last; then it does what is to be done, and calls `part`.
bool is_last(Meeting&, unsigned count, const char* what, const void* site);
void part(Meeting&);

// findings.cpp
void find(const char* kind, const char* format, ...) __attribute__((format(printf, 2, 3)));
[[noreturn]] void stop(const char* kind, const char* format, ...) __attribute__((format(printf, 2, 3)));
const char* where(unsigned thread);  // in words; until the next call but three

// memory.cpp: where an address lies
extern std::vector<Buffer> buffers;
bool is_shared(const void* at);
const Buffer* buffer_of(const void* at);
const char* place_of(const void* at);  // in words

// checks.cpp: who has touched what, and who knows of it
void forget_checks();  // of buffers
void begin_checks();   // of a launch
void begin_cluster();
void meet_clocks(const std::vector<unsigned>& those);
void check(const void* at, unsigned bytes, Kind kind, unsigned thread);
void begin_copy(const void* to, unsigned bytes);
void end_copy(const void* to, unsigned bytes);

// counts.cpp
void count(const void* at, unsigned bytes, Kind kind, const void* site);
void count_all();  // what has been noted so far

// warps.cpp
void thread_ended();  // the one that runs: nobody waits for it any more

// copies.cpp
void finish_copies(Thread&, unsigned pending);

}  // namespace simulator
