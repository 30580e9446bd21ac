// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/messages/codec.h"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <set>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace ddprun::membership {
namespace {

using ddprun::test::Contains;

std::string error_of(const std::string& text) {
  std::string what;
  CHECK(test::code_of([&] { decode_agent_message(text); }, &what) == ErrorCode::kProtocol);
  return what;
}

Join full_join() {
  Join join;
  join.run_id = "job-7";
  join.instance = "0123";
  join.session = "abcd";
  join.settings = {.min_nodes = 2,
                   .max_nodes = 4,
                   .max_restarts = 3,
                   .max_node_losses = 5,
                   .max_preemptions = 6,
                   .no_progress_restarts = 7,
                   .exclude_after = 2,
                   .spares = 1,
                   .restart_on_join = true,
                   .hang_action = HangAction::kReport,
                   .rdzv_backend = "static",
                   .store = StoreMode::kProxy,
                   .recovery = Recovery::kInPlace};
  join.timeouts.join = std::chrono::milliseconds(1234);
  join.timeouts.replacement = std::chrono::milliseconds(4321);
  join.node_rank = 1;
  join.num_workers = 8;
  join.host = "gpu01";
  join.pid = 4711;
  join.advertised_addr = "10.0.0.1";
  join.store_port = 40001;
  join.topology = "pod1.rack7";
  join.program = "train";
  join.role = "trainer";
  join.user_id = 1000;
  join.unfit = "doctor: open_files: soft 1024";
  return join;
}

RankReport full_report() {
  RankReport report;
  report.global_rank = 3;
  report.local_rank = 1;
  report.pid = 4711;
  report.phase = "train";
  report.step = 41;
  report.steps_done = 40;
  report.collectives_begun = 9;
  report.collectives_done = 8;
  report.collective = "all_reduce";
  report.quiet = std::chrono::milliseconds(6200);
  report.limit = std::chrono::milliseconds(5000);
  report.limit_if_blocked = std::chrono::milliseconds(50000);
  report.unmoved = std::chrono::milliseconds(700);
  report.limit_if_working = std::chrono::milliseconds(60000);
  report.activity = RankActivity::kWorks;
  report.cpu_percent = 97;
  report.work = "GPU 98 %, 3.1 MB/s over sockets";
  report.state = "R";
  report.wchan = "pipe_read";
  report.call = "read() of /data/part-07";
  report.frames = {"read", "main"};
  report.note = "note";
  report.has_debugger = true;
  report.operation = "all_reduce #127 (25.0 MiB float32, sum) of communicator 0";
  report.operation_time = std::chrono::milliseconds(6100);
  report.shared_collectives_done = 126;
  return report;
}

TEST_CASE("Codec: every agent message survives the way there and back, in the bytes of old") {
  WorkerFailed failed{3,
                      {5, 1, 1, "gpu01", 99, 7, 0, "note", {"one", "two"}, true, 123456789, 250}};
  failed.failure.operation = "rank 3 never came to barrier #4 of communicator 0";
  failed.failure.flight_recorder = "/logs/0/flight_recorder.json";
  failed.failure.memory_peak_bytes = 67'100'672;
  failed.failure.memory_limit_bytes = 67'108'864;
  failed.failure.start = "cold: its program is no source text";
  RankReport foreign = full_report();
  foreign.foreign = true;
  foreign.limit_if_working.reset();
  const StepTimes times{4,
                        {{3, std::chrono::microseconds(50'000), std::chrono::microseconds(20'000)}},
                        TrainingStatus{"train", 41, 2, 0.25, 1234.5, {}}};
  StepTimes with_parts = times;
  with_parts.training->steps =
      summary_of({7, 0.0406, 0.0121, 0.0218, 0.009, 0.0009, 0.0012, 4.8e6});
  const std::vector<AgentMessage> messages = {
      full_join(),
      Join{full_join()},
      Ack{},
      WorkersRunning{1, 2'500, 3, "bound to CPUs"},
      failed,
      WorkersSucceeded{2},
      FirstStep{2, 41},
      FirstStep{2, 41, 2'500'000},
      WorkersStopped{2, 40002, 99},
      WorkersStopped{2, 40002, 99, 0, 7},
      WorkerRequest{2, WorkerRequest::Kind::kExcludeNode, 5, "ECC", 1},
      WorkerRequest{2, WorkerRequest::Kind::kExcludeNode, kAgentItself, "no room", 1},
      WorkerRequest{2, WorkerRequest::Kind::kStopJob, 5, "loss is nan", 255},
      WorkersLeft{2},
      RecordsWanted{2},
      CutOff{},
      Preempted{Preempted::Kind::kTimeLimit, "is over", std::chrono::milliseconds(7)},
      Preempted{Preempted::Kind::kNode, "got SIGUSR2", std::chrono::milliseconds(7), 12},
      Preempted{},
      Leave{"received SIGINT", 130},
      Leave{"the connection to its launcher was lost", 75, true},
      Leave{"received SIGINT again", 130, false, true},
      Stalled{4, full_report()},
      Inspection{4, 2, {full_report(), foreign}},
      times,
      with_parts,
      StepTimes{4, {}},
      Tail{7, {"step 40", "step 41"}, "stderr is neither shown nor kept"},
      Tail{}};
  std::vector<std::string> texts;
  std::set<std::size_t> kinds;
  for (const AgentMessage& message : messages) {
    const std::string text = encode(AgentEnvelope{7, 9, message});
    texts.push_back(text);
    kinds.insert(message.index());
    const AgentEnvelope back = decode_agent_message(text);
    CHECK(back.seq == 7);
    CHECK(back.ack == 9);
    CHECK(back.message.index() == message.index());
    CHECK(encode(back) == text);
  }
  CHECK(kinds.size() == variants::variant_size_v<AgentMessage>);
  test::check_golden(DDPRUN_GOLDEN "/agent_messages.txt", texts);
}

TEST_CASE("Codec: parts of steps arrive, an older agent, which doesn't say them, is heard") {
  StepTimes times{4, {}, TrainingStatus{"train", 41, 2, 0.25, 1234.5, {}}};
  const auto back = [](const std::string& text) {
    return *variants::get<StepTimes>(decode_agent_message(text).message).training;
  };
  const std::string old_text = encode(AgentEnvelope{0, 0, times});
  CHECK(old_text.find("step_parts") == std::string::npos);
  CHECK(back(old_text).steps == StepSummary{});
  CHECK(back(old_text).step == 41);
  times.training->steps = summary_of({7, 0.0406, 0.0121, 0.0218, 0.009, 0.0009, 0.0012, 4.8e6});
  const std::string text = encode(AgentEnvelope{0, 0, times});
  CHECK(back(text).steps == times.training->steps);
  std::string bad = text;
  bad.replace(bad.find("\"forward\":{"), 11, "\"forwards\":{");
  CHECK_THAT(error_of(bad), Contains("\"forward\""));
}

TEST_CASE("Codec: words of observed programs arrive, and an older agent says none") {
  StepTimes times{4, {}, TrainingStatus{"train", 41, 2, 0.25, 1234.5, {}}};
  const auto back = [&] {
    const std::string text = encode(AgentEnvelope{0, 0, times});
    return *variants::get<StepTimes>(decode_agent_message(text).message).training;
  };
  const std::string old_text = encode(AgentEnvelope{0, 0, times});
  CHECK(old_text.find("framework") == std::string::npos);
  CHECK(old_text.find("skipped_steps") == std::string::npos);
  CHECK(old_text.find("gpu_peak") == std::string::npos);
  CHECK(back().framework.empty());
  times.training->framework = "PyTorch 2.15.0, gloo, 2 ranks";
  CHECK(back().has_samples);
  times.training->has_samples = false;
  CHECK_FALSE(back().has_samples);
  times.training->skipped_steps = 7;
  CHECK(back().framework == "PyTorch 2.15.0, gloo, 2 ranks");
  CHECK(back().skipped_steps == 7);
  add_gpu_peak(*times.training, 4096, 3);
  CHECK(back().gpu_peak_bytes == 4096);
  CHECK(back().gpu_peak_rank == 3);
}

TEST_CASE("Codec: every message of the rendezvous survives the way, in the bytes of old") {
  JobEnd end;
  end.exit_code = 139;
  end.reason = "rank 1 …";
  end.rounds = 4;
  end.first_failure = WorkerFailure{5,
                                    1,
                                    1,
                                    "gpu01",
                                    99,
                                    0,
                                    11,
                                    "",
                                    {"last"},
                                    false,
                                    1,
                                    0,
                                    1763780000,
                                    {"Traceback", "E: x"},
                                    "/l/error.json",
                                    R"({"cause":"disk"})",
                                    "ran out: the kernel's OOM killer …",
                                    "it was in barrier #4 of communicator 0 for 0.1 s",
                                    "/l/flight_recorder.json",
                                    {"/l/stdout.log", "/l/stderr.log"}};
  end.victims = {"rank 3 …", "and 2 more"};
  end.excluded = {"gpu02 (10.0.0.3): its preflight failed: no room"};
  end.ledger = R"({"ettr":0.5,"seconds":{},"rounds":[]})";
  StartRound start{2, 1, 1, 2, 4, 8, 3, 5, "10.0.0.2", "10.0.0.1", "10.0.0.1", 40001, true};
  const std::vector<RendezvousMessage> messages = {
      Welcome{1, "abcd", "10.0.0.2", std::chrono::milliseconds(5000), true, 123},
      Waiting{1, 2, "note", true},
      start,
      Preempt{2, "node 1 got SIGUSR1", std::chrono::milliseconds(60'000)},
      Preempt{2, "node 1 got SIGUSR2", std::chrono::milliseconds(60'000), 12},
      StopRound{2, "why"},
      StopRound{2, "why", std::chrono::milliseconds(10'000)},
      StopRound{2, "why", {}, true},
      end,
      Refused{"no", 2},
      Refused{"ending", 75, true},
      Inspect{3, 2},
      HangVerdict{3, "rank 3 …", {"state S", "  read"}},
      Record{3},
      TailWanted{3, 17, 9},
      TailWanted{3, 18, 9, TailKind::kStack}};
  std::vector<std::string> texts;
  std::set<std::size_t> kinds;
  for (const RendezvousMessage& message : messages) {
    const std::string text = encode(RendezvousEnvelope{7, 9, message});
    texts.push_back(text);
    kinds.insert(message.index());
    const RendezvousEnvelope back = decode_rendezvous_message(text);
    CHECK(back.message.index() == message.index());
    CHECK(encode(back) == text);
  }
  CHECK(kinds.size() == variants::variant_size_v<RendezvousMessage>);
  test::check_golden(DDPRUN_GOLDEN "/rendezvous_messages.txt", texts);
}

TEST_CASE("Codec: the asking rank of a request is a worker, or the agent itself") {
  WorkerRequest request{2, WorkerRequest::Kind::kExcludeNode, kAgentItself, "no room", 1};
  CHECK_NOTHROW(decode_agent_message(encode(AgentEnvelope{1, 0, request})));
  request.global_rank = kAgentItself - 1;
  CHECK_THROWS_WITH(decode_agent_message(encode(AgentEnvelope{1, 0, request})),
                    Contains("\"global_rank\""));
}

TEST_CASE("Codec: the time of a death and the list of victims are bounded") {
  WorkerFailed failed{1, {}};
  const auto with = [&](std::int64_t died, std::int64_t error) {
    failed.failure.died_at_us = died;
    failed.failure.clock_error_us = error;
    return encode(AgentEnvelope{1, 0, failed});
  };
  CHECK_NOTHROW(decode_agent_message(with(std::int64_t{1} << 53, 0)));
  CHECK_THROWS_WITH(decode_agent_message(with((std::int64_t{1} << 53) + 1, 0)),
                    Contains("\"died_at_us\""));
  CHECK_THROWS_WITH(decode_agent_message(with(0, -1)), Contains("\"clock_error_us\""));
  JobEnd end;
  end.first_failure.emplace();
  end.first_failure->out_of_memory = std::string(100'000, 'x');
  end.first_failure->log_files.assign(9, std::string(100'000, 'x'));
  end.victims.assign(20, std::string(100'000, 'x'));
  const std::string text = encode(RendezvousEnvelope{1, 0, end});
  CHECK(text.size() < 60'000);
  CHECK(variants::get<JobEnd>(decode_rendezvous_message(text).message).victims.size() == 9);
}

TEST_CASE("Codec: a ledger comes whole or not at all, and an older rendezvous has none") {
  const auto back = [](const JobEnd& end) {
    const std::string text = encode(RendezvousEnvelope{1, 0, end});
    return variants::get<JobEnd>(decode_rendezvous_message(text).message).ledger;
  };
  JobEnd end;
  CHECK(encode(RendezvousEnvelope{1, 0, end}).find("ledger") == std::string::npos);
  CHECK(back(end).empty());
  end.ledger = "{\"rounds\":[\"" + std::string(kMaxLedgerBytes - 15, '"') + "\"]}";
  REQUIRE(end.ledger.size() == kMaxLedgerBytes);
  CHECK(back(end) == end.ledger);
  CHECK(encode(RendezvousEnvelope{1, 0, end}).size() < kMaxMessageBytes);
  end.ledger += ' ';
  CHECK(back(end).empty());
}

TEST_CASE("Codec: malformed messages are refused with one clear line") {
  CHECK_THAT(error_of(""), Contains("not a control message"));
  CHECK_THAT(error_of("[]"), Contains("no object"));
  CHECK_THAT(error_of("{\"type\":\"join\""), Contains("not a control message"));
  CHECK_THAT(error_of("{\"seq\":0}"), Contains("\"type\" is missing"));
  CHECK_THAT(error_of("{\"type\":1}"), Contains("\"type\" is not a string"));
  CHECK_THAT(error_of(R"({"type":"dance","seq":0,"ack":0})"), Contains("unknown type \"dance\""));
  CHECK_THAT(error_of(R"({"type":"ack","seq":-1,"ack":0})"), Contains("\"seq\" is -1"));
  CHECK_THAT(error_of(R"({"type":"ack","seq":1.5,"ack":0})"), Contains("not an integer"));
  CHECK_THAT(error_of(R"({"type":"workers_stopped","seq":1,"ack":0,"round":1,"store_port":70000})"),
             Contains("message \"workers_stopped\": \"store_port\" is 70000"));
  CHECK_THAT(error_of(R"({"type":"leave","seq":1,"ack":0,"reason":7,"exit_code":0})"),
             Contains("\"reason\" is not a string"));
  CHECK_THAT(error_of(R"({"type":"first_step","seq":1,"ack":0,"round":1,"step":-1})"),
             Contains("\"step\" is -1"));
  CHECK_THAT(error_of(R"({"type":"workers_stopped","seq":1,"ack":0,"round":1,"store_port":7})"),
             Contains("\"last_step\" is missing"));
  CHECK_THAT(error_of(R"({"type":"workers_stopped","seq":1,"ack":0,"round":1,"store_port":7,)"
                      R"("last_step":0,"gone_at_us":-1})"),
             Contains("\"gone_at_us\" is -1"));
  std::string join = encode(AgentEnvelope{0, 0, full_join()});
  join.replace(join.find(R"("user_id":1000)"), 14, R"("user_id":4294967296)");
  CHECK_THAT(error_of(join), Contains("\"user_id\" is 4294967296"));
  CHECK_THAT(error_of(R"({"type":"preempted","seq":1,"ack":0,"time_limit":1,"reason":""})"),
             Contains("\"time_limit\""));
  CHECK_THAT(error_of(R"({"type":"preempted","seq":1,"ack":0,"time_limit":true,"reason":"",)"
                      R"("notice_ms":-1})"),
             Contains("\"notice_ms\" is -1"));
  const auto request = [](const std::string& fields) {
    return R"({"type":"worker_request","seq":1,"ack":0,"round":1,"reason":"r",)" + fields + "}";
  };
  CHECK_THAT(error_of(request(R"("request":"dance","global_rank":0,"exit_code":1)")),
             Contains("\"request\" is \"dance\""));
  CHECK_THAT(error_of(request(R"("request":"stop_job","global_rank":0,"exit_code":0)")),
             Contains("\"exit_code\" is 0"));
  CHECK_THAT(error_of(request(R"("request":"stop_job","global_rank":-1,"exit_code":1)")),
             Contains("\"global_rank\" is -1"));
  CHECK_THAT(error_of(R"({"type":"join","seq":0,"ack":0,"version":1})"),
             Contains("\"run_id\" is missing"));
  CHECK_THAT(error_of("{\"type\":\"leave\",\"seq\":1,\"ack\":0,\"reason\":\"\xff\xfe\"}"),
             Contains("not a control message"));
  CHECK_THAT(error_of(std::string(2 << 20, ' ')), Contains("the limit is 1048576"));
  CHECK_THAT(error_of(std::string(1000, '[')), Contains("not a control message"));
  std::string crowded = R"({"type":"leave")";
  for (int i = 0; i < 1000; ++i) crowded += concat(",\"", i, "\":0");
  CHECK(error_of(crowded + "}") == "not a control message: an object has more than 1000 members");
  CHECK_THAT(error_of(R"({"type":"leave","seq":1,"ack":0,"exit_code":0,"reason":")" +
                      std::string(100'000, 'x') + "\"}"),
             Contains("longer than"));
}

TEST_CASE("Codec: a Join of another version is decoded, so that it can be refused by name") {
  const auto envelope = decode_agent_message(R"({"type":"join","seq":0,"ack":0,"version":9})");
  CHECK(variants::get<Join>(envelope.message).version == 9);
}

TEST_CASE(
    "Codec: a setting that an older agent does not know has its default, if that is a value for "
    "it") {
  const auto without = [](const std::string& name) {
    auto message = boost::json::parse(encode(AgentEnvelope{0, 0, full_join()}));
    REQUIRE(message.at("settings").as_object().erase(name) == 1);
    return boost::json::serialize(message);
  };
  for (const char* name : {"exclude_after", "restart_on_join", "rdzv_backend", "recovery"}) {
    INFO(name);
    CHECK_NOTHROW(decode_agent_message(without(name)));
  }
  const auto envelope = decode_agent_message(without("exclude_after"));
  CHECK(variants::get<Join>(envelope.message).settings.exclude_after == 0);
  CHECK_THAT(error_of(without("max_nodes")), Contains("\"max_nodes\" is missing"));
}

TEST_CASE("Codec: a worker's output can't break a message") {
  WorkerFailed failed{1, {}};
  failed.failure.note = "caf\xe9 \xe2\x82";
  failed.failure.last_lines.assign(25, std::string(100'000, '\x01'));
  failed.failure.last_lines.back() = "the last";
  const std::string text = encode(AgentEnvelope{1, 0, failed});
  CHECK(text.size() < kMaxMessageBytes);
  const auto back = variants::get<WorkerFailed>(decode_agent_message(text).message);
  CHECK(back.failure.last_lines.size() == 20);
  CHECK(back.failure.last_lines.back() == "the last");
  CHECK(back.failure.note == "caf\xEF\xBF\xBD \xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST_CASE("Codec: reports of ranks are bounded, whatever is in them") {
  RankReport report = full_report();
  report.frames.assign(20, std::string(1000, '\x01'));
  report.call = report.note = report.wchan = report.phase = std::string(100'000, '\x02');
  const std::string text =
      encode(AgentEnvelope{1, 0, Inspection{1, 1, std::vector<RankReport>(100, report)}});
  CHECK(text.size() < kMaxMessageBytes / 2);
  const auto back = variants::get<Inspection>(decode_agent_message(text).message);
  CHECK(back.ranks.size() == kMaxReportedRanks);
  CHECK(back.ranks[0].frames.size() == kMaxFrames);
  CHECK(back.ranks[0].frames[0].find('\x01') == std::string::npos);
}

TEST_CASE("Codec: a debugger in a rank is told, no word means none") {
  for (const bool has_debugger : {false, true}) {
    RankReport report = full_report();
    report.has_debugger = has_debugger;
    const std::string text = encode(AgentEnvelope{1, 0, Inspection{1, 1, {report}}});
    CHECK((text.find("has_debugger") != std::string::npos) == has_debugger);
    const auto back = variants::get<Inspection>(decode_agent_message(text).message);
    CHECK(back.ranks.at(0).has_debugger == has_debugger);
  }
}

TEST_CASE("Codec: the last lines of a rank are sent, within their bounds") {
  Tail tail{1, std::vector<std::string>(100, "short"), std::string(100'000, 'n')};
  const auto back = [&] {
    const std::string text = encode(AgentEnvelope{0, 0, tail});
    CHECK(text.size() < 2 * (kMaxTailBytes + kMaxShownBytes));
    CHECK(encode(decode_agent_message(text)) == text);
    return variants::get<Tail>(decode_agent_message(text).message).lines;
  };
  tail.lines.back() = "the last";
  CHECK(back().size() == kMaxTailLines);
  CHECK(back().back() == "the last");
  tail.lines.assign(50, std::string(1'000, '\x01'));
  tail.lines.push_back("caf\xe9 \x1b[31m");
  CHECK(back().size() == 17);
  CHECK(back().back() == "caf\xEF\xBF\xBD  [31m");
  CHECK(back().front() == std::string(1'000, ' '));
  // It takes no more lines from a hostile agent either.
  std::string text = R"({"type":"tail","seq":0,"ack":0,"request":1,"note":"","lines":["")";
  for (int i = 0; i < 63; ++i) text += ",\"" + std::string(15'000, 'x') + "\"";
  const auto taken = variants::get<Tail>(decode_agent_message(text + "]}").message).lines;
  CHECK(taken.size() == 15);
  CHECK_THAT(error_of(text + R"(,"one too many"]})"), Contains("has more than 64 elements"));
}

TEST_CASE("Codec: words of a hostile agent to all nodes are cut to the size of an honest one's") {
  const auto big = [](char letter) { return std::string(60'000, letter); };
  std::string text =
      R"({"type":"worker_failed","seq":1,"ack":0,"round":1,"failure":{"global_rank":0,"local_rank":0,)"
      R"("node_rank":0,"pid":1,"exit_code":1,"signal":0,"hung":false,"lasting":false,"died_at_us":0,"clock_error_us":0,"ended_at":0,"traceback":[],"error_file":"","out_of_memory":"","log_files":[],"error_fields":")" +
      big('f') + R"(","host":")" + big('h') + R"(","note":")" + big('n') + R"(","last_lines":[)";
  for (int i = 0; i < 14; ++i) text += (i == 0 ? "\"" : ",\"") + big('x') + '"';
  const auto failed = variants::get<WorkerFailed>(decode_agent_message(text + "]}}").message);
  CHECK(failed.failure.host.size() <= 259);
  CHECK(failed.failure.note.size() <= 4099);
  CHECK(failed.failure.error_fields.size() <= kMaxErrorFieldsBytes + 3);
  REQUIRE(failed.failure.last_lines.size() == 14);
  CHECK(failed.failure.last_lines[0].size() <= 1027);

  Join join = full_join();
  join.host = "HOST";
  join.topology = "TOPO";
  join.program = "PROG";
  join.role = "ROLE";
  text = encode(AgentEnvelope{0, 0, join});
  for (const char* word : {"HOST", "TOPO", "PROG", "ROLE"})
    text.replace(text.find(word), 4, big('j'));
  const auto joined = variants::get<Join>(decode_agent_message(text).message);
  CHECK(joined.host.size() <= 259);
  CHECK(joined.topology.size() <= 1027);
  CHECK(joined.program.size() <= 1027);
  CHECK(joined.role.size() <= 1027);

  // A text is cut only once, however often it is handed on.
  const std::string once = encode(AgentEnvelope{1, 0, failed});
  CHECK(encode(decode_agent_message(once)) == once);
}

TEST_CASE("Codec: a number that no decoder takes is sent as the nearest that it takes") {
  constexpr auto kHuge = ~std::uint64_t{0};
  RankReport report = full_report();
  report.step = report.steps_done = report.collectives_begun = report.collectives_done = kHuge;
  report.quiet = std::chrono::milliseconds::max();
  report.limit = std::chrono::milliseconds(-1);
  report.cpu_percent = -1;
  const StepTimes times{1, {{0, std::chrono::microseconds::max(), std::chrono::microseconds(-5)}}};
  Join join = full_join();
  join.timeouts.join = std::chrono::milliseconds::max();
  const std::vector<AgentMessage> messages = {join, Stalled{1, report}, times, FirstStep{1, kHuge},
                                              WorkersStopped{1, 1, kHuge}};
  for (const AgentMessage& message : messages) {
    CHECK_NOTHROW(decode_agent_message(encode(AgentEnvelope{1, 0, message})));
  }
}

TEST_CASE("Codec: a report of a rank with a value out of range is refused by name") {
  const std::string good = encode(AgentEnvelope{1, 0, Stalled{1, full_report()}});
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
  };
  CHECK_THAT(error_of(with("\"activity\":1", "\"activity\":3")), Contains("\"activity\" is 3"));
  CHECK_THAT(error_of(with("\"global_rank\":3", "\"global_rank\":-3")),
             Contains("message \"stalled\": report: \"global_rank\" is -3"));
  CHECK_THAT(error_of(with("\"quiet_ms\":6200", "\"quiet_ms\":-1")), Contains("\"quiet_ms\""));
  CHECK_THAT(error_of(with("[\"read\",\"main\"]", "7")), Contains("\"frames\" is not an array"));
  std::string many = R"({"type":"inspection","seq":1,"ack":0,"round":1,"inquiry":1,"ranks":[)";
  for (int i = 0; i < 65; ++i) many += i == 0 ? "{}" : ",{}";
  CHECK_THAT(error_of(many + "]}"), Contains("\"ranks\" has more than 64 elements"));
  CHECK_THAT(error_of(R"({"type":"step_times","seq":1,"ack":0,"round":1,"ranks":[7]})"),
             Contains("not an object"));
  std::string join = encode(AgentEnvelope{0, 0, full_join()});
  join.replace(join.find("\"report\""), 8, "\"maybe\"");
  CHECK_THAT(error_of(join), Contains("\"hang_action\" is \"maybe\""));
}

}  // namespace
}  // namespace ddprun::membership
