// SPDX-License-Identifier: Apache-2.0
#include "agent/monitor/agent_metrics.h"

#include <bit>
#include <chrono>

#include "tests/support/catch.h"

namespace ddprun::agent {
namespace {

using test::Contains;

bool has(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

}  // namespace

TEST_CASE("agent metrics: all series of the node are there before the rendezvous, none of ranks") {
  AgentMetrics all;
  all.job = "a \"job\"";
  const std::string text = metrics_to_text(all, metrics::Format::kText);
  CHECK(has(text, "ddprun_job_info{job_id=\"a \\\"job\\\"\"} 1"));
  for (const char* series :
       {"ddprun_rendezvous_connected", "ddprun_rendezvous_rounds_total", "ddprun_round",
        "ddprun_workers{state=\"running\"}", "ddprun_workers{state=\"parked\"}",
        "ddprun_worker_exits_total{kind=\"out_of_memory\"}",
        "ddprun_worker_restarts_total{reason=\"worker_failed\"}",
        "ddprun_rendezvous_duration_seconds_bucket{le=\"0.1\"}",
        "ddprun_rendezvous_duration_seconds_count"}) {
    CAPTURE(series);
    CHECK(has(text, std::string(series) + " 0"));
  }
  CHECK_THAT(text, !Contains("local_rank") && !Contains("ddprun_node_"));  // nothing was read
}

TEST_CASE("agent metrics: ranks, node and GPUs, as far as they are known") {
  AgentMetrics all;
  all.connected = true;
  all.node_rank = 3;
  all.num_running = 2;
  ++all.counts.of(ExitKind::kSignal);
  all.counts.waits.observe(0.3);
  all.counts.waits.observe(5);
  all.uses = {WorkerUse{std::chrono::milliseconds(1500), 4096, 7, 2}, std::nullopt,
              WorkerUse{std::chrono::seconds(2), 8192, 1, std::nullopt}};
  ProgressWords told, untold;
  told.step = 41;
  told.num_reports = 2;
  told.loss_bits = std::bit_cast<std::uint64_t>(0.25);
  told.samples = 640;
  told.gpu_peak_bytes = 1 << 20;
  told.skipped_steps = 3;
  told.steps = StepSums{.num_steps = 40,
                        .step = 2'000'000'000,
                        .communication = 750'000'000,
                        .exposed = 250'000'000,
                        .loader = 500'000'000};
  untold.step = 40;
  ProgressWords logged = untold;
  logged.num_reports = 1;
  all.pages = {told, std::nullopt, untold, logged};
  all.frameworks = {"PyTorch 2.15.0, gloo, 4 ranks", std::nullopt, "jax", std::nullopt};
  all.node.counters.num_cpus = 8;
  all.node.counters.interfaces = {{"eth0", 10, 20}};
  all.node.gpus[5].watts = 512.5;
  const std::string text = metrics_to_text(all, metrics::Format::kText);
  for (const char* line :
       {"ddprun_node_rank 3",
        "ddprun_workers{state=\"running\"} 2",
        "ddprun_worker_exits_total{kind=\"signal\"} 1",
        "ddprun_rendezvous_duration_seconds_bucket{le=\"0.1\"} 0",
        "ddprun_rendezvous_duration_seconds_bucket{le=\"0.5\"} 1",
        "ddprun_rendezvous_duration_seconds_bucket{le=\"5\"} 2",
        "ddprun_rendezvous_duration_seconds_bucket{le=\"+Inf\"} 2",
        "ddprun_rendezvous_duration_seconds_sum 5.3",
        "ddprun_worker_cpu_seconds_total{local_rank=\"0\"} 1.5",
        "ddprun_worker_resident_memory_bytes{local_rank=\"2\"} 8192",
        "ddprun_worker_tcp_connections{local_rank=\"0\"} 2",
        "ddprun_worker_step{local_rank=\"2\"} 40",
        "ddprun_worker_loss{local_rank=\"0\"} 0.25",
        "ddprun_worker_samples_total{local_rank=\"0\"} 640",
        "ddprun_worker_gpu_memory_peak_bytes{local_rank=\"0\"} 1048576",
        "ddprun_worker_skipped_steps_total{local_rank=\"0\"} 3",
        "ddprun_worker_timed_steps_total{local_rank=\"0\"} 40",
        "ddprun_worker_step_seconds_total{local_rank=\"0\"} 2",
        "ddprun_worker_loader_seconds_total{local_rank=\"0\"} 0.5",
        "ddprun_worker_communication_seconds_total{local_rank=\"0\"} 0.75",
        "ddprun_worker_exposed_seconds_total{local_rank=\"0\"} 0.25",
        "ddprun_worker_info{local_rank=\"0\",framework=\"PyTorch 2.15.0, gloo, 4 "
        "ranks\"} 1",
        "ddprun_worker_info{local_rank=\"2\",framework=\"jax\"} 1",
        "ddprun_node_cpus 8",
        "ddprun_node_network_sent_bytes_total{interface=\"eth0\"} 20",
        "ddprun_node_gpu_power_watts{gpu=\"5\"} 512.5"}) {
    CAPTURE(line);
    CHECK(has(text, line));
  }
  for (const char* absent :
       {"ddprun_worker_tcp_connections{local_rank=\"2\"}", "ddprun_worker_loss{local_rank=\"2\"}",
        "ddprun_worker_samples_total{local_rank=\"3\"}",
        "ddprun_worker_gpu_memory_peak_bytes{local_rank=\"2\"}",
        "ddprun_worker_skipped_steps_total{local_rank=\"2\"}",
        "ddprun_worker_step_seconds_total{local_rank=\"2\"}",
        "ddprun_worker_exposed_seconds_total{local_rank=\"2\"}",
        "ddprun_worker_info{local_rank=\"3\"", "local_rank=\"1\"", "ddprun_node_gpu_use_ratio",
        "ddprun_node_memory_bytes"}) {
    CAPTURE(absent);
    CHECK_THAT(text, !Contains(absent));
  }
}

TEST_CASE("agent metrics: no more than 16 ranks and 16 GPUs, however many there are") {
  AgentMetrics all;
  all.uses.assign(100, WorkerUse());
  all.pages.assign(100, ProgressWords());
  all.frameworks.assign(100, "jax");
  for (int i = 0; i < 100; ++i) all.node.gpus[i].use = 0.5;
  const std::string text = metrics_to_text(all, metrics::Format::kText);
  CHECK_THAT(text, Contains("{local_rank=\"15\"}") && !Contains("{local_rank=\"16\"}"));
  CHECK_THAT(text, Contains("{gpu=\"15\"}") && !Contains("{gpu=\"16\"}"));
}

}  // namespace ddprun::agent
