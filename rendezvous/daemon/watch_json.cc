// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/watch_json.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "rendezvous/membership/json_fields.h"

namespace ddprun::rendezvous {

namespace {

// How many of them were left out. Those that stay are in their order, unless some were.
std::size_t cut(std::vector<membership::NodeStatus>& nodes, std::size_t most) {
  if (nodes.size() <= most) return 0;
  const std::size_t num_hidden = nodes.size() - most;
  std::stable_partition(nodes.begin(), nodes.end(), [](const membership::NodeStatus& node) {
    return node.phase != "running" || !node.connected;
  });
  nodes.resize(most);
  return num_hidden;
}

// As what is told would be, if all that only gets older had just come.
std::string key_of(std::vector<membership::JobStatus> jobs,
                   const std::vector<membership::FinishedJob>& finished,
                   std::optional<KeepingStatus> keeping, const Moment& now) {
  for (membership::JobStatus& job : jobs) {
    for (membership::NodeStatus& node : job.nodes) {
      if (node.monitor) node.monitor->at = now.at;
    }
  }
  if (keeping) keeping->in_trouble = {};
  return jobs_to_json(jobs, finished, keeping, now);
}

}  // namespace

WatchedJobs watched_jobs(std::vector<membership::JobStatus> jobs,
                         std::vector<membership::FinishedJob> finished,
                         const std::optional<KeepingStatus>& keeping, const Moment& now,
                         const WatchedLimits& limits) {
  std::size_t num_hidden_jobs = 0;
  if (finished.size() > limits.finished) {
    num_hidden_jobs = finished.size() - limits.finished;
    finished.erase(finished.begin(),
                   finished.begin() + static_cast<std::ptrdiff_t>(num_hidden_jobs));
  }
  std::vector<std::size_t> num_hidden(jobs.size());
  std::string text;
  for (std::size_t most = limits.nodes;; most /= 2) {
    std::size_t room = most;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      num_hidden[i] += cut(jobs[i].nodes, room);
      room -= jobs[i].nodes.size();
    }
    text = jobs_to_json(jobs, finished, keeping, now);
    if (text.size() <= limits.bytes || most == 0) break;
  }
  std::string hidden;
  for (const std::size_t num : num_hidden) hidden += concat(hidden.empty() ? "" : ",", num);
  const std::string behind =
      concat(",\"hidden_nodes\":[", hidden, "],\"hidden_finished\":", num_hidden_jobs);
  return {concat("\"jobs\":", text, behind),
          key_of(std::move(jobs), finished, keeping, now) + behind};
}

std::string watch_key(const DaemonStatus& status) {
  std::string key =
      concat(status.agents.number, ' ', status.live_jobs.number, ' ', status.finished_jobs.number);
  if (status.role) key += concat(" role ", status.role->leads, ' ', status.role->leader);
  return key;
}

std::string state_frame(std::string_view status, std::string_view jobs) {
  return concat("{\"type\":\"state\",\"status\":", status, ",", jobs, "}");
}

std::string status_frame(std::string_view status) {
  return concat("{\"type\":\"status\",\"status\":", status, "}");
}

std::string too_large_frame(std::size_t num_bytes) {
  return concat("{\"type\":\"too_large\",\"bytes\":", num_bytes, "}");
}

std::string end_frame(const std::string& why) {
  return boost::json::serialize(boost::json::object{{"type", "end"}, {"why", why}});
}

std::string tail_frame(const Tails::Rank& rank, const std::vector<std::string>& lines,
                       const std::string& note) {
  boost::json::object frame;
  frame["type"] = "tail";
  frame["run_id"] = rank.run_id;
  frame["rank"] = rank.global_rank;
  frame["lines"] = boost::json::array(lines.begin(), lines.end());
  frame["note"] = note;
  return boost::json::serialize(frame);
}

std::optional<Tails::Rank> read_page_message(std::string_view text) {
  constexpr std::size_t kMaxDepth = 4;
  const auto said = parse_object(text, kMaxDepth);
  if (!said || !said->contains("tail")) {
    throw Error(ErrorCode::kProtocol, "a page says nothing here but whose output it looks at");
  }
  const membership::JsonFields in(*said, "a page");
  if (!in.has("tail")) return std::nullopt;
  const membership::JsonFields tail = in.object("tail");
  return Tails::Rank{tail.text("run_id"), tail.small("rank", 0, membership::kMaxInt)};
}

}  // namespace ddprun::rendezvous
