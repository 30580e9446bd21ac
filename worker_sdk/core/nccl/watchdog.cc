// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/watchdog.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "common/quiet_thread.h"
#include "worker_sdk/core/nccl/comm_setup.h"

namespace ddprun::nccl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBusyInterval{10};   // with operations under way
constexpr milliseconds kIdleInterval{100};  // NCCL's asynchronous errors come without any, too
constexpr milliseconds kStoreTimeout{2'000};

}  // namespace

Watchdog::Watchdog(std::shared_ptr<NcclApi> nccl, std::shared_ptr<CudaApi> cuda,
                   NcclOptions options, std::shared_ptr<CommGate> gate,
                   std::shared_ptr<Failure> failure)
    : nccl_(std::move(nccl)),
      cuda_(std::move(cuda)),
      options_(std::move(options)),
      gate_(std::move(gate)),
      failure_(std::move(failure)),
      thread_(start_quiet_thread("ddprun-nccl", [this] { run(); })) {}

Watchdog::~Watchdog() { stop(); }

void Watchdog::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Watchdog::watch(std::shared_ptr<Operation> operation) {
  std::lock_guard lock(mutex_);
  pending_.push_back(std::move(operation));
  if (pending_.size() == 1) wake_.notify_all();
}

void Watchdog::wake() {
  std::lock_guard lock(mutex_);
  woken_ = true;
  wake_.notify_all();
}

void Watchdog::run() {
  cuda_->set_device(options_.device);
  for (;;) {
    look();
    if (failure_->is_set()) break;
    std::unique_lock lock(mutex_);
    const auto until = Clock::now() + (pending_.empty() ? kIdleInterval : kBusyInterval);
    const bool was_idle = pending_.empty();
    wake_.wait_until(lock, until,
                     [&] { return woken_ || stopping_ || (was_idle && !pending_.empty()); });
    woken_ = false;
    if (stopping_) break;
  }
  end();
}

void Watchdog::look() {
  const auto oldest = oldest_pending();
  if (failure_->is_set()) return;
  check_async_error();
  if (!oldest || failure_->is_set()) return;
  if (oldest->deadline().expired()) {
    failure_->set(timed_out(*oldest));
    return;
  }
  check_peers(*oldest);
}

std::shared_ptr<Operation> Watchdog::oldest_pending() {
  for (;;) {
    std::shared_ptr<Operation> oldest;
    {
      std::lock_guard lock(mutex_);
      if (pending_.empty()) return nullptr;
      oldest = pending_.front();
    }
    const Operation::State state = oldest->poll();
    if (state == Operation::State::kPending) return oldest;
    if (options_.progress) {
      options_.progress->collective_done();
      FlightRecorder& recorder = options_.progress->recorder();
      if (state == Operation::State::kDone) {
        recorder.complete(oldest->ticket());
      } else {
        recorder.fail(oldest->ticket());
        if (!last_oldest_) last_oldest_ = oldest;
      }
    }
    std::lock_guard lock(mutex_);
    pending_.pop_front();
  }
}

void Watchdog::check_async_error() {
  CommGate::Pass pass(*gate_);
  if (pass.comm() == nullptr) return;
  Result state = Result::kSuccess;
  Result result = nccl_->comm_async_error(pass.comm(), &state);
  if (result == Result::kSuccess) result = state;
  if (result == Result::kSuccess || result == Result::kInProgress) return;
  failure_->set(nccl_error(*nccl_, pass.comm(), result, options_.rank, "asynchronous error"));
}

void Watchdog::check_peers(const Operation& oldest) {
  const auto now = Clock::now();
  if (now - oldest.started() < options_.peer_check_interval || now < next_peer_check_) return;
  next_peer_check_ = now + options_.peer_check_interval;
  PeerBoard* peers = board();
  if (peers == nullptr) return;
  try {
    if (const auto notice = peers->gave_up()) {
      failure_->set(Error(ErrorCode::kPeerLost, "rank " + std::to_string(options_.rank) + ": " +
                                                    oldest.name() + ": rank " +
                                                    std::to_string(notice->rank) +
                                                    " gave up: " + notice->reason));
    }
  } catch (const Error& error) {
    log_debug("rank ", options_.rank, ": the store is silent: ", error.what());
    board_.reset();
  }
}

Error Watchdog::timed_out(const Operation& oldest) {
  std::string message = "rank " + std::to_string(options_.rank) + ": " + oldest.name() +
                        " did not end within " + std::to_string(oldest.timeout().count()) + " ms";
  PeerBoard* peers = board();
  if (peers == nullptr) {
    if (options_.connect_store) message += "; the store can't say who is missing: it is gone";
    return {ErrorCode::kTimeout, message};
  }
  try {
    peers->post_waiting(oldest.seq());
    const auto deadline = Deadline::after(options_.missing_ranks_grace);
    auto missing = peers->not_waiting(oldest.seq());
    // The others' deadlines pass at about the same time as ours.
    while (!missing.empty() && !deadline.expired()) {
      std::this_thread::sleep_for(
          std::min<Clock::duration>(milliseconds(100), deadline.remaining()));
      missing = peers->not_waiting(oldest.seq());
    }
    missing_ = missing;
    message += missing.empty() ? "; all ranks wait in it: look at the network or the GPUs"
                               : "; not waiting in it: rank " + list_ranks(missing);
  } catch (const Error& error) {
    message += std::string("; the store can't say who is missing: ") + error.what();
    board_.reset();
  }
  return {ErrorCode::kTimeout, message};
}

void Watchdog::tell_peers() {
  // A lost peer, too: NCCL shows it only to the ranks that were connected with it. Where the news
  // came from the board, the first notice stays.
  const auto error = failure_->get();
  PeerBoard* peers = error ? board() : nullptr;
  if (peers == nullptr) return;
  try {
    peers->post_gave_up(error->what());
  } catch (const Error& lost) {
    log_debug("rank ", options_.rank, ": could not tell the other ranks: ", lost.what());
  }
}

void Watchdog::tell_recorder() {
  const auto error = failure_->get();
  if (!error || !options_.progress || !last_oldest_) return;
  const auto waited =
      std::chrono::duration_cast<milliseconds>(Clock::now() - last_oldest_->started());
  options_.progress->operation_failed(last_oldest_->facts(), *error, missing_, options_.size,
                                      waited);
  last_oldest_.reset();
}

void Watchdog::end() {
  const bool failed = failure_->is_set();
  oldest_pending();  // with a failure set, every operation still pending becomes failed
  if (failed) {
    tell_peers();  // first: a hung abort may end the process
    tell_recorder();
  }
  Comm comm = gate_->take(Deadline::after(options_.abort_timeout));
  if (comm != nullptr) {
    ended_well_ = failed ? abort_comm(nccl_, comm, options_) : finish_comm(nccl_, comm, options_);
  }
}

PeerBoard* Watchdog::board() {
  if (!store_tried_ && options_.connect_store) {
    store_tried_ = true;
    try {
      store_ = options_.connect_store();
      store_->set_timeout(kStoreTimeout);
      board_.emplace(*store_, options_.key_prefix, options_.rank, options_.size);
    } catch (const Error& error) {
      log_debug("rank ", options_.rank, ": no connection to the store: ", error.what());
    }
  }
  return board_ ? &*board_ : nullptr;
}

}  // namespace ddprun::nccl
