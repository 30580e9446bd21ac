// SPDX-License-Identifier: Apache-2.0
// The command line of ddprun-agent, with what ddprun.toml adds to it, and its manual page.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/endpoint.h"
#include "common/environment.h"
#include "rendezvous/security/tls.h"

namespace ddprun::launcher {

struct StandingOptions {
  std::vector<Endpoint> endpoints;  // at least one
  std::string endpoint_text;        // the same, as it was given
  std::string token_file;           // empty: none
  security::TlsFiles tls;
  int slots = 1;
  std::string node;                                      // the node's name
  std::string directory;                                 // where output goes; absolute
  std::optional<std::chrono::milliseconds> keep_output;  // after a gang's end; nullopt: for ever
  std::optional<Endpoint> metrics;  // where GET /metrics is served; nullopt: nowhere
  bool verbose = false;
};

struct StandingCommandLine {
  std::optional<StandingOptions> options;  // nullopt: all is printed; end with `exit_status`
  int exit_status = 0;
};

StandingCommandLine parse_standing_command_line(int argc, char** argv,
                                                const Environment& environment);

}  // namespace ddprun::launcher
