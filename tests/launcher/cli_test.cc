// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli.h"

#include "common/error.h"

#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::launcher;
using namespace std::chrono_literals;
using Args = std::vector<std::string>;
using Catch::Matchers::StartsWith;
using ddprun::test::Contains;

namespace {

CommandLine parse(const Args& args, const Environment& environment = {}) {
  return parse_command_line(args, environment);
}

std::string only_problem(const Args& args) {
  const CommandLine line = parse(args);
  REQUIRE(line.problems.size() == 1);
  return line.problems[0];
}

}  // namespace

TEST_CASE("command line: the main job as typed") {
  const CommandLine line = parse({"--nnodes=2", "--nproc_per_node=4", "train"});
  CHECK(line.problems.empty());
  CHECK(line.config.max_nodes == 2);
  CHECK(line.config.nproc_per_node == "4");
  CHECK(line.config.program == "train");
  CHECK(line.config.program_args.empty());
}

TEST_CASE("command line: the line to paste elsewhere has what this node's environment gave") {
  const CommandLine line =
      parse({"--max-restarts=3", "train", "a"}, {{"PET_NNODES", "2"},
                                                 {"PET_MAX_RESTARTS", "1"},
                                                 {"DDPRUN_SHUTDOWN_TIMEOUT", "5"},
                                                 {"PET_NODE_RANK", "1"},
                                                 {"HOME", "/root"}});
  CHECK(line.config.typed ==
        Args{"--nnodes=2", "--shutdown-timeout=5", "--max-restarts=3", "train", "a"});
}

TEST_CASE("command line: an option has both spellings, and its value follows = or a space") {
  for (const Args& args : {Args{"--nproc-per-node=3", "x"}, Args{"--nproc_per_node=3", "x"},
                           Args{"--nproc-per-node", "3", "x"}, Args{"--nproc_per_node", "3", "x"},
                           Args{"--nproc_per_node=1", "--nproc-per-node=3", "x"}}) {
    CAPTURE(args);
    CHECK(parse(args).config.nproc_per_node == "3");
    CHECK(parse(args).config.program == "x");
  }
}

TEST_CASE("command line: the arguments after PROGRAM are passed through untouched") {
  const Args own = {"--nproc_per_node=9", "--unknown", "-m", "--", "", "--help", "a b", "--x="};
  Args args = {"--standalone", "train.py"};
  args.insert(args.end(), own.begin(), own.end());
  const CommandLine line = parse(args);
  CHECK(line.problems.empty());
  CHECK(line.config.program == "train.py");
  CHECK(line.config.program_args == own);
  CHECK(line.config.nproc_per_node == "1");
  CHECK_FALSE(line.config.module);
}

TEST_CASE("command line: -- ends the flags") {
  const CommandLine line = parse({"--standalone", "--", "-odd-name", "x"});
  CHECK(line.problems.empty());
  CHECK(line.config.program == "-odd-name");
  CHECK(line.config.program_args == Args{"x"});
}

TEST_CASE("command line: every flag reaches its field") {
  const CommandLine line =
      parse({"--nnodes=2:4", "--max-restarts=3", "--node-rank=1", "--master-addr=h",
             "--master-port=77", "--rdzv-endpoint=e:1", "--rdzv-id=j", "--rdzv-backend=c10d",
             "--local-addr=10.0.0.9", "--rdzv-conf=is_host=1,join_timeout=7",
             "--shutdown-timeout=2.5", "--rendezvous-lost-timeout=9", "--role=r", "-m", "pkg.mod"});
  CHECK(line.problems == Args{});
  const LaunchConfig& config = line.config;
  CHECK(config.min_nodes == 2);
  CHECK(config.max_nodes == 4);
  CHECK(config.max_restarts == 3);
  CHECK(config.max_node_losses == 16);
  CHECK_FALSE(config.restart_on_join);
  CHECK(config.node_rank == 1);
  CHECK(config.master_addr == "h");
  CHECK(config.master_port == 77);
  CHECK(config.rdzv_endpoint == "e:1");
  CHECK(config.rdzv_id == "j");
  CHECK(config.local_addr == "10.0.0.9");
  CHECK(config.rdzv_conf.at("is_host") == "1");
  CHECK(config.timeouts.join == 7s);
  CHECK(config.timeouts.shutdown == 2500ms);
  CHECK(config.timeouts.rendezvous_lost == 9s);
  CHECK(config.role == "r");
  CHECK(config.module);
  CHECK(config.program == "pkg.mod");
}

TEST_CASE("command line: the job's time limits are keys of --rdzv-conf, in seconds") {
  const CommandLine line =
      parse({"--rdzv-conf=last_call_timeout=1.5,keep_alive_timeout=2,"
             "start_timeout=3,exit_barrier_timeout=86400",
             "x"});
  CHECK(line.problems == Args{});
  CHECK(line.config.timeouts.last_call == 1500ms);
  CHECK(line.config.timeouts.keep_alive == 2s);
  CHECK(line.config.timeouts.start == 3s);
  CHECK(line.config.timeouts.exit_barrier == 24h);
  CHECK_THAT(only_problem({"--rdzv-conf=exit_barrier_timeout=x", "x"}),
             Contains("exit_barrier_timeout=x: wants a number of seconds"));
  CHECK_THAT(only_problem({"--rdzv-conf=keep_alive_timeout=0", "x"}), Contains("more than 0"));
  CHECK_THAT(only_problem({"--keep-alive-timeout=0.199", "x"}), Contains("at least 0.2 seconds"));
  CHECK(parse({"--keep-alive-timeout=0.2", "x"}).problems.empty());
}

TEST_CASE("command line: --rdzv-conf as torchrun reads it") {
  const CommandLine line = parse(
      {"--rdzv-conf", " join_timeout = 7 , exit_barier_timeout=1,rank=0,read_timeout=5", "x"});
  CHECK(line.problems == Args{});
  CHECK(line.config.timeouts.join == 7s);
  CHECK(line.config.connect_timeout == 5s);
  REQUIRE(line.config.notes.size() == 2);
  CHECK_THAT(line.config.notes[0], Contains("unknown key \"exit_barier_timeout\"") &&
                                       Contains("did you mean exit_barrier_timeout"));
  CHECK_THAT(line.config.notes[1], Contains("\"rank\" is ignored"));
  CHECK(parse({"--rdzv-conf='join_timeout=5,last_call_timeout=1'", "x"}).config.timeouts.join ==
        5s);
  for (const char* half : {"\"a=1", "a=1'", "'a=1\"", "\""}) {
    CHECK_THAT(only_problem({concat("--rdzv-conf=", half), "x"}),
               Contains("has a quotation mark without its other one"));
  }
  CHECK(parse({"--rdzv-conf=", "x"}).problems == Args{});
  CHECK_THAT(only_problem({"--rdzv-conf=join_timeout=", "x"}), Contains("has no value"));
  CHECK_THAT(only_problem({"--rdzv-conf=join_timeout", "x"}), Contains("has no value"));
  CHECK_THAT(only_problem({"--rdzv-conf=a=1,", "x"}), Contains("is not KEY=VALUE"));
  CHECK_THAT(only_problem({"--rdzv-conf==1", "x"}), Contains("is not KEY=VALUE"));
  CHECK_THAT(only_problem({"--rdzv-conf=store_type=file", "x"}), Contains("must be tcp"));
  CHECK_THAT(only_problem({"--rdzv-conf=join_timeout=\"600\"", "x"}),
             Contains("join_timeout=\"600\": wants a number of seconds"));
  CHECK(parse({"--rdzv-conf=timeout=9", "x"}).config.static_timeout == 9s);
  CHECK(parse({"--rdzv-conf=timeout=9,join_timeout=8", "x"}).config.static_timeout == 0s);
  CHECK(
      parse({"--rdzv-conf=read_timeout=9", "--rendezvous-timeout=8", "x"}).config.connect_timeout ==
      0s);
}

TEST_CASE("command line: torchrun's flags for its own Python are taken, and told") {
  const CommandLine line =
      parse({"--monitor-interval=5", "--start_method=fork", "--logs-specs=x", "x"});
  CHECK(line.problems == Args{});
  REQUIRE(line.config.notes.size() == 3);
  for (const std::string& note : line.config.notes) CHECK_THAT(note, Contains("is ignored"));
  CHECK_THAT(only_problem({"--monitor-interval=x", "x"}), StartsWith("--monitor-interval=x"));
  CHECK_THAT(only_problem({"--start-method=foo", "x"}), StartsWith("--start-method=foo"));
}

TEST_CASE("command line: --node-rank of the only node is ignored") {
  const CommandLine line = parse({"--node-rank=3", "x"});
  CHECK(line.problems == Args{});
  CHECK_FALSE(line.config.node_rank.has_value());
  CHECK_THAT(line.config.notes.at(0), Contains("--node-rank=3"));
}

TEST_CASE("command line: torchrun's own variable for the shutdown time-out") {
  const Environment theirs = {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "5"}};
  CHECK(parse_command_line({"x"}, theirs).config.timeouts.shutdown == 5s);
  CHECK(parse_command_line({"--shutdown-timeout=6", "x"}, theirs).config.timeouts.shutdown == 6s);
}

TEST_CASE("command line: torchrun's own variable for the exit barrier makes it longer") {
  const auto barrier = [](const char* value, const Args& args) {
    const Environment theirs = {{"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", value}};
    return parse_command_line(args, theirs).config.timeouts.exit_barrier;
  };
  CHECK(barrier("7200", {"x"}) == 2h);
  CHECK(barrier("30", {"x"}) == 1h);
  CHECK(barrier("7200", {"--exit-barrier-timeout=6", "x"}) == 6s);
  CHECK(barrier("7200", {"--rdzv-conf=exit_barrier_timeout=60", "x"}) == 60s);
  const Environment wrong = {{"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", "long"}};
  CHECK_THAT(parse_command_line({"x"}, wrong).problems.at(0),
             Contains("TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT=long: wants a number of seconds"));
}

TEST_CASE("command line: --signals-to-handle wins against the warnings by default") {
  const LaunchConfig config = parse({"--signals-to-handle=SIGTERM,SIGUSR1", "x"}).config;
  CHECK(config.signals_to_handle.numbers == std::vector<int>{SIGTERM, SIGUSR1});
  CHECK(config.preemption.signals.empty());
  CHECK_THAT(only_problem({"--signals-to-handle=SIGUSR1", "--preemption-signals=SIGUSR1", "x"}),
             Contains("--preemption-signals"));
  CHECK_THAT(only_problem({"--signals-to-handle=FOO", "x"}), Contains("FOO"));
}

TEST_CASE("command line: the job's time limits are flags, too, which win") {
  const CommandLine line =
      parse({"--last-call-timeout=1.5", "--keep_alive_timeout=2", "--keep-alive-interval=0.5",
             "--start-timeout=3", "--exit-barrier-timeout=4",
             "--rdzv-conf=last_call_timeout=9,keep_alive_timeout=9,start_timeout=9", "x"});
  CHECK(line.problems == Args{});
  CHECK(line.config.timeouts.last_call == 1500ms);
  CHECK(line.config.timeouts.keep_alive == 2s);
  CHECK(line.config.keep_alive_interval == 500ms);
  CHECK(line.config.timeouts.start == 3s);
  CHECK(line.config.timeouts.exit_barrier == 4s);
  CHECK(parse({"--replacement-timeout=60", "x"}).config.timeouts.replacement == 60s);
  CHECK(parse({"--rdzv-conf=replacement_timeout=7", "x"}).config.timeouts.replacement == 7s);
  CHECK(line.config.timeouts.replacement == 0s);
  CHECK_THAT(only_problem({"--keep-alive-interval=0", "x"}), Contains("more than 0"));
  CHECK_THAT(only_problem({"--start-timeout=soon", "x"}), Contains("--start-timeout=soon"));
}

TEST_CASE("command line: torchrun's keep-alive keys, intervals and attempts") {
  const auto keep_alive = [](const std::string& conf) {
    const LaunchConfig config = parse({"--rdzv-conf=" + conf, "x"}).config;
    return std::pair(config.keep_alive_interval, config.timeouts.keep_alive);
  };
  using Times = std::pair<std::chrono::milliseconds, std::chrono::milliseconds>;
  CHECK(keep_alive("is_host=1") == Times(0s, 5s));
  CHECK(keep_alive("keep_alive_interval=2") == Times(2s, 6s));
  CHECK(keep_alive("keep_alive_interval=2,keep_alive_max_attempt=4") == Times(2s, 8s));
  CHECK(keep_alive("keep_alive_max_attempt=4") == Times(0s, 20s));
  CHECK(keep_alive("keep_alive_interval=2,keep_alive_timeout=30") == Times(2s, 30s));
  CHECK_THAT(only_problem({"--rdzv-conf=keep_alive_max_attempt=0", "x"}), Contains("more than 0"));
}

TEST_CASE("command line: an unknown flag is named, with a suggestion") {
  CHECK_THAT(only_problem({"--nproc-per-nod3", "2", "x"}),
             Contains("unknown flag --nproc-per-nod3 ") && Contains("--nproc-per-node?"));
  CHECK_THAT(only_problem({"--max_restrats=2", "x"}), Contains("--max-restarts?"));
  CHECK_THAT(only_problem({"--standalome", "x"}), Contains("--standalone?"));
  CHECK_THAT(only_problem({"--zzz", "x"}), !Contains("did you mean"));
}

TEST_CASE("command line: all unknown flags are told, and all values that are wrong") {
  const auto load = [](const std::string&) -> std::vector<ConfigFile> {
    return {parse_config_file("zz = 1\nyy = 1", "f")};
  };
  const CommandLine line = parse_command_line(
      {"--max_restrats", "2", "--zzz", "--standalone=x", "--nnodes=0", "--rdzv-id"}, {}, load);
  REQUIRE(line.problems.size() == 7);
  const char* const wanted[] = {"unknown flag --max_restrats ",
                                "unknown flag --zzz;",
                                "--standalone=x: this flag takes no value",
                                "--rdzv-id: wants a value, ID",
                                "f:1: unknown key zz",
                                "f:2: unknown key yy",
                                "--nnodes=0: wants N or MIN:MAX"};
  for (int i = 0; i < 7; ++i) CHECK_THAT(line.problems[i], StartsWith(wanted[i]));
}

TEST_CASE("command line: other launchers' names of flags are told ddprun's") {
  for (const char* flag : {"-n", "-np", "--nprocs", "--num_processes", "--num-gpus"}) {
    CHECK_THAT(only_problem({flag, "4", "x"}), Contains("did you mean --nproc-per-node?"));
  }
  CHECK_THAT(only_problem({"-N", "4", "x"}), Contains("did you mean --nnodes?"));
  CHECK_THAT(only_problem({"--main_process_port=1", "x"}), Contains("--master-port?"));
}

TEST_CASE("command line: flags of ddprun's that stand after PROGRAM are warned of") {
  const auto notes = [](const Args& args) { return parse(args).config.notes; };
  CHECK(notes({"train.py", "--nproc_per_node=4", "--config=x", "--nnodes", "2"}) ==
        Args{"warning: --nproc_per_node, --nnodes after train.py go to that program; ddprun's own "
             "flags come before it"});
  CHECK(notes({"--nnodes=1", "train.py", "--nnodes=2"}).empty());
  CHECK(notes({"--", "sh", "-c", "x", "--", "--nnodes=2"}).empty());
}

TEST_CASE("command line: a flag may be abbreviated, as torchrun has it") {
  CHECK(parse({"--nproc", "2", "x"}).config.nproc_per_node == "2");
  // Torchrun has no other flag with this begin.
  CHECK(parse({"--max_r=2", "x"}).config.max_restarts == 2);
  CHECK(parse({"--max-restart-d=2", "x"}).config.timeouts.max_restart_delay == 2s);
  CHECK(parse({"--stand", "x"}).config.standalone);
  for (const std::string several : {"--n", "--ma", "--rdzv", "--hang-"}) {
    CHECK_THAT(only_problem({several, "x"}), Contains("unknown flag " + several));
  }
}

TEST_CASE("command line: --no- before a flag of on and off is off, and such a flag alone has it") {
  CHECK(parse({"x"}).config.observes);
  for (const std::string flag : {"--no-observe", "--no_observe", "--observe=off"}) {
    CAPTURE(flag);
    const CommandLine line = parse({flag, "x"}, {{"DDPRUN_OBSERVE", "on"}});
    CHECK((line.problems.empty() && line.config.program == "x"));
    CHECK_FALSE(line.config.observes);
  }
  CHECK(parse({"--no-observe", "--observe=on", "x"}).config.observes);  // the last one counts
  CHECK_THAT(only_problem({"--no-observe=on", "x"}),
             Contains("--no-observe=on: this flag takes no value"));
  CHECK_THAT(only_problem({"--no-preflight-doctor", "x"}),
             Contains("unknown flag --no-preflight-doctor"));
}

TEST_CASE("command line: a place or a name that is given and empty is a problem, not a default") {
  for (const std::string flag : {"--rdzv-endpoint", "--rdzv-id", "--master-addr", "--local-addr"}) {
    CHECK_THAT(only_problem({flag + "=", "--nnodes=2", "x"}), Contains(flag + "=: wants"));
  }
}

TEST_CASE("command line: the flags of what a job survives are read") {
  const LaunchConfig config =
      parse({"--max_node_losses=2", "--exclude-after=3", "--spares=4", "--prewarm",
             "--on-join=restart", "--max-restart-delay=0.5", "x"})
          .config;
  CHECK(config.max_node_losses == 2);
  CHECK(config.exclude_after == 3);
  CHECK(parse({"--no-progress-restarts=3", "x"}).config.no_progress_restarts == 3);
  CHECK(parse({"--recovery=inplace", "x"}).config.recovery == membership::Recovery::kInPlace);
  CHECK_THAT(only_problem({"--recovery=maybe", "x"}), Contains("must be restart or inplace"));
  CHECK(parse({"--max-preemptions=3", "x"}).config.max_preemptions == 3);
  CHECK(parse({"--time_limit=90m", "--preemption_notice=30", "x"}).config.preemption.time_limit ==
        std::chrono::minutes(90));
  CHECK(config.spares == 4);
  CHECK(config.prewarm);
  CHECK_FALSE(parse({"x"}).config.prewarm);
  CHECK(config.restart_on_join);
  CHECK(config.timeouts.max_restart_delay.count() == 500);
  CHECK_THAT(only_problem({"--on-join=never", "x"}), Contains("must be wait or restart"));
  CHECK_THAT(only_problem({"--no-progress-restarts=often", "x"}),
             Contains("--no-progress-restarts"));
  CHECK_THAT(only_problem({"--time-limit=", "x"}), Contains("--time-limit"));
  CHECK_THAT(only_problem({"--time-limit=30", "x"}), Contains("longer than --preemption-notice"));
  CHECK_THAT(only_problem({"--preemption-signals=FOO", "x"}), Contains("FOO"));
  CHECK_THAT(only_problem({"--spares=-1", "x"}), Contains("--spares"));
  CHECK_THAT(only_problem({"--max-restart-delay=", "x"}), Contains("--max-restart-delay"));
}

TEST_CASE("command line: all problems at once, each naming its flag") {
  const CommandLine line =
      parse({"--nnodes=0", "--max-restarts=-1", "--master-port=70000", "--rdzv-backend=etcd-v2",
             "--shutdown-timeout=x", "--rdzv-conf=is_host=x", "-m", "--no-python"});
  std::string all;
  for (const std::string& problem : line.problems) all += problem + "\n";
  for (const char* flag :
       {"--nnodes", "--max-restarts", "--master-port", "--rdzv-backend",
        "--ha=", "--shutdown-timeout", "is_host=x", "PROGRAM is missing", "--no-python"}) {
    CHECK_THAT(all, Contains(flag));
  }
}

TEST_CASE("command line: sizes that can't be are refused") {
  for (const char* nnodes : {"0", "-1", "x", "2:1", "1:", ":2", "1:2:3", ""}) {
    CAPTURE(nnodes);
    CHECK_THAT(only_problem({std::string("--nnodes=") + nnodes, "x"}), StartsWith("--nnodes"));
  }
  CHECK_THAT(only_problem({"--nnodes=2", "--node-rank=2", "x"}), StartsWith("--node-rank=2"));
  CHECK_THAT(only_problem({"--standalone", "--nnodes=2", "x"}), StartsWith("--standalone"));
  CHECK_THAT(only_problem({"--rdzv-endpoint=h:x", "x"}), StartsWith("--rdzv-endpoint=h:x"));
}

TEST_CASE("command line: a value that is missing is a problem, not a crash") {
  CHECK_THAT(only_problem({"--nnodes"}), Contains("--nnodes"));
}

TEST_CASE("command line: PET_* where the flag isn't given") {
  const Environment environment = {{"PET_NNODES", "2"},
                                   {"PET_NPROC_PER_NODE", "5"},
                                   {"PET_NODE_RANK", "1"},
                                   {"PET_MASTER_ADDR", "elsewhere"}};
  const CommandLine line = parse({"--nproc-per-node=6", "x"}, environment);
  CHECK(line.problems.empty());
  CHECK(line.config.max_nodes == 2);
  CHECK(line.config.nproc_per_node == "6");
  CHECK(line.config.node_rank == 1);
  CHECK(line.config.master_addr.empty());  // discovery reads this variable in an order of its own
}

TEST_CASE("command line: the strongest of several sources counts, and is named with its problem") {
  const auto load = [](const std::string& named) {
    std::vector<ConfigFile> files;
    if (!named.empty()) {
      files.push_back(parse_config_file("nnodes = 3\nspares = 9\nmax_restarts = 1", named));
    }
    files.push_back(parse_config_file("nnodes = \"2:4\"\nprewarm = true\nrole = \"f\"", "/etc/d"));
    return files;
  };
  Environment environment = {{"PET_SPARES", "2"}, {"DDPRUN_SPARES", "3"}, {"PET_ROLE", "p"}};
  LaunchConfig config = parse_command_line({"--max-restarts=7", "x"}, environment, load).config;
  CHECK(config.max_nodes == 4);
  CHECK(config.prewarm);
  CHECK(config.spares == 3);
  CHECK(config.role == "p");
  CHECK(config.max_restarts == 7);
  config = parse_command_line({"--config=mine.toml", "x"}, environment, load).config;
  CHECK(config.max_nodes == 3);
  CHECK(config.max_restarts == 1);
  environment["DDPRUN_CONFIG"] = "mine.toml";
  environment["DDPRUN_PREWARM"] = "no";
  config = parse_command_line({"x"}, environment, load).config;
  CHECK(config.max_nodes == 3);
  CHECK_FALSE(config.prewarm);
  environment = {{"DDPRUN_SPARES", "many"}};
  CommandLine line = parse_command_line({"x"}, environment, load);
  REQUIRE(line.problems.size() == 1);
  CHECK(line.problems[0] == "DDPRUN_SPARES=many: wants a number from 0 to 1000000");
  line = parse_command_line({"x"}, {}, [](const std::string&) {
    return std::vector{parse_config_file("\n\nspares = \"many\"", "/etc/d")};
  });
  REQUIRE(line.problems.size() == 1);
  CHECK_THAT(line.problems[0], StartsWith("/etc/d:3: spares = many: wants"));
  line = parse_command_line({"x"}, {}, [](const std::string&) -> std::vector<ConfigFile> {
    throw Error(ErrorCode::kInvalidArgument, "can't read it");
  });
  CHECK(line.problems == Args{"can't read it"});
}

TEST_CASE("command line: --show-config has every value, who gave it, and reads back") {
  const Environment environment = {{"PET_NNODES", "2"}, {"DDPRUN_RDZV_ENDPOINT", "head:1"}};
  const CommandLine line = parse({"--show-config", "--role=a \"b\"", "--prewarm"}, environment);
  CHECK(line.problems.empty());  // without a PROGRAM
  CHECK(line.action == CommandLine::Action::kPrintText);
  for (const char* text :
       {"\nnnodes = 2  # PET_NNODES\n", "\nrole = \"a \\\"b\\\"\"  # command line\n",
        "\nprewarm = true  # command line\n", "\n#max_restarts = 0  # ",
        "\nrdzv_endpoint = \"head:1\"  # DDPRUN_RDZV_ENDPOINT\n"}) {
    CHECK_THAT(line.text, Contains(text));
  }
  const ConfigFile again = parse_config_file(line.text, "f");
  CHECK(again.rdzv_endpoint == "head:1");
  CHECK(again.options.size() == 3);
}

TEST_CASE("command line: --help starts with examples, --version has the version") {
  const CommandLine line = parse({"--help"});
  CHECK(line.action == CommandLine::Action::kPrintText);
  CHECK(line.text.find("Examples:") < line.text.find("Usage:"));
  CHECK_THAT(line.text, Contains("--nproc-per-node N|auto|gpu|cpu"));
  CHECK_THAT(parse({"--version"}).text, StartsWith("ddprun " DDPRUN_VERSION));
}

TEST_CASE("command line: -h is one screen") {
  const std::string text = parse({"-h"}).text;
  CHECK_THAT(text, Contains("Usage:") && Contains("--nproc-per-node N|auto|gpu|cpu"));
  CHECK(std::count(text.begin(), text.end(), '\n') <= 24);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    CHECK(line.size() <= 80 + 2);  // "…" has three bytes
  }
}

TEST_CASE("command line: --preflight, given and empty it is none, whatever a file says") {
  const LaunchConfig config =
      parse({"--preflight", "check --quick", "--preflight_timeout=1.5", "x"}).config;
  CHECK(config.preflight == "check --quick");
  CHECK(config.preflight_timeout == 1500ms);
  CHECK(parse({"--preflight=", "x"}).config.preflight == "");
  CHECK(parse({"x"}).config.preflight_doctor == DoctorGate::kOff);
  CHECK(parse({"--preflight-doctor=warn", "x"}).config.preflight_doctor == DoctorGate::kWarn);
  CHECK_THAT(only_problem({"--preflight-doctor=yes", "x"}),
             Contains("--preflight-doctor=yes: must be off, fail or warn"));
  CHECK(parse({"x"}).config.preflight.empty());
  CHECK_THAT(only_problem({"--preflight-timeout=0", "x"}),
             Contains("--preflight-timeout=0: must be"));
  CHECK_THAT(only_problem({"--preflight-timeout=", "x"}), Contains("--preflight-timeout"));
  CHECK_THAT(only_problem({"--preflight-timeout=1h", "x"}), Contains("--preflight-timeout=1h"));
}

TEST_CASE("command line: --hang-timeout is of steps, or by key, with units, --hang-action") {
  LaunchConfig config = parse({"--hang-timeout=30s", "--hang_action=report", "x"}).config;
  CHECK(config.hang_limits.step == 30s);
  CHECK_FALSE(config.hang_limits.checkpoint.has_value());
  CHECK(config.hang_action == membership::HangAction::kReport);
  const CommandLine line =
      parse({"--hang-timeout", "step=0.5,first=10m,checkpoint=2h,foreign=90,startup=1s", "x"});
  CHECK(line.problems.empty());
  config = line.config;
  CHECK(config.hang_limits.step == 500ms);
  CHECK(config.hang_limits.first == 10min);
  CHECK(config.hang_limits.checkpoint == 2h);
  CHECK(config.hang_limits.foreign == 90s);
  CHECK(config.hang_limits.startup == 1s);
  CHECK(parse({"x"}).config.hang_action == membership::HangAction::kDefault);
  CHECK_FALSE(parse({"x"}).config.hang_limits.step.has_value());
  CHECK(parse({"--hang-action=off", "x"}).config.hang_action == membership::HangAction::kOff);
}

TEST_CASE("command line: hang flags that mean nothing are problems") {
  CHECK_THAT(only_problem({"--hang-action=kill", "x"}),
             Contains("--hang-action=kill: must be restart, report or off"));
  CHECK_THAT(only_problem({"--hang-timeout=steps=3s", "x"}),
             Contains("unknown key \"steps\" (did you mean"));
  for (const std::string bad :
       {"", "0", "-1s", "3 s", "3d", "1e9", "nan", "step=", "=3s", "3s,,4s"}) {
    CAPTURE(bad);
    CHECK_THAT(only_problem({"--hang-timeout=" + bad, "x"}), Contains("--hang-timeout="));
  }
}

TEST_CASE("cli: a letter takes its value in any of argparse's ways") {
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"-r3"}, {"-r=3"}, {"-r", "3"}, {"--redirects=3"}}) {
    std::vector<std::string> args = flags;
    args.push_back("train");
    const CommandLine line = parse_command_line(args, {});
    CHECK(line.problems.empty());
    CHECK(line.config.program == "train");
    CHECK(line.config.output.redirects.of(0) == ddprun::agent::StreamSet{true, true});
  }
  for (const char* flag : {"-r", "-rx", "-mx", "-x", "-r="}) {
    CAPTURE(flag);
    CHECK(parse_command_line({flag}, {}).problems.size() > 0);
  }
}
