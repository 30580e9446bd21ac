// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit_command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>
#include <sstream>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/shell_words.h"
#include "ctl/interrupts.h"
#include "ctl/log_output.h"
#include "ctl/place_questions.h"
#include "ctl/schedulers.h"
#include "ctl/standard_output.h"
#include "ctl/submit/flag_check.h"
#include "ctl/submit/job_states.h"

namespace ddprun::ctl {
namespace {

constexpr std::chrono::milliseconds kFirstLook{200}, kRarestLook{5'000};

void say(const std::string& line) {
  std::fprintf(stderr, "ddprunctl: %s\n", one_line(line).c_str());
}

// Asks, less and less often, until `enough` says so. nullopt: the user wants no more of it.
template <typename Enough>
std::optional<submit::JobState> ask_until(submit::Scheduler& scheduler, const std::string& id,
                                          Interrupts& interrupts, PlaceQuestions& questions,
                                          Enough enough) {
  for (auto pause = kFirstLook;; pause = std::min(pause * 2, kRarestLook)) {
    submit::JobState state;
    if (!questions.ask([&] { state = scheduler.status(id); })) return std::nullopt;
    if (enough(state.phase)) return state;
    if (interrupts.wait(pause)) return std::nullopt;
  }
}

// False: likewise.
bool show_output(submit::Scheduler& scheduler, const std::string& id, Interrupts& interrupts,
                 const submit::LogView& view) {
  try {
    scheduler.logs(id, true, view);
  } catch (const Error&) {
    if (!interrupts.wait(std::chrono::milliseconds(0))) throw;
  }
  return !interrupts.signal();
}

}  // namespace

SubmitCommand::SubmitCommand(CLI::App& app)
    : command_(app.add_subcommand("submit",
                                  "Submit a job to Slurm, Kubernetes, hosts that ssh "
                                  "reaches, or standing agents (docs/submit.md).")),
      endpoint_(*command_) {
  command_->add_option("FILE", file_, "The job, a TOML file")->required();
  command_->add_option("--to", place_, "Where; may be left out where the file has one [to.…]")
      ->check(CLI::IsMember(submit::place_names()));
  command_->add_flag("--dry-run", dry_run_,
                     "Print what would be submitted, and which ranks go where");
  command_->add_flag("--wait", wait_, "Show the job's output, and end with its exit code");
  command_->add_flag("--json", json_,
                     "One JSON object: what would be submitted, the id, or the end");
}

int SubmitCommand::run() const {
  try {
    return submit(submit::JobFile::from_file(file_));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    std::istringstream lines(error.what());
    for (std::string line; std::getline(lines, line);) say(line);
    return static_cast<int>(ExitCode::kUsage);
  }
}

std::string SubmitCommand::place_of(const submit::JobFile& job) const {
  if (!place_.empty()) return place_;
  if (job.places.size() == 1) return job.places.front();
  throw Error(ErrorCode::kInvalidArgument,
              job.path + (job.places.empty() ? " doesn't say" : " has several tables of") +
                  " where: --to " + CLI::detail::join(submit::place_names(), ", "));
}

int SubmitCommand::submit(const submit::JobFile& job) const {
  const std::string place = place_of(job);
  const auto scheduler = make_scheduler(place, endpoint_);
  // Standing agents' asks for more than that.
  if (place != "nodes") submit::check_flags(job, submit::ddprun_beside(), place);
  if (dry_run_) {
    const submit::Plan plan = scheduler->plan(job);
    return print_or_tell(json_ ? submit::plan_json(place, plan) : submit::plan_text(plan));
  }
  const std::string id = scheduler->submit(job);
  const std::string whole = place + ":" + id;
  if (wait_) {
    say("submitted " + whole);
    return follow(*scheduler, id);
  }
  return print_or_tell(json_ ? submit::id_json(whole) : whole + "\n", 0, whole + " is submitted");
}

int SubmitCommand::follow(submit::Scheduler& scheduler, const std::string& id) const {
  using submit::Phase;
  const std::string whole = std::string(scheduler.name()) + ":" + id;
  std::vector<std::string> words = scheduler.flags();
  words.insert(words.begin(), whole);
  const std::string named = shell_line(words);
  const std::string goes_on = concat(whole, " goes on: ddprunctl logs -f ", named,
                                     " shows it, ddprunctl cancel ", named, " ends it");
  Interrupts interrupts("ddprunctl: " + goes_on + "\n");
  PlaceQuestions questions(interrupts, scheduler, submit::kMostSilence);
  questions.was_there();
  LogOutput output(json_ ? STDERR_FILENO : STDOUT_FILENO, interrupts);
  auto state = ask_until(scheduler, id, interrupts, questions,
                         [](Phase phase) { return phase != Phase::kQueued; });
  if (state && !show_output(scheduler, id, interrupts, output.view(questions))) state.reset();
  // The job's end is still waited for.
  if (output.lost() != 0 && !json_) tell_lost_output(output.lost(), whole + " goes on");
  if (state) {
    state = ask_until(scheduler, id, interrupts, questions, [](Phase phase) {
      return submit::is_over(phase) || phase == Phase::kUnknown;
    });
  }
  if (!state) {
    say(goes_on);
    return exit_status_for_signal(interrupts.signal().value_or(SIGINT));
  }
  if (json_) {
    const std::string news = concat(whole, " is over: ", submit::to_string(state->phase));
    if (const int code = print_or_tell(submit::state_json(*state), 0, news); code != 0) return code;
  } else if (state->phase != Phase::kSucceeded || !state->reason.empty()) {
    say(whole + " " + submit::to_string(state->phase) +
        (state->reason.empty() ? "" : ": " + state->reason));
  }
  const int code = submit::exit_code_of(*state);
  const bool is_lost = output.lost() != 0 && !json_;
  return code == 0 && is_lost ? static_cast<int>(ExitCode::kOutputLost) : code;
}

}  // namespace ddprun::ctl
