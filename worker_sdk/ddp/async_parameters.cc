// SPDX-License-Identifier: Apache-2.0
// Every pair of ranks has four streams: a worker's updates to an owner, the owner's answers back,
// and the same in the other direction. Each stream has one thread at either end. Updates and
// answers travel over separate communicators, for messages are matched by their order.
#include "worker_sdk/ddp/async_parameters.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/quiet_thread.h"
#include "common/throw_error.h"
#include "worker_sdk/core/rank_group.h"
#include "worker_sdk/ddp/parameter_shard.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;

// Precedes each message's values.
struct Header {
  std::uint32_t has_left = 0;  // in an update: the worker does no more steps
  std::uint32_t padding = 0;
  std::uint64_t lead = 0;  // in an answer: the worker's lead
  std::uint64_t unused[6] = {};
};
static_assert(sizeof(Header) == 64);

// A header and the values of one part, in one contiguous block.
class Message {
 public:
  explicit Message(std::size_t num_values)
      : num_values_(num_values), bytes_(sizeof(Header) + num_values * sizeof(float)) {}

  Header& header() { return *reinterpret_cast<Header*>(bytes_.data()); }
  std::span<float> values() {
    return {reinterpret_cast<float*>(bytes_.data() + sizeof(Header)), num_values_};
  }
  TensorView view() {
    return {.data = bytes_.data(), .count = bytes_.size(), .dtype = DType::kUInt8};
  }

 private:
  std::size_t num_values_;
  std::vector<char> bytes_;  // from operator new: aligned for both
};

// A communicator on which several threads start operations, one thread at a time.
class SharedWire {
 public:
  explicit SharedWire(std::unique_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)) {}

  WorkPtr send(Message& message, int peer, milliseconds timeout) {
    const std::lock_guard lock(mutex_);
    sent_bytes_ += message.view().size_bytes();
    return communicator_->send(message.view(), peer, {.async = true, .timeout = timeout});
  }
  WorkPtr recv(Message& message, int peer, milliseconds timeout) {
    const std::lock_guard lock(mutex_);
    return communicator_->recv(message.view(), peer, {.async = true, .timeout = timeout});
  }
  void abort(std::string_view reason) { communicator_->abort(reason); }
  std::uint64_t sent_bytes() const {
    const std::lock_guard lock(mutex_);
    return sent_bytes_;
  }

 private:
  mutable std::mutex mutex_;
  std::unique_ptr<Communicator> communicator_;
  std::uint64_t sent_bytes_ = 0;
};

std::unique_ptr<Communicator> split_off(Communicator& communicator, const char* name) {
  if (communicator.backend() != "host") {
    throw_error(ErrorCode::kUnsupported,
                "asynchronous parameters travel over the host backend, not over ",
                communicator.backend());
  }
  return communicator.split(all_ranks(communicator.size()), {.name = name});
}

// Replaces milliseconds::max() ("never") by a time that can be added to a clock's time.
constexpr milliseconds kNever = std::chrono::hours(24 * 365 * 100);

// Returns the time limit of `staleness` + `more` steps.
milliseconds steps_time(const AsyncOptions& options, std::uint64_t more) {
  constexpr std::uint64_t kForEver = 1'000'000;
  const auto steps = static_cast<std::int64_t>(std::min(options.staleness, kForEver) + more);
  return options.timeout < kNever / steps ? options.timeout * steps : kNever;
}

}  // namespace

class AsyncParameters::Impl {
 public:
  Impl(Communicator& communicator, std::size_t num_values, const AsyncOptions& options)
      : options_{.staleness = options.staleness, .timeout = std::min(options.timeout, kNever)},
        rank_(communicator.rank()),
        size_(communicator.size()),
        num_values_(num_values),
        part_((num_values + static_cast<std::size_t>(size_) - 1) / static_cast<std::size_t>(size_)),
        // Before an answer can come, the slowest rank may have to do `staleness` + 1 steps. Then
        // the rank that got the answer does one.
        answer_timeout_(steps_time(options, 2)),
        update_timeout_(steps_time(options, 3)),
        values_(part_) {
    if (size_ > 1) {
      updates_.emplace(split_off(communicator, "updates"));
      answers_.emplace(split_off(communicator, "answers"));
    }
    for (int rank = 0; rank < size_; ++rank) {
      to_owner_.emplace_back(part_);
      from_owner_.emplace_back(part_);
      from_worker_.emplace_back(part_);
      to_worker_.emplace_back(part_);
    }
  }

  ~Impl() {
    if (shard_)
      give_up(std::make_exception_ptr(Error(ErrorCode::kAborted, "it left the training")));
    join();
  }

  void begin(std::span<const float> values) {
    if (shard_) throw_invalid("async: begin() within a phase");
    check_size(values.size(), "begin()");
    copy_part(values, rank_, values_);
    shard_.emplace(values_, size_, options_.staleness);
    answered_.assign(static_cast<std::size_t>(size_), false);
    last_push_ = Clock::now();
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      servers_.push_back(start_quiet_thread("ddprun-shard", [this, peer] { serve(peer); }));
    }
  }

  ExchangeReport exchange(std::span<const float> update, std::span<float> values, bool has_left) {
    const char* call = has_left ? "finish()" : "exchange()";
    if (!shard_) throw_invalid("async: ", call, " before begin()");
    if (!has_left) check_size(update.size(), call);
    check_size(values.size(), call);
    const Clock::time_point start = Clock::now();
    std::vector<WorkPtr> sent, received;
    try {
      for (int owner = 0; owner < size_; ++owner) {
        Message& message = of(to_owner_, owner);
        message.header() = {.has_left = has_left ? 1U : 0U};
        if (!has_left) copy_part(update, owner, message.values());
        if (owner == rank_) continue;
        received.push_back(answers_->recv(of(from_owner_, owner), owner, answer_timeout_));
        sent.push_back(updates_->send(message, owner, answer_timeout_));
      }
      answer(rank_, of(to_owner_, rank_));
      for (const WorkPtr& work : sent) work->wait();
      for (const WorkPtr& work : received) work->wait();
    } catch (...) {
      give_up(std::current_exception());
      finish_works(sent);
      finish_works(received);
      throw_failure();
    }
    ExchangeReport report;
    for (int owner = 0; owner < size_; ++owner) {
      Message& message = of(from_owner_, owner);
      report.lead = std::max(report.lead, message.header().lead);
      const std::size_t begin = begin_of(owner);
      const std::size_t count = count_of(owner);
      std::copy_n(message.values().begin(), count, values.begin() + static_cast<long>(begin));
    }
    report.waited = Clock::now() - start;
    return report;
  }

  void finish(std::span<float> values) {
    exchange({}, values, true);
    join();
    throw_failure();
    shard_.reset();
  }

  std::uint64_t sent_bytes() const {
    return size_ > 1 ? updates_->sent_bytes() + answers_->sent_bytes() : 0;
  }

 private:
  static Message& of(std::vector<Message>& messages, int rank) {
    return messages[static_cast<std::size_t>(rank)];
  }

  void check_size(std::size_t num_given, const char* call) const {
    if (num_given == num_values_) return;
    throw_invalid("async: ", call, " was given ", num_given, " values, there are ", num_values_);
  }

  std::size_t begin_of(int owner) const {
    return std::min(num_values_, static_cast<std::size_t>(owner) * part_);
  }
  std::size_t count_of(int owner) const { return begin_of(owner + 1) - begin_of(owner); }

  // Copies one owner's part. The last parts may be shorter: the rest is zeros.
  void copy_part(std::span<const float> from, int owner, std::span<float> to) const {
    const auto part = from.subspan(begin_of(owner), count_of(owner));
    std::fill(std::copy(part.begin(), part.end(), to.begin()), to.end(), 0.0F);
  }

  // Runs on a separate thread for each peer: takes its updates and answers them until it has left.
  void serve(int peer) {
    try {
      for (bool is_over = false; !is_over;) {
        Message& update = of(from_worker_, peer);
        updates_->recv(update, peer, update_timeout_)->wait();
        is_over = update.header().has_left != 0;
        answer(peer, update);
        answers_->send(of(to_worker_, peer), peer, answer_timeout_)->wait();
      }
    } catch (...) {
      give_up(std::current_exception());
    }
  }

  // Waits until `worker` may read the values, and has put them into its message. Any thread.
  void answer(int worker, Message& update) {
    std::unique_lock lock(mutex_);
    const bool has_left = update.header().has_left != 0;
    const std::vector<int>& released =
        has_left ? shard_->leave(worker) : shard_->push(worker, update.values());
    last_push_ = Clock::now();
    // All of them get the values of this moment, even if their threads run later.
    for (const int each : released) {
      Message& to = each == rank_ ? of(from_owner_, rank_) : of(to_worker_, each);
      std::copy(shard_->values().begin(), shard_->values().end(), to.values().begin());
      to.header() = {.lead = shard_->lead_of(each)};
      answered_[static_cast<std::size_t>(each)] = true;
    }
    changed_.notify_all();
    while (!answered_[static_cast<std::size_t>(worker)] && !failure_) {
      // The slowest rank has this time for each of its steps.
      const Clock::time_point limit = last_push_ + options_.timeout;
      if (changed_.wait_until(lock, limit) == std::cv_status::timeout &&
          Clock::now() >= last_push_ + options_.timeout) {
        throw_too_slow(worker);
      }
    }
    if (failure_) std::rethrow_exception(failure_);
    answered_[static_cast<std::size_t>(worker)] = false;
  }

  [[noreturn]] void throw_too_slow(int worker) const {
    const int slowest = shard_->slowest();
    throw_error(ErrorCode::kTimeout, "rank ", slowest, " is the slowest, at step ",
                shard_->clock_of(slowest) + 1,
                " since the epoch began, and no rank has ended a step for ",
                options_.timeout.count(), " ms; rank ", worker, " has done ",
                shard_->clock_of(worker), " steps and may be ", options_.staleness, " ahead");
  }

  // Ends every wait, here and on the peers. The first reason counts. Any thread.
  void give_up(std::exception_ptr why) {
    std::string text = "an exception";
    try {
      std::rethrow_exception(why);
    } catch (const std::exception& error) {
      text = error.what();
    } catch (...) {
    }
    {
      const std::lock_guard lock(mutex_);
      if (failure_) return;
      failure_ = std::move(why);
      changed_.notify_all();
    }
    if (size_ == 1) return;
    updates_->abort(text);
    answers_->abort(text);
  }

  void throw_failure() {
    std::exception_ptr why;
    {
      const std::lock_guard lock(mutex_);
      why = failure_;
    }
    if (why) std::rethrow_exception(why);
  }

  // Waits for the works, which may write to their buffers until they end. After an abort they end
  // at once.
  static void finish_works(const std::vector<WorkPtr>& works) {
    for (const WorkPtr& work : works) {
      try {
        work->wait();
      } catch (const Error&) {
      }
    }
  }

  void join() {
    for (std::thread& server : servers_) server.join();
    servers_.clear();
  }

  // Constant after construction.
  const AsyncOptions options_;
  const int rank_, size_;
  const std::size_t num_values_;
  const std::size_t part_;  // values that each rank owns; the last ranks own fewer
  const milliseconds answer_timeout_, update_timeout_;
  std::optional<SharedWire> updates_, answers_;  // nullopt: there is one rank

  // Messages by rank: two lists for this rank as a worker, then two as an owner. An owner's message
  // belongs to the peer's thread, except between the peer's update and its answer.
  std::vector<Message> to_owner_, from_owner_, from_worker_, to_worker_;
  std::vector<std::thread> servers_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_ while a phase lasts.
  std::vector<float> values_;
  std::optional<ParameterShard> shard_;  // nullopt: no phase is open
  std::vector<bool> answered_;           // by worker: its values were copied
  Clock::time_point last_push_{};
  std::exception_ptr failure_;
};

AsyncParameters::AsyncParameters(Communicator& communicator, std::size_t num_values,
                                 const AsyncOptions& options)
    : impl_(std::make_unique<Impl>(communicator, num_values, options)) {}
AsyncParameters::~AsyncParameters() = default;

void AsyncParameters::begin(std::span<const float> values) { impl_->begin(values); }

ExchangeReport AsyncParameters::exchange(std::span<const float> update, std::span<float> values) {
  return impl_->exchange(update, values, false);
}

void AsyncParameters::finish(std::span<float> values) { impl_->finish(values); }

std::uint64_t AsyncParameters::sent_bytes() const { return impl_->sent_bytes(); }

}  // namespace ddprun
