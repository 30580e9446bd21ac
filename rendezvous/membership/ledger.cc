// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/ledger.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <iterator>

#include "common/json.h"
#include "common/text.h"

namespace ddprun::membership {

namespace json = boost::json;

namespace {

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 10 ? "%.2f s" : "%.1f s", seconds);
  return text;
}

// Returns ", 3.20 s <what>"; empty for 0 s.
std::string part(double seconds, const char* what) {
  return seconds > 0 ? concat(", ", seconds_text(seconds), what) : std::string();
}

// Returns the names in `a` that `b` lacks; both are sorted.
std::vector<std::string> without(const std::vector<std::string>& a,
                                 const std::vector<std::string>& b) {
  std::vector<std::string> rest;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(rest));
  if (rest.size() > RoundRecord::kMaxNames) rest.resize(RoundRecord::kMaxNames);
  return rest;
}

}  // namespace

PhaseSeconds& PhaseSeconds::operator+=(const PhaseSeconds& other) {
  for (const auto& [name, phase] : kPhases) this->*phase += other.*phase;
  return *this;
}

PhaseSeconds& PhaseSeconds::operator-=(const PhaseSeconds& other) {
  for (const auto& [name, phase] : kPhases) this->*phase -= other.*phase;
  return *this;
}

std::optional<double> PhaseSeconds::ettr() const {
  const double all = running + lost();
  return all > 0 ? std::optional(running / all) : std::nullopt;
}

bool Ledger::is_live() const {
  return phase_ == Phase::kSpawn || phase_ == Phase::kRunning || phase_ == Phase::kStepping;
}

void Ledger::close_phase(double PhaseSeconds::*phase, TimePoint now) {
  ++version_;
  const double seconds = in_phase(now);
  phase_began_ = now;
  rounds_.back().seconds.*phase += seconds;
  total_.*phase += seconds;
}

void Ledger::started(RoundRecord record, std::vector<std::string> members, TimePoint now) {
  std::ranges::sort(members);
  // The delay counts for the round before, which caused it.
  if (!rounds_.empty()) close_phase(&PhaseSeconds::delay, delay_end(now));
  record.came = without(members, members_);
  record.went = without(members_, members);
  members_ = std::move(members);
  record.seconds = {};
  rounds_.push_back(std::move(record));
  if (rounds_.size() > kKept) rounds_.pop_front();
  close_phase(&PhaseSeconds::rendezvous, now);
  ++num_rounds_;
  phase_ = Phase::kSpawn;
  warming_ = {};
}

void Ledger::node_runs(const WorkersRunning& node) {
  if (phase_ != Phase::kSpawn) return;
  ++version_;
  RoundRecord& round = rounds_.back();
  warming_ = std::max(warming_, std::chrono::microseconds(node.warming_us));
  round.num_warm += node.num_warm;
  if (round.cold.empty()) round.cold = node.cold;
}

void Ledger::running(TimePoint now) {
  if (phase_ != Phase::kSpawn) return;
  close_phase(&PhaseSeconds::warming,
              phase_began_ + std::min<Clock::duration>(warming_, now - phase_began_));
  close_phase(&PhaseSeconds::spawn, now);
  phase_ = Phase::kRunning;
}

void Ledger::first_step(std::uint64_t step, Clock::duration connecting, TimePoint now) {
  if (phase_ != Phase::kRunning) return;
  close_phase(&PhaseSeconds::communicators,
              phase_began_ + std::min(connecting, now - phase_began_));
  close_phase(&PhaseSeconds::first_step, now);
  rounds_.back().first_step = step;
  phase_ = Phase::kStepping;
  reports_steps_ = true;
  if (step > 0) count_redone(step);
}

void Ledger::count_redone(std::uint64_t first_step) {
  const auto before = std::find_if(std::next(rounds_.rbegin()), rounds_.rend(),
                                   [](const RoundRecord& each) { return each.last_step > 0; });
  if (before == rounds_.rend() || before->last_step < first_step) return;
  before->steps_redone = std::max(before->steps_redone, before->last_step + 1 - first_step);
  if (before->first_step == 0 || before->last_step <= before->first_step) return;
  // The round's first step is not in its running time. A round in between, without a last step, may
  // have done some steps again already. Each step counts as lost only once.
  const auto timed = static_cast<double>(before->last_step - before->first_step);
  const double share = std::min(1.0, static_cast<double>(before->steps_redone) / timed);
  const double all = before->seconds.running + before->seconds.redone;
  const double seconds = std::max(0.0, share * all - before->seconds.redone);
  before->seconds.running -= seconds;
  before->seconds.redone += seconds;
  total_.running -= seconds;
  total_.redone += seconds;
}

void Ledger::last_step(std::uint64_t step) {
  if (phase_ == Phase::kRendezvous) return;
  if (step <= rounds_.back().last_step) return;
  rounds_.back().last_step = step;
  ++version_;
}

double PhaseSeconds::*Ledger::phase_member() const {
  switch (phase_) {
    case Phase::kRendezvous:
      return &PhaseSeconds::rendezvous;
    case Phase::kSpawn:
      return &PhaseSeconds::spawn;
    case Phase::kRunning:
      // If a job that reports steps has done none in this round, the time is that of its first
      // step.
      return reports_steps_ ? &PhaseSeconds::first_step : &PhaseSeconds::running;
    case Phase::kStepping:
      return &PhaseSeconds::running;
    case Phase::kStop:
      return &PhaseSeconds::stop;
  }
  return &PhaseSeconds::running;
}

PhaseSeconds Ledger::total_until(TimePoint now) const {
  PhaseSeconds all = total_;
  const double delay = in_phase(delay_end(now));
  all.delay += delay;
  all.*phase_member() += in_phase(now) - delay;
  return all;
}

void Ledger::over(const std::string& cause, Clock::duration detect, TimePoint now) {
  if (!is_live()) return;
  close_phase(phase_member(), std::max(phase_began_, now - detect));
  close_phase(&PhaseSeconds::detect, now);
  rounds_.back().cause = cause;
  phase_ = Phase::kStop;
}

void Ledger::name_stragglers(std::vector<std::string> names) {
  if (!is_live()) return;
  rounds_.back().stragglers = std::move(names);
  ++version_;
}

void Ledger::name_failures(std::string first, std::vector<std::string> victims) {
  if (rounds_.empty()) return;
  rounds_.back().first_failure = std::move(first);
  rounds_.back().victims = std::move(victims);
  ++version_;
}

void Ledger::name_cause(std::string cause) {
  if (phase_ != Phase::kStop) return;
  rounds_.back().cause = std::move(cause);
  ++version_;
}

Ledger::TimePoint Ledger::delay_end(TimePoint now) const {
  if (phase_ != Phase::kRendezvous) return phase_began_;
  return std::max(phase_began_, std::min(delayed_until_, now));
}

void Ledger::stopped(TimePoint now, std::optional<TimePoint> delayed_until) {
  if (phase_ != Phase::kStop) return;
  close_phase(&PhaseSeconds::stop, now);
  delayed_until_ = delayed_until.value_or(now);
  phase_ = Phase::kRendezvous;
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
                seconds_text(total_.spawn), " starting workers",
                part(total_.warming, " importing for them"),
                part(total_.delay, " in delays of a crash loop"),
                part(total_.communicators, " making communicators"),
                part(total_.first_step, " until the first step"),
                part(total_.redone, " in steps that were done again"));
}

json::object phase_seconds_object(const PhaseSeconds& seconds) {
  json::object object;
  for (const auto& [name, phase] : kPhases) object[name] = seconds.*phase;
  return object;
}

json::object round_record_object(const RoundRecord& record) {
  json::object object;
  object["round"] = record.round;
  object["nodes"] = record.num_nodes;
  object["spares"] = record.num_spares;
  object["world_size"] = record.world_size;
  object["in_place"] = record.in_place;
  object["came"] = json::array(record.came.begin(), record.came.end());
  object["went"] = json::array(record.went.begin(), record.went.end());
  object["stragglers"] = json::array(record.stragglers.begin(), record.stragglers.end());
  object["num_warm"] = record.num_warm;
  object["cold"] = record.cold;
  object["cause"] = record.cause;
  object["first_failure"] = record.first_failure;
  object["victims"] = json::array(record.victims.begin(), record.victims.end());
  object["first_step"] = record.first_step;
  object["last_step"] = record.last_step;
  object["steps_redone"] = record.steps_redone;
  object["seconds"] = phase_seconds_object(record.seconds);
  return object;
}

std::string ledger_text(const Ledger& ledger, std::size_t max_bytes) {
  json::object object;
  const auto ettr = ledger.ettr();
  object["ettr"] = or_null(ettr);
  object["seconds"] = phase_seconds_object(ledger.total());
  object["rounds"] = json::array();
  std::size_t size = json::serialize(object).size();
  std::vector<std::string> texts;  // the last round first
  for (auto record = ledger.rounds().rbegin(); record != ledger.rounds().rend(); ++record) {
    std::string text = json::serialize(round_record_object(*record));
    size += text.size() + 1;  // plus a comma
    if (size > max_bytes) break;
    texts.push_back(std::move(text));
  }
  std::string whole = json::serialize(object);
  whole.resize(whole.size() - 2);  // "]}"
  for (auto text = texts.rbegin(); text != texts.rend(); ++text) {
    whole += (text == texts.rbegin() ? "" : ",") + *text;
  }
  return whole + "]}";
}

}  // namespace ddprun::membership
