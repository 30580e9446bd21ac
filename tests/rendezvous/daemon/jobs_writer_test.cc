// SPDX-License-Identifier: Apache-2.0
// The text of all jobs, written a piece at a time, and how much of it status pages are told.
#include "rendezvous/daemon/jobs_writer.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "common/text.h"
#include "tests/support/catch.h"

namespace ddprun::rendezvous {
namespace {

using ddprun::test::Contains;
using namespace std::chrono_literals;

membership::NodeStatus node(const std::string& host, const std::string& phase, bool connected) {
  membership::NodeStatus status;
  status.host = host;
  status.phase = phase;
  status.connected = connected;
  return status;
}

membership::FinishedJob over(const std::string& run_id, Clock::time_point ended) {
  membership::FinishedJob job;
  job.run_id = run_id;
  job.ended = ended;
  return job;
}

// A table, as far as the writer asks it.
struct Said {
  std::vector<membership::JobStatus> jobs;  // numbered from 1 on
  std::optional<KeepingStatus> keeping;
  membership::FinishedJobs finished{1h, false};
  std::size_t num_asked = 0;  // for a job, or for its nodes
  std::size_t num_pieces = 0, largest_piece = 0;

  JobsWriter::Source source() {
    JobsWriter::Source source;
    source.next_job = [this](std::uint64_t after) -> std::optional<membership::JobStatus> {
      ++num_asked;
      if (after >= jobs.size()) return std::nullopt;
      membership::JobStatus job = jobs[after];
      job.number = after + 1;
      job.nodes.clear();
      return job;
    };
    source.nodes_of = [this](std::uint64_t number) {
      ++num_asked;
      return jobs[number - 1].nodes;
    };
    source.num_jobs = [this] { return jobs.size(); };
    source.finished = &finished;
    source.keeping = [this] { return keeping; };
    return source;
  }
  void write(JobsWriter& writer, const Moment& now) {
    while (writer.write_some(now)) ++num_pieces;
  }
  WatchedJobs watched(const WatchedLimits& limits = {}, const Moment& now = Moment::now()) {
    JobsWriter writer(source(), limits);
    write(writer, now);
    return writer.take_watched();
  }
  std::string all() {
    JobsWriter writer(source());
    write(writer, Moment::now());
    return writer.take_text();
  }
};

boost::json::object parsed(const std::string& members) {
  return boost::json::parse(concat("{", members, "}")).as_object();
}

TEST_CASE("Jobs: all of them, with nodes, and those that are over") {
  Said said;
  said.jobs.resize(2);
  said.jobs[0].run_id = "first";
  said.jobs[0].nodes = {node("a", "running", true), node("b", "running", true)};
  said.jobs[1].run_id = "second";
  said.finished.add(1, over("earlier", Clock::now()));
  const std::string text = said.all();
  CHECK(text.ends_with("}\n"));
  const auto all = boost::json::parse(text).as_object();
  const auto& jobs = all.at("jobs").as_array();
  REQUIRE(jobs.size() == 2);
  CHECK(jobs[0].at("run_id") == "first");
  REQUIRE(jobs[0].at("nodes").as_array().size() == 2);
  CHECK(jobs[0].at("nodes").as_array()[1].at("host") == "b");
  CHECK(jobs[1].at("nodes").as_array().empty());
  CHECK(all.at("finished").as_array()[0].at("run_id") == "earlier");
  CHECK(all.at("journal").is_null());
}

TEST_CASE("Jobs: a piece is one job, or so many of its nodes") {
  Said said;
  said.jobs.resize(10);
  said.jobs[0].nodes.assign(10 * JobsWriter::kNodesPerPiece, node("a", "running", true));
  said.all();
  CHECK(said.num_pieces >= 10 + 10 + 9);
}

TEST_CASE("Watch: nodes of a large job that run in order are left out first") {
  Said said;
  said.jobs.resize(2);
  for (membership::JobStatus& job : said.jobs) {
    job.nodes = {node("runs", "running", true), node("also-runs", "running", true),
                 node("cut-off", "running", false), node("starts", "starting", true)};
  }
  said.finished.add(1, over("first", Clock::now() - 1s));
  said.finished.add(2, over("last", Clock::now()));
  const std::string text = said.watched({.nodes = 3, .finished = 1}).json;
  CHECK_THAT(text, Contains("\"host\":\"cut-off\"") && Contains("\"host\":\"starts\"") &&
                       Contains("\"host\":\"runs\"") && !Contains("also-runs") &&
                       Contains("\"hidden_nodes\":[1,4]") && Contains("\"hidden_finished\":1") &&
                       Contains("\"run_id\":\"last\"") && !Contains("\"run_id\":\"first\""));
}

TEST_CASE("Watch: nodes that no longer fit are counted, with jobs beside them") {
  Said said;
  said.jobs.resize(1);
  said.jobs[0].nodes.assign(1'000, node("a", "running", true));
  const WatchedLimits limits{.bytes = 50'000};
  const std::string text = said.watched(limits).json;
  CHECK(text.size() <= limits.bytes + 200);
  const auto told = parsed(text);
  const std::size_t num_told =
      told.at("jobs").at("jobs").as_array()[0].at("nodes").as_array().size();
  CHECK(num_told > 100);
  CHECK(told.at("hidden_nodes").as_array()[0].to_number<std::size_t>() == 1'000 - num_told);
  CHECK(told.at("hidden_jobs") == 0);
}

TEST_CASE("Watch: jobs that no longer fit are counted, and nobody asks for them") {
  Said said;
  said.jobs.resize(1'000);
  said.jobs[0].run_id = "first";
  said.jobs[0].nodes = {node("a", "running", true)};
  const WatchedLimits limits{.bytes = 50'000};
  const std::string text = said.watched(limits).json;
  CHECK(text.size() <= limits.bytes + 1'000);
  const auto told = parsed(text);
  const auto& jobs = told.at("jobs").at("jobs").as_array();
  CHECK(jobs.size() > 20);
  CHECK(jobs[0].at("run_id") == "first");
  CHECK(jobs[0].at("nodes").as_array().size() == 1);
  CHECK(told.at("hidden_nodes").as_array().size() == jobs.size());
  CHECK(told.at("hidden_jobs").to_number<std::size_t>() == 1'000 - jobs.size());
  CHECK(said.num_asked == 2 * jobs.size() + 1);
}

TEST_CASE("Watch: a job that would take the place of many others is counted instead") {
  Said said;
  said.jobs.resize(2);
  said.jobs[0].excluded["node"] = std::string(50'000, 'x');
  said.jobs[1].run_id = "small";
  const auto told = parsed(said.watched({.bytes = 50'000}).json);
  CHECK(told.at("hidden_jobs") == 1);
  CHECK(told.at("jobs").at("jobs").as_array().at(0).at("run_id") == "small");
}

TEST_CASE("Watch: jobs that are over have a room of their own, the newest are told") {
  Said said;
  for (int i = 0; i < 50; ++i) {
    auto job = over(concat("over ", i), Clock::now() + i * 1s);
    job.reason = std::string(1'000, 'x');
    said.finished.add(i, job);
  }
  const auto told = parsed(said.watched({.bytes = 80'000}).json);
  const auto& finished = told.at("jobs").at("finished").as_array();
  CHECK(finished.size() >= 5);
  CHECK(finished.size() <= 10);
  CHECK(finished.back().at("run_id") == "over 49");
  CHECK(told.at("hidden_finished").to_number<std::size_t>() == 50 - finished.size());
}

TEST_CASE("Watch: a greater age is no change, a node's next reading is one") {
  membership::JobStatus job;
  job.nodes = {node("a", "running", true)};
  Moment now = Moment::now();
  job.nodes[0].monitor.emplace().at = now.at;
  job.nodes[0].monitor->report.cpu = 0.5;
  KeepingStatus keeping{"the disk is full", 5s};
  job.rounds.emplace_back();
  job.seconds.running = 5;
  job.lasting = &membership::PhaseSeconds::running;
  job.lasts_since = now.at;
  Said all;
  const auto said = [&] {
    all.jobs = {job};
    all.keeping = keeping;
    return all.watched({}, now);
  };
  const WatchedJobs before = said();
  now.at += 1s;
  now.wall += 1s;
  keeping.in_trouble += 1s;
  const WatchedJobs after = said();
  CHECK(after.key == before.key);
  CHECK_THAT(after.json, Contains("\"age_seconds\":1.0") && Contains("\"trouble_seconds\":6.0") &&
                             Contains(R"("lasting":{"phase":"running","seconds":1.0})"));
  keeping.trouble = "the disk is gone";
  CHECK(said().key != before.key);
  keeping.trouble = "the disk is full";
  job.nodes[0].monitor->report.cpu = 0.6;
  CHECK(said().key != before.key);
  job.lasting = &membership::PhaseSeconds::stop;  // the share of training shrinks with the time
  const WatchedJobs stopping = said();
  now.at += 1s;
  CHECK(said().key != stopping.key);
  job.lasting = nullptr;
  CHECK_THAT(said().json, !Contains("lasting"));
}

TEST_CASE("Watch: step times of ranks are rows of their node") {
  membership::NodeStatus status = node("a", "running", true);
  status.step_times = {{3, 41ms, 12ms}};
  Said said;
  said.jobs.resize(1);
  said.jobs[0].nodes = {status};
  CHECK_THAT(said.all(), Contains("\"step_times\":[[3,41000,12000]]"));
}

}  // namespace
}  // namespace ddprun::rendezvous
