// SPDX-License-Identifier: Apache-2.0
// Checks of interfaces and RDMA adapters, and of those that NCCL would choose by itself.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "common/interfaces.h"
#include "common/text.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/judge.h"

namespace ddprun::doctor {
namespace {

Outcome judge_mtu(const Facts& facts, const Thresholds& limits) {
  std::vector<std::string> seen, small, fixes;
  std::map<long long, int> speeds;  // speed → MTU of the links that have it
  bool differs = false;
  for (const Link& link : links_up(facts.files)) {
    if (is_virtual_interface(link.name) || link.mtu == 0) continue;
    seen.push_back(concat(link.name, " ", link.mtu));
    if (link.speed_mbits > 0) {
      const auto [at, is_new] = speeds.emplace(link.speed_mbits, static_cast<int>(link.mtu));
      differs = differs || (!is_new && at->second != link.mtu);
    }
    const bool is_fast = static_cast<double>(link.speed_mbits) >= limits.at("mtu.fast_link");
    if (!is_fast || static_cast<double>(link.mtu) >= limits.at("mtu.warn")) continue;
    small.push_back(link.name);
    fixes.push_back(concat("ip link set ", link.name, " mtu ", limits.at("mtu.warn")));
  }
  if (seen.empty()) return skipped("no interface is up");
  if (hides_speeds(facts)) return no_speeds();
  Outcome outcome = ok(list_text(seen), concat("at least ", limits.at("mtu.warn"),
                                               " on the fastest links, the same on equal ones"));
  if (small.empty() && !differs) return outcome;
  return warned(outcome, fixes.empty()
                             ? "the same MTU for links of one speed: ip link set DEVICE mtu N"
                             : list_text(fixes, 2) + ", on every node and switch");
}

// Returns the interfaces of the default routes with the smallest metric.
std::vector<std::string> default_interfaces(const Facts& facts) {
  std::map<long long, std::vector<std::string>> by_metric;
  for (const std::string& line : lines_in(facts.files.text("/proc/net/route").value_or(""))) {
    const auto words = words_in(line);
    if (words.size() < 8 || words[1] != "00000000" || words[7] != "00000000") continue;
    const auto metric = numbers_in(words[6]);
    auto& names = by_metric[metric.empty() ? 0 : metric.front()];
    if (std::find(names.begin(), names.end(), words[0]) == names.end()) names.push_back(words[0]);
  }
  return by_metric.empty() ? std::vector<std::string>() : by_metric.begin()->second;
}

Outcome judge_route_choice(const Facts& facts) {
  const RouteAnswer& route = *facts.route.answer;
  Outcome outcome = ok(route.interface + " (" + route.address + ") towards " + facts.endpoint,
                       "an interface that other nodes reach");
  if (!route.failure.empty()) {
    outcome.seen = one_line(route.failure);
    return failed(outcome, "is --rdzv-endpoint right? ip route get ADDRESS shows the route");
  }
  if (!is_virtual_interface(route.interface)) return outcome;
  return warned(outcome,
                "name the rendezvous by an address that other nodes reach, or add a route");
}

Outcome judge_interface(const Facts& facts, const Thresholds&) {
  if (facts.route.answer) return judge_route_choice(facts);
  if (facts.route.not_asked.empty()) return no_answer(facts.route, facts.endpoint);
  const auto names = default_interfaces(facts);
  if (names.empty()) return skipped("no default route; --rdzv-endpoint tells which way to look");
  Outcome outcome = ok(list_text(names) + ", the default route", "one that other nodes reach");
  if (names.size() > 1) {
    outcome.seen = "default routes over " + list_text(names);
    return warned(outcome,
                  "give one of them a smaller metric, and NCCL_SOCKET_IFNAME and "
                  "GLOO_SOCKET_IFNAME a name");
  }
  if (!is_virtual_interface(names.front())) return outcome;
  return warned(outcome, "ip route replace default via GATEWAY dev INTERFACE");
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

Outcome judge_host_name(const Facts& facts, const Thresholds&) {
  if (!facts.own_name.answer) return no_answer(facts.own_name, facts.host_name);
  const NameAnswer& name = *facts.own_name.answer;
  Outcome outcome = ok(facts.host_name + " is " + list_text(name.addresses, 3),
                       "an address that other nodes reach");
  const bool none = !name.failure.empty() || name.addresses.empty();
  if (!none && !std::all_of(name.addresses.begin(), name.addresses.end(), is_loopback)) {
    return outcome;
  }
  if (none) outcome.seen = one_line(name.failure);
  return warned(outcome, "a line \"ADDRESS " + facts.host_name + "\" in /etc/hosts, or in the DNS");
}

constexpr char kSocketInterface[] = "NCCL_SOCKET_IFNAME";
constexpr char kAdapters[] = "NCCL_IB_HCA";
constexpr char kNoAdapters[] = "NCCL_IB_DISABLE";

// A filter such as "^docker,lo": prefixes separated by commas. "^" takes all others, "=" compares
// whole names.
class NameFilter {
 public:
  explicit NameFilter(std::string text) {
    if (text.starts_with('^')) is_inverse_ = !text.erase(0, 1).empty();
    if (text.starts_with('=')) is_whole_ = !text.erase(0, 1).empty();
    names_ = comma_parts(text);
  }
  bool takes(const std::string& name) const {
    const bool is_named = std::any_of(names_.begin(), names_.end(), [&](const std::string& each) {
      const std::string start = each.substr(0, each.find(':'));  // without an adapter's port
      return is_whole_ ? name == start : name.starts_with(start);
    });
    return is_named != is_inverse_;
  }

 private:
  bool is_inverse_ = false, is_whole_ = false;
  std::vector<std::string> names_;
};

std::vector<std::string> names_of(const std::vector<Link>& links, const NameFilter& filter) {
  std::vector<std::string> names;
  for (const Link& link : links) {
    if (filter.takes(link.name)) names.push_back(link.name);
  }
  return names;
}

// NCCL uses the "ib…" interfaces if there are any, else all but the loopback's and Docker's.
Outcome judge_nccl_interfaces(const Facts& facts, const Thresholds&) {
  if (nvidia_gpus(facts.files).empty()) return skipped("no NVIDIA GPU here");
  const std::vector<Link> links = links_up(facts.files);
  const auto given = find_variable(facts.environment, kSocketInterface);
  std::vector<std::string> names = names_of(links, NameFilter(given.value_or("ib")));
  if (!given && names.empty()) names = names_of(links, NameFilter("^docker,lo"));
  const std::string why =
      given ? concat(" (", kSocketInterface, "=", one_line(*given), ")") : std::string();
  Outcome outcome = ok(list_text(names) + why, "one that other nodes reach");
  std::vector<std::string> odd, good;
  for (const std::string& name : names) {
    (is_virtual_interface(name) ? odd : good).push_back(name);
  }
  if (!names.empty() && odd.empty()) return outcome;
  outcome.verdict = Verdict::kWarn;
  if (names.empty()) {
    outcome.seen = "none" + (given ? why : ": no interface is up");
    outcome.fix = given ? concat("unset ", kSocketInterface, ", or name one of ip -br link")
                        : "ip link set DEVICE up";
  } else {
    outcome.seen = list_text(names) + why + ": the first one that has an address, and " +
                   list_text(odd) + " is for this host alone";
    outcome.fix = concat("export ", kSocketInterface, "=", good.empty() ? "DEVICE" : good.front());
  }
  return outcome;
}

Outcome judge_nccl_adapters(const Facts& facts, const Thresholds&) {
  if (nvidia_gpus(facts.files).empty()) return skipped("no NVIDIA GPU here");
  if (!facts.rdma.answer) return no_answer(facts.rdma, "/sys/class/infiniband");
  std::vector<std::string> active, taken;
  const auto given = find_variable(facts.environment, kAdapters);
  for (const RdmaPort& port : rdma_ports(facts.files)) {
    if (!port.is_active) continue;
    active.push_back(port.name);
    if (!given || NameFilter(*given).takes(port.name.substr(0, port.name.find(' ')))) {
      taken.push_back(port.name);
    }
  }
  if (active.empty()) return skipped("no port is active");
  Outcome outcome = ok(list_text(taken, 8), "the active ports");
  const std::string off = find_variable(facts.environment, kNoAdapters).value_or("0");
  if (off == "0" && !taken.empty()) return outcome;
  outcome.verdict = Verdict::kWarn;
  if (off != "0") {
    outcome.seen = concat(kNoAdapters, "=", one_line(off), ", and ", active.size(),
                          active.size() == 1 ? " port is active" : " ports are active");
    outcome.fix = concat("unset ", kNoAdapters);
  } else {
    outcome.seen = concat(kAdapters, "=", one_line(*given), " names no active port");
    outcome.fix = concat("unset ", kAdapters, ", or name some of ", list_text(active));
  }
  return outcome;
}

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
    outcome.seen = list_text(half);
    return failed(outcome, "is a subnet manager running (opensm, the switch's)? ibstat, sminfo");
  }
  if (down.empty()) return active.empty() ? skipped("adapters without ports") : outcome;
  outcome.seen = list_text(down) + (active.empty() ? "" : "; " + list_text(active));
  return with_fix(active.empty() ? Verdict::kFail : Verdict::kWarn, outcome,
                  "cable, switch port, ip link set up; what isn't used: NCCL_IB_HCA=^DEVICE");
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
  return warned(outcome, "ibstat; a cable or a switch port may have come up with fewer lanes");
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
  outcome.seen = list_text(bad, 8);
  return warned(outcome, "look at the cable and the switch port: mlxlink -d DEVICE, dmesg");
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
  outcome.seen = list_text(without, 8) + " without a GID of RoCE v2 among the first 16";
  return warned(outcome, "give the port's interface an address: ip addr add ADDRESS dev INTERFACE");
}

}  // namespace

std::vector<Check> network_checks() {
  return {
      {"mtu", "network", "/sys/class/net/*/mtu, speed",
       "small frames cost a fast link's bandwidth; frames that are too large for the way are lost",
       judge_mtu},
      {"interface", "network", "/proc/net/route; with --rdzv-endpoint the route to it",
       "what this node says of itself is its address on this interface", judge_interface},
      {"host_name", "network", "getaddrinfo(3) of this host's own name",
       "programs (Gloo, torchrun's) tell their peers this name's address; loopback is each peer's "
       "own",
       judge_host_name},
  };
}

std::vector<Check> rdma_checks() {
  return {
      {"nccl_interfaces", "nccl", "/sys/class/net, NCCL_SOCKET_IFNAME",
       "NCCL meets, and without RDMA moves all data, over the first one: peers must reach it",
       judge_nccl_interfaces},
      {"nccl_adapters", "nccl", "/sys/class/infiniband, NCCL_IB_HCA, NCCL_IB_DISABLE",
       "without them NCCL goes over TCP, at a fraction of the bandwidth", judge_nccl_adapters},
      {"rdma_ports", "rdma", "/sys/class/infiniband/*/ports/*/state",
       "NCCL takes each adapter that it finds, and fails or hangs on one that isn't connected",
       judge_rdma_ports},
      {"rdma_rate", "rdma", "/sys/class/infiniband/*/ports/*/rate",
       "collectives go as fast as the slowest port", judge_rdma_rate},
      {"rdma_link_downed", "rdma", "/sys/class/infiniband/*/ports/*/counters/link_downed",
       "each time the link goes down, the jobs on it fail", judge_link_downed},
      {"rdma_gids", "rdma", "/sys/class/infiniband/*/ports/*/gids, gid_attrs/types",
       "RoCE v2 packets are sent from such an address; others don't pass routers", judge_gids},
  };
}

}  // namespace ddprun::doctor
