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
  bool observes = false;  // it writes what is seen of a program that knows nothing of the page
  std::string framework;  // "PyTorch 2.15.0, gloo, 2 ranks"; valid UTF-8 of one line; empty: untold
};
// The worker came before its node had a place (hello with round 0), and has nothing more to do.
struct WaitForPlace {};
// The worker's first step of the round is done.
struct FirstStep {
  std::uint64_t step = 0;          // its number in the job's own count; 0: it has none
  std::int64_t connecting_us = 0;  // so long it took to make communicators
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
// This connection answers "dump", with Recorded.
struct KeepsRecord {};
// The flight recorder is written: the agent asked for it, or an operation failed.
struct Recorded {
  std::string file;          // valid UTF-8 of one line; empty: it could not be
  std::uint64_t number = 0;  // of the agent's request; 0: an operation failed
};
// The worker could go on in place if one of its peers died (docs/inplace.md).
struct OffersRecovery {};
// One of its peers has gone, and it waits on this connection for its place in the next round.
struct AsksToRecover {};
// An event of a later version.
struct UnknownLine {
  std::string type;
};
using WorkerLine =
    variants::variant<Hello, WaitForPlace, FirstStep, ExcludeNode, StopJob, OperationFailed,
                      KeepsRecord, Recorded, OffersRecovery, AsksToRecover, UnknownLine>;

inline constexpr std::size_t kMaxReasonBytes = 1024;

// `line` is without its '\n'. Reasons come out as valid UTF-8 of one line, cut to kMaxReasonBytes.
// Throws Error(kProtocol) for what is no JSON object with a type, and for a known type whose fields
// are missing or out of range.
WorkerLine parse_worker_line(std::string_view line);

// The agent's answers to hello, with '\n'.
std::string welcome_line();
std::string refused_line(std::string_view reason);
// To a worker that keeps one: write the flight recorder. `number` comes back with the answer.
std::string dump_line(std::uint64_t number);
// Goes to a worker that was started before its node had a place, or that goes on in place. It is
// the line, then its `bytes` bytes, each "NAME=value" ended by a zero byte.
std::string assign_line(const std::vector<std::string>& environment);

}  // namespace ddprun::agent
