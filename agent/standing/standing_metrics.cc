// SPDX-License-Identifier: Apache-2.0
#include "agent/standing/standing_metrics.h"

#include "agent/monitor/agent_metrics.h"

namespace ddprun::launcher {
namespace {

using metrics::TextWriter;
using metrics::Type;

void write_queue(TextWriter& out, const StandingMetrics& all) {
  out.single("ddprun_rendezvous_connected", Type::kGauge,
             "1: the rendezvous has taken this node in, and is connected.",
             std::uint64_t{all.connected});
  out.single("ddprun_rendezvous_reconnects_total", Type::kCounter,
             "How often it was connected again.", all.reconnects);
  out.single("ddprun_slots", Type::kGauge, "How many workers of gangs may run here at once.",
             static_cast<std::uint64_t>(all.slots));
  out.single("ddprun_slots_used", Type::kGauge, "Slots of this node that gangs have now.",
             static_cast<std::uint64_t>(all.slots_used));
}

void write_gangs(TextWriter& out, const StandingMetrics& all) {
  out.family("ddprun_gangs", Type::kGauge, "Gangs that have slots of this node, by state.");
  out.sample({{"state", "starting"}}, std::uint64_t{all.num_starting});
  out.sample({{"state", "running"}}, std::uint64_t{all.num_running});
  out.sample({{"state", "stopping"}}, std::uint64_t{all.num_stopping});
  out.single("ddprun_gangs_begun_total", Type::kCounter, "Gangs whose ddprun was started here.",
             all.counts.begun);
  out.family("ddprun_gangs_ended_total", Type::kCounter,
             "Gangs that came to their end on this node, by how.");
  constexpr std::array kResults = {"success", "failure", "stopped", "refused"};
  static_assert(kResults.size() == kNumGangEnds);
  for (std::size_t i = 0; i < kResults.size(); ++i) {
    out.sample({{"result", kResults[i]}}, all.counts.ends[i]);
  }
}

}  // namespace

std::string standing_metrics_to_text(const StandingMetrics& all, metrics::Format format) {
  TextWriter out(format);
  out.family("ddprun_build_info", Type::kGauge, "1; what runs is in its labels.");
  out.sample({{"program", "ddprun-agent"}, {"version", DDPRUN_VERSION}}, std::uint64_t{1});
  out.family("ddprun_standing_agent_info", Type::kGauge,
             "1; the node that gangs know it as, and whose gangs it runs.");
  out.sample({{"node", all.node}, {"user", all.user}}, std::uint64_t{1});
  write_queue(out, all);
  write_gangs(out, all);
  agent::write_node(out, all.readings);
  metrics::write(out, all.process);
  return out.finish();
}

}  // namespace ddprun::launcher
