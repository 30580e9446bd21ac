// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor_nodes.h"

#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/exit_codes.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "common/unique_fd.h"
#include "ctl/doctor/judge.h"
#include "ctl/doctor/nodes/collective.h"
#include "ctl/doctor/nodes/node_exchange.h"
#include "ctl/doctor/nodes/nodes_report.h"
#include "ctl/doctor/questions.h"
#include "ctl/foreground_child.h"
#include "rendezvous/store/tcp_store.h"

namespace ddprun::ctl {
namespace {

using doctor::Check;

int mtu_of(const std::string& interface) {
  ifreq request{};
  std::strncpy(request.ifr_name, interface.c_str(), sizeof request.ifr_name - 1);
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::ioctl(fd.get(), SIOCGIFMTU, &request) != 0) return 0;
  return request.ifr_mtu;
}

doctor::NodeSheet make_sheet(const doctor::Place& place, const doctor::Facts& facts,
                             std::vector<doctor::Finding> findings) {
  doctor::NodeSheet sheet;
  sheet.node_rank = place.node_rank;
  sheet.host = facts.host_name;
  sheet.address = place.address;
  sheet.interface = doctor::interface_of(place.address);
  if (!sheet.interface.empty()) sheet.mtu = mtu_of(sheet.interface);
  const std::string speed = "/sys/class/net/" + sheet.interface + "/speed";
  sheet.speed_mbits = std::max(0LL, facts.files.number(speed).value_or(0));
  sheet.versions["ddprun"] = DDPRUN_VERSION;
  if (utsname system{}; ::uname(&system) == 0) sheet.versions["kernel"] = system.release;
  const auto add = [&](const char* name, const std::string& version) {
    if (!version.empty()) sheet.versions[name] = version;
  };
  add("driver", doctor::driver_version(facts.files));
  add("torch", facts.packages.torch);
  add("cuda", facts.packages.cuda);
  add("nccl", facts.packages.nccl);
  sheet.findings = std::move(findings);
  return sheet;
}

bool wants_any(const std::vector<const Check*>& checks, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) {
    return std::find(checks.begin(), checks.end(), doctor::find_check(name)) != checks.end();
  });
}

}  // namespace

NodesReport look_at_nodes(const NodesDoctorOptions& options, const doctor::Place& place,
                          const doctor::Facts& facts, std::vector<doctor::Finding> findings,
                          bool shows_all) {
  const Deadline deadline(options.begun + options.limit);
  doctor::ExchangeOptions exchange{.deadline = deadline, .pair = {}};
  exchange.pair.num_bytes = static_cast<std::uint64_t>(options.thresholds.at("bandwidth.bytes"));
  exchange.pair.time = std::chrono::nanoseconds(
      static_cast<long long>(options.thresholds.at("bandwidth.seconds") * 1e9));
  exchange.slow_factor = options.thresholds.at("bandwidth.factor");
  exchange.least_bits_per_second = options.thresholds.at("bandwidth.least") * 1e6;
  exchange.measures_pairs = wants_any(options.checks, {"latency", "bandwidth", "full_frames"});
  exchange.looks_up_names = wants_any(options.checks, {"node_names"});
  doctor::NodeSheet sheet = make_sheet(place, facts, std::move(findings));
  if (wants_any(options.checks, {"full_frames"})) exchange.pair.mtu = sheet.mtu;
  store::TcpStoreOptions store_options;
  store_options.timeout = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
  store::TcpStore store(place.store, store_options);
  NodesReport result;
  const auto num_bytes = static_cast<std::uint64_t>(options.thresholds.at("all_reduce.bytes"));
  const bool tries_collectives = wants_any(options.checks, {"all_reduce", "all_reduce_nccl"});
  if (place.node_rank != 0) {
    doctor::answer_rank_0(store, place, std::move(sheet), exchange);
    if (tries_collectives) join_collectives(store, place, num_bytes, deadline);
    return result;
  }
  doctor::NodesFacts nodes = gather_nodes(store, place, std::move(sheet), exchange);
  nodes.world_size = place.world_size;
  if (tries_collectives) {
    const bool all_answer = nodes.reaches.size() == static_cast<std::size_t>(place.num_nodes);
    lead_collectives(store, place, num_bytes,
                     all_answer ? "" : "not all nodes answer, and the others would wait for them",
                     deadline, nodes);
  }
  result.is_told = true;
  doctor::Report& report = result.report;
  report.host = concat(place.num_nodes, place.num_nodes == 1 ? " node" : " nodes");
  report.time = std::chrono::system_clock::now();
  report.tier = options.tier;
  for (const Check* check : options.checks) {
    if (check->is_of_nodes()) {
      report.findings.push_back(doctor::run_check(*check, nodes, options.thresholds));
    }
  }
  for (doctor::Finding& each : doctor::group_findings(nodes, options.checks)) {
    report.findings.push_back(std::move(each));
  }
  report.seconds = std::chrono::duration<double>(Clock::now() - options.begun).count();
  result.table = doctor::nodes_table(report, nodes, shows_all);
  result.json = doctor::nodes_json(report, nodes);
  return result;
}

void join_as_rank(const NodesDoctorOptions& options, const doctor::Place& place) {
  if (!wants_any(options.checks, {"all_reduce", "all_reduce_nccl"})) return;
  const Deadline deadline(options.begun + options.limit);
  store::TcpStoreOptions store_options;
  store_options.timeout = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
  store::TcpStore store(place.store, store_options);
  const auto num_bytes = static_cast<std::uint64_t>(options.thresholds.at("all_reduce.bytes"));
  doctor::join_collectives(store, place, num_bytes, deadline);
}

int run_on_hosts(const std::string& hosts, const std::vector<std::string>& flags) {
  const std::string folder = own_folder();
  std::vector<std::string> words = {folder + "/ddprun",
                                    "--hosts=" + hosts,
                                    "--nproc-per-node=1",
                                    "--no-python",
                                    "--log-line-prefix-template=",
                                    folder + "/ddprunctl",
                                    "doctor"};
  words.insert(words.end(), flags.begin(), flags.end());
  // ddprun's own codes say that nothing is known, but that it was stopped.
  const int unknown = doctor::exit_code_of(doctor::Verdict::kUnknown);
  const int code = run_in_foreground(words);
  return code <= unknown || code > exit_status_for_signal(0) ? code : unknown;
}

}  // namespace ddprun::ctl
