// SPDX-License-Identifier: Apache-2.0
#include "agent/hang/stall_detector.h"

#include <algorithm>
#include <utility>

namespace ddprun::agent {
namespace {

constexpr double kMaxLooks = 600;                    // a minute of looks
constexpr std::uint64_t kMostStepsPerLook = 10'000;  // steps between two looks, 100 ms apart

using std::chrono::duration_cast;
using std::chrono::microseconds;
using namespace std::chrono_literals;

constexpr auto kFamilyAfter = 1s;
constexpr int kMostDoublings = 6;

// A foreign worker makes progress when it moves any byte or uses more than 1 % of a core
// (background threads wake up now and then).
constexpr int kIdlePercent = 1;
constexpr microseconds kIdleSlack{20'000};  // /proc counts in units of 10 ms

// A rank works if it used more than 5 % of a core or a GPU since it went quiet, or moved so many
// bytes.
constexpr int kWorkPercent = 5;
constexpr std::uint64_t kWorkBytes = 1 << 20;

// A hung worker may still send heartbeats over the network, at most so many bytes per second.
constexpr std::uint64_t kHeartbeatBytesPerSecond = 16'384;
constexpr microseconds kGpuSlack{100'000};

std::uint64_t bytes_since(const ProcessFacts& then, const ProcessFacts& now) {
  return now.bytes > then.bytes ? now.bytes - then.bytes : 0;
}

microseconds share(Clock::duration of, int percent) {
  return duration_cast<microseconds>(of) * percent / 100;
}

}  // namespace

void StepHistory::look(const ProgressWords& words, Clock::time_point now) {
  if (words.phase != WorkPhase::kTrain || words.step == 0) {
    begun_.reset();
    return;
  }
  ++looks_;
  if (words.in_collective()) ++looks_in_collective_;
  if (looks_ > kMaxLooks) {
    looks_ /= 2;
    looks_in_collective_ /= 2;
  }
  if (words.step == step_ && begun_) return;
  if (begun_) {
    // Numbers that go back (counted anew in each epoch) or jump (after a resume) count as one more
    // step.
    const std::uint64_t passed = words.step > step_ ? words.step - step_ : 1;
    const std::uint64_t count = warmed_up() && passed <= kMostStepsPerLook ? passed : 1;
    const Clock::duration each = (now - *begun_) / static_cast<std::int64_t>(count);
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(count, kWindow); ++i) {
      window_[(num_steps_ + i) % kWindow] = each;
    }
    num_steps_ += count;
    if (num_steps_ > kFirstSteps) slowest_ = std::max(slowest_, each);
  }
  step_ = words.step;
  begun_ = now;
}

void StepHistory::skip(Clock::duration time) {
  if (begun_) *begun_ += time;
}

Clock::duration StepHistory::slowest_of_window() const {
  return *std::max_element(window_.begin(), window_.end());
}

std::optional<Clock::duration> StepHistory::median() const {
  if (num_steps_ < kWindow) return std::nullopt;
  std::array<Clock::duration, kWindow> sorted = window_;
  const auto middle = sorted.begin() + kWindow / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

std::optional<Clock::duration> StepHistory::own_median() const {
  const auto all = median();
  if (!all || looks_ == 0) return std::nullopt;
  return std::chrono::duration_cast<Clock::duration>(*all * (1 - looks_in_collective_ / looks_));
}

StallDetector::StallDetector(HangLimits limits, std::size_t num_ranks)
    : limits_(limits), ranks_(num_ranks) {}

std::vector<std::size_t> StallDetector::look(const std::vector<std::optional<RankSample>>& samples,
                                             Clock::time_point now) {
  const bool is_first = now_ == Clock::time_point{};
  const Clock::duration passed = is_first ? Clock::duration::zero() : now - now_;
  now_ = now;
  std::vector<std::size_t> stalled;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    if (i >= samples.size() || !samples[i]) {
      rank.alive = false;
      continue;
    }
    look_at(rank, *samples[i], passed);
    const Clock::duration waited = now_ - rank.stopped_since.value_or(rank.changed);
    int& times_said = rank.stopped_since ? rank.times_said_stopped : rank.times_said;
    if (waited >= first_said_at(rank) * (1 << std::min(times_said, kMostDoublings))) {
      ++times_said;
      stalled.push_back(i);
    }
  }
  return stalled;
}

void StallDetector::look_at(Rank& rank, const RankSample& sample, Clock::duration passed) {
  const bool is_new = !rank.alive;
  const bool stopped = sample.process.stopped();
  if (!is_new && (stopped || passed > kStandstill)) {
    rank.changed += passed;
    rank.moved_at += passed;
    rank.before_at += passed;
    rank.recent_at += passed;
    rank.phase_began += passed;
    rank.steps.skip(passed);
    if (stopped && rank.stopped_since && passed > kStandstill) *rank.stopped_since += passed;
  }
  if (!stopped && rank.stopped_since) {
    rank.stopped_since.reset();  // a look at its stack stops it, too, which changes nothing else
  } else if (stopped && !rank.stopped_since) {
    rank.stopped_since = now_;
    rank.times_said_stopped = 0;
  }
  const auto phase_of = [](const RankSample& of) {
    return of.words ? of.words->phase : WorkPhase::kStartUp;
  };
  if (is_new || phase_of(sample) != phase_of(rank.last)) {
    const Clock::duration took = now_ - rank.phase_began;
    const WorkPhase ended = phase_of(rank.last);
    if (!is_new && ended == WorkPhase::kCheckpoint) {
      rank.slowest_checkpoint = std::max(rank.slowest_checkpoint, took);
    } else if (!is_new && ended == WorkPhase::kEvaluate) {
      rank.slowest_evaluation = std::max(rank.slowest_evaluation, took);
    }
    rank.phase_began = now_;
  }
  if (is_new || sample.process.bytes != rank.last.process.bytes) rank.moved_at = now_;
  if (is_new || moved(rank, sample)) {
    rank.changed = now_;
    rank.at_change = rank.before = rank.recent = sample.process;
    rank.before_at = rank.recent_at = now_;
    rank.times_said = 0;
  } else if (now_ - rank.recent_at >= kRecent) {
    rank.before = std::exchange(rank.recent, sample.process);
    rank.before_at = std::exchange(rank.recent_at, now_);
  }
  if (sample.words) rank.steps.look(*sample.words, now_);
  rank.alive = true;
  rank.last = sample;
}

bool StallDetector::moved(const Rank& rank, const RankSample& sample) const {
  if (sample.words || rank.last.words) return sample.words != rank.last.words;
  const microseconds used = sample.process.cpu - rank.at_change.cpu;
  return sample.process.bytes != rank.at_change.bytes ||
         used > share(now_ - rank.changed, kIdlePercent) + kIdleSlack;
}

std::optional<Clock::duration> StallDetector::given_limit(const Rank& rank) const {
  if (!rank.last.words) return limits_.foreign;
  switch (rank.last.words->phase) {
    case WorkPhase::kTrain:
      return rank.steps.warmed_up() ? limits_.step : limits_.first;
    case WorkPhase::kCheckpoint:
    case WorkPhase::kEvaluate:
      return limits_.checkpoint;
    case WorkPhase::kTearDown:
      return limits_.teardown;
    case WorkPhase::kStartUp:
      break;
  }
  return limits_.startup;
}

Clock::duration StallDetector::limit(const Rank& rank) const {
  if (const auto given = given_limit(rank)) return *given;
  if (!rank.last.words) return kForeignLimit;
  if (learns_limit(rank)) {
    return std::max({Clock::duration(kLeastStepLimit), rank.steps.slowest_of_window() * kStepFactor,
                     rank.steps.slowest_since_warm_up() * kEverFactor});
  }
  const WorkPhase phase = rank.last.words->phase;
  const Clock::duration slowest = phase == WorkPhase::kCheckpoint ? rank.slowest_checkpoint
                                  : phase == WorkPhase::kEvaluate ? rank.slowest_evaluation
                                                                  : Clock::duration::zero();
  return std::max<Clock::duration>(kPatientLimit, slowest * kPatientFactor);
}

// Returns when a rank is first reported. The rendezvous decides whether others wait for a foreign
// rank.
Clock::duration StallDetector::first_said_at(const Rank& rank) const {
  if (rank.last.words) return limit(rank);
  return std::min<Clock::duration>(limit(rank), membership::kWaitedForLimit);
}

bool StallDetector::learns_limit(const Rank& rank) const {
  const bool trains = rank.last.words && rank.last.words->phase == WorkPhase::kTrain;
  return trains && rank.steps.warmed_up() && !limits_.step;
}

Clock::duration StallDetector::limit_if_blocked(const Rank& rank) const {
  const Clock::duration least = learns_limit(rank) ? kLeastBlockedLimit : Clock::duration::zero();
  return std::max(limit(rank), least);
}

std::optional<Clock::duration> StallDetector::limit_if_working(const Rank& rank) const {
  if (learns_limit(rank)) return std::max<Clock::duration>(limit(rank), kLeastWorkingLimit);
  return given_limit(rank);
}

// Returns the rank's activity. It works if it has worked since it went quiet, or lately: after a
// long wait recent work hardly raises the mean.
Activity StallDetector::activity(const Rank& rank) const {
  const ProcessFacts& now = rank.last.process;
  if (now.stopped()) return Activity::kStopped;
  const auto works_since = [&](const ProcessFacts& then, Clock::time_point at) {
    const Clock::duration time = now_ - at;
    const auto seconds = duration_cast<std::chrono::seconds>(time).count();
    const bool computes = now.cpu - then.cpu > share(time, kWorkPercent) + kIdleSlack;
    const bool moves = bytes_since(then, now) >= kWorkBytes;
    const bool sends = now.network_bytes - then.network_bytes >=
                       kWorkBytes + kHeartbeatBytesPerSecond * static_cast<std::uint64_t>(seconds);
    const bool uses_gpu = now.gpu - then.gpu > share(time, kWorkPercent) + kGpuSlack;
    return computes || moves || sends || uses_gpu;
  };
  const bool works =
      works_since(rank.at_change, rank.changed) || works_since(rank.before, rank.before_at);
  return works ? Activity::kWorks : Activity::kBlocked;
}

std::optional<RankView> StallDetector::view(std::size_t local_rank) const {
  if (local_rank >= ranks_.size() || !ranks_[local_rank].alive) return std::nullopt;
  const Rank& rank = ranks_[local_rank];
  RankView view;
  view.words = rank.last.words;
  view.quiet = now_ - rank.changed;
  view.limit = limit(rank);
  view.unmoved = now_ - rank.moved_at;
  view.limit_if_blocked = limit_if_blocked(rank);
  view.limit_if_working = limit_if_working(rank);
  view.activity = activity(rank);
  view.state = rank.last.process.state;
  const auto quiet = duration_cast<microseconds>(view.quiet);
  const microseconds used = rank.last.process.cpu - rank.at_change.cpu;
  if (quiet.count() > 0) view.cpu_percent = static_cast<int>(used * 100 / quiet);
  view.bytes = bytes_since(rank.at_change, rank.last.process);
  view.step_time = rank.steps.median();
  view.own_step_time = rank.steps.own_median();
  return view;
}

bool StallDetector::wants_family(std::size_t local_rank) const {
  const Rank& rank = ranks_.at(local_rank);
  return rank.alive && now_ - rank.changed >= kFamilyAfter;
}

}  // namespace ddprun::agent
