// SPDX-License-Identifier: Apache-2.0
#include "launcher/events/event_lines.h"

#include <bit>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <csignal>
#include <limits>

#include "tests/launcher/events/round_number.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::launcher;
using ddprun::test::Contains;
using ddprun::test::round_number;
using std::chrono::milliseconds;
using std::chrono::seconds;
namespace json = boost::json;

namespace {

constexpr Clock::time_point kBegun{seconds(1000)};

Moment after(milliseconds time) {
  return {kBegun + time, WallTime(seconds(1763781307)) + time + milliseconds(7)};
}

EventLines lines() {
  return EventLines({.job_id = "j",
                     .host = "h",
                     .version = "1.2.3",
                     .pid = 70,
                     .program = "train\n\xff",
                     .num_workers = 2,
                     .min_nodes = 1,
                     .max_nodes = 2,
                     .max_restarts = 3},
                    kBegun);
}

json::object parsed(const std::string& text) {
  INFO(text);
  REQUIRE(text.find('\n') == text.size() - 1);
  return json::parse(text).as_object();
}

agent::RankProgress at_step(int rank, std::uint64_t step) {
  agent::RankProgress progress;
  progress.global_rank = rank;
  progress.words.step = step;
  return progress;
}

agent::RankProgress timed(int rank, std::uint64_t num_steps, std::uint64_t step_ns) {
  agent::RankProgress progress = at_step(rank, num_steps);
  progress.words.num_reports = num_steps;
  progress.words.loss_bits = std::bit_cast<std::uint64_t>(0.5);
  progress.words.samples = num_steps * 32;
  progress.words.steps = StepSums{.num_steps = num_steps, .step = step_ns, .exposed = step_ns / 4};
  return progress;
}

}  // namespace

TEST_CASE("events: the first line says what is begun, before any round") {
  const auto out = parsed(lines().begin(after(milliseconds(2))));
  CHECK(out.at("event") == "begin");
  CHECK(out.at("time") == "2025-11-22T03:15:07.009Z");
  CHECK(out.at("seconds").as_double() == 0.002);
  CHECK(out.at("job") == "j");
  CHECK(out.at("host") == "h");
  CHECK(out.at("node_rank").is_null());
  CHECK(out.at("round") == 0);
  CHECK(out.at("version") == "1.2.3");
  CHECK(out.at("program") == "train\\n\xef\xbf\xbd");
  CHECK(out.at("pid") == 70);
  CHECK(out.at("num_workers") == 2);
  CHECK(out.at("min_nodes") == 1);
  CHECK(out.at("max_nodes") == 2);
  CHECK(out.at("max_restarts") == 3);
}

TEST_CASE("events: a round, how long it was waited for, and its workers") {
  EventLines events = lines();
  auto out = parsed(events.round_began(round_number(1), after(milliseconds(400))));
  CHECK(out.at("event") == "round");
  CHECK(out.at("round") == 1);
  CHECK(out.at("node_rank") == 1);
  CHECK(out.at("restart_count") == 0);
  CHECK(out.at("num_nodes") == 2);
  CHECK(out.at("world_size") == 6);
  CHECK(out.at("first_global_rank") == 4);
  CHECK(out.at("in_place") == false);
  CHECK(out.at("waited_seconds").as_double() == 0.4);
  const std::string spawned = events.workers_run({71, 0, 72}, after(seconds(1)));
  const std::size_t end = spawned.find('\n') + 1;
  out = parsed(spawned.substr(0, end));
  CHECK(out.at("event") == "spawn");
  CHECK(out.at("global_rank") == 4);
  CHECK(out.at("pid") == 71);
  out = parsed(spawned.substr(end));
  CHECK(out.at("global_rank") == 6);
  CHECK(out.at("local_rank") == 2);
  events.workers_gone(after(seconds(5)));
  membership::StartRound next = round_number(2);
  next.in_place = true;
  out = parsed(events.round_began(next, after(seconds(7))));
  CHECK(out.at("waited_seconds").as_double() == 2.0);
  CHECK(out.at("in_place") == true);
  // These workers are known already.
  CHECK(events.workers_run({71, 72}, after(seconds(7))).empty());
}

TEST_CASE("events: each exit says how, and what is not known is null") {
  EventLines events = lines();
  events.round_began(round_number(1), after(seconds(1)));
  using agent::ExitKind;
  auto out = parsed(events.worker_ended({4, 0, 71, ExitKind::kError, 3, 0}, after(seconds(2))));
  CHECK(out.at("event") == "exit");
  CHECK(out.at("global_rank") == 4);
  CHECK(out.at("local_rank") == 0);
  CHECK(out.at("pid") == 71);
  CHECK(out.at("kind") == "error");
  CHECK(out.at("exit_code") == 3);
  CHECK(out.at("signal").is_null());
  out = parsed(
      events.worker_ended({4, 0, 0, ExitKind::kSignal, std::nullopt, SIGSEGV}, after(seconds(2))));
  CHECK(out.at("kind") == "signal");
  CHECK(out.at("exit_code").is_null());
  CHECK(out.at("signal") == "SIGSEGV");
  CHECK(out.at("pid").is_null());
  const auto kind = [&](ExitKind of) {
    return parsed(events.worker_ended({4, 0, 71, of, 0, 0}, after(seconds(2)))).at("kind");
  };
  CHECK(kind(ExitKind::kSuccess) == "success");
  CHECK(kind(ExitKind::kStopped) == "stopped");
  CHECK(kind(ExitKind::kOutOfMemory) == "out_of_memory");
}

TEST_CASE("events: a round's end is said once, and once more where its workers can't be kept") {
  EventLines events = lines();
  CHECK(events.round_over({1, "early", false}, after(seconds(1))).empty());  // no round began here
  events.round_began(round_number(1), after(seconds(1)));
  auto out = parsed(events.round_over({1, "rank 4 failed\n", true}, after(seconds(2))));
  CHECK(out.at("event") == "restart");
  CHECK(out.at("cause") == "rank 4 failed\\n");
  CHECK(out.at("in_place") == true);
  CHECK(events.round_over({1, "again", true}, after(seconds(2))).empty());
  out = parsed(events.round_over({1, "it can't", false}, after(seconds(3))));
  CHECK(out.at("in_place") == false);
  CHECK(events.round_over({1, "others can't", false}, after(seconds(3))).empty());
  events.round_began(round_number(2), after(seconds(4)));
  CHECK(events.round_over({1, "late", false}, after(seconds(5))).empty());
  CHECK_FALSE(events.round_over({2, "why", false}, after(seconds(5))).empty());
}

TEST_CASE("events: progress is said when it changes, with the means since the last line") {
  EventLines events = lines();
  events.round_began(round_number(1), after(seconds(1)));
  CHECK(events.progressed({at_step(4, 0)}, after(seconds(2))).empty());
  auto out = parsed(events.progressed({timed(4, 10, 5'000'000'000)}, after(seconds(5))));
  CHECK(out.at("event") == "progress");
  auto rank = out.at("ranks").as_array().at(0).as_object();
  CHECK(rank.at("rank") == 4);
  CHECK(rank.at("step") == 10);
  CHECK(rank.at("loss").as_double() == 0.5);
  CHECK(rank.at("samples") == 320);
  CHECK(rank.at("step_seconds").as_double() == Approx(0.5));
  CHECK(rank.at("exposed_seconds").as_double() == Approx(0.125));
  CHECK(rank.at("communication_seconds").as_double() == 0);
  CHECK(rank.at("loader_seconds").as_double() == 0);
  CHECK(events.progressed({timed(4, 10, 5'000'000'000)}, after(seconds(10))).empty());
  out = parsed(events.progressed({timed(4, 20, 25'000'000'000)}, after(seconds(15))));
  rank = out.at("ranks").as_array().at(0).as_object();
  CHECK(rank.at("step_seconds").as_double() == Approx(2.0));
  // One rank is writing its times now, another one has told none.
  agent::RankProgress writing = timed(4, 30, 0);
  writing.words.steps.reset();
  writing.words.loss_bits = std::bit_cast<std::uint64_t>(std::numeric_limits<double>::quiet_NaN());
  out = parsed(events.progressed({writing, at_step(5, 3)}, after(seconds(20))));
  const auto& ranks = out.at("ranks").as_array();
  REQUIRE(ranks.size() == 2);
  CHECK(ranks[0].at("step_seconds").is_null());
  CHECK(ranks[0].at("loss").is_null());
  CHECK(ranks[0].at("samples") == 960);
  CHECK(ranks[1].at("samples").is_null());
  // The time covers the steps since the last line that had times.
  out = parsed(events.progressed({timed(4, 40, 45'000'000'000)}, after(seconds(25))));
  CHECK(out.at("ranks").at(0).at("step_seconds").as_double() == Approx(1.0));
  events.round_began(round_number(2), after(seconds(30)));
  out = parsed(events.progressed({timed(4, 10, 5'000'000'000)}, after(seconds(35))));
  CHECK(out.at("ranks").at(0).at("step_seconds").as_double() == Approx(0.5));
}

TEST_CASE("events: GPU memory and skipped steps are said where there are any, a skip is news") {
  EventLines events = lines();
  events.round_began(round_number(1), after(seconds(1)));
  agent::RankProgress progress = at_step(4, 1);
  auto rank = parsed(events.progressed({progress}, after(seconds(5)))).at("ranks").at(0);
  CHECK_FALSE(rank.as_object().contains("gpu_memory_peak_bytes"));
  CHECK_FALSE(rank.as_object().contains("skipped_steps"));
  progress.words.gpu_peak_bytes = 4096;
  progress.words.skipped_steps = 3;
  rank = parsed(events.progressed({progress}, after(seconds(10)))).at("ranks").at(0);
  CHECK(rank.at("gpu_memory_peak_bytes") == 4096);
  CHECK(rank.at("skipped_steps") == 3);
}

TEST_CASE("events: the framework of a rank is said once in a round") {
  EventLines events = lines();
  const auto said = [&](std::uint64_t step) {
    agent::RankProgress progress = at_step(4, step);
    progress.framework = "PyTorch 2.15.0, gloo, 2 ranks";
    const auto rank =
        parsed(events.progressed({progress}, after(seconds(5)))).at("ranks").at(0).as_object();
    return rank.contains("framework") ? std::string(rank.at("framework").as_string()) : "";
  };
  events.round_began(round_number(1), after(seconds(1)));
  CHECK(said(1) == "PyTorch 2.15.0, gloo, 2 ranks");
  CHECK(said(2).empty());
  events.round_began(round_number(2), after(seconds(1)));
  CHECK(said(3) == "PyTorch 2.15.0, gloo, 2 ranks");
}

TEST_CASE("events: the node's readings, null for what is not known") {
  membership::NodeReport report;
  report.num_cpus = 4;
  report.interfaces = {{"eth0", 10, 20}, {"eth1", 1, 2}};
  report.gpus.emplace_back().use = 0.5;
  const auto out = parsed(lines().node_read(report, after(seconds(2))));
  CHECK(out.at("event") == "node");
  CHECK(out.at("cpus") == 4);
  CHECK(out.at("cpu").is_null());
  CHECK(out.at("memory_bytes").is_null());
  CHECK(out.at("received_bytes_per_second").as_double() == 11);
  CHECK(out.at("sent_bytes_per_second").as_double() == 22);
  CHECK(out.at("gpus").at(0).at("celsius").is_null());
  CHECK_FALSE(out.contains("age_seconds"));
}

TEST_CASE("events: the verdict has the ledger where it is one") {
  EventLines events = lines();
  membership::JobEnd end;
  end.rounds = 2;
  auto out = parsed(events.ended(end, after(seconds(9))));
  CHECK(out.at("event") == "verdict");
  CHECK(out.at("state") == "succeeded");
  CHECK(out.at("exit_code") == 0);
  CHECK(out.at("reason").is_null());
  CHECK(out.at("first_failure").is_null());
  CHECK(out.at("rounds") == 2);
  CHECK(out.at("ledger").is_null());
  end.exit_code = 139;
  end.reason = "rank 1 …";
  end.first_failure.emplace();
  end.first_failure->global_rank = 5;
  end.first_failure->signal_number = SIGSEGV;
  end.ledger = R"({"ettr":0.5,"seconds":{},"rounds":[]})";
  out = parsed(events.ended(end, after(seconds(9))));
  CHECK(out.at("state") == "worker_failed");
  CHECK_THAT(std::string(out.at("first_failure").as_string()), Contains("rank 5"));
  CHECK(out.at("ledger").at("ettr").as_double() == 0.5);
  for (const std::string bad : {"]", "[1]", "7", "{\"a\":"}) {
    end.ledger = bad;
    CHECK(parsed(events.ended(end, after(seconds(9)))).at("ledger").is_null());
  }
}
