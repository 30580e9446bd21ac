// SPDX-License-Identifier: Apache-2.0
#include "agent/standing/standing_metrics.h"

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using test::Contains;

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

}  // namespace

TEST_CASE("Standing agent's metrics: all series are there before it is connected, as 0") {
  StandingMetrics all;
  all.node = "a \"node\"";
  all.user = "alice";
  const std::string text = standing_metrics_to_text(all, metrics::Format::kText);
  CHECK(has_line(text, "ddprun_standing_agent_info{node=\"a \\\"node\\\"\",user=\"alice\"} 1"));
  for (const char* series :
       {"ddprun_rendezvous_connected", "ddprun_rendezvous_reconnects_total", "ddprun_slots_used",
        "ddprun_gangs{state=\"starting\"}", "ddprun_gangs{state=\"running\"}",
        "ddprun_gangs{state=\"stopping\"}", "ddprun_gangs_begun_total",
        "ddprun_gangs_ended_total{result=\"success\"}",
        "ddprun_gangs_ended_total{result=\"failure\"}",
        "ddprun_gangs_ended_total{result=\"stopped\"}",
        "ddprun_gangs_ended_total{result=\"refused\"}", "process_cpu_seconds_total"}) {
    CAPTURE(series);
    CHECK(has_line(text, std::string(series) + " 0"));
  }
  CHECK_THAT(text, !Contains("ddprun_node_"));  // nothing was read yet
}

TEST_CASE("Standing agent's metrics: slots, gangs, how they ended, and the node's readings") {
  StandingMetrics all;
  all.connected = true;
  all.reconnects = 2;
  all.slots = 8;
  all.slots_used = 5;
  all.num_starting = 1;
  all.num_running = 3;
  all.num_stopping = 2;
  all.counts.begun = 9;
  all.counts.of(GangEnd::kSuccess) = 4;
  all.counts.of(GangEnd::kFailure) = 3;
  all.counts.of(GangEnd::kStopped) = 6;
  ++all.counts.of(GangEnd::kRefused);
  all.readings.counters.memory = agent::NodeMemory{2048, 1024};
  all.readings.gpus[1].use = 0.5;
  const std::string text = standing_metrics_to_text(all, metrics::Format::kOpenMetrics);
  for (const char* line :
       {"ddprun_rendezvous_connected 1", "ddprun_rendezvous_reconnects_total 2", "ddprun_slots 8",
        "ddprun_slots_used 5", "ddprun_gangs{state=\"starting\"} 1",
        "ddprun_gangs{state=\"running\"} 3", "ddprun_gangs{state=\"stopping\"} 2",
        "ddprun_gangs_begun_total 9", "ddprun_gangs_ended_total{result=\"success\"} 4",
        "ddprun_gangs_ended_total{result=\"failure\"} 3",
        "ddprun_gangs_ended_total{result=\"stopped\"} 6",
        "ddprun_gangs_ended_total{result=\"refused\"} 1", "ddprun_node_memory_available_bytes 1024",
        "ddprun_node_gpu_use_ratio{gpu=\"1\"} 0.5", "# TYPE ddprun_gangs_ended counter", "# EOF"}) {
    CAPTURE(line);
    CHECK(has_line(text, line));
  }
  CHECK_THAT(text, !Contains("rank"));
}

}  // namespace ddprun::launcher
