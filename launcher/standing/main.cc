// SPDX-License-Identifier: Apache-2.0
// ddprun-agent: a node's standing agent.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "common/ending.h"
#include "common/environment.h"
#include "common/exit_codes.h"
#include "common/journal_prefix.h"
#include "common/log.h"
#include "common/service_manager.h"
#include "common/standard_streams.h"
#include "launcher/standing/standing_agent.h"
#include "launcher/standing/standing_options.h"
#include "launcher/terminal_text.h"
#include "rendezvous/security/tls.h"

namespace {

using namespace ddprun;

// A line on stderr. A reader that stands still loses lines; it doesn't hold up the agent, whose
// jobs end with it.
void say_line(LogLevel level, std::string_view message) {
  launcher::write_within(STDERR_FILENO,
                         concat(journal_prefix(level), "ddprun-agent: ", one_line(message), "\n"),
                         std::chrono::milliseconds(100));
}

int fail_with(const std::string& message, ExitCode code) {
  say_line(LogLevel::kError, message);
  return static_cast<int>(code);
}

}  // namespace

int main(int argc, char** argv) {
  security::wipe_what_is_freed();
  open_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a limit of file sizes is an error of the write, with its words
  set_log_sink(say_line);
  try {
    ServiceManager manager = ServiceManager::take_from_environment();
    Environment environment = current_environment();
    auto asked = launcher::parse_standing_command_line(argc, argv, environment);
    if (!asked.options) return asked.exit_status;
    set_log_level(asked.options->verbose ? LogLevel::kDebug : LogLevel::kInfo);
    return std::make_unique<launcher::StandingAgent>(*std::move(asked.options),
                                                     std::move(environment), std::move(manager))
        ->run();
  } catch (const std::exception& error) {
    const Ending ending = ending_by(error);
    return fail_with(ending.text, ending.code);
  }
}
