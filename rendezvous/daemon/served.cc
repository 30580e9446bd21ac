// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/served.h"

#include <optional>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "common/secret.h"
#include "common/socket.h"
#include "rendezvous/security/tls.h"

namespace ddprun::rendezvous {
namespace {

PortSecurity port_security_of(const DaemonFlags& flags) {
  PortSecurity security;
  if (!flags.token_file.empty())
    security.token = Secret::from_flag("--token-file", flags.token_file);
  if (flags.tls.any()) security.tls = security::make_server_context(flags.tls);
  return security;
}

DaemonOptions options_of(const DaemonFlags& flags) {
  DaemonOptions options;
  options.has_gangs = true;
  options.keep_finished = flags.keep_finished;
  options.reconnect_grace = flags.reconnect_grace;
  options.watch_output = flags.watch_output;
  options.job_limits = flags.job_limits;
  options.limits = flags.limits;
  PortSecurity security = port_security_of(flags);
  options.token = std::move(security.token);
  options.tls = std::move(security.tls);
  return options;
}

ha::LeadershipOptions leadership_of(const DaemonFlags& flags, std::uint16_t port) {
  ha::LeadershipOptions leadership;
  leadership.etcd.endpoints = flags.ha->endpoints;
  if (flags.ha_tls.any()) leadership.etcd.tls = security::make_client_context(flags.ha_tls);
  leadership.prefix = flags.ha->prefix;
  leadership.lease = flags.ha_lease;
  leadership.name = flags.ha_name;
  if (leadership.name.empty()) leadership.name = to_string(Endpoint{host_name(), port});
  return leadership;
}

}  // namespace

Served::Served(boost::asio::io_context& io, const DaemonFlags& flags,
               std::vector<UniqueFd> listeners)
    : flags_(flags) {
  auto options = options_of(flags);
  if (flags.ha) {
    auto own = bound(std::move(listeners));
    auto leadership = leadership_of(flags, addresses_.front().port());
    candidate_ =
        std::make_unique<Candidate>(io, std::move(own), std::move(options), std::move(leadership));
    return;
  }
  std::optional<KeptJobs> kept;
  if (flags.state_directory) kept.emplace(*flags.state_directory, flags.durability);
  daemon_ = std::make_unique<Daemon>(io, bound(std::move(listeners)), std::move(options),
                                     std::move(kept));
}

std::vector<UniqueFd> Served::bound(std::vector<UniqueFd> listeners) {
  if (listeners.empty()) {
    listeners = flags_.listen.host.empty() ? bind_everywhere(flags_.listen.port)
                                           : bind_endpoint(flags_.listen);
  }
  for (const UniqueFd& listener : listeners) addresses_.push_back(local_address(listener.get()));
  return listeners;
}

const Daemon& Served::daemon() const { return candidate_ ? candidate_->daemon() : *daemon_; }

bool Served::reload() {
  // etcd's client keeps what it began with.
  if (flags_.token_file.empty() && !flags_.tls.any()) return false;
  PortSecurity security = port_security_of(flags_);
  if (candidate_) {
    candidate_->set_security(std::move(security));
  } else {
    daemon_->set_security(std::move(security));
  }
  return true;
}

}  // namespace ddprun::rendezvous
