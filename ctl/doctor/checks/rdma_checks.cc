// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <set>

#include "common/log.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/judge.h"

namespace ddprun::doctor {
namespace {

// "4: ACTIVE" → "ACTIVE".
std::string state_word(const Facts& facts, const std::string& path) {
  const auto words = words_in(facts.files.text(path).value_or("not known"));
  return words.empty() ? "not known" : one_line(words.back());
}

Outcome judge_rdma_ports(const Facts& facts, const Thresholds&) {
  if (!facts.rdma.answer) return no_answer(facts.rdma, "/sys/class/infiniband");
  std::vector<std::string> active, down, half;
  for (const RdmaPort& port : rdma_ports(facts.files)) {
    const std::string state = state_word(facts, port.start + "/state");
    const std::string text = port.name + " " + state;
    (port.is_active ? active : state == "INIT" || state == "ARMED" ? half : down).push_back(text);
  }
  Outcome outcome = ok(list_text(active), "ACTIVE");
  if (!half.empty()) {
    outcome.verdict = Verdict::kFail;
    outcome.seen = list_text(half);
    outcome.fix = "is a subnet manager running (opensm, the switch's)? ibstat, sminfo";
  } else if (!down.empty()) {
    outcome.verdict = active.empty() ? Verdict::kFail : Verdict::kWarn;
    outcome.seen = list_text(down) + (active.empty() ? "" : "; " + list_text(active));
    outcome.fix = "cable, switch port, ip link set up; what isn't used: NCCL_IB_HCA=^DEVICE";
  } else if (active.empty()) {
    return skipped("adapters without ports");
  }
  return outcome;
}

Outcome judge_rdma_rate(const Facts& facts, const Thresholds&) {
  if (!facts.rdma.answer) return no_answer(facts.rdma, "/sys/class/infiniband");
  std::vector<std::string> seen;
  std::set<std::pair<bool, std::string>> rates;  // by link layer
  std::set<bool> layers;
  for (const RdmaPort& port : rdma_ports(facts.files)) {
    if (!port.is_active) continue;
    const std::string rate = one_line(facts.files.text(port.start + "/rate").value_or("?"));
    seen.push_back(port.name + " " + rate);
    rates.emplace(port.is_ethernet, rate);
    layers.insert(port.is_ethernet);
  }
  if (seen.empty()) return skipped("no port is active");
  Outcome outcome = ok(list_text(seen, 8), "the same on all ports of a kind");
  if (rates.size() == layers.size()) return outcome;
  outcome.verdict = Verdict::kWarn;
  outcome.fix = "ibstat; a cable or a switch port may have come up with fewer lanes";
  return outcome;
}

Outcome judge_link_downed(const Facts& facts, const Thresholds& limits) {
  if (!facts.rdma.answer) return no_answer(facts.rdma, "/sys/class/infiniband");
  const double uptime =
      std::strtod(facts.files.text("/proc/uptime").value_or("0").c_str(), nullptr);
  const double most = limits.at("rdma_link_downed.warn");
  const double days = std::max(1.0, uptime / 86'400);
  std::vector<std::string> seen, bad;
  for (const RdmaPort& port : rdma_ports(facts.files)) {
    const auto count = facts.files.number(port.start + "/counters/link_downed");
    if (!count) continue;
    seen.push_back(concat(port.name, ": ", *count));
    if (static_cast<double>(*count) > most * days) bad.push_back(seen.back());
  }
  if (seen.empty()) return skipped("no port counts it");
  Outcome outcome = ok(list_text(seen, 8), concat("at most ", most, " a day since the start"));
  if (bad.empty()) return outcome;
  outcome.verdict = Verdict::kWarn;
  outcome.seen = list_text(bad, 8);
  outcome.fix = "look at the cable and the switch port: mlxlink -d DEVICE, dmesg";
  return outcome;
}

Outcome judge_gids(const Facts& facts, const Thresholds&) {
  if (!facts.rdma.answer) return no_answer(facts.rdma, "/sys/class/infiniband");
  std::vector<std::string> seen, without;
  for (const RdmaPort& port : rdma_ports(facts.files)) {
    if (!port.is_active || !port.is_ethernet) continue;
    std::string found;
    for (const std::string& number : facts.files.names_in(port.start + "/gids")) {
      const std::string type =
          facts.files.text(port.start + "/gid_attrs/types/" + number).value_or("");
      if (type.find("v2") != std::string::npos) found = number;
    }
    seen.push_back(port.name + " index " + found);
    if (found.empty()) without.push_back(port.name);
  }
  if (seen.empty()) return skipped("no RoCE port is active");
  Outcome outcome = ok(list_text(seen, 8), "a GID of RoCE v2 on each port");
  if (without.empty()) return outcome;
  outcome.verdict = Verdict::kWarn;
  outcome.seen = list_text(without, 8) + " without a GID of RoCE v2 among the first 16";
  outcome.fix = "give the port's interface an address: ip addr add ADDRESS dev INTERFACE";
  return outcome;
}

}  // namespace

std::vector<Check> rdma_checks() {
  static constexpr char kGroup[] = "rdma";
  return {
      {"rdma_ports", kGroup, "/sys/class/infiniband/*/ports/*/state",
       "NCCL takes each adapter that it finds, and fails or hangs on one that isn't connected",
       judge_rdma_ports},
      {"rdma_rate", kGroup, "/sys/class/infiniband/*/ports/*/rate",
       "collectives go as fast as the slowest port", judge_rdma_rate},
      {"rdma_link_downed", kGroup, "/sys/class/infiniband/*/ports/*/counters/link_downed",
       "each time the link goes down, the jobs on it fail", judge_link_downed},
      {"rdma_gids", kGroup, "/sys/class/infiniband/*/ports/*/gids, gid_attrs/types",
       "RoCE v2 packets are sent from such an address; others don't pass routers", judge_gids},
  };
}

}  // namespace ddprun::doctor
