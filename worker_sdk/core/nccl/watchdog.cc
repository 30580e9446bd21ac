// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/watchdog.h"

#include <algorithm>
#include <utility>

#include "common/bounded_call.h"
#include "common/log.h"
#include "common/quiet_thread.h"
#include "worker_sdk/core/nccl/device_identity.h"

namespace ddprun::nccl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBusyInterval{10};     // while operations are under way
constexpr milliseconds kIdleInterval{100};    // NCCL may report an error even without operations
constexpr milliseconds kStoreTimeout{2'000};  // limit of a request, connecting included
constexpr int kMostLeftBehind = 3;            // connections whose store did not answer

std::string name_of(const Operation* oldest) {
  return oldest != nullptr ? oldest->name() : "no operation is under way";
}

Deadline earlier(Deadline one, Deadline other) { return one.at() < other.at() ? one : other; }

}  // namespace

// A connection to the store, made when it is first needed. One thread at a time.
struct Watchdog::Talk {
  std::unique_ptr<store::Store> store;
  std::optional<PeerBoard> board;
};

Watchdog::Watchdog(std::shared_ptr<NcclApi> nccl, std::shared_ptr<CudaApi> cuda,
                   NcclOptions options, std::shared_ptr<CommGate> gate,
                   std::shared_ptr<Failure> failure)
    : nccl_(std::move(nccl)),
      cuda_(std::move(cuda)),
      options_(std::move(options)),
      gate_(std::move(gate)),
      failure_(std::move(failure)),
      busy_interval_(test_gpu().watchdog.value_or(kBusyInterval)),
      talk_(std::make_shared<Talk>()),
      thread_(start_quiet_thread("ddprun-nccl", [this] { run(); })) {}

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
    const auto until = Clock::now() + (pending_.empty() ? kIdleInterval : busy_interval_);
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
  check_agent(oldest.get());
  if (failure_->is_set() || (!oldest && !has_graphs_)) return;
  if (oldest && oldest->deadline().expired()) {
    const auto since = Clock::now();
    failure_->set(timed_out(*oldest, end_of_telling(since)), since);
    return;
  }
  check_peers(oldest.get());
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
        recorder.complete(oldest->ticket(), oldest->device_time());
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
  const CommGate::Pass pass(*gate_, CommGate::IfBusy::kTurnBack);  // another check comes soon
  if (pass.comm() == nullptr) return;
  Result state = Result::kInProgress;
  const Result result = nccl_->comm_async_error(pass.comm(), &state);
  if (result != Result::kSuccess) state = result;
  if (state == Result::kSuccess || state == Result::kInProgress) return;
  failure_->set(nccl_error(*nccl_, pass.comm(), state, options_.rank, "asynchronous error"));
}

// An earlier error of NCCL's own stays: if it is more than a lost peer, the GPU is in doubt.
void Watchdog::check_agent(const Operation* oldest) {
  if (!options_.progress || !options_.progress->peer_lost()) return;
  const std::string what = name_of(oldest);
  agent_told_ = failure_->set(agent_says_peer_lost(options_.rank, what));
}

void Watchdog::check_peers(const Operation* oldest) {
  const auto now = Clock::now();
  if (now < next_peer_check_) return;
  if (!has_graphs_ && now - oldest->started() < options_.peer_check_interval) return;
  next_peer_check_ = now + options_.peer_check_interval;
  // Shared with the call, which may outlive this function.
  const auto notice = std::make_shared<std::optional<PeerNotice>>();
  const auto look = [notice](PeerBoard& board) { *notice = board.gave_up(); };
  if (ask(Deadline::after(store_limit()), look)) return;
  if (!*notice) return;
  failure_->set(rank_error(ErrorCode::kPeerLost, options_.rank, name_of(oldest), ": rank ",
                           (*notice)->rank, " gave up: ", (*notice)->reason));
}

Error Watchdog::timed_out(const Operation& oldest, Deadline latest) {
  const std::string message =
      concat(oldest.name(), " did not end within ", oldest.timeout().count(), " ms");
  const auto timeout = [&](const std::string& more) {
    return rank_error(ErrorCode::kTimeout, options_.rank, message, more);
  };
  if (!options_.connect_store) return timeout("");
  // Shared with the call, which may outlive this function.
  const auto missing = std::make_shared<std::vector<int>>();
  const auto grace = options_.missing_ranks_grace;
  const auto limit = earlier(Deadline::after(grace + store_limit()), latest);
  const auto problem = ask(limit, [missing, grace, latest, seq = oldest.seq()](PeerBoard& board) {
    board.post_waiting(seq);
    const auto deadline = earlier(Deadline::after(grace), latest);
    *missing = board.not_waiting(seq);
    // The other ranks' deadlines pass at about the same time as this rank's.
    while (!missing->empty() && !deadline.expired()) {
      std::this_thread::sleep_for(
          std::min<Clock::duration>(milliseconds(100), deadline.remaining()));
      *missing = board.not_waiting(seq);
    }
  });
  if (problem) return timeout("; the store can't say who is missing: " + *problem);
  missing_ = *missing;
  return timeout(missing_.empty() ? "; all ranks wait in it: look at the network or the GPUs"
                                  : "; not waiting in it: rank " + list_ranks(missing_));
}

void Watchdog::tell_peers() {
  // Tells of a lost peer, too: NCCL shows it only to the ranks that were connected with it. If this
  // rank knows it from the board, the first notice stays.
  const auto error = failure_->get();
  if (!error) return;
  ask(earlier(Deadline::after(store_limit()), end_of_telling(failed_since())),
      [what = std::string(error->what())](PeerBoard& board) { board.post_gave_up(what); });
}

void Watchdog::tell_recorder() {
  const auto error = failure_->get();
  if (!error || !options_.progress || !last_oldest_) return;
  const auto waited =
      std::chrono::duration_cast<milliseconds>(Clock::now() - last_oldest_->started());
  // The listener may hang, in a file system for example.
  const auto tell = [progress = options_.progress, facts = last_oldest_->facts(), error = *error,
                     missing = missing_, size = options_.size,
                     waited] { progress->operation_failed(facts, error, missing, size, waited); };
  last_oldest_.reset();
  const auto limit = Deadline::after(end_of_abort().remaining() / 2);
  if (returns_before(earlier(limit, end_of_telling(failed_since())), tell)) return;
  log_warning("rank ", options_.rank, ": the flight recorder was not written in time");
}

void Watchdog::flush() {
  const auto deadline = Deadline::after(options_.abort_timeout);
  Pause pause;
  while (!failure_->is_set() && oldest_pending() && !deadline.expired()) {
    check_async_error();
    pause.take(deadline);
  }
}

void Watchdog::end() {
  flush();
  const bool failed = failure_->is_set();
  oldest_pending();  // with a failure set, every operation still pending becomes failed
  if (failed) {
    if (!agent_told_) tell_peers();  // first: a hung abort may end the process
    tell_recorder();
  }
  ended_well_ = end_comm();
  if (failed || !ended_well_) bound_exit(options_.exit_timeout);
}

bool Watchdog::end_comm() {
  const bool failed = failure_->is_set();
  const auto last = failed ? end_of_abort() : Deadline::after(options_.destroy_timeout);
  const auto begun = Clock::now();
  // A thread inside NCCL may return. An abort beside it would free what it is using.
  const Comm comm = gate_->take(Deadline::after(last.remaining() * 3 / 4));
  if (comm == nullptr) {
    hung(options_, "a call that is inside NCCL", begun);
    return false;
  }
  if (!failed && oldest_pending()) {
    // Aborted operations must not count as done.
    failure_->set(rank_error(ErrorCode::kAborted, options_.rank,
                             "the communicator was destroyed with operations under way"));
    oldest_pending();
  }
  if (failure_->is_set()) return abort_comm(nccl_, comm, options_, last, has_graphs_);
  return destroy_comm(nccl_, comm, options_, last);
}

milliseconds Watchdog::store_limit() const {
  return std::min(kStoreTimeout, options_.abort_timeout / 4);
}

Deadline Watchdog::end_of_abort() const {
  // The later time counts if this process was stopped, or had no CPU.
  return Deadline(std::max(failed_since() + options_.abort_timeout, Clock::now() + for_abort()));
}

std::optional<std::string> Watchdog::ask(Deadline deadline, std::function<void(PeerBoard&)> call) {
  if (!talk_ || !options_.connect_store) return "it is gone";
  // Shared with the call, which may outlive this function.
  const auto problem = std::make_shared<std::string>();
  const auto body = [problem, talk = talk_, options = options_, call = std::move(call)] {
    try {
      if (!talk->board) {
        talk->store = options.connect_store();
        talk->store->set_timeout(kStoreTimeout);
        talk->board.emplace(*talk->store, options.key_prefix, options.rank, options.size);
      }
      call(*talk->board);
    } catch (const Error& error) {
      *problem = talk->board ? error.what() : std::string("it is gone");
      log_debug("rank ", options.rank, ": the store: ", error.what());
    }
  };
  const bool returned = returns_before(deadline, body);
  if (returned && problem->empty()) return std::nullopt;
  talk_.reset();
  if (returned) return *problem;
  if (++num_left_behind_ < kMostLeftBehind) talk_ = std::make_shared<Talk>();
  return "it does not answer";
}

}  // namespace ddprun::nccl
