// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/ssh_command.h"

#include <sys/wait.h>

#include <algorithm>
#include <array>

#include "common/log.h"
#include "common/shell_words.h"
#include "common/signal_names.h"

namespace ddprun::launcher {
namespace {

constexpr std::string_view kHostPlace = "{host}";

// BatchMode: never asks. A line that is dead is noticed after a minute. A forwarding of the user's
// configuration can be had once, not 64 times.
constexpr char kOptions[] =
    "-T -o BatchMode=yes -o ServerAliveInterval=15 -o ServerAliveCountMax=4 "
    "-o ClearAllForwardings=yes --";

// ssh's own words about what another try won't change.
constexpr std::array<std::string_view, 7> kLasting = {"Permission denied",
                                                      "Host key verification failed",
                                                      "Bad configuration option",
                                                      "Bad owner or permissions",
                                                      "Too many authentication failures",
                                                      "no matching",
                                                      "unknown option"};

// The last line that says something.
std::string last_line(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  constexpr std::size_t kMostBytes = 300;
  const std::size_t end = text.find_last_not_of(kBlank);
  if (end == std::string_view::npos) return {};
  text = text.substr(0, end + 1);
  const std::size_t begin = text.find_last_of("\r\n");
  if (begin != std::string_view::npos) text.remove_prefix(begin + 1);
  return one_line(text.substr(0, kMostBytes));
}

}  // namespace

std::vector<std::string> agent_command(const std::vector<std::string>& ssh, const std::string& host,
                                       const std::string& program) {
  std::vector<std::string> argv = ssh;
  bool has_place = false;
  for (std::string& word : argv) {
    for (std::size_t at = 0; (at = word.find(kHostPlace, at)) != std::string::npos;) {
      has_place = true;
      word.replace(at, kHostPlace.size(), host);
      at += host.size();
    }
  }
  if (has_place) {
    argv.insert(argv.end(), {program, kFromChannel});
  } else {
    const auto options = split_words(kOptions);
    argv.insert(argv.end(), options->begin(), options->end());
    argv.insert(argv.end(), {host, shell_quoted(program) + " " + kFromChannel});
  }
  return argv;
}

CommandFailure command_failure(int wait_status, const std::string& said,
                               const std::vector<std::string>& ssh, const std::string& program) {
  constexpr int kTransport = 255;
  CommandFailure failure;
  const std::string name = ssh.front().substr(ssh.front().rfind('/') + 1);
  const std::string words = last_line(said);
  const std::string quoted = words.empty() ? "" : ": " + words;
  if (WIFSIGNALED(wait_status)) {
    failure.text = name + " was ended by " + signal_name(WTERMSIG(wait_status)) + quoted;
    return failure;
  }
  const int code = WEXITSTATUS(wait_status);
  failure.text = name + " ended with " + std::to_string(code) + quoted;
  if (code == kTransport) {
    const bool lasts = std::any_of(kLasting.begin(), kLasting.end(), [&](std::string_view text) {
      return said.find(text) != std::string::npos;
    });
    if (lasts) failure.code = ExitCode::kUsage;
    return failure;
  }
  failure.code = ExitCode::kUsage;
  if (code == 0) {
    failure.text += "; does it hand on standard input, as `docker exec -i` does?";
  } else if (code == kExitNotFound || code == kExitNotExecutable) {
    failure.text =
        "no ddprun at " + program + " there" + quoted + "; where is it? (--remote-ddprun=PATH)";
  } else if (said.find(kFromChannel) != std::string::npos) {
    failure.text = program + " there is another version of ddprun" + quoted;
  }
  return failure;
}

}  // namespace ddprun::launcher
