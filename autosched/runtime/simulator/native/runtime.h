// What the parts of the runtime know of each other: the blocks under way, their threads, and who waits for what.
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

namespace simulator {

struct Triple { unsigned x, y, z; };
struct Place { Triple thread, block, block_size, grid_size; };

enum Kind { READ, WRITE, BOTH };
enum Shuffle { LANE, UP, DOWN, XOR };

constexpr unsigned WARP = 32, GROUP = 128, MOST_WARPS = 32, NAMED_BARRIERS = 16;
constexpr unsigned RESERVED = 1 << 10;  // a GPU keeps the first bytes of shared memory
constexpr unsigned ARENA = 1 << 18;  // bytes from the shared memory of one block of a cluster to that of the next
constexpr unsigned POISON = 0xff;    // a NaN in every width
constexpr unsigned STACK = 64 << 10;
constexpr unsigned REGISTERS = 1 << 16;  // of a multiprocessor

// `late`: asynchronous work is done when it is waited for, else at once. `backward`: the last thread runs first.
// `checked`: accesses are examined. `counted`: wavefronts and sectors are counted. `granule`: bytes of shared memory
// that are examined together. `seconds`: of the processor, that a launch may take; 0: any.
struct Options { int late, backward, checked, counted; unsigned granule, seconds; };

// Memory that a kernel is given. `granule`: bytes that are examined together. `is_written`: by a launch that comes.
// `is_known`: it has a content before.
struct Buffer { const char* name; unsigned char* start; uint64_t bytes; unsigned granule, is_written, is_known; };

struct Numbers {
  uint64_t switches, collectives, accesses;
  uint64_t shared_requests, wavefronts, least_wavefronts;
  uint64_t requests, sectors, least_sectors;
};

// Threads that wait for each other. The last one to arrive does what is to be done for all.
struct Meeting { unsigned arrived = 0; uint64_t generation = 0; const char* what = nullptr; };

// Threads that do something together: what each of them gives is where `given` says.
struct Group { Meeting meeting; void* given[GROUP]; };

struct Warp { Meeting meeting; uint64_t given[WARP], taken[WARP]; uint32_t present = 0; Group together; };

using Clock = std::vector<uint32_t>;  // what is known of each thread's count, see checks.cpp

struct Named { Meeting meeting; std::vector<unsigned> givers, takers; };

// An mbarrier: a phase ends when `pending` arrivals and `bytes` have come.
struct Phase {
  uint32_t count, pending;
  int64_t bytes;
  uint64_t number;
  unsigned maker;  // the thread, and when it did
  uint32_t made;
  bool is_shown;  // to the copy engine, and to other blocks
  Clock coming, known;  // what is told with arrivals; and what who waited knows
};

// A product under way: where each of 128 threads has its results, and what the operands are.
struct Product {
  int kinds[3], n, k, adds, signs[2], transposed[2], in_registers;  // kinds: of the results, of both operands
  uint64_t a, b;                // descriptors
  std::vector<void*> places;    // of thread t from t * results on
  std::vector<uint32_t> held;   // A in registers, four of each thread; and where they are, as far as they are somewhere
  std::vector<const uint32_t*> held_at;
  unsigned results;             // registers of a thread
};

// Results that are under way: what their registers will hold, while they hold nothing of use.
struct Results { std::vector<uint32_t> values; unsigned under_way = 0; };

struct Warpgroup {
  Group together;
  std::vector<Product> open;
  std::vector<std::vector<Product>> groups;  // the oldest first
  std::map<void*, Results> results;          // by the place of the first
  bool is_fenced = false;
};

struct Block {
  Triple index;
  unsigned first;  // thread of the cluster
  unsigned char* shared;
  Meeting whole;   // __syncthreads
  Named named[NAMED_BARRIERS];
  Warp warps[MOST_WARPS];
  Warpgroup warpgroups[MOST_WARPS / 4];
  std::map<uint32_t, Phase> phases;  // by their places in shared memory
  std::map<unsigned, uint32_t> visits;  // threads of other blocks that used it, and when they last did
};

// The first `given` of `bytes` bytes, zeros behind them.
struct Copy { unsigned char* to; const unsigned char* from; unsigned bytes, given; };
using Store = std::function<void()>;  // of the copy engine

struct Thread {
  void* stack_pointer = nullptr;
  unsigned char* stack = nullptr;
  Triple index = {};
  unsigned number = 0;  // in its block
  Block* block = nullptr;
  bool is_done = false;
  const char* waits_for = nullptr;  // nullptr: it runs
  const void* site = nullptr;       // where in the program it was last seen
  int barrier_line = 0;             // of the text, of the last __syncthreads
  bool has_waited = false;          // for the kernels before
  uint64_t cluster_arrivals = 0;
  unsigned registers = 0;
  std::vector<Copy> open;                 // copies that no group holds yet
  std::vector<std::vector<Copy>> groups;  // the oldest first
  std::vector<Store> stores;              // that no group holds yet
  std::vector<std::vector<Store>> store_groups;
};

extern Options options;
extern Numbers numbers;
extern std::vector<Thread> threads;  // of all blocks of the cluster
extern std::vector<Block> blocks;    // of the cluster
extern unsigned current;             // the thread that runs
extern unsigned shared_start, shared_bytes;  // of a block: where the launch's begin, and where they end
extern bool is_early;                // whether the kernels before may still run
extern uint64_t progress;            // changes whenever something happens that somebody may wait for

inline Thread& me() { return threads[current]; }
inline unsigned threads_per_block() { return threads.size() / blocks.size(); }

// fibers.cpp
void yield();
[[noreturn]] void leave();  // ends the launch
void wait_for(const char* what, const std::function<bool()>& is_ready);
// Of `count` threads. Returns whether this one is the last; then it does what is to be done, and calls `part`.
bool is_last(Meeting&, unsigned count, const char* what);
void part(Meeting&);
// `count` threads give what `mine` points to; the last one to come does `all`, before any goes on.
void together(Group&, unsigned count, const char* what, void* mine, const std::function<void(void* const*)>& all);

// signals.cpp
void begin_signals(unsigned seconds);
void end_signals();

// findings.cpp: of the thread that runs, and of the place where it is
void find(const char* kind, const char* format, ...) __attribute__((format(printf, 2, 3)));
[[noreturn]] void stop(const char* kind, const char* format, ...) __attribute__((format(printf, 2, 3)));
const char* where(unsigned thread);  // in words; until the next call but three

// memory.cpp: where an address lies
extern std::vector<Buffer> buffers;
bool is_shared(const void* at);
const Buffer* buffer_of(const void* at);
const char* place_of(const void* at);  // in words
void examine_place(const void* at, unsigned bytes, const char* verb);  // is it this launch's?

// checks.cpp: who has touched what, and who knows of it
void forget_checks();  // of buffers
void begin_checks();   // of a launch
void begin_cluster();
void meet_clocks(const std::vector<unsigned>& givers, const std::vector<unsigned>& takers);
void tell(Clock&, unsigned thread);          // what it has done, to whoever listens
void listen(const Clock&, unsigned thread);  // to what was told
uint32_t count_of(unsigned thread);
bool knows(unsigned thread, unsigned other, uint32_t time);
void check(const void* at, unsigned bytes, Kind kind, unsigned thread);
void begin_copy(const void* to, unsigned bytes, unsigned thread);
void end_copy(const void* to, unsigned bytes, unsigned thread, bool by_engine);
// Of the copy engine or the tensor cores, which see what threads have written only behind a fence.
void check_engine(const void* at, unsigned bytes, unsigned thread);
void check_fences(const void* at, unsigned bytes, unsigned thread);  // where it is begun, and read later
void fence(unsigned thread);
void examine_order(const void* at, Kind kind, unsigned thread);  // is it behind the wait for the kernels before?

// counts.cpp: of the place in the program where a thread is
void count(const void* at, unsigned bytes, Kind kind, unsigned thread);
void count_all();  // what has been noted so far

// warps.cpp
void thread_ended();  // the one that runs: nobody waits for it any more

// warpgroups.cpp
void examine_products(unsigned thread);  // are any left when it ends?

// copies.cpp
void finish_copies(unsigned thread, unsigned pending);
void examine_copies(unsigned thread);  // are any left when it ends?
void finish_copy(const Copy&, unsigned thread);

// clusters.cpp
void forget_arrivals();
unsigned char* shared_at(uint32_t address);  // of this block, or of the one that the address names
unsigned rank_of(const Block&);
void visit(Block&, const char* verb);  // is it still there?
void examine_visits(const Block&);     // did others use it when it ended?
bool has_bytes(uint32_t offset, unsigned bytes);  // of what the launch has
unsigned launch_bytes();
int byte_of(uint32_t address);  // from where the launch's begin

// mbarriers.cpp
Phase& phase_at(Block&, uint32_t offset, const char* what);
void arrive(Block&, uint32_t offset, unsigned count, int64_t bytes, unsigned thread);
void bytes_came(Block&, uint32_t offset, int64_t bytes, unsigned thread);

// engine.cpp
void forget_loads();  // of a cluster that is over
void run_loads(const Block&, uint32_t barrier);  // those that it waits for
void examine_loads(const Block&);    // are any left when it ends?
void examine_stores(unsigned thread);
void finish_stores(unsigned thread, unsigned pending);

// numbers.cpp
enum Number { f32, f16, bf16, tf32, s8, u8, e4m3, e5m2, s32 };
double value_of(Number, uint32_t bits);
unsigned bits_of(Number);
float truncated(double);
// How the products of an instruction are added up: brought to the exponent of the largest, cut off `fraction` bits
// below it, `length` at a time; what comes of it is cut off to `kept` bits.
struct Sums { int fraction, kept; unsigned length; };
Sums sums_of(Number operand, bool by_warpgroup);
struct Factors { const double *a, *b; unsigned step_of_b, n; Number left, right; };
double added_up(const Sums&, const Factors&, double sum);

}  // namespace simulator
