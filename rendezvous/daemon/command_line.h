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
  Endpoint listen;  // empty host: all interfaces
  std::string token_file, scrape_token_file;
  bool is_insecure = false;  // serves beyond loopback without token and TLS
  std::optional<std::string> state_directory;
  journal::Durability durability = journal::Durability::kProcess;
  DaemonOptions daemon;  // without token and TLS
  security::TlsFiles tls;
  // --ha: one of several ddprunds; nullopt: alone.
  std::optional<ha::HaUrl> ha;
  std::chrono::seconds ha_lease{0};
  std::string ha_name;        // empty: this host's name and the port
  security::TlsFiles ha_tls;  // for connections to etcd
  bool verbose = false;
};

struct CommandLine {
  std::optional<DaemonFlags> flags;  // nullopt: the program ends (help, or a bad flag)
  int exit_status = 0;               // set if flags is nullopt
};

// Parses the flags. Prints the text of --help, --version or --print-man, or one line about an
// error.
CommandLine parse_command_line(int argc, char** argv);

}  // namespace ddprun::rendezvous
