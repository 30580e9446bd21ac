// SPDX-License-Identifier: Apache-2.0
// ddprunctl: the operator's tool.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/standard_streams.h"
#include "ctl/emulate_command.h"

namespace {

using namespace ddprun;

int fail(const std::string& message, ExitCode code = ExitCode::kUsage) {
  std::fprintf(stderr, "ddprunctl: %s\n", one_line(message).c_str());
  return static_cast<int>(code);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);
  CLI::App app("ddprunctl: looks at, and tries, ddprun's rendezvous (see docs/emulate.md)",
               "ddprunctl");
  app.set_version_flag("--version", "ddprunctl " DDPRUN_VERSION);
  app.require_subcommand(1);
  ctl::EmulateCommand emulate(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    return fail(std::string(error.what()) + " (see ddprunctl --help)");
  }
  try {
    return static_cast<int>(emulate.run());  // the only one
  } catch (const Error& error) {
    return fail(error.what(), exit_code_for(error.code()));
  } catch (const std::exception& error) {
    return fail("internal error: " + std::string(error.what()), ExitCode::kInternal);
  }
}
