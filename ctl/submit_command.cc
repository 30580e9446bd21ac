// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <optional>
#include <sstream>

#include "common/clock.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "ctl/interrupts.h"
#include "ctl/schedulers.h"
#include "ctl/standard_output.h"
#include "ctl/submit/flag_check.h"
#include "ctl/submit/job_states.h"

namespace ddprun::ctl {
namespace {

constexpr std::chrono::milliseconds kFirstLook{200}, kRarestLook{5'000};
constexpr std::chrono::minutes kMostSilence{10};  // of a place that can't be reached

void say(const std::string& line) {
  std::fprintf(stderr, "ddprunctl: %s\n", one_line(line).c_str());
}

submit::JobState status_of(submit::Scheduler& scheduler, const std::string& id,
                           const Interrupts& interrupts) {
  if (!scheduler.may_end_in_status()) return scheduler.status(id);
  submit::JobState state;
  interrupts.end_in([&] { state = scheduler.status(id); });
  return state;
}

// Asks, less and less often, until `enough` says so. nullopt: the user wants no more of it. A place
// that is away meanwhile is asked again.
template <typename Enough>
std::optional<submit::JobState> ask_until(submit::Scheduler& scheduler, const std::string& id,
                                          Interrupts& interrupts, Enough enough) {
  auto pause = kFirstLook;
  Deadline silence = Deadline::after(kMostSilence);
  for (;;) {
    try {
      submit::JobState state = status_of(scheduler, id, interrupts);
      if (enough(state.phase)) return state;
      silence = Deadline::after(kMostSilence);
    } catch (const Error& error) {
      // ^C ends what was asked, too.
      if (interrupts.wait(std::chrono::milliseconds(0))) return std::nullopt;
      if (!submit::may_pass(error) || silence.expired()) throw;
    }
    if (interrupts.wait(pause)) return std::nullopt;
    pause = std::min(pause * 2, kRarestLook);
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
  if (place != "ssh") submit::check_flags(job, submit::ddprun_beside());  // it asks for all
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
  std::FILE* to = json_ ? stderr : stdout;
  bool is_lost = false;
  const std::string goes_on = whole + " goes on: ddprunctl logs -f " + whole +
                              " shows it, ddprunctl cancel " + whole + " ends it";
  Interrupts interrupts("ddprunctl: " + goes_on + "\n");
  const submit::LogView view{
      .show =
          [&](std::string_view text) {
            const bool is_whole = std::fwrite(text.data(), 1, text.size(), to) == text.size();
            if ((is_whole && std::fflush(to) == 0) || is_lost) return;
            is_lost = true;  // the job's end is still waited for
            tell_lost_output(errno);
          },
      .pause = [&](std::chrono::milliseconds limit) { return !interrupts.wait(limit); },
      .call = [&](const std::function<void()>& call) { interrupts.end_in(call); }};
  auto state =
      ask_until(scheduler, id, interrupts, [](Phase phase) { return phase != Phase::kQueued; });
  if (state && !show_output(scheduler, id, interrupts, view)) state.reset();
  if (state) {
    state = ask_until(scheduler, id, interrupts, [](Phase phase) {
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
  } else if (state->phase != Phase::kSucceeded) {
    say(whole + " " + submit::to_string(state->phase) +
        (state->reason.empty() ? "" : ": " + state->reason));
  }
  return submit::exit_code_of(*state);
}

}  // namespace ddprun::ctl
