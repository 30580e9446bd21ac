// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/hang_verdict.h"

#include "tests/support/catch.h"

namespace ddprun::membership {
namespace {

using namespace std::chrono_literals;
using ddprun::test::Contains;

// Eight ranks on two nodes, all in step 1101 and in all_reduce #8812. They have been quiet for 6 s,
// and the limit is 5 s.
Inspected waiting_ranks(int num_ranks = 8) {
  Inspected inspected;
  inspected.world_size = num_ranks;
  for (int i = 0; i < num_ranks; ++i) {
    InspectedRank rank;
    rank.node_rank = i * 2 / num_ranks;
    rank.host = rank.node_rank == 0 ? "gpu01" : "gpu02";
    rank.report.global_rank = i;
    rank.report.local_rank = i % (num_ranks / 2);
    rank.report.pid = 100 + i;
    rank.report.phase = "train";
    rank.report.step = 1101;
    rank.report.steps_done = 1100;
    rank.report.collectives_begun = 8812;
    rank.report.collectives_done = 8811;
    rank.report.collective = "all_reduce";
    rank.report.quiet = 6s;
    rank.report.limit = 5s;
    rank.report.limit_if_blocked = 60s;
    rank.report.limit_if_working = 90s;
    rank.report.state = "S";
    inspected.ranks.push_back(rank);
  }
  return inspected;
}

RankReport& report(Inspected& inspected, std::size_t rank) { return inspected.ranks[rank].report; }

// The same, but rank 3 never came to the all-reduce.
Inspected one_outside() {
  Inspected inspected = waiting_ranks();
  report(inspected, 3).collectives_begun = 8811;
  report(inspected, 3).call = "read() of /data/part-07";
  report(inspected, 3).quiet = 6200ms;
  report(inspected, 3).frames = {"read", "load_batch(int)", "main"};
  return inspected;
}

TEST_CASE("compare_ranks: seven ranks in an all-reduce, one in read(): the one is named") {
  const Inspected inspected = one_outside();
  const HangFinding finding = compare_ranks(inspected);
  CHECK(finding.kind == HangKind::kHung);
  CHECK(finding.outlier == std::size_t{3});
  CHECK(finding.text ==
        "hang: rank 3 (node 0, gpu01, pid 103) in read() of /data/part-07 (step 1101) for 6.2 s; "
        "others: 7 ranks in all_reduce #8812 (step 1101)");
  CHECK(finding.lines.size() == 4);
  CHECK(finding.lines[2] == "  load_batch(int)");
  const WorkerFailure failure = hung_failure(finding, inspected);
  CHECK(failure.hung);
  CHECK(failure.global_rank == 3);
  CHECK(failure.local_rank == 3);
  CHECK(failure.exit_code == 124);
  CHECK(failure.last_lines == finding.lines);
}

TEST_CASE("compare_ranks: the operation in which the others wait for the outlier is named") {
  constexpr char kOperation[] = "all_reduce #127 (25.0 MiB float32, sum) of communicator 0";
  Inspected inspected = one_outside();
  CHECK(compare_ranks(inspected).operation.empty());  // no rank records its operations
  for (std::size_t i = 0; i < 8; ++i) {
    if (i == 3) continue;
    report(inspected, i).operation = kOperation;
    report(inspected, i).operation_time = 6s + std::chrono::milliseconds(i);
  }
  const HangFinding finding = compare_ranks(inspected);
  const std::string expected =
      std::string("rank 3 never came to ") + kOperation + "; ranks 0–2, 4–7 wait in it for 6.0 s";
  CHECK(finding.operation == expected);
  CHECK(finding.lines.front() == expected);
  const WorkerFailure failure = hung_failure(finding, inspected);
  CHECK(failure.operation == expected);
  CHECK_THAT(failure.last_lines.front(), Contains("state S"));  // the verdict doesn't say it again
  report(inspected, 3).operation = "barrier #4 of communicator 1";
  CHECK_THAT(compare_ranks(inspected).operation, Contains(": it is in barrier #4 of"));
  report(inspected, 3).operation = kOperation;
  CHECK(compare_ranks(inspected).operation.empty());
}

// Four ranks of a program that knows nothing of ddprun. Their stacks show that three of them wait.
Inspected foreign_ranks() {
  Inspected inspected = waiting_ranks(4);
  for (std::size_t i = 0; i < 4; ++i) {
    RankReport& each = report(inspected, i);
    each.foreign = true;
    each.quiet = each.unmoved = 57s;
    each.limit = each.limit_if_blocked = 10min;
    each.limit_if_working.reset();
    each.frames = {"pthread_cond_wait", "c10d::Work::wait(std::chrono::milliseconds)", "main"};
  }
  report(inspected, 2).frames = {"clock_nanosleep", "time_sleep", "main"};
  return inspected;
}

TEST_CASE(
    "compare_ranks: three foreign ranks wait in a process group for the fourth for a minute") {
  Inspected inspected = foreign_ranks();
  HangFinding finding = compare_ranks(inspected);
  CHECK(finding.kind == HangKind::kHung);
  CHECK(finding.outlier == std::size_t{2});
  CHECK(finding.text ==
        "hang: rank 2 (node 1, gpu02, pid 102) in clock_nanosleep for 57.0 s; others: 3 ranks in "
        "c10d::Work::wait(std::chrono::milliseconds)");
  CHECK(!acts_upon(finding, inspected, HangAction::kRestart));  // not before its limit
  for (std::size_t i = 0; i < 4; ++i) report(inspected, i).quiet = 0s;
  report(inspected, 2).quiet = 10min;
  for (const std::size_t i : {0, 1, 3}) {  // NCCL's ranks spin
    report(inspected, i).frames = {"0x7f00 (libcuda.so.1)", "cudaStreamSynchronize", "main"};
    report(inspected, i).activity = RankActivity::kWorks;
    report(inspected, i).unmoved = 10min;
  }
  finding = compare_ranks(inspected);
  CHECK(finding.outlier == std::size_t{2});
  CHECK(!acts_upon(finding, inspected, HangAction::kDefault));
  CHECK(acts_upon(finding, inspected, HangAction::kRestart));
  report(inspected, 0).unmoved = 1s;  // rank 0 reads its data, so the others don't need rank 2
  CHECK(!acts_upon(compare_ranks(inspected), inspected, HangAction::kRestart));
}

TEST_CASE(
    "compare_ranks: a foreign rank that computes while others wait is told, not one that writes") {
  Inspected inspected = foreign_ranks();
  RankReport& busy = report(inspected, 2);
  busy.quiet = 0s;
  const HangFinding finding = compare_ranks(inspected);
  CHECK(finding.kind == HangKind::kWorks);
  CHECK_THAT(finding.text, Contains("in clock_nanosleep for 57.0 s: it computes"));
  busy.unmoved = 3s;  // the rank writes a checkpoint
  CHECK(compare_ranks(inspected).kind == HangKind::kNoHang);
}

TEST_CASE("compare_ranks: foreign ranks that wait alike, or for nobody, have their whole limit") {
  Inspected inspected = foreign_ranks();
  for (std::size_t i = 0; i < 4; ++i) report(inspected, i).frames = {"cudaDeviceSynchronize"};
  CHECK(compare_ranks(inspected).kind == HangKind::kNoHang);
  for (std::size_t i = 0; i < 4; ++i) report(inspected, i).frames = {"epoll_wait"};
  CHECK(compare_ranks(inspected).kind == HangKind::kNoHang);
  report(inspected, 0).frames = {"accept"};
  CHECK(compare_ranks(inspected).kind == HangKind::kNoHang);
  inspected = foreign_ranks();
  report(inspected, 3).frames.clear();  // this rank may be the one
  CHECK(compare_ranks(inspected).kind == HangKind::kNoHang);
  CHECK(compare_ranks(inspected).again_in == std::chrono::milliseconds(10min - 57s));
  inspected = foreign_ranks();
  report(inspected, 0).frames = {"main (train_nccl.py:40)"};
  CHECK_THAT(compare_ranks(inspected).text, Contains("ranks 1, 3 in c10d::Work"));
  inspected = foreign_ranks();
  for (std::size_t i = 0; i < 4; ++i) report(inspected, i).quiet = 50s;  // like a first compilation
  CHECK(compare_ranks(inspected).kind == HangKind::kNoHang);
}

TEST_CASE("compare_ranks: a rank that waits is a victim, however long it has been quiet") {
  Inspected inspected = one_outside();
  for (const std::size_t rank : {0, 5, 7}) report(inspected, rank).quiet = 60s;
  CHECK(compare_ranks(inspected).outlier == std::size_t{3});
}

TEST_CASE("compare_ranks: a checkpoint of rank 0 that the others wait for is no hang") {
  Inspected inspected = waiting_ranks();
  report(inspected, 0).phase = "checkpoint";
  report(inspected, 0).collectives_done = 8812;
  report(inspected, 0).quiet = 20s;
  report(inspected, 0).limit = 30min;
  const HangFinding finding = compare_ranks(inspected);
  CHECK(finding.kind == HangKind::kNoHang);
  CHECK_THAT(finding.text, Contains("rank 0"));
  CHECK_THAT(finding.text, Contains("may take 1800.0 s (phase checkpoint)"));
  CHECK(finding.again_in == std::chrono::milliseconds(30min - 20s));
}

TEST_CASE("compare_ranks: an outlier that works gets more time, then it is hung") {
  Inspected inspected = one_outside();
  report(inspected, 3).activity = RankActivity::kWorks;
  report(inspected, 3).cpu_percent = 98;
  report(inspected, 3).work = "GPU 97 %";
  HangFinding finding = compare_ranks(inspected);
  CHECK(finding.kind == HangKind::kWorks);
  CHECK_THAT(finding.text, Contains("working (98 % CPU, GPU 97 %), may take 90.0 s"));
  CHECK(finding.again_in == 83'800ms);
  report(inspected, 3).quiet = 91s;
  CHECK(acts_upon(compare_ranks(inspected), inspected, HangAction::kDefault));
  report(inspected, 3).limit_if_working.reset();  // it is in a phase that may take any time
  finding = compare_ranks(inspected);
  CHECK(finding.kind == HangKind::kWorks);
  CHECK_FALSE(finding.again_in.has_value());
}

TEST_CASE("compare_ranks: a blocked rank is told at its limit, and acted upon when that lasts") {
  Inspected inspected = one_outside();
  HangFinding finding = compare_ranks(inspected);
  CHECK(finding.kind == HangKind::kHung);
  CHECK_FALSE(acts_upon(finding, inspected, HangAction::kRestart));
  CHECK(finding.acted_upon_at == 60s);
  CHECK(finding.again_in == 53'800ms);
  report(inspected, 3).quiet = 60s;
  finding = compare_ranks(inspected);
  CHECK(acts_upon(finding, inspected, HangAction::kDefault));
  CHECK_FALSE(finding.again_in.has_value());
  report(inspected, 3).quiet = 6s;
  report(inspected, 3).limit_if_blocked = 5s;  // set by the user
  CHECK(acts_upon(compare_ranks(inspected), inspected, HangAction::kDefault));
}

TEST_CASE("compare_ranks: it takes half an hour when ranks have ended already, or are not seen") {
  Inspected inspected = one_outside();
  SECTION("the last upload of one rank") { inspected.num_finished = 1; }
  SECTION("it may wait for one of those") { inspected.silent_nodes = {"node 2 (gpu03, 10.0.0.3)"}; }
  inspected.world_size = 9;
  report(inspected, 3).quiet = 29min;
  CHECK(compare_ranks(inspected).kind == HangKind::kHung);
  CHECK_FALSE(acts_upon(compare_ranks(inspected), inspected, HangAction::kDefault));
  report(inspected, 3).quiet = 30min;
  CHECK(acts_upon(compare_ranks(inspected), inspected, HangAction::kDefault));
}

// Ranks of a program that counts no collectives, all in their own code.
Inspected uncounted_ranks(int num_ranks) {
  Inspected inspected = waiting_ranks(num_ranks);
  for (InspectedRank& rank : inspected.ranks) {
    rank.report.collectives_begun = rank.report.collectives_done = 0;
    rank.report.call = "futex()";
    rank.report.quiet = 100s;
  }
  return inspected;
}

TEST_CASE("compare_ranks: one that waits is not blamed while another one works") {
  for (const int num_ranks : {2, 8}) {
    for (const int num_working : {1, num_ranks / 2, num_ranks - 1}) {
      CAPTURE(num_ranks, num_working);
      Inspected inspected = uncounted_ranks(num_ranks);
      for (int i = num_ranks - num_working; i < num_ranks; ++i) {
        RankReport& works = report(inspected, static_cast<std::size_t>(i));
        works.activity = RankActivity::kWorks;
        works.call = "";
        works.quiet = 4s;
      }
      CHECK_FALSE(acts_upon(compare_ranks(inspected), inspected, HangAction::kDefault));
      for (InspectedRank& rank : inspected.ranks) rank.report.quiet = 80s;
      const HangFinding finding = compare_ranks(inspected);
      CHECK(finding.kind == HangKind::kWorks);
      CHECK_FALSE(acts_upon(finding, inspected, HangAction::kDefault));
      for (InspectedRank& rank : inspected.ranks) rank.report.quiet = 91s;
      CHECK(acts_upon(compare_ranks(inspected), inspected, HangAction::kDefault));
    }
  }
}

TEST_CASE("compare_ranks: a rank that spins in a collective does no work") {
  Inspected inspected = one_outside();
  for (const std::size_t i : {0, 1, 2, 4, 5, 6, 7}) {
    report(inspected, i).activity = RankActivity::kWorks;
  }
  report(inspected, 3).quiet = 61s;
  CHECK(acts_upon(compare_ranks(inspected), inspected, HangAction::kDefault));
}

TEST_CASE("compare_ranks: stages of a pipeline count their sends each for themselves") {
  Inspected inspected = waiting_ranks(4);
  for (const std::size_t i : {0, 3}) {
    report(inspected, i).collectives_begun = 11;
    report(inspected, i).collectives_done = 10;
  }
  report(inspected, 0).collective = "send";
  report(inspected, 1).collective = report(inspected, 2).collective = "recv";
  for (std::size_t i = 0; i < 4; ++i) report(inspected, i).quiet = 61s;
  const HangFinding finding = compare_ranks(inspected);
  CHECK(acts_upon(finding, inspected, HangAction::kDefault));
  CHECK_FALSE(finding.outlier.has_value());
}

TEST_CASE("compare_ranks: the messages of a gather tell no rank from the others") {
  Inspected inspected = waiting_ranks();
  report(inspected, 0).collectives_begun += 6;  // the root of one gather has had seven messages
  report(inspected, 0).collectives_done += 6;
  for (std::size_t i = 0; i < 8; ++i) report(inspected, i).shared_collectives_done = 8810;
  CHECK_FALSE(compare_ranks(inspected).outlier.has_value());
  for (std::size_t i = 0; i < 8; ++i) {
    report(inspected, i).operation = "all_reduce #8811 (25.0 MiB float32, sum) of communicator 0";
  }
  report(inspected, 7).operation = "barrier #3 of communicator 2";
  CHECK_THAT(compare_ranks(inspected).text,
             Contains("7 ranks in all_reduce #8811 (step 1101)") &&
                 Contains("rank 7 in barrier #3 of communicator 2 (step 1101)"));

  report(inspected, 5).shared_collectives_done = 8809;  // one collective behind
  CHECK(compare_ranks(inspected).outlier == std::size_t{5});
}

TEST_CASE("compare_ranks: a stopped process is said to be stopped, and nothing is done") {
  Inspected inspected = one_outside();
  report(inspected, 3).activity = RankActivity::kStopped;
  report(inspected, 3).state = "T";
  report(inspected, 3).quiet = 100ms;
  const HangFinding finding = compare_ranks(inspected);
  CHECK(finding.kind == HangKind::kStopped);
  CHECK_THAT(finding.text, Contains("rank 3 (node 0, gpu01, pid 103) is stopped (state T)"));
  CHECK_FALSE(acts_upon(finding, inspected, HangAction::kRestart));
}

TEST_CASE("compare_ranks: a rank at a prompt or in a debugger is held by somebody, not hung") {
  Inspected inspected = foreign_ranks();
  RankReport& held = report(inspected, 2);
  const auto verdict = [&] {
    for (std::size_t i = 0; i < 4; ++i) report(inspected, i).quiet = 11min;
    const HangFinding finding = compare_ranks(inspected);
    CHECK_FALSE(acts_upon(finding, inspected, HangAction::kRestart));
    CHECK(finding.outlier == std::size_t{2});
    return finding.kind == HangKind::kStopped ? finding.text : "not held: " + finding.text;
  };
  SECTION("it reads from the terminal") {
    held.call = "read() of /dev/pts/3";
    CHECK_THAT(verdict(), Contains("rank 2 (node 1, gpu02, pid 102) waits for input (read() of "
                                   "/dev/pts/3), not hung; the others wait: 3 ranks in c10d::"));
  }
  SECTION("it reads its stdin") {
    held.call = "read() of stdin (pipe:[4711])";
    CHECK_THAT(verdict(), Contains("waits for input (read() of stdin (pipe:[4711]))"));
  }
  SECTION("it is at Python's prompt") {
    held.call = "select()";
    held.frames = {"select (libc.so.6)", "PyOS_Readline (python3.11)", "main"};
    CHECK_THAT(verdict(), Contains("waits for input (select())"));
  }
  SECTION("pdb and debugpy, in the stack") {
    for (const char* frame : {"interaction (pdb.py:357)",
                              "do_wait_suspend (debugpy/_vendored/pydevd/pydevd.py:2061)"}) {
      held.frames = {"select (libc.so.6)", frame, "main"};
      CHECK_THAT(verdict(), Contains("is in a debugger, not hung"));
    }
  }
  SECTION("debugpy, without Python's stack") {
    held.has_debugger = true;
    CHECK_THAT(verdict(), Contains("is in a debugger, not hung"));
  }
  SECTION("with a page, where others wait in a collective") {
    inspected = one_outside();
    report(inspected, 3).has_debugger = true;
    report(inspected, 3).quiet = 11min;
    CHECK(compare_ranks(inspected).kind == HangKind::kStopped);
    CHECK_FALSE(acts_upon(compare_ranks(inspected), inspected, HangAction::kDefault));
  }
}

TEST_CASE("compare_ranks: a debugger in a rank that waits, or goes on, hides no other's hang") {
  Inspected inspected = foreign_ranks();
  report(inspected, 0).has_debugger = true;  // it waits for rank 2
  CHECK(compare_ranks(inspected).kind == HangKind::kHung);
  CHECK(compare_ranks(inspected).outlier == std::size_t{2});
  report(inspected, 0).frames = {"main (train.py:7)"};
  report(inspected, 0).quiet = 1s;
  CHECK(compare_ranks(inspected).outlier == std::size_t{2});
  report(inspected, 0).frames = {"cudaStreamSynchronize (libcudart.so.13)"};  // as NCCL waits
  report(inspected, 0).quiet = 11min;
  CHECK(compare_ranks(inspected).kind != HangKind::kStopped);
  inspected = one_outside();
  report(inspected, 5).has_debugger = true;  // it is in the all-reduce
  CHECK(compare_ranks(inspected).outlier == std::size_t{3});
}

TEST_CASE("compare_ranks: all ranks in one collective may be a slow network: more time") {
  Inspected inspected = waiting_ranks();
  HangFinding finding = compare_ranks(inspected);
  CHECK(finding.kind == HangKind::kWorks);
  CHECK_FALSE(finding.outlier.has_value());
  CHECK_THAT(finding.text, Contains("8 ranks in all_reduce #8812"));
  for (std::size_t i = 0; i < 8; ++i) report(inspected, i).quiet = 61s;
  finding = compare_ranks(inspected);
  CHECK(finding.kind == HangKind::kHung);
  CHECK(acts_upon(finding, inspected, HangAction::kDefault));
  CHECK_FALSE(finding.outlier.has_value());
  CHECK(finding.quiet == 61s);
  CHECK(finding.text == "hang: 8 ranks in all_reduce #8812 (step 1101) for 61.0 s");
  CHECK(finding.lines.front() == "of rank 0 (node 0, gpu01, pid 100):");
  const WorkerFailure failure = hung_failure(finding, inspected);
  CHECK(failure.global_rank == -1);
  CHECK(failure.node_rank == -1);
  CHECK(failure.host.empty());
  CHECK(failure.hung);
  CHECK(failure.exit_code == 124);
  CHECK(failure.note == "8 ranks in all_reduce #8812 (step 1101)");
}

TEST_CASE("compare_ranks: the silent node is named if no rank is outside a collective") {
  Inspected inspected = waiting_ranks();
  inspected.world_size = 16;
  inspected.silent_nodes = {"node 2 (gpu03, 10.0.0.3)", "node 3 (gpu04, 10.0.0.4)"};
  report(inspected, 6).collectives_begun = 8810;  // the rank waits for that node, too
  report(inspected, 6).collectives_done = 8809;
  for (std::size_t i = 0; i < 8; ++i) report(inspected, i).quiet = 31min;
  const HangFinding finding = compare_ranks(inspected);
  CHECK(finding.kind == HangKind::kHung);
  CHECK_FALSE(finding.outlier.has_value());
  CHECK_THAT(hung_failure(finding, inspected).note,
             Contains("; 8 of 16 ranks not seen; no answer from node 2 (gpu03, 10.0.0.3), node 3 "
                      "(gpu04, 10.0.0.4)"));
}

TEST_CASE("compare_ranks: a job's only rank is the outlier") {
  Inspected inspected = waiting_ranks(2);
  inspected.ranks.pop_back();
  inspected.world_size = 1;
  report(inspected, 0).quiet = 61s;
  CHECK(compare_ranks(inspected).outlier == std::size_t{0});
  inspected.world_size = 2;  // the rank is not the only one then
  inspected.silent_nodes = {"node 1 (gpu02, 10.0.0.2)"};
  CHECK_FALSE(compare_ranks(inspected).outlier.has_value());
}

TEST_CASE("compare_ranks: foreign ranks have no part in a job whose other ranks write a page") {
  Inspected inspected = waiting_ranks();
  report(inspected, 0).foreign = true;  // it is within its 10 minutes, and comes first
  report(inspected, 0).limit = 10min;
  for (std::size_t i = 0; i < 8; ++i) report(inspected, i).quiet = 61s;
  const HangFinding finding = compare_ranks(inspected);
  CHECK(finding.kind == HangKind::kHung);
  CHECK_FALSE(finding.outlier.has_value());
  CHECK(acts_upon(finding, inspected, HangAction::kDefault));

  for (std::size_t i = 0; i < 8; ++i) report(inspected, i).quiet = i == 0 ? 11min : 1s;
  CHECK(compare_ranks(inspected).kind == HangKind::kNoHang);
  CHECK_FALSE(compare_ranks(inspected).again_in.has_value());
}

TEST_CASE("compare_ranks: a rank that is stopped inside a collective is stopped, not hung") {
  Inspected inspected = waiting_ranks();
  for (std::size_t i = 0; i < 8; ++i) report(inspected, i).quiet = 61s;
  report(inspected, 5).activity = RankActivity::kStopped;
  report(inspected, 5).state = "t";
  report(inspected, 5).quiet = 1s;
  for (const bool another_is_outside : {false, true}) {
    if (another_is_outside) report(inspected, 3).collectives_begun = 8811;
    const HangFinding finding = compare_ranks(inspected);
    CHECK(finding.kind == HangKind::kStopped);
    CHECK_THAT(finding.text, Contains("rank 5 (node 1, gpu02, pid 105) is stopped (state t)"));
    CHECK_FALSE(acts_upon(finding, inspected, HangAction::kDefault));
  }
}

TEST_CASE("compare_ranks: all inside, one in an earlier collective: it is named, with more time") {
  Inspected inspected = waiting_ranks();
  report(inspected, 6).collectives_begun = 8810;
  report(inspected, 6).collectives_done = 8809;
  const HangFinding finding = compare_ranks(inspected);
  CHECK(finding.kind == HangKind::kWorks);
  CHECK(finding.outlier == std::size_t{6});
}

TEST_CASE(
    "compare_ranks: the rank with the fewest steps is the outlier if there are no collectives") {
  Inspected inspected = waiting_ranks();
  for (std::size_t i = 0; i < 8; ++i) {
    report(inspected, i).collectives_begun = report(inspected, i).collectives_done = 0;
    report(inspected, i).call = "futex()";
  }
  report(inspected, 5).step = 1100;
  CHECK(compare_ranks(inspected).outlier == std::size_t{5});
}

TEST_CASE(
    "compare_ranks: equal steps: the smallest group of places, or the only one that is stalled, "
    "all alike: nobody") {
  Inspected inspected = waiting_ranks();
  for (std::size_t i = 0; i < 8; ++i) {
    report(inspected, i).collectives_begun = report(inspected, i).collectives_done = 0;
    report(inspected, i).call = "futex()";
  }
  report(inspected, 2).quiet = 7s;
  CHECK(compare_ranks(inspected).kind == HangKind::kHung);
  CHECK_FALSE(compare_ranks(inspected).outlier.has_value());
  for (const std::size_t i : {0, 1, 3, 4, 5, 6, 7}) report(inspected, i).quiet = 1s;
  CHECK(compare_ranks(inspected).outlier == std::size_t{2});
  report(inspected, 4).call = "read() of /data/x";
  CHECK(compare_ranks(inspected).outlier == std::size_t{4});
}

TEST_CASE("compare_ranks: ranks that went on are no hang") {
  Inspected inspected = waiting_ranks();
  for (std::size_t i = 0; i < 8; ++i) report(inspected, i).quiet = 200ms;
  const HangFinding finding = compare_ranks(inspected);
  CHECK(finding.kind == HangKind::kNoHang);
  CHECK_FALSE(finding.again_in.has_value());
  CHECK(compare_ranks({}).kind == HangKind::kNoHang);
}

TEST_CASE("compare_ranks: ranks that were not seen are counted") {
  Inspected inspected = one_outside();
  inspected.world_size = 16;
  inspected.silent_nodes = {"node 2 (gpu03, 10.0.0.3)"};
  CHECK_THAT(compare_ranks(inspected).text,
             Contains("; 8 of 16 ranks not seen; no answer from node 2 (gpu03, 10.0.0.3)"));
  inspected.num_finished = 8;
  CHECK_THAT(compare_ranks(inspected).text, Contains("; 8 of 16 ranks have finished; no answer"));
}

TEST_CASE("compare_ranks: eight of thousands of silent nodes are named") {
  Inspected inspected = one_outside();
  inspected.world_size = 80'000;
  for (int node = 2; node < 10'000; ++node) {
    inspected.silent_nodes.push_back("node " + std::to_string(node));
  }
  const std::string text = compare_ranks(inspected).text;
  CHECK_THAT(text, Contains("no answer from node 2, node 3"));
  CHECK_THAT(text, Contains(", node 9 and 9990 more"));
  CHECK(text.size() < 500);
}

TEST_CASE("acts_upon: foreign ranks only when asked to, and only when every rank is blocked") {
  Inspected inspected = waiting_ranks();
  for (auto& rank : inspected.ranks) {
    rank.report.foreign = true;
    rank.report.phase.clear();
    rank.report.call = "futex()";
    rank.report.quiet = 11min;
    rank.report.limit = 10min;
  }
  HangFinding finding = compare_ranks(inspected);
  REQUIRE(finding.kind == HangKind::kHung);
  CHECK_FALSE(acts_upon(finding, inspected, HangAction::kDefault));
  CHECK_FALSE(acts_upon(finding, inspected, HangAction::kReport));
  CHECK(acts_upon(finding, inspected, HangAction::kRestart));

  report(inspected, 1).quiet = 9min;
  finding = compare_ranks(inspected);
  CHECK_FALSE(acts_upon(finding, inspected, HangAction::kRestart));
  CHECK(finding.again_in == std::chrono::milliseconds(1min));

  // It spins or computes, and nobody can tell which.
  report(inspected, 1).activity = RankActivity::kWorks;
  report(inspected, 1).quiet = 0s;
  CHECK_FALSE(acts_upon(compare_ranks(inspected), inspected, HangAction::kRestart));

  report(inspected, 1) = report(inspected, 2);
  inspected.ranks.pop_back();  // one rank is not seen
  finding = compare_ranks(inspected);
  CHECK_FALSE(acts_upon(finding, inspected, HangAction::kRestart));
  // Nothing needs a time: the agents' next message will do.
  CHECK_FALSE(finding.again_in.has_value());
}

TEST_CASE("acts_upon: report and off never act") {
  Inspected inspected = one_outside();
  report(inspected, 3).quiet = 61s;
  const HangFinding finding = compare_ranks(inspected);
  CHECK(acts_upon(finding, inspected, HangAction::kDefault));
  CHECK(acts_upon(finding, inspected, HangAction::kRestart));
  CHECK_FALSE(acts_upon(finding, inspected, HangAction::kReport));
  CHECK_FALSE(acts_upon(finding, inspected, HangAction::kOff));
}

}  // namespace
}  // namespace ddprun::membership
