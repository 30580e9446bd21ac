// SPDX-License-Identifier: Apache-2.0
// The socket on which this node's workers of one round ask for their progress pages and report what
// only they know (docs/agent-socket.md). io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/progress_pages.h"
#include "agent/socket_lines.h"
#include "common/log_level.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

// Called from the io context.
struct AgentSocketEvents {
  // Called when the worker `local_rank` has sent one of these lines: an observer's Hello,
  // FirstStep, ExcludeNode, StopJob, WaitForPlace, OperationFailed, Recorded or AsksToRecover.
  std::function<void(int local_rank, const WorkerLine&)> said;
  std::function<void(LogLevel, const std::string&)> tell;  // one line for the user
};

class AgentSocket {
 public:
  // Returns an unused path for the directory, below `parent`, or below /tmp where that path is too
  // long for a socket. The warden is started with it before the directory is made. So it removes
  // the directory whenever this process is killed.
  static std::string new_directory(const std::string& parent);

  // Returns the socket's path in its directory.
  static std::string path_in(const std::string& directory);

  // Makes the directory and listens in it. `pages` outlives this; the socket serves the round of
  // the pages. Throws Error(kSystem) or Error(kResourceExhausted).
  AgentSocket(boost::asio::io_context& io, ProgressPages& pages, const std::string& directory,
              AgentSocketEvents events);
  // Ends all connections; removes socket and directory.
  ~AgentSocket();
  AgentSocket(const AgentSocket&) = delete;
  AgentSocket& operator=(const AgentSocket&) = delete;

  const std::string& path() const;
  // These are for a worker that was started before its node had a place (the pages' round is 0).
  // `waits_for_place()` tells whether the worker has said that it waits for one. `assign()` sends
  // it the changed variables of its environment, as "NAME=value". False: the worker has gone.
  bool waits_for_place(int local_rank) const;
  bool assign(int local_rank, const std::vector<std::string>& environment);
  // These are the same for a worker that goes on in place (docs/inplace.md). The first two tell
  // whether it has offered to, and whether it has asked. go_on() sends its place in the round that
  // the pages have begun. end_old_round() ends the connections of the round before.
  bool offers_recovery(int local_rank) const;
  bool asks_to_recover(int local_rank) const;
  bool go_on(int local_rank, const std::vector<std::string>& environment);
  void end_old_round();
  // The warden removes this directory if the agent can't any more.
  const std::string& directory() const;

  // Asks every worker that keeps a flight recorder to write it. Never waits: a worker whose socket
  // has no room for the request isn't asked.
  void ask_for_records();

  // Calls `call` once, now or later in the io context. It waits until all asked workers have
  // answered the last request or have gone, at most kRecordTime after the request. A second call
  // replaces the first; null cancels it.
  static constexpr std::chrono::milliseconds kRecordTime{2'000};
  void when_recorded(std::function<void()> call);

  // Reads at once what has arrived, so that a worker's last lines come before the news of its end.
  void read_pending();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // shared with the io context's handlers that are under way
};

// ---- An agent's private directory below the temporary directory ----
//
// The agent removes its own at its end. If the agent was killed, its warden removes it. If both
// were killed, the next agent that ends finds it unlocked and removes it.

// Returns an unused name for such a directory below `parent`.
std::string new_directory_name(const std::string& parent);

// Makes the directory, for this user alone. As long as the result is open, the directory doesn't
// count as left over. On a file system without locks (NFS) no directory ever does. Throws
// Error(kSystem).
UniqueFd make_locked_directory(const std::string& path);

// Removes this user's directories below `parent` that nobody has locked, with their content. Errors
// are ignored: a later call may succeed.
void remove_leftover_directories(const std::string& parent);

}  // namespace ddprun::agent
