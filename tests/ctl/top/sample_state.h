// SPDX-License-Identifier: Apache-2.0
// States of a rendezvous as it pushes them, for tests of what `ddprunctl top` shows.
#pragma once

#include <functional>
#include <string>

#include "common/text.h"
#include "ctl/top/picture.h"
#include "ctl/top/state.h"

namespace ddprun::top::testing {

inline const bool kHasWideCharacters = [] {
  use_wide_characters();
  return true;
}();

inline constexpr char kStatus[] =
    R"({"version":"0.1.0","pid":4711,"uptime_seconds":11525.5,"embedded":false,"role":null,)"
    R"("watch_output":true,"leader":null,"addresses":["10.0.0.1:29400"],"agents":{"joined":2},)"
    R"("journal":{"kept":true,"path":"/j"}})";

// A node in the daemon's words, from its rank on.
struct SampleNode {
  std::string host = "gpu00";
  std::string phase = "running";
  int workers = 8;
  bool connected = true;
  int step_us = 40'000;
  std::function<int(int)> own_us = [](int) { return 30'000; };  // by global rank
};

inline std::string node_json(const SampleNode& node, int node_rank, int first_rank) {
  std::string times;
  for (int local = 0; local < node.workers; ++local) {
    const int rank = first_rank + local;
    times +=
        concat(local == 0 ? "" : ",", "[", rank, ",", node.step_us, ",", node.own_us(rank), "]");
  }
  return concat(R"({"host":")", node.host, R"(","addr":"10.0.0.1","phase":")", node.phase,
                R"(","node_rank":)", node_rank, R"(,"num_workers":)", node.workers,
                R"(,"connected":)", node.connected ? "true" : "false",
                R"(,"monitor":{"cpu":0.25,"memory_bytes":1024,"memory_used_bytes":512,)"
                R"("received_bytes_per_second":1.2e9,"sent_bytes_per_second":1e9,)"
                R"("gpus":[{"use":0.9,"memory_bytes":10,"memory_used_bytes":5},{"use":0.)",
                node_rank % 10, R"(}]},"step_times":[)", times, "]}");
}

// A job of `num_nodes` nodes; `change` may change one of them.
inline std::string job_json(const std::string& run_id, int num_nodes, const std::string& more = "",
                            const std::function<void(int, SampleNode&)>& change = {}) {
  std::string nodes;
  int first = 0;
  for (int i = 0; i < num_nodes; ++i) {
    SampleNode node;
    node.host = concat("gpu", i / 100, i / 10 % 10, i % 10);
    if (change) change(i, node);
    nodes += (i == 0 ? "" : ",") + node_json(node, i, first);
    first += node.workers;
  }
  return concat(
      R"({"run_id":")", run_id, R"(","phase":"running","round":2,"min_nodes":)", num_nodes,
      R"(,"max_nodes":)", num_nodes,
      R"(,"max_restarts":3,"failures":1,"node_losses":0,"max_node_losses":100,"preemptions":0,)"
      R"("max_preemptions":9,"rounds_without_progress":0,"no_progress_restarts":3,"excluded":{},)"
      R"("ettr":0.93,"training":{"phase":"step","step":12345,"loss":2.314,)"
      R"("samples_per_second":1203.4,"step_parts":{"step_seconds":{"mean":0.041,"worst":0.055,)"
      R"("worst_rank":7},"exposed_seconds":{"mean":0.003,"worst":0.004,"worst_rank":1}}},)"
      R"("rounds":[{"round":1,"nodes":2,"world_size":16,"first_step":0,"last_step":250,)"
      R"("cause":"rank 3 (node 0, gpu000) was killed by SIGKILL; restart 1 of 3",)"
      R"("first_failure":"","seconds":{"running":700,"stop":20}},)"
      R"({"round":2,"nodes":2,"world_size":)",
      first, R"(,"first_step":251,"last_step":300,"cause":"","first_failure":"","seconds":{}}],)",
      R"("nodes":[)", nodes, "]",
      more.find("\"stragglers\"") == std::string::npos ? R"(,"stragglers":[])" : "", more, "}");
}

inline std::string finished_json(const std::string& run_id, int exit_code) {
  return concat(
      R"({"run_id":")", run_id, R"(","phase":"ended","exit_code":)", exit_code,
      R"(,"reason":"rank 1 failed","first_failure":"rank 1 (node 0, a) died","summary":"",)"
      R"("began":null,"ended":"2026-11-22T03:15:07Z","rounds":3,"restarts":2,)"
      R"("failures":2,"node_losses":0,"preemptions":0,"num_nodes":2,"nodes":["a","b"]})");
}

inline std::string state_frame(const std::string& jobs, const std::string& finished = "") {
  return concat(R"({"type":"state","status":)", kStatus, R"(,"jobs":{"version":"0.1.0","jobs":[)",
                jobs, R"(],"finished":[)", finished,
                R"(],"journal":null},"hidden_nodes":[0],"hidden_finished":0})");
}

inline State state_of(const std::string& jobs, const std::string& finished = "") {
  return read_state(read_json(state_frame(jobs, finished)));
}

// The state as known from one push, over a live connection.
inline Known live(const State& state) {
  Known known{.state = state, .is_live = true, .endpoint = "head:29400", .shown_at = "03:11:40"};
  remember(known.history, state);
  return known;
}

// The lines as text, one for each row.
inline std::string text_of(const Lines& lines) {
  std::string text;
  for (const std::string& line : lines) text += without_styles(line) + "\n";
  return text;
}
inline std::string picture_text(const State& state, std::size_t columns, std::size_t rows,
                                View view = {}) {
  return text_of(screen_picture(live(state), view, columns, rows));
}

}  // namespace ddprun::top::testing
