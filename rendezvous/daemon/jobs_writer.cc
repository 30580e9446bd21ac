// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/jobs_writer.h"

#include <algorithm>
#include <utility>

#include "common/json.h"
#include "common/text.h"

namespace ddprun::rendezvous {
namespace {

// Returns the job's text with all ages set to zero.
std::string key_of(membership::JobStatus job, const Moment& now) {
  // The present phase changes the ETTR, and that counts as a change.
  const std::string ettr = concat(' ', shown_ettr(job, now).value_or(-1));
  job.lasts_since = now.at;
  return written_json(job_object(job, now)) + ettr;
}

std::string key_of(membership::NodeStatus node, const Moment& now) {
  if (node.monitor) node.monitor->at = now.at;
  return written_json(node_object(node, now));
}

std::string keeping_text(const std::optional<KeepingStatus>& keeping) {
  return keeping ? written_json(keeping_object(*keeping)) : "null";
}

}  // namespace

JobsWriter::JobsWriter(Source source, const std::optional<WatchedLimits>& limits)
    : source_(std::move(source)),
      limits_(limits),
      text_(concat("{\"version\":\"", DDPRUN_VERSION, "\",\"jobs\":[")) {
  if (!limits_) return;
  const std::size_t num_over = source_.finished->size();
  num_hidden_finished_ = num_over - std::min(num_over, limits_->finished);
  place_ = source_.finished->place_of(num_hidden_finished_);
}

bool JobsWriter::write_some(const Moment& now) {
  switch (part_) {
    case Part::kHeads:
      write_head(now);
      break;
    case Part::kNodes:
      has_begun_ ? write_nodes(now) : begin_nodes(now);
      break;
    case Part::kFinished:
      write_finished(now);
      break;
    case Part::kDone:
      break;
  }
  return part_ != Part::kDone;
}

// ---- the jobs without their nodes ----

void JobsWriter::write_head(const Moment& now) {
  const auto job = source_.next_job(last_number_);
  if (!job) {
    part_ = Part::kNodes;
    return;
  }
  last_number_ = job->number;
  Head head{job->number, written_json(job_object(*job, now)), {}};
  if (limits_) {
    const std::size_t most = limits_->bytes / 4 * 3;
    if (head.text.size() > most / 4) {  // it would displace many others
      ++num_hidden_jobs_;
      return;
    }
    if (head_bytes_ + head.text.size() > most) {
      const std::size_t num_jobs = source_.num_jobs();  // written ones may be gone by now
      num_hidden_jobs_ =
          std::max(num_hidden_jobs_ + 1, num_jobs - std::min(num_jobs, heads_.size()));
      part_ = Part::kNodes;
      return;
    }
    head.key = key_of(*job, now);
  }
  head_bytes_ += head.text.size();
  heads_.push_back(std::move(head));
}

// ---- their nodes ----

void JobsWriter::begin_nodes(const Moment& now) {
  if (job_ == heads_.size()) {
    text_ += "],\"finished\":[";
    part_ = Part::kFinished;
    return;
  }
  nodes_ = source_.nodes_of(heads_[job_].number);
  next_node_ = 0;
  has_begun_ = true;
  is_cut_ = false;
  write_nodes(now);
}

void JobsWriter::write_nodes(const Moment& now) {
  const std::size_t end = std::min(next_node_ + kNodesPerPiece, nodes_.size());
  for (; next_node_ < end; ++next_node_) {
    const std::string text = written_json(node_object(nodes_[next_node_], now));
    const char* comma = next_node_ == 0 ? "" : ",";
    if (limits_) {
      const std::size_t bytes = node_bytes_ + nodes_text_.size() + text.size();
      if (num_nodes_ + next_node_ >= limits_->nodes || head_bytes_ + bytes > limits_->bytes) {
        return is_cut_ ? end_nodes() : cut_nodes();
      }
      nodes_key_ += key_of(nodes_[next_node_], now);
    }
    nodes_text_.append(comma).append(text);
  }
  if (next_node_ == nodes_.size()) end_nodes();
}

// Begins the nodes again, with the most interesting ones first.
void JobsWriter::cut_nodes() {
  is_cut_ = true;
  std::stable_partition(nodes_.begin(), nodes_.end(), [](const membership::NodeStatus& node) {
    return node.phase != "running" || !node.connected;
  });
  next_node_ = 0;
  nodes_text_.clear();
  nodes_key_.clear();
}

void JobsWriter::end_nodes() {
  Head& head = heads_[job_];
  head.text.back() = ',';  // instead of the closing brace
  text_.append(job_ == 0 ? "" : ",").append(head.text);
  text_.append("\"nodes\":[").append(nodes_text_).append("]}");
  key_.append(head.key).append(nodes_key_);
  num_hidden_.push_back(nodes_.size() - next_node_);
  num_nodes_ += next_node_;
  node_bytes_ += nodes_text_.size();
  head = {};
  nodes_.clear();
  nodes_text_.clear();
  nodes_key_.clear();
  has_begun_ = false;
  ++job_;
}

// ---- ended jobs ----

void JobsWriter::write_finished(const Moment& now) {
  const membership::FinishedJob* job = source_.finished->after(place_);
  if (job == nullptr) return end();
  finished_.push_back(written_json(finished_object(*job, now)));
  finished_bytes_ += finished_.back().size();
  while (limits_ && finished_bytes_ > limits_->bytes / 8 && finished_.size() > 1) {
    finished_bytes_ -= finished_.front().size();
    finished_.pop_front();
    ++num_hidden_finished_;
  }
}

void JobsWriter::end() {
  const std::string all = listed(finished_, ",");
  auto keeping = source_.keeping();
  text_.append(all).append("],\"journal\":").append(keeping_text(keeping)).append("}\n");
  if (keeping) keeping->in_trouble = {};
  key_.append(all).append(keeping_text(keeping));
  part_ = Part::kDone;
}

WatchedJobs JobsWriter::take_watched() {
  const std::string behind =
      concat(",\"hidden_nodes\":[", listed(num_hidden_, ","),
             "],\"hidden_jobs\":", num_hidden_jobs_, ",\"hidden_finished\":", num_hidden_finished_);
  return {concat("\"jobs\":", text_, behind), key_ + behind};
}

}  // namespace ddprun::rendezvous
