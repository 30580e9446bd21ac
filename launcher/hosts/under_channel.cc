// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/under_channel.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <charconv>

#include "common/env_names.h"
#include "common/log.h"
#include "launcher/terminal_text.h"

namespace ddprun::launcher {
namespace {

constexpr int kMostListeners = 64;

// "WORDS:LISTENERS:SIGNAL:PARENT".
bool parse(const std::string& text, int (&numbers)[4]) {
  const char* at = text.data();
  const char* end = at + text.size();
  for (int& number : numbers) {
    const auto [stop, error] = std::from_chars(at, end, number);
    if (error != std::errc() || number < 0) return false;
    at = stop != end ? stop + 1 : stop;
  }
  return at == end;
}

}  // namespace

std::string under_channel_variable(int words_fd, int num_listeners, int stop_signal) {
  return concat(env::kUnderChannel, "=", words_fd, ":", num_listeners, ":", stop_signal, ":",
                ::getpid());
}

std::optional<UnderChannel> under_channel(Environment& environment) {
  const auto variable = find_variable(environment, env::kUnderChannel);
  environment.erase(env::kUnderChannel);
  int numbers[4] = {};
  if (!variable || !parse(*variable, numbers)) return std::nullopt;
  const auto [words, num_listeners, stop_signal, parent] = numbers;
  // Somebody else's: the variable was inherited from a ddprun further up.
  if (parent != ::getppid() || num_listeners > kMostListeners) return std::nullopt;
  UnderChannel result;
  result.words_fd = words;
  result.lifeline_fd = words + 1;
  result.stop_signal = stop_signal;
  for (int i = 0; i < num_listeners; ++i) result.listener_fds.push_back(words + 2 + i);
  for (int fd = words; fd <= words + 1 + num_listeners; ++fd) {
    if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) return std::nullopt;
  }
  ::prctl(PR_SET_PDEATHSIG, stop_signal);
  if (::getppid() != parent) ::raise(stop_signal);  // it went before
  return result;
}

void UnderChannel::watch_lifeline() const { ::prctl(PR_SET_PDEATHSIG, 0); }

void UnderChannel::want_input() const { write_within(words_fd, "I", kLastLinesPatience); }

void UnderChannel::say_last_words(bool by_job, const std::string& report) const {
  write_within(words_fd, (by_job ? "J" : "N") + report, kLastLinesPatience);
}

}  // namespace ddprun::launcher
