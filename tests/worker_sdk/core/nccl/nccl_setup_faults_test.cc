// SPDX-License-Identifier: Apache-2.0
// Failures while an nccl communicator is made. Every path is injected into the fake.
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "common/bounded_call.h"
#include "common/text.h"
#include "tests/support/catch.h"
#include "tests/support/log_lines.h"
#include "tests/support/no_more_threads.h"
#include "tests/support/slow_store.h"
#include "tests/worker_sdk/core/nccl/rig.h"
#include "worker_sdk/core/nccl/comm_setup.h"

namespace ddprun::test {
namespace {

TEST_CASE("NcclCommunicator: every rank hears at once why rank 0 has no unique id") {
  Rig rig;
  rig.fake->fail_next(0, "get_unique_id", Result::kSystemError);
  const auto begin = std::chrono::steady_clock::now();
  rig.run(3, [&](const NcclOptions& options) {
    const Error error = error_of([&] { rig.join(options); });
    expect(error.code() == (options.rank == 0 ? ErrorCode::kSystem : ErrorCode::kPeerLost),
           error.what());
    expect(contains(error.what(), "rank 0: ncclGetUniqueId: unhandled system error"), error.what());
    expect(contains(error.what(), "details from the fake"), error.what());
  });
  CHECK(std::chrono::steady_clock::now() - begin < milliseconds(10'000));
}

TEST_CASE("NcclCommunicator: its configuration reaches NCCL, but for what the library lacks") {
  const int version = GENERATE(22500, 22600, 22700);
  CAPTURE(version);
  Rig rig;
  LogLines log;
  rig.fake->set_config_version(version);
  rig.run(2, [&](NcclOptions options) {
    options.config = {.min_ctas = 2,
                      .max_ctas = 8,
                      .cga_cluster_size = 4,
                      .traffic_class = 3,
                      .split_share = true,
                      .net_name = "Socket",
                      .comm_name = "mine"};
    rig.join(options);
  });
  const NcclConfig config = rig.fake->config_of(1);
  CHECK((config.min_ctas == 2 && config.max_ctas == 8 && config.cga_cluster_size == 4));
  CHECK((config.split_share == true && config.net_name == "Socket"));
  CHECK(config.traffic_class.has_value() == (version >= 22600));
  CHECK(config.comm_name == (version >= 22700 ? "mine" : ""));
  const char* const lacks = version < 22600 ? "traffic_class, comm_name" : "comm_name";
  const std::string line = concat("NCCL ", nccl::version_text(version), " has no ", lacks,
                                  ": the communicator is made without");
  const std::vector<std::string> lines = log.all();
  CHECK(std::count(lines.begin(), lines.end(), line) == (version >= 22700 ? 0 : 1));  // rank 0's
}

TEST_CASE("NcclCommunicator: a least number of blocks above the largest is refused") {
  Rig rig;
  rig.run(1, [&](NcclOptions options) {
    options.config.min_ctas = 2;
    const Error error = error_of([&] { rig.join(options); });
    expect(error.code() == ErrorCode::kInvalidArgument, error.what());
    expect(contains(error.what(), "min_ctas 2 needs a max_ctas"), error.what());
  });
}

TEST_CASE("NcclCommunicator: the exchange of ids has one deadline") {
  Rig rig;
  SlowStore store;
  rig.run(1, [&](const NcclOptions& options) {
    nccl::make_nccl_communicator(rig.cuda, rig.nccl, store, options);
  });
  CHECK(store.kept_one_deadline());
}

TEST_CASE("returns_before: a call for which there is no thread has not returned") {
  const NoMoreThreads none;
  CHECK_FALSE(returns_before(Deadline::after(milliseconds(10'000)), [] {}));
}

TEST_CASE("NcclCommunicator: a rank whose set-up fails is named by the others at once") {
  const auto [result, code] = GENERATE(std::pair(Result::kSystemError, ErrorCode::kSystem),
                                       std::pair(Result::kRemoteError, ErrorCode::kPeerLost));
  Rig rig;
  rig.fake->fail_next(1, "comm_init_rank", result);
  const auto begin = std::chrono::steady_clock::now();
  rig.run(3, [&, code = code](const NcclOptions& options) {
    const Error error = error_of([&] { rig.join(options); });
    expect(error.code() == (options.rank == 1 ? code : ErrorCode::kPeerLost), error.what());
    if (options.rank != 1) {  // NCCL still waits for rank 1, but this call doesn't
      expect(contains(error.what(), "rank 1 gave up: rank 1: ncclCommInitRank"), error.what());
    }
  });
  CHECK(std::chrono::steady_clock::now() - begin < milliseconds(10'000));
}

TEST_CASE("NcclCommunicator: an ncclGetUniqueId that hangs is left behind at its time, and told") {
  Rig rig;
  rig.fake->hang_next(0, "get_unique_id");
  const auto begin = std::chrono::steady_clock::now();
  rig.run(2, [&](NcclOptions options) {
    if (options.rank == 0) options.init_timeout = milliseconds(300);
    const Error error = error_of([&] { rig.join(options); });
    const bool is_here = options.rank == 0;
    expect(error.code() == (is_here ? ErrorCode::kTimeout : ErrorCode::kPeerLost), error.what());
    expect(contains(error.what(), "rank 0: ncclGetUniqueId did not return within "), error.what());
  });
  CHECK(std::chrono::steady_clock::now() - begin < milliseconds(20'000));
}

TEST_CASE("NcclCommunicator: a set-up that NCCL ends too late leaves no communicator") {
  Rig rig;
  rig.fake->hang_next(0, "comm_init_rank");
  rig.run(1, [&](NcclOptions options) {
    options.init_timeout = milliseconds(100);
    const Error error = error_of([&] { rig.join(options); });
    expect(error.code() == ErrorCode::kTimeout, error.what());
    expect(
        contains(error.what(), "NCCL set-up of 1 ranks did not end within 100 ms; all ranks came"),
        error.what());
  });
  rig.fake->release_hangs();
  while (nccl::is_any_comm_left_behind()) std::this_thread::yield();
  CHECK(rig.fake->num_aborts() == 1);
}

TEST_CASE("NcclCommunicator: each communicator has an id of its own, a reused one is refused") {
  Rig rig;
  rig.run(1, [&](const NcclOptions& options) {
    const auto first = rig.join(options);
    NcclOptions other = options;
    other.key_prefix = "round1/comm1/";
    const auto second = rig.join(other);
    expect(rig.fake->num_ids() == 2, "two ids");
  });
  // A rank comes back under the same prefix, and finds the id of a round that is over.
  rig.run(1, [&](NcclOptions options) {
    options.rank = 1;
    options.size = 2;
    const Error error = error_of([&] { rig.join(options); });
    expect(error.code() == ErrorCode::kInvalidArgument, error.what());
  });
}

TEST_CASE("NcclCommunicator: rubbish under the id's key is a protocol error") {
  Rig rig;
  rig.store.set("round1/comm0/id/0", "not an id");
  rig.run(1, [&](NcclOptions options) {
    options.rank = 1;
    options.size = 2;
    const Error error = error_of([&] { rig.join(options); });
    expect(error.code() == ErrorCode::kProtocol, error.what());
    expect(contains(error.what(), "9 bytes"), error.what());
  });
}

TEST_CASE("NcclCommunicator: a lost store during set-up is the error") {
  Rig rig;
  rig.store.break_connections();
  rig.run(1, [&](const NcclOptions& options) {
    expect(error_of([&] { rig.join(options); }).code() == ErrorCode::kConnectionLost, "lost");
  });
}

TEST_CASE("NcclCommunicator: several roots share the set-up above max_ranks_per_root") {
  for (const bool scalable : {true, false}) {
    Rig rig;
    rig.fake->set_has_init_rank_scalable(scalable);
    rig.run_with(
        5, [](NcclOptions& options) { options.max_ranks_per_root = 2; },
        [&](NcclCommunicator& comm, Stream) { comm.barrier({}); });
    CHECK(rig.fake->num_ids() == (scalable ? 3 : 1));
  }
}

TEST_CASE("NcclCommunicator: set-up restores the store's deadline and the thread's device") {
  Rig rig;
  NcclOptions options = rig.options(0, 1);
  options.device = 3;
  const auto connection = rig.store.clone();
  connection->set_timeout(milliseconds(12'345));
  rig.cuda->set_device(2);
  const auto comm = nccl::make_nccl_communicator(rig.cuda, rig.nccl, *connection, options);
  comm->barrier({});
  int device = -1;
  rig.cuda->get_device(&device);
  CHECK(device == 2);
  CHECK(connection->timeout() == milliseconds(12'345));
}

TEST_CASE("NcclCommunicator: a CUDA failure in set-up aborts and is told to the others") {
  for (const char* function : {"stream_create", "event_create", "memory_allocate", "memory_set"}) {
    Rig rig;
    NcclOptions options = rig.options(0, 1);
    rig.fake_cuda->fail(function, 2);
    const Error error = error_of([&] { rig.join(options); });
    CHECK(error.code() == ErrorCode::kResourceExhausted);
    CHECK(contains(error.what(), "out of memory"));
    CHECK(rig.fake->num_aborts() == 1);
    CHECK(contains(rig.store.clone()->get("round1/comm0/gave_up"), "out of memory"));
  }
  Rig rig;
  rig.fake_cuda->fail("set_device", 101);
  NcclOptions options = rig.options(0, 1);
  options.device = 1;
  CHECK(contains(error_of([&] { rig.join(options); }).what(), "cudaSetDevice(1)"));
}

}  // namespace
}  // namespace ddprun::test
