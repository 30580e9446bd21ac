// SPDX-License-Identifier: Apache-2.0
#include "agent/monitor/agent_metrics.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

#include "agent/monitor/node_metrics.h"

namespace ddprun::agent {
namespace {

using metrics::TextWriter;
using metrics::Type;

void write_rendezvous(TextWriter& out, const AgentMetrics& all) {
  out.single("ddprun_rendezvous_connected", Type::kGauge,
             "1: the rendezvous has taken this node in, and is connected.",
             std::uint64_t{all.connected});
  out.single("ddprun_rendezvous_rounds_total", Type::kCounter, "Rounds that began on this node.",
             all.counts.rounds);
  out.histogram("ddprun_rendezvous_duration_seconds",
                "How long this node waited for a round: from its begin, or from the end of its "
                "workers.",
                all.counts.waits);
  out.single("ddprun_round", Type::kGauge, "The live or last round; 0: none has begun.", all.round);
  if (all.node_rank >= 0) {
    out.single("ddprun_node_rank", Type::kGauge, "Of this node in that round.",
               static_cast<std::uint64_t>(all.node_rank));
  }
}

void write_workers(TextWriter& out, const AgentMetrics& all) {
  out.family("ddprun_workers", Type::kGauge, "Worker processes of this node, by state.");
  out.sample({{"state", "running"}}, std::uint64_t{all.num_running});
  out.sample({{"state", "stopping"}}, std::uint64_t{all.num_stopping});
  out.sample({{"state", "parked"}}, std::uint64_t{all.num_parked});
  out.family("ddprun_worker_exits_total", Type::kCounter, "Workers that ended, by how.");
  constexpr std::array kKinds = {"success", "error", "signal", "out_of_memory", "stopped"};
  static_assert(kKinds.size() == kNumExitKinds);
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    out.sample({{"kind", kKinds[i]}}, all.counts.exits[i]);
  }
  out.family("ddprun_worker_restarts_total", Type::kCounter,
             "How often this node's workers were started again, by what ended the round before.");
  out.sample({{"reason", "worker_failed"}}, all.counts.restarts_after_failure);
  out.sample({{"reason", "other"}}, all.counts.restarts_otherwise);
}

// A family with a sample of each local rank that has a value; none has: no family.
template <typename Element>
void of_each_rank(TextWriter& out, const char* name, Type type, const char* help,
                  const std::vector<std::optional<Element>>& ranks, auto value_of) {
  bool is_begun = false;
  const std::size_t num = std::min(ranks.size(), WorkerUseReader::kMostWorkers);
  for (std::size_t i = 0; i < num; ++i) {
    if (!ranks[i]) continue;
    const auto value = value_of(*ranks[i]);
    if (!value) continue;
    if (!std::exchange(is_begun, true)) out.family(name, type, help);
    out.sample({{"local_rank", std::to_string(i)}}, *value);
  }
}

void write_uses(TextWriter& out, const std::vector<std::optional<WorkerUse>>& uses) {
  of_each_rank(out, "ddprun_worker_cpu_seconds_total", Type::kCounter,
               "CPU time of a worker and, since it was first asked for, of what it started.", uses,
               [](const WorkerUse& use) {
                 return std::optional(std::chrono::duration<double>(use.cpu).count());
               });
  of_each_rank(
      out, "ddprun_worker_resident_memory_bytes", Type::kGauge,
      "Memory of a worker and of what it started that is in RAM.", uses,
      [](const WorkerUse& use) { return std::optional<std::uint64_t>(use.resident_bytes); });
  of_each_rank(out, "ddprun_worker_sockets", Type::kGauge,
               "Open sockets of a worker and of what it started.", uses,
               [](const WorkerUse& use) { return std::optional<std::uint64_t>(use.num_sockets); });
  of_each_rank(
      out, "ddprun_worker_tcp_connections", Type::kGauge, "Of these, connected TCP ones.", uses,
      [](const WorkerUse& use) -> std::optional<std::uint64_t> { return use.num_connections; });
}

void write_pages(TextWriter& out, const std::vector<std::optional<ProgressWords>>& pages) {
  of_each_rank(out, "ddprun_worker_step", Type::kGauge, "The last step that a worker began.", pages,
               [](const ProgressWords& page) { return std::optional(page.step); });
  const auto told = [](const ProgressWords& page, auto value) {
    return page.num_reports > 0 ? std::optional(value) : std::nullopt;
  };
  of_each_rank(
      out, "ddprun_worker_loss", Type::kGauge, "The loss that a worker told last.", pages,
      [&](const ProgressWords& page) { return told(page, std::bit_cast<double>(page.loss_bits)); });
  of_each_rank(out, "ddprun_worker_samples_total", Type::kCounter,
               "Samples that a worker has trained on in its round.", pages,
               [&](const ProgressWords& page) { return told(page, page.samples); });
}

}  // namespace

AgentCounts::AgentCounts() : waits({0.1, 0.5, 1, 5, 10, 30, 60, 300, 600}) {}

std::string metrics_to_text(const AgentMetrics& all, metrics::Format format) {
  TextWriter out(format);
  out.family("ddprun_build_info", Type::kGauge, "1; what runs is in its labels.");
  out.sample({{"program", "ddprun"}, {"version", DDPRUN_VERSION}}, std::uint64_t{1});
  out.family("ddprun_job_info", Type::kGauge, "1; the job that this ddprun is a node of.");
  out.sample({{"job_id", all.job}}, std::uint64_t{1});
  write_rendezvous(out, all);
  write_workers(out, all);
  write_uses(out, all.uses);
  write_pages(out, all.pages);
  write_node(out, all.node);
  metrics::write(out, all.process);
  return out.finish();
}

}  // namespace ddprun::agent
