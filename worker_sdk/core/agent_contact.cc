// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/agent_contact.h"

#include <utility>

#include "common/error.h"
#include "common/log.h"

namespace ddprun {
namespace {

constexpr std::chrono::milliseconds kTimeout{5'000};
constexpr std::chrono::milliseconds kRetryInterval{2'000};

}  // namespace

AgentContact::AgentContact(const WorkerEnv& env, WorkerProgress& progress)
    : env_(env), progress_(progress), recorder_(env, progress) {
  if (env_.agent_socket.empty()) return;
  try {
    if (join(Deadline::after(kTimeout))) return;
    log_warning("rank ", env_.rank, ": no progress is reported: the agent does not answer");
  } catch (const Error& error) {
    log_warning("rank ", env_.rank, ": no progress is reported: ", error.what());
    if (std::exchange(greeted_, nullptr)) return;  // refused
  }
  next_try_ = Clock::now() + kRetryInterval;
  progress_.on_begin([this] { return try_again(); });
}

AgentContact::~AgentContact() { progress_.on_begin(nullptr); }

// False: no answer yet. Throws AgentChannel's errors, greeted_ is set where it is a refusal.
bool AgentContact::join(Deadline deadline) {
  if (!greeted_) {
    greeted_ = std::make_unique<AgentChannel>(env_.agent_socket, env_.round, env_.local_rank);
  }
  if (!greeted_->await_welcome(deadline)) return false;
  progress_.move_to(greeted_->page());
  agent_ = std::move(greeted_);
  recorder_.serve(agent_);
  progress_.on_first_step([agent = agent_](std::uint64_t step) { agent->first_step(step); });
  return true;
}

// Never waits. False: no more.
bool AgentContact::try_again() {
  if (Clock::now() < next_try_) return true;
  next_try_ = Clock::now() + kRetryInterval;
  try {
    return !join(Deadline::after(std::chrono::milliseconds(0)));
  } catch (const Error&) {
    return std::exchange(greeted_, nullptr) == nullptr;
  }
}

bool AgentContact::exclude_node(std::string_view reason) {
  return agent_ && agent_->exclude_node(reason);
}

bool AgentContact::offer_recovery() { return agent_ && agent_->offers_recovery(); }

bool AgentContact::stop_job(std::string_view reason, int exit_code) {
  return agent_ && agent_->stop_job(reason, exit_code);
}

}  // namespace ddprun
