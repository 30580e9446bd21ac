// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor_command.h"

#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/facts.h"
#include "ctl/doctor/report.h"
#include "ctl/doctor/thresholds.h"

namespace ddprun::ctl {
namespace {

using Chosen = std::vector<const doctor::Check*>;

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<long long>(seconds * 1000));
}

Chosen chosen_checks(const std::string& only, const std::string& skip) {
  Chosen chosen;
  if (!only.empty()) chosen = doctor::parse_checks(only, "--only");
  const Chosen left_out = skip.empty() ? Chosen() : doctor::parse_checks(skip, "--skip");
  Chosen result;
  for (const doctor::Check& check : doctor::check_table()) {
    const auto is_in = [&](const Chosen& names) {
      return std::find(names.begin(), names.end(), &check) != names.end();
    };
    if ((only.empty() || is_in(chosen)) && !is_in(left_out)) result.push_back(&check);
  }
  return result;
}

// `our_seconds`: this clock when the page was written, as well as we know.
doctor::EndpointAnswer answer_of_page(const std::string& page, double our_seconds) {
  doctor::EndpointAnswer answer;
  boost::system::error_code error;
  const boost::json::value all = boost::json::parse(page, error);
  const auto* object = error ? nullptr : all.if_object();
  if (object == nullptr) {
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

double wall_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::string default_state_dir() {
  const char* of_unit = std::getenv("STATE_DIRECTORY");
  return of_unit != nullptr && *of_unit != '\0' ? of_unit : "/var/lib/ddprun";
}

int print_text(const std::string& text, int code) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  return std::fflush(stdout) == 0 ? code : static_cast<int>(ExitCode::kOutputLost);
}

}  // namespace

DoctorCommand::DoctorCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "doctor",
          "Tell whether this node is fit for jobs, and what would mend it. Changes "
          "nothing, asks no GPU for work. Exit status 0 ok, 1 warn, 2 fail, 3 unknown.")),
      endpoint_(*command_, EndpointFlags::Fallback::kNone) {
  command_->add_flag("-v,--all,--verbose", shows_all_, "Show what is well, too");
  command_->add_flag("--json", json_, "All findings, as one JSON object");
  command_->add_option("--only", only_, "Only these checks or groups: NAME,…");
  command_->add_option("--skip", skip_, "Not these checks or groups: NAME,…");
  command_->add_option("--thresholds", thresholds_file_, "TOML file of figures (docs/doctor.md)");
  command_->add_option("--log-dir", log_dir_, "Where jobs' log files go: is there room?");
  command_->add_option("--state-dir", state_dir_, "Where ddprund keeps its journal: likewise");
  command_
      ->add_option("--timeout", timeout_seconds_,
                   "Seconds for names, file systems, adapters, NVML and the rendezvous, together")
      ->check(CLI::Range(0.01, 600.0))
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

int DoctorCommand::look() const {
  if (lists_) return print_text(doctor::list_of_checks(), 0);
  const auto begin = Clock::now();
  const Chosen checks = chosen_checks(only_, skip_);
  const doctor::Thresholds thresholds = thresholds_file_.empty()
                                            ? doctor::Thresholds()
                                            : doctor::Thresholds::from_file(thresholds_file_);
  doctor::FactsOptions options;
  options.root = root_;
  if (struct stat info{}; ::stat(root_.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    throw Error(ErrorCode::kInvalidArgument, "--root=" + root_ + ": there is no such directory");
  }
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
      const double asked = wall_seconds();
      const std::string page = endpoint_.fetch_page_within(endpoint_limit, "/v1/status");
      return answer_of_page(page, (asked + wall_seconds()) / 2);
    } catch (const Error& error) {
      return doctor::EndpointAnswer{error.what(), {}, {}};
    }
  };
  const doctor::Facts facts = doctor::gather_facts(options);
  doctor::Report report{facts.host_name, std::chrono::system_clock::now(), 0, {}};
  for (const doctor::Check* check : checks) {
    report.findings.push_back(doctor::run_check(*check, facts, thresholds));
  }
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return print_text(json_ ? doctor::to_json(report) : doctor::to_table(report, shows_all_),
                    doctor::exit_code_of(doctor::verdict_of(report.findings)));
}

}  // namespace ddprun::ctl
