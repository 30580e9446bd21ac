// SPDX-License-Identifier: Apache-2.0
// FakeNccl's collectives and messages: what a call checks, and what runs on the streams.
#include <cstring>
#include <utility>

#include "tests/support/elements.h"
#include "tests/support/fake_nccl_parts.h"
#include "worker_sdk/core/nccl/comm_gate.h"

namespace ddprun::test {

using nccl::Comm;
using nccl::Result;
using nccl::Stream;

Result FakeNccl::launch(const char* function, Comm comm, Stream stream, Call call) {
  const bool is_ordered = nccl::DeviceLaunchLock::is_needed();
  int device = 0;
  cuda_->get_device(&device);
  if (is_ordered) {
    Lock lock(mutex_);
    if (!launching_.insert(device).second) ++num_violations_;
  }
  const Result result = enqueue(function, comm, stream, call);
  if (is_ordered) {
    Lock lock(mutex_);
    launching_.erase(device);
  }
  return result;
}

Result FakeNccl::enqueue(const char* function, Comm comm, Stream stream, const Call& call) {
  Entry entry(*this, comm, function);
  if (!entry.ok()) return entry.result();
  bool is_captured = false;
  cuda_->stream_is_capturing(stream, &is_captured);
  const std::shared_ptr<Rank> rank = entry.rank();
  Lock lock(mutex_);
  begin(*rank, call);
  if (is_captured) ++rank->num_graph_tasks;
  // A task of a graph runs at each replay, or never, and goes with the graph.
  const auto gone = [this, rank, call, is_captured](bool* has_begun) {
    Lock its_lock(mutex_);
    if (*has_begun) end(*rank, call);
    if (is_captured) --rank->num_graph_tasks;
    changed_.notify_all();
    delete has_begun;
  };
  std::shared_ptr<bool> has_begun(new bool(true), gone);
  lock.unlock();
  cuda_->enqueue(stream, [this, rank, call, has_begun = std::move(has_begun)] {
    Lock its_lock(mutex_);
    if (!std::exchange(*has_begun, false)) begin(*rank, call);
    run(its_lock, *rank, call);
  });
  return Result::kSuccess;
}

void FakeNccl::begin(Rank& rank, const Call& call) {
  ++rank.num_running;
  for (const void* memory : {call.input, static_cast<const void*>(call.output)}) {
    in_use_.insert(memory);
  }
}

void FakeNccl::run(Lock& lock, Rank& rank, const Call& call) {
  if (call.kind == Call::Kind::kSend || call.kind == Call::Kind::kRecv) {
    run_point_to_point(lock, rank, call);
  } else {
    run_collective(lock, rank, ++rank.num_calls, call);
  }
  end(rank, call);
}

void FakeNccl::end(Rank& rank, const Call& call) {
  --rank.num_running;
  for (const void* memory : {call.input, static_cast<const void*>(call.output)}) {
    in_use_.erase(in_use_.find(memory));
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

}  // namespace ddprun::test
