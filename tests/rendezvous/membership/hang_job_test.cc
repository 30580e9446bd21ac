// SPDX-License-Identifier: Apache-2.0
// A rank makes no progress. The rendezvous asks all nodes, compares their answers, tells the
// verdict, and acts.
#include "tests/rendezvous/membership/script.h"

namespace ddprun::membership {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::StartsWith;
using ddprun::test::Contains;
using testing::Script;

RankReport rank(int global_rank, bool waits) {
  RankReport report;
  report.global_rank = global_rank;
  report.pid = 700 + global_rank;
  report.phase = "train";
  report.step = 41;
  report.steps_done = 40;
  report.collective = "all_reduce";
  report.collectives_begun = waits ? 9 : 8;
  report.collectives_done = 8;
  report.quiet = 6s;
  report.limit = 5s;
  report.limit_if_working = 60s;
  report.state = "S";
  if (!waits) {
    report.call = "read() of /data/part-07";
    report.frames = {"read", "main"};
  }
  return report;
}

// Two nodes of one rank each, both running.
struct HangScript : Script {
  explicit HangScript(int max_restarts = 1, HangAction action = HangAction::kDefault)
      : Script(2, max_restarts) {
    settings.hang_action = action;
    join("1");
    join("2");
    says("1", WorkersRunning{1});
    says("2", WorkersRunning{1});
  }
  int count_inspects(const std::string& name) {
    int count = 0;
    for (const auto& message : agents[name].received) {
      if (variants::holds_alternative<Inspect>(message)) ++count;
    }
    return count;
  }
  void hang_of_rank_1() {
    mentions("1", Stalled{1, rank(0, true)});
    mentions("1", Inspection{1, 1, {rank(0, true)}});
    mentions("2", Inspection{1, 1, {rank(1, false)}});
  }
};

TEST_CASE(
    "Hang: every node is asked once, told the verdict, and the round ends as the outlier's "
    "failure") {
  HangScript j;
  j.mentions("1", Stalled{1, rank(0, true)});
  CHECK(j.count_inspects("1") == 1);
  CHECK(j.count_inspects("2") == 1);
  j.mentions("2", Stalled{1, rank(1, false)});
  CHECK(j.count_inspects("1") == 1);
  j.mentions("1", Inspection{1, 1, {rank(0, true)}});
  CHECK(j.last<HangVerdict>("1") == nullptr);
  j.mentions("2", Inspection{1, 1, {rank(1, false)}});
  for (const std::string name : {"1", "2"}) {
    CHECK_THAT(
        j.got<HangVerdict>(name).text,
        Contains("rank 1 (node 1, 2, pid 701) in read() of /data/part-07 (step 41) for 6.0 s; "
                 "others: rank 0 in all_reduce #9 (step 41)"));
    CHECK_THAT(j.got<StopRound>(name).reason,
               Contains("rank 1 (node 1, 2, pid 701) made no progress"));
    CHECK_THAT(j.got<StopRound>(name).reason, Contains("restart 1 of 1"));
  }
  const JobStatus status = j.table.status().front();
  REQUIRE(status.hang.has_value());
  CHECK(status.hang->acted);
  CHECK(status.failures == 1);
  j.says("1", WorkersStopped{1, 1001});
  j.says("2", WorkersStopped{1, 1001});
  CHECK(j.round("1") == 2);
  // No time has passed in this script.
  CHECK(j.table.status().front().rounds.front().seconds.detect == 0.0);
}

TEST_CASE("Records: every node whose workers run is asked once, before the round's end") {
  HangScript j;
  const auto asked = [&](const std::string& name) {
    return std::count_if(
        j.agents[name].received.begin(), j.agents[name].received.end(),
        [](const auto& message) { return variants::holds_alternative<Record>(message); });
  };
  j.says("1", RecordsWanted{7});
  CHECK(asked("2") == 0);
  j.says("1", RecordsWanted{1});
  j.says("2", RecordsWanted{1});
  WorkerFailed failed{1, {}};
  failed.failure.exit_code = 3;
  j.says("1", failed);
  for (const std::string name : {"1", "2"}) {
    CHECK(asked(name) == 1);
    CHECK(j.got<Record>(name).round == 1);
    REQUIRE(j.last<StopRound>(name) != nullptr);
    CHECK(variants::holds_alternative<Record>(*(j.agents[name].received.end() - 2)));
  }
  j.says("1", WorkersStopped{1, 1001});
  j.says("2", WorkersStopped{1, 1001});
  REQUIRE(j.round("1") == 2);
  j.says("2", RecordsWanted{1});  // too late
  CHECK(asked("1") == 1);
  j.says("2", RecordsWanted{2});
  CHECK(asked("1") == 2);
}

TEST_CASE("Hang: a job without restarts left ends with 124 and the outlier's stack") {
  HangScript j(0);
  j.hang_of_rank_1();
  j.says("1", WorkersStopped{1, 1001});
  j.says("2", WorkersStopped{1, 1001});
  CHECK(j.got<JobEnd>("1").exit_code == 124);
  REQUIRE(j.got<JobEnd>("1").first_failure.has_value());
  CHECK(j.got<JobEnd>("1").first_failure->hung);
  CHECK(j.got<JobEnd>("1").first_failure->last_lines.back() == "  main");
}

TEST_CASE(
    "Hang: the stacks are told once per hang, then a line each time it has lasted twice as long") {
  HangScript j(1, HangAction::kReport);
  j.hang_of_rank_1();
  const auto verdicts = [&] {
    std::vector<HangVerdict> told;
    for (const auto& message : j.agents["1"].received) {
      if (const auto* verdict = variants::get_if<HangVerdict>(&message)) told.push_back(*verdict);
    }
    return told;
  };
  const auto inquiry_after = [&](std::chrono::milliseconds time, std::chrono::milliseconds quiet) {
    j.wait_alive(time);
    RankReport outlier = rank(1, false);
    outlier.quiet = quiet;
    j.mentions("2", Stalled{1, outlier});
    const std::uint64_t inquiry = j.got<Inspect>("1").inquiry;
    j.mentions("1", Inspection{1, inquiry, {rank(0, true)}});
    j.mentions("2", Inspection{1, inquiry, {outlier}});
  };
  REQUIRE(verdicts().size() == 1);
  CHECK_FALSE(verdicts()[0].lines.empty());
  inquiry_after(5s, 11s);
  CHECK(verdicts().size() == 1);
  inquiry_after(5s, 16s);
  REQUIRE(verdicts().size() == 2);
  CHECK_THAT(verdicts()[1].text, StartsWith("still: hang: ") && Contains("for 16.0 s"));
  CHECK(verdicts()[1].lines.empty());
  CHECK(j.table.status().front().hang->lines.size() == verdicts()[0].lines.size());
  inquiry_after(10s, 26s);
  CHECK(verdicts().size() == 2);
  inquiry_after(30s, 6s);  // the rank went on meanwhile, so this is another hang
  REQUIRE(verdicts().size() == 3);
  CHECK_THAT(verdicts()[2].text, StartsWith("hang: "));
  CHECK_FALSE(verdicts()[2].lines.empty());
}

TEST_CASE("Hang: report tells and lets the job run, off asks nobody") {
  HangScript j(1, HangAction::kReport);
  j.hang_of_rank_1();
  CHECK_THAT(j.got<HangVerdict>("1").text, Contains("(not restarted: --hang-action=report)"));
  CHECK(j.last<StopRound>("1") == nullptr);
  CHECK_FALSE(j.table.status().front().hang->acted);

  HangScript off(1, HangAction::kOff);
  off.mentions("1", Stalled{1, rank(0, true)});
  CHECK(off.count_inspects("1") == 0);
}

TEST_CASE("Hang: a node that doesn't answer is waited for for 3 s, then named") {
  HangScript j;
  j.mentions("1", Stalled{1, rank(0, false)});
  j.mentions("1", Inspection{1, 1, {rank(0, false)}});
  j.wait(2999ms);
  CHECK(j.last<HangVerdict>("1") == nullptr);
  j.wait(1ms);
  CHECK_THAT(j.got<HangVerdict>("1").text, Contains("no answer from node 1 (2, 10.0.0.2)"));
}

TEST_CASE("Hang: a round with nobody to blame ends, and no node is counted or excluded") {
  Script j(2, 1);
  j.settings.exclude_after = 1;
  for (const std::string name : {"1", "2"}) j.join(name);
  for (const std::string name : {"1", "2"}) j.says(name, WorkersRunning{1});
  const auto waits = [](int global_rank) {
    RankReport report = rank(global_rank, true);
    report.quiet = 61s;
    return report;
  };
  const auto hang = [&](std::uint64_t round, std::uint64_t inquiry) {
    j.mentions("1", Stalled{round, waits(0)});
    j.mentions("1", Inspection{round, inquiry, {waits(0)}});
    j.mentions("2", Inspection{round, inquiry, {waits(1)}});
  };
  hang(1, 1);
  CHECK(j.got<StopRound>("2").reason ==
        "no progress: 2 ranks in all_reduce #9 (step 41); restart 1 of 1");
  for (const std::string name : {"1", "2"}) j.says(name, WorkersStopped{1, 1001});
  CHECK(j.last<JobEnd>("1") == nullptr);
  REQUIRE(j.round("1") == 2);
  CHECK(j.round("2") == 2);
  CHECK(j.table.status().front().excluded.empty());

  for (const std::string name : {"1", "2"}) j.says(name, WorkersRunning{2});
  hang(2, 2);
  for (const std::string name : {"1", "2"}) j.says(name, WorkersStopped{2, 1001});
  CHECK(j.got<JobEnd>("1").exit_code == 124);
  CHECK_FALSE(j.got<JobEnd>("1").first_failure.has_value());
  CHECK_THAT(j.got<JobEnd>("1").reason, Contains("no progress: 2 ranks in all_reduce #9"));
}

TEST_CASE("Hang: an answer to an earlier inquiry says nothing: its rank may have gone on") {
  HangScript j;
  j.mentions("1", Stalled{1, rank(0, true)});
  j.mentions("1", Inspection{1, 1, {rank(0, true)}});
  for (int i = 0; i < 8; ++i) j.wait_alive(1s);  // node 2 is late
  REQUIRE(j.last<StopRound>("1") == nullptr);
  j.mentions("1", Stalled{1, rank(0, true)});
  REQUIRE(j.count_inspects("1") == 2);
  CHECK(j.got<Inspect>("2").inquiry == 2);
  j.mentions("1", Inspection{1, 2, {rank(0, true)}});
  j.mentions("2", Inspection{1, 1, {rank(1, false)}});
  CHECK(j.last<StopRound>("1") == nullptr);
  j.mentions("2", Inspection{1, 2, {rank(1, false)}});
  CHECK(j.last<StopRound>("1") != nullptr);
}

TEST_CASE(
    "Hang: a node whose workers finish while the others are asked has nothing to do with it") {
  HangScript j;
  j.mentions("1", Stalled{1, rank(0, true)});
  j.mentions("2", Inspection{1, 1, {rank(1, false)}});
  j.says("2", WorkersSucceeded{1});
  RankReport waits = rank(0, true);
  waits.quiet = 61s;
  j.mentions("1", Inspection{1, 1, {waits}});
  CHECK_THAT(j.got<HangVerdict>("1").text, Contains("rank 0 (node 0, 1, pid 700)"));
  CHECK_THAT(j.got<HangVerdict>("1").text, Contains("1 of 2 ranks have finished"));
}

TEST_CASE("Hang: a stall that opens an inquiry is logged, another one isn't") {
  HangScript j;
  j.logs.clear();
  j.mentions("1", Stalled{1, rank(0, true)});
  CHECK(j.logs.size() == 1);
  for (int i = 0; i < 100; ++i) j.mentions("2", Stalled{1, rank(1, false)});
  CHECK(j.logs.size() == 1);
}

TEST_CASE("Hang: another inquiry is made 5 s after the last one, not earlier, and once") {
  HangScript j(1, HangAction::kReport);
  j.hang_of_rank_1();
  j.mentions("1", Stalled{1, rank(0, true)});
  j.mentions("2", Stalled{1, rank(1, false)});
  CHECK(j.count_inspects("1") == 1);
  j.wait_alive(5s);
  CHECK(j.count_inspects("1") == 2);
  j.wait_alive(20s);  // nobody answers that question
  CHECK(j.count_inspects("1") == 2);
}

TEST_CASE("Hang: a rank within its limit is asked again when that ends") {
  HangScript j;
  RankReport saving = rank(1, false);
  saving.phase = "checkpoint";
  saving.limit = 20s;
  j.mentions("1", Stalled{1, rank(0, true)});
  j.mentions("1", Inspection{1, 1, {rank(0, true)}});
  j.mentions("2", Inspection{1, 1, {saving}});
  CHECK(j.last<HangVerdict>("1") == nullptr);  // there is nothing to tell
  CHECK(j.last<StopRound>("1") == nullptr);
  j.wait_alive(13s);
  CHECK(j.count_inspects("1") == 1);
  j.wait_alive(1s);
  CHECK(j.count_inspects("1") == 2);
}

TEST_CASE(
    "Hang: an outlier that is just below its limit is asked again at once, not after the pause") {
  HangScript j;
  RankReport late = rank(1, false);
  late.quiet = 4950ms;
  j.mentions("1", Stalled{1, rank(0, true)});
  j.mentions("1", Inspection{1, 1, {rank(0, true)}});
  j.mentions("2", Inspection{1, 1, {late}});
  CHECK(j.last<HangVerdict>("1") == nullptr);
  j.wait(300ms);
  CHECK(j.count_inspects("1") == 2);
  j.mentions("1", Inspection{1, 2, {rank(0, true)}});
  j.mentions("2", Inspection{1, 2, {rank(1, false)}});
  CHECK(j.last<StopRound>("1") != nullptr);
}

TEST_CASE("Hang: messages of another round, and answers that nobody asked for, change nothing") {
  HangScript j;
  j.mentions("1", Stalled{7, rank(0, true)});
  j.mentions("1", Inspection{1, 1, {rank(0, false)}});
  j.mentions("2", Inspection{1, 1, {rank(1, false)}});
  CHECK(j.count_inspects("1") == 0);
  CHECK(j.last<HangVerdict>("1") == nullptr);
  j.mentions("1", Stalled{1, rank(0, true)});
  j.mentions("1", Inspection{2, 1, {rank(0, true)}});
  j.mentions("2", Inspection{1, 1, {rank(1, false)}});
  CHECK(j.last<HangVerdict>("1") == nullptr);
}

TEST_CASE("Hang: a worker's failure cannot call itself a hang") {
  HangScript j;
  WorkerFailed failed{1, {}};
  failed.failure.exit_code = 3;
  failed.failure.hung = true;
  j.says("2", failed);
  CHECK_THAT(j.got<StopRound>("1").reason, Contains("failed with exit code 3"));
}

TEST_CASE("Hang: nodes that disagree on --hang-action are told so") {
  Script j(2);
  j.join("1");
  Join other = j.make_join("2");
  other.settings.hang_action = HangAction::kOff;
  j.join("2", other);
  CHECK_THAT(j.got<Refused>("2").message, Contains("--hang-action is off here, but default on"));
}

StepTimes times(int first_rank, std::vector<std::chrono::microseconds> own) {
  StepTimes message{1, {}};
  for (std::size_t i = 0; i < own.size(); ++i) {
    message.ranks.push_back({first_rank + static_cast<int>(i), 50ms, own[i]});
  }
  return message;
}

TEST_CASE(
    "Stragglers: a rank whose own time is beyond twice the median is named, live and at the end") {
  HangScript j;
  j.mentions("1", times(0, {10ms, 11ms, 12ms, 11ms}));
  j.mentions("2", times(4, {10ms, 12ms, 41ms, 11ms}));
  const JobStatus status = j.table.status().front();
  REQUIRE(status.stragglers.size() == 1);
  CHECK(status.stragglers[0] ==
        "rank 6 (node 1, 2): 41.0 ms of its own per step, the median of 8 ranks is 11.0 ms");
  j.says("1", WorkersSucceeded{1});
  j.says("2", WorkersSucceeded{1});
  CHECK_THAT(j.got<JobEnd>("1").summary, Contains("slow: rank 6"));
  CHECK(j.table.status().front().rounds.front().stragglers.size() == 1);
}

TEST_CASE("Training: the step of the node that is the least far, the mean loss, all samples") {
  HangScript j;
  CHECK_FALSE(j.table.status().front().training.has_value());
  j.mentions("1", StepTimes{1, {}, TrainingStatus{"train", 41, 4, 1.0, 100, {}}});
  CHECK(j.table.status().front().training->step == 41);
  j.mentions("2", StepTimes{1, {}, TrainingStatus{"evaluate", 40, 1, 6.0, 50, {}}});
  const auto training = j.table.status().front().training;
  REQUIRE(training.has_value());
  CHECK(training->phase == "evaluate");
  CHECK(training->step == 40);
  CHECK(training->loss == 2.0);
  CHECK(training->num_ranks == 5);
  CHECK(training->samples_per_second == 150);
  CHECK(training->num_nan == 0);
  j.mentions("2", StepTimes{1, {}, TrainingStatus{"evaluate", 40, 4, 1.7e308, 50, {}, 2}});
  j.mentions("1", StepTimes{1, {}, TrainingStatus{"train", 41, 4, 1.7e308, 100, {}, 1}});
  CHECK(j.table.status().front().training->loss == Approx(1.7e308));
  CHECK(j.table.status().front().training->num_nan == 3);
  j.mentions("1", times(0, {10ms, 11ms, 12ms, 11ms}));  // later words take nothing back
  CHECK(j.table.status().front().training->step == 40);
  j.fails("1", 1, 3);
  CHECK_FALSE(j.table.status().front().training.has_value());
}

TEST_CASE("Training: the rank that used the most GPU memory is named") {
  HangScript j;
  TrainingStatus status{"train", 41, 0, 0, 0, {}};
  j.mentions("1", StepTimes{1, {}, status});
  add_gpu_peak(status, 4096, 5);
  j.mentions("2", StepTimes{1, {}, status});
  CHECK(j.table.status().front().training->gpu_peak_rank == 5);
  add_gpu_peak(status, 8192, 1);
  j.mentions("1", StepTimes{1, {}, status});
  CHECK(j.table.status().front().training->gpu_peak_bytes == 8192);
  CHECK(j.table.status().front().training->gpu_peak_rank == 1);
}

TEST_CASE("Training: a framework that differs is named beside the others', the most skips count") {
  HangScript j;
  TrainingStatus status{"train", 41, 0, 0, 0, {}};
  status.framework = "PyTorch 2.15.0, gloo, 8 ranks";
  j.mentions("1", StepTimes{1, {}, status});
  status.skipped_steps = 7;
  j.mentions("2", StepTimes{1, {}, status});
  CHECK(j.table.status().front().training->framework == status.framework);
  CHECK(j.table.status().front().training->skipped_steps == 7);
  status.framework = "PyTorch 2.9.0, gloo, 8 ranks";
  j.mentions("2", StepTimes{1, {}, status});
  CHECK(j.table.status().front().training->framework ==
        "PyTorch 2.15.0, gloo, 8 ranks; PyTorch 2.9.0, gloo, 8 ranks");
  status.framework = "PyTorch 2.9.0, gloo, 8 ranks; PyTorch 2.15.0, gloo, 8 ranks";
  j.mentions("2", StepTimes{1, {}, status});
  CHECK(j.table.status().front().training->framework ==
        "PyTorch 2.15.0, gloo, 8 ranks; PyTorch 2.9.0, gloo, 8 ranks");
  status.framework = std::string(kMaxFrameworkBytes, 'x');
  j.mentions("2", StepTimes{1, {}, status});
  CHECK(j.table.status().front().training->framework == "PyTorch 2.15.0, gloo, 8 ranks");
}

TEST_CASE("Training: numbers of ranks that lying agents tell have a largest sum") {
  HangScript j;
  TrainingStatus status{"train", 41, 0, 0, 0, {}};
  status.num_ranks = status.num_nan = kMaxInt;
  for (const char* node : {"1", "2"}) j.mentions(node, StepTimes{1, {}, status});
  CHECK(j.table.status().front().training->num_nan == kMaxInt);
  CHECK(j.table.status().front().training->num_ranks == kMaxInt);
}

TEST_CASE("Training: parts of steps are averaged over the ranks of all nodes") {
  HangScript j;
  TrainingStatus status{"train", 41, 1, 1.0, 100, {}};
  status.steps = summary_of({0, 0.010, 0.003, 0.005, 0.004, 0.001, 0, 1000});
  j.mentions("1", StepTimes{1, {}, status});
  status.steps = summary_of({4, 0.010, 0.005, 0.005, 0.004, 0.003, 0, 1000});
  j.mentions("2", StepTimes{1, {}, status});
  const StepSummary steps = j.table.status().front().training->steps;
  CHECK(steps.num_ranks == 2);
  CHECK(steps.forward.worst_rank == 4);
  CHECK(std::abs(steps.forward.mean - 0.004) < 1e-9);
  CHECK(std::abs(steps.overlap() - 0.5) < 1e-9);
  CHECK(steps.least_overlap_rank == 4);
}

TEST_CASE("Stragglers: times of microseconds, and those of a round that is over, name nobody") {
  HangScript j;
  j.mentions("1", times(0, {10us, 11us}));
  j.mentions("2", times(2, {500us, 11us}));
  CHECK(j.table.status().front().stragglers.empty());
  j.mentions("2", times(2, {90ms, 11us}));
  CHECK(j.table.status().front().stragglers.size() == 1);
  j.fails("1", 1, 3);
  j.says("1", WorkersStopped{1, 1001});
  j.says("2", WorkersStopped{1, 1001});
  REQUIRE(j.round("1") == 2);
  CHECK(j.table.status().front().stragglers.empty());
}

}  // namespace
}  // namespace ddprun::membership
