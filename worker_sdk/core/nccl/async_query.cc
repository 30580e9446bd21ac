// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/async_query.h"

#include <condition_variable>
#include <mutex>
#include <utility>

#include "common/quiet_thread.h"

namespace ddprun::nccl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{10};
constexpr milliseconds kLastPatience{100};  // for a thread that is about to be idle
constexpr int kFewestLooks = 10;  // a process that was stopped has not given its threads the time

}  // namespace

struct AsyncQuery::State {
  const std::shared_ptr<NcclApi> nccl;
  const std::shared_ptr<CommGate> gate;
  const int rank;
  const std::string what;

  std::mutex mutex{};
  std::condition_variable changed{};
  bool is_asked = false;           // Guarded by mutex, as those below
  bool is_ending = false;          // the thread leaves when it is idle
  std::optional<Answer> answer{};  // to the last question

  Answer query() const {
    const CommGate::Pass pass(*gate);
    if (pass.comm() == nullptr) return {Result::kSuccess, std::nullopt};
    Result state = Result::kInProgress;
    const Result result = nccl->comm_async_error(pass.comm(), &state);
    if (result != Result::kSuccess) state = result;
    if (state == Result::kSuccess || state == Result::kInProgress) return {state, std::nullopt};
    return {state, nccl_error(*nccl, pass.comm(), state, rank, what)};
  }
};

AsyncQuery::AsyncQuery(std::shared_ptr<NcclApi> nccl, std::shared_ptr<CommGate> gate, int rank,
                       std::string what, milliseconds limit)
    : limit_(limit),
      state_(new State{std::move(nccl), std::move(gate), rank, std::move(what)}),
      thread_(start_quiet_thread("ddprun-nccl-ask", [state = state_] { serve(*state); })) {}

AsyncQuery::~AsyncQuery() {
  std::unique_lock lock(state_->mutex);
  state_->is_ending = true;
  state_->changed.notify_all();
  const auto last = Deadline::after(kLastPatience);
  const bool is_idle =
      state_->changed.wait_until(lock, last.at(), [this] { return !state_->is_asked; });
  lock.unlock();
  if (is_idle) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void AsyncQuery::serve(State& state) {
  std::unique_lock lock(state.mutex);
  for (;;) {
    state.changed.wait(lock, [&] { return state.is_asked || state.is_ending; });
    if (!state.is_asked) return;
    lock.unlock();
    Answer answer = state.query();
    lock.lock();
    state.answer.emplace(std::move(answer));
    state.is_asked = false;
    state.changed.notify_all();
  }
}

std::optional<AsyncQuery::Answer> AsyncQuery::ask() {
  std::unique_lock lock(state_->mutex);
  if (!state_->is_asked) {
    state_->is_asked = true;
    state_->changed.notify_all();
    begun_ = Clock::now();
    num_looks_ = 0;
  }
  ++num_looks_;
  const auto patience = Deadline::after(kPatience);
  if (state_->changed.wait_until(lock, patience.at(), [this] { return !state_->is_asked; })) {
    return state_->answer;
  }
  if (Clock::now() - begun_ < limit_ || num_looks_ < kFewestLooks) return std::nullopt;
  return Answer{
      Result::kInProgress,
      Error(ErrorCode::kSystem, "rank " + std::to_string(state_->rank) + ": " + state_->what +
                                    ": ncclCommGetAsyncError did not return within " +
                                    std::to_string(limit_.count()) + " ms: NCCL hangs")};
}

}  // namespace ddprun::nccl
