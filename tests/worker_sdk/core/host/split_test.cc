// SPDX-License-Identifier: Apache-2.0
// Groups of a host communicator's ranks, and meshes of them: inside a node, over nodes, and groups
// of groups.
#include <barrier>
#include <latch>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/worker_sdk/core/host/rank_threads.h"
#include "worker_sdk/core/mesh.h"

using namespace ddprun;
using namespace ddprun::host;
using namespace std::chrono_literals;
using ddprun::test::code_of;
using ddprun::test::Contains;
using ddprun::test::expect;

namespace {

// The sum of the job's ranks that are in `group`.
int sum_of(Communicator& group, int own_rank) {
  std::int32_t value = own_rank;
  group.all_reduce({.data = &value, .count = 1, .dtype = DType::kInt32}, ReduceOp::kSum);
  return value;
}

const std::vector<MeshAxis> kTwoByTwoByTwo{{"pp", 2}, {"dp", 2}, {"tp", 2}};

void check_mesh(Communicator& world) {
  Mesh mesh(world, MeshLayout(kTwoByTwoByTwo));
  for (const std::vector<std::string>& axes :
       {std::vector<std::string>{"tp"}, {"pp"}, {"dp"}, {"dp", "tp"}, {"tp", "pp"}}) {
    int expected = 0;
    const std::vector<int> ranks = mesh.layout().group_of(world.rank(), axes);
    for (const int rank : ranks) expected += rank;
    Communicator& group = mesh.along_axes(axes);
    expect(group.size() == static_cast<int>(ranks.size()), "the group's size");
    expect(ranks[static_cast<std::size_t>(group.rank())] == world.rank(), "this rank's place");
    expect(sum_of(group, world.rank()) == expected, "the sum over the group");
  }
  expect(&mesh.along("tp") == &mesh.along("tp"), "one communicator for an axis");
  expect(&mesh.along_axes({"tp", "pp"}) == &mesh.along_axes({"pp", "tp"}),
         "in any order of its axes");
  expect(&mesh.along_axes({"pp", "dp", "tp"}) == &world, "all axes are the world");
}

}  // namespace

TEST_CASE("Mesh: each axis reduces among its own ranks, in one node and over nodes") {
  for (const std::vector<int>& nodes : {std::vector<int>{0, 0, 0, 0, 0, 0, 0, 0},
                                        {0, 0, 0, 0, 1, 1, 1, 1},
                                        {0, 1, 0, 1, 2, 2, 3, 3}}) {
    CHECK(all_well(run_world({.node_rank_of = nodes}, check_mesh)));
  }
}

TEST_CASE("Mesh: another number of ranks than the layout's is refused") {
  const auto errors = run_world(one_node(2), [](Communicator& world) {
    Mesh mesh(world, MeshLayout({{"dp", 3}}));
  });
  CHECK(errors[0] == "a mesh of dp3 is 3 ranks, there are 2");
}

TEST_CASE("split: a group waits for its own ranks, not for the world's") {
  std::latch first_is_done(1);
  CHECK(all_well(run_world(one_node(4), [&](Communicator& world) {
    const bool is_first = world.rank() < 2;
    // Ranks 2 and 3 come when ranks 0 and 1 have used their group.
    if (!is_first) first_is_done.wait();
    const auto group = world.split(is_first ? std::vector{0, 1} : std::vector{2, 3}, {.name = "h"});
    expect(sum_of(*group, world.rank()) == (is_first ? 1 : 5), "the sum over the half");
    if (world.rank() == 0) first_is_done.count_down();
  })));
}

TEST_CASE("split: ranks in another order, groups of one, of a group, of the same name again") {
  CHECK(all_well(run_world(one_node(4), [](Communicator& world) {
    const auto reversed = world.split({3, 2, 1, 0}, {.name = "r"});
    expect(reversed->rank() == 3 - world.rank(), "the given order");
    const auto alone = reversed->split({reversed->rank()}, {.name = "alone"});
    expect(alone->size() == 1 && sum_of(*alone, world.rank()) == world.rank(), "a group of one");
    const int half = reversed->rank() / 2 * 2;
    for (int again = 0; again < 3; ++again) {
      const auto pair = reversed->split({half, half + 1}, {.name = "pair"});
      expect(sum_of(*pair, world.rank()) == (half == 0 ? 5 : 1), "a group of a group");
    }
  })));
}

TEST_CASE("split: a group lives on when the communicator it is of has gone or was aborted") {
  CHECK(all_well(run_world(one_node(2), [](Communicator& world) {
    const auto group = world.split({0, 1}, {.name = "g"});
    world.abort("no more of it");
    expect(sum_of(*group, world.rank()) == 1, "the sum over the group");
  })));
}

TEST_CASE("split: an error names the group and its ranks of the job") {
  std::barrier all_failed(4);
  const auto errors = run_world(one_node(4), [&](Communicator& world) {
    const int first = world.rank() / 2 * 2;
    const auto group = world.split({first, first + 1}, {.name = "tp"});
    std::string what;
    if (group->rank() == 0) {
      float value = 0;
      code_of(
          [&] {
            group->all_reduce({.data = &value, .count = 1}, ReduceOp::kSum, {.timeout = 100ms});
          },
          &what);
    }
    all_failed.arrive_and_wait();
    if (!what.empty()) throw std::runtime_error(what);
  });
  CHECK_THAT(errors[2],
             Contains("group tp (its ranks 0, 1 are the job's 2, 3): all_reduce(float32"));
  CHECK_THAT(errors[2], Contains("waiting for rank 1"));
}

TEST_CASE("split: a rank of the group that does not come is named") {
  const auto errors = run_world(one_node(3), [](Communicator& world) {
    if (world.rank() == 2) return;
    world.split({world.rank(), 2}, {.name = "tp", .init_timeout = 100ms});
  });
  CHECK_THAT(errors[0], Contains("group tp (its ranks 0, 1 are the job's 0, 2): "));
  CHECK_THAT(errors[0], Contains("missing: rank 1"));
}
