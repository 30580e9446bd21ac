// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/solo_communicator.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>

#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/core/call_group.h"
#include "worker_sdk/core/large_memory.h"
#include "worker_sdk/core/rank_group.h"

namespace ddprun {
namespace {

class HostBuffer : public CommBuffer {
 public:
  explicit HostBuffer(std::size_t size_bytes)
      : size_bytes_(size_bytes), data_(map_large_memory(size_bytes)) {}
  ~HostBuffer() override { ::munmap(data_, std::max<std::size_t>(size_bytes_, 1)); }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  void* data() override { return data_; }
  std::size_t size_bytes() const override { return size_bytes_; }

 private:
  const std::size_t size_bytes_;
  std::byte* const data_;
};

class SoloCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string_view backend() const override { return "host"; }

  WorkPtr run(const CollectiveCall& call, const CallOptions&) override {
    if (call.is_message()) {
      if (call.root != 0 || !group_.is_open()) return no_such_rank(call.root);
      const bool sends = call.kind == CollectiveKind::kSend;
      sends ? group_.add_send_to_self(call.input) : group_.add_receive_from_self(call.input);
      return done();
    }
    if (has_op(call.kind)) check(reduction_problem(call.input.dtype, call.op));
    if (call.has_parts()) return copy(call.input, call.output);
    return call.root == 0 ? done() : no_such_rank(call.root);
  }

  WorkPtr group(const std::function<void()>& calls, bool async) override {
    return group_.run(calls, async);
  }
  void barrier(const CallOptions&) override {
    refuse_in_group("barrier");
    done();
  }
  std::unique_ptr<CommBuffer> allocate(std::size_t size_bytes) override {
    refuse_in_group("allocate");
    return std::make_unique<HostBuffer>(size_bytes);
  }
  std::unique_ptr<Communicator> split(const std::vector<int>& ranks,
                                      const SplitOptions& options) override {
    refuse_in_group("split");
    int place = 0;
    make_group({}, 0, 1, ranks, options, &place);
    return make_solo_communicator();
  }
  void abort(std::string_view) override { aborted_ = true; }

 private:
  // Returns null in a group.
  WorkPtr done() {
    if (aborted_) throw Error(ErrorCode::kAborted, "abort() was called on this communicator");
    return group_.is_open() ? nullptr : completed_work();
  }
  WorkPtr copy(const TensorView& input, const TensorView& output) {
    check(parts_problem(input, output, 0, 1));
    const auto move = [input, output] {
      if (input.data != output.data) std::memmove(output.data, input.data, input.size_bytes());
      return completed_work();
    };
    if (group_.is_open()) {
      group_.add(move);
    } else {
      move();
    }
    return done();
  }
  static void check(const std::string& problem) {
    if (!problem.empty()) throw_invalid(problem);
  }
  void refuse_in_group(const char* call) const {
    if (group_.is_open()) check(concat(call, " can't be part of a group"));
  }
  static WorkPtr no_such_rank(int rank) {
    throw_invalid(rank == 0 ? "a worker can send to itself in a group only"
                            : concat("no rank ", rank, " in a job of one worker"));
  }

  CallGroup group_;
  std::atomic<bool> aborted_ = false;  // abort() comes from any thread
};

}  // namespace

std::unique_ptr<Communicator> make_solo_communicator() {
  return std::make_unique<SoloCommunicator>();
}

}  // namespace ddprun
