// SPDX-License-Identifier: Apache-2.0
#include "common/signal_names.h"

#include <strings.h>

#include <csignal>
#include <utility>

#include "common/parsed_number.h"

namespace ddprun {
namespace {

// Works as sigabbrev_np(3), which glibc has since 2.32. Null: the signal has no name.
const char* short_name(int signal_number) {
  static constexpr std::pair<int, const char*> kNames[] = {
      {SIGHUP, "HUP"},   {SIGINT, "INT"},       {SIGQUIT, "QUIT"}, {SIGILL, "ILL"},
      {SIGTRAP, "TRAP"}, {SIGABRT, "ABRT"},     {SIGBUS, "BUS"},   {SIGFPE, "FPE"},
      {SIGKILL, "KILL"}, {SIGUSR1, "USR1"},     {SIGSEGV, "SEGV"}, {SIGUSR2, "USR2"},
      {SIGPIPE, "PIPE"}, {SIGALRM, "ALRM"},     {SIGTERM, "TERM"}, {SIGSTKFLT, "STKFLT"},
      {SIGCHLD, "CHLD"}, {SIGCONT, "CONT"},     {SIGSTOP, "STOP"}, {SIGTSTP, "TSTP"},
      {SIGTTIN, "TTIN"}, {SIGTTOU, "TTOU"},     {SIGURG, "URG"},   {SIGXCPU, "XCPU"},
      {SIGXFSZ, "XFSZ"}, {SIGVTALRM, "VTALRM"}, {SIGPROF, "PROF"}, {SIGWINCH, "WINCH"},
      {SIGIO, "POLL"},   {SIGPWR, "PWR"},       {SIGSYS, "SYS"}};
  for (const auto& [number, name] : kNames) {
    if (number == signal_number) return name;
  }
  return nullptr;
}

}  // namespace

std::string signal_name(int signal_number) {
  if (const char* name = short_name(signal_number)) return std::string("SIG") + name;
  return "signal " + std::to_string(signal_number);
}

std::optional<int> parse_signal(std::string_view text) {
  if (const auto number = parsed_number<int>(text)) {
    return *number > 0 && *number < NSIG ? number : std::nullopt;
  }
  std::string name(text);
  if (strncasecmp(name.c_str(), "SIG", 3) == 0) name.erase(0, 3);
  for (int number = 1; number < NSIG; ++number) {
    const char* candidate = short_name(number);
    if (candidate && strcasecmp(candidate, name.c_str()) == 0) return number;
  }
  return std::nullopt;
}

bool is_ignored(int signal_number) {
  struct sigaction now {};
  return ::sigaction(signal_number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace ddprun
