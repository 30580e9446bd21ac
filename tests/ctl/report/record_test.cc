// SPDX-License-Identifier: Apache-2.0
// A job's lines and files, whole, damaged and hostile.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "common/text.h"
#include "ctl/report/facts.h"
#include "ctl/report/read_record.h"
#include "ctl/report/record_reader.h"
#include "tests/ctl/report/event_text.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temp_directory.h"

namespace ddprun::report {
namespace {

using ddprun::test::Contains;
using ddprun::test::event_text;
using ddprun::test::record_of;

TEST_CASE("LineSplitter: lines over pieces, one without an end, one that is too long") {
  std::vector<std::string> lines;
  LineSplitter splitter([&](std::string_view line) { lines.emplace_back(line); });
  splitter.add("a\nb");
  splitter.add("c\n\nd");
  splitter.end();
  CHECK(lines == std::vector<std::string>{"a", "bc", "", "d"});
  lines.clear();
  splitter.add(std::string(kMostLineBytes, 'x'));
  splitter.add("y\nz\n");
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].size() == kMostLineBytes);
  CHECK(lines[1] == "z");
}

TEST_CASE("fields: a malformed time is refused") {
  CHECK(parse_utc("1970-01-01T00:00:01.500Z") == 1.5);
  CHECK(parse_utc("2026-11-26T03:15:07Z") == 1'795'662'907.0);
  for (const char* text : {"", "Z", "2026-11-26", "2026-13-26T03:15:07Z", "2026-02-30T03:15:07Z",
                           "2026-11-26T25:15:07Z", "2026-11-26T03:15:-7Z", "2026-11-26T03:15:07",
                           "-026-11-26T03:15:07Z", "2026-11-26T03:15:07.1e9Z"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_utc(text));
  }
}

TEST_CASE("RecordReader: a job of two rounds, whole") {
  const Record record = record_of(
      event_text("begin", 0, R"("version":"0.1.0","program":"train","num_workers":2,"max_nodes":1)",
                 "n0", 0),
      event_text("round", 1, R"("num_nodes":1,"world_size":2,"waited_seconds":1)"),
      event_text("spawn", 2, R"("global_rank":1,"pid":12)"),
      event_text("exit", 10,
                 R"("global_rank":1,"pid":12,"kind":"signal","exit_code":null,"signal":"SIGKILL")"),
      event_text("restart", 11, R"("cause":"rank 1 was killed")"),
      event_text("round", 12, R"("num_nodes":1,"world_size":2,"waited_seconds":1)", "n0", 2),
      event_text(
          "verdict", 20,
          R"("state":"succeeded","exit_code":0,"reason":null,"rounds":2,"ledger":{"ettr":0.5,)"
          R"("seconds":{"running":9},"rounds":[{"round":1,"cause":"rank 1 (n0) was killed","steps_redone":3,)"
          R"("seconds":{"running":7,"stop":1}}]})",
          "n0", 2));
  CHECK(record.program == "train");
  REQUIRE(record.rounds.size() == 2);
  const RoundFacts& first = record.rounds.at(1);
  CHECK(first.cause == "rank 1 (n0) was killed");
  CHECK((first.began == 1.0 && first.ran == 2.0 && first.ended == 11.0));
  CHECK(first.seconds.value()[phase_index("running")] == 7);
  CHECK(first.steps_redone == 3);
  REQUIRE(record.failures.size() == 1);
  CHECK(record.failures[0].signal == "SIGKILL");
  CHECK(record.hosts_of_ranks.at("1") == "n0");
  CHECK(record.ledger.value().ettr == 0.5);
  CHECK(record.verdict.value().exit_code == 0);
  CHECK(record.nodes.at("n0").has_verdict);
  CHECK(record.last_word == 20);
  CHECK(record.sources[0].unreadable == 0);
}

TEST_CASE("RecordReader: lines that can't be read are counted, and the first is named") {
  const std::string whole = event_text("round", 1, R"("num_nodes":1)");
  const std::string far = R"({"event":"round","job":"mine","time":"9999-01-01T00:00:00Z"})";
  const Record record = record_of(whole, whole.substr(0, 40), "", "[]", R"({"event":"x"})", far,
                                  R"({"event":"round","job":"mine","time":7})",
                                  std::string(100, '['), "\xff\xfe", whole);
  const Source& source = record.sources[0];
  CHECK(source.lines == 10);
  CHECK(source.unreadable == 7);  // the empty line doesn't count
  CHECK_THAT(source.first_problem, Contains("line 2: no JSON object"));
  CHECK(record.rounds.size() == 1);
}

TEST_CASE("RecordReader: lines of other jobs are counted for them alone") {
  const Record record =
      record_of(event_text("round", 1, "", "n0", 1, "other"), event_text("round", 2));
  CHECK(record.other_jobs.at("other") == 1);
  CHECK(record.sources[0].others == 1);
  CHECK(record.last_word == 2);
}

TEST_CASE("RecordReader: events and keys that nobody knows change nothing, wrong types neither") {
  const Record record = record_of(
      event_text("sang", 1, R"("song":[1,2])"),
      event_text("round", 2,
                 R"("num_nodes":"many","world_size":1e300,"waited_seconds":"x","in_place":3)"),
      event_text("exit", 3, R"("kind":7,"global_rank":-4,"signal":{})"),
      event_text("progress", 4,
                 R"("ranks":[7,{"rank":"x"},{"rank":1e18,"loss":1},{"rank":0,"loss":"nan"}])"),
      event_text("node", 5, R"("cpu":"all","gpus":[3,{"gpu":-1,"use":1},{"gpu":0,"use":1e400}])"),
      event_text("verdict", 6, R"("ledger":[],"exit_code":"no")"));
  CHECK(record.rounds.at(1).world_size == 0);
  CHECK(record.readings.loss.empty());
  CHECK(record.readings.cpu.empty());
  CHECK(record.readings.gpu_use.empty());
  CHECK_FALSE(record.ledger);
  CHECK_FALSE(record.verdict.value().exit_code);
}

TEST_CASE(
    "RecordReader: an impossible reading is dropped, the time of a loss that is no number is "
    "kept") {
  const auto line = [](double at, const char* loss, int round = 1) {
    return event_text("progress", at,
                      concat(R"("ranks":[{"rank":3,"step":)", static_cast<int>(at), R"(,"loss":)",
                             loss, R"(,"step_seconds":1e39}])"),
                      "n0", round);
  };
  const Record record = record_of(
      line(5, "null"), line(10, "2.5"), line(15, "1e200"), line(20, "null"), line(25, "null", 2),
      event_text("node", 26, R"("memory_used_bytes":1e300,"gpus":[{"gpu":0,"watts":1e39}])"));
  CHECK(record.readings.step.empty());
  CHECK(record.readings.memory.empty());
  CHECK(record.readings.gpu_watts.empty());
  REQUIRE(record.readings.loss.rows().size() == 1);
  CHECK(record.readings.loss.rows()[0].most == 2.5);
  // The lines at 5 s and of round 2 don't count: no loss came before them.
  REQUIRE(record.readings.no_loss);
  CHECK(record.readings.no_loss->rank == 3);
  CHECK(record.readings.no_loss->step == 15);
  CHECK(record.readings.no_loss->at == 15);
  const std::vector<std::string> missing = facts_of(record).missing;
  CHECK(std::ranges::any_of(missing, [](const std::string& each) {
    return each.starts_with("losses from 0:00:15 on: that of rank 3 is no number at step 15");
  }));
  CHECK_FALSE(record_of(line(5, "null"), line(10, "2.5")).readings.no_loss);
}

TEST_CASE("RecordReader: rates of samples begin anew in each round, a rank's own time is counted") {
  const auto line = [](double at, int round, int samples) {
    return event_text("progress", at,
                      R"("ranks":[{"rank":3,"step":1,"loss":0.5,"samples":)" +
                          std::to_string(samples) +
                          R"(,"step_seconds":0.5,"exposed_seconds":0.125}])",
                      "n0", round);
  };
  const Record record =
      record_of(line(5, 1, 100), line(10, 1, 600), line(20, 2, 50), line(25, 2, 150));
  REQUIRE(record.readings.samples.rows().size() == 1);
  const TimeGrid::Row& samples = record.readings.samples.rows()[0];
  CHECK(samples.name == "3");
  CHECK(samples.most == 100);
  CHECK(samples.least == 20);
  CHECK(record.readings.own.rows()[0].mean() == Approx(0.375));
  CHECK(record.readings.step.rows()[0].mean() == Approx(0.5));
}

TEST_CASE("RecordReader: a reading says how it was since the one before, unless that is long ago") {
  const auto line = [](double at, const char* cpu) {
    return event_text("node", at, std::string(R"("cpu":)") + cpu);
  };
  const Record record = record_of(line(5, "0.5"), line(10, "0.5"), line(100, "0.25"));
  const TimeGrid& cpu = record.readings.cpu;
  CHECK(cpu.at(0, 7).value() == Approx(0.5));
  CHECK_FALSE(cpu.at(0, 50));
  CHECK(cpu.rows()[0].seconds == Approx(5.002));
}

class Files {
 public:
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(directory_.path(name)) << text;
    return directory_.path(name);
  }
  Record read(const std::string& job = "") { return read_record({directory_.path()}, job); }
  const std::string& path() const { return directory_.path(); }

 private:
  test::TempDirectory directory_;
};

constexpr char kEnd[] =
    R"({"version":1,"state":"worker_failed","exit_code":9,"reason":"rank 1 failed","job":{"id":"mine",)"
    R"("program":"train"},"seconds":12.5,"rounds":1,"first_failure":{"host":"n1","global_rank":1,)"
    R"("last_lines":["step 40"]},"written_by":{}})";

TEST_CASE("read_record: a file's content tells its kind, other files are passed over") {
  Files files;
  files.write("one.jsonl",
              event_text("begin", 0) + "\n" + event_text("round", 1));  // the last line has no end
  files.write("two.json", event_text("round", 1.5, "", "n1") + "\n");
  files.write("end.json", kEnd);
  files.write("train.json",
              R"({"world_size":2,"epochs":[{"epoch":1,"train_loss":null,"test_accuracy":0.5}]})");
  files.write("other.json", R"({"epochs":3})");
  files.write("notes.txt", "nothing");
  const Record record = files.read();
  CHECK(record.job == "mine");
  CHECK(record.nodes.size() == 2);
  CHECK(record.end_report.value().exit_code == 9);
  CHECK(record.end_report.value().last_lines == std::vector<std::string>{"step 40"});
  CHECK(record.train.value().epochs[0].test_accuracy == 0.5);
  CHECK(record.sources.size() == 4);
  REQUIRE(record.passed_over.size() == 1);
  CHECK_THAT(record.passed_over[0], Contains("other.json: nothing of a job's record"));
}

TEST_CASE("read_record: several jobs are an error that names them, --job says which") {
  Files files;
  files.write("one.jsonl",
              event_text("round", 1) + "\n" + event_text("round", 1, "", "n0", 1, "other") + "\n");
  CHECK_THAT(test::error_of([&] { files.read(); }).what(),
             Contains("records of several jobs: mine, other; say which with --job ID"));
  CHECK(files.read("other").job == "other");
  CHECK_THAT(test::error_of([&] { files.read("third"); }).what(),
             Contains("no record of job third there, but of: mine, other"));
}

TEST_CASE("read_record: a report alone is a record, a place without one is an error") {
  Files files;
  CHECK(test::code_of([&] { files.read(); }) == ErrorCode::kInvalidArgument);
  CHECK(test::code_of([&] { read_record({files.path() + "/gone"}, ""); }) ==
        ErrorCode::kInvalidArgument);
  CHECK(test::code_of([&] { read_record({"/dev/null"}, ""); }) == ErrorCode::kInvalidArgument);
  files.write("end.json", kEnd);
  CHECK(files.read().job == "mine");
}

TEST_CASE("read_record: a file that is named twice counts once") {
  Files files;
  const std::string path = files.write("one.jsonl", event_text("round", 1) + "\n");
  CHECK(read_record({path, files.path(), path}, "").sources.size() == 1);
}

TEST_CASE("read_record: a log directory's jobs have their events one directory deeper") {
  Files files;
  std::filesystem::create_directories(files.path() + "/mine_a/attempt_0");
  std::filesystem::create_directories(files.path() + "/mine_b");
  files.write("mine_a/events.n0.jsonl", event_text("round", 1) + "\n");
  files.write("mine_b/events.n1.jsonl", event_text("round", 1, "", "n1") + "\n");
  files.write("mine_b/other.jsonl", "no event");                // a file of the user's own
  files.write("mine_a/attempt_0/events.n2.jsonl", "no event");  // a worker's file
  const Record record = files.read();
  CHECK(record.nodes.size() == 2);
  CHECK(record.sources.size() == 2);
  CHECK(record.passed_over.empty());
}

TEST_CASE("read_record: a node whose clock is years off doesn't move the others") {
  Files files;
  files.write("a.jsonl", event_text("round", 1) + "\n");
  files.write("b.jsonl", event_text("round", 1, "", "n1") + "\n");
  files.write(
      "c.jsonl",
      R"({"event":"round","time":"1970-01-01T00:00:05Z","job":"mine","host":"n2","round":1})"
      "\n");
  const Record record = files.read();
  CHECK(record.last_word == 0);
  CHECK(record.sources[2].unreadable == 1);
}

}  // namespace
}  // namespace ddprun::report
