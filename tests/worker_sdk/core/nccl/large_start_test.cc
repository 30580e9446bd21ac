// SPDX-License-Identifier: Apache-2.0
// The load of a start of thousands of ranks on the store. It is the same for each rank, however
// many there are.
#include <pthread.h>

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/store/prefix_store.h"
#include "tests/support/catch.h"
#include "tests/support/counting_store.h"
#include "tests/support/errors.h"
#include "tests/support/light_nccl.h"
#include "tests/support/sanitizers.h"
#include "worker_sdk/core/backend_agreement.h"
#include "worker_sdk/core/mesh.h"
#include "worker_sdk/core/nccl/comm_setup.h"
#include "worker_sdk/core/nccl/nccl_communicator.h"
#include "worker_sdk/core/rank_group.h"

namespace ddprun::test {
namespace {

// A thread under a sanitizer costs many times as much.
constexpr int kMany = kIsSanitized ? 512 : 4096;
constexpr std::size_t kStackBytes = std::size_t{kIsSanitized ? 4096u : 256u} << 10;
constexpr int kFew = 256;
constexpr int kRanksPerRoot = 128;
constexpr char kPrefix[] = "ddprun/1/comm0";

// While this lives, new threads have small stacks.
class SmallStacks {
 public:
  SmallStacks() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, kStackBytes);
    pthread_setattr_default_np(&small);
    pthread_attr_destroy(&small);
  }
  ~SmallStacks() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  SmallStacks(const SmallStacks&) = delete;
  SmallStacks& operator=(const SmallStacks&) = delete;

 private:
  pthread_attr_t before_{};
};

struct World {
  explicit World(int num_ranks) : size(num_ranks) {}

  nccl::NcclOptions options(int rank, const std::shared_ptr<store::Store>& connection) const {
    nccl::NcclOptions options;
    options.rank = rank;
    options.size = size;
    options.key_prefix = std::string(kPrefix) + "/nccl/";
    options.max_ranks_per_root = kRanksPerRoot;
    // So long that no rank is late.
    options.peer_check_interval = std::chrono::milliseconds(600'000);
    options.split_store = connection;
    return options;
  }

  const int size;
  const std::shared_ptr<CountedServer> server = std::make_shared<CountedServer>();
  const std::shared_ptr<LightNccl> nccl = std::make_shared<LightNccl>();
  const std::shared_ptr<LightCuda> cuda = std::make_shared<LightCuda>();
};

// Runs `body` for each rank in turn, on so many threads. The first ranks run at the same time.
// Throws an exception of one of them.
void run_ranks(World& world, int num_threads, const std::vector<int>& order,
               const std::function<void(int rank, std::shared_ptr<store::Store>)>& body) {
  const SmallStacks small;
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (int i = 0; i < num_threads; ++i) {
    threads.emplace_back([&] {
      for (std::size_t at = next++; at < order.size(); at = next++) {
        try {
          body(order[at], std::make_shared<CountingStore>(world.server));
        } catch (...) {
          const std::lock_guard lock(mutex);
          failure = std::current_exception();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

std::vector<int> in_order(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Does the work of Session::make_communicator, up to NCCL's communicator, for all ranks at once.
void start(World& world) {
  run_ranks(world, world.size, in_order(world.size),
            [&](int rank, const std::shared_ptr<store::Store>& connection) {
              store::PrefixStore agreement(std::string(kPrefix) + "/backend", connection);
              const std::string device = "GPU-01234567-89ab-cdef-" + std::to_string(rank);
              const BackendVerdict verdict =
                  agree_on_backend(agreement, world.size, {rank, BackendChoice::kAuto, device, ""});
              expect(verdict.kind == BackendVerdict::Kind::kNccl, verdict.why);
              world.nccl->comm_destroy(nccl::set_up_comm(world.cuda, world.nccl, *connection,
                                                         world.options(rank, connection)));
            });
}

TEST_CASE("large start: each rank asks the store as often, however many ranks there are") {
  long most_requests = 0;
  for (const int size : {kFew, kMany}) {
    CAPTURE(size);
    World world(size);
    start(world);
    const int num_roots = size / kRanksPerRoot;
    CHECK(world.nccl->num_ids() == num_roots);
    CHECK(world.nccl->num_inits() == size);
    CHECK(world.nccl->id_lists().size() == 1);  // all have the same ids in the same order

    const CountedServer::Counts most = world.server->most_of_a_connection();
    INFO("at most " << most.num_requests << " requests of a rank");
    CHECK(most.num_requests <= 12);
    if (most_requests == 0) most_requests = most.num_requests;
    // The rank that decides on the backend may be a root, too.
    CHECK(most.num_requests <= most_requests + 3);

    // All ranks read only two things: the verdict, yes or no, and all ids at once.
    int num_read_by_all = 0;
    for (const auto& [key, num_readers] : world.server->num_readers_alone()) {
      CAPTURE(key);
      CHECK((num_readers <= 1 || key == std::string(kPrefix) + "/backend/verdict"));
      num_read_by_all += num_readers > 1 ? 1 : 0;
    }
    CHECK(num_read_by_all == 1);
    CHECK(CountingStore(world.server).get(std::string(kPrefix) + "/backend/verdict").size() < 16);
    CHECK(world.server->num_requests(store::Opcode::kMultiGet) == size);
    CHECK(world.server->num_requests(store::Opcode::kBarrier) == 0);
  }
}

const std::vector<std::string> kAxes{"tp", "dp", "pp"};

// Makes one rank's world and the communicators of all axes, as a program does.
void make_mesh(World& world, const MeshLayout& layout, int rank,
               const std::shared_ptr<store::Store>& connection) {
  const auto whole = nccl::make_nccl_communicator(world.cuda, world.nccl, *connection,
                                                  world.options(rank, connection));
  Mesh mesh(*whole, layout);
  for (const std::string& axis : kAxes) {
    const Communicator& group = mesh.along(axis);
    expect(group.size() == layout.size_of(axis), "the group's size");
    expect(group.rank() == layout.coordinate(rank, axis), "this rank's place");
  }
}

// Does the same without the threads that watch each communicator.
void split_mesh(World& world, const MeshLayout& layout, int rank,
                const std::shared_ptr<store::Store>& connection) {
  const nccl::NcclOptions options = world.options(rank, connection);
  const nccl::Comm whole = nccl::set_up_comm(world.cuda, world.nccl, *connection, options);
  const nccl::SplitParent parent{options, std::make_shared<nccl::CommGate>(whole),
                                 std::make_shared<nccl::Failure>()};
  for (const std::string& axis : kAxes) {
    nccl::SplitPart part{.name = axis,
                         .prefix = split_key(options.key_prefix, axis, 0),
                         .timeout = options.init_timeout};
    const std::vector<int> ranks = layout.group_of(rank, {axis});
    make_group({}, rank, world.size, ranks, {.name = axis}, &part.key);
    part.color = ranks.front();
    world.nccl->comm_destroy(nccl::split_comm(world.cuda, world.nccl, *connection, parent, part));
  }
  world.nccl->comm_destroy(whole);
}

void make_meshes(World& world, const MeshLayout& layout) {
  std::vector<int> order;  // the ranks that give ids come first
  for (const bool are_roots : {true, false}) {
    for (int rank = 0; rank < world.size; ++rank) {
      if ((rank % kRanksPerRoot == 0) == are_roots) order.push_back(rank);
    }
  }
  run_ranks(world, world.size / kRanksPerRoot + 4, order,
            [&](int rank, const std::shared_ptr<store::Store>& connection) {
              (world.size == kFew ? make_mesh : split_mesh)(world, layout, rank, connection);
            });
}

TEST_CASE("large start: the communicators of a mesh cost a rank one request each, and no barrier") {
  for (const int size : {kFew, kMany}) {
    CAPTURE(size);
    World world(size);
    const MeshLayout layout({{"pp", 4}, {"dp", size / 32}, {"tp", 8}});
    make_meshes(world, layout);
    CHECK(world.nccl->num_live() == 0);
    // Each group is whole, and no other group has its color. tp comes first, as in the calls.
    std::vector<int> num_groups(3);
    for (const auto& [split_and_color, keys] : world.nccl->keys_of()) {
      const auto split = static_cast<std::size_t>(split_and_color.first);
      const int expected = layout.size_of(kAxes.at(split));
      CHECK(static_cast<int>(keys.size()) == expected);
      CHECK(*keys.rbegin() == expected - 1);
      ++num_groups[split];
    }
    CHECK(num_groups == std::vector<int>{size / 8, 32, size / 4});
    // The world and three splits need one APPEND each. The world also waits twice for the ids.
    CHECK(world.server->num_requests(store::Opcode::kAppend) == 4L * size);
    CHECK(world.server->num_requests(store::Opcode::kWait) == 2L * size);
    CHECK(world.server->num_requests(store::Opcode::kMultiGet) == size);
    CHECK(world.server->num_requests(store::Opcode::kSet) == size / kRanksPerRoot);
    CHECK(world.server->num_requests(store::Opcode::kBarrier) == 0);
    CHECK(world.server->most_of_a_connection().num_requests <= 8);
  }
}

}  // namespace
}  // namespace ddprun::test
