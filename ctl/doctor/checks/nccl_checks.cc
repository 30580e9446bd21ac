// SPDX-License-Identifier: Apache-2.0
// Which interfaces and adapters NCCL would take by itself.
#include <algorithm>

#include "common/log.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/judge.h"

namespace ddprun::doctor {
namespace {

constexpr char kSocketInterface[] = "NCCL_SOCKET_IFNAME";
constexpr char kAdapters[] = "NCCL_IB_HCA";
constexpr char kNoAdapters[] = "NCCL_IB_DISABLE";

// "^docker,lo" and the like: starts of names with commas between, "^" all others, "=" whole names.
class NameFilter {
 public:
  explicit NameFilter(std::string text) {
    if (text.starts_with('^')) is_inverse_ = !text.erase(0, 1).empty();
    if (text.starts_with('=')) is_whole_ = !text.erase(0, 1).empty();
    std::replace(text.begin(), text.end(), ',', ' ');
    names_ = words_in(text);
  }
  bool takes(const std::string& name) const {
    const bool is_named = std::any_of(names_.begin(), names_.end(), [&](const std::string& each) {
      const std::string start = each.substr(0, each.find(':'));  // of an adapter: its port
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

// NCCL takes "ib…" where there are some, else all but the loopback's and Docker's.
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

}  // namespace

std::vector<Check> nccl_checks() {
  static constexpr char kGroup[] = "nccl";
  return {
      {"nccl_interfaces", kGroup, "/sys/class/net, NCCL_SOCKET_IFNAME",
       "NCCL meets, and without RDMA moves all data, over the first one: peers must reach it",
       judge_nccl_interfaces},
      {"nccl_adapters", kGroup, "/sys/class/infiniband, NCCL_IB_HCA, NCCL_IB_DISABLE",
       "without them NCCL goes over TCP, at a fraction of the bandwidth", judge_nccl_adapters},
  };
}

}  // namespace ddprun::doctor
