// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/under_channel.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <sstream>

#include "common/env_names.h"
#include "common/log.h"
#include "launcher/terminal_text.h"

namespace ddprun::launcher {

std::string under_channel_variable(const UnderChannel& child) {
  return concat(env::kUnderChannel, "=", child.serves, " ", child.stop_signal, " ", ::getpid());
}

std::optional<UnderChannel> under_channel(Environment& environment) {
  std::istringstream variable(find_variable(environment, env::kUnderChannel).value_or(""));
  environment.erase(env::kUnderChannel);
  UnderChannel result;
  pid_t parent = 0;
  if (!(variable >> result.serves >> result.stop_signal >> parent)) return std::nullopt;
  // Somebody else's: the variable was inherited from a ddprun further up.
  if (parent != ::getppid()) return std::nullopt;
  if (::fcntl(UnderChannel::kFd, F_SETFD, FD_CLOEXEC) != 0) return std::nullopt;
  ::prctl(PR_SET_PDEATHSIG, result.stop_signal);
  if (::getppid() != parent) ::raise(result.stop_signal);  // it went before
  return result;
}

void UnderChannel::watch() { ::prctl(PR_SET_PDEATHSIG, 0); }

void UnderChannel::say(const channel::Message& message) {
  write_within(kFd, channel::encode(message), kLastLinesPatience);
}

}  // namespace ddprun::launcher
