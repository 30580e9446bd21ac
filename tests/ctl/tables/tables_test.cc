// SPDX-License-Identifier: Apache-2.0
// A rendezvous' pages as people see them. A rendezvous may say anything.
#include "ctl/tables/tables.h"

#include <algorithm>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

namespace ddprun::ctl {
namespace {

using ddprun::test::Contains;

constexpr char kLive[] =
    R"({"run_id":"mine","phase":"running","round":2,"nodes":[{},{}],"max_nodes":4})";
constexpr char kFinished[] =
    R"({"run_id":"old","phase":"ended","exit_code":9,"reason":"rank 1 failed","first_failure":"",)"
    R"("began":null,"ended":"2026-11-22T03:15:07Z","rounds":3,"num_nodes":2,"nodes":["a","b"]})";

std::string page(const std::string& jobs, const std::string& finished) {
  return R"({"version":"0.1.0","jobs":[)" + jobs + R"(],"finished":[)" + finished +
         R"(],"journal":null})";
}

TEST_CASE("jobs_table: live jobs first, then those that are over, with their exit codes") {
  CHECK(
      jobs_table(page(kLive, kFinished)) ==
      "JOB                              PHASE      ROUND  NODES        EXIT  ENDED                 "
      "WHY\n"
      "mine                             running    2      2 of 4\n"
      "old                              ended      3      2            9     2026-11-22T03:15:07Z  "
      "rank 1 failed\n");
}

TEST_CASE(
    "jobs_table: it has no column for finished jobs if there are none, also of an older ddprund") {
  const std::string text =
      "JOB                              PHASE      ROUND  NODES\n"
      "mine                             running    2      2 of 4\n";
  CHECK(jobs_table(page(kLive, "")) == text);
  CHECK(jobs_table(R"({"jobs":[)" + std::string(kLive) + "]}") == text);
  CHECK(jobs_table(page("", "")) == "no jobs\n");
}

TEST_CASE("jobs_table: a job's words stay on its line") {
  std::string job = kFinished;
  job.replace(job.find("rank 1 failed"), 13, R"(a\nb\u001b[2J)");
  const std::string text = jobs_table(page("", job));
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);
  CHECK_THAT(text, !Contains("\x1b"));
}

TEST_CASE("jobs_table, status_table: a text that is no such page is one clear error") {
  for (const char* text : {"", "[]", "{}", "nonsense", R"({"jobs":7})", R"({"jobs":[{}]})"}) {
    CAPTURE(text);
    CHECK(test::code_of([&] { jobs_table(text); }) == ErrorCode::kProtocol);
    CHECK(test::code_of([&] { status_table(text); }) == ErrorCode::kProtocol);
  }
}

constexpr char kStatus[] =
    R"({"version":"0.1.0","pid":4711,"uptime_seconds":11525.5,"embedded":false,)"
    R"("addresses":["10.0.0.1:29400","[::1]:29400"],"token":true,"tls":false,)"
    R"("jobs":{"live":1,"max_live":64,"finished":2,"max_finished":1000,"keep_finished_seconds":3600},)"
    R"("agents":{"joined":12,"max_joined":16384},)"
    R"("handshakes":{"under_way":4,"max_under_way":4096,"silent":3,"requests":0,"proofs":1,"joins":0},)"
    R"("stores":{"proxied":{"number":1,"keys":7,"bytes":512},)"
    R"("plain":{"connections":2,"keys":5,"bytes":64,"requests":99,"slow_readers":0},)"
    R"("static_rounds":{"number":0,"connections":0,"keys":0,"bytes":0,"requests":0,"slow_readers":1}},)"
    R"("journal":{"kept":true,"path":"/var/lib/ddprun/journal.db"}})";

TEST_CASE("status_table: a fact on each line, limits where there are some") {
  CHECK(status_table(kStatus) ==
        "version         0.1.0\n"
        "process         4711, ddprund, up 3 h 12 min\n"
        "listens on      10.0.0.1:29400\n"
        "listens on      [::1]:29400\n"
        "token           on\n"
        "TLS             off\n"
        "jobs            1 of 64 live, 2 of 1000 that are over, kept for 1 h\n"
        "agents          12 of 16384\n"
        "handshakes      4 of 4096: 3 silent, 0 in their request, 1 before their proof, 0 before "
        "their join\n"
        "proxied stores  1: 7 keys, 512 bytes\n"
        "static rounds   0: 0 keys, 0 bytes, 0 connections, 0 requests, 1 clients read slowly\n"
        "plain store     5 keys, 64 bytes, 2 connections, 99 requests\n"
        "journal         kept in /var/lib/ddprun/journal.db\n");
}

TEST_CASE("status_table: the role is a line if there are several rendezvous") {
  const auto with = [](const std::string& role) {
    return status_table("{" + role + std::string(kStatus).substr(1));
  };
  CHECK_THAT(with(R"("role":"leader","leader":null,)"), Contains("\nrole            leader\n"));
  CHECK_THAT(with(R"("role":"standby","leader":"n1:29400",)"),
             Contains("\nrole            standby of n1:29400\n"));
  CHECK_THAT(with(R"("role":"standby","leader":null,)"),
             Contains("\nrole            standby; it knows no leader\n"));
  CHECK_THAT(with(R"("role":null,"leader":null,)"), !Contains("role"));
}

TEST_CASE("status_table: a standby's journal is a copy, or none of its own") {
  const auto with = [](const std::string& journal) {
    std::string text = kStatus;
    text.resize(text.find(R"("journal":)"));
    return status_table(R"({"role":"standby","leader":null,)" + text.substr(1) + R"("journal":)" +
                        journal + "}");
  };
  CHECK_THAT(with(R"({"kept":true,"path":"/s/journal.db"})"),
             Contains("journal         in /s/journal.db, the leader's jobs are copied to it\n"));
  CHECK_THAT(
      with(R"({"kept":false,"path":"/s/journal.db","trouble":"disk\nfull","trouble_seconds":0})"),
      Contains("journal         takes no copy: disk\\nfull (/s/journal.db)\n"));
  CHECK_THAT(with("null"),
             Contains("journal         none of its own: the jobs are the leader's\n"));
}

TEST_CASE("status_table: an embedded rendezvous, no journal, a disk in trouble") {
  std::string text = kStatus;
  const auto put = [&](const std::string& from, const std::string& to) {
    REQUIRE(text.find(from) != text.npos);
    text.replace(text.find(from), from.size(), to);
  };
  put("\"embedded\":false", "\"embedded\":true");
  put("11525.5", "59.9");
  put(":3600}", ":0}");
  put("{\"kept\":true,", "{\"kept\":false,\"trouble\":\"disk\\nfull\",\"trouble_seconds\":200000,");
  CHECK_THAT(status_table(text), Contains("4711, a ddprun, up 59 s\n") &&
                                     Contains("1 of 64 live, none kept once it is over\n") &&
                                     Contains("not kept for 2 d 7 h, jobs go on in memory: disk"));
  put("200000,", "200000,\"jobs_wait\":true,");
  CHECK_THAT(status_table(text), Contains("not kept for 2 d 7 h, nothing is decided: disk"));
  put(text.substr(text.find("{\"kept\""), text.size() - text.find("{\"kept\"") - 1), "null");
  CHECK_THAT(status_table(text), Contains("journal         none (--state-dir)"));
}

}  // namespace
}  // namespace ddprun::ctl
