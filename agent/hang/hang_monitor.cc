// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/hang_monitor.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "common/json.h"
#include "common/process_facts.h"
#include "common/process_stat.h"
#include "common/progress_page.h"
#include "rendezvous/asio/waits.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::agent {
namespace {

// Returns the means of the steps in between.
membership::RankSteps steps_between(const StepSums& before, const StepSums& now, int global_rank) {
  const auto seconds = [&](std::uint64_t StepSums::*sum) {
    return mean_between(before, now, sum) / 1e9;
  };
  membership::RankSteps steps;
  steps.global_rank = global_rank;
  steps.step = seconds(&StepSums::step);
  steps.forward = seconds(&StepSums::forward);
  steps.backward = seconds(&StepSums::backward);
  steps.communication = seconds(&StepSums::communication);
  steps.exposed = seconds(&StepSums::exposed);
  steps.loader = seconds(&StepSums::loader);
  steps.bytes_per_step = mean_between(before, now, &StepSums::bytes);
  return steps;
}

// Whether they differ by a quarter, and by more than kLeast, below which a difference doesn't
// matter.
bool differs(std::chrono::microseconds a, std::chrono::microseconds b) {
  constexpr std::chrono::microseconds kLeast{500};
  const auto change = std::max(a, b) - std::min(a, b);
  return change > kLeast && change * 4 > std::max(a, b);
}

using membership::RankReport;
using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// A report has room for few frames: with Python's outer ones it would have no native one.
constexpr std::size_t kReportedPythonFrames = 8;
constexpr std::size_t kShownFrameBytes = 240;  // so that a whole stack is within kMaxTailBytes

std::vector<std::string> reported_frames(const ProcessStack& stack) {
  std::vector<std::string> frames(
      stack.python.begin(), stack.python.begin() + std::min(std::ssize(stack.python),
                                                            std::ptrdiff_t{kReportedPythonFrames}));
  frames.insert(frames.end(), stack.native.begin(), stack.native.end());
  return frames;
}

// Returns "state in read() of /data/part-07".
std::string state_text(pid_t pid, const WaitingPlace& place) {
  ProcessStat stat;
  const bool is_stopped = read_process_stat(pid, &stat) && (stat.state == 'T' || stat.state == 't');
  return membership::kStateLine + (is_stopped             ? "stopped"
                                   : !place.call.empty()  ? "in " + place.call
                                   : !place.wchan.empty() ? "in the kernel's " + place.wchan
                                                          : "running");
}

std::vector<std::string> with_frames(std::vector<std::string> lines, const ProcessStack& stack) {
  const auto add = [&lines](const char* kind, const std::vector<std::string>& frames) {
    for (const std::string& frame : frames) {
      lines.push_back(kind + clean_utf8(frame, kShownFrameBytes));
    }
  };
  add(membership::kPythonLine, stack.python);
  add(membership::kNativeLine, stack.native);
  return lines;
}

// The processes that a quiet worker started are looked at every second.
constexpr int kLooksPerFamilyLook = 10;
// ddprun-stacks is started after so many looks. Starting it stops this process for a moment. While
// workers begin and use its store, they would notice that.
constexpr int kLooksBeforeStacks = 20;

// Names a collective. kNone stands for a kind that this version doesn't know.
std::string collective_name(CollectiveKind kind) {
  return kind == CollectiveKind::kNone ? "collective" : kind_name(kind);
}

// Adds the oldest operation that the rank is in, and how far it is in the communicator of all
// ranks.
void add_operation(RankReport& report, const std::vector<CommunicatorState>& communicators) {
  const CommunicatorState* oldest = nullptr;
  for (const CommunicatorState& each : communicators) {
    if (each.communicator == 0) report.shared_collectives_done = each.done;
    if (each.open && (oldest == nullptr || each.begun_ns < oldest->begun_ns)) oldest = &each;
  }
  if (oldest == nullptr) return;
  report.operation = text_of(*oldest->open);
  const auto now = duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch());
  const std::chrono::nanoseconds begun(static_cast<std::int64_t>(oldest->begun_ns));
  report.operation_time = std::max(milliseconds(0), duration_cast<milliseconds>(now - begun));
}

}  // namespace

membership::StepSummary TrainingReport::summarize(
    const std::vector<std::optional<ProgressWords>>& pages) {
  ranks_.resize(pages.size());
  membership::StepSummary summary;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (!pages[i]) continue;
    Rank& rank = ranks_[i];
    if (pages[i]->steps) {
      const StepSums& now = *pages[i]->steps;
      if (now.num_steps > rank.said.num_steps) {
        rank.steps = steps_between(rank.said, now, numbers_.of(static_cast<int>(i)));
      }
      rank.said = now;
    }
    if (rank.steps) add(summary, summary_of(*rank.steps));
  }
  return summary;
}

std::optional<membership::TrainingStatus> TrainingReport::look(
    const std::vector<std::optional<ProgressWords>>& pages, Clock::time_point now) {
  membership::TrainingStatus status;
  const ProgressWords* least = nullptr;
  std::uint64_t reports = 0, samples = 0;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const auto& page = pages[i];
    if (!page) continue;
    if (least == nullptr || page->step < least->step) least = &*page;
    status.skipped_steps = std::max(status.skipped_steps, page->skipped_steps);
    add_gpu_peak(status, page->gpu_peak_bytes, numbers_.of(static_cast<int>(i)));
    samples += page->samples;
    if (page->num_reports == 0) continue;
    reports += page->num_reports;
    const auto loss = std::bit_cast<double>(page->loss_bits);
    if (!std::isfinite(loss)) {
      ++status.num_nan;
      continue;
    }
    // A sum of finite numbers may overflow, so the mean is updated instead.
    const double num_ranks = ++status.num_ranks;
    status.loss = status.loss * ((num_ranks - 1) / num_ranks) + loss / num_ranks;
  }
  if (least == nullptr) return std::nullopt;
  status.phase = to_string(least->phase);
  status.step = least->step;
  if ((reports > 0 || samples > 0) && !counted_at_) {
    counted_at_ = now;
    counted_ = samples;
  }
  const bool changed =
      status.step > 0 && (status.phase != said_phase_ || status.step != said_step_ ||
                          reports != said_reports_ || status.skipped_steps != said_skipped_);
  if (!changed || (said_at_ && now < *said_at_ + kInterval)) return std::nullopt;
  if (counted_at_ && now > *counted_at_) {
    const double seconds = std::chrono::duration<double>(now - *counted_at_).count();
    rate_ = samples > counted_ ? static_cast<double>(samples - counted_) / seconds : 0;
    counted_at_ = now;
    counted_ = samples;
  }
  status.samples_per_second = rate_;
  status.has_samples = samples > 0;
  status.steps = summarize(pages);
  said_at_ = now;
  said_phase_ = status.phase;
  said_step_ = status.step;
  said_reports_ = reports;
  said_skipped_ = status.skipped_steps;
  return status;
}

bool StepTimeReport::due(const std::vector<membership::RankStepTime>& times,
                         Clock::time_point now) {
  if (times.empty() || (said_at_ && now < *said_at_ + kInterval)) return false;
  bool changed = times.size() != said_.size();
  for (std::size_t i = 0; !changed && i < times.size(); ++i) {
    changed = times[i].global_rank != said_[i].global_rank || differs(times[i].own, said_[i].own);
  }
  if (!changed) return false;
  said_ = times;
  said_at_ = now;
  return true;
}

const char* to_string(WorkPhase phase) {
  constexpr std::array kNames = {"start-up", "train", "checkpoint", "evaluate", "tear-down"};
  static_assert(kNames.size() == static_cast<std::size_t>(WorkPhase::kTearDown) + 1);
  const auto number = static_cast<std::size_t>(phase);
  return number < kNames.size() ? kNames[number] : "";
}

HangMonitor::HangMonitor(boost::asio::io_context& io, HangMonitorOptions options,
                         HangMonitorEvents events)
    : io_(io),
      options_(std::move(options)),
      events_(std::move(events)),
      detector_(options_.limits, static_cast<std::size_t>(options_.num_workers)),
      seen_times_(options_.ranks),
      training_(options_.ranks),
      processes_(static_cast<std::size_t>(options_.num_workers)),
      outside_(io_, options_.gpus_program, static_cast<std::size_t>(options_.num_workers)),
      seen_calls_(static_cast<std::size_t>(options_.num_workers)),
      timer_(io),
      alive_(std::make_shared<bool>(true)) {}

HangMonitor::~HangMonitor() {
  if (stacks_) stacks_->abandon();
}

void HangMonitor::start() { arm(); }

void HangMonitor::arm() {
  run_after(timer_, options_.interval, [this, alive = std::weak_ptr(alive_)] {
    if (alive.expired()) return;
    arm();
    options_.pages_only ? look_at_pages() : look();
  });
}

void HangMonitor::look_at_pages() {
  std::vector<std::optional<ProgressWords>> pages;
  for (int i = 0; i < options_.num_workers; ++i) pages.push_back(events_.read_progress(i));
  const auto steps_timed = events_.steps_timed;  // the call may destroy this object
  if (auto training = training_.look(pages, Clock::now())) steps_timed({}, std::move(training));
}

void HangMonitor::look() {
  const std::vector<pid_t> pids = events_.pids();
  std::vector<std::optional<RankSample>> samples(processes_.size());
  std::vector<std::optional<ProgressWords>> pages(processes_.size());
  const bool may_start_stacks = !stacks_ && looks_ >= kLooksBeforeStacks;
  if (may_start_stacks && std::count(pids.begin(), pids.end(), 0) == 0) start_stacks();
  OutsideWork::Families families(processes_.size());
  const bool family_look = looks_++ % kLooksPerFamilyLook == 0;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    auto& process = processes_[i];
    const pid_t pid = i < pids.size() ? pids[i] : 0;
    if (process && process->pid() != pid) process.reset();
    if (pid == 0) continue;
    if (!process) process.emplace(pid);
    // A rank that has just gone quiet is looked at immediately. Its family's earlier work doesn't
    // count as present work.
    const bool wanted = detector_.wants_family(i);
    if (!wanted) process->forget_family();
    const auto facts = process->look(wanted && (family_look || !process->knows_family()));
    if (!facts) continue;
    samples[i] = RankSample{events_.read_page(static_cast<int>(i)), *facts};
    pages[i] = events_.read_progress(static_cast<int>(i));
    if (wanted) families[i] = process->family();
  }
  if (family_look) outside_.look(families);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (samples[i]) outside_.add_to(samples[i]->process, i);
  }
  const Clock::time_point now = Clock::now();
  const auto stalled = detector_.look(samples, now);
  std::vector<membership::RankStepTime> times;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    const auto view = detector_.view(i);
    if (view && view->step_time && view->own_step_time) {
      times.push_back({options_.ranks.of(static_cast<int>(i)),
                       duration_cast<microseconds>(*view->step_time),
                       duration_cast<microseconds>(*view->own_step_time)});
    } else if (pages[i] && pages[i]->steps) {
      if (const auto seen = seen_times_.look(i, *pages[i]->steps)) times.push_back(*seen);
    }
  }
  const HangMonitorEvents events = events_;  // one of the calls may destroy this object
  const std::weak_ptr alive(alive_);
  auto training = training_.look(pages, now);
  // Step times go out in one message with the progress of the ranks, if that is reported at all.
  const bool timed = (training || !training_.has_said()) &&
                     times.size() <= membership::kMaxReportedRanks && step_times_.due(times, now);
  if (!timed) times.clear();
  if (timed || training) events.steps_timed(std::move(times), std::move(training));
  for (const std::size_t i : stalled) {
    if (alive.expired()) return;
    const pid_t pid = processes_[i]->pid();
    if (const auto view = detector_.view(i)) {
      events.stalled(report(static_cast<int>(i), *view, process_at_work(pid)));
    }
  }
}

RankReport HangMonitor::report(int local_rank, const RankView& view, pid_t at_work) {
  RankReport report;
  report.global_rank = options_.ranks.of(local_rank);
  report.local_rank = local_rank;
  report.pid = at_work;
  report.foreign = !view.words.has_value();
  if (view.words) {
    report.phase = to_string(view.words->phase);
    report.step = view.words->step;
    report.steps_done = view.words->steps_done;
    report.collectives_begun = view.words->collectives_begun;
    report.collectives_done = view.words->collectives_done;
    report.collective = collective_name(view.words->last_collective);
  }
  if (view.words && events_.read_communicators) {
    add_operation(report, events_.read_communicators(local_rank));
  }
  report.quiet = duration_cast<milliseconds>(view.quiet);
  report.limit = duration_cast<milliseconds>(view.limit);
  report.unmoved = duration_cast<milliseconds>(view.unmoved);
  report.limit_if_blocked = duration_cast<milliseconds>(view.limit_if_blocked);
  if (view.limit_if_working) {
    report.limit_if_working = duration_cast<milliseconds>(*view.limit_if_working);
  }
  report.activity = view.activity;
  report.cpu_percent = std::max(0, view.cpu_percent);
  report.work = describe_work(outside_.rates(static_cast<std::size_t>(local_rank)));
  add_collective(report.work, local_rank);
  report.state = std::string(1, view.state);
  WaitingPlace place = place_of(local_rank, at_work);
  report.call = std::move(place.call);
  report.wchan = std::move(place.wchan);
  return report;
}

// Appends the last collective that the observer saw. A rank of the SDK reports operations instead.
void HangMonitor::add_collective(std::string& text, int local_rank) const {
  if (!events_.read_progress) return;
  const auto words = events_.read_progress(local_rank);
  if (!words || words->seen_collective.empty()) return;
  text += concat(text.empty() ? "" : ", ", "last collective ", words->seen_collective);
}

WaitingPlace HangMonitor::place_of(int local_rank, pid_t at_work) {
  WaitingPlace place = waiting_place(at_work);
  SeenCall& seen = seen_calls_[static_cast<std::size_t>(local_rank)];
  if (place.resumed && seen.pid == at_work) {
    place.call = seen.text;
  } else {
    seen = {at_work, place.call};
  }
  return place;
}

StackProcess& HangMonitor::living_stacks() {
  if (!stacks_ || stacks_->has_ended()) start_stacks();
  return *stacks_;
}

void HangMonitor::take_stack(int local_rank, StackDone done) {
  const std::vector<pid_t> pids = events_.pids();
  const auto index = static_cast<std::size_t>(local_rank);
  if (index >= pids.size() || pids[index] == 0) return done({}, "it has ended");
  const pid_t at_work = process_at_work(pids[index]);
  // The state is read before the process is stopped, since the stop interrupts the call.
  std::string state = state_text(at_work, place_of(local_rank, at_work));
  add_collective(state, local_rank);
  std::vector<std::string> lines{std::move(state), concat(membership::kProcessLine, at_work, " ",
                                                          start_ticks(at_work).value_or(0))};
  if (options_.stacks_program.empty()) {
    return done(std::move(lines), "no stack: this ddprun takes none");
  }
  const auto taken = [alive = std::weak_ptr(alive_), at_work, lines = std::move(lines),
                      done = std::move(done)](const ProcessStacks& stacks,
                                              const std::string& problem) {
    if (alive.expired()) return;
    const auto found = stacks.find(at_work);
    if (found != stacks.end()) {
      return done(with_frames(lines, found->second), found->second.note);
    }
    done(lines, problem.empty() ? "no stack: its time was over" : problem);
  };
  living_stacks().take({at_work}, kInspectionTime, StackProcess::Turn::kWhenFree, taken);
}

// Replaces the process. An ended one is not abandoned: its answer may still come.
void HangMonitor::start_stacks() {
  if (stacks_ && !stacks_->has_ended()) stacks_->abandon();
  if (!options_.stacks_program.empty()) {
    stacks_ = StackProcess::start(io_, options_.stacks_program);
  }
}

void HangMonitor::inspect(std::uint64_t inquiry) {
  if (inspects_) {
    inquiry_waiting_ = inquiry;
    return;
  }
  std::vector<RankReport> reports;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    const auto view = detector_.view(i);
    if (!view || !processes_[i]) continue;
    reports.push_back(report(static_cast<int>(i), *view, process_at_work(processes_[i]->pid())));
  }
  // Ranks outside collectives come first: one of them is the likely cause, and time may run out.
  std::stable_sort(reports.begin(), reports.end(), [](const RankReport& a, const RankReport& b) {
    return std::pair(a.in_collective(), -a.quiet) < std::pair(b.in_collective(), -b.quiet);
  });
  if (reports.size() > membership::kMaxReportedRanks) {
    reports.resize(membership::kMaxReportedRanks);
  }
  std::vector<pid_t> pids;
  for (const RankReport& each : reports) pids.push_back(static_cast<pid_t>(each.pid));
  if (options_.stacks_program.empty() || pids.empty()) {
    const auto inspected = events_.inspected;
    return inspected(inquiry, std::move(reports));
  }
  const auto done = [this, inquiry, alive = std::weak_ptr(alive_), reports = std::move(reports)](
                        const ProcessStacks& stacks, const std::string& problem) mutable {
    if (alive.expired()) return;
    inspects_ = false;
    for (RankReport& each : reports) {
      const auto found = stacks.find(static_cast<pid_t>(each.pid));
      if (found != stacks.end()) {
        each.frames = reported_frames(found->second);
        each.note = found->second.note;
        each.has_debugger = found->second.has_debugger;
      } else {
        each.note = problem.empty() ? "no stack: its time was over" : problem;
      }
    }
    const auto inspected = events_.inspected;  // the call may destroy this object
    const std::weak_ptr still_alive(alive);
    inspected(inquiry, std::move(reports));
    if (still_alive.expired()) return;
    if (const auto next = std::exchange(inquiry_waiting_, std::nullopt)) inspect(*next);
  };
  inspects_ = true;
  living_stacks().take(pids, kInspectionTime, StackProcess::Turn::kAtOnce, done);
}

}  // namespace ddprun::agent
