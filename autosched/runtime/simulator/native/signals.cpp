// A kernel that reads what is not there, divides by zero or does not end is broken off, and the process goes on.
//
// Checked kernels are looked after before they touch anything; this is for the others. The handlers are there while a
// launch runs, on the thread that runs it.
#include "runtime.h"
#include <csignal>
#include <pthread.h>
#include <sys/time.h>
#include <ucontext.h>

namespace simulator {

namespace {

constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGVTALRM};
constexpr int N_SIGNALS = sizeof SIGNALS / sizeof *SIGNALS;
struct sigaction before[N_SIGNALS];
stack_t stack_before;
unsigned char stack[64 << 10];
pthread_t runner;
unsigned limit;

const void* place(const void* context)  // behind the instruction, as of a call
{
  const mcontext_t& machine = ((const ucontext_t*)context)->uc_mcontext;
#if defined(__x86_64__)
  return (const char*)machine.gregs[REG_RIP] + 1;
#else
  return (const char*)machine.pc + 1;
#endif
}

void handle(int signal, siginfo_t* info, void* context)
{
  if (!pthread_equal(pthread_self(), runner)) {
    if (signal == SIGVTALRM) pthread_kill(runner, signal);
    else raise(SIGABRT);
    return;
  }
  me().site = place(context);
  if (signal == SIGVTALRM) stop("endless", "%s has not ended after %u seconds of the processor", where(current), limit);
  if (signal == SIGSEGV || signal == SIGBUS) stop("outside", "%s touches %s", where(current), place_of(info->si_addr));
  stop("trap", "%s does what the processor refuses, as a division by zero", where(current));
}

}  // namespace

// The alarm comes after so many seconds of the processor; 0: never.
void begin_signals(unsigned seconds)
{
  runner = pthread_self();
  limit = seconds;
  stack_t own = {};
  own.ss_sp = stack;
  own.ss_size = sizeof stack;
  sigaltstack(&own, &stack_before);
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int n = 0; n < N_SIGNALS; ++n) sigaction(SIGNALS[n], &action, &before[n]);
  const itimerval alarm = {{0, 0}, {time_t(seconds), 0}};
  setitimer(ITIMER_VIRTUAL, &alarm, nullptr);
}

void end_signals()
{
  const itimerval none = {};
  setitimer(ITIMER_VIRTUAL, &none, nullptr);
  for (int n = 0; n < N_SIGNALS; ++n) sigaction(SIGNALS[n], &before[n], nullptr);
  sigaltstack(&stack_before, nullptr);
}

}  // namespace simulator
