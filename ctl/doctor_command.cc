// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor_command.h"

#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json/value.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/env_names.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/log.h"
#include "common/suggest.h"
#include "ctl/doctor/nodes/job_end.h"
#include "ctl/doctor/nodes/place.h"
#include "ctl/doctor_nodes.h"
#include "ctl/number_between.h"
#include "ctl/standard_output.h"

namespace ddprun::ctl {
namespace {

using Chosen = std::vector<const doctor::Check*>;

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<long long>(seconds * 1000));
}

// What `skip` or the file of thresholds names is left out. `of_nodes`: with those that compare
// nodes; `of_ranks`: with those of the full tier.
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
    const auto is_in = [&](const Chosen& names) {
      return std::find(names.begin(), names.end(), &check) != names.end();
    };
    if ((check.is_of_nodes() && !of_nodes) || (check.is_of_all_ranks && !of_ranks)) continue;
    if ((only.empty() || is_in(chosen)) && !is_in(left_out)) result.push_back(&check);
  }
  return result;
}

// `our_seconds`: this clock when the page was written, as well as we know.
doctor::EndpointAnswer answer_of_page(const std::string& page, double our_seconds) {
  doctor::EndpointAnswer answer;
  const auto object = parse_object(page);
  // Whoever has a JSON page may have a version; stores and agents together only a rendezvous has.
  const auto has = [&](const char* name) {
    const auto* value = object->if_contains(name);
    return value != nullptr && value->is_object();
  };
  if (!object || !has("stores") || !has("agents")) {
    answer.failure = "what answers there is no ddprun rendezvous";
    return answer;
  }
  if (const auto* version = object->if_contains("version"); version && version->is_string()) {
    answer.version = std::string(version->get_string());
  }
  if (const auto* time = object->if_contains("time_seconds"); time && time->is_number()) {
    answer.skew_seconds = time->to_number<double>() - our_seconds;
  }
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

}  // namespace

DoctorCommand::DoctorCommand(CLI::App& app, std::vector<std::string> typed)
    : command_(app.add_subcommand(
          "doctor",
          "Tell whether this node is fit for jobs, and what would mend it. Changes "
          "nothing, asks no GPU for work. Exit status 0 ok, 1 warn, 2 fail, 3 unknown.")),
      typed_(std::move(typed)),
      endpoint_(*command_, EndpointFlags::Fallback::kNone) {
  command_
      ->add_option(
          "--tier", tier_,
          "quick: this node; standard: all nodes of a job, and the ways between them; full: "
          "their collectives, too")
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
          "Seconds until all is said of several nodes: who is late is left out (30; full: 120)")
      ->check(number_between(1, 3600));
  command_->add_flag("-v,--all,--verbose", shows_all_, "Show what is well, too");
  command_->add_flag("--json", json_, "All findings, as one JSON object");
  command_->add_option("--only", only_, "Only these checks or groups: NAME,…");
  command_->add_option("--skip", skip_, "Not these checks or groups: NAME,…");
  command_->add_option("--thresholds", thresholds_file_, "TOML file of figures (docs/doctor.md)")
      ->envname(env::kDoctorThresholds);
  command_->add_option("--log-dir", log_dir_, "Where jobs' log files go: is there room?");
  command_->add_option("--state-dir", state_dir_, "Where ddprund keeps its journal: likewise");
  command_
      ->add_option("--timeout", timeout_seconds_,
                   "Seconds for names, file systems, adapters, NVML and the rendezvous, together")
      ->check(number_between(0.01, 600))
      ->capture_default_str();
  command_->add_option("--root", root_, "Read /proc, /sys, /dev and /etc below it")
      ->capture_default_str();
  command_->add_flag("--list", lists_, "Name the checks, and what each one reads");
}

int DoctorCommand::run() const {
  try {
    return look();
  } catch (const Error& error) {
    std::fprintf(stderr, "ddprunctl: %s\n", one_line(error.what()).c_str());
    return kDoctorUnknown;
  }
}

DoctorCommand::Tier DoctorCommand::tier() const {
  if (tier_ == "quick") return Tier::kQuick;
  if (tier_ == "standard") return Tier::kStandard;
  if (tier_ == "full") return Tier::kFull;
  throw Error(ErrorCode::kInvalidArgument, "--tier=" + tier_ + ": must be quick, standard or full" +
                                               did_you_mean(tier_, {"quick", "standard", "full"}));
}

int DoctorCommand::look() const {
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

int DoctorCommand::go_to_hosts() const {
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

doctor::Facts DoctorCommand::gather(const Chosen& checks,
                                    const doctor::Thresholds& thresholds) const {
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
  options.is_wanted = [&](const char* name) {
    const doctor::Check* check = doctor::find_check(name);
    return std::find(checks.begin(), checks.end(), check) != checks.end();
  };
  options.limit = milliseconds_of(timeout_seconds_);
  // A little sooner than the limit of all, so that what is said of it arrives.
  const auto endpoint_limit = milliseconds_of(timeout_seconds_ * 0.8);
  options.ask_endpoint = [&] {
    try {
      const std::string page = endpoint_.fetch_page_within(endpoint_limit, "/v1/status");
      return answer_of_page(page, wall_seconds());  // it was written a moment ago
    } catch (const Error& error) {
      return doctor::EndpointAnswer{error.what(), {}, {}};
    }
  };
  return doctor::gather_facts(options);
}

int DoctorCommand::print(const doctor::Report& report, const std::string& table,
                         const std::string& json) const {
  return print_or_tell(json_ ? json : table,
                       doctor::exit_code_of(doctor::verdict_of(report.findings)));
}

int DoctorCommand::look_at_this_node() const {
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

int DoctorCommand::look_at_all_nodes() const {
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
    doctor::end_job(environment, *place, "ddprunctl doctor: " + verdict, code);
  }
  return code;
}

}  // namespace ddprun::ctl
