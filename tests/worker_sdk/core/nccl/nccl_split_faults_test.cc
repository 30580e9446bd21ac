// SPDX-License-Identifier: Apache-2.0
// Failures while an nccl communicator is split, and failures of its groups. Every path is injected
// into the fake.
#include <barrier>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/worker_sdk/core/nccl/lone_child.h"
#include "tests/worker_sdk/core/nccl/rig.h"
#include "worker_sdk/core/nccl/comm_setup.h"

namespace ddprun::test {
namespace {

Error error_of_split(NcclCommunicator& world, const std::vector<int>& ranks,
                     milliseconds timeout = milliseconds(30'000)) {
  return error_of([&] { world.split(ranks, {.name = "tp", .init_timeout = timeout}); });
}

void expect_ended(NcclCommunicator& world, const Error& why) {
  const Error error = error_of([&] { world.barrier({}); });
  expect(error.code() == why.code() && std::string(error.what()) == why.what(), error.what());
}

int num_times(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Keeps the process alive. NCCL stays inside a split whose ranks don't all come, which ends the
// process by default.
void stays_alive(NcclOptions& options) {
  options.abort_timeout = milliseconds(400);
  options.on_hung_abort = [](std::string_view) {};
}

void forget_what_is_left(Rig& rig) {
  rig.fake->release_hangs();
  while (nccl::is_any_comm_left_behind()) std::this_thread::yield();
  rig.fake->forget_live_comms();
  rig.fake_cuda->forget_live_objects();
}

TEST_CASE("NcclCommunicator split: ranks that can't be are refused, and the parent stays good") {
  Rig rig;
  rig.run(2, [&](NcclOptions options) {
    if (options.rank == 1) options.split_store = nullptr;
    const auto world = rig.join(options);
    for (const std::vector<int>& ranks : {std::vector<int>{}, {1 - options.rank}, {0, 0}, {0, 2}}) {
      const Error error = error_of_split(*world, ranks);
      expect(error.code() == ErrorCode::kInvalidArgument, error.what());
    }
    if (options.rank == 1) {
      const Error error = error_of_split(*world, {1});
      expect(contains(error.what(), "without a store to split it by"), error.what());
    }
    world->barrier({});
  });
}

TEST_CASE("NcclCommunicator split: a rank that does not come is named in time, the parent ends") {
  Rig rig;
  std::barrier all_have_seen(3);
  rig.run_with(3, stays_alive, [&](NcclCommunicator& world, Stream) {
    if (world.rank() == 2) return all_have_seen.arrive_and_wait();
    const bool is_first = world.rank() == 0;
    // Returns when rank 1 is there.
    if (is_first) rig.store.clone()->get("round1/comm0/split/tp/0/waiting/0");
    const auto begin = Clock::now();
    const Error error =
        error_of_split(world, {world.rank()}, milliseconds(is_first ? 300 : 30'000));
    expect(Clock::now() - begin < milliseconds(10'000), "in its time, or when it is told");
    expect(error.code() == (is_first ? ErrorCode::kTimeout : ErrorCode::kPeerLost), error.what());
    expect(contains(error.what(),
                    "rank 0: split tp of 3 ranks did not end within 300 ms; never came: rank 2"),
           error.what());
    expect_ended(world, error);
    all_have_seen.arrive_and_wait();
  });
  forget_what_is_left(rig);
}

TEST_CASE("NcclCommunicator split: a call that stays inside NCCL ends the process") {
  const auto [status, took] = run_child([](Rig& rig, NcclOptions& options) {
    options.abort_timeout = options.destroy_timeout = milliseconds(200);
    const auto world = rig.join(options);
    rig.fake->hang_next(0, "comm_split");
    error_of_split(*world, {0}, milliseconds(200));
  });
  CHECK(status == 75);
  CHECK(took < milliseconds(10'000));
}

TEST_CASE("NcclCommunicator split: NCCL's refusal on one rank is heard by the others at once") {
  Rig rig;
  const auto begin = Clock::now();
  rig.run_with(3, stays_alive, [&](NcclCommunicator& world, Stream) {
    if (world.rank() == 1) rig.fake->fail_next(1, "comm_split", Result::kSystemError);
    const Error error = error_of_split(world, {world.rank()});
    expect(error.code() == (world.rank() == 1 ? ErrorCode::kSystem : ErrorCode::kPeerLost),
           error.what());
    expect(contains(error.what(), "unhandled system error (NCCL: details from the fake)"),
           error.what());
    if (world.rank() != 1) expect(contains(error.what(), "rank 1 gave up: rank 1"), error.what());
    expect_ended(world, error);
  });
  CHECK(Clock::now() - begin < milliseconds(10'000));
  forget_what_is_left(rig);
}

TEST_CASE("NcclCommunicator split: an abort of the parent ends it, here and on the others") {
  Rig rig;
  std::barrier all(3);  // an abort before another's set-up has ended would end that
  rig.run_with(3, stays_alive, [&](NcclCommunicator& world, Stream) {
    all.arrive_and_wait();
    if (world.rank() == 2) {  // this rank never comes
      world.abort("enough");
      return;
    }
    const Error error = error_of_split(world, {world.rank()});
    expect(error.code() == ErrorCode::kPeerLost, error.what());
    expect(contains(error.what(), "rank 2 was aborted: enough"), error.what());
  });
  forget_what_is_left(rig);
  Rig alone;
  alone.run_with(1, stays_alive, [&](NcclCommunicator& world, Stream) {
    alone.fake->hang_next(0, "comm_split");
    std::thread other([&] {
      while (alone.fake->num_hanging() == 0) std::this_thread::yield();
      world.abort("enough");
    });
    const Error error = error_of_split(world, {0});
    other.join();
    expect(error.code() == ErrorCode::kAborted, error.what());
    expect_ended(world, error);
  });
  forget_what_is_left(alone);
}

TEST_CASE("NcclCommunicator split: a lost store is the error") {
  Rig rig;
  rig.run(1, [&](const NcclOptions& options) {
    const auto world = rig.join(options);
    rig.store.break_connections();
    const Error error = error_of_split(*world, {0});
    expect(error.code() == ErrorCode::kConnectionLost, error.what());
  });
}

TEST_CASE("NcclCommunicator split: the parent goes on if CUDA fails for the group") {
  Rig rig;
  rig.run(1, [&](const NcclOptions& options) {
    const auto world = rig.join(options);
    rig.fake_cuda->fail("stream_create", 2);
    const Error error = error_of_split(*world, {0});
    expect(error.code() == ErrorCode::kResourceExhausted, error.what());
    expect(
        std::string(error.what()).find("group tp (its ranks 0 are the job's 0): rank 0: cuda") == 0,
        error.what());
    rig.fake_cuda->succeed_again("stream_create");
    world->barrier({});
    world->split({0}, {.name = "tp"})->barrier();
  });
}

TEST_CASE("NcclCommunicator: errors of a group name it and its ranks of the job, once") {
  Rig rig;
  const std::string prefix = "group tp (its ranks 0, 1 are the job's 2, 3): ";
  std::barrier both(2);
  rig.run_with(4, blocking, [&](NcclCommunicator& world, Stream stream) {
    const int first = world.rank() / 2 * 2;
    const auto group = world.split({first, first + 1}, {.name = "tp"});
    world.barrier({});  // all ranks have made their groups
    if (first == 0) return;
    DeviceArray array(rig, stream, device_of(world, rig), DType::kFloat32, 4);
    TensorView elsewhere = array.view();
    elsewhere.device.index += 1;
    const Error refused = error_of([&] { group->all_reduce(elsewhere, ReduceOp::kSum); });
    expect(std::string(refused.what()).find(prefix + "rank ") == 0, refused.what());
    rig.fake_cuda->fail("memory_set", 2, 0);
    both.arrive_and_wait();
    const Error full = error_of([&] { group->allocate(64); });
    both.arrive_and_wait();
    rig.fake_cuda->succeed_again("memory_set");
    expect(std::string(full.what()).find(prefix + "rank ") == 0, full.what());
    both.arrive_and_wait();
    if (world.rank() == 2) {
      const Error late = error_of(
          [&] { group->all_reduce(array.view(), ReduceOp::kSum, {.timeout = milliseconds(100)}); });
      expect(late.code() == ErrorCode::kTimeout, late.what());
      expect(std::string(late.what()).find(prefix + "rank 0: operation ") == 0, late.what());
      expect(contains(late.what(), "not waiting in it: rank 1"), late.what());
      expect(num_times(late.what(), "group tp") == 1, late.what());
      both.arrive_and_wait();
    } else {
      both.arrive_and_wait();  // the other rank has given up
      const Error told = error_of([&] {
        // The first operation may still meet the other rank's, which that rank's abort lets pass a
        // moment later.
        for (int i = 0; i < 2; ++i) group->all_reduce(array.view(), ReduceOp::kSum);
      });
      expect(told.code() == ErrorCode::kPeerLost, told.what());
      expect(std::string(told.what()).find(prefix + "rank 1: ") == 0, told.what());
      expect(num_times(told.what(), "group tp") == 1, told.what());
    }
    expect(num_times(error_of([&] { group->barrier(); }).what(), "group tp") == 1, "later, too");
  });
}

}  // namespace
}  // namespace ddprun::test
