// SPDX-License-Identifier: Apache-2.0
// The events that an AgentMachine is told, and the actions that it asks its owner for. Plain data.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/log_level.h"
#include "common/variant.h"
#include "rendezvous/messages/messages.h"
#include "rendezvous/wire/keep_alive.h"

namespace ddprun::membership {

// ---- events: what the machine is told ----
namespace agent_event {

// The first event; it comes once. `unfit`: why this node can't run its workers; empty: it can, as
// far as it knows.
struct Start {
  std::string unfit = {};
};
// The connection is open, and nothing was said yet. The addresses of both ends are numeric.
struct LinkUp {
  std::string local_address;
  std::string peer_address;
  Endpoint endpoint = {};  // which of the rendezvous' endpoints it is
};
struct LinkMessage {
  RendezvousEnvelope envelope;
};
// LinkAnswered and ClockSampled are in keep_alive.h.
// An open connection ended.
struct LinkDown {
  bool silence = false;  // the keep-alive time expired; false: end of file or a reset
  std::string reason;
};
// The deadline of Connect has passed, or another attempt would change nothing. `message`: who was
// tried, for how long, and why it failed.
struct LinkFailed {
  std::string message;
  bool is_users_fault = false;  // such as a token that differs: exit code 2
};
// These come from the worker group of their round. They are passed on to the rendezvous unchanged,
// if they fit the state. WorkersLeft comes after RequestStop.
using membership::RecordsWanted;
using membership::WorkersLeft, membership::WorkersRunning, membership::WorkersSucceeded;
using WorkerAsks = WorkerRequest;
using Warned = Preempted;
using RankStalled = Stalled;
using RanksInspected = Inspection;  // the answer to Inspect
using StepsTimed = StepTimes;       // its sender limits the rate, as NodeRead's does
using TailRead = Tail;              // the answer to ReadTail
using NodeRead = NodeReport;
// From the worker group of `round`.
struct WorkerFailed {
  std::uint64_t round = 0;
  WorkerFailure failure;
  std::optional<Clock::time_point> died_at{};  // nullopt: nobody saw it
};
// The workers' lease ran out, and they are killed: this process stood still.
struct WorkersFenced {
  std::uint64_t round = 0;
};
// All of this node's workers have finished their first step.
struct FirstStepDone {
  FirstStep first_step;
};
// Follows StopWorkers: no process is left.
struct WorkersGone {
  std::uint64_t round = 0;
  std::uint64_t last_step = 0;  // see WorkersStopped
};
// The answers to KeepWorkers. WorkersKept: all living workers have asked to go on, and wait.
// WorkersNotKept: that can't be.
struct WorkersKept {
  std::uint64_t round = 0;
  int count = 0;
  std::uint64_t last_step = 0;  // see WorkersStopped
};
struct WorkersNotKept {
  std::uint64_t round = 0;
  std::string why;
};
// ddprun itself got SIGINT, SIGTERM, …
struct Signal {
  int number = 0;
  bool is_users = true;  // false: whoever started this ddprun from elsewhere has ended
};
// Whoever started this ddprun from elsewhere is gone: the node leaves the job, which goes on if it
// can. `number`: the signal for its workers.
struct Abandoned {
  std::string reason;
  int number = SIGTERM;
};
// next_deadline() has come.
struct Timer {};

}  // namespace agent_event

using AgentEvent = variants::variant<
    agent_event::Start, agent_event::LinkUp, agent_event::LinkMessage, agent_event::LinkAnswered,
    agent_event::ClockSampled, agent_event::LinkDown, agent_event::LinkFailed,
    agent_event::WorkersRunning, agent_event::WorkerFailed, agent_event::WorkersSucceeded,
    agent_event::WorkersFenced, agent_event::WorkerAsks, agent_event::WorkersLeft,
    agent_event::Warned, agent_event::FirstStepDone, agent_event::WorkersGone,
    agent_event::WorkersKept, agent_event::WorkersNotKept, agent_event::RankStalled,
    agent_event::RecordsWanted, agent_event::RanksInspected, agent_event::StepsTimed,
    agent_event::TailRead, agent_event::NodeRead, agent_event::Signal, agent_event::Abandoned,
    agent_event::Timer>;

// ---- actions: what it asks its owner to do, in order ----
namespace agent_action {

// Opens the connection → LinkUp or LinkFailed.
struct Connect {
  std::chrono::milliseconds timeout{0};
};
// Closes the connection, or stops a Connect. No event follows.
struct CloseLink {};
struct Send {
  AgentEnvelope envelope;
};
// Sets the times of the link's pings.
struct SetKeepAlive {
  std::chrono::milliseconds timeout{0};
  std::chrono::milliseconds interval{0};  // of the pings; at most half the time-out
};
// Serves an empty store on the bound listener.
struct ServeStore {
  std::uint64_t round = 0;
  bool is_for_loopback = false;  // all nodes are on this machine and are told a loopback address
};
// Closes the round's store: no process of the round is left.
struct CloseStore {
  std::uint64_t round = 0;
};
// Starts the node's workers. MASTER_ADDR and MASTER_PORT are filled in, in static mode too.
struct Spawn {
  StartRound round;
};
// Sets until when the workers may live, unless a later Lease comes. A process that doesn't stand
// still with this one enforces it. nullopt: for ever.
struct Lease {
  std::optional<Clock::time_point> until;
};
// Starts the node's workers without a place in a round; the next Spawn gives them one. No event
// follows: until then the owner deals with their end.
struct Prewarm {};
// Asks the workers to leave at a step boundary. Those that end with 75 from now on have not failed.
struct RequestStop {
  std::uint64_t round = 0;
  std::chrono::milliseconds notice{0};
  int signal_number = 0;  // as in Preempt
};
// Sends the signal, and SIGKILL after `grace` → WorkersGone. May come again with a shorter grace;
// the first signal stays.
struct StopWorkers {
  std::chrono::milliseconds grace{0};
  int signal_number = SIGTERM;
  // The signal waits until the flight recorders that were asked for are written, 2 s at most.
  bool after_records = false;
};
// The rendezvous has ended the round; as far as it has decided, the job goes on. It is for reports
// only: another action tells what happens to the workers. `in_place`: the living ones are to go on.
// RoundOver may come again without it. No event follows.
struct RoundOver {
  std::uint64_t round = 0;
  std::string cause;  // one line
  bool in_place = false;
};
// A worker has died: the others are to go on → WorkersKept when all have asked to, or
// WorkersNotKept. They wait until GoOn or StopWorkers.
struct KeepWorkers {
  std::uint64_t round = 0;
};
// The workers that were kept have their places in the round. WorkersRunning or WorkerFailed
// follows, as after Spawn.
struct GoOn {
  StartRound round;
};
// Has the workers write their flight recorders, once per round. No event follows.
using membership::Record;
// Finds out in which operation each rank of the round is → RanksInspected, within 2 s.
using membership::Inspect;
// Finds out the last output of a rank of the round → TailRead with this request.
using ReadTail = TailWanted;
// One line for the user.
struct Tell {
  LogLevel level = LogLevel::kInfo;
  std::string text;
};
// The last action: the owner reports, and leaves with the verdict's code.
struct Exit {
  JobEnd verdict;      // the same on every node, where the job decided it
  bool local = false;  // decided here (refused, unreachable, cut off), not by the rendezvous
};

}  // namespace agent_action

using AgentAction = variants::variant<
    agent_action::Connect, agent_action::CloseLink, agent_action::Send, agent_action::SetKeepAlive,
    agent_action::ServeStore, agent_action::CloseStore, agent_action::Spawn, agent_action::Prewarm,
    agent_action::Lease, agent_action::RequestStop, agent_action::StopWorkers,
    agent_action::RoundOver, agent_action::KeepWorkers, agent_action::GoOn, agent_action::Record,
    agent_action::Inspect, agent_action::ReadTail, agent_action::Tell, agent_action::Exit>;

}  // namespace ddprun::membership
