// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/ledger.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "common/log.h"

namespace ddprun::membership {
namespace {

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 10 ? "%.2f s" : "%.1f s", seconds);
  return text;
}

// Those of `a` that `b` lacks; both sorted.
std::vector<std::string> without(const std::vector<std::string>& a,
                                 const std::vector<std::string>& b) {
  std::vector<std::string> rest;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(rest));
  if (rest.size() > RoundRecord::kMaxNames) rest.resize(RoundRecord::kMaxNames);
  return rest;
}

}  // namespace

PhaseSeconds& PhaseSeconds::operator+=(const PhaseSeconds& other) {
  rendezvous += other.rendezvous;
  spawn += other.spawn;
  running += other.running;
  detect += other.detect;
  stop += other.stop;
  return *this;
}

double Ledger::lap(TimePoint now) {
  return std::chrono::duration<double>(now - std::exchange(phase_began_, now)).count();
}

void Ledger::started(RoundRecord record, std::vector<std::string> members, TimePoint now) {
  std::sort(members.begin(), members.end());
  record.came = without(members, members_);
  record.went = without(members_, members);
  members_ = std::move(members);
  record.seconds = {};
  record.seconds.rendezvous = lap(now);
  total_.rendezvous += record.seconds.rendezvous;
  rounds_.push_back(std::move(record));
  if (rounds_.size() > kKept) rounds_.pop_front();
  ++num_rounds_;
  phase_ = Phase::kSpawn;
}

void Ledger::running(TimePoint now) {
  if (phase_ != Phase::kSpawn) return;
  rounds_.back().seconds.spawn = lap(now);
  total_.spawn += rounds_.back().seconds.spawn;
  phase_ = Phase::kRunning;
}

void Ledger::over(const std::string& cause, Clock::duration detect, TimePoint now) {
  if (phase_ != Phase::kSpawn && phase_ != Phase::kRunning) return;
  const TimePoint happened = std::max(phase_began_, now - detect);
  PhaseSeconds& seconds = rounds_.back().seconds;
  double& until_then = phase_ == Phase::kSpawn ? seconds.spawn : seconds.running;
  until_then = lap(happened);
  (phase_ == Phase::kSpawn ? total_.spawn : total_.running) += until_then;
  seconds.detect = lap(now);
  total_.detect += seconds.detect;
  rounds_.back().cause = cause;
  phase_ = Phase::kStop;
}

void Ledger::name_stragglers(std::vector<std::string> names) {
  const bool live = phase_ == Phase::kSpawn || phase_ == Phase::kRunning;
  if (live) rounds_.back().stragglers = std::move(names);
}

void Ledger::stopped(TimePoint now) {
  if (phase_ != Phase::kStop) return;
  rounds_.back().seconds.stop = lap(now);
  total_.stop += rounds_.back().seconds.stop;
  phase_ = Phase::kRendezvous;
}

std::optional<double> Ledger::ettr() const {
  const double all = total_.running + total_.lost();
  if (all <= 0) return std::nullopt;
  return total_.running / all;
}

std::string Ledger::summary() const {
  const auto share = ettr();
  if (num_rounds_ < 2 || !share) return {};
  char percent[16];
  std::snprintf(percent, sizeof percent, "%.1f %%", *share * 100);
  return concat(num_rounds_, " rounds; workers ran ", seconds_text(total_.running), " of ",
                seconds_text(total_.running + total_.lost()), " (", percent,
                "); lost: ", seconds_text(total_.detect), " noticing, ", seconds_text(total_.stop),
                " stopping, ", seconds_text(total_.rendezvous), " waiting for nodes, ",
                seconds_text(total_.spawn), " starting workers");
}

}  // namespace ddprun::membership
