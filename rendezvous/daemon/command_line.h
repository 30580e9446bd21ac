// SPDX-License-Identifier: Apache-2.0
// ddprund's command line.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "common/endpoint.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/ha/ha_url.h"
#include "rendezvous/journal/journal_file.h"
#include "rendezvous/security/tls.h"

namespace ddprun::rendezvous {

struct DaemonFlags {
  Endpoint listen;  // host empty: all interfaces
  std::string token_file, scrape_token_file;
  bool is_insecure = false;  // beyond loopback without a token and TLS
  std::optional<std::string> state_directory;
  journal::Durability durability = journal::Durability::kProcess;
  DaemonOptions daemon;  // but for its token and its TLS
  security::TlsFiles tls;
  // One of several (--ha): nullopt: alone.
  std::optional<ha::HaUrl> ha;
  std::chrono::seconds ha_lease{0};
  std::string ha_name;        // empty: this host's name and the port
  security::TlsFiles ha_tls;  // towards etcd
  bool verbose = false;
};

struct CommandLine {
  std::optional<DaemonFlags> flags;  // nullopt: all is done, be it help or a bad flag
  int exit_status = 0;               // then
};

// Prints what is asked for (--help, --version, --print-man), or one line that says what is wrong.
CommandLine parse_command_line(int argc, char** argv);

}  // namespace ddprun::rendezvous
