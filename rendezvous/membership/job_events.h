// SPDX-License-Identifier: Apache-2.0
// The table of states and events: a job's reaction to each event, by the job's phase. Job's
// dispatch uses it. docs/internals/rendezvous.md explains it in prose. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/clock.h"
#include "common/variant.h"
#include "rendezvous/membership/state.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::membership {

enum class JobEvent {
  // Messages of agents, in the order of AgentMessage.
  kJoin,  // a second Join on a connection
  kAck,
  kWorkersRunning,
  kWorkerFailed,
  kWorkersSucceeded,
  kFirstStep,
  kWorkersStopped,
  kWorkerRequest,
  kWorkersLeft,
  kPreempted,
  kLeave,
  kRecordsWanted,
  kCutOff,
  kStalled,
  kInspection,
  kStepTimes,
  kTail,
  // Other events.
  kNewcomer,   // a join of a new agent
  kComesBack,  // a join of an agent that is known
  kHeard,      // a ping
  kClosed,     // a node's connection ended
  kStoreLost,  // a node's store proxy can't go on
  kSilent,     // a connected node was silent for the keep-alive time
  kStaysAway,  // a node's grace to come back is over
  kTailAsked,  // a person looks at a rank's output
  // Deadlines, in the order in which they are checked.
  kLingerOver,
  kPresenceCheck,  // leads to kSilent or kStaysAway for each overdue node
  kStartOver,
  kBarrierOver,
  kNoticeOver,  // a warning's notice is over
  kStopOver,
  kLastCallOver,
  kFenceOver,
  kBackoffOver,
  kJoinTimeOver,
  kJoinRestartDue,
  kWaitingDue,  // the next Waiting to all nodes is due
  kInquiryDue,  // an inquiry into a hang must end or begin
};
inline constexpr JobEvent kFirstDeadline = JobEvent::kLingerOver;
inline constexpr std::size_t kNumJobEvents = static_cast<std::size_t>(JobEvent::kInquiryDue) + 1;

enum class Reaction {
  kHandled,
  kIgnored,         // changes nothing; a deadline is not waited for
  kAcknowledges,    // only its `ack` counts: the node may go after the last one
  kBreaksProtocol,  // the connection is closed
  kForgotten,       // the node is forgotten; no budget is used
  kElsewhere,       // belongs to a new job: JobTable begins one
};

// kRound: a message counts only if a member sends it about the live or last round.
enum class Scope { kAny, kRound };

struct EventRow {
  using Deadline = std::optional<Clock::time_point> JobDeadlines::*;

  constexpr EventRow(JobEvent its_event, Scope its_scope, Reaction forming, Reaction running,
                     Reaction stopping, Reaction ended, Deadline its_deadline = nullptr)
      : event(its_event),
        scope(its_scope),
        reactions{forming, running, stopping, ended},
        deadline(its_deadline) {}

  JobEvent event;
  Scope scope;
  std::array<Reaction, 4> reactions;  // index: JobPhase
  Deadline deadline;                  // of kinds that JobDeadlines has; else nullptr
};

namespace states_and_events {

using enum JobEvent;
using enum Scope;
inline constexpr Reaction kYes = Reaction::kHandled, kNo = Reaction::kIgnored,
                          kOnlyAck = Reaction::kAcknowledges, kBad = Reaction::kBreaksProtocol,
                          kGone = Reaction::kForgotten, kNewJob = Reaction::kElsewhere;

// clang-format off
inline constexpr std::array kRows = std::to_array<EventRow>({
    //                         forming  running  stopping  ended
    {kJoin,             kAny,   kBad,    kBad,    kBad,     kBad},
    {kAck,              kAny,   kNo,     kNo,     kNo,      kOnlyAck},
    {kWorkersRunning,   kRound, kNo,     kYes,    kNo,      kOnlyAck},
    {kWorkerFailed,     kRound, kNo,     kYes,    kYes,     kOnlyAck},
    {kWorkersSucceeded, kRound, kNo,     kYes,    kNo,      kOnlyAck},
    {kFirstStep,        kRound, kNo,     kYes,    kNo,      kOnlyAck},
    {kWorkersStopped,   kRound, kNo,     kYes,    kYes,     kOnlyAck},
    {kWorkerRequest,    kRound, kNo,     kYes,    kNo,      kOnlyAck},
    {kWorkersLeft,      kRound, kNo,     kYes,    kNo,      kOnlyAck},
    {kPreempted,        kAny,   kYes,    kYes,    kYes,     kOnlyAck},
    {kLeave,            kAny,   kYes,    kYes,    kYes,     kOnlyAck},
    {kRecordsWanted,    kRound, kNo,     kYes,    kNo,      kOnlyAck},
    {kCutOff,           kAny,   kYes,    kYes,    kYes,     kOnlyAck},
    {kStalled,          kRound, kNo,     kYes,    kNo,      kOnlyAck},
    {kInspection,       kRound, kNo,     kYes,    kNo,      kOnlyAck},
    {kStepTimes,        kAny,   kYes,    kYes,    kYes,     kOnlyAck},
    {kTail,             kAny,   kYes,    kYes,    kYes,     kOnlyAck},

    {kNewcomer,         kAny,   kYes,    kYes,    kYes,     kNewJob},
    {kComesBack,        kAny,   kYes,    kYes,    kYes,     kYes},
    {kHeard,            kAny,   kYes,    kYes,    kYes,     kYes},
    {kClosed,           kAny,   kYes,    kYes,    kYes,     kYes},
    {kStoreLost,        kAny,   kYes,    kYes,    kYes,     kGone},
    {kSilent,           kAny,   kYes,    kYes,    kYes,     kGone},
    {kStaysAway,        kAny,   kYes,    kYes,    kYes,     kGone},
    {kTailAsked,        kAny,   kYes,    kYes,    kYes,     kNo},

    {kLingerOver,       kAny,   kNo,     kNo,     kNo,      kYes,   &JobDeadlines::linger},
    {kPresenceCheck,    kAny,   kYes,    kYes,    kYes,     kYes},
    {kStartOver,        kAny,   kNo,     kYes,    kNo,      kNo,   &JobDeadlines::start},
    {kBarrierOver,      kAny,   kNo,     kYes,    kNo,      kNo,   &JobDeadlines::barrier},
    {kNoticeOver,       kAny,   kNo,     kYes,    kNo,      kNo,   &JobDeadlines::preempt},
    {kStopOver,         kAny,   kNo,     kNo,     kYes,     kNo,   &JobDeadlines::stop},
    {kLastCallOver,     kAny,   kYes,    kNo,     kNo,      kNo,   &JobDeadlines::last_call},
    {kFenceOver,        kAny,   kYes,    kNo,     kYes,     kNo,   &JobDeadlines::fenced},
    {kBackoffOver,      kAny,   kYes,    kNo,     kYes,     kNo,   &JobDeadlines::backoff},
    {kJoinTimeOver,     kAny,   kYes,    kNo,     kNo,      kNo,   &JobDeadlines::join},
    {kJoinRestartDue,   kAny,   kNo,     kYes,    kNo,      kNo,   &JobDeadlines::join_restart},
    {kWaitingDue,       kAny,   kYes,    kNo,     kNo,      kNo},
    {kInquiryDue,       kAny,   kNo,     kYes,    kNo,      kNo},
});
// clang-format on

constexpr bool has_each_event_once() {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].event != static_cast<JobEvent>(i)) return false;
  }
  return kRows.size() == kNumJobEvents;
}
static_assert(has_each_event_once());

}  // namespace states_and_events

constexpr const EventRow& row_of(JobEvent event) {
  return states_and_events::kRows[static_cast<std::size_t>(event)];
}
constexpr Reaction reaction_to(JobEvent event, JobPhase phase) {
  return row_of(event).reactions[static_cast<std::size_t>(phase)];
}

static_assert(variants::variant_size<AgentMessage>::value ==
              static_cast<std::size_t>(JobEvent::kTail) + 1);
inline JobEvent event_of(const AgentMessage& message) {
  return static_cast<JobEvent>(message.index());
}
// Returns the round that the message is about; nullopt: none.
inline std::optional<std::uint64_t> round_of(const AgentMessage& message) {
  return variants::visit(
      [](const auto& its) -> std::optional<std::uint64_t> {
        if constexpr (requires { its.round; }) return its.round;
        return std::nullopt;
      },
      message);
}

}  // namespace ddprun::membership
