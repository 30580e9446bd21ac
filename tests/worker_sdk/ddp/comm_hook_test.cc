// SPDX-License-Identifier: Apache-2.0
// The interface of hooks: the order in which a hook's steps run, and the data that it sees.
#include "worker_sdk/ddp/comm_hook.h"

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/worker_sdk/ddp/recording_communicator.h"
#include "worker_sdk/ddp/reducer.h"

using namespace ddprun;
using ddprun::test::Contains;
using test::RecordingCommunicator;

namespace {

// A hook that writes down its calls. Each step but the last all-reduces the bucket.
struct DiaryHook : CommHook {
  explicit DiaryHook(int steps) : steps_(steps) {}
  int num_steps() const override { return steps_; }
  void prepare(std::span<const GradBucket> buckets, Communicator&) override {
    layouts.emplace_back(buckets.begin(), buckets.end());
  }
  HookStep run(const GradBucket& bucket, int step, Communicator& communicator) override {
    diary += std::to_string(bucket.index) + "abcd"[step] + ' ';
    iterations.push_back(bucket.iteration);
    if (step == fails_at) throw Error(ErrorCode::kPeerLost, "rank 1 died");
    if (step == steps_) return {};
    return {communicator.all_reduce(bucket.view, ReduceOp::kSum, {.async = true}), 10};
  }

  const int steps_;
  int fails_at = -1;
  std::string diary;
  std::vector<std::uint64_t> iterations;
  std::vector<std::vector<GradBucket>> layouts;
};

// Three parameters, in three buckets after the rebuild.
struct Fixture {
  explicit Fixture(int steps) : hook(std::make_shared<DiaryHook>(steps)) {
    reducer.set_hook(hook);
    mark({2, 1, 0});
    reducer.finalize();
    reducer.rebuild(reducer.first_arrival());
    hook->diary.clear();
    communicator.calls.clear();
  }
  void mark(const std::vector<std::size_t>& order) {
    for (const std::size_t index : order) reducer.mark_ready(index);
  }
  void complete_all() {
    for (auto& call : communicator.calls) call.work->completed = true;
  }

  RecordingCommunicator communicator;
  std::shared_ptr<DiaryHook> hook;
  Reducer reducer{communicator,
                  {{.name = "a", .count = 100, .shape = {10, 10}},
                   {.name = "b", .count = 100, .shape = {100}},
                   {.name = "c", .count = 100, .shape = {4, 25}}},
                  {.first_bytes = 400, .cap_bytes = 400}};
};

}  // namespace

TEST_CASE("CommHook: the order of collectives does not depend on which are complete") {
  for (const bool completed : {false, true}) {
    Fixture f(2);
    for (const std::size_t index : {2, 1, 0}) {
      f.mark({index});
      if (completed) f.complete_all();
    }
    f.reducer.finalize();
    std::vector<const void*> order;
    for (const auto& call : f.communicator.calls) order.push_back(call.view.data);
    const auto data = [&](std::size_t bucket) { return f.reducer.bucket(bucket).data; };
    CHECK(order == std::vector<const void*>{data(0), data(1), data(0), data(2), data(1), data(2)});
  }
}

TEST_CASE("CommHook: a bucket's second step comes with the next bucket's launch, and waits") {
  Fixture f(2);
  f.mark({2});
  CHECK(f.hook->diary == "0a ");
  f.mark({1});
  CHECK(f.hook->diary == "0a 1a 0b ");
  CHECK(f.communicator.calls[0].work->waited);
  CHECK_FALSE(f.communicator.calls[1].work->waited);
  f.mark({0});
  // Bucket 0's last step is not done early, because it would have to wait.
  CHECK(f.hook->diary == "0a 1a 0b 2a 1b ");
  f.reducer.finalize();
  CHECK(f.hook->diary == "0a 1a 0b 2a 1b 2b 0c 1c 2c ");
  for (const auto& call : f.communicator.calls) CHECK(call.work->waited);
}

TEST_CASE(
    "CommHook: a bucket that is complete is unpacked while backward goes on, and never waited "
    "for") {
  Fixture f(1);
  f.mark({2, 1});
  CHECK(f.hook->diary == "0a 1a ");
  CHECK_FALSE(f.communicator.calls[0].work->waited);
  f.communicator.calls[1].work->completed = true;
  f.mark({0});
  CHECK(f.hook->diary == "0a 1a 2a 1b ");
  f.reducer.finalize();
  CHECK(f.hook->diary == "0a 1a 2a 1b 0b 2b ");
}

TEST_CASE("CommHook: it is told the buckets again after the rebuild, and goes on counting") {
  Fixture f(1);
  REQUIRE(f.hook->layouts.size() == 2);
  CHECK(f.hook->layouts[0].size() == 1);
  REQUIRE(f.hook->layouts[1].size() == 3);
  const GradBucket& first = f.hook->layouts[1][0];
  REQUIRE(first.gradients.size() == 1);
  CHECK(first.gradients[0].parameter == 2);
  CHECK(first.gradients[0].name == "c");
  CHECK(first.gradients[0].shape == std::vector<std::int64_t>{4, 25});
  CHECK(first.gradients[0].view.data == f.reducer.gradient(2).data);
  for (int iteration = 0; iteration < 2; ++iteration) {
    f.mark({2, 1, 0});
    f.reducer.finalize();
  }
  CHECK(f.hook->iterations == std::vector<std::uint64_t>{0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2});
}

TEST_CASE("CommHook: sent bytes are the hook's, uncompressed ones the buckets'") {
  Fixture f(2);
  f.mark({2, 1, 0});
  f.reducer.finalize();
  CHECK(f.reducer.traffic().sent_bytes == 2 * 10 + 3 * 2 * 10);
  CHECK(f.reducer.traffic().uncompressed_bytes == 2 * 3 * 448);
  f.reducer.set_hook(nullptr);
  CHECK(f.reducer.traffic().sent_bytes == 0);
  f.mark({2, 1, 0});
  f.reducer.finalize();
  CHECK(f.reducer.traffic().sent_bytes == 3 * 448);
  CHECK(f.reducer.traffic().uncompressed_bytes == 3 * 448);
}

TEST_CASE("CommHook: it gets gradients as they are, on NCCL, too") {
  RecordingCommunicator communicator;
  communicator.name = "nccl";
  communicator.num_ranks = 4;
  Reducer reducer(communicator, {{.name = "a", .count = 64}});
  reducer.set_hook(std::make_shared<DiaryHook>(1));
  CHECK(reducer.factor() == 1);
  reducer.set_hook(nullptr);
  CHECK(reducer.factor() == 1.0 / 4);
}

TEST_CASE("CommHook: its error ends backward, and what is under way is ended before memory goes") {
  for (const int fails_at : {1, 2}) {
    std::vector<RecordingCommunicator::Call> calls;
    {
      Fixture f(2);
      f.hook->fails_at = fails_at;
      CHECK_THROWS_WITH((f.mark({2, 1, 0}), f.reducer.finalize()), Contains("rank 1 died"));
      calls = f.communicator.calls;
      for (const auto& call : calls)
        call.work->on_wait = [&] { CHECK(f.communicator.num_buffers == 1); };
      CHECK_FALSE(calls.back().work->waited);
    }
    CHECK(calls.size() == (fails_at == 1 ? 2 : 6));
    for (const auto& call : calls) CHECK(call.work->waited);
  }
}

TEST_CASE("CommHook: a backward that breaks off is ended without the hook's next steps") {
  std::vector<RecordingCommunicator::Call> calls;
  std::shared_ptr<DiaryHook> hook;
  {
    Fixture f(2);
    hook = f.hook;
    f.mark({2, 1});
    calls = f.communicator.calls;
    REQUIRE_FALSE(calls.empty());
    for (const auto& call : calls) {
      call.work->on_wait = [&] { CHECK(f.communicator.num_buffers == 1); };
    }
    hook->diary.clear();
  }
  CHECK(hook->diary.empty());
  CHECK(calls.back().work->waited);
}
