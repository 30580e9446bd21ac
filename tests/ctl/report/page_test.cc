// SPDX-License-Identifier: Apache-2.0
// The page and the figures of a record; hostile words, and parts that are missing.
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>

#include "common/text.h"
#include "ctl/report/charts.h"
#include "ctl/report/facts.h"
#include "ctl/report/record_reader.h"
#include "ctl/report/report_page.h"
#include "tests/ctl/report/event_text.h"
#include "tests/support/catch.h"

namespace ddprun::report {
namespace {

using ddprun::test::Contains;
using ddprun::test::event_text;
using ddprun::test::record_of;

std::string page_of(const Record& record) {
  const Facts facts = facts_of(record);
  return report_page(record, facts, charts_of(record, facts));
}

int count_of(std::string_view text, std::string_view part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

bool lacks(const Facts& facts, const std::string& what) {
  for (const std::string& each : facts.missing) {
    if (each.find(what) != std::string::npos) return true;
  }
  return false;
}

Record whole_record() {
  const auto at = [](double seconds, const char* name, const std::string& keys) {
    return event_text(name, seconds, keys);
  };
  return record_of(
      at(0, "begin", R"("program":"train","num_workers":2)"),
      at(1, "round", R"("num_nodes":1,"world_size":2,"waited_seconds":1)"),
      at(2, "spawn", R"("global_rank":0)"), at(3, "spawn", R"("global_rank":1)"),
      at(8, "progress",
         R"("ranks":[{"rank":0,"step_seconds":0.2,"loss":1},{"rank":1,"step_seconds":0.3,"loss":2}])"),
      at(8, "node",
         R"("cpu":0.5,"received_bytes_per_second":1e6,"sent_bytes_per_second":2e6,"gpus":[{"gpu":0,"use":0.5}])"),
      at(12, "exit", R"("kind":"success","global_rank":0)"),
      at(13, "exit", R"("kind":"error","global_rank":1,"exit_code":9,"pid":12)"),
      at(14, "verdict",
         R"("state":"worker_failed","exit_code":9,"reason":"rank 1 failed","first_failure":"rank 1 on n0","rounds":1)"));
}

TEST_CASE("clean text: characters that hide, turn or break a line are written out") {
  CHECK(clean_text("a\nb\x1b[2J") == "a\\nb\\x1b[2J");
  CHECK(clean_text("a\xE2\x80\xAEz") == "a\\u202ez");  // a mark of right-to-left text
  CHECK(clean_text("a\xE2\x80\x8Bz\xEF\xBB\xBF") == "a\\u200bz\\ufeff");
  CHECK(clean_text("\xC2\x9B"
                   // A control character that is one byte in other encodings.
                   "31m") == "\\u009b31m");
  CHECK(clean_text("\xff\xC3") == "\xEF\xBF\xBD\xEF\xBF\xBD");
  CHECK(clean_text("größe – 木") == "größe – 木");
  CHECK(clean_text("öööö", 5) == "öö…");
  CHECK(html_text("<a b=\"c\" d='e'>&") == "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;");
}

TEST_CASE("facts: they say how the job ended, and where the time went as far as events tell") {
  const Record record = whole_record();
  const Facts facts = facts_of(record);
  CHECK(facts.is_over);
  CHECK_FALSE(facts.succeeded);
  CHECK(facts.exit_code == 9);
  CHECK(facts.began == "2026-11-26T03:00:00Z");
  CHECK(facts.ended == "2026-11-26T03:00:14Z");
  CHECK((facts.num_nodes == 1 && facts.world_size == 2 && facts.num_rounds == 1));
  CHECK(facts.phases == PhaseSeconds{1, 0, 2, 0, 0, 11, 0, 0, 0, 0});
  CHECK(facts.rounds[0].begin == 0);
  REQUIRE(facts.slow_ranks.size() == 1);
  CHECK(facts.slow_ranks[0].rank == "1");
  CHECK(facts.slow_ranks[0].host == "n0");
  CHECK(facts.slow_ranks[0].factor == Approx(1.5));
}

TEST_CASE("facts: a round whose end nobody told lasted until the last word of it") {
  const Record record = record_of(event_text("round", 1), event_text("spawn", 2),
                                  event_text("node", 30, R"("cpu":1)"));
  CHECK(facts_of(record).phases == PhaseSeconds{0, 0, 1, 0, 0, 28, 0, 0, 0, 0});
}

TEST_CASE("facts: parts that a record lacks are listed") {
  const Record whole = whole_record();
  const Facts facts = facts_of(whole);
  CHECK(lacks(facts, "the rendezvous' ledger"));
  CHECK(lacks(facts, "accuracy"));
  CHECK(lacks(facts, "own share"));
  CHECK_FALSE(lacks(facts, "the verdict:"));
  CHECK_FALSE(lacks(facts, "GPUs"));
  CHECK_FALSE(lacks(facts, "progress"));

  Record cut =
      record_of(event_text("round", 1, R"("num_nodes":3,"world_size":3)"), R"({"event":"prog)");
  cut.lost = 4;
  const Facts killed = facts_of(cut);
  CHECK(lacks(killed, "the verdict:"));
  CHECK(lacks(killed, "the events of 2 of the 3 nodes of round 1"));
  CHECK(lacks(killed, "progress"));
  CHECK(lacks(killed, "GPUs"));
  CHECK(lacks(killed, "1 line that can't be read"));
  CHECK(lacks(killed, "4 events that a full disk has cost"));

  Record silent =
      record_of(event_text("round", 1, "", "n1"), event_text("verdict", 2, R"("exit_code":0)"));
  CHECK(lacks(facts_of(silent), "no verdict of n1"));
}

TEST_CASE("page: a whole record makes one document that loads nothing else") {
  const std::string page = page_of(whole_record());
  for (const char* part :
       {"worker failed", "rank 1 failed", "Where the time went", "Rounds and their causes",
        "Steps of each rank", "Network", "GPUs", "How workers ended", "exit code 9",
        "What this record lacks", "Sources", "Content-Security-Policy"}) {
    CAPTURE(part);
    CHECK_THAT(page, Contains(part));
  }
  for (const char* outside : {"src=", "http://", "https://", "url(", " style=", "@import"}) {
    CAPTURE(outside);
    CHECK(page.find(outside) == std::string::npos);
  }
  const std::size_t begin = page.find('{', page.find("id=\"charts\""));
  const auto plots = boost::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  for (const char* chart : {"time_spent", "rounds", "step_time", "network", "cpu", "gpu_use"}) {
    CAPTURE(chart);
    CHECK(plots.as_object().contains(chart));
    CHECK_THAT(page, Contains(concat("id=\"chart-", chart, '"')));
  }
  CHECK(plots.at("step_time").at("lines").at(1).at("y").at(7).to_number<double>() == 0.3);
}

TEST_CASE("page: nothing but one event, or a report, is a page all the same") {
  CHECK_THAT(page_of(record_of(event_text("begin", 0))),
             Contains("Nothing here says how the job ended."));
  Record record = test::empty_record();
  record.end_report = EndReport{.job = "mine", .state = "succeeded", .exit_code = 0, .seconds = 5};
  const std::string page = page_of(record);
  CHECK_THAT(page, Contains("succeeded") && Contains("all events"));
}

TEST_CASE("page: a run whose workers told no steps is not called training") {
  Record record = whole_record();
  record.ledger = LedgerSums{.ettr = 0.5, .seconds = {}};
  record.ledger->seconds[phase_index("running")] = 5;
  CHECK_THAT(page_of(record), Contains("time in training (ETTR)") &&
                                  Contains("was training that counted") &&
                                  !Contains("that workers ran"));
  record.readings.has_progress = false;
  CHECK_THAT(page_of(record), Contains("time that workers ran") && !Contains("time in training") &&
                                  Contains("was the workers&#39; run"));
}

TEST_CASE("page: words of hosts, causes and files are text, whatever they are") {
  const std::string bad = R"(\"'><script>alert(1)</script><img src=x onerror=y>\u202e&amp;)";
  Record record = record_of(
      event_text("begin", 0, R"("program":")" + bad + R"(","version":")" + bad + "\"", bad),
      event_text("round", 1, R"("num_nodes":1)", bad),
      event_text("spawn", 2, R"("global_rank":0)", bad),
      event_text("node", 3, R"("cpu":0.5,"received_bytes_per_second":1,"gpus":[{"gpu":0,"use":1}])",
                 bad),
      event_text("exit", 4, R"("kind":")" + bad + R"(","signal":")" + bad + "\"", bad),
      event_text("restart", 5, R"("cause":")" + bad + "\"", bad),
      event_text("verdict", 6,
                 R"("state":")" + bad + R"(","reason":")" + bad + R"(","first_failure":")" + bad +
                     R"(","ledger":{"rounds":[{"round":1,"stragglers":[")" + bad +
                     R"("],"went":[")" + bad + R"("]}]})",
                 bad));
  REQUIRE(record.sources[0].unreadable == 0);
  record.job = clean_text("<b>\"job'");
  record.sources[0].path = "<i>.jsonl";
  record.passed_over = {"<u>.json"};
  record.end_report =
      EndReport{.job = "x", .failure = {{"host", "<s>"}}, .last_lines = {"</pre><script>"}};
  const std::string page = page_of(record);
  // The page has no other script than the charts' values and their program.
  CHECK(count_of(page, "<script") == 2);
  CHECK(count_of(page, "</script") == 2);
  for (const char* markup : {"<script>alert", "<img", "<b>", "<i>", "<u>", "<s>", "</pre><s",
                             "onerror=y>", "\xE2\x80\xAE"}) {
    CAPTURE(markup);
    CHECK(page.find(markup) == std::string::npos);
  }
  CHECK_THAT(page, Contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
}

TEST_CASE("page: no text in a chart's values ends their element") {
  const Record record = whole_record();
  const Chart chart{.id = "own", .plot = {{"name", "</script><b>"}}};
  CHECK_THAT(report_page(record, facts_of(record), {chart}),
             Contains(R"({"own":{"name":"\u003c/script>\u003cb>"}})"));
}

TEST_CASE("page: a job of many rounds shows the last ones, and says so") {
  Record record = test::empty_record();
  RecordReader reader(record);
  reader.file({.path = "e", .what = "events"});
  for (int round = 1; round <= 300; ++round) {
    reader.line(event_text("round", round, R"("num_nodes":1)", "n0", round));
    reader.line(event_text("restart", round + 0.5,
                           R"("cause":"why )" + std::to_string(round) + "\"", "n0", round));
  }
  const std::string page = page_of(record);
  CHECK_THAT(page, Contains("The last 24 of 300 rounds.") && Contains("why 300") &&
                       Contains("The last 200."));
  CHECK_THAT(page, !Contains("why 100<"));
}

TEST_CASE("figures: the framework is that of the last round that told one") {
  const auto line = [](int round, const std::string& framework) {
    return event_text("progress", 5 * round,
                      R"("ranks":[{"rank":0,"framework":")" + framework + R"("},{"rank":1}])", "n0",
                      round);
  };
  const auto began = [](int round) { return event_text("round", 5 * round, "", "n0", round); };
  const Record record = record_of(began(1), line(1, "PyTorch 2.9.0"), began(2), line(2, "b; <i>"),
                                  line(2, "PyTorch 2.15.0"), began(3));
  CHECK(facts_of(record).framework == "PyTorch 2.15.0; b; <i>");
  CHECK_THAT(page_of(record), Contains("PyTorch 2.15.0; b; &lt;i&gt;"));
  const auto value = boost::json::parse(facts_json(record, facts_of(record)));
  CHECK(value.at("framework").as_string() == "PyTorch 2.15.0; b; <i>");
}

TEST_CASE(
    "figures: GPU memory of each rank, and the steps that the rank with most of them skipped") {
  const Record record = record_of(
      event_text("round", 1),
      event_text(
          "progress", 5,
          R"("ranks":[{"rank":0,"skipped_steps":3},{"rank":1,"gpu_memory_peak_bytes":4096}])"),
      event_text(
          "progress", 10,
          R"("ranks":[{"rank":0,"skipped_steps":2},{"rank":1,"gpu_memory_peak_bytes":8192}])"));
  const auto value = boost::json::parse(facts_json(record, facts_of(record)));
  CHECK(value.at("by_round").at(0).at("steps_skipped").as_int64() == 3);
  const auto& ranks = value.at("ranks").at("gpu_memory_peak_bytes").as_object();
  CHECK(ranks.size() == 1);
  CHECK(ranks.at("1").at("most").to_number<double>() == 8192);
  CHECK_THAT(page_of(record), Contains("3 steps skipped by the gradient scaler") &&
                                  Contains("id=\"chart-gpu_peak\""));
}

TEST_CASE("figures: each rank's wait for data") {
  const Record record = record_of(
      event_text("round", 1),
      event_text("progress", 5,
                 R"("ranks":[{"rank":0,"step_seconds":0.5,"loader_seconds":0.125},{"rank":1}])"));
  const auto value = boost::json::parse(facts_json(record, facts_of(record)));
  const auto& ranks = value.at("ranks").at("loader_seconds").as_object();
  CHECK(ranks.size() == 1);
  CHECK(ranks.at("0").at("mean").to_number<double>() == 0.125);
  CHECK_THAT(page_of(record), Contains("id=\"chart-loader_time\""));
}

TEST_CASE("figures: an unknown one is null in JSON") {
  const Record record = whole_record();
  const auto value = boost::json::parse(facts_json(record, facts_of(record)));
  CHECK(value.at("exit_code").as_int64() == 9);
  CHECK(value.at("ettr").is_null());
  CHECK(value.at("epochs").is_null());
  CHECK(value.at("framework").is_null());
  CHECK(value.at("is_ledger").as_bool() == false);
  CHECK(value.at("time").at("running").to_number<double>() == 11);
  CHECK(value.at("by_round").at(0).at("exits").at("error").as_int64() == 1);
  CHECK(value.at("ranks").at("step_seconds").at("1").at("mean").to_number<double>() == Approx(0.3));
  CHECK(value.at("gpus").at("use").at("n0 GPU 0").at("most").to_number<double>() == 0.5);
  CHECK(value.at("sources").at(0).at("lines").as_int64() == 9);
}

}  // namespace
}  // namespace ddprun::report
