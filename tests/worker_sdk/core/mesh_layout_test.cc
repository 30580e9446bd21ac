// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/mesh.h"

#include <algorithm>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "worker_sdk/core/rank_group.h"

namespace ddprun {
namespace {

const std::vector<std::string> kAxes{"pp", "dp", "tp"};

TEST_CASE("MeshLayout: the last axis counts fastest") {
  const MeshLayout mesh({{"pp", 2}, {"dp", 3}, {"tp", 2}});
  CHECK(mesh.size() == 12);
  CHECK(mesh.coordinate(7, "pp") == 1);
  CHECK(mesh.coordinate(7, "dp") == 0);
  CHECK(mesh.coordinate(7, "tp") == 1);
  CHECK(mesh.group_of(7, {"tp"}) == std::vector{6, 7});
  CHECK(mesh.group_of(7, {"dp"}) == std::vector{7, 9, 11});
  CHECK(mesh.group_of(7, {"pp"}) == std::vector{1, 7});
  CHECK(mesh.group_of(7, {"tp", "dp"}) == std::vector{6, 7, 8, 9, 10, 11});
  CHECK(mesh.group_of(7, {}) == std::vector{7});
}

TEST_CASE(
    "MeshLayout: groups along any axes are a partition, and a rank's place is its coordinate") {
  const MeshLayout mesh({{"pp", 2}, {"dp", 3}, {"tp", 4}});
  for (const std::string& axis : kAxes) {
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const std::vector<int> group = mesh.group_of(rank, {axis});
      REQUIRE(static_cast<int>(group.size()) == mesh.size_of(axis));
      CHECK(group[static_cast<std::size_t>(mesh.coordinate(rank, axis))] == rank);
      for (const int other : group) CHECK(mesh.group_of(other, {axis}) == group);
    }
  }
}

TEST_CASE("MeshLayout: a user writes axes in any order, and leaves out what has one rank") {
  CHECK(MeshLayout::parse("tp2xdp3", kAxes).axes() ==
        std::vector<MeshAxis>{{"pp", 1}, {"dp", 3}, {"tp", 2}});
  CHECK(MeshLayout::parse("dp4", kAxes).text() == "dp4");
  CHECK(MeshLayout::parse("tp2xpp2", kAxes).text() == "pp2xtp2");
  CHECK(MeshLayout::parse("dp1", kAxes).text() == "tp1");
}

TEST_CASE("MeshLayout: an error in a text is said") {
  const auto problem = [](const char* text) {
    return std::string(test::error_of([&] { MeshLayout::parse(text, kAxes); }).what());
  };
  CHECK(problem("zz2") == "layout 'zz2': no axis zz; there are pp, dp, tp");
  CHECK(problem("dp2xdp2") == "layout 'dp2xdp2': axis dp is there twice");
  for (const char* text :
       {"", "dp", "2", "dp0", "dp-1", "dp2x", "xdp2", "dp2,tp2", "dp99999999999"}) {
    INFO(text);
    CHECK(problem(text).find("is not an axis and its number of ranks") != std::string::npos);
  }
  CHECK(problem("dp65536xtp65536").find("can't have 65536 ranks") != std::string::npos);
}

TEST_CASE("RankGroup: a group of a group names the ranks of the job") {
  int place = -1;
  const RankGroup outer = make_group({}, 6, 8, {2, 4, 6}, {.name = "dp"}, &place);
  CHECK(place == 2);
  const RankGroup inner = make_group(outer, 2, 3, {2, 1}, {.name = "half"}, &place);
  CHECK(place == 0);
  CHECK(inner.prefix() == "group half (its ranks 0, 1 are the job's 6, 4): ");
  CHECK(RankGroup{}.prefix().empty());
}

TEST_CASE("RankGroup: ranks that can't be are refused") {
  const auto problem = [](const std::vector<int>& ranks, const char* name) {
    const auto ask = [&] {
      int place = 0;
      make_group({}, 1, 4, ranks, {.name = name}, &place);
    };
    return std::string(test::error_of(ask).what());
  };
  CHECK(problem({1, 4}, "tp") == "group tp of ranks 1, 4: no rank 4 among 4");
  CHECK(problem({1, -1}, "tp") == "group tp of ranks 1, -1: no rank -1");
  CHECK(problem({1, 2, 1}, "tp") == "group tp of ranks 1, 2, 1: rank 1 is twice in it");
  CHECK(problem({0, 2}, "tp") == "group tp of ranks 0, 2: rank 1, which asks for it, is not in it");
  CHECK(problem({}, "tp") == "group tp of ranks : rank 1, which asks for it, is not in it");
  CHECK(problem({1}, "").find("needs a name") != std::string::npos);
}

}  // namespace
}  // namespace ddprun
