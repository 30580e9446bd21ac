// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/setup_steps.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "worker_sdk/core/nccl/comm_end.h"

namespace ddprun::nccl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{10};  // how often the agent's word and the parent's failure are seen

std::atomic<int> num_left_behind{0};

std::string begin_of_message(const SetUp& setup) {
  return "rank " + std::to_string(setup.options.rank) + ": " + setup.what;
}

// Nobody, where the store is slow: the set-up is not the store's.
std::optional<PeerNotice> who_gave_up(const SetUp& setup) {
  try {
    if (auto notice = setup.board.gave_up()) return notice;
    return setup.parent_board != nullptr ? setup.parent_board->gave_up() : std::nullopt;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw;
    return std::nullopt;
  }
}

// Throws what ends the wait, if anything does. `looks_at_store`: what another rank said, too.
void throw_if_over(const SetUp& setup, bool looks_at_store) {
  const NcclOptions& options = setup.options;
  if (setup.failure != nullptr) {
    if (const auto error = setup.failure->get()) throw Error(*error);
  }
  if (options.progress && options.progress->peer_lost()) {
    throw agent_says_peer_lost(options.rank, setup.what);
  }
  if (setup.deadline.expired()) throw timed_out(setup);
  if (!looks_at_store) return;
  if (const auto notice = who_gave_up(setup)) {
    throw Error(ErrorCode::kPeerLost, begin_of_message(setup) + ": rank " +
                                          std::to_string(notice->rank) +
                                          " gave up: " + notice->reason);
  }
}

}  // namespace

struct CommMaking::State {
  // The call's until it has returned.
  Comm comm = nullptr;
  Result result = Result::kInternalError;
  // Set by the call's end and by the end of the wait for it: the second of them aborts what was
  // made.
  std::atomic<bool> is_one_gone{false};
};

CommMaking::CommMaking(const Libraries& libraries, const NcclOptions& options, std::string name,
                       Make make)
    : nccl_(libraries.nccl),
      options_(options),
      name_(std::move(name)),
      state_(std::make_shared<State>()),
      call_([libraries, device = options.device, state = state_, make = std::move(make)] {
        libraries.cuda->set_device(device);
        state->result = make(*libraries.nccl, &state->comm);
        if (!state->is_one_gone.exchange(true)) return;
        if (state->result == Result::kSuccess) libraries.nccl->comm_abort(state->comm);
        --num_left_behind;
      }) {}

CommMaking::~CommMaking() {
  if (is_taken_) return;
  ++num_left_behind;
  if (!state_->is_one_gone.exchange(true)) return;
  --num_left_behind;
  if (state_->result == Result::kSuccess) {
    abort_comm(nccl_, state_->comm, options_, Deadline::after(options_.abort_timeout));
  }
}

bool CommMaking::is_any_left_behind() { return num_left_behind > 0; }

Comm CommMaking::wait(const SetUp& setup) {
  auto next_look = Deadline::after(options_.peer_check_interval);
  while (!call_.returns_before(Deadline(std::min(setup.deadline.at(), Clock::now() + kLook)))) {
    const bool is_time = next_look.expired();
    throw_if_over(setup, is_time);
    if (is_time) next_look = Deadline::after(options_.peer_check_interval);
  }
  if (state_->result != Result::kSuccess) {
    throw_if_over(setup, false);  // may be why NCCL failed
    throw nccl_error(*nccl_, nullptr, state_->result, options_.rank, name_);
  }
  is_taken_ = true;
  return state_->comm;
}

void tell_others(PeerBoard& board, const Error& error) {
  if (error.code() == ErrorCode::kConnectionLost) return;
  try {
    board.post_gave_up(error.what());
  } catch (const Error&) {
    // The store is gone as well: the first error is the one that helps.
  }
}

Error timed_out(const SetUp& setup) {
  std::string message = begin_of_message(setup) + " of " + std::to_string(setup.options.size) +
                        " ranks did not end within " + std::to_string(setup.timeout.count()) +
                        " ms";
  std::vector<int> missing;
  try {
    missing = setup.board.not_waiting(0);
  } catch (const Error& error) {
    return {ErrorCode::kTimeout, message + "; the store can't say who is missing: " + error.what()};
  }
  message += missing.empty() ? "; all ranks came, so look at the network between the nodes "
                               "(NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME)"
                             : "; never came: rank " + list_ranks(missing);
  return {ErrorCode::kTimeout, message};
}

}  // namespace ddprun::nccl
