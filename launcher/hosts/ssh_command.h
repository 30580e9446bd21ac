// SPDX-License-Identifier: Apache-2.0
// The command that starts ddprun's agent on another host, and what it means when that fails. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/exit_codes.h"

namespace ddprun::launcher {

// How ddprun is asked to be the agent of a launcher elsewhere (channel_agent.h).
inline constexpr char kFromChannel[] = "--from-channel";

// The user's `ssh` words, options that keep ssh from asking and from forwarding, the host, and
// `program` as the agent. Where a word has "{host}" (`docker exec -i {host}`) nothing is added: the
// host takes its place, and the program and its argument follow as words.
std::vector<std::string> agent_command(const std::vector<std::string>& ssh, const std::string& host,
                                       const std::string& program);

// A command of agent_command() that ended before its agent answered.
struct CommandFailure {
  ExitCode code = ExitCode::kRetryable;  // kUsage: trying again doesn't help
  std::string text;                      // one line, without the host
};
// `said`: the end of what it wrote to stderr, else to stdout.
CommandFailure command_failure(int wait_status, const std::string& said,
                               const std::vector<std::string>& ssh, const std::string& program);

}  // namespace ddprun::launcher
