// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl.h"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>

#include "tests/support/elements.h"

namespace ddprun::test {

using nccl::Comm;
using nccl::Result;
using nccl::Stream;
using nccl::UniqueId;

struct FakeNccl::Call {
  enum class Kind { kAllReduce, kBroadcast, kAllGather, kReduceScatter, kSend, kRecv };
  Kind kind;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;  // as NCCL counts it: of the part
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root_or_peer = 0;

  bool matches(const Call& other) const {
    return kind == other.kind && count == other.count && dtype == other.dtype && op == other.op &&
           root_or_peer == other.root_or_peer;
  }
};

struct FakeNccl::Slot {
  explicit Slot(int size) : calls(static_cast<std::size_t>(size)) {}
  std::vector<std::optional<Call>> calls;  // by rank
  int num_arrived = 0;
  bool done = false;
  bool dead = false;  // a rank left by abort: never done
};

struct FakeNccl::Group {
  int size = 0;
  int num_joined = 0;
  std::vector<bool> joined;
  std::map<std::uint64_t, std::shared_ptr<Slot>> slots;
  struct Letter {
    Call call;
    bool taken = false;
  };
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Letter>>> mail;  // (from, to)
  Result error = Result::kSuccess;  // e.g. calls that don't match: reported on every rank
  bool complete() const { return num_joined == size; }
};

struct FakeNccl::Rank {
  std::shared_ptr<Group> group;
  int rank = 0;
  std::uint64_t num_calls = 0;
  int num_running = 0;      // tasks on streams
  int polls_left = 0;       // kInProgress answers to give
  bool in_progress = true;  // until a poll has said otherwise
  bool finalizing = false;
  bool aborted = false;
  bool busy = false;  // a thread is inside
};

// Counts a violation where another thread is inside, or the communicator is gone or in progress.
class FakeNccl::Entry {
 public:
  Entry(FakeNccl& fake, Comm comm, const char* function) : fake_(fake) {
    Lock lock(fake_.mutex_);
    rank_ = fake_.find(comm);
    if (!rank_ || rank_->busy || rank_->in_progress) {
      ++fake_.num_violations_;
      rank_ = nullptr;
      result_ = Result::kInvalidUsage;
      return;
    }
    rank_->busy = true;
    result_ = fake_.take_fault(rank_->rank, function);
    if (result_ != Result::kSuccess) return;
    if (fake_.hangs_.erase({rank_->rank, function}) > 0) {
      fake_.changed_.wait(lock, [&] { return rank_->aborted; });
      result_ = Result::kInternalError;
      return;
    }
    // Room for a second thread to walk in, were it let.
    lock.unlock();
    for (int i = 0; i < 20; ++i) std::this_thread::yield();
    lock.lock();
    if (rank_->aborted) result_ = Result::kInternalError;
  }

  ~Entry() {
    Lock lock(fake_.mutex_);
    if (rank_) rank_->busy = false;
    fake_.changed_.notify_all();
  }

  // After success: kInProgress where the test wants it.
  Result answer() {
    Lock lock(fake_.mutex_);
    if (result_ != Result::kSuccess || fake_.in_progress_polls_ == 0) return result_;
    rank_->polls_left = fake_.in_progress_polls_;
    rank_->in_progress = true;
    return Result::kInProgress;
  }

  bool ok() const { return result_ == Result::kSuccess; }
  Result result() const { return result_; }
  const std::shared_ptr<Rank>& rank() const { return rank_; }

 private:
  FakeNccl& fake_;
  std::shared_ptr<Rank> rank_;
  Result result_ = Result::kSuccess;
};

FakeNccl::~FakeNccl() {
  for (const auto& [data, size_bytes] : buffers_) std::free(data);
}

// ---- Faults and counters ----

void FakeNccl::set_in_progress_polls(int num_polls) {
  Lock lock(mutex_);
  in_progress_polls_ = num_polls;
}

void FakeNccl::fail_next(int rank, const std::string& function, Result result) {
  Lock lock(mutex_);
  faults_[{rank, function}] = result;
}

void FakeNccl::inject_async_error(int rank, Result error) {
  Lock lock(mutex_);
  async_errors_[rank] = error;
}

void FakeNccl::hang_next(int rank, const std::string& function) {
  Lock lock(mutex_);
  hangs_[{rank, function}] = true;
}

void FakeNccl::hang_aborts() {
  Lock lock(mutex_);
  aborts_hang_ = true;
}

void FakeNccl::release_aborts() {
  Lock lock(mutex_);
  aborts_hang_ = false;
  changed_.notify_all();
}

void FakeNccl::set_has_mem_alloc(bool has) {
  Lock lock(mutex_);
  has_mem_alloc_ = has;
}

void FakeNccl::set_has_init_rank_scalable(bool has) {
  Lock lock(mutex_);
  has_scalable_ = has;
}

int FakeNccl::num_violations() const {
  Lock lock(mutex_);
  return num_violations_;
}

int FakeNccl::num_live_comms() const {
  Lock lock(mutex_);
  return static_cast<int>(comms_.size());
}

int FakeNccl::num_live_buffers() const {
  Lock lock(mutex_);
  return static_cast<int>(buffers_.size());
}

int FakeNccl::num_registered() const {
  Lock lock(mutex_);
  return num_registered_;
}

int FakeNccl::num_aborts() const {
  Lock lock(mutex_);
  return num_aborts_;
}

int FakeNccl::num_ids() const {
  Lock lock(mutex_);
  return num_ids_;
}

Result FakeNccl::take_fault(int rank, const std::string& function) {
  const auto found = faults_.find({rank, function});
  if (found == faults_.end()) return Result::kSuccess;
  const Result result = found->second;
  faults_.erase(found);
  return result;
}

std::shared_ptr<FakeNccl::Rank> FakeNccl::find(Comm comm) {
  const auto found = comms_.find(comm);
  return found == comms_.end() ? nullptr : found->second;
}

// ---- Set-up and end ----

Result FakeNccl::get_unique_id(UniqueId* id) {
  Lock lock(mutex_);
  if (const Result fault = take_fault(0, "get_unique_id"); fault != Result::kSuccess) return fault;
  const std::string text = "fake unique id " + std::to_string(++num_ids_);
  std::memset(id->bytes, 0, UniqueId::kSizeBytes);
  std::memcpy(id->bytes, text.data(), text.size());
  groups_[std::string(id->bytes, UniqueId::kSizeBytes)] = nullptr;  // known, not used yet
  return Result::kSuccess;
}

Result FakeNccl::comm_init_rank(Comm* comm, int size, const UniqueId& id, int rank) {
  return join(comm, size, std::string(id.bytes, UniqueId::kSizeBytes), rank);
}

bool FakeNccl::has_init_rank_scalable() {
  Lock lock(mutex_);
  return has_scalable_;
}

Result FakeNccl::comm_init_rank_scalable(Comm* comm, int size, int rank, const UniqueId* ids,
                                         int num_ids) {
  {
    Lock lock(mutex_);
    for (int i = 0; i < num_ids; ++i) {
      if (groups_.count(std::string(ids[i].bytes, UniqueId::kSizeBytes)) == 0) {
        return Result::kInvalidArgument;
      }
    }
  }
  return join(comm, size, std::string(ids[0].bytes, UniqueId::kSizeBytes), rank);
}

Result FakeNccl::join(Comm* comm, int size, const std::string& key, int rank) {
  Lock lock(mutex_);
  if (const Result fault = take_fault(rank, "comm_init_rank"); fault != Result::kSuccess) {
    return fault;
  }
  const auto found = groups_.find(key);
  if (found == groups_.end() || rank < 0 || rank >= size) return Result::kInvalidArgument;
  if (!found->second) {
    found->second = std::make_shared<Group>();
    found->second->size = size;
    found->second->joined.resize(static_cast<std::size_t>(size));
  }
  Group& group = *found->second;
  if (group.size != size) return Result::kInvalidArgument;
  if (group.joined[static_cast<std::size_t>(rank)]) return Result::kInvalidUsage;  // id used twice
  group.joined[static_cast<std::size_t>(rank)] = true;
  ++group.num_joined;
  auto made = std::make_shared<Rank>();
  made->group = found->second;
  made->rank = rank;
  made->polls_left = in_progress_polls_;
  *comm = reinterpret_cast<Comm>(made.get());
  comms_[*comm] = made;
  return Result::kInProgress;
}

Result FakeNccl::comm_async_error(Comm comm, Result* state) {
  Lock lock(mutex_);
  const auto rank = find(comm);
  if (!rank) {
    ++num_violations_;
    return Result::kInvalidArgument;
  }
  *state = Result::kInProgress;
  const auto injected = async_errors_.find(rank->rank);
  if (injected != async_errors_.end()) {
    *state = injected->second;
  } else if (rank->group->error != Result::kSuccess) {
    *state = rank->group->error;
  } else if (!rank->group->complete() || (rank->finalizing && rank->num_running > 0)) {
    // still connecting, or still flushing
  } else if (rank->polls_left > 0) {
    --rank->polls_left;
  } else {
    rank->in_progress = false;
    *state = Result::kSuccess;
  }
  return Result::kSuccess;
}

Result FakeNccl::comm_finalize(Comm comm) {
  Entry entry(*this, comm, "comm_finalize");
  if (!entry.ok()) return entry.result();
  Lock lock(mutex_);
  entry.rank()->finalizing = true;
  entry.rank()->in_progress = true;
  return Result::kInProgress;
}

Result FakeNccl::comm_destroy(Comm comm) {
  Entry entry(*this, comm, "comm_destroy");
  if (!entry.ok()) return entry.result();
  Lock lock(mutex_);
  if (!entry.rank()->finalizing) {
    ++num_violations_;
    return Result::kInvalidUsage;
  }
  comms_.erase(comm);
  return Result::kSuccess;
}

Result FakeNccl::comm_abort(Comm comm) {
  Lock lock(mutex_);
  const auto rank = find(comm);
  if (!rank) {
    ++num_violations_;
    return Result::kInvalidArgument;
  }
  ++num_aborts_;
  changed_.wait(lock, [this] { return !aborts_hang_; });
  rank->aborted = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return !rank->busy; });
  comms_.erase(comm);
  return Result::kSuccess;
}

// ---- Operations ----

Result FakeNccl::launch(const char* function, Comm comm, Stream stream, Call call) {
  Entry entry(*this, comm, function);
  if (!entry.ok()) return entry.result();
  std::uint64_t seq = 0;
  {
    Lock lock(mutex_);
    ++entry.rank()->num_running;
    const bool collective = call.kind != Call::Kind::kSend && call.kind != Call::Kind::kRecv;
    if (collective) seq = ++entry.rank()->num_calls;
  }
  cuda_->enqueue(stream, [this, rank = entry.rank(), seq, call] { run(rank, seq, call); });
  return entry.answer();
}

void FakeNccl::run(const std::shared_ptr<Rank>& rank, std::uint64_t seq, const Call& call) {
  Lock lock(mutex_);
  if (seq == 0) {
    run_point_to_point(lock, *rank, call);
  } else {
    run_collective(lock, *rank, seq, call);
  }
  --rank->num_running;
  changed_.notify_all();
}

void FakeNccl::run_collective(Lock& lock, Rank& rank, std::uint64_t seq, const Call& call) {
  Group& group = *rank.group;
  auto& entry = group.slots[seq];
  if (!entry) entry = std::make_shared<Slot>(group.size);
  const auto slot = entry;
  for (const auto& other : slot->calls) {
    if (other && !other->matches(call)) group.error = Result::kInvalidUsage;
  }
  slot->calls[static_cast<std::size_t>(rank.rank)] = call;
  ++slot->num_arrived;
  if (slot->num_arrived == group.size && !slot->dead && group.error == Result::kSuccess) {
    compute(*slot);
    slot->done = true;
    group.slots.erase(seq);
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return slot->done || rank.aborted; });
  if (slot->done) return;
  slot->dead = true;
  const std::size_t rubbish_count =
      call.kind == Call::Kind::kAllGather ? call.count * slot->calls.size() : call.count;
  std::memset(call.output, 0xEE, rubbish_count * size_of(call.dtype));
}

void FakeNccl::run_point_to_point(Lock& lock, Rank& rank, const Call& call) {
  Group& group = *rank.group;
  if (call.kind == Call::Kind::kSend) {
    auto letter = std::make_shared<Group::Letter>(Group::Letter{call, false});
    group.mail[{rank.rank, call.root_or_peer}].push_back(letter);
    changed_.notify_all();
    changed_.wait(lock, [&] { return letter->taken || rank.aborted; });
    letter->taken = true;  // after an abort: the memory is not to be read any more
    return;
  }
  auto& box = group.mail[{call.root_or_peer, rank.rank}];
  changed_.wait(lock, [&] { return !box.empty() || rank.aborted; });
  if (rank.aborted) {
    std::memset(call.output, 0xEE, call.count * size_of(call.dtype));
    return;
  }
  const auto letter = box.front();
  box.pop_front();
  if (letter->call.count != call.count || letter->call.dtype != call.dtype) {
    group.error = Result::kInvalidUsage;
  } else if (!letter->taken) {
    std::memcpy(call.output, letter->call.input, call.count * size_of(call.dtype));
  }
  letter->taken = true;
  changed_.notify_all();
}

void FakeNccl::compute(const Slot& slot) {
  const Call& first = *slot.calls[0];
  const std::size_t size = slot.calls.size();
  const bool scatter = first.kind == Call::Kind::kReduceScatter;
  const std::size_t part_bytes = first.count * size_of(first.dtype);
  const std::size_t input_bytes = scatter ? part_bytes * size : part_bytes;
  // Copied first: outputs may be the inputs.
  std::vector<std::vector<char>> inputs;
  for (const auto& call : slot.calls) {
    const char* begin = static_cast<const char*>(call->input);
    inputs.emplace_back(begin, begin + input_bytes);
  }
  const auto reduced = [&](std::size_t index) {
    double value = load_element(inputs[0].data(), index, first.dtype);
    for (std::size_t rank = 1; rank < size; ++rank) {
      value = combine(first.op, value, load_element(inputs[rank].data(), index, first.dtype));
    }
    return first.op == ReduceOp::kAverage ? value / static_cast<double>(size) : value;
  };
  for (std::size_t rank = 0; rank < size; ++rank) {
    char* output = static_cast<char*>(slot.calls[rank]->output);
    switch (first.kind) {
      case Call::Kind::kBroadcast:
        if (part_bytes == 0) break;
        std::memcpy(output, inputs[static_cast<std::size_t>(first.root_or_peer)].data(),
                    part_bytes);
        break;
      case Call::Kind::kAllGather:
        for (std::size_t peer = 0; peer < size && part_bytes > 0; ++peer) {
          std::memcpy(output + peer * part_bytes, inputs[peer].data(), part_bytes);
        }
        break;
      default: {
        const std::size_t offset = scatter ? rank * first.count : 0;
        for (std::size_t i = 0; i < first.count; ++i) {
          store_element(output, i, first.dtype, reduced(offset + i));
        }
      }
    }
  }
}

Result FakeNccl::all_reduce(const void* input, void* output, std::size_t count, DType dtype,
                            ReduceOp op, Comm comm, Stream stream) {
  return launch("all_reduce", comm, stream,
                {Call::Kind::kAllReduce, input, output, count, dtype, op, 0});
}

Result FakeNccl::broadcast(const void* input, void* output, std::size_t count, DType dtype,
                           int root, Comm comm, Stream stream) {
  return launch("broadcast", comm, stream,
                {Call::Kind::kBroadcast, input, output, count, dtype, ReduceOp::kSum, root});
}

Result FakeNccl::all_gather(const void* input, void* output, std::size_t input_count, DType dtype,
                            Comm comm, Stream stream) {
  return launch("all_gather", comm, stream,
                {Call::Kind::kAllGather, input, output, input_count, dtype, ReduceOp::kSum, 0});
}

Result FakeNccl::reduce_scatter(const void* input, void* output, std::size_t output_count,
                                DType dtype, ReduceOp op, Comm comm, Stream stream) {
  return launch("reduce_scatter", comm, stream,
                {Call::Kind::kReduceScatter, input, output, output_count, dtype, op, 0});
}

Result FakeNccl::send(const void* input, std::size_t count, DType dtype, int peer, Comm comm,
                      Stream stream) {
  return launch("send", comm, stream,
                {Call::Kind::kSend, input, nullptr, count, dtype, ReduceOp::kSum, peer});
}

Result FakeNccl::recv(void* output, std::size_t count, DType dtype, int peer, Comm comm,
                      Stream stream) {
  return launch("recv", comm, stream,
                {Call::Kind::kRecv, nullptr, output, count, dtype, ReduceOp::kSum, peer});
}

// ---- Memory and texts ----

bool FakeNccl::has_mem_alloc() {
  Lock lock(mutex_);
  return has_mem_alloc_;
}

Result FakeNccl::mem_alloc(void** data, std::size_t size_bytes) {
  Lock lock(mutex_);
  if (const Result fault = take_fault(0, "mem_alloc"); fault != Result::kSuccess) return fault;
  *data = std::aligned_alloc(256, (size_bytes + 255) / 256 * 256);
  std::memset(*data, 0xCD, size_bytes);
  buffers_[*data] = size_bytes;
  return Result::kSuccess;
}

Result FakeNccl::mem_free(void* data) {
  Lock lock(mutex_);
  if (buffers_.erase(data) == 0) return Result::kInvalidArgument;
  std::free(data);
  return Result::kSuccess;
}

Result FakeNccl::comm_register(Comm comm, void* data, std::size_t, void** handle) {
  Entry entry(*this, comm, "comm_register");
  if (!entry.ok()) return entry.result();
  {
    Lock lock(mutex_);
    ++num_registered_;
  }
  *handle = data;
  return entry.answer();
}

Result FakeNccl::comm_deregister(Comm comm, void*) {
  Entry entry(*this, comm, "comm_deregister");
  if (!entry.ok()) return entry.result();
  Lock lock(mutex_);
  --num_registered_;
  return Result::kSuccess;
}

std::string FakeNccl::error_text(Result result) {
  switch (result) {
    case Result::kRemoteError:
      return "remote process exited or there was a network error";
    case Result::kSystemError:
      return "unhandled system error";
    case Result::kInvalidUsage:
      return "invalid usage";
    default:
      return "NCCL error " + std::to_string(static_cast<int>(result));
  }
}

std::string FakeNccl::last_error(Comm) { return "details from the fake"; }

}  // namespace ddprun::test
