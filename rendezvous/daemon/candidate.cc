// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/candidate.h"

#include <utility>

#include "common/log.h"

namespace ddprun::rendezvous {

Candidate::Candidate(boost::asio::io_context& io, std::vector<UniqueFd> listeners,
                     DaemonOptions options, ha::LeadershipOptions leadership)
    : name_(leadership.name) {
  options.stands_by = true;
  daemon_ = std::make_unique<Daemon>(io, std::move(listeners), std::move(options));
  ha::Leadership::Handlers handlers;
  handlers.leads = [this](ha::Term term) { lead(std::move(term)); };
  handlers.over = [this](const std::string& why) {
    log_warning("leads no more: ", why, "; its agents look for the next leader");
    daemon_->stand_by("");
  };
  handlers.stands_by = [this](const std::string& leader) { stand_by(leader); };
  leadership_ = std::make_unique<ha::Leadership>(io, std::move(leadership), std::move(handlers));
}

Candidate::~Candidate() {
  daemon_.reset();
  leadership_.reset();
}

void Candidate::lead(ha::Term term) {
  log_info("leads, epoch ", term.epoch);
  const auto deposed = [this, epoch = term.epoch](const std::string& why) {
    leadership_->resign(epoch, why);
  };
  daemon_->lead({std::move(term.writer), std::move(term.content), deposed});
}

void Candidate::stand_by(const std::string& leader) {
  daemon_->stand_by(leader == name_ ? "" : leader);
  log_info("stands by: ", leader, leader == name_ ? ", this one a moment ago, led" : " leads");
}

}  // namespace ddprun::rendezvous
