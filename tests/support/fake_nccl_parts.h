// SPDX-License-Identifier: Apache-2.0
// The parts of FakeNccl, for its own sources only.
#pragma once

#include <deque>
#include <optional>

#include "tests/support/fake_nccl.h"

namespace ddprun::test {

struct FakeNccl::Call {
  enum class Kind { kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter, kSend, kRecv };
  Kind kind;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;  // as NCCL counts: the elements of a part
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root_or_peer = 0;

  const char* name() const {
    constexpr const char* kNames[] = {"all_reduce",     "reduce", "broadcast", "all_gather",
                                      "reduce_scatter", "send",   "recv"};
    return kNames[static_cast<std::size_t>(kind)];
  }

  bool has_op() const {
    return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
  }

  bool matches(const Call& other) const {
    return kind == other.kind && count == other.count && dtype == other.dtype && op == other.op &&
           root_or_peer == other.root_or_peer;
  }
};

struct FakeNccl::OpenGroup {
  nccl::Comm comm = nullptr;
  nccl::Stream stream = nullptr;
  std::vector<Call> calls;  // of one communicator, on one stream
  nccl::Result result = nccl::Result::kSuccess;
};

struct FakeNccl::Letter {
  Call call;
  bool taken = false;
};

struct FakeNccl::Slot {
  explicit Slot(int size) : calls(static_cast<std::size_t>(size)) {}
  std::vector<std::optional<Call>> calls;  // by rank
  int num_arrived = 0;
  bool done = false;
  bool dead = false;  // a rank left it by abort, so it is never done
};

struct FakeNccl::Split {
  struct Place {
    int color = 0;
    int key = 0;
    nccl::Comm made = nullptr;
  };
  std::map<int, Place> places;  // by the rank in the parent
  bool done = false;
};

struct FakeNccl::Group {
  int size = 0;
  int num_joined = 0;
  std::vector<bool> joined;
  std::vector<int> nodes;  // by rank
  std::map<std::uint64_t, std::shared_ptr<Slot>> slots;
  std::map<std::uint64_t, std::shared_ptr<Split>> splits;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Letter>>> mail;  // (from, to)
  nccl::Result error = nccl::Result::kSuccess;  // e.g. calls that don't match; every rank gets it
  bool complete() const { return num_joined == size; }
  std::size_t num_nodes() const { return std::set<int>(nodes.begin(), nodes.end()).size(); }
};

struct FakeNccl::Rank {
  std::shared_ptr<Group> group;
  int rank = 0;
  std::uint64_t num_calls = 0;
  std::uint64_t num_splits = 0;
  int num_running = 0;      // tasks that are on streams
  int num_graph_tasks = 0;  // tasks of living graphs
  bool aborted = false;
  bool busy = false;  // whether a thread is inside
};

// A call inside a communicator. It counts a violation if another thread is inside, or if the
// communicator is gone.
class FakeNccl::Entry {
 public:
  Entry(FakeNccl& fake, nccl::Comm comm, const char* function);
  ~Entry();
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  bool ok() const { return result_ == nccl::Result::kSuccess; }
  nccl::Result result() const { return result_; }
  const std::shared_ptr<Rank>& rank() const { return rank_; }

 private:
  FakeNccl& fake_;
  std::shared_ptr<Rank> rank_;
  nccl::Result result_ = nccl::Result::kSuccess;
};

}  // namespace ddprun::test
