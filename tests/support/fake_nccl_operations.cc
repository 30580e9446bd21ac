// SPDX-License-Identifier: Apache-2.0
// FakeNccl's collectives and messages: the checks of a call, and the tasks on the streams.
#include <cstring>
#include <utility>

#include "tests/support/elements.h"
#include "tests/support/fake_nccl_parts.h"
#include "worker_sdk/core/nccl/comm_gate.h"

namespace ddprun::test {

using nccl::Comm;
using nccl::Result;
using nccl::Stream;

namespace {

// The depth of nested group_start() calls in the thread.
thread_local int group_depth = 0;

}  // namespace

thread_local FakeNccl::OpenGroup FakeNccl::open_group_;

Result FakeNccl::group_start() {
  ++group_depth;
  return Result::kSuccess;
}

Result FakeNccl::group_end() {
  if (group_depth == 0) return Result::kInvalidUsage;
  if (--group_depth > 0) return Result::kSuccess;
  const OpenGroup group = std::exchange(open_group_, {});
  if (group.result != Result::kSuccess || group.calls.empty()) return group.result;
  return launch("group_end", group.comm, group.stream, group.calls);
}

Result FakeNccl::ask(const char* function, Comm comm, Stream stream, const Call& call) {
  if (group_depth == 0) return launch(function, comm, stream, {call});
  Entry entry(*this, comm, function);
  if (!entry.ok()) return open_group_.result = entry.result();
  open_group_.comm = comm;
  open_group_.stream = stream;
  open_group_.calls.push_back(call);
  return Result::kSuccess;
}

Result FakeNccl::launch(const char* function, Comm comm, Stream stream,
                        const std::vector<Call>& calls) {
  const bool is_ordered = nccl::DeviceLaunchLock::is_needed();
  int device = 0;
  cuda_->get_device(&device);
  if (is_ordered) {
    Lock lock(mutex_);
    if (!launching_.insert(device).second) ++num_violations_;
  }
  const Result result = enqueue(function, comm, stream, calls);
  if (is_ordered) {
    Lock lock(mutex_);
    launching_.erase(device);
  }
  return result;
}

Result FakeNccl::enqueue(const char* function, Comm comm, Stream stream,
                         const std::vector<Call>& calls) {
  Entry entry(*this, comm, function);
  if (!entry.ok()) return entry.result();
  bool is_captured = false;
  cuda_->stream_is_capturing(stream, &is_captured);
  const std::shared_ptr<Rank> rank = entry.rank();
  Lock lock(mutex_);
  begin(*rank, calls);
  if (is_captured) ++rank->num_graph_tasks;
  // A captured task runs at each replay of its graph, or never. It is destroyed with the graph.
  const auto gone = [this, rank, calls, is_captured](bool* has_begun) {
    Lock its_lock(mutex_);
    if (*has_begun) end(*rank, calls);
    if (is_captured) --rank->num_graph_tasks;
    changed_.notify_all();
    delete has_begun;
  };
  std::shared_ptr<bool> has_begun(new bool(true), gone);
  lock.unlock();
  cuda_->enqueue(stream, [this, rank, calls, has_begun = std::move(has_begun)] {
    Lock its_lock(mutex_);
    if (!std::exchange(*has_begun, false)) begin(*rank, calls);
    run(its_lock, *rank, calls);
  });
  return Result::kSuccess;
}

void FakeNccl::begin(Rank& rank, const std::vector<Call>& calls) {
  rank.num_running += static_cast<int>(calls.size());
  for (const Call& call : calls) {
    if (!may_use_nvls(*rank.group, call)) {
      without_nvls_.insert(concat(call.name(), " ", call.has_op() ? to_string(call.op) : "of", " ",
                                  to_string(call.dtype), " on ", rank.group->num_nodes(),
                                  " nodes"));
    }
    for (const void* memory : {call.input, static_cast<const void*>(call.output)}) {
      in_use_.insert(memory);
    }
  }
}

// As NCCL 2.28 decides it, in updateCollCostTable() and ncclNvlsSupported().
bool FakeNccl::may_use_nvls(const Group& group, const Call& call) const {
  const bool is_all_reduce = call.kind == Call::Kind::kAllReduce;
  if (!is_all_reduce && call.kind != Call::Kind::kReduceScatter &&
      call.kind != Call::Kind::kAllGather) {
    return false;
  }
  // Between nodes an all-reduce has a tree of its own; the others need the network's help.
  if (group.num_nodes() > 1 && !is_all_reduce && !network_reduces_) return false;
  if (call.kind == Call::Kind::kAllGather) return true;
  switch (call.dtype) {
    case DType::kFloat32:
    case DType::kFloat64:
      return call.op == ReduceOp::kSum;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt32:
    case DType::kInt64:
      return call.op == ReduceOp::kSum || call.op == ReduceOp::kMin || call.op == ReduceOp::kMax;
    default:
      return false;
  }
}

// Sends and receives of a group don't wait for each other.
void FakeNccl::run(Lock& lock, Rank& rank, const std::vector<Call>& calls) {
  std::vector<std::shared_ptr<Letter>> sent;
  for (const Call& call : calls) {
    if (call.kind == Call::Kind::kSend) sent.push_back(post(rank, call));
  }
  for (const Call& call : calls) {
    if (call.kind == Call::Kind::kSend) continue;
    if (call.kind == Call::Kind::kRecv) {
      receive(lock, rank, call);
    } else {
      run_collective(lock, rank, ++rank.num_calls, call);
    }
  }
  for (const auto& letter : sent) {
    changed_.wait(lock, [&] { return letter->taken || rank.aborted; });
    letter->taken = true;  // after an abort the memory must not be read any more
  }
  end(rank, calls);
}

void FakeNccl::end(Rank& rank, const std::vector<Call>& calls) {
  rank.num_running -= static_cast<int>(calls.size());
  for (const Call& call : calls) {
    for (const void* memory : {call.input, static_cast<const void*>(call.output)}) {
      in_use_.erase(in_use_.find(memory));
    }
  }
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

std::shared_ptr<FakeNccl::Letter> FakeNccl::post(Rank& rank, const Call& call) {
  auto letter = std::make_shared<Letter>(Letter{call, false});
  rank.group->mail[{rank.rank, call.root_or_peer}].push_back(letter);
  changed_.notify_all();
  return letter;
}

void FakeNccl::receive(Lock& lock, Rank& rank, const Call& call) {
  Group& group = *rank.group;
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
  // Inputs are copied first, because outputs may be the inputs.
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
        if (first.kind == Call::Kind::kReduce && static_cast<int>(rank) != first.root_or_peer)
          break;
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
  return ask("all_reduce", comm, stream,
             {Call::Kind::kAllReduce, input, output, count, dtype, op, 0});
}

Result FakeNccl::reduce(const void* input, void* output, std::size_t count, DType dtype,
                        ReduceOp op, int root, Comm comm, Stream stream) {
  return ask("reduce", comm, stream, {Call::Kind::kReduce, input, output, count, dtype, op, root});
}

Result FakeNccl::broadcast(const void* input, void* output, std::size_t count, DType dtype,
                           int root, Comm comm, Stream stream) {
  return ask("broadcast", comm, stream,
             {Call::Kind::kBroadcast, input, output, count, dtype, ReduceOp::kSum, root});
}

Result FakeNccl::all_gather(const void* input, void* output, std::size_t input_count, DType dtype,
                            Comm comm, Stream stream) {
  return ask("all_gather", comm, stream,
             {Call::Kind::kAllGather, input, output, input_count, dtype, ReduceOp::kSum, 0});
}

Result FakeNccl::reduce_scatter(const void* input, void* output, std::size_t output_count,
                                DType dtype, ReduceOp op, Comm comm, Stream stream) {
  return ask("reduce_scatter", comm, stream,
             {Call::Kind::kReduceScatter, input, output, output_count, dtype, op, 0});
}

Result FakeNccl::send(const void* input, std::size_t count, DType dtype, int peer, Comm comm,
                      Stream stream) {
  return ask("send", comm, stream,
             {Call::Kind::kSend, input, nullptr, count, dtype, ReduceOp::kSum, peer});
}

Result FakeNccl::recv(void* output, std::size_t count, DType dtype, int peer, Comm comm,
                      Stream stream) {
  return ask("recv", comm, stream,
             {Call::Kind::kRecv, nullptr, output, count, dtype, ReduceOp::kSum, peer});
}

}  // namespace ddprun::test
