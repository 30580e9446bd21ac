// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "common/log.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/judge.h"

namespace ddprun::doctor {
namespace {

Outcome judge_mtu(const Facts& facts, const Thresholds& limits) {
  std::vector<std::string> seen, small, fixes;
  std::map<long long, int> speeds;  // MTU of links of one speed
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
  outcome.verdict = Verdict::kWarn;
  outcome.fix = fixes.empty() ? "the same MTU for links of one speed: ip link set DEVICE mtu N"
                              : list_text(fixes, 2) + ", on every node and switch";
  return outcome;
}

// Interfaces of default routes with the smallest metric.
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
    outcome.verdict = Verdict::kFail;
    outcome.seen = one_line(route.failure);
    outcome.fix = "is --rdzv-endpoint right? ip route get ADDRESS shows the route";
  } else if (is_virtual_interface(route.interface)) {
    outcome.verdict = Verdict::kWarn;
    outcome.fix = "name the rendezvous by an address that other nodes reach, or add a route";
  }
  return outcome;
}

Outcome judge_interface(const Facts& facts, const Thresholds&) {
  if (facts.route.answer) return judge_route_choice(facts);
  if (facts.route.not_asked.empty()) return no_answer(facts.route, facts.endpoint);
  const auto names = default_interfaces(facts);
  if (names.empty()) return skipped("no default route; --rdzv-endpoint tells which way to look");
  Outcome outcome = ok(list_text(names) + ", the default route", "one that other nodes reach");
  if (names.size() > 1) {
    outcome.verdict = Verdict::kWarn;
    outcome.seen = "default routes over " + list_text(names);
    outcome.fix =
        "give one of them a smaller metric, and NCCL_SOCKET_IFNAME and "
        "GLOO_SOCKET_IFNAME a name";
  } else if (is_virtual_interface(names.front())) {
    outcome.verdict = Verdict::kWarn;
    outcome.fix = "ip route replace default via GATEWAY dev INTERFACE";
  }
  return outcome;
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
  outcome.verdict = Verdict::kWarn;
  if (none) outcome.seen = one_line(name.failure);
  outcome.fix = "a line \"ADDRESS " + facts.host_name + "\" in /etc/hosts, or in the DNS";
  return outcome;
}

}  // namespace

std::vector<Check> network_checks() {
  static constexpr char kGroup[] = "network";
  return {
      {"mtu", kGroup, "/sys/class/net/*/mtu, speed",
       "small frames cost a fast link's bandwidth; frames that are too large for the way are lost",
       judge_mtu},
      {"interface", kGroup, "/proc/net/route; with --rdzv-endpoint the route to it",
       "what this node says of itself is its address on this interface", judge_interface},
      {"host_name", kGroup, "getaddrinfo(3) of this host's own name",
       "programs (Gloo, torchrun's) tell their peers this name's address; loopback is each peer's "
       "own",
       judge_host_name},
  };
}

}  // namespace ddprun::doctor
