// What is wrong with a kernel, in words: for each kind how often, and the first time in full.
#include "runtime.h"
#include <cstdarg>
#include <cstdio>
#include <map>
#include <string>

namespace simulator {

extern "C" void simulator_stop_here();

namespace {

struct Finding { uint64_t times = 0; std::string first; };
std::map<std::string, Finding> findings;
std::string all;

void add(const char* kind, const char* format, va_list facts)
{
  Finding& finding = findings[kind];
  if (finding.times++) return;
  char text[512];
  vsnprintf(text, sizeof text, format, facts);
  finding.first = text;
}

}  // namespace

void find(const char* kind, const char* format, ...)
{
  va_list facts;
  va_start(facts, format);
  add(kind, format, facts);
  va_end(facts);
}

void stop(const char* kind, const char* format, ...)
{
  va_list facts;
  va_start(facts, format);
  add(kind, format, facts);
  va_end(facts);
  simulator_stop_here();
  leave();
}

const char* where(unsigned number)
{
  static char texts[4][96];
  static unsigned next;
  char* text = texts[next++ % 4];
  const Thread& thread = threads[number];
  const Triple b = thread.block->index, t = thread.index;
  snprintf(text, sizeof texts[0], "thread (%u, %u, %u) of block (%u, %u, %u)", t.x, t.y, t.z, b.x, b.y, b.z);
  return text;
}

// A line for each kind: its name, how often, the first in words, with tabs between.
extern "C" const char* simulator_findings()
{
  all.clear();
  for (const auto& [kind, finding] : findings)
    all += kind + "\t" + std::to_string(finding.times) + "\t" + finding.first + "\n";
  return all.c_str();
}

extern "C" void simulator_forget() { findings.clear(); }

}  // namespace simulator
