// SPDX-License-Identifier: Apache-2.0
// Several nodes: the pairs that measure, the node to blame, equal settings, and the printed report.
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <map>
#include <set>

#include "common/env_names.h"
#include "common/error.h"
#include "ctl/doctor/nodes/node_exchange.h"
#include "ctl/doctor/nodes/nodes_facts.h"
#include "ctl/doctor/nodes/ways.h"
#include "ctl/doctor/report.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

namespace ddprun::doctor {
namespace {

using ddprun::test::Contains;

std::vector<int> first_nodes(int count) {
  std::vector<int> nodes;
  for (int i = 0; i < count; ++i) nodes.push_back(i);
  return nodes;
}

bool meets_each_node_once(const Step& step) {
  std::set<int> seen;
  for (const auto& [from, to] : step) {
    if (from == to || !seen.insert(from).second || !seen.insert(to).second) return false;
  }
  return true;
}

// The first `count` of gpu0, gpu1, …: nodes that reach each other and are all alike.
NodesFacts healthy(int count) {
  NodesFacts nodes;
  nodes.num_nodes = count;
  for (int rank = 0; rank < count; ++rank) {
    NodeSheet sheet;
    sheet.node_rank = rank;
    sheet.host = "gpu" + std::to_string(rank);
    sheet.address = "10.0.0." + std::to_string(rank + 1);
    sheet.interface = "eth0";
    sheet.mtu = 9000;
    sheet.speed_mbits = 100'000;
    sheet.versions = {{"ddprun", "1.2.0"}, {"kernel", "6.1.0"}};
    nodes.sheets.push_back(sheet);
    NodeReach reach;
    reach.node_rank = rank;
    for (int peer = 0; peer < count; ++peer) {
      if (peer != rank) reach.greetings.push_back({peer, "", 0.001, 0.0001});
    }
    nodes.reaches.push_back(reach);
    for (int peer = rank + 1; peer < count; ++peer) {
      nodes.pairs.push_back({rank, peer, "", 100e-6, 20e9, 20e9, ""});
    }
  }
  return nodes;
}

Outcome judged_nodes(const std::string& check, const NodesFacts& nodes) {
  return find_check(check)->judge_nodes(nodes, {});
}

PairMeasure& pair_of(NodesFacts& nodes, int from, int to) {
  for (PairMeasure& each : nodes.pairs) {
    if (each.from == from && each.to == to) return each;
  }
  throw std::logic_error("no such pair");
}

TEST_CASE("doctor: each pair of a few nodes meets once, and no node has two partners at a time") {
  for (int count = 2; count <= 8; ++count) {
    std::set<NodePair> met;
    const auto steps = all_pairs(first_nodes(count));
    CHECK(steps.size() == static_cast<std::size_t>(count % 2 == 0 ? count - 1 : count));
    for (const Step& step : steps) {
      CHECK(meets_each_node_once(step));
      for (const auto& [one, other] : step) {
        CHECK(met.emplace(std::min(one, other), std::max(one, other)).second);
      }
    }
    CHECK(met.size() == static_cast<std::size_t>(count * (count - 1) / 2));
  }
  CHECK(all_pairs({7}).empty());
}

TEST_CASE("doctor: the slow ones of many nodes meet the fast ones in the second step") {
  for (int count : {9, 10, 33}) {
    const auto nodes = first_nodes(count);
    const Step first = first_step(nodes);
    CHECK(meets_each_node_once(first));
    const auto speed = [&](int node) { return node == 3 || node == 2 ? 1.0 : 100.0 + node; };
    const auto second = second_steps(nodes, first, speed);
    CHECK(second.size() == (count % 2 == 0 ? 1 : 2));
    std::map<int, std::set<int>> partners;
    for (const Step& step : {first, second.front(), second.back()}) {
      CHECK(meets_each_node_once(step));
      for (const auto& [one, other] : step) {
        partners[one].insert(other);
        partners[other].insert(one);
      }
    }
    for (const int node : {2, 3}) {  // these two were slow together: one of them is to blame
      REQUIRE(partners[node].size() >= 2);
      CHECK(speed(*partners[node].rbegin()) > 100);
    }
    CHECK(partners.size() == nodes.size());
  }
}

TEST_CASE("doctor: a node that is slow with everybody is told from a way that is slow") {
  const auto slow_node = find_outliers({{0, 1, 1}, {0, 2, 9}, {1, 2, 9}}, 2, 0);
  CHECK(slow_node.usual == 1);
  CHECK(slow_node.nodes == std::vector<int>{2});
  CHECK(slow_node.ways.empty());
  const auto slow_way = find_outliers({{0, 1, 9}, {0, 2, 1}, {1, 2, 1}}, 2, 0);
  CHECK(slow_way.nodes.empty());
  REQUIRE(slow_way.ways.size() == 1);
  CHECK(slow_way.ways.front().to == 1);
  CHECK(find_outliers({{0, 1, 1.9}, {1, 0, 1}}, 2, 0).ways.empty());
  // Between two nodes the direction is named.
  CHECK(find_outliers({{0, 1, 2.1}, {1, 0, 1}}, 2, 0).ways.size() == 1);
  // The difference is too small to matter.
  CHECK(find_outliers({{0, 1, 2.1}, {1, 0, 1}}, 2, 5).ways.empty());
  CHECK(find_outliers({}, 2, 0).usual == 0);
}

TEST_CASE(
    "doctor: a pair that would be a finding is measured again, and its better figures count") {
  NodesFacts nodes = healthy(4);
  CHECK(pairs_to_repeat(nodes.pairs, 2, 0).empty());
  nodes.pairs[0].in_bits_per_second = 9e9;   // 0 – 1, one direction
  nodes.pairs[5].out_bits_per_second = 9e9;  // 2 – 3
  nodes.pairs[1].failure = "no answer in time";
  CHECK(pairs_to_repeat(nodes.pairs, 2, 0) == std::vector<NodePair>{{0, 1}, {2, 3}});
  CHECK(pairs_to_repeat(nodes.pairs, 4, 0).empty());
  CHECK(pairs_to_repeat(nodes.pairs, 4, 10e9) == std::vector<NodePair>{{0, 1}, {2, 3}});
  CHECK(pairs_to_repeat(nodes.pairs, 4, 30e9).size() == 5);  // each pair that sent anything

  const std::vector<Step> steps = steps_for({{0, 1}, {0, 2}, {2, 3}, {1, 3}});
  CHECK(steps == std::vector<Step>{{{0, 1}, {2, 3}}, {{0, 2}, {1, 3}}});

  const PairMeasure first{0, 1, "", 200e-6, 18e9, 1e9, "vanish"};
  const PairMeasure better = better_of(first, {1, 0, "", 100e-6, 17e9, 16e9, ""});
  CHECK(better.from == 0);
  CHECK(better.out_bits_per_second == 18e9);
  CHECK(better.in_bits_per_second == 17e9);  // the speed at which the other side sends
  CHECK(better.round_trip_seconds == 100e-6);
  CHECK(better.frames == "vanish");
  CHECK(better.times == 2);
  const PairMeasure none = better_of(first, {0, 1, "no answer in time", 0, 0, 0, ""});
  CHECK(none.failure.empty());
  CHECK(none.in_bits_per_second == 1e9);
}

TEST_CASE("doctor: names of many hosts are few words") {
  CHECK(host_ranges({"gpu01", "gpu02", "gpu03", "gpu30", "login"}) == "gpu[01-03,30], login");
  CHECK(host_ranges({"gpu9", "gpu10", "gpu11"}) == "gpu9, gpu[10-11]");
  CHECK(host_ranges({"n1"}) == "n1");
  CHECK(host_ranges({"a", "b", "c1", "c2"}, 2) == "a, b and 2 more");
  CHECK(host_ranges({"10.0.0.1", "10.0.0.2"}) == "10.0.0.[1-2]");
  CHECK(host_ranges({"17", "n123456789012"}) == "17, n123456789012");
}

TEST_CASE("doctor: nodes that are alike and reach each other are well") {
  const NodesFacts nodes = healthy(3);
  for (const Check& check : check_table()) {
    if (!check.is_of_nodes() || check.is_of_all_ranks) continue;
    const Outcome outcome = check.judge_nodes(nodes, {});
    INFO(check.name << ": " << outcome.seen);
    CHECK((outcome.verdict == Verdict::kOk || outcome.seen == "no node tells it"));
    const Verdict alone = check.judge_nodes(healthy(1), {}).verdict;
    CHECK(alone == (std::string(check.name) == "nodes" ? Verdict::kOk : Verdict::kSkipped));
  }
}

TEST_CASE("doctor: a node that doesn't answer is named, and the others are judged") {
  NodesFacts nodes = healthy(3);
  nodes.sheets.pop_back();
  const Outcome silent = judged_nodes("nodes", nodes);
  CHECK(silent.verdict == Verdict::kFail);
  CHECK(silent.seen == "node 2 gave no answer in time");
  CHECK(silent.nodes == std::vector<int>{2});
  nodes = healthy(3);
  nodes.reaches.erase(nodes.reaches.begin() + 1);  // node 1 said its name, and nothing afterwards
  CHECK(judged_nodes("nodes", nodes).seen == "gpu1 gave no answer in time");
}

TEST_CASE("doctor: a way that is closed is named with its direction, a node that is cut off once") {
  NodesFacts nodes = healthy(3);
  nodes.reaches[0].greetings[0].failure = "no answer";  // the way 0 → 1
  Outcome closed = judged_nodes("reachability", nodes);
  CHECK(closed.verdict == Verdict::kFail);
  CHECK(closed.seen == "gpu0 → gpu1: no answer");
  CHECK(closed.nodes == std::vector<int>{0, 1});
  nodes = healthy(3);
  nodes.reaches[0].greetings[1].failure = "no answer";
  nodes.reaches[1].greetings[1].failure = "no answer";
  for (Greeting& each : nodes.reaches[2].greetings) each.failure = "no answer";
  closed = judged_nodes("reachability", nodes);
  CHECK(closed.seen == "no node reaches gpu2");
  CHECK(closed.nodes == std::vector<int>{2});
}

TEST_CASE("doctor: slow, far and dead ways warn or fail, with who has them") {
  NodesFacts nodes = healthy(4);
  for (const int peer : {0, 1, 2}) pair_of(nodes, peer, 3).out_bits_per_second = 1e9;
  Outcome slow = judged_nodes("bandwidth", nodes);
  CHECK(slow.verdict == Verdict::kWarn);
  CHECK(slow.nodes == std::vector<int>{3});
  CHECK_THAT(slow.seen, Contains("gpu3 with everybody: sends 20.0 Gb/s, receives 1.0 Gb/s"));
  CHECK_THAT(slow.seen, Contains("usually 20.0 Gb/s"));
  nodes = healthy(4);
  pair_of(nodes, 1, 2).in_bits_per_second = 5e9;
  CHECK_THAT(judged_nodes("bandwidth", nodes).seen, Contains("gpu2 → gpu1 5.0 Gb/s"));
  pair_of(nodes, 1, 2).failure = "it took no data";
  CHECK(judged_nodes("bandwidth", nodes).verdict == Verdict::kFail);
  nodes = healthy(4);
  pair_of(nodes, 0, 3).round_trip_seconds = 2e-3;
  const Outcome far = judged_nodes("latency", nodes);
  CHECK(far.verdict == Verdict::kWarn);
  CHECK_THAT(far.seen, Contains("gpu0 – gpu3 2.0 ms"));
  pair_of(nodes, 0, 3).round_trip_seconds = 550e-6;  // less than latency.least above the usual
  CHECK(judged_nodes("latency", nodes).verdict == Verdict::kOk);
  pair_of(nodes, 0, 3).frames = "frames of 9000 bytes vanish on the way";
  CHECK_THAT(judged_nodes("full_frames", nodes).seen, Contains("gpu0 → gpu3: frames of 9000"));
  Thresholds least;
  least.set("bandwidth.least", 50'000);
  CHECK(find_check("bandwidth")->judge_nodes(healthy(2), least).verdict == Verdict::kWarn);
}

TEST_CASE("doctor: a value that differs between nodes is said with the nodes that have it") {
  NodesFacts nodes = healthy(4);
  nodes.sheets[3].mtu = 1500;
  nodes.sheets[2].versions["kernel"] = "6.1.9";
  nodes.sheets[1].versions["ddprun"] = "2.0.0";
  nodes.sheets[0].versions["nccl"] = "2.27.5";
  CHECK(judged_nodes("node_mtu", nodes).seen == "9000 on gpu[0-2]; 1500 on gpu3");
  CHECK(judged_nodes("node_mtu", nodes).nodes == std::vector<int>{3});
  CHECK(judged_nodes("kernel_versions", nodes).verdict == Verdict::kWarn);
  CHECK(judged_nodes("ddprun_versions", nodes).verdict == Verdict::kFail);  // another major version
  CHECK(judged_nodes("nccl_versions", nodes).verdict == Verdict::kOk);
  nodes.sheets[1].versions["ddprun"] = "1.2.1";
  CHECK(judged_nodes("ddprun_versions", nodes).verdict == Verdict::kWarn);
  for (const char* what : {"driver", "cuda", "nccl", "torch"}) {
    const std::string check = std::string(what) + "_versions";
    INFO(check);
    for (NodeSheet& each : nodes.sheets) each.versions[what] = "12.8";
    CHECK(judged_nodes(check, nodes).verdict == Verdict::kOk);
    nodes.sheets[1].versions[what] = "13.0";
    nodes.sheets[2].versions.erase(what);  // a node without it differs from no other
    const Outcome differs = judged_nodes(check, nodes);
    CHECK(differs.verdict == Verdict::kWarn);
    CHECK(differs.seen == "12.8 on gpu[0,3]; 13.0 on gpu1");
    CHECK(differs.nodes == std::vector<int>{1});
    CHECK_THAT(differs.fix, Contains(what));
  }
  nodes.sheets[2].interface = "docker0";
  CHECK_THAT(judged_nodes("node_interfaces", nodes).seen, Contains("gpu2 is reached over docker0"));
  nodes.sheets[2].interface = "eth0";
  nodes.sheets[0].speed_mbits = 1000;
  CHECK_THAT(judged_nodes("node_interfaces", nodes).seen, Contains("1.0 Gb/s on gpu0"));
  nodes.reaches[1].names.push_back({3, "can't resolve host name \"gpu3\""});
  const Outcome names = judged_nodes("node_names", nodes);
  CHECK_THAT(names.seen, Contains("gpu3 on gpu1: can't resolve"));
  CHECK(names.nodes == std::vector<int>{3});
}

TEST_CASE("doctor: the node whose clock is off is named, also where it is the first one") {
  NodesFacts nodes = healthy(4);
  CHECK_THAT(judged_nodes("node_clocks", nodes).seen, Contains("at most 1.0 ms apart"));
  nodes.reaches[0].greetings[1].offset_seconds = -3;  // node 2's clock, as node 0 sees it
  Outcome off = judged_nodes("node_clocks", nodes);
  CHECK(off.verdict == Verdict::kWarn);
  CHECK_THAT(off.seen, Contains("gpu2 is 3.000 s behind"));
  nodes = healthy(4);
  for (Greeting& each : nodes.reaches[0].greetings) each.offset_seconds = -7;
  off = judged_nodes("node_clocks", nodes);
  CHECK(off.nodes == std::vector<int>{0});
  CHECK_THAT(off.seen, Contains("gpu0 is 7.000 s ahead"));
}

Finding finding_of(const std::string& check, Verdict verdict, const std::string& seen) {
  return {check, "limits", {verdict, seen, "more", "raise it"}, "why"};
}

TEST_CASE("doctor: the ranks' sums: bus bandwidth, who failed, and why none was tried") {
  CHECK(parse_collectives("0\nhost 67108864 50000000\nnccl failed: no adapter\n?").size() == 2);
  CHECK(parse_collectives("host 1 0\nmpi 1 2\n").empty());
  NodesFacts nodes = healthy(2);
  nodes.world_size = 4;
  for (int rank = 0; rank < 4; ++rank) {
    nodes.collectives.push_back({rank, rank / 2, "host", 64 << 20, 0.1, ""});
  }
  CHECK(judged_nodes("all_reduce", nodes).seen == "64 MiB over 4 ranks: 8.1 Gb/s bus bandwidth");
  CHECK(judged_nodes("all_reduce", nodes).verdict == Verdict::kOk);
  CHECK(judged_nodes("all_reduce_nccl", nodes).verdict == Verdict::kSkipped);
  Thresholds least;
  least.set("all_reduce.least", 10'000);
  CHECK(find_check("all_reduce")->judge_nodes(nodes, least).verdict == Verdict::kWarn);
  nodes.collectives[3] = {3, 1, "host", 0, 0, "rank 2 did not come"};
  const Outcome failed = judged_nodes("all_reduce", nodes);
  CHECK(failed.verdict == Verdict::kFail);
  CHECK(failed.seen == "rank 3 on gpu1: rank 2 did not come");
  CHECK(failed.nodes == std::vector<int>{1});
  nodes.no_collectives = "not all nodes answer";
  CHECK(judged_nodes("all_reduce", nodes).verdict == Verdict::kUnknown);
}

TEST_CASE("doctor: the same finding on many nodes is one line with their names") {
  NodesFacts nodes = healthy(31);
  for (NodeSheet& sheet : nodes.sheets) {
    const bool is_last = sheet.node_rank == 30;
    sheet.findings = {
        finding_of("open_files", is_last ? Verdict::kOk : Verdict::kWarn, "soft 1024"),
        finding_of("somaxconn", Verdict::kFail, std::to_string(sheet.node_rank))};
  }
  const auto found = group_findings(nodes, parse_checks("open_files,somaxconn", "--only"));
  REQUIRE(found.size() == 3);
  CHECK(found[0].where == "gpu[0-9], gpu[10-29]");
  CHECK(found[0].outcome.verdict == Verdict::kWarn);
  CHECK(found[1].where == "gpu30");
  CHECK(found[2].outcome.seen == "0, and 30 others");  // each node saw something else
  CHECK(found[2].outcome.nodes.size() == 31);
  CHECK(found[2].where == "all nodes");
  const Report report{"31 nodes", WallTime{}, 1.5, found, "standard"};
  CHECK_THAT(
      nodes_table(report, nodes, false),
      Contains("warn    open_files            gpu[0-9], gpu[10-29]: soft 1024; wanted: more"));
}

TEST_CASE("doctor: the pairs are shown where something is wrong with one, the slowest first") {
  NodesFacts nodes = healthy(3);
  pair_of(nodes, 0, 2).in_bits_per_second = 1e8;
  Report report{"3 nodes", WallTime{}, 1.5, {}, "standard"};
  CHECK(nodes_table(report, nodes, false).find("pairs") == std::string::npos);
  report.findings.push_back(run_check(*find_check("bandwidth"), nodes, {}));
  CHECK(report.findings.back().outcome.nodes == std::vector<int>{0, 2});
  const std::string table = nodes_table(report, nodes, false);
  CHECK_THAT(table, Contains("pairs, the slowest first:\n        gpu0 – gpu2  → 20.0 Gb/s"));
  CHECK_THAT(table, Contains("← 100 Mb/s"));
  const auto page = boost::json::parse(nodes_json(report, nodes));
  CHECK(page.at("tier").as_string() == "standard");
  CHECK(page.at("nodes").as_array().size() == 3);
  CHECK(page.at("pairs").as_array().size() == 3);
  CHECK(page.at("findings").as_array().at(0).at("nodes").as_array().size() == 2);
}

TEST_CASE("doctor: a node's reports come back as they were told") {
  NodesFacts nodes = healthy(2);
  nodes.sheets[0].findings = {finding_of("open_files", Verdict::kWarn, "soft 1024")};
  nodes.reaches[1].names.push_back({0, "no such name"});
  const auto sheet = parse_sheet(to_json(nodes.sheets[0]));
  REQUIRE(sheet.has_value());
  CHECK(to_json(*sheet) == to_json(nodes.sheets[0]));
  CHECK(sheet->findings.front().outcome.fix == "raise it");
  const auto reach = parse_reach(to_json(nodes.reaches[1]));
  REQUIRE(reach.has_value());
  CHECK(to_json(*reach) == to_json(nodes.reaches[1]));
  const auto pair = parse_measure(to_json(nodes.pairs[0]));
  REQUIRE(pair.has_value());
  CHECK(to_json(*pair) == to_json(nodes.pairs[0]));
  CHECK(!parse_sheet("[1]"));
  CHECK(!parse_measure("no JSON"));
}

TEST_CASE("doctor: a worker of ddprun knows its place, others have none") {
  CHECK(!find_place({}));
  CHECK(!find_place({{env::kRank, "0"}, {env::kMasterAddr, "n0"}}));  // torchrun's
  Environment environment = {{env::kRank, "5"},          {env::kLocalRank, "1"},
                             {env::kGroupRank, "2"},     {env::kGroupWorldSize, "4"},
                             {env::kWorldSize, "8"},     {env::kMasterAddr, "10.0.0.1"},
                             {env::kMasterPort, "4711"}, {env::kNodeAddr, "10.0.0.3"}};
  const auto place = find_place(environment);
  REQUIRE(place.has_value());
  CHECK(place->node_rank == 2);
  CHECK(place->num_nodes == 4);
  CHECK(place->local_rank == 1);
  CHECK(to_string(place->store) == "10.0.0.1:4711");
  environment[env::kTrueLocalRank] = "3";  // --virtual-local-rank
  CHECK(find_place(environment)->local_rank == 3);
  environment[env::kGroupRank] = "two";
  CHECK_THAT(ddprun::test::error_of([&] { find_place(environment); }).what(),
             Contains("GROUP_RANK=two"));
}

}  // namespace
}  // namespace ddprun::doctor
