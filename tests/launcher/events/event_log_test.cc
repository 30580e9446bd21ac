// SPDX-License-Identifier: Apache-2.0
#include "launcher/events/event_lines.h"

#include <boost/json/parse.hpp>

#include "tests/launcher/events/round_number.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::launcher;
using ddprun::test::round_number;
using Texts = std::vector<std::string>;

namespace {

struct Recorder {
  // "SOURCE STATE global_rank group_rank restarts exit_code" of each event.
  Texts told;
  EventLog log{{.run_id = "j",
                .role = "r",
                .host = "h",
                .rdzv_backend = "c10d",
                .program = "/usr/bin/python3"},
               Clock::time_point{},
               [this](const std::string& line) { told.push_back(in_short(line)); }};

  static std::string in_short(const std::string& line) {
    const auto event = boost::json::parse(line).as_object();
    const auto& metadata = event.at("metadata").as_object();
    const auto inner =
        boost::json::parse(std::string(metadata.at("metadata").as_string())).as_object();
    CHECK(inner.at("entry_point").as_string() == "python3");
    CHECK(event.at("name").as_string() ==
          "torchelastic.worker.status." + std::string(metadata.at("state").as_string()));
    std::string text(event.at("source").as_string());
    text += " " + std::string(metadata.at("state").as_string());
    for (const char* key : {"global_rank", "group_rank", "agent_restarts"}) {
      const auto& value = metadata.at(key);
      text += value.is_null() ? " -" : " " + std::to_string(value.as_int64());
    }
    if (const auto* code = inner.if_contains("exit_code")) {
      const auto& value = code->as_array().at(0);
      text += value.is_null() ? " -" : " " + std::to_string(value.as_int64());
    }
    return text;
  }
};

}  // namespace

TEST_CASE("event log: torchrun's events of a job that succeeds") {
  Recorder events;
  events.log.round_began(round_number(1), {});
  events.log.workers_run({71, 72}, {});
  events.log.ended({}, {});
  CHECK(events.told == Texts{"AGENT RENDEZVOUS - - 0", "AGENT ASSIGN_WORKER_RANKS - - 0",
                             "WORKER START 4 1 0 -", "WORKER START 5 1 0 -",
                             "WORKER SUCCEEDED 4 1 0 -", "WORKER SUCCEEDED 5 1 0 -",
                             "AGENT SUCCEEDED - 1 0"});
}

TEST_CASE("event log: a restart, then a failure") {
  Recorder events;
  events.log.round_began(round_number(1), {});
  events.log.workers_run({71, 72}, {});
  events.told.clear();
  events.log.round_began(round_number(2), {});
  events.log.workers_run({73, 74}, {});
  membership::JobEnd end;
  end.exit_code = 139;
  end.first_failure.emplace();
  end.first_failure->node_rank = 1;
  end.first_failure->local_rank = 1;
  end.first_failure->signal_number = 11;
  events.log.ended(end, {});
  CHECK(events.told == Texts{"AGENT RENDEZVOUS - 1 1", "AGENT ASSIGN_WORKER_RANKS - 1 1",
                             "WORKER START 4 1 1 -", "WORKER START 5 1 1 -",
                             "WORKER FAILED 5 1 1 -11", "WORKER TERMINATED 4 1 1 -",
                             "AGENT FAILED - 1 1"});
}

TEST_CASE("event log: each worker that failed, in each round, once") {
  Recorder events;
  const auto fail = [&](int local_rank, int code) {
    membership::WorkerFailure failure;
    failure.node_rank = 1;
    failure.local_rank = local_rank;
    failure.pid = 70 + local_rank;
    failure.exit_code = code;
    events.log.worker_failed(failure, {});
    return failure;
  };
  events.log.round_began(round_number(1), {});
  events.log.workers_run({71, 72}, {});
  events.told.clear();
  fail(1, 3);
  fail(0, 1);
  CHECK(events.told == Texts{"WORKER FAILED 5 1 0 3", "WORKER FAILED 4 1 0 1"});
  events.log.round_began(round_number(2), {});
  events.log.workers_run({73, 74}, {});
  events.told.clear();
  membership::JobEnd end;
  end.exit_code = 4;
  end.first_failure = fail(1, 4);
  events.log.ended(end, {});
  CHECK(events.told ==
        Texts{"WORKER FAILED 5 1 1 4", "WORKER TERMINATED 4 1 1 -", "AGENT FAILED - 1 1"});
  events.log.round_began(round_number(3), {});
  events.told.clear();
  fail(0, 1);  // before the other workers run
  events.log.workers_run({0, 72}, {});
  CHECK(events.told ==
        Texts{"WORKER START 4 1 2 -", "WORKER FAILED 4 1 2 1", "WORKER START 5 1 2 -"});
  events.told.clear();
  end.first_failure->node_rank = 0;  // the failure was on another node
  events.log.round_began(round_number(3), {});
  events.told.clear();
  events.log.ended(end, {});
  CHECK(events.told == Texts{"AGENT FAILED - 1 2"});  // no worker ran here
}
