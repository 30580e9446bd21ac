// SPDX-License-Identifier: Apache-2.0
#include "agent/kept_workers.h"

#include <sys/types.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "agent/agent_socket.h"
#include "common/text.h"

namespace ddprun::agent {

namespace event = membership::agent_event;

KeptWorkers::KeptWorkers(WorkerTalk& talk, const RoundWorkers& workers, NodeReporter& reporter,
                         Say say)
    : talk_(talk), workers_(workers), reporter_(reporter), say_(std::move(say)) {}

void KeptWorkers::begin() {
  failure_.reset();
  state_ = State::kAsking;
  talk_.read_pending();
  look();
}

// A worker that has not offered recovery will never ask for it: most programs don't know of it.
void KeptWorkers::look() {
  if (state_ != State::kAsking) return;
  const AgentSocket* socket = talk_.socket();
  if (socket == nullptr) return give_up("they have no socket to ask on");
  if (workers_.are_asked_to_leave()) return give_up("they are asked to leave");
  if (workers_.any_ended_well()) return give_up("one has finished");
  const std::vector<pid_t> pids = workers_.pids();
  int count = 0, num_asking = 0;
  for (std::size_t i = 0; i < pids.size(); ++i) {
    if (pids[i] == 0) continue;
    const int local_rank = static_cast<int>(i);
    if (!socket->offers_recovery(local_rank)) {
      return give_up(concat("rank ", talk_.ranks().of(local_rank), " (pid ", pids[i],
                            ") has not offered it (Session::offer_recovery)"));
    }
    ++count;
    num_asking += socket->asks_to_recover(local_rank) ? 1 : 0;
  }
  if (count == 0) return give_up("none is left on this node");
  talk_.pages().tell_peer_lost();  // NCCL reports a lost peer only to some workers, or to none
  if (num_asking < count) return;  // this function is called again for the next one that asks
  state_ = State::kWaiting;
  reporter_.workers_gone();
  say_(event::WorkersKept{talk_.round(), count, talk_.pages().last_step()});
}

void KeptWorkers::give_up(const std::string& why) {
  if (state_ != State::kAsking) return;
  state_ = State::kNone;
  say_(event::WorkersNotKept{talk_.round(), why});
}

void KeptWorkers::stop() { state_ = State::kNone; }

void KeptWorkers::failed(const membership::WorkerFailure& failure) {
  if (state_ == State::kWaiting) failure_ = failure;
}

std::optional<membership::WorkerFailure> KeptWorkers::go_on() {
  state_ = State::kNone;
  return std::exchange(failure_, std::nullopt);
}

}  // namespace ddprun::agent
