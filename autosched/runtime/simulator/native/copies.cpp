// Asynchronous copies of single threads to shared memory, and their groups: PTX ISA, "cp.async".
#include "runtime.h"

namespace simulator {

namespace {

void move(const Copy& copy)
{
  if (copy.given) memcpy(copy.to, copy.from, copy.given);
  memset(copy.to + copy.given, 0, copy.bytes - copy.given);
}

}  // namespace

extern "C" void simulator_copy(unsigned to, const void* from, unsigned bytes, unsigned given)
{
  Thread& thread = me();
  const Copy copy = {thread.block->shared + to, (const unsigned char*)from, bytes, given};
  if (to % bytes || (given && (uintptr_t)from % bytes))
    return find("misaligned", "%s copies %u bytes from %s to %s", where(current), bytes, place_of(from),
                place_of(copy.to));
  if (!has_bytes(to, bytes))
    stop("outside", "%s copies to %s, beyond %u bytes", where(current), place_of(copy.to), launch_bytes());
  if (options.checked) {
    if (given) examine_place(from, given, "copies");
    if (given) check(from, given, READ, current);
    begin_copy(copy.to, bytes, current);
  }
  if (options.counted) {
    if (given) count(from, given, READ, current);
    count(copy.to, bytes, WRITE, current);
  }
  if (options.late) memset(copy.to, POISON, bytes);
  else move(copy);
  thread.open.push_back(copy);
}

extern "C" void simulator_commit_copies()
{
  me().groups.push_back(std::move(me().open));
  me().open.clear();
}

void finish_copy(const Copy& copy, unsigned thread)
{
  if (options.late) move(copy);
  if (options.checked) end_copy(copy.to, copy.bytes, thread, false);
}

void finish_copies(unsigned number, unsigned pending)
{
  Thread& thread = threads[number];
  while (thread.groups.size() > pending) {
    for (const Copy& copy : thread.groups.front()) finish_copy(copy, number);
    thread.groups.erase(thread.groups.begin());
  }
}

void examine_copies(unsigned number)
{
  const Thread& thread = threads[number];
  bool is_left = !thread.open.empty();
  for (const auto& group : thread.groups) is_left |= !group.empty();
  if (is_left) find("unfinished", "%s ends while its copies to shared memory are under way", where(number));
}

extern "C" void simulator_wait_for_copies(unsigned pending) { finish_copies(current, pending); }

}  // namespace simulator
