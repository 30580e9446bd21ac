// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/nccl_communicator.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "common/bounded_call.h"
#include "common/log.h"
#include "common/throw_error.h"
#include "worker_sdk/core/call_group.h"
#include "worker_sdk/core/flight_recorder.h"
#include "worker_sdk/core/nccl/comm_gate.h"
#include "worker_sdk/core/nccl/comm_setup.h"
#include "worker_sdk/core/nccl/errors.h"
#include "worker_sdk/core/nccl/nccl_buffer.h"
#include "worker_sdk/core/nccl/operation.h"
#include "worker_sdk/core/nccl/watchdog.h"
#include "worker_sdk/core/one_caller.h"

namespace ddprun::nccl {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kBarrierBytes = 64;

void check_options(const NcclOptions& options) {
  const NcclConfig& config = options.config;
  if (config.min_ctas && *config.min_ctas > config.max_ctas.value_or(0)) {
    throw_invalid("nccl communicator: min_ctas ", *config.min_ctas,
                  " needs a max_ctas that is not smaller");
  }
  if (options.size >= 1 && options.rank >= 0 && options.rank < options.size &&
      options.device >= 0) {
    return;
  }
  throw_invalid("nccl communicator: rank ", options.rank, " of ", options.size, " on device ",
                options.device, " can't be");
}

class NcclWork : public Work {
 public:
  struct Context {
    std::shared_ptr<CudaApi> cuda;
    std::shared_ptr<Failure> failure;
    std::shared_ptr<CallerStream> caller;  // shared with the communicator
    int device = 0;
    int rank = 0;
    bool blocking_wait = false;
  };

  NcclWork(Context context, std::shared_ptr<Operation> operation)
      : context_(std::move(context)), operation_(std::move(operation)) {}

  bool is_completed() override { return operation_->poll() != Operation::State::kPending; }

  void wait() override {
    if (operation_->poll() == Operation::State::kFailed) context_.failure->throw_if_set();
    bool captures = false;
    context_.cuda->stream_is_capturing(context_.caller->on(context_.device), &captures);
    if (operation_->is_captured() && !captures) return;  // its replay's stream orders it
    if (captures && !operation_->is_captured()) {
      throw rank_error(
          ErrorCode::kInvalidArgument, context_.rank, operation_->name(),
          " began before the CUDA graph that is captured now: wait for it before that");
    }
    try {
      order_caller_behind();
    } catch (const Error& error) {
      context_.failure->set(error);  // the watchdog ends the communicator and tells the others
      context_.failure->throw_if_set();
    }
    if (context_.blocking_wait) wait_on_host(*operation_, *context_.failure);
  }

 private:
  void order_caller_behind() {
    CudaApi& cuda = *context_.cuda;
    DeviceGuard guard(cuda, context_.device, context_.rank);
    const Stream caller = context_.caller->on(context_.device);
    check_cuda(cuda, cuda.stream_wait_event(caller, operation_->event()), context_.rank,
               "cudaStreamWaitEvent");
  }

  const Context context_;
  const std::shared_ptr<Operation> operation_;  // shared with the watchdog
};

class NcclCommunicator : public Communicator {
 public:
  // Takes over `comm`. Errors begin with the group's name.
  static std::unique_ptr<Communicator> over(std::shared_ptr<CudaApi> cuda,
                                            const std::shared_ptr<NcclApi>& nccl,
                                            const NcclOptions& options, Comm comm) {
    const auto gate = std::make_shared<CommGate>(comm);
    try {
      return std::unique_ptr<NcclCommunicator>(
          new NcclCommunicator(std::move(cuda), nccl, options, gate));
    } catch (const Error& error) {
      // If there was a watchdog, it has ended the communicator already, and nothing is left here.
      if (const Comm left = gate->take(Deadline::after(milliseconds(0)))) {
        abort_comm(nccl, left, options, Deadline::after(options.abort_timeout));
      }
      throw Error(error.code(), options.group.prefix() + error.what());
    }
  }

  NcclCommunicator(std::shared_ptr<CudaApi> cuda, std::shared_ptr<NcclApi> nccl,
                   NcclOptions options, std::shared_ptr<CommGate> gate)
      : cuda_(std::move(cuda)),
        nccl_(std::move(nccl)),
        options_(std::move(options)),
        failure_(std::make_shared<Failure>(options_.group.prefix())),
        gate_(std::move(gate)),
        events_(std::make_shared<EventPool>(cuda_, options_.rank, options_.time_operations)),
        caller_(std::make_shared<CallerStream>(options_.current_stream)),
        drain_(std::make_shared<StreamDrain>(cuda_, events_, failure_, caller_, options_)),
        number_(options_.progress
                    ? options_.progress->recorder().add_communicator("nccl", options_.size)
                    : 0),
        locks_launches_(DeviceLaunchLock::is_needed()),
        watchdog_(std::make_unique<Watchdog>(nccl_, cuda_, options_, gate_, failure_)) {
    const int rank = options_.rank;
    try {
      check_cuda(*cuda_, cuda_->stream_create_high_priority(&stream_), rank, "cudaStreamCreate");
      check_cuda(*cuda_, cuda_->event_create(&caller_ready_, false), rank, "cudaEventCreate");
      check_cuda(*cuda_, cuda_->memory_allocate(&barrier_memory_, kBarrierBytes), rank,
                 "cudaMalloc");
      check_cuda(*cuda_, cuda_->memory_set(barrier_memory_, 0, kBarrierBytes, stream_), rank,
                 "cudaMemsetAsync");
    } catch (const Error& error) {
      failure_->set(error);
      end();  // the watchdog aborts the communicator and tells the others
      throw;
    }
    drain_->open(stream_);
  }

  ~NcclCommunicator() override { end(); }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  std::string_view backend() const override { return "nccl"; }
  WorkerProgress* progress() override { return options_.progress.get(); }
  void follow_stream(const CurrentStream& current) override { caller_->follow(current); }

  bool captures_graph() const override {
    bool captures = false;
    cuda_->stream_is_capturing(caller_->on(options_.device), &captures);
    return captures;
  }

  WorkPtr run(const CollectiveCall& call, const CallOptions& options) override {
    check(call, options);
    const bool is_nothing =  // what a training asks for; NCCL has the rest
        options_.size == 1 && !options_.blocking_wait && call.kind == CollectiveKind::kAllReduce &&
        (call.op == ReduceOp::kSum || call.op == ReduceOp::kAverage);
    if (is_nothing && !is_grouping_) return done_at_once(facts(call));
    return start_work(facts(call), options, [call, this](Comm comm, Stream stream) {
      return launch(call, comm, stream);
    });
  }

  WorkPtr group(const std::function<void()>& calls, bool async) override {
    if (is_grouping_) throw refused("group", "it is inside another group");
    is_grouping_ = true;
    try {
      calls();
    } catch (...) {
      is_grouping_ = false;
      grouped_.clear();
      throw;
    }
    is_grouping_ = false;
    const std::vector<Asked> asked = std::exchange(grouped_, {});
    std::vector<WorkPtr> works;
    if (!asked.empty()) {
      for (auto& operation : start(asked)) works.push_back(work_of(std::move(operation)));
    }
    WorkPtr work = joined_work(std::move(works));
    if (!async) work->wait();
    return work;
  }

  void barrier(const CallOptions& options) override {
    refuse_on_host("barrier");
    const Asked asked{facts({CollectiveKind::kBarrier}), options, [this](Comm comm, Stream stream) {
                        return nccl_->all_reduce(barrier_memory_, barrier_memory_, 1, DType::kInt32,
                                                 ReduceOp::kSum, comm, stream);
                      }};
    wait_on_host(*start({&asked, 1}).front(), *failure_);
  }

  std::unique_ptr<CommBuffer> allocate(std::size_t size_bytes) override {
    refuse_on_host("allocate");
    std::unique_ptr<CommBuffer> buffer;
    {
      std::lock_guard lock(launch_mutex_);
      failure_->throw_if_set();
      try {
        DeviceGuard guard(*cuda_, options_.device, options_.rank);
        buffer = make_nccl_buffer({cuda_, nccl_, gate_, drain_, options_.device, options_.rank},
                                  size_bytes);
      } catch (const Error& error) {
        throw in_group(error);
      }
    }
    CudaResult zeroed = kCudaSuccess;
    const Asked asked{
        facts({CollectiveKind::kAllocate, {.count = size_bytes, .dtype = DType::kUInt8}}),
        {},
        [&](Comm, Stream stream) {
          zeroed = cuda_->memory_set(buffer->data(), 0, size_bytes, stream);
          return Result::kSuccess;
        }};
    const auto operation = start({&asked, 1}).front();
    if (zeroed != kCudaSuccess) {
      throw in_group(cuda_error(*cuda_, zeroed, options_.rank, "zeroing a buffer"));
    }
    wait_on_host(*operation, *failure_);
    return buffer;
  }

  std::unique_ptr<Communicator> split(const std::vector<int>& ranks,
                                      const SplitOptions& options) override {
    refuse_on_host("split");
    NcclOptions its = options_;
    its.group = make_group(options_.group, rank(), size(), ranks, options, &its.rank);
    if (!options_.split_store) {
      throw_invalid("this communicator was made without a store to split it by");
    }
    its.size = static_cast<int>(ranks.size());
    its.current_stream = caller_->current();
    if (options.init_timeout) its.init_timeout = *options.init_timeout;
    const int count = num_splits_[options.name]++;
    its.key_prefix = its.group.key(options_.key_prefix, count);
    const SplitPart part{.name = options.name,
                         .prefix = split_key(options_.key_prefix, options.name, count),
                         .color = *std::ranges::min_element(ranks),
                         .key = its.rank,
                         .timeout = its.init_timeout};
    const DeviceGuard guard(*cuda_, options_.device, options_.rank);
    return over(cuda_, nccl_, its, split_comm(part));
  }

  void abort(std::string_view reason) override {
    const Error error(ErrorCode::kAborted, concat("rank ", rank(), " was aborted: ", reason));
    if (failure_->set(error)) watchdog_->wake();
  }

 private:
  using Launch = std::function<Result(Comm comm, Stream stream)>;
  using OperationPtr = std::shared_ptr<Operation>;

  // The operation that a call asks for. A group starts it later.
  struct Asked {
    OperationFacts facts;
    CallOptions options;
    Launch launch;
  };

  void end() {
    watchdog_->stop();
    const bool has_ended = watchdog_->ended_well();
    drain_->close(has_ended);
    const auto free = [cuda = cuda_, device = options_.device, memory = barrier_memory_,
                       event = caller_ready_, stream = stream_, events = events_] {
      cuda->set_device(device);
      if (memory != nullptr) cuda->memory_free(memory);
      if (event != nullptr) cuda->event_destroy(event);
      if (stream != nullptr) cuda->stream_destroy(stream);
      events->clear();
    };
    const bool freed = has_ended && !drain_->is_hung() &&
                       returns_before(Deadline::after(options_.free_timeout), free);
    if (!has_ended || drain_->is_hung()) leave_kept_behind();
    if (freed && !failure_->is_set()) return;
    events_->leave();
    if (freed || !has_ended) return;
    log_warning("rank ", options_.rank, ": device ", options_.device,
                " does not take back what the communicator had on it; left behind");
    // In a healthy process the device may be busy with other work, which cudaFree waits for.
    if (failure_->is_set()) drain_->left_behind();
  }

  // Launches the operations together on this communicator's stream, after the caller's work. The
  // watchdog watches them from before their start. There is at least one.
  std::vector<OperationPtr> start(std::span<const Asked> asked) {
    const OneCaller::Inside inside(caller_thread_);
    std::lock_guard lock(launch_mutex_);
    failure_->throw_if_set();
    const bool captured = is_captured(asked.size() == 1 ? kind_name(asked[0].facts.kind) : "group");
    try {
      DeviceGuard guard(*cuda_, options_.device, options_.rank);
      return start_on_device(asked, captured);
    } catch (const Error& error) {
      fail(error);  // whatever the error is, this rank is now out of step with the others
    }
  }

  // launch_mutex_ is held and the device selected.
  std::vector<OperationPtr> start_on_device(std::span<const Asked> asked, bool captured) {
    const int rank = options_.rank;
    if (captured) watchdog_->note_graphs();
    std::vector<OperationPtr> operations;
    operations.reserve(asked.size());
    for (const Asked& one : asked) operations.push_back(watched(one));
    CudaResult ordered = cuda_->event_record(caller_ready_, caller_->on(options_.device));
    if (ordered == kCudaSuccess) ordered = cuda_->stream_wait_event(stream_, caller_ready_);
    if (ordered != kCudaSuccess) fail(cuda_error(*cuda_, ordered, rank, operations[0]->name()));
    for (const OperationPtr& operation : operations) {
      if (operation->begin() != nullptr && !captured) record(operation->begin(), *operation);
    }
    call_nccl(operations, asked);
    for (const OperationPtr& operation : operations) {
      record(operation->event(), *operation);
      captured ? operation->mark_captured() : operation->mark_launched();
    }
    return operations;
  }

  void record(Event event, const Operation& operation) {
    const CudaResult result = cuda_->event_record(event, stream_);
    if (result != kCudaSuccess) {
      fail(cuda_error(*cuda_, result, options_.rank, operation.name()));
    }
  }

  // Makes an operation that the watchdog watches. The watchdog counts it at its end, and notices if
  // CUDA hangs.
  OperationPtr watched(const Asked& asked) {
    OperationFacts facts = asked.facts;
    facts.sequence = num_operations_ + 1;
    WorkerProgress* const counted = options_.progress.get();
    const FlightRecorder::Ticket ticket =
        counted != nullptr ? counted->recorder().schedule(facts) : 0;
    auto operation = std::make_shared<Operation>(
        cuda_, events_, failure_, facts, asked.options.timeout.value_or(options_.timeout), ticket);
    ++num_operations_;
    if (counted != nullptr) {
      counted->collective_begun(facts.kind);
      counted->recorder().start(ticket);
    }
    watchdog_->watch(operation);
    return operation;
  }

  WorkPtr work_of(OperationPtr operation) const {
    NcclWork::Context context{cuda_,           failure_,      caller_,
                              options_.device, options_.rank, options_.blocking_wait};
    return std::make_shared<NcclWork>(std::move(context), std::move(operation));
  }

  // Starts the operation, and waits for it unless async. Returns null in a group, which starts it
  // at its end.
  template <typename L>
  WorkPtr start_work(const OperationFacts& facts, const CallOptions& options, const L& launch) {
    if (is_grouping_) {
      grouped_.push_back({facts, options, launch});
      return nullptr;
    }
    const Asked asked{facts, options, std::cref(launch)};  // std::cref: needs no memory
    WorkPtr work = work_of(start({&asked, 1}).front());
    if (!options.async) work->wait();
    return work;
  }

  // Counts an operation that changes nothing: it needs no launch, no event and no order of streams.
  WorkPtr done_at_once(OperationFacts facts) {
    const OneCaller::Inside inside(caller_thread_);
    const std::lock_guard lock(launch_mutex_);
    failure_->throw_if_set();
    facts.sequence = ++num_operations_;
    WorkerProgress* const counted = options_.progress.get();
    CollectiveScope scope(counted, facts.kind,
                          counted != nullptr ? counted->recorder().schedule(facts) : 0);
    scope.complete();
    return completed_work();
  }

  // Calls nccl::split_comm; no operation starts here before its end. It sets and throws a failure.
  Comm split_comm(const SplitPart& part) {
    std::lock_guard lock(launch_mutex_);
    failure_->throw_if_set();
    try {
      return nccl::split_comm(cuda_, nccl_, *options_.split_store, {options_, gate_, failure_},
                              part);
    } catch (const Error& error) {
      fail(error);  // NCCL may still be inside
    }
  }

  // Launches all operations inside the gate, several as one group. It sets and throws a failure.
  void call_nccl(const std::vector<OperationPtr>& operations, std::span<const Asked> asked) {
    std::optional<Error> error;
    {
      std::optional<DeviceLaunchLock> lock;
      if (locks_launches_) lock.emplace(options_.device);
      const CommGate::Pass pass(*gate_);
      if (pass.comm() == nullptr) throw_gone();
      const bool is_group = asked.size() > 1;
      Result result = is_group ? nccl_->group_start() : Result::kSuccess;
      const bool has_begun = result == Result::kSuccess;
      std::optional<std::size_t> refused;  // the call that NCCL refused
      for (std::size_t i = 0; i < asked.size() && result == Result::kSuccess; ++i) {
        result = asked[i].launch(pass.comm(), stream_);
        if (result != Result::kSuccess) refused = i;
      }
      if (is_group &&
          has_begun) {  // after a refused launch it launches nothing and returns the same error
        const Result ended = nccl_->group_end();
        if (result == Result::kSuccess) result = ended;
      }
      if (result != Result::kSuccess) {
        error = nccl_error(*nccl_, pass.comm(), result, options_.rank,
                           refused || !is_group ? operations[refused.value_or(0)]->name()
                                                : concat("a group of ", asked.size(), " calls"));
      }
    }
    if (error) fail(*error);
    failure_->throw_if_set();
  }

  [[noreturn]] void fail(const Error& error) {
    failure_->set(error);
    watchdog_->wake();
    failure_->throw_if_set();
    throw Error(error);
  }

  // Returns whether `what` becomes part of a CUDA graph. Throws Error(kInvalidArgument) if it would
  // break one.
  bool is_captured(std::string_view what) const {
    bool callers = false;
    bool own = false;
    const CudaResult result = cuda_->stream_is_capturing(caller_->on(options_.device), &callers);
    if (result == kCudaCaptureImplicit) {
      throw refused(what,
                    "a CUDA graph is captured beside the legacy default stream, which is "
                    "the caller's current one: follow_stream() names another");
    }
    if (!callers && watchdog_->has_graphs()) cuda_->stream_is_capturing(stream_, &own);
    if (own) {
      throw refused(what,
                    "a CUDA graph is captured on another stream with operations of this "
                    "communicator: end that capture first");
    }
    return callers;
  }

  // Throws Error(kInvalidArgument) if `operation`, which waits on the host, would be captured or
  // part of a group.
  void refuse_on_host(const char* operation) const {
    if (is_grouping_) throw refused(operation, "it can't be part of a group");
    if (!is_captured(operation)) return;
    throw refused(operation,
                  "the caller's stream captures a CUDA graph, and this waits on the host");
  }

  // Called when the watchdog has taken the ncclComm_t.
  [[noreturn]] void throw_gone() {
    failure_->throw_if_set();
    throw rank_error(ErrorCode::kAborted, options_.rank, "the communicator is being destroyed");
  }

  // Returns the same error, with the group's name before its text.
  Error in_group(const Error& error) const {
    return {error.code(), options_.group.prefix() + error.what()};
  }

  // Returns Error(kInvalidArgument), with the group, this rank and the operation's name before
  // `problem`.
  template <typename... Problem>
  Error refused(std::string_view operation, const Problem&... problem) const {
    return in_group(
        rank_error(ErrorCode::kInvalidArgument, options_.rank, operation, ": ", problem...));
  }

  void check_buffer(const char* operation, const TensorView& buffer) const {
    const Device expected{Device::Kind::kCuda, options_.device};
    if (buffer.device != expected) {
      const std::string where = buffer.device.kind == Device::Kind::kCpu
                                    ? "the CPU"
                                    : concat("GPU ", buffer.device.index);
      throw refused(operation, "the buffer is on ", where, ", the communicator on GPU ",
                    options_.device);
    }
    if (!buffer.is_possible()) {
      throw refused(operation, "no buffer has ", buffer.count, " elements");
    }
    if (buffer.data == nullptr && buffer.count > 0) {
      throw refused(operation, "the buffer has no memory");
    }
  }

  void check_reduction(const char* operation, const TensorView& buffer, ReduceOp op) const {
    const std::string problem = reduction_problem(buffer.dtype, op);
    if (!problem.empty()) throw refused(operation, problem);
  }

  void check_rank(const char* operation, const char* role, int rank) const {
    if (rank >= 0 && rank < options_.size) return;
    throw refused(operation, role, " ", rank, " is not a rank below ", options_.size);
  }

  void check_peer(const char* operation, int peer) const {
    check_rank(operation, "peer", peer);
    if (peer == options_.rank && !is_grouping_) {
      throw refused(operation, "the peer is this rank itself, which only a group can have");
    }
  }

  void check_no_tag(const char* operation, const CallOptions& options) const {
    if (options.tag != 0) throw refused(operation, "NCCL's messages have no tags");
  }

  // `whole` has size() parts. `part` may share memory with this rank's own part of `whole`.
  void check_parts(const char* operation, const TensorView& part, const TensorView& whole) const {
    const std::string problem = parts_problem(part, whole, options_.rank, options_.size);
    if (!problem.empty()) throw refused(operation, problem);
  }

  void check(const CollectiveCall& call, const CallOptions& options) const {
    const char* const name = kind_name(call.kind);
    check_buffer(name, call.input);
    if (call.has_parts()) {
      check_buffer(name, call.output);
      check_parts(name, call.part(), call.whole());
    }
    if (has_op(call.kind)) check_reduction(name, call.part(), call.op);
    if (has_root(call.kind)) check_rank(name, "root", call.root);
    if (!call.is_message()) return;
    check_no_tag(name, options);
    check_peer(name, call.root);
  }

  Result launch(const CollectiveCall& call, Comm comm, Stream stream) {
    const void* const from = call.input.data;
    void* const to = call.output.data;
    const std::size_t count = call.part().count;
    const DType dtype = call.part().dtype;
    switch (call.kind) {
      case CollectiveKind::kAllReduce:
        return nccl_->all_reduce(from, to, count, dtype, call.op, comm, stream);
      case CollectiveKind::kReduce:
        return nccl_->reduce(from, to, count, dtype, call.op, call.root, comm, stream);
      case CollectiveKind::kBroadcast:
        return nccl_->broadcast(from, to, count, dtype, call.root, comm, stream);
      case CollectiveKind::kAllGather:
        return nccl_->all_gather(from, to, count, dtype, comm, stream);
      case CollectiveKind::kReduceScatter:
        return nccl_->reduce_scatter(from, to, count, dtype, call.op, comm, stream);
      case CollectiveKind::kSend:
        return nccl_->send(from, count, dtype, call.root, comm, stream);
      default:  // kRecv
        return nccl_->recv(to, count, dtype, call.root, comm, stream);
    }
  }

  OperationFacts facts(const CollectiveCall& call) const { return facts_of(call, number_, 0); }

  // Constant after construction.
  const std::shared_ptr<CudaApi> cuda_;
  const std::shared_ptr<NcclApi> nccl_;
  const NcclOptions options_;
  const std::shared_ptr<Failure> failure_;      // shared with each Work
  const std::shared_ptr<CommGate> gate_;        // shared with the watchdog and each CommBuffer
  const std::shared_ptr<EventPool> events_;     // shared with each operation
  const std::shared_ptr<CallerStream> caller_;  // shared with each Work and drain_
  const std::shared_ptr<StreamDrain> drain_;    // shared with each CommBuffer
  const std::uint32_t number_;                  // this communicator's number in the flight recorder
  const bool locks_launches_;                   // a launch takes a DeviceLaunchLock
  Stream stream_ = nullptr;
  Event caller_ready_ = nullptr;    // recorded after the caller's work when an operation starts
  void* barrier_memory_ = nullptr;  // one element on the device

  // Used on the caller's thread only.
  std::map<std::string, int> num_splits_;  // by name
  OneCaller caller_thread_;
  bool is_grouping_ = false;  // inside group()
  std::vector<Asked> grouped_;

  std::mutex launch_mutex_;
  std::uint64_t num_operations_ = 0;  // Guarded by launch_mutex_

  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(std::shared_ptr<CudaApi> cuda,
                                                     const std::shared_ptr<NcclApi>& nccl,
                                                     store::Store& store,
                                                     const NcclOptions& options) {
  check_options(options);
  DeviceGuard guard(*cuda, options.device, options.rank);
  Comm comm = set_up_comm(cuda, nccl, store, options);
  return NcclCommunicator::over(std::move(cuda), nccl, options, comm);
}

}  // namespace ddprun::nccl
