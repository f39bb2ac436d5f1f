// What is wrong with a kernel, in words: for each kind how often, and the first time in full.
#include "runtime.h"
#include <cstdarg>
#include <dlfcn.h>
#include <cstdio>
#include <map>
#include <string>

namespace simulator {

void end_launch();

namespace {

struct Finding { uint64_t times = 0; std::string first; uint64_t place = 0; };
std::map<std::string, Finding> findings;
std::string all;

// Bytes from the beginning of the kernels' object, 0 where nothing is known.
uint64_t place_in_program()
{
  Dl_info object;
  const void* const site = me().site;
  return site && dladdr(site, &object) ? (const char*)site - (const char*)object.dli_fbase : 0;
}

void add(const char* kind, const char* format, va_list facts)
{
  Finding& finding = findings[kind];
  if (finding.times++) return;
  char text[512];
  vsnprintf(text, sizeof text, format, facts);
  finding.first = text;
  finding.place = place_in_program();
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
  end_launch();
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

// A line for each kind: its name, how often, where in the program, the first in words; tabs between.
extern "C" const char* simulator_findings()
{
  all.clear();
  for (const auto& [kind, finding] : findings)
    all += kind + "\t" + std::to_string(finding.times) + "\t" + std::to_string(finding.place) + "\t" +
           finding.first + "\n";
  return all.c_str();
}

extern "C" void simulator_forget() { findings.clear(); }

}  // namespace simulator
