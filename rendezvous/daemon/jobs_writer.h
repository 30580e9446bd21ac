// SPDX-License-Identifier: Apache-2.0
// The text of GET /v1/jobs, and of what status pages are told, written a small piece at a time.
// There may be many jobs, and others are served between two pieces. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/wall_time.h"
#include "rendezvous/daemon/job_json.h"
#include "rendezvous/membership/finished_jobs.h"
#include "rendezvous/membership/machine.h"

namespace ddprun::rendezvous {

// How much a status page is told, of all jobs together. The rest is counted.
struct WatchedLimits {
  std::size_t nodes = 4'096;
  std::size_t finished = 100;  // those that ended last
  // For live jobs. Three quarters are for the jobs without their nodes, in order of creation. The
  // nodes have the rest: if there are too many, those that run in order are left out first. Jobs
  // that are over may have an eighth of this beside it.
  std::size_t bytes = std::size_t{2} << 20;
};

struct WatchedJobs {
  // "jobs":{…},"hidden_nodes":[0,12],"hidden_jobs":0,"hidden_finished":0: what a state has beside
  // the status.
  std::string json;
  // Differs where a page is to be told of it: what only gets older with the time is no change.
  std::string key;
  Clock::duration cost{};  // the io thread's time that it took
};

class JobsWriter {
 public:
  // As JobTable's, asked for with each piece. All that the functions refer to outlives this.
  struct Source {
    std::function<std::optional<membership::JobStatus>(std::uint64_t after)> next_job;
    std::function<std::vector<membership::NodeStatus>(std::uint64_t number)> nodes_of;
    std::function<std::size_t()> num_jobs;
    const membership::FinishedJobs* finished = nullptr;
    std::function<std::optional<KeepingStatus>()> keeping;
  };

  // nullopt: all of it, and no key.
  explicit JobsWriter(Source source, const std::optional<WatchedLimits>& limits = std::nullopt);

  // True: there is more. One piece has a job without its nodes, or kNodesPerPiece of them. A job
  // that ends meanwhile may be both among the live ones and among those that are over.
  bool write_some(const Moment& now);

  // The result; once, after write_some() was false. A page of all: ends in a line's end.
  std::string take_text() { return std::move(text_); }
  WatchedJobs take_watched();

  static constexpr std::size_t kNodesPerPiece = 16;

 private:
  struct Head {  // a job, but for its nodes
    std::uint64_t number = 0;
    std::string text, key;
  };
  void write_head(const Moment& now);
  void begin_nodes(const Moment& now);
  void write_nodes(const Moment& now);
  void cut_nodes();
  void end_nodes();
  void write_finished(const Moment& now);
  void end();

  enum class Part { kHeads, kNodes, kFinished, kDone };

  const Source source_;
  const std::optional<WatchedLimits> limits_;
  Part part_ = Part::kHeads;
  std::string text_, key_;
  std::vector<Head> heads_;
  std::size_t head_bytes_ = 0, num_hidden_jobs_ = 0;
  std::uint64_t last_number_ = 0;
  // The job whose nodes are being written.
  std::size_t job_ = 0;  // in heads_
  std::vector<membership::NodeStatus> nodes_;
  std::size_t next_node_ = 0;
  std::string nodes_text_, nodes_key_;
  bool has_begun_ = false, is_cut_ = false;
  std::size_t num_nodes_ = 0, node_bytes_ = 0;  // of the jobs before it
  std::vector<std::size_t> num_hidden_;
  // The jobs that are over.
  membership::FinishedJobs::Place place_;
  std::deque<std::string> finished_;
  std::size_t finished_bytes_ = 0, num_hidden_finished_ = 0;
};

}  // namespace ddprun::rendezvous
