// SPDX-License-Identifier: Apache-2.0
// The socket on which this node's workers of one round ask for their progress pages and say what
// only they know (docs/agent-socket.md). io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agent/progress_pages.h"
#include "common/log_level.h"
#include "common/unique_fd.h"
#include "common/variant.h"

namespace ddprun::agent {

// The lines that a worker sends, each one JSON object. Pure.

struct Hello {
  int version = 0;
  std::uint64_t round = 0;
  int local_rank = 0;
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
// To a worker that was started before its node had a place, or that goes on in place: the line,
// then its `bytes` bytes, each "NAME=value" ended by a zero byte.
std::string assign_line(const std::vector<std::string>& environment);

// An agent's private directory below the temporary directory. The agent removes its own, its warden
// does where the agent was killed; where both were, the next agent at its end finds that nobody has
// it locked.

// A name for such a directory below `parent`; nobody has it.
std::string new_directory_name(const std::string& parent);

// Makes the directory, for this user alone. It is not left over while the result is open; where a
// file system has no locks (NFS), none is ever. Throws Error(kSystem).
UniqueFd make_locked_directory(const std::string& path);

// Removes, with what is in them, this user's directories below `parent` that nobody has locked.
// Errors are nobody's business: a later call may do better.
void remove_leftover_directories(const std::string& parent);

// Called from the io context.
struct AgentSocketEvents {
  // FirstStep, ExcludeNode, StopJob, WaitForPlace, OperationFailed, Recorded or AsksToRecover, of
  // the worker `local_rank`.
  std::function<void(int local_rank, const WorkerLine&)> said;
  std::function<void(LogLevel, const std::string&)> tell;  // one line for the user
};

class AgentSocket {
 public:
  // A name that nobody has, below `parent`, or below /tmp where that path is too long for a socket.
  // It is chosen before the directory is made, so that a warden that is there first removes it,
  // whenever this process is killed.
  static std::string new_directory(const std::string& parent);

  // The socket's name in its directory.
  static std::string path_in(const std::string& directory);

  // Makes the directory and listens in it. `pages` outlives this; its round is this socket's.
  // Throws Error(kSystem) or Error(kResourceExhausted).
  AgentSocket(boost::asio::io_context& io, ProgressPages& pages, const std::string& directory,
              AgentSocketEvents events);
  // Ends all connections; removes socket and directory.
  ~AgentSocket();
  AgentSocket(const AgentSocket&) = delete;
  AgentSocket& operator=(const AgentSocket&) = delete;

  const std::string& path() const;
  // For a worker that was started before its node had a place (the pages' round is 0). The worker
  // may say that it waits for one (waits_for_place()). Then assign() sends it the changed variables
  // of its environment, as "NAME=value". False: the worker has gone.
  bool waits_for_place(int local_rank) const;
  bool assign(int local_rank, const std::vector<std::string>& environment);
  // The same for a worker that goes on in place (docs/inplace.md): whether it has offered to, and
  // whether it has asked. Its place in the round that the pages have begun comes with go_on(). The
  // connections of the round before end with end_old_round().
  bool offers_recovery(int local_rank) const;
  bool asks_to_recover(int local_rank) const;
  bool go_on(int local_rank, const std::vector<std::string>& environment);
  void end_old_round();
  // The warden removes this directory if the agent can't any more.
  const std::string& directory() const;

  // Asks every worker that keeps a flight recorder to write it. Never waits: who doesn't take it
  // isn't asked.
  void ask_for_records();

  // Calls once, now or later in the io context: when all who were asked have answered the last
  // request that they got or gone, at most kRecordTime after that. A second call takes the place of
  // the first; null: of none.
  static constexpr std::chrono::milliseconds kRecordTime{2'000};
  void when_recorded(std::function<void()> call);

  // Hears at once what has arrived: a worker's last words come before the news of its end.
  void read_pending();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // second owner: handlers of the io context that are under way
};

}  // namespace ddprun::agent
