// SPDX-License-Identifier: Apache-2.0
// What a ddprund serves by its flags: a Daemon alone, or as one of several. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>
#include <vector>

#include "common/socket.h"
#include "common/unique_fd.h"
#include "rendezvous/daemon/candidate.h"
#include "rendezvous/daemon/command_line.h"
#include "rendezvous/daemon/daemon.h"

namespace ddprun::rendezvous {

class Served {
 public:
  // On `listeners`; none: on its own, by --listen. Throws Error: a file, a directory or the port
  // can't be used.
  Served(boost::asio::io_context& io, const DaemonFlags& flags, std::vector<UniqueFd> listeners);

  // Reads the files of --token-file and --tls-… again, for connections from now on; false: there
  // are none. Throws Error: one of them can't be used; nothing is changed then.
  bool reload();

  const std::vector<SocketAddress>& addresses() const { return addresses_; }
  bool leads() const { return daemon().leads(); }
  std::vector<std::string> live_jobs() const { return daemon().live_jobs(); }
  // Why they are not kept now; empty: they are, or need not be.
  std::string journal_trouble() const { return daemon().journal_trouble(); }
  // Another one goes on with them when this one ends.
  bool has_others() const { return candidate_ != nullptr; }

 private:
  std::vector<UniqueFd> bound(std::vector<UniqueFd> listeners);
  const Daemon& daemon() const;

  const DaemonFlags flags_;
  std::vector<SocketAddress> addresses_;
  // One of them.
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<Candidate> candidate_;
};

}  // namespace ddprun::rendezvous
