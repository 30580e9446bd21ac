// SPDX-License-Identifier: Apache-2.0
// The job file, and the command line that it means.
#include "ctl/submit/job_file.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>

#include "common/shell_words.h"
#include "common/text.h"
#include "ctl/submit/ddprun_command.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

namespace ddprun::submit {
namespace {

using Catch::Matchers::Equals;
using ddprun::test::Contains;

constexpr char kLeast[] = "name = \"digits\"\ncommand = [\"train\", \"--epochs=5\"]\n";

JobFile job_of(const std::string& more) {
  return JobFile::parse(kLeast + more, "job.toml", "/home/ada");
}

std::string why_not(const std::string& more) {
  return ddprun::test::error_of([&] { job_of(more); }).what();
}

std::string file_text(const std::string& path) {
  std::ifstream file(std::string(DDPRUN_SOURCE_DIR) + "/" + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string command_of(const JobFile& job) { return shell_line(ddprun_command(job, {})); }

TEST_CASE("job file: the least of it, and what is left out") {
  const JobFile job = job_of("");
  CHECK(job.name == "digits");
  CHECK(job.command == std::vector<std::string>{"train", "--epochs=5"});
  CHECK(job.max_nodes == 0);
  CHECK(job.workers_per_node.empty());
  CHECK(job.work_directory() == "/home/ada");
  CHECK(job.output_directory() == "/home/ada");
  CHECK(job.restarts.requeues == 20);
  CHECK(job.places.empty());
  CHECK(command_of(job) == "ddprun --nnodes=1 train --epochs=5");
}

TEST_CASE("job file: all problems at once, in the order of its lines, with the nearest key") {
  const std::string why = ddprun::test::error_of([&] {
                            JobFile::parse(
                                "worker_per_node = 4\nnodes = \"4:2\"\n[limit]\nmemory = \"8G\"\n"
                                "[to.slurm]\npartitoin = \"gpu\"\nexclusive = 1\n",
                                "job.toml", "/");
                          }).what();
  CHECK(why ==
        "job.toml: it has no name: name = \"digits\"\n"
        "job.toml: it has no command: command = [\"train\", \"--epochs=5\"]\n"
        "job.toml:1: unknown key worker_per_node (did you mean workers_per_node?)\n"
        "job.toml:2: nodes wants N or \"MIN:MAX\" with 1 ≤ MIN ≤ MAX ≤ 100000\n"
        "job.toml:3: unknown key limit (did you mean limits?)\n"
        "job.toml:6: unknown key to.slurm.partitoin (did you mean to.slurm.partition?)\n"
        "job.toml:7: to.slurm.exclusive wants true or false");
}

TEST_CASE("job file: a text that is no TOML is told with its line") {
  CHECK_THAT(why_not("nodes = \n"), Contains("job.toml:3: "));
}

TEST_CASE("job file: a value of another kind says what is wanted") {
  CHECK_THAT(why_not("nodes = n\t"), Contains("job.toml:3: ") && Contains("'n\\t'"));
  CHECK_THAT(why_not("nodes = 0"), Contains("job.toml:3: nodes wants N"));
  CHECK_THAT(why_not("nodes = 1000000"), Contains("MAX ≤ 100000"));
  CHECK_THAT(why_not("nodes = true"), Contains("nodes wants N"));
  CHECK_THAT(why_not("workers_per_node = \"many\""), Contains("wants a number from 1 to 100000"));
  CHECK_THAT(why_not("spares = -1"), Contains("spares wants a number from 0 to 100000"));
  CHECK_THAT(why_not("flags = [\"4\"]"), Contains("flags: \"4\" is none"));
  CHECK_THAT(why_not("flags = \"--x\""), Contains("wants texts"));
  CHECK_THAT(why_not("[environment]\n\"A-B\" = \"x\""), Contains("wants names of letters"));
  CHECK_THAT(why_not("[environment]\nA = true"), Contains("wants a text for A"));
  CHECK_THAT(why_not("limits = 3"), Contains("limits is a table: [limits]"));
  CHECK_THAT(why_not("limits.time = \"soon\""), Contains("wants a time of 1 s or more"));
  CHECK_THAT(why_not("preflight.doctor = true"),
             Contains("preflight.doctor wants \"off\", \"fail\" or \"warn\""));
  CHECK_THAT(why_not("log_dir = \"a\\nb\""), Contains("log_dir wants a path"));
  CHECK_THAT(why_not("to.ssh.hosts = [\"a\"]\nto.ssh.hostfile = \"b\""), Contains("one of them"));
  CHECK_THAT(why_not("[to.nodes]\nendpoint = \":::\""),
             Contains("job.toml:4: to.nodes.endpoint = \":::\": "));
  CHECK_THAT(why_not("to.kubernetes.kind = \"pod\""), Contains("\"job\" or \"jobset\""));
  for (const char* name : {"", "-x", "a b", "a/b"}) {
    CHECK_THAT(
        ddprun::test::error_of([&] {
          JobFile::parse(std::string("command = [\"x\"]\nname = \"") + name + "\"", "job.toml",
                         "/");
        }).what(),
        Equals("job.toml:2: name wants at most 63 letters, digits, \".\", \"_\" and \"-\", a "
               "letter or digit first"));
  }
  CHECK(ddprun::test::error_of([] {
          JobFile::parse("name = \"x\"\ncommand = \"train\"", "job.toml", "/");
        }).what() == std::string("job.toml:2: command wants texts: [\"one\", \"two\"]"));
}

TEST_CASE(
    "job file: all problems of [environment], each with its line, and the workers' own names") {
  CHECK(why_not("[environment]\nA = 1\n\"A-B\" = \"x\"\nRANK = 3\nB = true\n"
                "MASTER_ADDR = \"n1\"\nDDPRUN_ROUND = 1") ==
        "job.toml:5: environment wants names of letters, digits and _, not \"A-B\"\n"
        "job.toml:6: environment can't have RANK: ddprun itself sets it for each worker\n"
        "job.toml:7: environment wants a text for B\n"
        "job.toml:8: environment can't have MASTER_ADDR: ddprun itself sets it for each worker\n"
        "job.toml:9: environment can't have DDPRUN_ROUND: ddprun itself sets it for each worker");
  CHECK(why_not("environment_without = [\"A\", \"B=1\"]") ==
        "job.toml:3: environment_without wants names of variables: [\"WANDB_API_KEY\"]");
  CHECK(why_not("environment = 3") == "job.toml:3: environment wants a table of texts");
  CHECK(why_not("[to.kubernetes.labels]\na = 1\nb = 2") ==
        "job.toml:4: to.kubernetes.labels wants a text for a\n"
        "job.toml:5: to.kubernetes.labels wants a text for b");
  CHECK(job_of("[environment]\nOMP_NUM_THREADS = 4\nCUDA_VISIBLE_DEVICES = \"0\"")
            .environment.size() == 2);
}

TEST_CASE(
    "job file: a path with a line break, and keys without end, are told in lines of their own") {
  const auto why = [](const std::string& text) -> std::string {
    return ddprun::test::error_of([&] { JobFile::parse(kLeast + text, "a\nb.toml", "/"); }).what();
  };
  CHECK(why("x = 1") == "a\\nb.toml:3: unknown key x");
  CHECK(job_of("").path == "job.toml");
  CHECK(why(std::string(900'000, 'k') + " = 1") ==
        "a\\nb.toml:3: unknown key " + std::string(80, 'k') + "…");
  std::string many;
  for (int i = 0; i < 150; ++i) many += concat("q", i, "z = 1\n");
  const std::string all = why(many);
  CHECK(std::count(all.begin(), all.end(), '\n') == 100);
  CHECK_THAT(all, Contains("a\\nb.toml: … and 50 more"));
}

TEST_CASE(
    "job file: a text too long to start a program with is refused before it waits in a queue") {
  const std::string longest(kMaxArgumentBytes - 2, 'x');  // it comes behind "A="
  CHECK_NOTHROW(job_of("[environment]\nA = \"" + longest + "\""));
  CHECK(why_not("[environment]\nA = \"" + longest + "x\"") ==
        "job.toml:4: environment can't have A=…, 131072 bytes: no program is started with more "
        "than 131071 in one variable; name a file in its place");
  CHECK_THAT(ddprun::test::error_of([&] {
               JobFile::parse("name = \"a\"\ncommand = [\"sh\", \"" + longest + "xxx\"]",
                              "job.toml", "/");
             }).what(),
             Contains("command has a text of 131072 bytes"));
}

TEST_CASE("job file: flags whose matter a key or the place decides, however they are written") {
  const std::string before =
      "# Files: none\nnnodes = 2  # command line\n#nproc_per_node = 1  # workers\n"
      "#--node-rank  # not from a file\nrdzv_id = \"mine\"  # DDPRUN_RDZV_ID\n";
  CHECK(decided_flags("nodes", before, before).empty());
  CHECK(decided_flags("nodes", before, before + "hang_timeout = 600  # command line\n").empty());
  using Lines = std::vector<std::string>;
  CHECK(decided_flags("nodes", before,
                      "nnodes = 9  # command line\nnproc_per_node = 1  # command line\n"
                      "node_rank = 0  # command line\nrdzv_id = \"mine\"  # DDPRUN_RDZV_ID\n") ==
        Lines{"flags: --nnodes is decided by a key of the job file: say nodes in its place",
              "flags: --nproc-per-node is decided by a key of the job file: say workers_per_node "
              "in its place",
              "flags: --node-rank is not the job's to say with --to nodes: leave it out"});
  const std::string hosts = "hosts = \"a\"  # command line\n",
                    endpoint = "rdzv_endpoint = \"a\"  # command line\n";
  CHECK_THAT(decided_flags("ssh", "", hosts).at(0), Contains("say to.ssh.hosts in its place"));
  CHECK_THAT(decided_flags("slurm", "", hosts).at(0), Contains("with --to slurm: leave it out"));
  CHECK(decided_flags("slurm", "", endpoint).empty());
  CHECK_THAT(decided_flags("nodes", "", endpoint).at(0), Contains("say to.nodes.endpoint"));
}

TEST_CASE("job file: flags with which ddprun would print something, and run nothing") {
  for (const char* flag : {"-h", "--help", "--version", "--dry-run", "--dry_run", "--dry",
                           "--show-config", "--print-man=ddprun", "--print-completion=bash"}) {
    CHECK(why_not(concat("flags = [\"", flag, "\"]")) ==
          concat("job.toml: flags: with \"", flag, "\" ddprun runs nothing"));
  }
  CHECK_NOTHROW(job_of("flags = [\"--verbose\", \"-r\", \"--\", \"--hang-timeout=10m\"]"));
}

TEST_CASE("job file: each key that is a flag of ddprun becomes that flag") {
  const JobFile job = job_of(
      "nodes = \"2:4\"\nspares = 1\nworkers_per_node = \"gpu\"\nlog_dir = \"logs\"\n"
      "flags = [\"--hang-timeout=10m\"]\nlimits = {memory = \"8G\", pids = 512, cpuset = \"0-3\", "
      "io = \"x y\", time = \"1h\"}\n"
      "preflight = {doctor = \"fail\", command = \"check it\", timeout = 5}\n"
      "[restarts]\nmax_restarts = 3\nmax_node_losses = 4\nmax_preemptions = "
      "5\nno_progress_restarts = 6\nexclude_after = 7\n"
      "[environment]\nTOKEN = \"hidden\"\nOMP_NUM_THREADS = 4\n");
  CHECK(command_of(job) ==
        "ddprun --nnodes=2:4 --spares=1 --nproc-per-node=gpu --worker-memory=8G --worker-pids=512 "
        "--worker-cpuset=0-3 '--worker-io=x y' --exclude-after=7 --max-node-losses=4 "
        "--max-preemptions=5 --max-restarts=3 --no-progress-restarts=6 --preflight-doctor=fail "
        "'--preflight=check it' --preflight-timeout=5 --log-dir=/home/ada/logs --tee=3 "
        "--hang-timeout=10m train --epochs=5");
  CHECK(job.environment ==
        std::map<std::string, std::string>{{"OMP_NUM_THREADS", "4"}, {"TOKEN", "hidden"}});
  CHECK(job.limits.time == std::chrono::hours(1));
}

TEST_CASE("job file: a time out of what --show-config says, given or by default") {
  using std::chrono::milliseconds;
  const std::string config =
      "# Files: none\n#keep = \"\"  # help\nshutdown_timeout = 5  # --shutdown-timeout\n"
      "#late = 2.5  # by default\nlong = \"2m\"  # /etc/ddprun/ddprun.toml\nlast = 7";
  CHECK(shown_time(config, "shutdown_timeout") == milliseconds(5'000));
  CHECK(shown_time(config, "late") == milliseconds(2'500));
  CHECK(shown_time(config, "long") == milliseconds(120'000));
  CHECK(shown_time(config, "last") == milliseconds(7'000));
  CHECK_FALSE(shown_time(config, "keep").has_value());
  CHECK_FALSE(shown_time(config, "none").has_value());
}

TEST_CASE("job file: a program whose name begins with a dash is no flag") {
  const JobFile job = JobFile::parse("name = \"x\"\ncommand = [\"-x\"]", "job.toml", "/");
  CHECK(command_of(job) == "ddprun --nnodes=1 -- -x");
}

// "[to.slurm]" and "#partition = …" → "to.slurm.partition".
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("job file: the example is a job file, also with each key of its comments") {
  const std::string example = file_text("configs/job.toml");
  CHECK(JobFile::parse(example, "job.toml", "/").places.size() == 4);
  std::vector<std::string> lines = lines_of(example);
  const std::regex key(R"(^#?(\w+) = .*$)"), table(R"(^\[([\w.]+)\].*$)");
  std::set<std::string> names;
  std::string inside;
  for (std::string& line : lines) {
    std::smatch parts;
    if (std::regex_match(line, parts, table)) inside = parts[1].str() + ".";
    if (!std::regex_match(line, parts, key)) continue;
    names.insert(inside + parts[1].str());
    if (parts[1] == "hostfile") continue;  // beside hosts this key is one too many
    const std::string before = line;
    if (line.front() == '#') line.erase(0, 1);
    std::string all;
    for (const std::string& each : lines) all += each + "\n";
    INFO(line);
    CHECK_NOTHROW(JobFile::parse(all, "job.toml", "/"));
    line = before;
  }
  for (const std::string& each : job_key_names()) {
    const bool is_there = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return each.ends_with('.') ? name.starts_with(each) : name == each;
    });
    INFO(each);
    CHECK(is_there);
  }
}

TEST_CASE("job file: docs/submit.md has a row for each key") {
  const std::vector<std::string> page = lines_of(file_text("docs/submit.md"));
  for (const std::string& key : job_key_names()) {
    // The row is in the section of its place, without "to.PLACE.".
    std::string name = key, section = "## The job file";
    if (name.starts_with("to.")) {
      const std::size_t dot = name.find('.', 3);
      section = "### `[" + name.substr(0, dot) + "]`";
      name = name.substr(dot + 1);
    }
    const std::string wanted = name.ends_with('.') ? "`" + name : "`" + name + "`";
    bool is_inside = false, is_there = false;
    for (const std::string& line : page) {
      if (line.starts_with("## ") || line.starts_with("### ")) is_inside = line == section;
      const std::string cell = line.substr(0, line.find(" | "));
      is_there = is_there ||
                 (is_inside && line.starts_with("| ") && cell.find(wanted) != std::string::npos);
    }
    INFO(key);
    CHECK(is_there);
  }
}

}  // namespace
}  // namespace ddprun::submit
