// SPDX-License-Identifier: Apache-2.0
// Writes the text of GET /v1/jobs, and the state for status pages, in small pieces. There may be
// many jobs, so other clients are served between two pieces. Pure.
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

// The limits of a status page's state, over all jobs. The rest is only counted.
struct WatchedLimits {
  std::size_t nodes = 4'096;
  std::size_t finished = 100;  // the last that ended
  // The limit for live jobs. Three quarters are for the jobs without their nodes, in order of
  // creation. The nodes have the rest; of too many nodes those that run normally are left out
  // first. Ended jobs may have an additional eighth of this.
  std::size_t bytes = std::size_t{2} << 20;
};

struct WatchedJobs {
  // "jobs":{…},"hidden_nodes":[0,12],"hidden_jobs":0,"hidden_finished":0: the part of a state
  // beside the status.
  std::string json;
  // Differs if pages must get the new state. A mere change of times and ages doesn't count.
  std::string key;
  Clock::duration cost{};  // the I/O thread's time for it
};

class JobsWriter {
 public:
  // JobTable's functions, called for each piece. All objects that they use must outlive this.
  struct Source {
    std::function<std::optional<membership::JobStatus>(std::uint64_t after)> next_job;
    std::function<std::vector<membership::NodeStatus>(std::uint64_t number)> nodes_of;
    std::function<std::size_t()> num_jobs;
    const membership::FinishedJobs* finished = nullptr;
    std::function<std::optional<KeepingStatus>()> keeping;
  };

  // Without `limits` it writes all, and makes no key.
  explicit JobsWriter(Source source, const std::optional<WatchedLimits>& limits = std::nullopt);

  // Writes a piece: a job without its nodes, or kNodesPerPiece nodes. Returns whether there is
  // more. A job that ends meanwhile may be both among the live jobs and among the ended ones.
  bool write_some(const Moment& now);

  // Return the result; called once, after write_some() returned false. The text without limits ends
  // with a newline.
  std::string take_text() { return std::move(text_); }
  WatchedJobs take_watched();

  static constexpr std::size_t kNodesPerPiece = 16;

 private:
  struct Head {  // a job without its nodes
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
  std::size_t job_ = 0;  // index in heads_
  std::vector<membership::NodeStatus> nodes_;
  std::size_t next_node_ = 0;
  std::string nodes_text_, nodes_key_;
  bool has_begun_ = false, is_cut_ = false;
  std::size_t num_nodes_ = 0, node_bytes_ = 0;  // of the earlier jobs
  std::vector<std::size_t> num_hidden_;
  // The ended jobs.
  membership::FinishedJobs::Place place_;
  std::deque<std::string> finished_;
  std::size_t finished_bytes_ = 0, num_hidden_finished_ = 0;
};

}  // namespace ddprun::rendezvous
