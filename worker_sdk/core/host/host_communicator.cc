// SPDX-License-Identifier: Apache-2.0
// Checks arguments, orders operations and remembers the first failure; HostNode does the work.
#include "worker_sdk/core/host/host_communicator.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/quiet_thread.h"
#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/core/call_group.h"
#include "worker_sdk/core/flight_recorder.h"
#include "worker_sdk/core/host/host_node.h"
#include "worker_sdk/core/host/inbox.h"
#include "worker_sdk/core/one_caller.h"
#include "worker_sdk/core/worker_progress.h"

namespace ddprun::host {
namespace {

struct QueuedWork;

// An OrderedExecutor's queue, shared with the Work objects, which may outlive the executor.
struct ExecutorQueue {
  std::mutex mutex;
  std::condition_variable changed;

  // Guarded by mutex.
  std::deque<std::shared_ptr<QueuedWork>> works;
  bool busy = false;  // a thread runs an operation
  bool stopping = false;

  void advance(std::unique_lock<std::mutex>& lock);
};

struct QueuedWork final : Work {
  std::shared_ptr<ExecutorQueue> queue;
  // Guarded by queue->mutex.
  std::function<void()> operation;
  bool done = false;
  std::exception_ptr error;

  bool is_completed() override {
    const std::lock_guard lock(queue->mutex);
    return done;
  }

  // Runs the operation at the front itself, rather than wait for the progress thread to be
  // scheduled.
  void wait() override {
    std::unique_lock lock(queue->mutex);
    while (!done) queue->advance(lock);
    if (error) std::rethrow_exception(error);
  }
};

// Runs the operation at the front; if it can't, waits until something changes.
void ExecutorQueue::advance(std::unique_lock<std::mutex>& lock) {
  if (busy || works.empty()) return changed.wait(lock);
  const std::shared_ptr<QueuedWork> work = works.front();
  works.pop_front();
  busy = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    work->operation();
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  busy = false;
  work->operation = nullptr;
  work->error = error;
  work->done = true;
  changed.notify_all();
}

// Runs operations one after the other. The caller runs its own if nothing is queued (lowest
// latency). Otherwise a progress thread, or a thread that waits, runs them in the order of issue.
// One thread at a time may be in submit(), or in run() until it calls `has_place`.
class OrderedExecutor {
 public:
  // `thread_name` is at most 15 characters; the thread starts with the first submit().
  explicit OrderedExecutor(const char* thread_name) : thread_name_(thread_name) {}
  // Operations under way must be able to end (abort them before). Queued ones fail with kAborted.
  ~OrderedExecutor() {
    {
      const std::lock_guard lock(queue_->mutex);
      queue_->stopping = true;
      for (const auto& work : queue_->works) {
        work->operation = nullptr;
        work->done = true;
        work->error = std::make_exception_ptr(Error(
            ErrorCode::kAborted, "the communicator was destroyed before this operation began"));
      }
      queue_->works.clear();
      queue_->changed.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

  // Returns when `operation` and all before it have run; throws what it threw. Calls `has_place`
  // once later operations can't overtake this one.
  void run(const std::function<void()>& operation, const std::function<void()>& has_place) {
    std::unique_lock lock(queue_->mutex);
    if (queue_->busy || !queue_->works.empty()) {
      auto work = std::make_shared<QueuedWork>();
      work->queue = queue_;
      work->operation = operation;
      queue_->works.push_back(work);
      lock.unlock();
      has_place();
      return work->wait();
    }
    queue_->busy = true;
    lock.unlock();
    has_place();
    std::exception_ptr error;
    try {
      operation();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    queue_->busy = false;
    lock.unlock();
    queue_->changed.notify_all();
    if (error) std::rethrow_exception(error);
  }

  // Queues `operation`; wait() rethrows what it throws. Throws Error(kResourceExhausted) if no
  // thread can be started; then nothing is queued.
  WorkPtr submit(std::function<void()> operation) {
    auto work = std::make_shared<QueuedWork>();
    work->queue = queue_;
    work->operation = std::move(operation);
    if (!thread_.joinable()) {
      thread_ = start_quiet_thread(thread_name_, [queue = queue_.get()] {
        std::unique_lock lock(queue->mutex);
        while (!queue->stopping) queue->advance(lock);
      });
    }
    const std::lock_guard lock(queue_->mutex);
    queue_->works.push_back(work);
    queue_->changed.notify_all();
    return work;
  }

 private:
  const char* const thread_name_;
  const std::shared_ptr<ExecutorQueue> queue_ = std::make_shared<ExecutorQueue>();
  std::thread thread_;  // constructor, submit() and destructor only
};

// A receive, which the thread that reads the message completes. wait() only tells how it ended.
class ReceiveWork final : public Work {
 public:
  // `is_gone` is set when the communicator is destroyed.
  ReceiveWork(std::shared_ptr<Inbox::Receive> receive, Inbox& inbox,
              std::shared_ptr<std::atomic<bool>> is_gone, std::function<void()> operation)
      : receive_(std::move(receive)),
        inbox_(inbox),
        is_gone_(std::move(is_gone)),
        operation_(std::move(operation)) {}

  bool is_completed() override { return is_gone_->load() || inbox_.is_over(*receive_); }

  void wait() override {
    const std::lock_guard lock(mutex_);
    if (!operation_) return error_ ? std::rethrow_exception(error_) : void();
    const auto operation = std::exchange(operation_, nullptr);
    try {
      if (!is_gone_->load()) return operation();
      if (!receive_->is_done) {
        throw Error(ErrorCode::kAborted, "the communicator was destroyed before this message came");
      }
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
  }

 private:
  const std::shared_ptr<Inbox::Receive> receive_;  // shared with the inbox
  Inbox& inbox_;
  const std::shared_ptr<std::atomic<bool>> is_gone_;  // shared with the communicator

  std::mutex mutex_;
  std::function<void()> operation_;  // guarded by mutex_; empty: it has ended
  std::exception_ptr error_;         // guarded by mutex_
};

// The collectives of a world of one rank, which move little.
class SoloCollectives final : public Collectives {
 public:
  void all_reduce(const Call&, const TensorView&, ReduceOp) override {}
  void broadcast(const Call&, const TensorView&, int) override {}
  void all_gather(const Call&, const TensorView& input, const TensorView& output) override {
    std::memmove(output.data, input.data, input.size_bytes());
  }
  void reduce_scatter(const Call&, const TensorView& input, const TensorView& output,
                      ReduceOp) override {
    std::memmove(output.data, input.data, output.size_bytes());
  }
  void barrier(const Call&) override {}
};

class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(store::Store& store, const HostCommunicatorOptions& options)
      : options_(options),
        number_(options.progress
                    ? options.progress->recorder().add_communicator("host", options.size)
                    : 0),
        caller_(options.several_threads ? OneCaller::Second::kWaits
                                        : OneCaller::Second::kIsRefused),
        collectives_queue_("ddprun-comm") {
    if (options_.size > 1) {
      node_ = std::make_unique<HostNode>(store, options_);
      inbox_ = std::make_unique<Inbox>(*node_, options_.rank, options_.size, options_.timeout);
    } else {
      solo_arena_ = std::make_unique<Arena>(0, 1);
    }
  }

  // Ends operations under way with an error first: nothing may touch the memory afterwards.
  ~HostCommunicator() override {
    if (num_open_.load() > 0 || (inbox_ && inbox_->has_open_receives())) {
      abort("the communicator was destroyed with operations under way");
    }
    is_gone_->store(true);
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  std::string_view backend() const override { return "host"; }
  WorkerProgress* progress() override { return options_.progress.get(); }

  bool narrows() const override { return node_ && node_->is_alone_on_its_node(); }

  WorkPtr run(const CollectiveCall& call, const CallOptions& options) override {
    if (call.is_message()) return message(call, options);
    check(call.input, call.has_parts() ? "input" : "buffer");
    if (call.has_parts()) {
      check(call.output, "output");
      check_parts(call.part(), call.whole());
    }
    if (has_op(call.kind)) check_reduction(call.input, call.op);
    if (has_root(call.kind)) check_rank(call.root, "root");
    CallHeader what = header(call);
    if (options.wire && call.kind == CollectiveKind::kAllReduce) {
      check_wire(*options.wire, call.input, call.op);
      what.wire = *options.wire;
    }
    return collective(what, options,
                      [this, call](const Call& entered) { carry_out(call, entered); });
  }
  WorkPtr recv_any(TensorView buffer, int* source, const CallOptions& options) override {
    refuse_in_group("recv_any");
    check(buffer, "buffer");
    if (!inbox_) throw_invalid("there is no other rank to receive from");
    OneCaller::Inside inside(caller_);
    return receive({CollectiveKind::kRecv, buffer, buffer, ReduceOp::kSum, Inbox::kAnyRank},
                   options, source, inside);
  }

  WorkPtr group(const std::function<void()>& calls, bool async) override {
    WorkPtr work;
    {
      const OneCaller::Inside inside(caller_);
      work = group_.run(calls, true);
    }
    if (!async) work->wait();
    return work;
  }

  void barrier(const CallOptions& options) override {
    refuse_in_group("barrier");
    CallOptions blocking = options;
    blocking.async = false;
    collective(header({CollectiveKind::kBarrier}), blocking,
               [this](const Call& call) { algorithms().barrier(call); });
  }

  std::unique_ptr<CommBuffer> allocate(std::size_t size_bytes) override {
    refuse_in_group("allocate");
    const std::size_t most = kMaxBufferBytes / static_cast<std::size_t>(size()) / 2;
    if (size_bytes > most) {
      throw_invalid("a buffer of ", size_bytes, " bytes can't be; the most is ", most);
    }
    std::unique_ptr<CommBuffer> buffer;
    const TensorView bytes{.data = nullptr, .count = size_bytes, .dtype = DType::kUInt8};
    collective(header({CollectiveKind::kAllocate, bytes}), {}, [&](const Call& call) {
      if (node_) {
        buffer = node_->allocate(call, size_bytes);
        return;
      }
      const std::size_t total = solo_arena_->mapping_bytes(size_bytes);
      buffer = solo_arena_->adopt(SharedMapping::of_one_rank(total), size_bytes);
    });
    return buffer;
  }

  std::unique_ptr<Communicator> split(const std::vector<int>& ranks,
                                      const SplitOptions& options) override {
    refuse_in_group("split");
    HostCommunicatorOptions its = options_;
    its.group = make_group(options_.group, rank(), size(), ranks, options, &its.rank);
    its.size = static_cast<int>(ranks.size());
    its.key_prefix = its.group.key(options_.key_prefix, num_splits_[options.name]++);
    if (options.init_timeout) its.init_timeout = *options.init_timeout;
    if (!its.split_store)
      throw_invalid("this communicator was made without a store to split it by");
    return make_host_communicator(*its.split_store, its);
  }

  void abort(std::string_view reason) override {
    {
      const std::lock_guard lock(failure_mutex_);
      if (!failure_) {
        failure_ = std::make_exception_ptr(
            Error(ErrorCode::kAborted, concat("aborted on rank ", rank(), ": ", reason)));
      }
      failed_.store(true, std::memory_order_release);
    }
    if (node_) node_->group().post_failure(FailureKind::kAborted, rank(), reason);
  }

 private:
  // The body of a call.
  using Body = std::function<void(const Call&)>;

  Collectives& algorithms() { return node_ ? node_->collectives() : solo_; }

  // A call without elements still meets the other ranks, to stay in step.
  void carry_out(const CollectiveCall& asked, const Call& call) {
    if (asked.part().count == 0) return algorithms().barrier(call);
    switch (asked.kind) {
      case CollectiveKind::kBroadcast:
        return algorithms().broadcast(call, asked.input, asked.root);
      case CollectiveKind::kAllGather:
        return algorithms().all_gather(call, asked.input, asked.output);
      case CollectiveKind::kReduceScatter:
        return algorithms().reduce_scatter(call, asked.input, asked.output, asked.op);
      default:  // kAllReduce, and kReduce, whose result is copied out on the root alone
        return algorithms().all_reduce(call, asked.input, asked.op);
    }
  }

  static CallHeader header(const CollectiveCall& call) {
    CallHeader made;
    made.kind = call.kind;
    made.count = call.part().count;
    made.dtype = made.wire = call.part().dtype;
    made.op = static_cast<std::uint8_t>(call.op);
    made.root = call.root;
    return made;
  }

  WorkPtr collective(CallHeader what, const CallOptions& options, Body body) {
    OneCaller::Inside inside(caller_);
    if (group_.is_open()) {
      group_.add([this, what, its = in_group(options), body = std::move(body)] {
        return collective(what, its, body);
      });
      return nullptr;
    }
    what.sequence = ++num_collectives_;
    return start(collectives_queue_, what, options, std::move(body), inside);
  }

  static CallOptions in_group(CallOptions options) {
    options.async = true;
    return options;
  }

  void refuse_in_group(const char* call) {
    const OneCaller::Inside inside(caller_);
    if (group_.is_open()) throw_invalid(call, " can't be part of a group");
  }

  WorkPtr message(const CollectiveCall& asked, const CallOptions& options) {
    check(asked.input, "buffer");
    check_rank(asked.root, "peer");
    OneCaller::Inside inside(caller_);
    if (group_.is_open()) {
      add_message(asked, options);
      return nullptr;
    }
    if (asked.root == rank())
      throw_invalid("rank ", asked.root, " can send to itself in a group only");
    if (asked.kind == CollectiveKind::kRecv) return receive(asked, options, nullptr, inside);
    CallHeader what = header(asked);
    SendQueue& entry = send_queues_[asked.root];
    if (!entry.queue) entry.queue = std::make_unique<OrderedExecutor>("ddprun-send");
    what.sequence = ++entry.num_messages;
    return start(
        *entry.queue, what, options,
        [this, asked, tag = options.tag](const Call& call) {
          node_->send(call, asked.input, asked.root, tag);
        },
        inside);
  }

  WorkPtr receive(const CollectiveCall& asked, const CallOptions& options, int* source,
                  OneCaller::Inside& inside) {
    CallHeader what = header(asked);
    what.sequence = ++num_received_[what.root];
    std::shared_ptr<Inbox::Receive> receive;
    try {
      receive = inbox_->post(asked.input, what.root, options.tag, options.async);
    } catch (const Error& error) {
      end_with(error);
    }
    auto run = operation_of(what, options, [this, receive, source](const Call& call) {
      inbox_->wait(*receive, call);
      if (source != nullptr) *source = receive->sender;
    });
    auto operation = [this, receive, run = std::move(run)] {
      try {
        run();
      } catch (...) {
        inbox_->withdraw(*receive);  // after an abort nothing has waited for it
        throw;
      }
    };
    if (!options.async) {
      inside.let_others_begin();
      operation();
      return completed_work();
    }
    return std::make_shared<ReceiveWork>(receive, *inbox_, is_gone_, std::move(operation));
  }

  void add_message(const CollectiveCall& asked, const CallOptions& options) {
    if (asked.root != rank()) {
      group_.add([this, asked, its = in_group(options)] { return message(asked, its); });
    } else if (asked.kind == CollectiveKind::kSend) {
      group_.add_send_to_self(asked.input);
    } else {
      group_.add_receive_from_self(asked.input);
    }
  }

  // The deadline counts from the time at which the operation begins to execute.
  WorkPtr start(OrderedExecutor& queue, const CallHeader& what, const CallOptions& options,
                Body body, OneCaller::Inside& inside) {
    auto operation = [this, run = operation_of(what, options, std::move(body))] {
      const Closing closing{num_open_};
      run();
    };
    num_open_.fetch_add(1);
    if (!options.async) {
      queue.run(operation, [&inside] { inside.let_others_begin(); });
      return completed_work();
    }
    try {
      return queue.submit(std::move(operation));
    } catch (const Error& error) {
      num_open_.fetch_sub(1);
      end_with(error);  // for the other ranks do make this call
    }
  }

  std::function<void()> operation_of(const CallHeader& what, const CallOptions& options,
                                     Body body) {
    const std::chrono::milliseconds timeout = options.timeout.value_or(options_.timeout);
    const FlightRecorder::Ticket ticket =
        progress() != nullptr ? progress()->recorder().schedule(facts(what)) : 0;
    return [this, what, timeout, ticket, body = std::move(body)] {
      const Call call{.header = what, .deadline = Deadline::after(timeout), .timeout = timeout};
      execute(call, body, ticket);
    };
  }

  void execute(const Call& call, const Body& body, FlightRecorder::Ticket ticket) {
    CollectiveScope scope(progress(), call.header.kind, ticket);
    if (failed_.load(std::memory_order_acquire)) rethrow_failure(call);
    const Clock::time_point begun = Clock::now();
    try {
      body(call);
      scope.complete();
    } catch (const Error& error) {
      scope.fail();
      tell_failure(call, error, begun);
      end_with(error);
    } catch (const std::exception& error) {
      end_with(Error(ErrorCode::kResourceExhausted,
                     concat(call.text(), " on rank ", rank(), ": ", error.what())));
    }
  }

  OperationFacts facts(const CallHeader& header) const {
    const CollectiveKind kind = header.kind;
    const bool has_rank =
        has_root(kind) || kind == CollectiveKind::kSend || kind == CollectiveKind::kRecv;
    return {kind,
            header.op,
            static_cast<std::uint8_t>(header.dtype),
            has_rank ? header.root : -1,
            header.count,
            number_,
            header.sequence};
  }

  void tell_failure(const Call& call, const Error& error, Clock::time_point begun) {
    if (progress() == nullptr || told_.exchange(true)) return;
    tell_others(error);  // first, for the next call writes a file
    progress()->operation_failed(
        facts(call.header), error, node_ ? node_->group().absent() : std::vector<int>(), size(),
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun));
  }

  // The ranks are out of step now, so every later call fails as this one did.
  [[noreturn]] void end_with(const Error& error) {
    tell_others(error);
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) {
      failure_ =
          std::make_exception_ptr(Error(error.code(), options_.group.prefix() + error.what()));
    }
    failed_.store(true, std::memory_order_release);
    std::rethrow_exception(failure_);
  }

  // Ends the other ranks' calls for an error that they can't see by themselves. They do see a lost
  // rank and their own deadlines.
  void tell_others(const Error& error) {
    const ErrorCode code = error.code();
    if (!node_ || code == ErrorCode::kTimeout || code == ErrorCode::kPeerLost ||
        code == ErrorCode::kAborted) {
      return;
    }
    const bool mismatch = code == ErrorCode::kProtocol;
    node_->group().post_failure(mismatch ? FailureKind::kMismatch : FailureKind::kAborted, rank(),
                                error.what());
  }

  [[noreturn]] void rethrow_failure(const Call& call) {
    const std::lock_guard lock(failure_mutex_);
    try {
      std::rethrow_exception(failure_);
    } catch (const Error& error) {
      throw Error(error.code(), concat(call.text(), " can't start: ", error.what()));
    }
  }

  void check(const TensorView& view, const char* name) const {
    if (!view.is_possible()) {
      throw_invalid(name, " can't have ", view.count, " elements of ",
                    ddprun::to_string(view.dtype));
    }
    if (view.device.kind != Device::Kind::kCpu) {
      throw_invalid(name, " is not in the memory of the CPU; the host backend needs it there");
    }
    if (!view.data && view.count > 0) throw_invalid(name, " has no data");
  }

  void check_reduction(const TensorView& view, ReduceOp op) const {
    const std::string problem = reduction_problem(view.dtype, op);
    if (!problem.empty()) throw_invalid(problem);
  }

  void check_wire(DType wire, const TensorView& buffer, ReduceOp op) const {
    const bool is_half = wire == DType::kFloat16 || wire == DType::kBFloat16;
    const bool is_sum = op == ReduceOp::kSum || op == ReduceOp::kAverage;
    if (narrows() && is_half && is_sum && buffer.dtype == DType::kFloat32) return;
    throw_invalid(ddprun::to_string(buffer.dtype), " can't travel as ", ddprun::to_string(wire),
                  " in this operation");
  }

  void check_rank(int value, const char* name) const {
    if (value >= 0 && value < size()) return;
    throw_invalid(name, " is rank ", value, ", but the ranks are 0 … ", size() - 1);
  }

  void check_parts(const TensorView& part, const TensorView& whole) const {
    const std::string problem = parts_problem(part, whole, rank(), size());
    if (!problem.empty()) throw_invalid(problem);
  }

  struct Closing {
    std::atomic<int>& num_open;
    ~Closing() { num_open.fetch_sub(1); }
  };
  struct SendQueue {  // for one rank
    std::unique_ptr<OrderedExecutor> queue;
    std::uint32_t num_messages = 0;
  };

  // Constant after construction.
  const HostCommunicatorOptions options_;
  const std::uint32_t number_;  // this communicator's number in the flight recorder
  SoloCollectives solo_;
  std::unique_ptr<Arena> solo_arena_;  // size() == 1
  std::unique_ptr<HostNode> node_;     // size() > 1
  std::unique_ptr<Inbox> inbox_;       // size() > 1
  // Shared with receives that may outlive this object.
  const std::shared_ptr<std::atomic<bool>> is_gone_ = std::make_shared<std::atomic<bool>>(false);

  OneCaller caller_;
  // Used inside caller_ only.
  std::uint32_t num_collectives_ = 0;
  std::map<std::string, int> num_splits_;      // by name
  std::map<int, std::uint32_t> num_received_;  // by rank
  CallGroup group_;

  std::atomic<int> num_open_{0};  // issued and not ended
  std::atomic<bool> failed_{false};
  std::atomic<bool> told_{false};  // the recorder has been told of a failure
  std::mutex failure_mutex_;
  std::exception_ptr failure_;  // guarded by failure_mutex_

  // Last: their threads end before what they use.
  std::map<int, SendQueue> send_queues_;  // by rank; inside caller_ only
  OrderedExecutor collectives_queue_;
};

}  // namespace

std::unique_ptr<Communicator> make_host_communicator(store::Store& store,
                                                     const HostCommunicatorOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size ||
      options.node_rank < 0 || options.sockets_per_neighbour < 1 ||
      options.sockets_per_neighbour > 64 || options.chunk_bytes < 1024) {
    throw_invalid("host communicator: rank ", options.rank, " of ", options.size, " on node ",
                  options.node_rank, " with ", options.sockets_per_neighbour,
                  " sockets and chunks of ", options.chunk_bytes,
                  " bytes is not possible (1 … 64 sockets, chunks from 1024 bytes)");
  }
  try {
    return std::make_unique<HostCommunicator>(store, options);
  } catch (const Error& error) {
    if (options.group.ranks.empty()) throw;
    throw Error(error.code(), options.group.prefix() + error.what());
  }
}

}  // namespace ddprun::host
