// SPDX-License-Identifier: Apache-2.0
// Communicators of groups of an nccl communicator's ranks. Compiled twice: over the fake, and
// (label gpu) over real NCCL.
#include <barrier>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/worker_sdk/core/nccl/checked_calls.h"
#include "worker_sdk/core/flight_recorder.h"
#include "worker_sdk/core/mesh.h"

namespace ddprun::test {
namespace {

// One rank's own value, in device memory of its own.
class Number {
 public:
  Number(Rig& rig, Stream stream, int device) : array_(rig, stream, device, DType::kInt32, 1) {}

  // The sum of the job's ranks that are in `group`.
  double sum(Communicator& group, int own_rank) {
    array_.write({static_cast<double>(own_rank)});
    group.all_reduce(array_.view(), ReduceOp::kSum);
    return array_.read()[0];
  }
  // The job's rank that has rank `root` in `group`.
  double of_root(Communicator& group, int root, int own_rank) {
    array_.write({static_cast<double>(own_rank)});
    group.broadcast(array_.view(), root);
    return array_.read()[0];
  }

 private:
  DeviceArray array_;
};

std::vector<int> half_of(int rank) { return rank < 2 ? std::vector{0, 1} : std::vector{2, 3}; }

TEST_CASE("NcclCommunicator split: groups reduce among their own ranks, beside the parent") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 4);
  rig.run_communicators(4, [&](NcclCommunicator& world, Stream stream) {
    const int rank = world.rank();
    Number number(rig, stream, device_of(world, rig));
    const auto half = world.split(half_of(rank), {.name = "half"});
    expect(half->backend() == "nccl" && half->size() == 2 && half->rank() == rank % 2, "a half");
    for (int again = 0; again < 3; ++again) {
      expect(number.sum(*half, rank) == (rank < 2 ? 1 : 5), "the sum over the half");
      expect(number.sum(world, rank) == 6, "the sum over all");
    }
    half->barrier();
  });
}

TEST_CASE("NcclCommunicator split: the given order, groups of one, of a group, a name again") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 4);
  rig.run_communicators(4, [&](NcclCommunicator& world, Stream stream) {
    const int rank = world.rank();
    Number number(rig, stream, device_of(world, rig));
    const auto reversed = world.split({3, 2, 1, 0}, {.name = "r"});
    expect(reversed->rank() == 3 - rank, "the place in the given order");
    expect(number.of_root(*reversed, 0, rank) == 3, "NCCL has that order, too");
    const bool is_odd = rank % 2 == 1;
    const auto crossed = world.split(is_odd ? std::vector{3, 1} : std::vector{0, 2}, {.name = "c"});
    expect(number.of_root(*crossed, 0, rank) == (is_odd ? 3 : 0), "each group has its own order");
    const auto alone = reversed->split({reversed->rank()}, {.name = "alone"});
    expect(alone->size() == 1 && number.sum(*alone, rank) == rank, "a group of one");
    const int first = reversed->rank() / 2 * 2;
    for (int again = 0; again < 2; ++again) {
      const auto pair = reversed->split({first, first + 1}, {.name = "pair"});
      expect(number.sum(*pair, rank) == (first == 0 ? 5 : 1), "a group of a group");
    }
  });
}

TEST_CASE("NcclCommunicator split: a group lives on without its parent, and it without the group") {
  const bool is_aborted = GENERATE(false, true);  // if not, it is destroyed
  CAPTURE(is_aborted);
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 2);
  rig.run(2, [&](const NcclOptions& options) {
    const auto stream = static_cast<Stream>(options.current_stream(options.device));
    Number number(rig, stream, options.device);
    std::unique_ptr<Communicator> world = rig.join(options);
    auto group = world->split({1, 0}, {.name = "g"});
    auto other = world->split({0, 1}, {.name = "h"});
    if (is_aborted) {
      other->abort("no more of it");
    } else {
      other.reset();
    }
    expect(number.sum(*world, options.rank) == 1, "the parent goes on");
    if (is_aborted) {
      world->abort("no more of it");
    } else {
      world.reset();
    }
    expect(number.sum(*group, options.rank) == 1, "the group goes on");
    const auto of_group = group->split({0, 1}, {.name = "i"});
    expect(number.of_root(*of_group, 0, options.rank) == 1, "a group of it, too");
  });
}

TEST_CASE("NcclCommunicator split: a group has its parent's stream, also one that was told later") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 2);
  rig.run(2, [&](NcclOptions options) {
    const CurrentStream current = std::exchange(options.current_stream, {});
    const auto world = rig.join(options);
    world->follow_stream(current);
    const auto group = world->split({0, 1}, {.name = "g"});
    const auto stream = static_cast<Stream>(current(options.device));
    const std::size_t count = std::size_t{1} << 18;
    DeviceArray array(rig, stream, options.device, DType::kUInt8, count);
    for (int i = 0; i < 20; ++i) {  // these are only queued, before the all-reduce
      rig.cuda->memory_set(array.view().data, i < 19 ? 7 : 1, count, stream);
    }
    group->all_reduce(array.view(), ReduceOp::kSum);
    expect(array.read() == std::vector<double>(count, 2.0), "1 + 1 in every element");
  });
}

TEST_CASE("NcclCommunicator split: each axis of a mesh reduces among its own ranks") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 4);
  const int size = rig.max_ranks() < 8 ? 4 : 8;
  rig.run_communicators(size, [&](NcclCommunicator& world, Stream stream) {
    Number number(rig, stream, device_of(world, rig));
    Mesh mesh(world, MeshLayout({{"pp", size / 4}, {"dp", 2}, {"tp", 2}}));
    for (const std::vector<std::string>& axes :
         {std::vector<std::string>{"tp"}, {"dp"}, {"pp"}, {"dp", "tp"}}) {
      double expected = 0;
      for (const int rank : mesh.layout().group_of(world.rank(), axes)) expected += rank;
      expect(number.sum(mesh.along_axes(axes), world.rank()) == expected, axes[0]);
    }
  });
}

TEST_CASE("CheckedCommunicator split: calls that differ inside a group are named in that group") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 4);
  rig.run(4, [&](const NcclOptions& options) {
    const auto store = rig.store.clone();
    const auto world = join_checked(rig, options, *store);
    const int rank = options.rank;
    const auto half = world->split(half_of(rank), {.name = "tp"});
    const auto stream = static_cast<Stream>(options.current_stream(options.device));
    Number number(rig, stream, options.device);
    DeviceArray array(rig, stream, options.device, DType::kFloat32, 8);
    expect(number.sum(*half, rank) == (rank < 2 ? 1 : 5), "the sum over the half");
    const Error error = error_of([&] {
      if (rank == 3) half->broadcast(array.view(), 0);
      if (rank == 2) half->all_reduce(array.view(), ReduceOp::kSum);
      if (rank < 2) throw Error(ErrorCode::kProtocol, std::to_string(number.sum(*half, rank)));
    });
    expect(error.code() == ErrorCode::kProtocol, error.what());
    if (rank < 2) {
      expect(std::string(error.what()) == "1.000000", "the other group goes on");
    } else {
      expect(std::string(error.what())
                     .find("group tp (its ranks 0, 1 are the job's 2, 3): ranks made different "
                           "calls: rank 1 called broadcast #2 (32 bytes float32, root 0)") == 0,
             error.what());
    }
    expect(number.sum(*world, rank) == 6, "all ranks still compare and reduce");
  });
}

TEST_CASE("CheckedCommunicator split: a group whose parent is gone names who does not come") {
  Rig rig;
  SKIP_WITHOUT_RANKS(rig, 2);
  std::barrier both(2);
  rig.run(2, [&](NcclOptions options) {
    const auto progress = std::make_shared<WorkerProgress>();
    options.progress = progress;
    std::vector<OperationFailure> told;
    progress->on_operation_failed([&](const OperationFailure& failure) {
      if (failure.code == "timeout") told.push_back(failure);
    });
    const auto store = rig.store.clone();
    auto world = join_checked(rig, options, *store);
    const auto group = world->split({1, 0}, {.name = "g"});
    world.reset();
    if (options.rank == 0) {
      const Error error = error_of([&] { group->barrier({.timeout = milliseconds(100)}); });
      expect(error.code() == ErrorCode::kTimeout, error.what());
      expect(contains(error.what(), "group g (its ranks 0, 1 are the job's 1, 0): "), error.what());
      expect(told.size() == 1 && told[0].missing == std::vector<int>{0}, "who is missing");
    }
    progress->on_operation_failed(nullptr);
    both.arrive_and_wait();
  });
}

}  // namespace
}  // namespace ddprun::test
