// SPDX-License-Identifier: Apache-2.0
#include "agent/monitor/agent_metrics.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "agent/hang/socket_bytes.h"
#include "common/process_facts.h"
#include "rendezvous/messages/reports.h"

namespace ddprun::agent {
namespace {

using metrics::TextWriter;
using metrics::Type;

constexpr std::size_t kMaxDescriptors = 4096;  // of one process

void count_sockets(const std::vector<pid_t>& family, const std::optional<SocketBytes>& connections,
                   WorkerUse& use) {
  std::vector<std::uint64_t> sockets;
  for (const pid_t pid : family) add_socket_inodes(pid, kMaxDescriptors, sockets);
  std::sort(sockets.begin(), sockets.end());
  sockets.erase(std::unique(sockets.begin(), sockets.end()), sockets.end());
  use.num_sockets = sockets.size();
  use.num_connections.reset();
  if (!connections) return;
  use.num_connections = static_cast<std::size_t>(
      std::count_if(sockets.begin(), sockets.end(),
                    [&](std::uint64_t inode) { return connections->contains(inode); }));
}

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
    out.single("ddprun_node_rank", Type::kGauge, "Rank of this node in that round.",
               static_cast<std::uint64_t>(all.node_rank));
  }
}

void write_workers(TextWriter& out, const AgentMetrics& all) {
  out.family("ddprun_workers", Type::kGauge, "Worker processes of this node, by state.");
  out.sample({{"state", "running"}}, std::uint64_t{all.num_running});
  out.sample({{"state", "stopping"}}, std::uint64_t{all.num_stopping});
  out.sample({{"state", "parked"}}, std::uint64_t{all.num_parked});
  if (all.warm_helper_bytes) {
    out.single("ddprun_warm_helper_resident_memory_bytes", Type::kGauge,
               "Memory of the warm helper that is in RAM; each warm worker counts it, too.",
               *all.warm_helper_bytes);
  }
  out.family("ddprun_worker_exits_total", Type::kCounter, "Workers that ended, by how.");
  for (std::size_t i = 0; i < kExitKindNames.size(); ++i) {
    out.sample({{"kind", kExitKindNames[i]}}, all.counts.exits[i]);
  }
  out.family("ddprun_worker_restarts_total", Type::kCounter,
             "How often this node's workers were started again, by what ended the round before.");
  out.sample({{"reason", "worker_failed"}}, all.counts.restarts_after_failure);
  out.sample({{"reason", "other"}}, all.counts.restarts_otherwise);
}

// Writes a family with a sample of each local rank that has a value. Without any value there is no
// family.
template <typename Element>
void of_each_rank(TextWriter& out, const char* name, Type type, const char* help,
                  const std::vector<std::optional<Element>>& ranks, auto value_of) {
  bool is_begun = false;
  const std::size_t num = std::min(ranks.size(), WorkerUseReader::kMostWorkers);
  for (std::size_t i = 0; i < num; ++i) {
    if (!ranks[i]) continue;
    const std::optional value = std::invoke(value_of, *ranks[i]);
    if (!value) continue;
    if (!std::exchange(is_begun, true)) out.family(name, type, help);
    out.sample({{"local_rank", std::to_string(i)}}, *value);
  }
}

void write_uses(TextWriter& out, const std::vector<std::optional<WorkerUse>>& uses) {
  of_each_rank(out, "ddprun_worker_cpu_seconds_total", Type::kCounter,
               "CPU time of a worker and, since it was first asked for, of what it started.", uses,
               [](const WorkerUse& use) { return std::chrono::duration<double>(use.cpu).count(); });
  of_each_rank(out, "ddprun_worker_resident_memory_bytes", Type::kGauge,
               "Memory of a worker and of what it started that is in RAM.", uses,
               &WorkerUse::resident_bytes);
  of_each_rank(out, "ddprun_worker_sockets", Type::kGauge,
               "Open sockets of a worker and of what it started.", uses, &WorkerUse::num_sockets);
  of_each_rank(out, "ddprun_worker_tcp_connections", Type::kGauge, "Its connected TCP sockets.",
               uses, &WorkerUse::num_connections);
}

void write_pages(TextWriter& out, const std::vector<std::optional<ProgressWords>>& pages) {
  of_each_rank(out, "ddprun_worker_step", Type::kGauge, "The last step that a worker began.", pages,
               &ProgressWords::step);
  const auto sum_of = [](std::uint64_t StepSums::*sum, double unit) {
    return [sum, unit](const ProgressWords& page) {
      return page.steps ? std::optional(static_cast<double>((*page.steps).*sum) / unit)
                        : std::nullopt;
    };
  };
  of_each_rank(out, "ddprun_worker_timed_steps_total", Type::kCounter,
               "Steps whose time a worker has told.", pages, sum_of(&StepSums::num_steps, 1));
  of_each_rank(out, "ddprun_worker_step_seconds_total", Type::kCounter,
               "Time of a worker's timed steps.", pages, sum_of(&StepSums::step, 1e9));
  of_each_rank(out, "ddprun_worker_loader_seconds_total", Type::kCounter,
               "Wait for data in a worker's timed steps.", pages, sum_of(&StepSums::loader, 1e9));
  of_each_rank(out, "ddprun_worker_communication_seconds_total", Type::kCounter,
               "Time of collectives in a worker's timed steps.", pages,
               sum_of(&StepSums::communication, 1e9));
  of_each_rank(out, "ddprun_worker_exposed_seconds_total", Type::kCounter,
               "Wait for collectives, without computation beside it, in a worker's timed steps.",
               pages, sum_of(&StepSums::exposed, 1e9));
  const auto seen = [](std::uint64_t ProgressWords::*word) {
    return [word](const ProgressWords& page) {
      return page.*word > 0 ? std::optional(page.*word) : std::nullopt;
    };
  };
  of_each_rank(out, "ddprun_worker_gpu_memory_peak_bytes", Type::kGauge,
               "GPU memory that a worker's tensors had at most.", pages,
               seen(&ProgressWords::gpu_peak_bytes));
  of_each_rank(out, "ddprun_worker_skipped_steps_total", Type::kCounter,
               "Steps that a worker's gradient scaler has skipped in its round.", pages,
               seen(&ProgressWords::skipped_steps));
  of_each_rank(out, "ddprun_worker_loss", Type::kGauge, "The loss that a worker told last.", pages,
               [](const ProgressWords& page) {
                 const auto loss = std::bit_cast<double>(page.loss_bits);
                 return page.num_reports > 0 ? std::optional(loss) : std::nullopt;
               });
  of_each_rank(out, "ddprun_worker_samples_total", Type::kCounter,
               "Samples that a worker has trained on in its round.", pages,
               seen(&ProgressWords::samples));
}

void write_frameworks(TextWriter& out, const std::vector<std::optional<std::string>>& frameworks) {
  bool is_begun = false;
  const std::size_t num = std::min(frameworks.size(), WorkerUseReader::kMostWorkers);
  for (std::size_t i = 0; i < num; ++i) {
    if (!frameworks[i]) continue;
    if (!std::exchange(is_begun, true)) {
      out.family("ddprun_worker_info", Type::kGauge,
                 "1; the framework of a worker's program, its backend and its ranks.");
    }
    out.sample({{"local_rank", std::to_string(i)}, {"framework", *frameworks[i]}},
               std::uint64_t{1});
  }
}

void write_counters(TextWriter& out, const NodeCounters& node) {
  if (node.num_cpus) {
    out.single("ddprun_node_cpus", Type::kGauge, "CPUs of this machine that are online.",
               static_cast<std::uint64_t>(*node.num_cpus));
  }
  if (node.cpu) {
    out.family("ddprun_node_cpu_seconds_total", Type::kCounter,
               "Time of all CPUs of this machine, by what it was spent in.");
    for (const auto& [mode, field] : kCpuTimes) out.sample({{"mode", mode}}, (*node.cpu).*field);
  }
  if (node.memory) {
    out.single("ddprun_node_memory_bytes", Type::kGauge, "Memory of this machine.",
               node.memory->total_bytes);
    out.single("ddprun_node_memory_available_bytes", Type::kGauge,
               "Memory that programs could have without swapping.", node.memory->available_bytes);
  }
  if (node.tcp) {
    out.single("ddprun_node_tcp_sent_segments_total", Type::kCounter,
               "TCP segments sent from this network namespace.", node.tcp->sent_segments);
    out.single("ddprun_node_tcp_retransmitted_segments_total", Type::kCounter,
               "TCP segments that were sent again.", node.tcp->retransmitted_segments);
  }
  if (node.interfaces.empty()) return;
  out.family("ddprun_node_network_received_bytes_total", Type::kCounter,
             "Bytes that an interface has received.");
  for (const auto& each : node.interfaces) {
    out.sample({{"interface", each.name}}, each.received_bytes);
  }
  out.family("ddprun_node_network_sent_bytes_total", Type::kCounter,
             "Bytes that an interface has sent.");
  for (const auto& each : node.interfaces) {
    out.sample({{"interface", each.name}}, each.sent_bytes);
  }
}

void write_gpus(TextWriter& out, const GpuStatuses& gpus) {
  const auto of_each = [&](const char* name, const char* help, auto field) {
    bool is_begun = false;
    std::size_t num = 0;
    for (const auto& [index, gpu] : gpus) {
      if (++num > membership::kMaxReportedGpus) break;
      if (!(gpu.*field)) continue;
      if (!std::exchange(is_begun, true)) out.family(name, Type::kGauge, help);
      out.sample({{"gpu", std::to_string(index)}}, *(gpu.*field));
    }
  };
  of_each("ddprun_node_gpu_use_ratio", "Share of the last moments in which a kernel ran.",
          &GpuStatus::use);
  of_each("ddprun_node_gpu_memory_bytes", "Memory of a GPU.", &GpuStatus::memory_bytes);
  of_each("ddprun_node_gpu_memory_used_bytes", "Memory of a GPU in use.",
          &GpuStatus::memory_used_bytes);
  of_each("ddprun_node_gpu_power_watts", "What a GPU draws.", &GpuStatus::watts);
  of_each("ddprun_node_gpu_temperature_celsius", "How hot a GPU is.", &GpuStatus::celsius);
}

}  // namespace

std::vector<std::optional<WorkerUse>> WorkerUseReader::look(const std::vector<pid_t>& pids,
                                                            Clock::time_point now) {
  workers_.resize(std::min(pids.size(), kMostWorkers));
  std::vector<std::optional<WorkerUse>> uses(workers_.size());
  std::optional<SocketBytes> connections;
  bool asked = false;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    auto& worker = workers_[i];
    if (worker && worker->process.pid() != pids[i]) worker.reset();
    if (pids[i] <= 0) continue;
    if (!worker) worker.emplace(pids[i]);
    auto& since = worker->family_looked_at;
    const bool is_due = !since || now - *since >= kFamilyInterval;
    const auto facts = worker->process.look(is_due);
    if (!facts) continue;
    const std::vector<pid_t> family = worker->process.family();
    WorkerUse& use = worker->last;
    use.cpu = facts->cpu;
    use.resident_bytes = 0;
    for (const pid_t pid : family) use.resident_bytes += resident_bytes(pid).value_or(0);
    if (is_due) {
      since = now;
      if (!std::exchange(asked, true)) connections = tcp_socket_bytes();
      count_sockets(family, connections, use);
    }
    uses[i] = use;
  }
  return uses;
}

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
  write_frameworks(out, all.frameworks);
  write_node(out, all.node);
  metrics::write(out, all.process);
  return out.finish();
}

void write_node(TextWriter& out, const NodeReading& node) {
  write_counters(out, node.counters);
  write_gpus(out, node.gpus);
}

}  // namespace ddprun::agent
