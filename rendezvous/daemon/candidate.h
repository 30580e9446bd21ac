// SPDX-License-Identifier: Apache-2.0
// A daemon that is one of several: it leads or stands by as the lease in etcd says (docs/ha.md). io
// thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "rendezvous/daemon/daemon.h"
#include "rendezvous/ha/leadership.h"

namespace ddprun::rendezvous {

class Candidate {
 public:
  // As Daemon's; asks for the leadership at once.
  Candidate(boost::asio::io_context& io, std::vector<UniqueFd> listeners, DaemonOptions options,
            ha::LeadershipOptions leadership);
  // Closes every connection, then gives the leadership up: another one may lead at once.
  ~Candidate();
  Candidate(const Candidate&) = delete;
  Candidate& operator=(const Candidate&) = delete;

  const Daemon& daemon() const { return *daemon_; }
  void set_security(PortSecurity security) { daemon_->set_security(std::move(security)); }

 private:
  void lead(ha::Term term);
  void stand_by(const std::string& leader);

  const std::string name_;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<ha::Leadership> leadership_;
};

}  // namespace ddprun::rendezvous
