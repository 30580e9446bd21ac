// SPDX-License-Identifier: Apache-2.0
// The events that an AgentMachine is told, and the actions that it asks for. Plain data.
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

// The first event, which comes once. `unfit`: why this node can't run its workers; empty: it can,
// as far as it knows.
struct Start {
  std::string unfit = {};
};
// The connection is open, nothing was said yet. Addresses are numeric: ours, the rendezvous'.
struct LinkUp {
  std::string local_address;
  std::string peer_address;
  Endpoint endpoint = {};  // which of the rendezvous' it is
};
struct LinkMessage {
  RendezvousEnvelope envelope;
};
// LinkAnswered and ClockSampled are keep_alive.h's.
// An open connection ended.
struct LinkDown {
  bool silence = false;  // keep-alive expired, as against EOF or reset
  std::string reason;
};
// Connect's deadline passed, or trying again would change nothing. `message`: who was tried, for
// how long, why it failed.
struct LinkFailed {
  std::string message;
  bool is_users_fault = false;  // as a token that differs: exit code 2
};
// The rendezvous is told these as they are, if they fit the state. They are from the worker group
// of its round. WorkersLeft comes after RequestStop.
using membership::RecordsWanted;
using membership::WorkersLeft, membership::WorkersRunning, membership::WorkersSucceeded;
using WorkerAsks = WorkerRequest;
using Warned = Preempted;
using RankStalled = Stalled;
using RanksInspected = Inspection;  // the answer to Inspect
using StepsTimed = StepTimes;       // its giver keeps to the rate, as NodeRead's does
using TailRead = Tail;              // the answer to ReadTail
using NodeRead = NodeReport;
// From the worker group of `round`.
struct WorkerFailed {
  std::uint64_t round = 0;
  WorkerFailure failure;
  std::optional<Clock::time_point> died_at{};  // nullopt: nobody saw it
};
// Their lease ran out, and they are killed: this process stood still.
struct WorkersFenced {
  std::uint64_t round = 0;
};
// All its workers have finished their first step.
struct FirstStepDone {
  FirstStep first_step;
};
// After StopWorkers: no process is left.
struct WorkersGone {
  std::uint64_t round = 0;
  std::uint64_t last_step = 0;  // see WorkersStopped
};
// The answers to KeepWorkers: all that live have asked to go on, and wait; or that can't be.
struct WorkersKept {
  std::uint64_t round = 0;
  int count = 0;
  std::uint64_t last_step = 0;  // see WorkersStopped
};
struct WorkersNotKept {
  std::uint64_t round = 0;
  std::string why;
};
// SIGINT, SIGTERM, … at ddprun itself.
struct Signal {
  int number = 0;
  bool is_users = true;  // false: it stands for the end of who started this ddprun from elsewhere
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

// → LinkUp or LinkFailed.
struct Connect {
  std::chrono::milliseconds timeout{0};
};
// No event follows. Also stops a Connect.
struct CloseLink {};
struct Send {
  AgentEnvelope envelope;
};
// For the link's pings.
struct SetKeepAlive {
  std::chrono::milliseconds timeout{0};
  std::chrono::milliseconds interval{0};  // of the pings; at most half the time-out
};
// Serve an empty store on the bound listener.
struct ServeStore {
  std::uint64_t round = 0;
  bool is_for_loopback = false;  // all nodes are on this machine and are told a loopback address
};
// No process of the round is left.
struct CloseStore {
  std::uint64_t round = 0;
};
// Spawn the node's workers. MASTER_ADDR, MASTER_PORT are filled in, in static mode too.
struct Spawn {
  StartRound round;
};
// The workers may live until then, unless a later Lease comes: kept by somebody who doesn't stand
// still when this process does. nullopt: for ever.
struct Lease {
  std::optional<Clock::time_point> until;
};
// Start the node's workers without a place in a round; the next Spawn gives them one. No event
// follows: what becomes of them until then is the owner's affair.
struct Prewarm {};
// Ask the workers to leave at a step boundary; those that end with 75 from now on have not failed.
struct RequestStop {
  std::uint64_t round = 0;
  std::chrono::milliseconds notice{0};
  int signal_number = 0;  // as in Preempt
};
// The signal, after `grace` SIGKILL → WorkersGone. May come again, with less; the first one's
// signal counts.
struct StopWorkers {
  std::chrono::milliseconds grace{0};
  int signal_number = SIGTERM;
  // Not before the flight recorders that were asked for are written, or 2 s after that.
  bool after_records = false;
};
// The rendezvous has ended the round; as far as it has decided, the job goes on. For reports only:
// the workers' fate comes as another action. `in_place`: those that live are to go on. RoundOver
// may come again, without it. No event follows.
struct RoundOver {
  std::uint64_t round = 0;
  std::string cause;  // one line
  bool in_place = false;
};
// A worker has died: → WorkersKept when all others have asked to go on, or WorkersNotKept. Until
// GoOn or StopWorkers they wait.
struct KeepWorkers {
  std::uint64_t round = 0;
};
// The workers that were kept have their places in the round. As after Spawn, WorkersRunning
// follows, or WorkerFailed.
struct GoOn {
  StartRound round;
};
// Have the workers write their flight recorders; no event follows. Once per round.
using membership::Record;
// Find out what each rank of the round is in → RanksInspected, within 2 s.
using membership::Inspect;
// Find out what a rank of the round wrote last → TailRead with this request.
using ReadTail = TailWanted;
// One line for the user.
struct Tell {
  LogLevel level = LogLevel::kInfo;
  std::string text;
};
// The last action: report, and leave with the verdict's code.
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
