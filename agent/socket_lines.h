// SPDX-License-Identifier: Apache-2.0
// The lines on a round's socket, each one JSON object (docs/agent-socket.md). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/variant.h"

namespace ddprun::agent {

// Lines from a worker.

struct Hello {
  int version = 0;
  std::uint64_t round = 0;
  int local_rank = 0;
  bool observes = false;  // it reports what an observer sees of a program that doesn't use the page
  // Such as "PyTorch 2.15.0, gloo, 2 ranks"; valid UTF-8 of one line; empty: not reported.
  std::string framework;
};
// The worker started before its node had a place (hello with round 0), and can do no more without
// it.
struct WaitForPlace {};
// The worker's first step of the round is done.
struct FirstStep {
  std::uint64_t step = 0;          // its number in the job's own count; 0: it has none
  std::int64_t connecting_us = 0;  // how long it took to make communicators
};
// The worker asks to go on without this node.
struct ExcludeNode {
  std::string reason;
};
// The worker asks to end the job.
struct StopJob {
  std::string reason;
  int exit_code = 1;  // 1 … 255
};
// An operation of the worker's communicators has failed, and its flight recorder is being written
// (docs/flight-recorder.md). Texts are valid UTF-8 of one line.
struct OperationFailed {
  std::string code;       // "timeout", "peer lost", "protocol error"
  std::string operation;  // "all_reduce #127 (25.0 MiB float32, sum) of communicator 0"
  int size = 0;           // ranks of the communicator
  std::int64_t waited_ms = 0;
  std::vector<int> missing;  // ranks that did not come, ascending; empty: not known, or none
  std::string message;
  std::string file;
};
// This connection answers "dump" with Recorded.
struct KeepsRecord {};
// The flight recorder is written, since the agent asked for it, or an operation failed.
struct Recorded {
  std::string file;          // valid UTF-8 of one line; empty: it could not be written
  std::uint64_t number = 0;  // of the agent's request; 0: an operation failed
};
// The worker could go on in place if one of its peers died (docs/inplace.md).
struct OffersRecovery {};
// One of its peers has gone, and the worker waits on this connection for its place in the next
// round.
struct AsksToRecover {};
// An event of a later version.
struct UnknownLine {
  std::string type;
};
using WorkerLine =
    variants::variant<Hello, WaitForPlace, FirstStep, ExcludeNode, StopJob, OperationFailed,
                      KeepsRecord, Recorded, OffersRecovery, AsksToRecover, UnknownLine>;

inline constexpr std::size_t kMaxReasonBytes = 1024;

// Parses `line`, without its '\n'. Reasons come out as valid UTF-8 of one line, cut to
// kMaxReasonBytes. Throws Error(kProtocol) if it is no JSON object with a type, or if fields of a
// known type are missing or out of range.
WorkerLine parse_worker_line(std::string_view line);

// These are the agent's answers to hello, with '\n'.
std::string welcome_line();
std::string refused_line(std::string_view reason);
// Asks a worker that keeps a flight recorder to write it. `number` comes back with the answer.
std::string dump_line(std::uint64_t number);
// Gives a place to a worker that was started before its node had one, or that goes on in place. The
// line is followed by its `bytes` bytes: each "NAME=value" ends with a zero byte.
std::string assign_line(const std::vector<std::string>& environment);

}  // namespace ddprun::agent
