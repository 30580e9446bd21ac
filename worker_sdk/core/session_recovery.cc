// SPDX-License-Identifier: Apache-2.0
// The part of Session about recovery in place (docs/inplace.md).
#include <cstdlib>
#include <map>
#include <utility>

#include "common/env_names.h"
#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/core/agent_channel.h"
#include "worker_sdk/core/agent_contact.h"
#include "worker_sdk/core/nccl/setup_steps.h"
#include "worker_sdk/core/session.h"

namespace ddprun {
namespace {

// More than the agents wait for their workers, and the rendezvous for the agents.
constexpr std::chrono::seconds kRecoveryTimeout{30};

[[noreturn]] void give_up(ErrorCode code, const std::string& why) {
  throw Error(code, "can't go on in place: " + why +
                        "; this process must exit with a failure, to be started again");
}

}  // namespace

bool Session::offer_recovery() {
  offers_recovery_ = env_.recovers_in_place && options_ && agent_->offer_recovery();
  return offers_recovery_;
}

std::unique_ptr<Session> Session::recover(Communicator* failed) {
  if (!may_recover()) {
    give_up(ErrorCode::kUnsupported, "Session::offer_recovery was not taken");
  }
  if (nccl::CommMaking::is_any_left_behind()) {
    give_up(ErrorCode::kUnsupported, "NCCL has not come back from making a communicator");
  }
  if (failed) failed->abort("it leaves the round to go on in the next one");
  WorkerEnv env;
  try {
    const Deadline deadline = Deadline::after(kRecoveryTimeout);
    AgentChannel agent(env_.agent_socket, static_cast<std::uint64_t>(env_.round), env_.local_rank,
                       deadline);
    std::map<std::string, std::string> place;
    for (const std::string& variable : agent.ask_to_recover(deadline)) {
      const std::size_t equals = variable.find('=');
      if (equals != std::string::npos) {
        place[variable.substr(0, equals)] = variable.substr(equals + 1);
      }
    }
    env = WorkerEnv::from_environment([&](const char* name) -> const char* {
      const auto found = place.find(name);
      return found != place.end() ? found->second.c_str() : std::getenv(name);
    });
  } catch (const Error& error) {
    give_up(error.code(), error.what());
  }
  if (env.round <= env_.round) give_up(ErrorCode::kProtocol, "the agent gave the same round again");
  env.device = env_.device;
  std::unique_ptr<Session> next = connect(std::move(env), *options_);
  next->libraries_ = libraries_;
  if (!next->offer_recovery()) {
    log_warning("rank ", next->rank(), ": the agent took no further offer to go on in place");
  }
  return next;
}

}  // namespace ddprun
