// SPDX-License-Identifier: Apache-2.0
// `ddprunctl doctor` checks if this node is fit for jobs, and says what to correct. docs/doctor.md.
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <boost/json/value.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/child_process.h"
#include "common/clock.h"
#include "common/env_names.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/interfaces.h"
#include "common/json.h"
#include "common/process_facts.h"
#include "common/socket.h"
#include "common/suggest.h"
#include "common/text.h"
#include "common/unique_fd.h"
#include "common/utf8.h"
#include "ctl/commands.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/facts.h"
#include "ctl/doctor/judge.h"
#include "ctl/doctor/nodes/node_exchange.h"
#include "ctl/doctor/report.h"
#include "ctl/doctor/thresholds.h"
#include "ctl/endpoint_flags.h"
#include "ctl/number_between.h"
#include "rendezvous/store/tcp_store.h"

namespace ddprun::ctl {
namespace {

using Chosen = std::vector<const doctor::Check*>;

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<long long>(seconds * 1000));
}

bool is_in(const Chosen& checks, const doctor::Check* check) {
  return std::find(checks.begin(), checks.end(), check) != checks.end();
}

// Chooses the checks, without those that `skip` or the thresholds' file names. `of_nodes` adds
// those that compare nodes, `of_ranks` those of the full tier.
Chosen chosen_checks(const std::string& only, const std::string& skip,
                     const doctor::Thresholds& thresholds, bool of_nodes, bool of_ranks) {
  Chosen chosen;
  if (!only.empty()) chosen = doctor::parse_checks(only, "--only");
  Chosen left_out = skip.empty() ? Chosen() : doctor::parse_checks(skip, "--skip");
  if (!thresholds.skip().empty()) {
    const Chosen more = doctor::parse_checks(thresholds.skip(), "skip of the thresholds");
    left_out.insert(left_out.end(), more.begin(), more.end());
  }
  Chosen result;
  for (const doctor::Check& check : doctor::check_table()) {
    if ((check.is_of_nodes() && !of_nodes) || (check.is_of_all_ranks && !of_ranks)) continue;
    if ((only.empty() || is_in(chosen, &check)) && !is_in(left_out, &check))
      result.push_back(&check);
  }
  return result;
}

// `our_seconds` is this node's clock, about when the page was written.
doctor::EndpointAnswer answer_of_page(const std::string& text, double our_seconds) {
  auto object = parse_object(text);
  const boost::json::value page = object ? boost::json::value(std::move(*object)) : nullptr;
  doctor::EndpointAnswer answer;
  // Other JSON pages may have a version, but only a rendezvous' page has both stores and agents.
  if (!json_at::at(page, "stores").is_object() || !json_at::at(page, "agents").is_object()) {
    answer.failure = "what answers there is no ddprun rendezvous";
    return answer;
  }
  answer.version = json_at::text(page, "version");
  const auto time = json_at::number(page, "time_seconds");
  if (time) answer.skew_seconds = *time - our_seconds;
  return answer;
}

constexpr double kStandardSeconds = 30, kFullSeconds = 120;

double wall_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::string default_state_dir() {
  const char* of_unit = std::getenv("STATE_DIRECTORY");
  return of_unit != nullptr && *of_unit != '\0' ? of_unit : "/var/lib/ddprun";
}

doctor::Thresholds thresholds_of(const std::string& file) {
  return file.empty() ? doctor::Thresholds() : doctor::Thresholds::from_file(file);
}

constexpr std::chrono::seconds kEndPatience{10};
constexpr std::size_t kMaxReasonBytes = 1024;

// Asks for the end of this worker's job through its agent's socket (docs/agent-socket.md). So the
// finding doesn't count as a failed worker, and every node's ddprun prints it in a line. Then waits
// until this process is ended, for some seconds at most. Returns earlier if nobody takes the
// request.
void end_job(const Environment& environment, const doctor::Place& place, const std::string& reason,
             int exit_code) {
  const auto path = find_variable(environment, env::kAgentSocket);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (!path || path->size() >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path->data(), path->size());
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto* target = reinterpret_cast<const sockaddr*>(&address);
  if (!fd || ::connect(fd.get(), target, sizeof address) != 0) return;
  const std::string lines =
      concat(R"({"type":"hello","version":1,"round":)", place.round, R"(,"local_rank":)",
             place.local_rank, "}\n", R"({"type":"stop_job","reason":")",
             json_text(reason, kMaxReasonBytes), R"(","exit_code":)", exit_code, "}\n");
  const Deadline deadline = Deadline::after(kEndPatience);
  try {
    send_all(fd.get(), lines.data(), lines.size(), deadline);
    char answer[4096];
    while (wait_ready(fd.get(), POLLIN, deadline)) {
      if (!receive_step(fd.get(), answer, sizeof answer).ended.empty()) return;
    }
  } catch (const Error&) {  // the exit status tells it, too
  }
}

// While it exists, these signals wait in `fd`. They stay blocked after it: signals that come after
// the child's end have no effect.
struct HeldSignals {
  HeldSignals() {
    sigset_t held;
    sigemptyset(&held);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&held, number);
    fd.reset(::signalfd(-1, &held, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd) throw_system_error("signalfd", errno);
    ::sigprocmask(SIG_BLOCK, &held, &before);
  }
  UniqueFd fd;
  sigset_t before{};
};

// Runs argv[0], a path, and waits for it. It has this process' terminal and streams. Sends SIGINT,
// SIGTERM, SIGHUP and SIGQUIT on to it, except those from the terminal (^C), which it gets itself.
// Returns its exit status, or 128 and its signal. Throws Error(kUnavailable) if it can't be
// started. Blocking; one thread.
int run_in_foreground(const std::vector<std::string>& argv) {
  const HeldSignals signals;
  Child child;
  try {
    child = start_child({.argv = argv,
                         .environment = to_strings(current_environment()),
                         .keeps_ignored = true,
                         .blocked = signals.before});
  } catch (const StartError& error) {
    throw Error(ErrorCode::kUnavailable,
                "can't run " + argv.front() + ": " + errno_text(error.error_number()));
  }
  std::array<pollfd, 2> polled = {pollfd{child.pidfd.get(), POLLIN, 0},
                                  pollfd{signals.fd.get(), POLLIN, 0}};
  while (polled[0].revents == 0) {
    if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) {
      throw_system_error("poll", errno);
    }
    signalfd_siginfo info{};
    if (polled[1].revents == 0 ||
        ::read(signals.fd.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) {
      continue;
    }
    // The kernel sends the terminal's signals to the child, too.
    if (info.ssi_code != SI_KERNEL) ::kill(child.pid, static_cast<int>(info.ssi_signo));
  }
  int status = 0;
  ::waitpid(child.pid, &status, 0);
  return WIFSIGNALED(status) ? exit_status_for_signal(WTERMSIG(status)) : WEXITSTATUS(status);
}

int mtu_of(const std::string& interface) {
  ifreq request{};
  std::strncpy(request.ifr_name, interface.c_str(), sizeof request.ifr_name - 1);
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::ioctl(fd.get(), SIOCGIFMTU, &request) != 0) return 0;
  return request.ifr_mtu;
}

doctor::NodeSheet make_sheet(const doctor::Place& place, const doctor::Facts& facts,
                             std::vector<doctor::Finding> findings) {
  doctor::NodeSheet sheet;
  sheet.node_rank = place.node_rank;
  sheet.host = facts.host_name;
  sheet.address = place.address;
  sheet.interface = interface_of(place.address);
  if (!sheet.interface.empty()) sheet.mtu = mtu_of(sheet.interface);
  const std::string speed = "/sys/class/net/" + sheet.interface + "/speed";
  sheet.speed_mbits = std::max(0LL, facts.files.number(speed).value_or(0));
  sheet.versions["ddprun"] = DDPRUN_VERSION;
  if (utsname system{}; ::uname(&system) == 0) sheet.versions["kernel"] = system.release;
  const auto add = [&](const char* name, const std::string& version) {
    if (!version.empty()) sheet.versions[name] = version;
  };
  add("driver", doctor::driver_version(facts.files));
  add("torch", facts.packages.torch);
  add("cuda", facts.packages.cuda);
  add("nccl", facts.packages.nccl);
  sheet.findings = std::move(findings);
  return sheet;
}

bool wants_any(const Chosen& checks, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const char* name) { return is_in(checks, doctor::find_check(name)); });
}

store::TcpStoreOptions patient_until(Deadline deadline) {
  store::TcpStoreOptions options;
  options.timeout = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
  return options;
}

struct NodesDoctorOptions {
  Chosen checks;
  doctor::Thresholds thresholds;
  std::string tier;
  Clock::time_point begun;
  std::chrono::milliseconds limit{30'000};
};

// The report of node rank 0 on all nodes, with its table and JSON. On other nodes the texts are
// empty. look_at_nodes() throws Error if the store can't be used, or rank 0 stays silent.
struct NodesReport {
  bool is_told = false;  // this is node rank 0
  doctor::Report report;
  std::string table, json;
};

NodesReport look_at_nodes(const NodesDoctorOptions& options, const doctor::Place& place,
                          const doctor::Facts& facts, std::vector<doctor::Finding> findings,
                          bool shows_all) {
  const Deadline deadline(options.begun + options.limit);
  doctor::ExchangeOptions exchange{.deadline = deadline, .pair = {}};
  exchange.pair.num_bytes = static_cast<std::uint64_t>(options.thresholds.at("bandwidth.bytes"));
  exchange.pair.time = std::chrono::nanoseconds(
      static_cast<long long>(options.thresholds.at("bandwidth.seconds") * 1e9));
  exchange.slow_factor = options.thresholds.at("bandwidth.factor");
  exchange.least_bits_per_second = options.thresholds.at("bandwidth.least") * 1e6;
  exchange.measures_pairs = wants_any(options.checks, {"latency", "bandwidth", "full_frames"});
  exchange.looks_up_names = wants_any(options.checks, {"node_names"});
  doctor::NodeSheet sheet = make_sheet(place, facts, std::move(findings));
  if (wants_any(options.checks, {"full_frames"})) exchange.pair.mtu = sheet.mtu;
  store::TcpStore store(place.store, patient_until(deadline));
  NodesReport result;
  const auto num_bytes = static_cast<std::uint64_t>(options.thresholds.at("all_reduce.bytes"));
  const bool tries_collectives = wants_any(options.checks, {"all_reduce", "all_reduce_nccl"});
  if (place.node_rank != 0) {
    doctor::answer_rank_0(store, place, std::move(sheet), exchange);
    if (tries_collectives) join_collectives(store, place, num_bytes, deadline);
    return result;
  }
  doctor::NodesFacts nodes = gather_nodes(store, place, std::move(sheet), exchange);
  nodes.world_size = place.world_size;
  if (tries_collectives) {
    const bool all_answer = nodes.reaches.size() == static_cast<std::size_t>(place.num_nodes);
    lead_collectives(store, place, num_bytes,
                     all_answer ? "" : "not all nodes answer, and the others would wait for them",
                     deadline, nodes);
  }
  result.is_told = true;
  doctor::Report& report = result.report;
  report.host = concat(place.num_nodes, place.num_nodes == 1 ? " node" : " nodes");
  report.time = std::chrono::system_clock::now();
  report.tier = options.tier;
  for (const doctor::Check* check : options.checks) {
    if (check->is_of_nodes()) {
      report.findings.push_back(doctor::run_check(*check, nodes, options.thresholds));
    }
  }
  for (doctor::Finding& each : doctor::group_findings(nodes, options.checks)) {
    report.findings.push_back(std::move(each));
  }
  report.seconds = std::chrono::duration<double>(Clock::now() - options.begun).count();
  result.table = doctor::nodes_table(report, nodes, shows_all);
  result.json = doctor::nodes_json(report, nodes);
  return result;
}

// Runs the part of a node's other workers: takes part in the collectives. Throws as
// look_at_nodes().
void join_as_rank(const NodesDoctorOptions& options, const doctor::Place& place) {
  if (!wants_any(options.checks, {"all_reduce", "all_reduce_nccl"})) return;
  const Deadline deadline(options.begun + options.limit);
  store::TcpStore store(place.store, patient_until(deadline));
  const auto num_bytes = static_cast<std::uint64_t>(options.thresholds.at("all_reduce.bytes"));
  doctor::join_collectives(store, place, num_bytes, deadline);
}

// Runs `ddprun --hosts=HOSTS … ddprunctl doctor` with `flags`. Returns the verdict's exit status,
// unknown if the hosts can't be used, or 128 and the signal that ended it. Throws Error if it can't
// be started.
int run_on_hosts(const std::string& hosts, const std::vector<std::string>& flags) {
  const std::string folder = own_folder();
  std::vector<std::string> words = {folder + "/ddprun",
                                    "--hosts=" + hosts,
                                    "--nproc-per-node=1",
                                    "--no-python",
                                    "--log-line-prefix-template=",
                                    folder + "/ddprunctl",
                                    "doctor"};
  words.insert(words.end(), flags.begin(), flags.end());
  // ddprun's own exit codes mean that nothing is known, unless a signal ended it.
  const int unknown = doctor::exit_code_of(doctor::Verdict::kUnknown);
  const int code = run_in_foreground(words);
  return code <= unknown || code > exit_status_for_signal(0) ? code : unknown;
}

class DoctorCommand : public Command {
 public:
  // `typed`: the words after "doctor" on the command line, for the same command on other nodes.
  DoctorCommand(CLI::App& app, std::vector<std::string> typed)
      : Command(app, "doctor"),
        typed_(std::move(typed)),
        endpoint_(*command_, EndpointFlags::Fallback::kNone) {
    command_
        ->add_option(
            "--tier", tier_,
            "quick: this node; standard: all nodes of a job, and the ways between them; full: "
            "their collectives, too")
        ->type_name("quick|standard|full")
        ->capture_default_str();
    command_->add_option("--hosts", hosts_,
                         "Run on these hosts, over ssh: as ddprun --hosts; --tier=standard");
    command_
        ->add_option(
            "--gate", gate_,
            "fail, warn: only a line with what is at least as bad, and exit status 2; else 0")
        ->check(CLI::IsMember({"fail", "warn"}));
    command_
        ->add_option(
            "--deadline", deadline_seconds_,
            "Seconds until all is said of several nodes: late ones are left out (30; full: 120)")
        ->check(number_between(1, 3600));
    command_->add_flag("-v,--all,--verbose", shows_all_, "Show what is well, too");
    command_->add_flag("--json", json_, "All findings, as one JSON object");
    command_->add_option("--only", only_, "Only these checks or groups: NAME,…");
    command_->add_option("--skip", skip_, "Not these checks or groups: NAME,…");
    command_->add_option("--thresholds", thresholds_file_, "TOML file of figures (docs/doctor.md)")
        ->envname(env::kDoctorThresholds);
    command_->add_option("--log-dir", log_dir_, "Where jobs' log files go: is there room?");
    command_->add_option("--state-dir", state_dir_,
                         "Where ddprund keeps its journal: is there room?");
    command_
        ->add_option("--timeout", timeout_seconds_,
                     "Seconds for names, file systems, adapters, NVML and the rendezvous, together")
        ->check(number_between(0.01, 600))
        ->capture_default_str();
    command_->add_option("--root", root_, "Read /proc, /sys, /dev and /etc below it")
        ->capture_default_str();
    command_->add_flag("--list", lists_, "Name the checks, and what each one reads");
  }

  // Looks at the node and prints; changes nothing. Returns 0 ok, 1 warn, 2 fail or 3 unknown, as
  // Nagios has it. So a wrong flag also returns 3, with one line. Throws as gather_facts().
  int run() const override {
    try {
      return look();
    } catch (const Error& error) {
      std::istringstream lines(error.what());
      for (std::string line; std::getline(lines, line);) say(line);
      return kDoctorUnknown;
    }
  }

 private:
  enum class Tier { kQuick, kStandard, kFull };

  Tier tier() const {
    if (tier_ == "quick") return Tier::kQuick;
    if (tier_ == "standard") return Tier::kStandard;
    if (tier_ == "full") return Tier::kFull;
    throw Error(ErrorCode::kInvalidArgument,
                "--tier=" + tier_ + ": must be quick, standard or full" +
                    did_you_mean(tier_, {"quick", "standard", "full"}));
  }

  int look() const {
    const bool is_quick = tier() == Tier::kQuick;
    if (lists_) {
      const Chosen checks = chosen_checks(only_, skip_, thresholds_of(thresholds_file_), !is_quick,
                                          tier() == Tier::kFull);
      return print_or_tell(doctor::list_of_checks(checks), 0);
    }
    if (struct stat info{}; ::stat(root_.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
      throw Error(ErrorCode::kInvalidArgument, "--root=" + root_ + ": there is no such directory");
    }
    if (!gate_.empty() && (!is_quick || !hosts_.empty())) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--gate is for one node: not with --hosts or another --tier");
    }
    if (!hosts_.empty()) return go_to_hosts();
    return is_quick ? look_at_this_node() : look_at_all_nodes();
  }

  int look_at_this_node() const {
    const auto begin = Clock::now();
    const doctor::Thresholds thresholds = thresholds_of(thresholds_file_);
    const Chosen checks = chosen_checks(only_, skip_, thresholds, false, false);
    const doctor::Facts facts = gather(checks, thresholds);
    doctor::Report report{facts.host_name, std::chrono::system_clock::now(), 0, {}};
    for (const doctor::Check* check : checks) {
      report.findings.push_back(doctor::run_check(*check, facts, thresholds));
    }
    report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (!gate_.empty()) {
      const std::string line = doctor::gate_line(report, doctor::verdict_named(gate_));
      return line.empty() ? 0 : print_or_tell(line, doctor::exit_code_of(doctor::Verdict::kFail));
    }
    return print(report, doctor::to_table(report, shows_all_), doctor::to_json(report));
  }

  int look_at_all_nodes() const {
    NodesDoctorOptions options;
    options.begun = Clock::now();
    const bool is_full = tier() == Tier::kFull;
    options.thresholds = thresholds_of(thresholds_file_);
    options.checks = chosen_checks(only_, skip_, options.thresholds, true, is_full);
    options.tier = tier_;
    options.limit = milliseconds_of(deadline_seconds_ > 0 ? deadline_seconds_
                                    : is_full             ? kFullSeconds
                                                          : kStandardSeconds);
    const Environment environment = current_environment();
    const auto place = doctor::find_place(environment);
    if (!place) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--tier=" + tier_ +
                      " looks at all nodes of a job: give --hosts=…, or start it on each node with "
                      "ddprun --nnodes=N … ddprunctl doctor --tier=" +
                      tier_);
    }
    if (place->local_rank != 0) {
      join_as_rank(options, *place);
      return 0;
    }
    const doctor::Facts facts = gather(options.checks, options.thresholds);
    std::vector<doctor::Finding> findings;
    for (const doctor::Check* check : options.checks) {
      if (check->is_of_nodes()) continue;
      findings.push_back(doctor::run_check(*check, facts, options.thresholds));
    }
    const NodesReport told = look_at_nodes(options, *place, facts, std::move(findings), shows_all_);
    if (!told.is_told) return 0;
    const int code = print(told.report, told.table, told.json);
    if (code != 0) {
      const std::string verdict = doctor::to_string(doctor::verdict_of(told.report.findings));
      end_job(environment, *place, "ddprunctl doctor: " + verdict, code);
    }
    return code;
  }

  doctor::Facts gather(const Chosen& checks, const doctor::Thresholds& thresholds) const {
    doctor::FactsOptions options;
    options.root = root_;
    options.endpoint = endpoint_.text();
    if (!options.endpoint.empty()) {
      if (const std::string problem = endpoint_.problem(); !problem.empty()) {
        throw Error(ErrorCode::kInvalidArgument, problem);
      }
    }
    options.log_dir = log_dir_;
    options.state_dir = state_dir_.empty() ? default_state_dir() : state_dir_;
    options.gpu_memory_bytes = static_cast<std::uint64_t>(thresholds.at("gpu_memory.warn"));
    options.is_wanted = [&](const char* name) { return is_in(checks, doctor::find_check(name)); };
    options.limit = milliseconds_of(timeout_seconds_);
    // A little less than the whole limit, so that its result arrives in time.
    const auto endpoint_limit = milliseconds_of(timeout_seconds_ * 0.8);
    options.ask_endpoint = [&] {
      try {
        const std::string page = endpoint_.fetch_page_within(endpoint_limit, "/v1/status");
        return answer_of_page(page, wall_seconds());  // it was written just now
      } catch (const Error& error) {
        return doctor::EndpointAnswer{error.what(), {}, {}};
      }
    };
    return doctor::gather_facts(options);
  }

  int print(const doctor::Report& report, const std::string& table, const std::string& json) const {
    return print_or_tell(json_ ? json : table,
                         doctor::exit_code_of(doctor::verdict_of(report.findings)));
  }

  int go_to_hosts() const {
    std::vector<std::string> flags;
    for (std::size_t i = 0; i < typed_.size(); ++i) {
      if (typed_[i] == "--hosts") {
        ++i;
      } else if (!typed_[i].starts_with("--hosts=")) {
        flags.push_back(typed_[i]);
      }
    }
    if (command_->count("--tier") == 0) flags.emplace_back("--tier=standard");
    return run_on_hosts(hosts_, flags);
  }

  const std::vector<std::string> typed_;
  EndpointFlags endpoint_;
  bool json_ = false, shows_all_ = false, lists_ = false;
  double timeout_seconds_ = 0.5, deadline_seconds_ = 0;
  std::string tier_ = "quick", hosts_, gate_, only_, skip_, thresholds_file_, root_ = "/", log_dir_,
              state_dir_;
};

}  // namespace

std::unique_ptr<Command> make_doctor_command(CLI::App& app, std::vector<std::string> typed) {
  return std::make_unique<DoctorCommand>(app, std::move(typed));
}

}  // namespace ddprun::ctl
